// conv2d_act_pool_window.cuh - what a pooling window hands up, and the error that it hands down

#pragma once

#include "conv2d_act_pool.cuh"

// The pooled and activated value of a window, whose row r begins at row_at(r); what backward must know of its cells
// goes to `passed`.
template <class RowAt>
__device__ __forceinline__ float pool_rows(RowAt row_at, unsigned char* passed)
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
// recomputed. SIZE / STEP windows lie over a cell along an axis, rounded up: the last that begins before it, and others.
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
