// conv2d_act_pool.cuh - sizes, activation, pooling window and loads into shared memory that all passes share
//
// Letters: N images, C channels of H x W in, K maps of P x Q after the convolution, U x V after pooling; R x S filter.
// No pooling is averaging over 1 x 1. A maximum is taken before the activation, wherever the layers have it: the
// activations are monotone, so the result is the same, and one activation a window is enough. An average may come
// after the activation of each cell (ACTIVATE_CELLS) or before the one of the mean.

#pragma once

#include "activation.cuh"
#include "async_copy.cuh"
#include "follow.cuh"

#if !defined(CHANNELS) || !defined(IN_H) || !defined(IN_W) || !defined(MAPS) || !defined(OUT_H) || !defined(OUT_W)
#error "compile with -DCHANNELS= -DIN_H= -DIN_W= -DMAPS= -DOUT_H= -DOUT_W=; the host takes them from the layers"
#endif
#if !defined(KERNEL_H) || !defined(KERNEL_W) || !defined(STRIDE_H) || !defined(STRIDE_W)
#error "compile with -DKERNEL_H= -DKERNEL_W= -DSTRIDE_H= -DSTRIDE_W=; the host takes them from Conv2dSpec"
#endif
#if !defined(PAD_H) || !defined(PAD_W)
#error "compile with -DPAD_H= -DPAD_W=; the host takes them from Conv2dSpec.padding"
#endif
#if !defined(SIZE_H) || !defined(SIZE_W) || !defined(STEP_H) || !defined(STEP_W)
#error "compile with -DSIZE_H= -DSIZE_W= -DSTEP_H= -DSTEP_W=; the host takes them from PoolingSpec"
#endif
#if !defined(FOLD_H) || !defined(FOLD_W) || !defined(FOLD_STEP_H) || !defined(FOLD_STEP_W)
#error "compile with -DFOLD_H= -DFOLD_W= -DFOLD_STEP_H= -DFOLD_STEP_W=, 1 unless the host folds a pooling"
#endif
#if !defined(POOLED_H) || !defined(POOLED_W) || !defined(MAX_POOL)
#error "compile with -DPOOLED_H= -DPOOLED_W= -DMAX_POOL=; the host takes them from the layers"
#endif
#if !defined(ACTIVATE_CELLS) || !defined(PASSED_BYTES) || !defined(THREADS)
#error "compile with -DACTIVATE_CELLS= -DPASSED_BYTES= -DTHREADS=; the host takes or chooses them"
#endif

constexpr int C = CHANNELS, H = IN_H, W = IN_W, K = MAPS, P = OUT_H, Q = OUT_W, U = POOLED_H, V = POOLED_W;
constexpr int R = KERNEL_H, S = KERNEL_W;
// Filters as they lie in memory, R_STORED x S_STORED: smaller where the host folds a pooling into the convolution.
constexpr int R_STORED = R - (FOLD_H - 1) * FOLD_STEP_H, S_STORED = S - (FOLD_W - 1) * FOLD_STEP_W;
constexpr int STORED = R_STORED * S_STORED;
constexpr int CELLS = SIZE_H * SIZE_W;
constexpr bool KEEPS_SIGNS = ACTIVATE_CELLS && ACTIVATION == RELU;
// The derivatives at a window's cells, which backward needs otherwise, lie in `passed` or are convolved again.
constexpr bool KEEPS_SLOPES = ACTIVATE_CELLS && ACTIVATION != RELU && PASSED_BYTES > 0;
constexpr bool RECOMPUTES = ACTIVATE_CELLS && ACTIVATION != RELU && PASSED_BYTES == 0;
static_assert(!KEEPS_SLOPES || PASSED_BYTES == 4 * CELLS, "a float a cell");
constexpr int LONGEST_COPY = 12;  // taps of a row up to which a thread keeps the cells they share in registers

__host__ __device__ constexpr int round_up(int value, int unit) { return (value + unit - 1) / unit * unit; }
__host__ __device__ constexpr int floor_div(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
__host__ __device__ constexpr int at_most(int a, int b) { return a < b ? a : b; }
__host__ __device__ constexpr int at_least(int a, int b) { return a > b ? a : b; }
// Rounds in which the block's threads go through `total` elements, one each.
__host__ __device__ constexpr int turns(int total) { return (total + THREADS - 1) / THREADS; }
// An odd number of float4: rows stay aligned, and eight of them one above the other lie in different banks.
__host__ __device__ constexpr int row_stride(int columns)
{
    return round_up(columns, 4) / 4 % 2 == 1 ? round_up(columns, 4) : round_up(columns, 4) + 4;
}

// The derivative, from the activation's result.
__device__ __forceinline__ float slope(float y)
{
    if (ACTIVATION == TANH) return 1.0f - y * y;
    if (ACTIVATION == RELU) return y > 0.0f ? 1.0f : 0.0f;
    if (ACTIVATION == SIGMOID) return y * (1.0f - y);
    return 1.0f;
}

// COUNT floats, in the widest loads that a start at a multiple of ALIGNMENT floats allows; rounds COUNT up to them.
template <int COUNT, int ALIGNMENT>
__device__ __forceinline__ void load_run(float* to, const float* from)
{
    constexpr int WIDTH = ALIGNMENT % 4 == 0 ? 4 : ALIGNMENT % 2 == 0 ? 2 : 1;
#pragma unroll
    for (int i = 0; i < COUNT; i += WIDTH) {
        if (WIDTH == 4) {
            const float4 value = *reinterpret_cast<const float4*>(from + i);
            to[i] = value.x, to[i + 1] = value.y, to[i + 2] = value.z, to[i + 3] = value.w;
        } else if (WIDTH == 2) {
            const float2 value = *reinterpret_cast<const float2*>(from + i);
            to[i] = value.x, to[i + 1] = value.y;
        } else {
            to[i] = from[i];
        }
    }
}

// to[i] += values[i], likewise.
template <int COUNT, int ALIGNMENT>
__device__ __forceinline__ void add_run(float* to, const float* values)
{
    constexpr int WIDTH = ALIGNMENT % 4 == 0 ? 4 : 1;
#pragma unroll
    for (int i = 0; i < COUNT; i += WIDTH) {
        if (WIDTH == 4) {
            float4* four = reinterpret_cast<float4*>(to + i);
            const float4 old = *four;
            *four = make_float4(old.x + values[i], old.y + values[i + 1], old.z + values[i + 2], old.w + values[i + 3]);
        } else {
            to[i] += values[i];
        }
    }
}

// COUNT channels from c0 on, ROWS x STRIDE cells of each from (top, left) on; zero where there is no image. The cells
// are there after wait_for_copies() and a barrier.
template <int COUNT, int ROWS, int STRIDE, int PLANE>
__device__ __forceinline__ void fetch_image(float* tile, const float* image, int c0, int top, int left)
{
    constexpr int TOTAL = COUNT * ROWS * STRIDE;
#pragma unroll 4
    for (int turn = 0; turn < turns(TOTAL); ++turn) {
        const int i = turn * THREADS + threadIdx.x;
        const int c = i / (ROWS * STRIDE);
        const int row = i / STRIDE % ROWS;
        const int column = i % STRIDE;
        const int h = top + row;
        const int w = left + column;
        const bool is_there = i < TOTAL && c0 + c < C && h >= 0 && h < H && w >= 0 && w < W;
        const float* cell = is_there ? image + ((c0 + c) * H + h) * W + w : image;
        if (i < TOTAL) copy_async(tile + c * PLANE + row * STRIDE + column, cell, is_there);
    }
}

// Tap (r, s) of a filter: as stored, or the mean of the FOLD_H x FOLD_W shifted copies that a folded window adds up.
__device__ __forceinline__ float tap_of(const float* filter, int r, int s)
{
    if (FOLD_H * FOLD_W == 1) return filter[r * S + s];
    float sum = 0.0f;
    for (int i = 0; i < FOLD_H; ++i) {
        for (int j = 0; j < FOLD_W; ++j) {
            const int row = r - i * FOLD_STEP_H;
            const int column = s - j * FOLD_STEP_W;
            if (row < 0 || row >= R_STORED || column < 0 || column >= S_STORED) continue;
            sum += filter[row * S_STORED + column];
        }
    }
    return sum * (1.0f / (FOLD_H * FOLD_W));
}

// Filters of OUTER channels or maps, transposed so that the other of the two runs fastest: tile[outer, r, s][inner].
// Lanes take 4 inner x 8 taps: whole sectors are read, and with STRIDE an odd number of float4 no two hit one bank. The
// filters are there after wait_for_copies() and a barrier.
template <int OUTER, int OUTER_STEP, int INNER, int INNER_STEP, int STRIDE>
__device__ __forceinline__ void fetch_filters(float* tile, const float* filters, int outer_count, int inner_count)
{
    constexpr int TAPS = OUTER * R * S;
    constexpr int TOTAL = round_up(INNER, 4) * TAPS;
#pragma unroll 4
    for (int turn = 0; turn < turns(TOTAL); ++turn) {
        const int i = turn * THREADS + threadIdx.x;
        const int inner = i / (4 * TAPS) * 4 + i % 4;
        const int tap = i / 4 % TAPS;
        const int outer = tap / (R * S);
        const bool is_there = i < TOTAL && outer < outer_count && inner < inner_count;
        const float* filter = filters + outer * OUTER_STEP + inner * INNER_STEP;
        float* place = tile + tap * STRIDE + inner;
        if (i >= TOTAL) continue;
        if (FOLD_H * FOLD_W == 1) {
            copy_async(place, is_there ? filter + tap % (R * S) : filters, is_there);
        } else {
            *place = is_there ? tap_of(filter, tap / S % R, tap % S) : 0.0f;
        }
    }
}
