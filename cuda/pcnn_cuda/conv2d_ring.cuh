// conv2d_ring.cuh - rings of rows in shared memory, and what walks down a map with them
//
// A ring holds some consecutive rows of a strip of a map; row i, counted from where the walk begins, lies in slot
// i % ROWS, and the rows that a step brings overwrite the oldest. Letters as in conv2d_act_pool.cuh.

#pragma once

#include "async_copy.cuh"
#include "conv2d_act_pool_window.cuh"
#include "tile.cuh"

// The slot that a number below 2 * ROWS stands for: after the last comes the first again.
template <int ROWS>
__device__ __forceinline__ int wrap(int slot)
{
    return slot < ROWS ? slot : slot - ROWS;
}

// Threads that share a line, so that all have something to do and read neighbours.
__host__ __device__ constexpr int lanes_along(int columns, int lines)
{
    int lanes = 8;  // a whole sector of global memory
    while (2 * lanes <= at_most(columns, THREADS) && lanes * lines < THREADS) lanes *= 2;
    return lanes;
}

// Calls visit(line, column) for `lines` x COLUMNS cells, once each; usually there are about LINES lines.
template <int COLUMNS, int LINES, class Visit>
__device__ __forceinline__ void for_cells(int lines, Visit visit)
{
    constexpr int LANES = lanes_along(COLUMNS, LINES);
    constexpr int AT_ONCE = THREADS / LANES;
    if (threadIdx.x >= AT_ONCE * LANES) return;
    for (int line = threadIdx.x / LANES; line < lines; line += AT_ONCE) {
#pragma unroll 4
        for (int column = threadIdx.x % LANES; column < COLUMNS; column += LANES) visit(line, column);
    }
}

// The source rows below UNIT_ROWS rows of COLUMNS units, and those that the next step brings.
template <int CHANNELS_, int UNIT_ROWS, int COLUMNS, int STRIDE_>
struct SourceRing {
    static constexpr int COUNT = CHANNELS_, STRIDE = STRIDE_;
    static constexpr int STEP = UNIT_ROWS * STRIDE_H;
    static constexpr int START = (UNIT_ROWS - 1) * STRIDE_H + R;
    static constexpr int ROWS = START + STEP;
    static constexpr int PLANE = ROWS * STRIDE;
    static constexpr int SIZE = COUNT * PLANE;
    static constexpr int WIDTH = (COLUMNS - 1) * STRIDE_W + S;  // of the STRIDE columns, those that are needed

    float* cells;
    const float* image;  // from the first channel on
    int count;           // channels that there are
    int left;            // the image's column that is the strip's first
    int next, end;       // rows of the image: the next to come, and where they end
    int next_slot, slot;  // where the next goes, and where the first below the step's units lies

    // For the units from (p, q) on, as far as row end_p. The first rows are on their way.
    __device__ __forceinline__ void start(float* memory, const float* x, int n, int c0, int p, int end_p, int q)
    {
        cells = memory;
        image = x + (n * C + c0) * H * W;
        count = C - c0;
        left = q * STRIDE_W - PAD_W;
        next = p * STRIDE_H - PAD_H;
        end = min((end_p - 1) * STRIDE_H - PAD_H + R, H);
        next_slot = slot = 0;
        bring(START);
    }

    // The next `rows` rows are on their way; zero where there is no image.
    __device__ __forceinline__ void bring(int rows)
    {
        for_cells<STRIDE, COUNT * STEP>(rows * COUNT, [&](int line, int column) {
            constexpr int CHANNELS_AT_LEAST = at_least(COUNT, 1);
            const int c = line % CHANNELS_AT_LEAST;
            const int row = line / CHANNELS_AT_LEAST;
            const int h = next + row;
            const int w = left + column;
            const bool is_there = c < count && h >= 0 && h < end && column < WIDTH && w >= 0 && w < W;
            float* to = cells + c * PLANE + wrap<ROWS>(next_slot + row) * STRIDE + column;
            copy_async(to, is_there ? image + (c * H + h) * W + w : image, is_there);
        });
        next += rows;
        next_slot = wrap<ROWS>(next_slot + rows);
    }

    // Row i below the step's units.
    __device__ __forceinline__ const float* row(int i) const { return cells + wrap<ROWS>(slot + i) * STRIDE; }

    __device__ __forceinline__ void next_step() { slot = wrap<ROWS>(slot + STEP); }
};

// PARTS threads of a warp that share an item: each takes every PARTS-th term of its sums. They lie 32 / PARTS lanes
// apart, so that neighbours have different items, and the same terms.
template <int PARTS>
struct Team {
    static_assert(PARTS == 1 || PARTS == 2 || PARTS == 4, "lanes of a warp");
    static constexpr int LANES = 32 / PARTS;
    static constexpr int AT_ONCE = THREADS / PARTS;  // items

    __device__ __forceinline__ static int item() { return threadIdx.x / 32 * LANES + threadIdx.x % LANES; }
    __device__ __forceinline__ static int part() { return threadIdx.x % 32 / LANES; }

    // Every part's sums become those of the item. All threads take part.
    template <int OUTER, int INNER>
    __device__ __forceinline__ static void join(float (&sum)[OUTER][INNER])
    {
        for (int lanes = LANES; lanes < 32; lanes *= 2) {
#pragma unroll
            for (int i = 0; i < OUTER * INNER; ++i) {
                float& one = sum[i / INNER][i % INNER];
                one += __shfl_xor_sync(0xffffffffu, one, lanes);
            }
        }
    }
};

// COUNT_ maps of ROWS_ x COLUMNS_ units. An item is MAP_BLOCK_ maps x PIXEL_BLOCK_ neighbours of a row; PARTS_ threads
// share its channels.
template <int COUNT_, int ROWS_, int COLUMNS_, int MAP_BLOCK_, int PIXEL_BLOCK_, int PARTS_>
struct Units {
    static constexpr int COUNT = COUNT_, ROWS = ROWS_, COLUMNS = COLUMNS_, PARTS = PARTS_;
    static constexpr int MAP_BLOCK = MAP_BLOCK_, PIXEL_BLOCK = PIXEL_BLOCK_;
    static constexpr int GROUPS = round_up(COLUMNS, PIXEL_BLOCK) / PIXEL_BLOCK;
    static constexpr int ITEMS = COUNT / MAP_BLOCK * ROWS * GROUPS;
    static constexpr int STEP = PIXEL_BLOCK * STRIDE_W;               // cells from group to group
    static constexpr int SEGMENT = (PIXEL_BLOCK - 1) * STRIDE_W + S;  // cells below a group
    static constexpr int CELLS_BELOW = (GROUPS - 1) * STEP + round_up(SEGMENT, 4);
    static constexpr int FILTER_STRIDE = row_stride(COUNT);
    static constexpr int FILTERS = C * R * S * FILTER_STRIDE;
    static_assert(COUNT % MAP_BLOCK == 0, "whole blocks of maps");
};

// Adds what a row of cells of all channels contributes to an item through one row of its filters.
template <class T, int PLANE>
__device__ __forceinline__ void add_row(
    float (&sum)[T::MAP_BLOCK][T::PIXEL_BLOCK], const float* cells, const float* filters)
{
#pragma unroll 2
    for (int c = Team<T::PARTS>::part(); c < C; c += T::PARTS) {
        float copy[round_up(T::SEGMENT, 4)];
        load_run<T::SEGMENT, T::STEP>(copy, cells + c * PLANE);
#pragma unroll
        for (int s = 0; s < S; ++s) {
            float factor[round_up(T::MAP_BLOCK, 4)];
            load_run<T::MAP_BLOCK, T::MAP_BLOCK>(factor, filters + (c * R * S + s) * T::FILTER_STRIDE);
#pragma unroll
            for (int i = 0; i < T::PIXEL_BLOCK; ++i) {
                const int cell = i * STRIDE_W + s;
                const float value = S <= LONGEST_COPY ? copy[cell] : cells[c * PLANE + cell];
#pragma unroll
                for (int k = 0; k < T::MAP_BLOCK; ++k) sum[k][i] += factor[k] * value;
            }
        }
    }
}

// The filters of the maps from k0 on, for convolve_rows, are on their way.
template <class T>
__device__ __forceinline__ void fetch_unit_filters(float* filters, const float* weight, int k0)
{
    fetch_filters<C, STORED, T::COUNT, C * STORED, T::FILTER_STRIDE>(filters, weight + k0 * C * STORED, C, K - k0);
}

// The step's rows of units of the maps from k0 on; those of (map, row) go to row_at(map, row), which has room for whole
// groups.
template <class T, class Source, class RowAt>
__device__ __forceinline__ void convolve_rows(
    const Source& source, const float* filters, const float* bias, int k0, RowAt row_at)
{
    using Members = Team<T::PARTS>;
    for (int pass = 0; pass < T::ITEMS; pass += Members::AT_ONCE) {
        const int item = pass + Members::item();
        const int column = item % T::GROUPS * T::PIXEL_BLOCK;
        const int row = item / T::GROUPS % T::ROWS;
        const int map = item / (T::GROUPS * T::ROWS) * T::MAP_BLOCK;
        float sum[T::MAP_BLOCK][T::PIXEL_BLOCK] = {};
        if (item < T::ITEMS) {
            for (int r = 0; r < R; ++r) {
                const float* cells = source.row(row * STRIDE_H + r) + column * STRIDE_W;
                add_row<T, Source::PLANE>(sum, cells, filters + r * S * T::FILTER_STRIDE + map);
            }
        }
        Members::join(sum);
        if (item >= T::ITEMS || Members::part() != 0) continue;
#pragma unroll
        for (int k = 0; k < T::MAP_BLOCK; ++k) {
            const float start = k0 + map + k < K ? bias[k0 + map + k] : 0.0f;
#pragma unroll
            for (int i = 0; i < T::PIXEL_BLOCK; ++i) sum[k][i] += start;
            store_cells<vector_width(T::PIXEL_BLOCK), T::PIXEL_BLOCK>(
                row_at(map + k, row) + column, sum[k], T::PIXEL_BLOCK);
        }
    }
}
