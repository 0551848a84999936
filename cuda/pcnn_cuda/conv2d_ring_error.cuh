// conv2d_ring_error.cuh - a ring of rows of errors at the convolution's output

#pragma once

#include "conv2d_ring.cuh"

#if !defined(ERROR_MAP_BLOCK) || !defined(ERROR_PIXEL_BLOCK)
#error "compile with -DERROR_MAP_BLOCK= -DERROR_PIXEL_BLOCK=, to convolve again; the host chooses them"
#endif

// Errors are made a step before they are needed, so that other warps compute while some wait for memory; where units
// are convolved again, all do the same anyway.
constexpr int AHEAD = RECOMPUTES ? 0 : 1;
constexpr int ERROR_UNIT = RECOMPUTES ? ERROR_MAP_BLOCK : 1;  // maps that are made together

// COUNT maps of COLUMNS columns of units: KEPT rows of the steps before, the step's ROWS, and AHEAD of it as many.
template <int COUNT, int ROWS, int COLUMNS, int STRIDE_, int KEPT>
struct ErrorRing {
    using Again = Units<COUNT, ROWS, COLUMNS, ERROR_UNIT, ERROR_PIXEL_BLOCK, 1>;
    static constexpr int STRIDE = STRIDE_;
    static constexpr int SLOTS = KEPT + (1 + AHEAD) * ROWS;
    static constexpr int PLANE = SLOTS * STRIDE;
    static constexpr int FILTERS = RECOMPUTES ? Again::FILTERS : 0;
    static constexpr int SIZE = COUNT * PLANE + FILTERS;
    static_assert(!RECOMPUTES || STRIDE >= Again::GROUPS * ERROR_PIXEL_BLOCK, "a row holds whole groups");

    float* cells;
    float* filters;
    int n, k0;            // the image and the first map
    int next, end, left;  // the next row to be made, where rows end, and the first column
    int slot;             // of the oldest row, where the next one goes

    // For maps from k0_ on, in SIZE floats of memory; what convolving again needs is on its way.
    __device__ __forceinline__ void hold(float* memory, const Above& above, int k0_)
    {
        cells = memory;
        filters = cells + COUNT * PLANE;
        k0 = k0_;
        if constexpr (RECOMPUTES) fetch_unit_filters<Again>(filters, above.weight, k0);
    }

    // For the units of image n_ from (p, q) on, as far as row end_p.
    __device__ __forceinline__ void start(int n_, int p, int end_p, int q)
    {
        n = n_;
        next = p;
        end = min(end_p, P);
        left = q;
        slot = 0;
    }

    // The next ROWS rows take the place of the oldest; zero outside the map. Complete after a barrier. `source` must
    // hold the rows below them if units are convolved again.
    template <class Source>
    __device__ __forceinline__ void make(const Above& above, const Source& source)
    {
        if constexpr (SPREADS) {
            spread(above);
        } else {
            gather(above, source);
        }
        next += ROWS;
        slot = wrap<SLOTS>(slot + ROWS);
    }

    // The row of a map that is `row` younger than the oldest.
    __device__ __forceinline__ float* at(int k, int row) const
    {
        return cells + k * PLANE + wrap<SLOTS>(slot + row) * STRIDE;
    }

    // A thread takes some windows, and the cells up to the next ones.
    __device__ __forceinline__ void spread(const Above& above) const
    {
        constexpr int WINDOW_ROWS = (ROWS + STEP_H - 2) / STEP_H + 1;  // wherever the rows begin
        constexpr int WINDOW_COLUMNS = (STRIDE + STEP_W - 2) / STEP_W + 1;
        constexpr int TURNS = turns(COUNT * WINDOW_ROWS * WINDOW_COLUMNS);
        const int end_u = min((end + STEP_H - 1) / STEP_H, U);
#pragma unroll 1
        for (int turn0 = 0; turn0 < TURNS; turn0 += at_most(AT_ONCE, TURNS)) {
            Window windows[at_most(AT_ONCE, TURNS)];
#pragma unroll
            for (int turn = 0; turn < at_most(AT_ONCE, TURNS); ++turn) {
                const int item = (turn0 + turn) * THREADS + threadIdx.x;
                load_window<COUNT, WINDOW_ROWS, WINDOW_COLUMNS>(
                    windows[turn], above, item, n, k0, next, left, end_u);
            }
#pragma unroll
            for (const Window& window : windows) spread_window(window);
        }
    }

    __device__ __forceinline__ void spread_window(const Window& window) const
    {
        if (window.map >= COUNT) return;
#pragma unroll
        for (int r = 0; r < STEP_H; ++r) {
            const int row = window.row + r;
            if (row < 0 || row >= ROWS) continue;
            float* cells_of_row = at(window.map, row);
#pragma unroll
            for (int s = 0; s < STEP_W; ++s) {
                const int column = window.column + s;
                if (column < 0 || column >= STRIDE) continue;
                const int cell = r < SIZE_H && s < SIZE_W ? r * SIZE_W + s : 0;
                const bool is_in = r < SIZE_H && s < SIZE_W && column < COLUMNS && next + row < end;
                const float factor = KEEPS_SLOPES ? window.slopes[KEEPS_SLOPES ? cell : 0] : 1.0f;
                const bool is_reached = is_in && window.is_there && reaches(window.passed, cell);
                cells_of_row[column] = is_reached ? window.error * factor : 0.0f;
            }
        }
    }

    // A thread takes some cells, and the windows over them.
    template <class Source>
    __device__ __forceinline__ void gather(const Above& above, const Source& source) const
    {
        if constexpr (RECOMPUTES) {
            convolve_rows<Again>(source, filters, above.bias, k0, [&](int k, int row) { return at(k, row); });
            __syncthreads();  // the units are complete before they turn into errors
        }
        for_cells<STRIDE, COUNT * ROWS>(COUNT * ROWS, [&](int line, int column) {
            const int k = line / ROWS;
            const int row = line % ROWS;
            const int p = next + row;
            const int q = left + column;
            const bool is_there = k0 + k < K && column < COLUMNS && p >= 0 && p < end && q >= 0 && q < Q;
            float* cell = at(k, row) + column;
            float error = 0.0f;
            if (is_there) error = gather_windows(above.grad_y, above.y, above.passed, n * K + k0 + k, p, q);
            if (is_there && RECOMPUTES) error *= slope(activate(*cell));
            *cell = error;
        });
    }
};
