// conv2d_act_pool_error.cuh - the error at the convolution's output, made from the pooled map's where it is needed

#pragma once

#include "conv2d_act_pool_forward.cuh"

#if !defined(ERROR_CHUNK) || !defined(ERROR_MAP_BLOCK) || !defined(ERROR_PIXEL_BLOCK)
#error "compile with -DERROR_CHUNK= -DERROR_MAP_BLOCK= -DERROR_PIXEL_BLOCK=, to convolve again; the host chooses them"
#endif

template <int COUNT, int ROWS, int COLUMNS>
using Convolved =
    ConvolutionTile<COUNT, at_most(ROWS, P), at_most(COLUMNS, Q), ERROR_CHUNK, ERROR_MAP_BLOCK, ERROR_PIXEL_BLOCK>;

// Floats of scratch memory that make_errors needs.
template <int COUNT, int ROWS, int COLUMNS>
__host__ __device__ constexpr int error_scratch()
{
    if constexpr (RECOMPUTES) return Convolved<COUNT, ROWS, COLUMNS>::SCRATCH;
    return 0;
}

template <int COUNT, int ROWS, int COLUMNS, int STRIDE>
__device__ __forceinline__ void spread_window(float* errors, const Window& window)
{
    if (!window.is_there) return;
#pragma unroll
    for (int r = 0; r < SIZE_H; ++r) {
#pragma unroll
        for (int s = 0; s < SIZE_W; ++s) {
            const int cell = r * SIZE_W + s;
            const int row = window.row + r;
            const int column = window.column + s;
            if (row < 0 || row >= ROWS || column < 0 || column >= COLUMNS) continue;
            const float factor = KEEPS_SLOPES ? window.slopes[KEEPS_SLOPES ? cell : 0] : 1.0f;
            if (!reaches(window.passed, cell)) continue;
            errors[(window.map * ROWS + row) * STRIDE + column] = window.error * factor;
        }
    }
}

template <int COUNT, int ROWS, int COLUMNS, int STRIDE>
__device__ __forceinline__ void spread_windows(float* errors, const Above& above, int n, int k0, int p0, int q0)
{
    constexpr int WINDOW_ROWS = (ROWS + STEP_H - 2) / STEP_H + 1;  // wherever the tile begins
    constexpr int WINDOW_COLUMNS = (COLUMNS + STEP_W - 2) / STEP_W + 1;
    constexpr int TURNS = turns(COUNT * WINDOW_ROWS * WINDOW_COLUMNS);
    for (int i = threadIdx.x; i < COUNT * ROWS * STRIDE; i += THREADS) errors[i] = 0.0f;
#pragma unroll 1
    for (int turn0 = 0; turn0 < TURNS; turn0 += at_most(AT_ONCE, TURNS)) {
        Window windows[at_most(AT_ONCE, TURNS)];
#pragma unroll
        for (int turn = 0; turn < at_most(AT_ONCE, TURNS); ++turn) {
            const int item = (turn0 + turn) * THREADS + threadIdx.x;
            load_window<COUNT, WINDOW_ROWS, WINDOW_COLUMNS>(windows[turn], above, item, n, k0, p0, q0);
        }
        if (turn0 == 0) __syncthreads();  // zeros lie everywhere before errors are written over them
#pragma unroll
        for (const Window& window : windows) spread_window<COUNT, ROWS, COLUMNS, STRIDE>(errors, window);
    }
    __syncthreads();  // the errors are complete before anyone reads them
}

// Any windows: a thread takes a cell and gathers what the windows over it hand down.
template <int COUNT, int ROWS, int COLUMNS, int STRIDE>
__device__ __forceinline__ void gather_errors(
    float* errors, const Above& above, int n, int k0, int p0, int q0, float* scratch)
{
    if constexpr (RECOMPUTES) {
        const int top = max(p0, 0) - p0;  // the map's first row and column within the tile
        const int left = max(q0, 0) - q0;
        convolve<Convolved<COUNT, ROWS, COLUMNS>>(
            above.x + n * C * H * W, above.weight, above.bias, k0, p0 + top, q0 + left, scratch,
            errors + top * STRIDE + left, ROWS * STRIDE, STRIDE, ROWS - top, COLUMNS - left);
        __syncthreads();  // the convolution is complete before it turns into errors
    }
#pragma unroll 4
    for (int turn = 0; turn < turns(COUNT * ROWS * STRIDE); ++turn) {
        const int i = turn * THREADS + threadIdx.x;
        const int k = k0 + i / (ROWS * STRIDE);
        const int p = p0 + i / STRIDE % ROWS;
        const int q = q0 + i % STRIDE;
        const bool is_mine = i < COUNT * ROWS * STRIDE;
        const bool is_there = is_mine && k < K && i % STRIDE < COLUMNS && p >= 0 && p < P && q >= 0 && q < Q;
        float error = 0.0f;
        if (is_there) error = gather_windows(above.grad_y, above.y, above.passed, n * K + k, p, q);
        if (is_there && RECOMPUTES) error *= slope(activate(errors[i]));
        if (is_mine) errors[i] = error;
    }
    __syncthreads();  // the errors are complete before anyone reads them
}

// errors[map][row][column] of one image for COUNT maps from k0 on and ROWS x COLUMNS cells from (p0, q0) on; zero
// outside the map and up to STRIDE. Begins after a barrier of the caller's, ends with one.
template <int COUNT, int ROWS, int COLUMNS, int STRIDE>
__device__ __forceinline__ void make_errors(
    float* errors, const Above& above, int n, int k0, int p0, int q0, float* scratch)
{
    if constexpr (SPREADS) {
        spread_windows<COUNT, ROWS, COLUMNS, STRIDE>(errors, above, n, k0, p0, q0);
    } else {
        gather_errors<COUNT, ROWS, COLUMNS, STRIDE>(errors, above, n, k0, p0, q0, scratch);
    }
}
