// conv2d_ring_weight.cuh - a block's share of the gradients of weight and bias, from rings of source rows and of errors

#pragma once

#include "conv2d_ring_error.cuh"

#if !defined(WEIGHT_MAPS) || !defined(WEIGHT_CHANNELS) || !defined(WEIGHT_ROWS) || !defined(WEIGHT_COLUMNS)
#error "compile with -DWEIGHT_MAPS= -DWEIGHT_CHANNELS= -DWEIGHT_ROWS= -DWEIGHT_COLUMNS=; the host chooses the strip"
#endif
#if !defined(WEIGHT_MAP_BLOCK) || !defined(WEIGHT_CHANNEL_BLOCK)
#error "compile with -DWEIGHT_MAP_BLOCK= -DWEIGHT_CHANNEL_BLOCK=, what a thread sums; the host chooses them"
#endif
#if !defined(WEIGHT_ROW_GROUPS) || !defined(WEIGHT_COLUMN_GROUPS) || !defined(WEIGHT_SHARED)
#error "compile with -DWEIGHT_ROW_GROUPS= -DWEIGHT_COLUMN_GROUPS= -DWEIGHT_SHARED=; the host chooses or counts them"
#endif

// A block owns the filters of WEIGHT_MAPS maps on WEIGHT_CHANNELS channels and walks down some strips of the batch,
// each WEIGHT_COLUMNS columns of units, WEIGHT_ROWS rows a step. An item is row r of the filters of WEIGHT_MAP_BLOCK
// maps on WEIGHT_CHANNEL_BLOCK channels, summed over a part of the step's units: every WEIGHT_ROW_GROUPS-th row, of
// which every WEIGHT_COLUMN_GROUPS-th four neighbours.
struct Weights {
    static constexpr int STRIPS = round_up(Q, WEIGHT_COLUMNS) / WEIGHT_COLUMNS;
    static constexpr int CHANNEL_GROUPS = round_up(C, WEIGHT_CHANNELS) / WEIGHT_CHANNELS;
    static constexpr int MAP_GROUPS = round_up(K, WEIGHT_MAPS) / WEIGHT_MAPS;
    static constexpr int SLOTS = WEIGHT_CHANNELS / WEIGHT_CHANNEL_BLOCK;
    static constexpr int LINES = SLOTS * R;
    static constexpr int FILTERS = WEIGHT_MAPS / WEIGHT_MAP_BLOCK * LINES;
    static constexpr int PARTS = WEIGHT_ROW_GROUPS * WEIGHT_COLUMN_GROUPS;
    static constexpr int ITEMS = FILTERS * PARTS;
    static constexpr int SUMS = WEIGHT_MAP_BLOCK * WEIGHT_CHANNEL_BLOCK * S;
    static constexpr int WHOLE_COLUMNS = round_up(WEIGHT_COLUMNS, 4);
    static constexpr int SEGMENT = 3 * STRIDE_W + S;  // cells below four units
    static constexpr int CELLS_BELOW = (WHOLE_COLUMNS - 4) * STRIDE_W + round_up(SEGMENT, 4);
    static constexpr int ERROR_STRIDE = row_stride(round_up(WEIGHT_COLUMNS, at_least(4, ERROR_PIXEL_BLOCK)));
    using Errors = ErrorRing<WEIGHT_MAPS, WEIGHT_ROWS, WEIGHT_COLUMNS, ERROR_STRIDE, 0>;
    // Units are convolved again from all channels.
    static constexpr int SOURCE_CHANNELS = RECOMPUTES ? C : WEIGHT_CHANNELS;
    static constexpr int SOURCE_COLUMNS = at_least(CELLS_BELOW, RECOMPUTES ? Errors::Again::CELLS_BELOW : 0);
    using Source = SourceRing<SOURCE_CHANNELS, WEIGHT_ROWS, WEIGHT_COLUMNS, row_stride(SOURCE_COLUMNS)>;
    static constexpr int LANE_SUMS = 32 * WEIGHT_MAPS;
    static constexpr int SHARED = at_least(LANE_SUMS + Errors::SIZE + Source::SIZE, ITEMS * SUMS);
};
static_assert(WEIGHT_MAPS % WEIGHT_MAP_BLOCK == 0, "a block holds whole blocks of maps");
static_assert(WEIGHT_CHANNELS % WEIGHT_CHANNEL_BLOCK == 0, "a block holds whole blocks of channels");
static_assert(THREADS >= Weights::ITEMS, "sums stay in registers: one pass over the items");
static_assert(WEIGHT_SHARED >= Weights::SHARED, "rings and sums fit");

using WeightSums = float[WEIGHT_MAP_BLOCK][WEIGHT_CHANNEL_BLOCK][S];

// Adds a step's units to an item's sums: those from (first_row, first_column) on that are its part, of maps from `map`
// on; `offset` leads from a row of the ring to the item's first channel.
__device__ __forceinline__ void add_units(
    WeightSums& sum, const Weights::Errors& errors, const Weights::Source& source, int map, int r, int offset,
    int first_row, int first_column)
{
    for (int row = first_row; row < WEIGHT_ROWS; row += WEIGHT_ROW_GROUPS) {
        const float* units = errors.at(map, row);
        const float* cells = source.row(row * STRIDE_H + r) + offset;
#pragma unroll 2
        for (int q = first_column; q < Weights::WHOLE_COLUMNS; q += 4 * WEIGHT_COLUMN_GROUPS) {
            float error[WEIGHT_MAP_BLOCK][4];
#pragma unroll
            for (int k = 0; k < WEIGHT_MAP_BLOCK; ++k) load_run<4, 4>(error[k], units + k * Weights::Errors::PLANE + q);
#pragma unroll
            for (int c = 0; c < WEIGHT_CHANNEL_BLOCK; ++c) {
                const float* below = cells + c * Weights::SLOTS * Weights::Source::PLANE + q * STRIDE_W;
                float value[round_up(Weights::SEGMENT, 4)];
                load_run<Weights::SEGMENT, 4>(value, below);
#pragma unroll
                for (int s = 0; s < S; ++s) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
#pragma unroll
                        for (int k = 0; k < WEIGHT_MAP_BLOCK; ++k) {
                            sum[k][c][s] += error[k][i] * value[i * STRIDE_W + s];
                        }
                    }
                }
            }
        }
    }
}

// Adds a step's errors to the sums of their maps, a warp a map and a sum a lane.
__device__ __forceinline__ void add_errors(float* lane_sums, const Weights::Errors& errors)
{
    for (int i = threadIdx.x; i < Weights::LANE_SUMS; i += THREADS) {
        float sum = 0.0f;
        for (int row = 0; row < WEIGHT_ROWS; ++row) {
            const float* units = errors.at(i / 32, row);
            for (int q = i % 32; q < WEIGHT_COLUMNS; q += 32) sum += units[q];
        }
        lane_sums[i] += sum;
    }
}

// Joins the parts' sums, in order, and writes the block's filters to its split's partial gradient (K, C, R, S).
__device__ __forceinline__ void write_filters(const WeightSums& sum, float* partial, int k0, int c0, float* shared)
{
    if (threadIdx.x < Weights::ITEMS) {
#pragma unroll
        for (int i = 0; i < Weights::SUMS; ++i) {
            const int c = i / S % WEIGHT_CHANNEL_BLOCK;
            shared[i * Weights::ITEMS + threadIdx.x] = sum[i / (S * WEIGHT_CHANNEL_BLOCK)][c][i % S];
        }
    }
    __syncthreads();  // all sums are stored before they are joined
    for (int i = threadIdx.x; i < Weights::FILTERS * Weights::SUMS; i += THREADS) {
        const int tap = i % (R * S);
        const int channel = i / (R * S) % WEIGHT_CHANNELS;
        const int map = i / (R * S * WEIGHT_CHANNELS);
        if (k0 + map >= K || c0 + channel >= C) continue;
        const int item = map / WEIGHT_MAP_BLOCK * Weights::LINES + channel % Weights::SLOTS * R + tap / S;
        const int place = (map % WEIGHT_MAP_BLOCK * WEIGHT_CHANNEL_BLOCK + channel / Weights::SLOTS) * S + tap % S;
        float joined = 0.0f;
        for (int part = 0; part < Weights::PARTS; ++part) {
            joined += shared[place * Weights::ITEMS + part * Weights::FILTERS + item];
        }
        partial[((k0 + map) * C + c0 + channel) * R * S + tap] = joined;
    }
}

// Block -> its filters and its split of the walks: down `band` rows of units of a strip each. partials (splits,
// K*C*R*S + K), weight first.
__device__ __forceinline__ void add_up_weights(
    int block, const Above& above, float* partials, int N, int splits, int band, float* shared)
{
    const int c0 = block % Weights::CHANNEL_GROUPS * WEIGHT_CHANNELS;
    const int k0 = block / Weights::CHANNEL_GROUPS % Weights::MAP_GROUPS * WEIGHT_MAPS;
    const int split = block / (Weights::CHANNEL_GROUPS * Weights::MAP_GROUPS);
    const int bands = (P + band - 1) / band;
    const int first_channel = RECOMPUTES ? 0 : c0;  // of the ring
    float* lane_sums = shared;
    Weights::Errors errors;
    Weights::Source source;
    errors.hold(lane_sums + Weights::LANE_SUMS, above, k0);

    const int line = threadIdx.x % Weights::LINES;
    const int map = threadIdx.x / Weights::LINES % (WEIGHT_MAPS / WEIGHT_MAP_BLOCK) * WEIGHT_MAP_BLOCK;
    const int part = threadIdx.x / Weights::FILTERS;
    const int offset = (c0 - first_channel + line / R) * Weights::Source::PLANE;
    WeightSums sum = {};
    for (int i = threadIdx.x; i < Weights::LANE_SUMS; i += THREADS) lane_sums[i] = 0.0f;
    for (int walk = split; walk < N * Weights::STRIPS * bands; walk += splits) {
        const int q0 = walk % Weights::STRIPS * WEIGHT_COLUMNS;
        const int p0 = walk / Weights::STRIPS % bands * band;
        const int n = walk / Weights::STRIPS / bands;
        const int end_p = min(p0 + band, P);
        errors.start(n, p0, end_p, q0);
        source.start(errors.cells + Weights::Errors::SIZE, above.x, n, first_channel, p0, end_p, q0);
        if constexpr (AHEAD) errors.make(above, source);
        for (int p = p0; p < end_p; p += WEIGHT_ROWS) {
            wait_for_copies();
            __syncthreads();  // the step's rows are complete; nobody reads the oldest any more
            source.bring(Weights::Source::STEP);
            errors.make(above, source);
            if constexpr (RECOMPUTES) __syncthreads();  // the errors are complete before anyone reads them
            if (c0 == 0) add_errors(lane_sums, errors);
            if (threadIdx.x < Weights::ITEMS) {
                add_units(
                    sum, errors, source, map, line % R, offset, part / WEIGHT_COLUMN_GROUPS,
                    part % WEIGHT_COLUMN_GROUPS * 4);
            }
            source.next_step();
        }
        wait_for_copies();
        __syncthreads();  // nobody still reads these rows, or brings more
    }
    float* partial = partials + split * (K * C * R * S + K);
    if (c0 == 0) {
        for (int k = threadIdx.x / 32; k < at_most(WEIGHT_MAPS, K - k0); k += THREADS / 32) {
            float total = lane_sums[32 * k + threadIdx.x % 32];
            for (int lanes = 16; lanes > 0; lanes /= 2) total += __shfl_down_sync(0xffffffffu, total, lanes);
            if (threadIdx.x % 32 == 0) partial[K * C * R * S + k0 + k] = total;
        }
    }
    __syncthreads();  // the sums of maps are written before filters take their place
    write_filters(sum, partial, k0, c0, shared);
}
