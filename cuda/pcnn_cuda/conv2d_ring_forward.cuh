// conv2d_ring_forward.cuh - walks down an image with a ring of source rows, and pools what it has convolved

#pragma once

#include "conv2d_ring.cuh"

#if !defined(FORWARD_MAPS) || !defined(FORWARD_ROWS) || !defined(FORWARD_COLUMNS) || !defined(FORWARD_SHARED)
#error "compile with -DFORWARD_MAPS= -DFORWARD_ROWS= -DFORWARD_COLUMNS= -DFORWARD_SHARED=; the host chooses the strip"
#endif
#if !defined(FORWARD_MAP_BLOCK) || !defined(FORWARD_PIXEL_BLOCK) || !defined(FORWARD_PARTS)
#error "compile with -DFORWARD_MAP_BLOCK= -DFORWARD_PIXEL_BLOCK= -DFORWARD_PARTS=, threads' shares; the host chooses"
#endif

// A block owns FORWARD_MAPS maps of a strip of FORWARD_COLUMNS pooled columns, and completes FORWARD_ROWS pooled rows a
// step. Rows of units lie in a ring, too: windows that overlap find their first rows there.
struct Forward : Units<FORWARD_MAPS, FORWARD_ROWS * STEP_H, (FORWARD_COLUMNS - 1) * STEP_W + SIZE_W,
                       FORWARD_MAP_BLOCK, FORWARD_PIXEL_BLOCK, FORWARD_PARTS> {
    using Source = SourceRing<C, ROWS, COLUMNS, row_stride(CELLS_BELOW)>;
    static constexpr int STRIPS = round_up(V, FORWARD_COLUMNS) / FORWARD_COLUMNS;
    static constexpr int MAP_GROUPS = round_up(K, FORWARD_MAPS) / FORWARD_MAPS;
    static constexpr int LAG = round_up(SIZE_H, STEP_H) / STEP_H - 1;  // pooled rows that wait for later units
    static constexpr int UNIT_SLOTS = ROWS + LAG * STEP_H;
    static constexpr int UNIT_STRIDE = row_stride(GROUPS * PIXEL_BLOCK);
    static constexpr int UNIT_PLANE = UNIT_SLOTS * UNIT_STRIDE;
    static constexpr int SHARED = FILTERS + FORWARD_MAPS * UNIT_PLANE + Source::SIZE;
};
static_assert(FORWARD_SHARED >= Forward::SHARED, "filters and rings fit");

// Block -> its maps and strip, and `band` pooled rows of an image.
__device__ __forceinline__ void walk_forward(
    const float* x, const float* weight, const float* bias, float* y, unsigned char* passed, int band, float* shared)
{
    const int bands = (U + band - 1) / band;
    const int k0 = blockIdx.x % Forward::MAP_GROUPS * FORWARD_MAPS;
    const int v0 = blockIdx.x / Forward::MAP_GROUPS % Forward::STRIPS * FORWARD_COLUMNS;
    const int u0 = blockIdx.x / (Forward::MAP_GROUPS * Forward::STRIPS) % bands * band;
    const int n = blockIdx.x / (Forward::MAP_GROUPS * Forward::STRIPS) / bands;
    const int end_u = min(u0 + band, U);
    float* filters = shared;
    float* units = filters + Forward::FILTERS;

    fetch_unit_filters<Forward>(filters, weight, k0);
    Forward::Source source;
    source.start(
        units + FORWARD_MAPS * Forward::UNIT_PLANE, x, n, 0, u0 * STEP_H, (end_u - 1) * STEP_H + SIZE_H, v0 * STEP_W);
    int slot = 0;  // of the step's first row of units
    for (int u = u0 - Forward::LAG; u < end_u; u += FORWARD_ROWS) {
        wait_for_copies();
        __syncthreads();  // the source rows are complete; nobody reads the oldest, nor the windows before, any more
        source.bring(Forward::Source::STEP);
        convolve_rows<Forward>(source, filters, bias, k0, [&](int map, int row) {
            return units + map * Forward::UNIT_PLANE + wrap<Forward::UNIT_SLOTS>(slot + row) * Forward::UNIT_STRIDE;
        });
        source.next_step();
        slot = wrap<Forward::UNIT_SLOTS>(slot + Forward::ROWS);  // the oldest row, with which the windows begin
        __syncthreads();  // the units are complete before they are pooled
        for_cells<FORWARD_COLUMNS, FORWARD_MAPS * FORWARD_ROWS>(FORWARD_MAPS * FORWARD_ROWS, [&](int line, int v) {
            const int map = line / FORWARD_ROWS;
            const int row = line % FORWARD_ROWS;
            if (k0 + map >= K || u + row < u0 || u + row >= end_u || v0 + v >= V) return;
            const int out = ((n * K + k0 + map) * U + u + row) * V + v0 + v;
            const float* window = units + map * Forward::UNIT_PLANE + v * STEP_W;
            const auto row_at = [&](int r) {
                return window + wrap<Forward::UNIT_SLOTS>(slot + row * STEP_H + r) * Forward::UNIT_STRIDE;
            };
            y[out] = pool(row_at, passed + out * PASSED_BYTES);
        });
    }
}
