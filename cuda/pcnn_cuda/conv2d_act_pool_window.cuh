// conv2d_act_pool_window.cuh - what a pooling window hands up, and the error that it hands down

#pragma once

#include "conv2d_act_pool.cuh"

// The pooled and activated value of a window, whose row r begins at row_at(r); what backward must know of its cells
// goes to `passed`.
template <class RowAt>
__device__ __forceinline__ float pool(RowAt row_at, unsigned char* passed)
{
    float result = MAX_POOL ? row_at(0)[0] : 0.0f;
    int position = 0;
    unsigned signs = 0;
    for (int r = 0; r < SIZE_H; ++r) {
        const float* row = row_at(r);
        for (int s = 0; s < SIZE_W; ++s) {
            const float value = row[s];
            const int cell = r * SIZE_W + s;
            if (MAX_POOL) {
                const bool first_nan = value != value && result == result;
                if (value > result || first_nan) {
                    result = value;
                    position = cell;
                }
                continue;
            }
            const float activated = ACTIVATE_CELLS ? activate(value) : value;
            result += activated;
            if (KEEPS_SLOPES) reinterpret_cast<float*>(passed)[cell] = slope(activated);
            if (!KEEPS_SIGNS) continue;
            if (value > 0.0f) signs |= 1u << cell % 8;
            if (cell % 8 == 7 || cell == CELLS - 1) {
                passed[cell / 8] = signs;
                signs = 0;
            }
        }
    }
    if (MAX_POOL) {
        for (int byte = 0; byte < PASSED_BYTES; ++byte) passed[byte] = position >> 8 * byte & 255;
        return activate(result);
    }
    result *= 1.0f / CELLS;
    return ACTIVATE_CELLS ? result : activate(result);
}

// Whether the error of a window reaches one of its cells.
__device__ __forceinline__ bool reaches(const unsigned char* passed, int cell)
{
    if (PASSED_BYTES == 0 || KEEPS_SLOPES) return true;
    if (KEEPS_SIGNS) return passed[cell / 8] >> cell % 8 & 1;
    int position = 0;
    for (int byte = 0; byte < PASSED_BYTES; ++byte) position |= passed[byte] << 8 * byte;
    return position == cell;
}

// The error that the windows over (p, q) of a map of the batch hand down, but for a derivative that is to be
// recomputed. SIZE / STEP windows lie over a cell along an axis, rounded up: the last that begins before it, and
// others.
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

// Windows that neither overlap nor have derivatives recomputed: a thread takes a window and spreads its error over its
// cells, which are few enough for loops over them to be unrolled.
constexpr bool SPREADS = !RECOMPUTES && SIZE_H <= STEP_H && SIZE_W <= STEP_W && STEP_H * STEP_W <= 64;
constexpr int AT_ONCE = CELLS <= 4 ? 4 : 2;  // windows whose loads a thread has on their way together

struct Window {
    int map, row, column;  // of its first cell within the tile
    bool is_there;
    float error;           // of each cell that it reaches, but for a derivative kept
    float slopes[KEEPS_SLOPES ? CELLS : 1];
    unsigned char passed[KEEPS_SLOPES || PASSED_BYTES == 0 ? 1 : PASSED_BYTES];
};

// Window `item` of those that touch a tile of cells from (p0, q0) on, for COUNT maps; from row end_u on there is none.
template <int COUNT, int WINDOW_ROWS, int WINDOW_COLUMNS>
__device__ __forceinline__ void load_window(
    Window& window, const Above& above, int item, int n, int k0, int p0, int q0, int end_u = U)
{
    window.map = item / (WINDOW_ROWS * WINDOW_COLUMNS);
    const int u = floor_div(p0, STEP_H) + item / WINDOW_COLUMNS % WINDOW_ROWS;
    const int v = floor_div(q0, STEP_W) + item % WINDOW_COLUMNS;
    window.row = u * STEP_H - p0;
    window.column = v * STEP_W - q0;
    window.is_there = window.map < COUNT && k0 + window.map < K && u >= 0 && u < end_u && v >= 0 && v < V;
    const int out = window.is_there ? ((n * K + k0 + window.map) * U + u) * V + v : 0;  // any will do to be read
    const float grad = above.grad_y[out];
    const float derivative = ACTIVATE_CELLS ? 1.0f : slope(above.y[out]);
    if constexpr (KEEPS_SLOPES) {
        load_run<CELLS, CELLS>(window.slopes, reinterpret_cast<const float*>(above.passed) + out * CELLS);
    } else {
#pragma unroll
        for (int byte = 0; byte < PASSED_BYTES; ++byte) window.passed[byte] = above.passed[out * PASSED_BYTES + byte];
    }
    window.error = grad * derivative * (MAX_POOL ? 1.0f : 1.0f / CELLS);
}
