// conv2d_act_pool_error.cuh - the error at the convolution's output, made from the pooled map's where it is needed

#pragma once

#include "conv2d_act_pool_forward.cuh"

#if !defined(ERROR_CHUNK) || !defined(ERROR_MAP_BLOCK) || !defined(ERROR_PIXEL_BLOCK)
#error "compile with -DERROR_CHUNK= -DERROR_MAP_BLOCK= -DERROR_PIXEL_BLOCK=, to convolve again; the host chooses them"
#endif

// Whether the error of a window reaches one of its cells.
__device__ __forceinline__ bool reaches(const unsigned char* passed, int cell)
{
    if (PASSED_BYTES == 0 || KEEPS_SLOPES) return true;
    if (KEEPS_SIGNS) return passed[cell / 8] >> cell % 8 & 1;
    int position = 0;
    for (int byte = 0; byte < PASSED_BYTES; ++byte) position |= passed[byte] << 8 * byte;
    return position == cell;
}

// The error that the windows over (p, q) of a map of the batch hand down, but for a derivative that is to be recomputed. SIZE / STEP windows lie over a cell along an axis, rounded up: the last that begins before it, and others.
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
            const int cell = row * SIZE_W + column;
            float error = ACTIVATE_CELLS ? grad_y[out] : grad_y[out] * slope(y[out]);
            if (KEEPS_SLOPES) error *= reinterpret_cast<const float*>(passed + out * PASSED_BYTES)[cell];
            if (reaches(passed + out * PASSED_BYTES, cell)) sum += error;
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

// Windows that neither overlap nor have derivatives recomputed: a thread takes a window and spreads its error over cells.
constexpr bool SPREADS = !RECOMPUTES && SIZE_H <= STEP_H && SIZE_W <= STEP_W;
constexpr int AT_ONCE = CELLS <= 4 ? 4 : 2;  // windows whose loads a thread has on their way together

struct Window {
    int map, row, column;  // of its first cell within the tile
    float error;           // of each cell that it reaches, but for a derivative kept
    float slopes[KEEPS_SLOPES ? CELLS : 1];
    unsigned char passed[KEEPS_SLOPES || PASSED_BYTES == 0 ? 1 : PASSED_BYTES];
};

// Window `item` of those that touch a tile of ROWS x COLUMNS cells from (p0, q0) on; one that is not there has no error.
template <int COUNT, int WINDOW_ROWS, int WINDOW_COLUMNS>
__device__ __forceinline__ void load_window(
    Window& window, const Above& above, int item, int n, int k0, int p0, int q0)
{
    window.map = item / (WINDOW_ROWS * WINDOW_COLUMNS);
    const int u = floor_div(p0, STEP_H) + item / WINDOW_COLUMNS % WINDOW_ROWS;
    const int v = floor_div(q0, STEP_W) + item % WINDOW_COLUMNS;
    window.row = u * STEP_H - p0;
    window.column = v * STEP_W - q0;
    const bool is_there = window.map < COUNT && k0 + window.map < K && u >= 0 && u < U && v >= 0 && v < V;
    const int out = is_there ? ((n * K + k0 + window.map) * U + u) * V + v : 0;  // any will do to be read
    const float grad = above.grad_y[out];
    const float derivative = ACTIVATE_CELLS ? 1.0f : slope(above.y[out]);
    if constexpr (KEEPS_SLOPES) {
        load_run<CELLS, CELLS>(window.slopes, reinterpret_cast<const float*>(above.passed) + out * CELLS);
    } else {
#pragma unroll
        for (int byte = 0; byte < PASSED_BYTES; ++byte) window.passed[byte] = above.passed[out * PASSED_BYTES + byte];
    }
    window.error = grad * derivative * (MAX_POOL ? 1.0f : 1.0f / CELLS);
    if (!is_there) window.map = COUNT;
}

template <int COUNT, int ROWS, int COLUMNS, int STRIDE>
__device__ __forceinline__ void spread_window(float* errors, const Window& window)
{
    if (window.map >= COUNT) return;
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
