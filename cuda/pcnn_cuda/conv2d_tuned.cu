// conv2d_tuned.cu - convolution with tiles in shared memory and in registers: forward, and the three gradients
//
// Computes   y[n,k,p,q] = bias[k] + sum over c,r,s of x[n,c,h,w] weight[k,c,r,s]
//              with h = p*STRIDE_H + r - PAD_H, w = q*STRIDE_W + s - PAD_W, zero outside the map
//            grad_x[n,c,h,w]      = sum over k,r,s of grad_y[n,k,p,q] weight[k,c,r,s]
//            partial[i]           = of slice i of the batch: grad_weight, then grad_bias
//            grad_weight[k,c,r,s] = sum over i of partial[i], that is over n,p,q of grad_y[n,k,p,q] x[n,c,h,w]
//            grad_bias[k]         = sum over i of partial[i], that is over n,p,q of grad_y[n,k,p,q]
// Shapes     x, grad_x (N,C,H,W)   y, grad_y (N,K,P,Q)   weight, grad_weight (K,C,R,S)   bias, grad_bias (K)
//            partial (slice_count, K*C*R*S + K); float32, contiguous
// Launch     forward, backward_input: conv2d_tile.cuh, grid (tiles of pixels, tiles of maps)
//            backward_weight: grid (slices, tiles of weights); a slice is slice_size strips, a strip WEIGHT_ROWS rows of
//            WEIGHT_COLUMN_GROUPS*WEIGHT_THREAD_COLUMNS columns of one image's output
//            backward_sum: 32 weights a block of 32 x SUM_GROUPS threads
// Traffic    forward reads 4*(N*C*H*W + tiles*C*R*S*K) bytes and writes 4*N*K*P*Q; the weight gradient writes and reads
//            partial besides; with 5 x 5 filters and tens of maps the bound is arithmetic, 4 to 6 FMA a cell loaded
// Limits     every array < 2^31 elements (32-bit indices); kernel and stride at most 32, beyond that conv2d.cu serves
// Repeats    bitwise: slices and groups are summed in a fixed order
// Ties, NaN  a NaN or infinity of x may spread to neighbouring taps of grad_weight where a strip reaches beyond a row
// Reference  baseline/pcnn_baseline/conv2d.py, compared by pcnn_bench/verify.py
// Idea       direct convolution with register blocking rather than a matrix product: the row of cells that slides under
//            the filter is loaded once for all its taps. The weight gradient sums over millions of pixels, so the batch
//            is cut into slices that fill the device ("split-K"), each block owning weights, not pixels

#include "conv2d_tile.cuh"

#if !defined(IN_CHANNELS) || !defined(IN_HEIGHT) || !defined(IN_WIDTH)
#error "compile with -DIN_CHANNELS= -DIN_HEIGHT= -DIN_WIDTH=; the host takes them from the layer's x_shape"
#endif
#if !defined(OUT_CHANNELS) || !defined(OUT_HEIGHT) || !defined(OUT_WIDTH)
#error "compile with -DOUT_CHANNELS= -DOUT_HEIGHT= -DOUT_WIDTH=; the host takes them from the layer's y_shape"
#endif
#if !defined(KERNEL_H) || !defined(STRIDE_H) || !defined(PAD_H) || !defined(KERNEL_W) || !defined(STRIDE_W) || !defined(PAD_W)
#error "compile with -DKERNEL_H= -DSTRIDE_H= -DPAD_H= and the same for W; the host takes them from Conv2dSpec"
#endif
#if !defined(FORWARD_ROWS) || !defined(INPUT_ROWS) || !defined(WEIGHT_ROWS) || !defined(SUM_GROUPS)
#error "compile with the tile constants that conv2d_tiles.py chooses for the layer"
#endif

struct Forward {
    static constexpr bool HAS_BIAS = true, MIRRORED = false;
    static constexpr int C_IN = IN_CHANNELS, H_IN = IN_HEIGHT, W_IN = IN_WIDTH;
    static constexpr int C_OUT = OUT_CHANNELS, H_OUT = OUT_HEIGHT, W_OUT = OUT_WIDTH;
    static constexpr int R = KERNEL_H, UP_H = STRIDE_H, DOWN_H = 1, SHIFT_H = PAD_H;
    static constexpr int S = KERNEL_W, UP_W = STRIDE_W, DOWN_W = 1, SHIFT_W = PAD_W;
    static constexpr int THREAD_MAPS = FORWARD_THREAD_MAPS, THREAD_COLUMNS = FORWARD_THREAD_COLUMNS;
    static constexpr int MAP_GROUPS = FORWARD_MAP_GROUPS, COLUMN_GROUPS = FORWARD_COLUMN_GROUPS;
    static constexpr int ROWS = FORWARD_ROWS, IMAGES = FORWARD_IMAGES, CHANNELS = FORWARD_CHANNELS;
    static constexpr int LINES = FORWARD_LINES, CELLS = FORWARD_CELLS;
    static constexpr int PITCH = FORWARD_PITCH, FILTER_PITCH = FORWARD_FILTER_PITCH;
};

struct BackwardInput {
    static constexpr bool HAS_BIAS = false, MIRRORED = true;
    static constexpr int C_IN = OUT_CHANNELS, H_IN = OUT_HEIGHT, W_IN = OUT_WIDTH;
    static constexpr int C_OUT = IN_CHANNELS, H_OUT = IN_HEIGHT, W_OUT = IN_WIDTH;
    static constexpr int R = KERNEL_H, UP_H = 1, DOWN_H = STRIDE_H, SHIFT_H = KERNEL_H - 1 - PAD_H;
    static constexpr int S = KERNEL_W, UP_W = 1, DOWN_W = STRIDE_W, SHIFT_W = KERNEL_W - 1 - PAD_W;
    static constexpr int THREAD_MAPS = INPUT_THREAD_MAPS, THREAD_COLUMNS = INPUT_THREAD_COLUMNS;
    static constexpr int MAP_GROUPS = INPUT_MAP_GROUPS, COLUMN_GROUPS = INPUT_COLUMN_GROUPS;
    static constexpr int ROWS = INPUT_ROWS, IMAGES = INPUT_IMAGES, CHANNELS = INPUT_CHANNELS;
    static constexpr int LINES = INPUT_LINES, CELLS = INPUT_CELLS;
    static constexpr int PITCH = INPUT_PITCH, FILTER_PITCH = INPUT_FILTER_PITCH;
};

extern "C" __global__ void __launch_bounds__(Tile<Forward>::THREADS) conv2d_tuned_forward(
    const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
    float* __restrict__ y, int N)
{
    convolve<Forward>(x, weight, bias, y, N);
}

extern "C" __global__ void __launch_bounds__(Tile<BackwardInput>::THREADS) conv2d_tuned_backward_input(
    const float* __restrict__ grad_y, const float* __restrict__ weight, float* __restrict__ grad_x, int N)
{
    convolve<BackwardInput>(grad_y, weight, nullptr, grad_x, N);
}

// The weight gradient: a block owns TILE_MAPS x TILE_CHANNELS filters; a thread, of THREAD_MAPS x THREAD_CHANNELS of
// them, row r; PIXEL_GROUPS sets of such threads share a strip's pixels.
constexpr int TAPS = KERNEL_H * KERNEL_W;
constexpr int TILE_MAPS = WEIGHT_MAP_GROUPS * WEIGHT_THREAD_MAPS;
constexpr int TILE_CHANNELS = WEIGHT_CHANNEL_GROUPS * WEIGHT_THREAD_CHANNELS;
constexpr int CHANNEL_TILES = ceil_div(IN_CHANNELS, TILE_CHANNELS);
constexpr int TILE_WEIGHTS = TILE_MAPS * TILE_CHANNELS * TAPS;
constexpr int TILE_SUMS = TILE_WEIGHTS + TILE_MAPS;
constexpr int OWNERS = KERNEL_H * WEIGHT_CHANNEL_GROUPS * WEIGHT_MAP_GROUPS;
constexpr int WEIGHT_THREADS = OWNERS * WEIGHT_PIXEL_GROUPS;
constexpr int STRIP_COLUMNS = WEIGHT_COLUMN_GROUPS * WEIGHT_THREAD_COLUMNS;
constexpr int COLUMN_STRIPS = ceil_div(OUT_WIDTH, STRIP_COLUMNS);
constexpr int STRIPS = COLUMN_STRIPS * ceil_div(OUT_HEIGHT, WEIGHT_ROWS);  // an image
constexpr int WEIGHT_COUNT = OUT_CHANNELS * IN_CHANNELS * TAPS;
constexpr int INPUT_SIZE = TILE_CHANNELS * WEIGHT_LINES * WEIGHT_PITCH;
constexpr int GRAD_SIZE = TILE_MAPS * WEIGHT_ROWS * WEIGHT_GRAD_PITCH;
constexpr int SUMS_SIZE = WEIGHT_PIXEL_GROUPS * TILE_SUMS;
constexpr int MEMORY_SIZE = INPUT_SIZE + GRAD_SIZE > SUMS_SIZE ? INPUT_SIZE + GRAD_SIZE : SUMS_SIZE;
constexpr int INPUT_VECTOR = WEIGHT_COLUMN_GROUPS == 1 ? 4 : vector_width(WEIGHT_THREAD_COLUMNS * STRIDE_W);
constexpr int GRAD_VECTOR = WEIGHT_COLUMN_GROUPS == 1 ? 4 : vector_width(WEIGHT_THREAD_COLUMNS);
constexpr int GRAD_CELLS = ceil_div(WEIGHT_THREAD_COLUMNS, GRAD_VECTOR) * GRAD_VECTOR;
static_assert(WEIGHT_PITCH % INPUT_VECTOR == 0 && WEIGHT_GRAD_PITCH % GRAD_VECTOR == 0, "rows are whole vectors");
static_assert(STRIP_COLUMNS <= WEIGHT_GRAD_PITCH, "a row holds every thread's cells");
static_assert((WEIGHT_COLUMN_GROUPS - 1) * WEIGHT_THREAD_COLUMNS * STRIDE_W + WEIGHT_CELLS <= WEIGHT_PITCH, "so here");

using Sums = float[WEIGHT_THREAD_CHANNELS][WEIGHT_THREAD_MAPS][KERNEL_W];

// Add a staged strip to a thread's sums; `input` and `grad` point to its first channel and map, `input` to row r.
__device__ __forceinline__ void add_strip(
    Sums& sum, float (&sum_bias)[WEIGHT_THREAD_MAPS], const float* input, const float* grad, int pixel_group, bool has_bias)
{
    for (int i = pixel_group; i < WEIGHT_ROWS * WEIGHT_COLUMN_GROUPS; i += WEIGHT_PIXEL_GROUPS) {
        const int row = i / WEIGHT_COLUMN_GROUPS;
        const int column = i % WEIGHT_COLUMN_GROUPS * WEIGHT_THREAD_COLUMNS;
        float cells[WEIGHT_THREAD_CHANNELS][WEIGHT_CELLS];
#pragma unroll
        for (int c = 0; c < WEIGHT_THREAD_CHANNELS; ++c) {
            const int line = c * WEIGHT_LINES + row * STRIDE_H;
            load_cells<INPUT_VECTOR, WEIGHT_CELLS>(cells[c], input + line * WEIGHT_PITCH + column * STRIDE_W);
        }
#pragma unroll
        for (int k = 0; k < WEIGHT_THREAD_MAPS; ++k) {
            float grads[GRAD_CELLS];
            load_cells<GRAD_VECTOR, GRAD_CELLS>(grads, grad + (k * WEIGHT_ROWS + row) * WEIGHT_GRAD_PITCH + column);
#pragma unroll
            for (int j = 0; j < WEIGHT_THREAD_COLUMNS; ++j) {
#pragma unroll
                for (int c = 0; c < WEIGHT_THREAD_CHANNELS; ++c) {
#pragma unroll
                    for (int s = 0; s < KERNEL_W; ++s) sum[c][k][s] += grads[j] * cells[c][j * STRIDE_W + s];
                }
            }
            if (has_bias) {
#pragma unroll
                for (int j = 0; j < WEIGHT_THREAD_COLUMNS; ++j) sum_bias[k] += grads[j];
            }
        }
    }
}

// Rows of x and of grad_y that a strip needs, as [channel][line] and [map][row].
__device__ __forceinline__ void stage_strip(
    float* input, float* grad, const float* x, const float* grad_y, int strip, int c0, int k0)
{
    const int n = strip / STRIPS;
    const int p0 = strip % STRIPS / COLUMN_STRIPS * WEIGHT_ROWS;
    const int q0 = strip % COLUMN_STRIPS * STRIP_COLUMNS;
    const auto input_row = [&](int i) -> const float* {
        const int c = c0 + i / WEIGHT_LINES;
        const int h = p0 * STRIDE_H - PAD_H + i % WEIGHT_LINES;
        const bool exists = c < IN_CHANNELS && h >= 0 && h < IN_HEIGHT;
        return exists ? x + ((n * IN_CHANNELS + c) * IN_HEIGHT + h) * IN_WIDTH : nullptr;
    };
    const auto grad_row = [&](int i) -> const float* {
        const int k = k0 + i / WEIGHT_ROWS;
        const int p = p0 + i % WEIGHT_ROWS;
        const bool exists = k < OUT_CHANNELS && p < OUT_HEIGHT;
        return exists ? grad_y + ((n * OUT_CHANNELS + k) * OUT_HEIGHT + p) * OUT_WIDTH : nullptr;
    };
    stage_rows<WEIGHT_THREADS, TILE_CHANNELS * WEIGHT_LINES, WEIGHT_PITCH, IN_WIDTH>(input, q0 * STRIDE_W - PAD_W, input_row);
    stage_rows<WEIGHT_THREADS, TILE_MAPS * WEIGHT_ROWS, WEIGHT_GRAD_PITCH, OUT_WIDTH>(grad, q0, grad_row);
}

// Add the groups' sums in order and write those of weights that exist.
__device__ __forceinline__ void write_partial(float* partial, const float* sums, int c0, int k0)
{
    for (int i = threadIdx.x; i < TILE_SUMS; i += WEIGHT_THREADS) {
        const bool is_bias = i >= TILE_WEIGHTS;
        const int k = k0 + (is_bias ? i - TILE_WEIGHTS : i / (TILE_CHANNELS * TAPS));
        const int in_filters = i % (TILE_CHANNELS * TAPS);
        const bool exists = is_bias ? c0 == 0 : c0 + in_filters / TAPS < IN_CHANNELS;
        if (k >= OUT_CHANNELS || !exists) continue;

        float sum = sums[i];
        for (int group = 1; group < WEIGHT_PIXEL_GROUPS; ++group) sum += sums[group * TILE_SUMS + i];
        partial[is_bias ? WEIGHT_COUNT + k : (k * IN_CHANNELS + c0) * TAPS + in_filters] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(WEIGHT_THREADS) conv2d_tuned_backward_weight(
    const float* __restrict__ x, const float* __restrict__ grad_y, float* __restrict__ partial,
    int N, int slice_size)
{
    __shared__ __align__(16) float memory[MEMORY_SIZE];
    float* grad = memory + INPUT_SIZE;
    const int c0 = blockIdx.y % CHANNEL_TILES * TILE_CHANNELS;
    const int k0 = blockIdx.y / CHANNEL_TILES * TILE_MAPS;
    const int r = threadIdx.x % KERNEL_H;
    const int channel = threadIdx.x / KERNEL_H % WEIGHT_CHANNEL_GROUPS * WEIGHT_THREAD_CHANNELS;
    const int map = threadIdx.x / (KERNEL_H * WEIGHT_CHANNEL_GROUPS) % WEIGHT_MAP_GROUPS * WEIGHT_THREAD_MAPS;
    const int pixel_group = threadIdx.x / OWNERS;
    const bool has_bias = c0 + channel + r == 0;  // one thread of those that see a map's gradient

    Sums sum = {};
    float sum_bias[WEIGHT_THREAD_MAPS] = {};
    const int first = blockIdx.x * slice_size;
    const int end = min(first + slice_size, N * STRIPS);
    for (int strip = first; strip < end; ++strip) {
        stage_strip(memory, grad, x, grad_y, strip, c0, k0);
        __syncthreads();  // the strip is complete before anyone reads it
        add_strip(
            sum, sum_bias, memory + (channel * WEIGHT_LINES + r) * WEIGHT_PITCH, grad + map * WEIGHT_ROWS * WEIGHT_GRAD_PITCH,
            pixel_group, has_bias);
        __syncthreads();  // everyone is done with the strip
    }

    float* sums = memory + pixel_group * TILE_SUMS;  // over the strips' place
#pragma unroll
    for (int k = 0; k < WEIGHT_THREAD_MAPS; ++k) {
#pragma unroll
        for (int c = 0; c < WEIGHT_THREAD_CHANNELS; ++c) {
            float* row = sums + (((map + k) * TILE_CHANNELS + channel + c) * KERNEL_H + r) * KERNEL_W;
#pragma unroll
            for (int s = 0; s < KERNEL_W; ++s) row[s] = sum[c][k][s];
        }
        if (has_bias) sums[TILE_WEIGHTS + map + k] = sum_bias[k];
    }
    __syncthreads();  // every group's sums are stored before they are added
    write_partial(partial + blockIdx.x * (WEIGHT_COUNT + OUT_CHANNELS), memory, c0, k0);
}

extern "C" __global__ void __launch_bounds__(32 * SUM_GROUPS) conv2d_tuned_backward_sum(
    const float* __restrict__ partial, float* __restrict__ grad_weight, float* __restrict__ grad_bias,
    int slice_count)
{
    __shared__ float sums[SUM_GROUPS][32];
    constexpr int COUNT = WEIGHT_COUNT + OUT_CHANNELS;
    const int lane = threadIdx.x % 32;
    const int group = threadIdx.x / 32;
    const int i = blockIdx.x * 32 + lane;

    float sum = 0.0f;
    if (i < COUNT) {
#pragma unroll 8
        for (int slice = group; slice < slice_count; slice += SUM_GROUPS) sum += partial[slice * COUNT + i];
    }
    sums[group][lane] = sum;
    __syncthreads();  // every group's sum is stored before the first adds them
    if (group > 0 || i >= COUNT) return;

    for (int other = 1; other < SUM_GROUPS; ++other) sum += sums[other][lane];
    if (i < WEIGHT_COUNT) {
        grad_weight[i] = sum;
    } else {
        grad_bias[i - WEIGHT_COUNT] = sum;
    }
}
