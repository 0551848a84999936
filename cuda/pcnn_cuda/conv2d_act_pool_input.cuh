// conv2d_act_pool_input.cuh - the input's gradient: errors pushed down by the units above, or pulled by those below

#pragma once

#include "conv2d_act_pool_error.cuh"

#if !defined(INPUT_CHANNELS) || !defined(INPUT_ROWS) || !defined(INPUT_COLUMNS) || !defined(INPUT_CHUNK)
#error "compile with -DINPUT_CHANNELS= -DINPUT_ROWS= -DINPUT_COLUMNS= -DINPUT_CHUNK=, a block's tile; the host chooses"
#endif
#if !defined(CHANNEL_BLOCK) || !defined(COLUMN_BLOCK) || !defined(UNIT_BLOCK)
#error "compile with -DCHANNEL_BLOCK= -DCOLUMN_BLOCK= -DUNIT_BLOCK=, what a thread computes; the host chooses them"
#endif

// A block owns INPUT_CHANNELS x INPUT_ROWS x INPUT_COLUMNS cells of one image.
constexpr int INPUT_TILES_H = round_up(H, INPUT_ROWS) / INPUT_ROWS;
constexpr int INPUT_TILES_W = round_up(W, INPUT_COLUMNS) / INPUT_COLUMNS;
constexpr int INPUT_GROUPS = round_up(C, INPUT_CHANNELS) / INPUT_CHANNELS;
constexpr int INPUT_BLOCKS = INPUT_TILES_H * INPUT_TILES_W * INPUT_GROUPS;  // of one image
// The units above it start FIRST_P rows and FIRST_Q columns after (h0 / STRIDE_H, w0 / STRIDE_W).
constexpr int FIRST_P = floor_div(PAD_H - R + STRIDE_H, STRIDE_H);
constexpr int FIRST_Q = floor_div(PAD_W - S + STRIDE_W, STRIDE_W);
constexpr int UNIT_ROWS = (INPUT_ROWS - 1 + PAD_H) / STRIDE_H - FIRST_P + 1;
constexpr int UNIT_COLUMNS = (INPUT_COLUMNS - 1 + PAD_W) / STRIDE_W - FIRST_Q + 1;
constexpr int CHANNEL_STRIDE = row_stride(INPUT_CHANNELS);
constexpr int INPUT_SCRATCH =  // filters, and before them what make_errors needs
    at_least(INPUT_CHUNK * R * S * CHANNEL_STRIDE, error_scratch<INPUT_CHUNK, UNIT_ROWS, UNIT_COLUMNS>());
static_assert(INPUT_ROWS % STRIDE_H == 0 && COLUMN_BLOCK % STRIDE_W == 0, "tiles start at whole strides");
static_assert(INPUT_COLUMNS % COLUMN_BLOCK == 0, "a tile holds whole blocks of columns");
static_assert(INPUT_CHANNELS % CHANNEL_BLOCK == 0, "a tile holds whole blocks of channels");
static_assert(!RECOMPUTES || INPUT_CHUNK % ERROR_MAP_BLOCK == 0, "a chunk holds whole blocks of maps");

struct InputPlace {
    int n, c0, h0, w0;
};

__device__ __forceinline__ InputPlace input_place(int block)
{
    InputPlace at;
    at.c0 = block % INPUT_GROUPS * INPUT_CHANNELS;
    at.w0 = block / INPUT_GROUPS % INPUT_TILES_W * INPUT_COLUMNS;
    at.h0 = block / (INPUT_GROUPS * INPUT_TILES_W) % INPUT_TILES_H * INPUT_ROWS;
    at.n = block / INPUT_BLOCKS;
    return at;
}

__device__ __forceinline__ void fetch_input_filters(float* filters, const float* weight, int k0, int c0)
{
    fetch_filters<INPUT_CHUNK, C * STORED, INPUT_CHANNELS, STORED, CHANNEL_STRIDE>(
        filters, weight + (k0 * C + c0) * STORED, K - k0, C - c0);
}

// ---- pull: an item is CHANNEL_BLOCK channels x COLUMN_BLOCK neighbours of a row, which gather from the units above

struct Pull {
    static constexpr int GROUPS = INPUT_COLUMNS / COLUMN_BLOCK;
    static constexpr int ITEMS = INPUT_CHANNELS / CHANNEL_BLOCK * INPUT_ROWS * GROUPS;
    static constexpr int STEP = COLUMN_BLOCK / STRIDE_W;  // units from group to group
    static constexpr int SEGMENT = (COLUMN_BLOCK - 1 + PAD_W) / STRIDE_W - FIRST_Q + 1;  // units above a group
    static constexpr int STRIDE = row_stride((GROUPS - 1) * STEP + round_up(SEGMENT, 4));
    static constexpr int ERRORS = INPUT_CHUNK * UNIT_ROWS * STRIDE;
    static constexpr int SHARED = ERRORS + INPUT_SCRATCH;
};

__device__ __forceinline__ void pull_chunk(
    float (&sum)[CHANNEL_BLOCK][COLUMN_BLOCK], const float* errors, const float* filters, int row)
{
    for (int k = 0; k < INPUT_CHUNK; ++k) {
#pragma unroll 5
        for (int r = 0; r < R; ++r) {
            if ((row + PAD_H - r) % STRIDE_H != 0) continue;
            const float* units = errors + (k * UNIT_ROWS + (row + PAD_H - r) / STRIDE_H - FIRST_P) * Pull::STRIDE;
            float copy[round_up(Pull::SEGMENT, 4)];
            load_run<Pull::SEGMENT, Pull::STEP>(copy, units);
#pragma unroll
            for (int s = 0; s < S; ++s) {
                float factor[round_up(CHANNEL_BLOCK, 4)];
                load_run<CHANNEL_BLOCK, CHANNEL_BLOCK>(factor, filters + ((k * R + r) * S + s) * CHANNEL_STRIDE);
#pragma unroll
                for (int i = 0; i < COLUMN_BLOCK; ++i) {
                    if ((i + PAD_W - s) % STRIDE_W != 0) continue;
                    const int unit = (i + PAD_W - s) / STRIDE_W - FIRST_Q;
                    const float error = S <= LONGEST_COPY ? copy[unit] : units[unit];
#pragma unroll
                    for (int c = 0; c < CHANNEL_BLOCK; ++c) sum[c][i] += factor[c] * error;
                }
            }
        }
    }
}

__device__ __forceinline__ void pull_input(int block, const Above& above, float* grad_x, float* shared)
{
    const InputPlace at = input_place(block);
    const int item = threadIdx.x;
    const int group = item % Pull::GROUPS;
    const int row = item / Pull::GROUPS % INPUT_ROWS;
    const int channel = item / (Pull::GROUPS * INPUT_ROWS) * CHANNEL_BLOCK;
    float* errors = shared;
    float* filters = shared + Pull::ERRORS;  // also the scratch memory of make_errors

    float sum[CHANNEL_BLOCK][COLUMN_BLOCK] = {};
    for (int k0 = 0; k0 < K; k0 += INPUT_CHUNK) {
        __syncthreads();  // nobody still reads the errors and filters before
        if (!RECOMPUTES) fetch_input_filters(filters, above.weight, k0, at.c0);
        if (k0 == 0) follow();
        make_errors<INPUT_CHUNK, UNIT_ROWS, UNIT_COLUMNS, Pull::STRIDE>(
            errors, above, at.n, k0, at.h0 / STRIDE_H + FIRST_P, at.w0 / STRIDE_W + FIRST_Q, filters);
        if (RECOMPUTES) fetch_input_filters(filters, above.weight, k0, at.c0);
        wait_for_copies();
        __syncthreads();  // the filters are complete before anyone reads them
        if (item < Pull::ITEMS) pull_chunk(sum, errors + group * Pull::STEP, filters + channel, row);
    }
    const int h = at.h0 + row;
    if (item >= Pull::ITEMS || h >= H) return;
#pragma unroll
    for (int c = 0; c < CHANNEL_BLOCK; ++c) {
        if (at.c0 + channel + c >= C) continue;
        float* cells = grad_x + ((at.n * C + at.c0 + channel + c) * H + h) * W;
#pragma unroll
        for (int i = 0; i < COLUMN_BLOCK; ++i) {
            const int w = at.w0 + group * COLUMN_BLOCK + i;
            if (w < W) cells[w] = sum[c][i];
        }
    }
}

// ---- push: an item is UNIT_BLOCK neighbouring units above, which add their errors to CHANNEL_BLOCK channels below

struct Push {
    static constexpr int ROWS = at_most(UNIT_ROWS, P);  // of units that are on the map
    static constexpr int COLUMNS = at_most(UNIT_COLUMNS, Q);
    static constexpr int GROUPS = round_up(COLUMNS, UNIT_BLOCK) / UNIT_BLOCK;
    static constexpr int ITEMS = INPUT_CHANNELS / CHANNEL_BLOCK * ROWS * GROUPS;
    static constexpr int STRIDE = row_stride(GROUPS * UNIT_BLOCK);
    static constexpr int ERRORS = INPUT_CHUNK * ROWS * STRIDE;
    static constexpr int STEP = UNIT_BLOCK * STRIDE_W;  // cells below from group to group
    // A group reaches over the cells of the groups after it; in each phase threads write whole steps, disjoint ones.
    static constexpr int PHASES = round_up((UNIT_BLOCK - 1) * STRIDE_W + S, STEP) / STEP;
    static constexpr int SUM_COLUMNS = (GROUPS - 1 + PHASES) * STEP;
    static constexpr int SUM_STRIDE = row_stride(SUM_COLUMNS);
    static constexpr int SUMS = INPUT_CHANNELS * INPUT_ROWS * SUM_STRIDE;
    static constexpr int SHARED = SUMS + ERRORS + INPUT_SCRATCH;
};

// What the units of an item add to the row of cells below their filters' row r.
__device__ __forceinline__ void push_row(
    float (&sum)[CHANNEL_BLOCK][Push::PHASES * Push::STEP], const float* errors, const float* filters)
{
#pragma unroll 2
    for (int k = 0; k < INPUT_CHUNK; ++k) {
        float error[round_up(UNIT_BLOCK, 4)];
        load_run<UNIT_BLOCK, UNIT_BLOCK>(error, errors + k * Push::ROWS * Push::STRIDE);
#pragma unroll
        for (int s = 0; s < S; ++s) {
            float factor[round_up(CHANNEL_BLOCK, 4)];
            load_run<CHANNEL_BLOCK, CHANNEL_BLOCK>(factor, filters + (k * R * S + s) * CHANNEL_STRIDE);
#pragma unroll
            for (int i = 0; i < UNIT_BLOCK; ++i) {
#pragma unroll
                for (int c = 0; c < CHANNEL_BLOCK; ++c) sum[c][i * STRIDE_W + s] += factor[c] * error[i];
            }
        }
    }
}

// The whole chunk into the block's cells. In one step all rows of units push row r of their filters, so they write
// different rows of cells.
__device__ __forceinline__ void push_chunk(float* sums, const float* errors, const float* filters, int top)
{
    for (int r = 0; r < R; ++r) {
        for (int pass = 0; pass < Push::ITEMS; pass += THREADS) {
            const int item = pass + threadIdx.x;
            const int group = item % Push::GROUPS;
            const int unit_row = item / Push::GROUPS % Push::ROWS;
            const int channel = item / (Push::GROUPS * Push::ROWS) * CHANNEL_BLOCK;
            const int row = top + unit_row * STRIDE_H + r;
            const bool is_mine = item < Push::ITEMS && row >= 0 && row < INPUT_ROWS;
            float sum[CHANNEL_BLOCK][Push::PHASES * Push::STEP] = {};
            if (is_mine) {
                const float* mine = errors + unit_row * Push::STRIDE + group * UNIT_BLOCK;
                push_row(sum, mine, filters + r * S * CHANNEL_STRIDE + channel);
            }
#pragma unroll
            for (int phase = 0; phase < Push::PHASES; ++phase) {
                if (is_mine) {
#pragma unroll
                    for (int c = 0; c < CHANNEL_BLOCK; ++c) {
                        float* cells = sums + ((channel + c) * INPUT_ROWS + row) * Push::SUM_STRIDE;
                        cells += (group + phase) * Push::STEP;
                        add_run<Push::STEP, Push::STEP>(cells, sum[c] + phase * Push::STEP);
                    }
                }
                __syncthreads();  // the next phase writes cells of this one
            }
        }
    }
}

__device__ __forceinline__ void push_input(int block, const Above& above, float* grad_x, float* shared)
{
    const InputPlace at = input_place(block);
    const int p0 = max(at.h0 / STRIDE_H + FIRST_P, 0);
    const int q0 = max(at.w0 / STRIDE_W + FIRST_Q, 0);
    float* sums = shared;
    float* errors = sums + Push::SUMS;
    float* filters = errors + Push::ERRORS;  // also the scratch memory of make_errors

    for (int i = threadIdx.x; i < Push::SUMS; i += THREADS) sums[i] = 0.0f;
    for (int k0 = 0; k0 < K; k0 += INPUT_CHUNK) {
        __syncthreads();  // nobody still reads the errors and filters before
        if (!RECOMPUTES) fetch_input_filters(filters, above.weight, k0, at.c0);
        if (k0 == 0) follow();
        make_errors<INPUT_CHUNK, Push::ROWS, Push::COLUMNS, Push::STRIDE>(
            errors, above, at.n, k0, p0, q0, filters);
        if (RECOMPUTES) fetch_input_filters(filters, above.weight, k0, at.c0);
        wait_for_copies();
        __syncthreads();  // the filters are complete before anyone reads them
        push_chunk(sums, errors, filters, p0 * STRIDE_H - PAD_H - at.h0);
    }
    const int left = q0 * STRIDE_W - PAD_W;  // the cell that column 0 of the sums stands for
    for (int i = threadIdx.x; i < INPUT_CHANNELS * INPUT_ROWS * INPUT_COLUMNS; i += THREADS) {
        const int w = at.w0 + i % INPUT_COLUMNS;
        const int row = i / INPUT_COLUMNS % INPUT_ROWS;
        const int c = i / (INPUT_COLUMNS * INPUT_ROWS);
        if (at.c0 + c >= C || at.h0 + row >= H || w >= W) continue;
        const bool is_reached = w >= left && w - left < Push::SUM_COLUMNS;
        const float sum = is_reached ? sums[(c * INPUT_ROWS + row) * Push::SUM_STRIDE + w - left] : 0.0f;
        grad_x[((at.n * C + at.c0 + c) * H + at.h0 + row) * W + w] = sum;
    }
}
