// conv2d_ring_input.cuh - the input's gradient, row by row: errors pushed down by units above, or pulled by cells below

#pragma once

#include "conv2d_ring_error.cuh"

#if !defined(INPUT_CHANNELS) || !defined(INPUT_ROWS) || !defined(INPUT_COLUMNS)
#error "compile with -DINPUT_CHANNELS= -DINPUT_ROWS= -DINPUT_COLUMNS=, a block's strip; the host chooses it"
#endif
#if !defined(CHANNEL_BLOCK) || !defined(COLUMN_BLOCK) || !defined(UNIT_BLOCK) || !defined(INPUT_PARTS)
#error "compile with -DCHANNEL_BLOCK= -DCOLUMN_BLOCK= -DUNIT_BLOCK= -DINPUT_PARTS=, threads' shares; the host chooses"
#endif
#if !defined(PUSHES) || !defined(INPUT_SHARED)
#error "compile with -DPUSHES= -DINPUT_SHARED=, the direction and its floats of shared memory; the host counts them"
#endif

// A block owns INPUT_CHANNELS channels of a strip of INPUT_COLUMNS columns. Rows of cells go in steps of STRIDE_H, one
// step for each row of units; a step of the walk takes INPUT_ROWS of them.
constexpr int STEPS_DOWN = round_up(H, STRIDE_H) / STRIDE_H;
constexpr int INPUT_STRIPS = round_up(W, INPUT_COLUMNS) / INPUT_COLUMNS;
constexpr int INPUT_GROUPS = round_up(C, INPUT_CHANNELS) / INPUT_CHANNELS;
// The first units above row h0 and column w0 lie FIRST_P after h0 / STRIDE_H, FIRST_Q after w0 / STRIDE_W.
constexpr int FIRST_P = at_most(floor_div(PAD_H - R + STRIDE_H, STRIDE_H), PAD_H / STRIDE_H);
constexpr int FIRST_Q = floor_div(PAD_W - S + STRIDE_W, STRIDE_W);
constexpr int UNITS_BEHIND = (STRIDE_H - 1 + PAD_H) / STRIDE_H - FIRST_P;  // rows above the same step down, but one
constexpr int UNIT_COLUMNS = (INPUT_COLUMNS - 1 + PAD_W) / STRIDE_W - FIRST_Q + 1;
constexpr int CHANNEL_STRIDE = row_stride(INPUT_CHANNELS);
constexpr int INPUT_FILTERS = K * R * S * CHANNEL_STRIDE;
constexpr int ERROR_MAPS = round_up(K, ERROR_UNIT);
static_assert(INPUT_COLUMNS % COLUMN_BLOCK == 0, "a strip holds whole blocks of columns");
static_assert(COLUMN_BLOCK % STRIDE_W == 0, "blocks start at whole strides");
static_assert(INPUT_CHANNELS % CHANNEL_BLOCK == 0, "a strip holds whole blocks of channels");

using InputTeam = Team<INPUT_PARTS>;  // shares the maps above an item

// The source rows below a step's errors: none, unless units are convolved again.
template <class Errors>
using SourceAgain = SourceRing<
    RECOMPUTES ? C : 0, INPUT_ROWS, Errors::Again::COLUMNS, row_stride(Errors::Again::CELLS_BELOW)>;

struct InputPlace {
    int n, c0, w0;
    int down, end_down;  // steps
};

// Block -> its channels and strip, and `band` steps down an image.
__device__ __forceinline__ InputPlace input_place(int block, int band)
{
    const int bands = (STEPS_DOWN + band - 1) / band;
    InputPlace at;
    at.c0 = block % INPUT_GROUPS * INPUT_CHANNELS;
    at.w0 = block / INPUT_GROUPS % INPUT_STRIPS * INPUT_COLUMNS;
    at.down = block / (INPUT_GROUPS * INPUT_STRIPS) % bands * band;
    at.end_down = min(at.down + band, STEPS_DOWN);
    at.n = block / (INPUT_GROUPS * INPUT_STRIPS) / bands;
    return at;
}

// Where the errors of a strip begin, and what both directions need before the first step.
template <class Errors, class Source>
__device__ __forceinline__ void start_input(
    Errors& errors, Source& source, float* filters, const InputPlace& at, const Above& above, int q0)
{
    const int p = at.down + FIRST_P;
    const int end_p = at.end_down + FIRST_P + UNITS_BEHIND;
    fetch_filters<K, C * STORED, INPUT_CHANNELS, STORED, CHANNEL_STRIDE>(
        filters, above.weight + at.c0 * STORED, K, C - at.c0);
    errors.hold(filters + INPUT_FILTERS, above, 0);
    errors.start(at.n, p, end_p, q0);
    if constexpr (RECOMPUTES) source.start(errors.cells + Errors::SIZE, above.x, at.n, 0, p, end_p, q0);
    if constexpr (AHEAD) errors.make(above, source);
}

// What every step begins with: its errors are complete afterwards.
template <class Errors, class Source>
__device__ __forceinline__ void step_input(Errors& errors, Source& source, const Above& above)
{
    wait_for_copies();
    __syncthreads();  // the step's errors or source rows are complete; nobody reads the oldest any more
    if constexpr (RECOMPUTES) source.bring(Source::STEP);
    errors.make(above, source);
    if constexpr (RECOMPUTES) {
        source.next_step();
        __syncthreads();  // the errors are complete before anyone reads them
    }
}

// ---- pull: an item is CHANNEL_BLOCK channels x COLUMN_BLOCK neighbours of a row, which gather from the units above

struct Pull {
    static constexpr int ROWS = INPUT_ROWS * STRIDE_H;
    static constexpr int GROUPS = INPUT_COLUMNS / COLUMN_BLOCK;
    static constexpr int ITEMS = INPUT_CHANNELS / CHANNEL_BLOCK * ROWS * GROUPS;
    static constexpr int STEP = COLUMN_BLOCK / STRIDE_W;  // units from group to group
    static constexpr int SEGMENT = (COLUMN_BLOCK - 1 + PAD_W) / STRIDE_W - FIRST_Q + 1;  // units above a group
    static constexpr int COLUMNS = (GROUPS - 1) * STEP + round_up(SEGMENT, 4);
    using Errors = ErrorRing<
        ERROR_MAPS, INPUT_ROWS, UNIT_COLUMNS, row_stride(at_least(COLUMNS, round_up(UNIT_COLUMNS, ERROR_PIXEL_BLOCK))),
        UNITS_BEHIND>;
    using Source = SourceAgain<Errors>;
    static constexpr int SHARED = INPUT_FILTERS + Errors::SIZE + Source::SIZE;
};
static_assert(PUSHES || INPUT_SHARED >= Pull::SHARED, "filters and rings fit");

// Adds what a row of units of all maps hands down through one row of their filters.
__device__ __forceinline__ void pull_row(
    float (&sum)[CHANNEL_BLOCK][COLUMN_BLOCK], const float* errors, const float* filters)
{
#pragma unroll 2
    for (int k = InputTeam::part(); k < K; k += INPUT_PARTS) {
        const float* units = errors + k * Pull::Errors::PLANE;
        float copy[round_up(Pull::SEGMENT, 4)];
        load_run<Pull::SEGMENT, Pull::STEP>(copy, units);
#pragma unroll
        for (int s = 0; s < S; ++s) {
            float factor[round_up(CHANNEL_BLOCK, 4)];
            load_run<CHANNEL_BLOCK, CHANNEL_BLOCK>(factor, filters + (k * R * S + s) * CHANNEL_STRIDE);
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

__device__ __forceinline__ void pull_input(int block, const Above& above, float* grad_x, int band, float* filters)
{
    const InputPlace at = input_place(block, band);
    Pull::Errors errors;
    Pull::Source source;
    start_input(errors, source, filters, at, above, at.w0 / STRIDE_W + FIRST_Q);
    for (int down = at.down - UNITS_BEHIND; down < at.end_down; down += INPUT_ROWS) {
        step_input(errors, source, above);
        for (int pass = 0; pass < Pull::ITEMS; pass += InputTeam::AT_ONCE) {
            const int item = pass + InputTeam::item();
            const int column = item % Pull::GROUPS * COLUMN_BLOCK;
            const int row = item / Pull::GROUPS % Pull::ROWS;
            const int channel = item / (Pull::GROUPS * Pull::ROWS) * CHANNEL_BLOCK;
            const int h = down * STRIDE_H + row;
            const bool is_owned = h >= at.down * STRIDE_H && h < min(at.end_down * STRIDE_H, H);
            float sum[CHANNEL_BLOCK][COLUMN_BLOCK] = {};
            for (int r = 0; r < (item < Pull::ITEMS && is_owned ? R : 0); ++r) {
                if ((row + PAD_H - r) % STRIDE_H != 0) continue;
                const float* units = errors.at(0, (row + PAD_H - r) / STRIDE_H - FIRST_P) + column / STRIDE_W;
                pull_row(sum, units, filters + r * S * CHANNEL_STRIDE + channel);
            }
            InputTeam::join(sum);
            if (item >= Pull::ITEMS || !is_owned || InputTeam::part() != 0) continue;
#pragma unroll
            for (int c = 0; c < CHANNEL_BLOCK; ++c) {
                if (at.c0 + channel + c >= C) continue;
                const int w = at.w0 + column;
                float* cells = grad_x + ((at.n * C + at.c0 + channel + c) * H + h) * W + w;
                store_cells<vector_width(W, COLUMN_BLOCK), COLUMN_BLOCK>(cells, sum[c], W - w);
            }
        }
    }
}

// ---- push: an item is UNIT_BLOCK neighbouring units of a row, which add their errors to CHANNEL_BLOCK channels of one
// of the R rows of cells below

struct Push {
    static constexpr int COLUMNS = at_most(UNIT_COLUMNS, Q);  // of units that are on the map
    static constexpr int GROUPS = round_up(COLUMNS, UNIT_BLOCK) / UNIT_BLOCK;
    static constexpr int ITEMS = INPUT_CHANNELS / CHANNEL_BLOCK * R * GROUPS;
    static constexpr int STEP = UNIT_BLOCK * STRIDE_W;  // cells below from group to group
    // A group reaches over the cells of the groups after it; in each phase threads write whole steps, disjoint ones.
    static constexpr int PHASES = round_up((UNIT_BLOCK - 1) * STRIDE_W + S, STEP) / STEP;
    static constexpr int SUM_COLUMNS = (GROUPS - 1 + PHASES) * STEP;
    static constexpr int SUM_STRIDE = row_stride(SUM_COLUMNS);
    // Rows that a row of units reaches; those before, which are complete, are written out while the next is pushed.
    static constexpr int SUM_SLOTS = at_least(R, STRIDE_H) + STRIDE_H;
    static constexpr int SUM_PLANE = SUM_SLOTS * SUM_STRIDE;
    static constexpr int SUMS = INPUT_CHANNELS * SUM_PLANE;
    using Errors = ErrorRing<
        ERROR_MAPS, INPUT_ROWS, COLUMNS,
        row_stride(at_least(GROUPS * UNIT_BLOCK, round_up(COLUMNS, ERROR_PIXEL_BLOCK))), 0>;
    using Source = SourceAgain<Errors>;
    static constexpr int SHARED = INPUT_FILTERS + Errors::SIZE + Source::SIZE + SUMS;
};
static_assert(!PUSHES || INPUT_SHARED >= Push::SHARED, "filters, rings and sums fit");

// What units of all maps add to a row of cells through one row of their filters.
__device__ __forceinline__ void push_row(
    float (&sum)[CHANNEL_BLOCK][Push::PHASES * Push::STEP], const float* errors, const float* filters)
{
#pragma unroll 2
    for (int k = InputTeam::part(); k < K; k += INPUT_PARTS) {
        float error[round_up(UNIT_BLOCK, 4)];
        load_run<UNIT_BLOCK, UNIT_BLOCK>(error, errors + k * Push::Errors::PLANE);
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

// A row of units into the rows of cells below, the first of which is row h of the image and lies in `slot`. Each row of
// the filters reaches another row of cells, so that all are pushed at once. Ends with a barrier.
__device__ __forceinline__ void push_units(
    float* sums, const float* errors, const float* filters, const InputPlace& at, int h, int slot)
{
    for (int pass = 0; pass < Push::ITEMS; pass += InputTeam::AT_ONCE) {
        const int item = pass + InputTeam::item();
        const int group = item % Push::GROUPS;
        const int r = item / Push::GROUPS % R;
        const int channel = item / (Push::GROUPS * R) * CHANNEL_BLOCK;
        const bool is_owned = h + r >= at.down * STRIDE_H && h + r < at.end_down * STRIDE_H;
        const bool is_mine = item < Push::ITEMS && is_owned;
        float sum[CHANNEL_BLOCK][Push::PHASES * Push::STEP] = {};
        if (is_mine) push_row(sum, errors + group * UNIT_BLOCK, filters + r * S * CHANNEL_STRIDE + channel);
        InputTeam::join(sum);
        float* row = sums + channel * Push::SUM_PLANE + wrap<Push::SUM_SLOTS>(slot + r) * Push::SUM_STRIDE;
#pragma unroll
        for (int phase = 0; phase < Push::PHASES; ++phase) {
            if (is_mine && InputTeam::part() == 0) {
#pragma unroll
                for (int c = 0; c < CHANNEL_BLOCK; ++c) {
                    float* cells = row + c * Push::SUM_PLANE + (group + phase) * Push::STEP;
                    add_run<Push::STEP, Push::STEP>(cells, sum[c] + phase * Push::STEP);
                }
            }
            __syncthreads();  // the next phase writes cells of this one
        }
    }
}

// The STRIDE_H rows from row h on, which no further unit reaches, go from the ring to grad_x and leave zeros behind.
__device__ __forceinline__ void write_out(float* sums, float* grad_x, const InputPlace& at, int h, int slot, int left)
{
    for_cells<INPUT_COLUMNS, INPUT_CHANNELS * STRIDE_H>(INPUT_CHANNELS * STRIDE_H, [&](int line, int column) {
        const int c = line / STRIDE_H;
        const int row = h + line % STRIDE_H;
        const int w = at.w0 + column;
        const int place = w - left;
        float* sums_of_row = sums + wrap<Push::SUM_SLOTS>(slot + line % STRIDE_H) * Push::SUM_STRIDE;
        float* cell = sums_of_row + c * Push::SUM_PLANE + place;
        float sum = 0.0f;
        if (place >= 0 && place < Push::SUM_COLUMNS) {
            sum = *cell;
            *cell = 0.0f;
        }
        if (row < at.down * STRIDE_H || row >= min(at.end_down * STRIDE_H, H) || at.c0 + c >= C || w >= W) return;
        grad_x[((at.n * C + at.c0 + c) * H + row) * W + w] = sum;
    });
}

__device__ __forceinline__ void push_input(int block, const Above& above, float* grad_x, int band, float* filters)
{
    const InputPlace at = input_place(block, band);
    const int q0 = max(at.w0 / STRIDE_W + FIRST_Q, 0);
    const int left = q0 * STRIDE_W - PAD_W;  // the cell that column 0 of the sums stands for
    Push::Errors errors;
    Push::Source source;
    start_input(errors, source, filters, at, above, q0);
    float* sums = errors.cells + Push::Errors::SIZE + Push::Source::SIZE;
    for (int i = threadIdx.x; i < Push::SUMS; i += THREADS) sums[i] = 0.0f;
    int h = (at.down + FIRST_P) * STRIDE_H - PAD_H;  // of the row of cells in `slot`
    int slot = 0;
    for (int down = at.down - UNITS_BEHIND; down < at.end_down; down += INPUT_ROWS) {
        step_input(errors, source, above);
        for (int row = 0; row < INPUT_ROWS; ++row) {
            push_units(sums, errors.at(0, row), filters, at, h, slot);
            write_out(sums, grad_x, at, h, slot, left);
            slot = wrap<Push::SUM_SLOTS>(slot + STRIDE_H);
            h += STRIDE_H;
        }
    }
}
