// conv2d_act_pool_error.cuh - the error at the convolution's output, made from the pooled map's where it is needed

#pragma once

#include "conv2d_act_pool_forward.cuh"

#if !defined(ERROR_CHUNK) || !defined(ERROR_MAP_BLOCK) || !defined(ERROR_PIXEL_BLOCK)
#error "compile with -DERROR_CHUNK= -DERROR_MAP_BLOCK= -DERROR_PIXEL_BLOCK=, to convolve again; the host chooses them"
#endif

// Whether the error of a window reaches one of its cells.
__device__ __forceinline__ bool reaches(const unsigned char* passed, int cell)
{
    if (PASSED_BYTES == 0) return true;
    if (KEEPS_SIGNS) return passed[cell / 8] >> cell % 8 & 1;
    int position = 0;
    for (int byte = 0; byte < PASSED_BYTES; ++byte) position |= passed[byte] << 8 * byte;
    return position == cell;
}

// The error that the windows over (p, q) of a map of the batch hand down, but for the derivative of an activation of
// each cell. SIZE / STEP windows lie over a cell along an axis, rounded up: the last that begins before it, and others.
__device__ __forceinline__ float gather_windows(
    const float* grad_y, const float* y, const unsigned char* passed, int map, int p, int q)
{
    float sum = 0.0f;
    for (int above = 0; above < (SIZE_H + STEP_H - 1) / STEP_H; ++above) {
        for (int before = 0; before < (SIZE_W + STEP_W - 1) / STEP_W; ++before) {
            const int u = p / STEP_H - above;
            const int v = q / STEP_W - before;
            const int row = p - u * STEP_H;
            const int column = q - v * STEP_W;
            if (u < 0 || u >= U || v < 0 || v >= V || row >= SIZE_H || column >= SIZE_W) continue;
            const int out = (map * U + u) * V + v;
            const float error = ACTIVATE_CELLS ? grad_y[out] : grad_y[out] * slope(y[out]);
            if (reaches(passed + out * PASSED_BYTES, row * SIZE_W + column)) sum += error;
        }
    }
    return MAX_POOL ? sum : sum * (1.0f / CELLS);
}

// What backward reads, all of the whole batch.
struct Above {
    const float* grad_y;
    const float* y;
    const unsigned char* passed;
    const float* x;
    const float* weight;
    const float* bias;
};

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

// errors[map][row][column] of one image for COUNT maps from k0 on and ROWS x COLUMNS cells from (p0, q0) on; zero
// outside the map and up to STRIDE. Starts and ends with a barrier.
template <int COUNT, int ROWS, int COLUMNS, int STRIDE>
__device__ __forceinline__ void make_errors(
    float* errors, const Above& above, int n, int k0, int p0, int q0, float* scratch)
{
    __syncthreads();  // nobody still reads the errors before
    if constexpr (RECOMPUTES) {
        const int top = max(p0, 0) - p0;  // the map's first row and column within the tile
        const int left = max(q0, 0) - q0;
        convolve<Convolved<COUNT, ROWS, COLUMNS>>(
            above.x + n * C * H * W, above.weight, above.bias, k0, p0 + top, q0 + left, scratch,
            errors + top * STRIDE + left, ROWS * STRIDE, STRIDE, ROWS - top, COLUMNS - left);
        __syncthreads();  // the convolution is complete before it turns into errors
    }
#pragma unroll 2
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
