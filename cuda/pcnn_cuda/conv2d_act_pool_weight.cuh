// conv2d_act_pool_weight.cuh - a block's share of the gradients of weight and bias

#pragma once

#include "conv2d_act_pool_error.cuh"
#include "conv2d_act_pool_sum.cuh"

#if !defined(WEIGHT_MAPS) || !defined(WEIGHT_CHANNELS) || !defined(WEIGHT_ROWS) || !defined(WEIGHT_COLUMNS)
#error "compile with -DWEIGHT_MAPS= -DWEIGHT_CHANNELS= -DWEIGHT_ROWS= -DWEIGHT_COLUMNS=; the host chooses the tile"
#endif
#if !defined(WEIGHT_MAP_BLOCK) || !defined(WEIGHT_CHANNEL_BLOCK) || !defined(WEIGHT_ROW_GROUPS)
#error "compile with -DWEIGHT_MAP_BLOCK= -DWEIGHT_CHANNEL_BLOCK= -DWEIGHT_ROW_GROUPS=; the host chooses the share"
#endif

// A block owns the filters of WEIGHT_MAPS maps on WEIGHT_CHANNELS channels and walks over some tiles of the batch, each
// WEIGHT_ROWS x WEIGHT_COLUMNS units above. An item is row r of the filters of WEIGHT_MAP_BLOCK maps on
// WEIGHT_CHANNEL_BLOCK channels, summed over every WEIGHT_ROW_GROUPS-th row of units, four neighbours at a time.
struct Weights {
    static constexpr int TILES_W = round_up(Q, WEIGHT_COLUMNS) / WEIGHT_COLUMNS;
    static constexpr int TILES = round_up(P, WEIGHT_ROWS) / WEIGHT_ROWS * TILES_W;
    static constexpr int CHANNEL_GROUPS = round_up(C, WEIGHT_CHANNELS) / WEIGHT_CHANNELS;
    static constexpr int GROUPS = round_up(K, WEIGHT_MAPS) / WEIGHT_MAPS * CHANNEL_GROUPS;
    static constexpr int SLOTS = WEIGHT_CHANNELS / WEIGHT_CHANNEL_BLOCK;
    static constexpr int LINES = SLOTS * R;
    static constexpr int FILTERS = WEIGHT_MAPS / WEIGHT_MAP_BLOCK * LINES;
    static constexpr int ITEMS = FILTERS * WEIGHT_ROW_GROUPS;
    static constexpr int SUMS = WEIGHT_MAP_BLOCK * WEIGHT_CHANNEL_BLOCK * S;
    static constexpr int ERROR_STRIDE = row_stride(WEIGHT_COLUMNS);
    static constexpr int ERRORS = WEIGHT_MAPS * WEIGHT_ROWS * ERROR_STRIDE;
    static constexpr int SEGMENT = 3 * STRIDE_W + S;  // cells below four units
    static constexpr int IN_ROWS = (WEIGHT_ROWS - 1) * STRIDE_H + R;
    static constexpr int IN_STRIDE = row_stride((round_up(WEIGHT_COLUMNS, 4) - 4) * STRIDE_W + round_up(SEGMENT, 4));
    // A channel starts in the bank where its predecessor's R rows end: lanes take rows, then channels.
    static constexpr int PLANE = IN_ROWS * IN_STRIDE + ((R - IN_ROWS) * IN_STRIDE % 32 + 32) % 32;
    static constexpr int SCRATCH =
        at_least(WEIGHT_CHANNELS * PLANE, error_scratch<WEIGHT_MAPS, WEIGHT_ROWS, WEIGHT_COLUMNS>());
    static constexpr int SHARED = at_least(round_up(WEIGHT_MAPS, 4) + ERRORS + SCRATCH, ITEMS * SUMS);
};
static_assert(WEIGHT_MAPS % WEIGHT_MAP_BLOCK == 0, "a block holds whole blocks of maps");
static_assert(WEIGHT_CHANNELS % WEIGHT_CHANNEL_BLOCK == 0, "a block holds whole blocks of channels");
static_assert(!RECOMPUTES || WEIGHT_MAPS % ERROR_MAP_BLOCK == 0, "whole blocks of maps are convolved again");

using WeightSums = float[WEIGHT_MAP_BLOCK][WEIGHT_CHANNEL_BLOCK][S];

// Adds a tile to an item's sums.
__device__ __forceinline__ void add_tile(WeightSums& sum, const float* errors, const float* inputs, int first_row)
{
    for (int row = first_row; row < WEIGHT_ROWS; row += WEIGHT_ROW_GROUPS) {
        for (int q = 0; q < WEIGHT_COLUMNS; q += 4) {
            float error[WEIGHT_MAP_BLOCK][4];
#pragma unroll
            for (int k = 0; k < WEIGHT_MAP_BLOCK; ++k) {
                load_run<4, 4>(error[k], errors + (k * WEIGHT_ROWS + row) * Weights::ERROR_STRIDE + q);
            }
#pragma unroll
            for (int c = 0; c < WEIGHT_CHANNEL_BLOCK; ++c) {
                const float* cells = inputs + c * Weights::SLOTS * Weights::PLANE;
                float value[round_up(Weights::SEGMENT, 4)];
                load_run<Weights::SEGMENT, 4>(value, cells + row * STRIDE_H * Weights::IN_STRIDE + q * STRIDE_W);
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

// Adds each map's errors to its sum, a warp a map.
__device__ __forceinline__ void add_maps(float* map_sums, const float* errors)
{
    constexpr int CELLS_OF_MAP = WEIGHT_ROWS * Weights::ERROR_STRIDE;
    for (int k = threadIdx.x / 32; k < WEIGHT_MAPS; k += THREADS / 32) {
        float sum = 0.0f;
        for (int i = threadIdx.x % 32; i < CELLS_OF_MAP; i += 32) sum += errors[k * CELLS_OF_MAP + i];
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
        if (threadIdx.x % 32 == 0) map_sums[k] += sum;
    }
}

// Joins the row groups' sums, in order, and writes the block's filters to its split's partial gradient (K, C, R, S).
__device__ __forceinline__ void write_filters(const WeightSums& sum, float* partial, int k0, int c0, float* shared)
{
    __syncthreads();  // nobody still reads the last tile
    if (threadIdx.x < Weights::ITEMS) {
#pragma unroll
        for (int i = 0; i < Weights::SUMS; ++i) {
            const int c = i / S % WEIGHT_CHANNEL_BLOCK;
            shared[i * Weights::ITEMS + threadIdx.x] = sum[i / (S * WEIGHT_CHANNEL_BLOCK)][c][i % S];
        }
    }
    __syncthreads();  // all sums are stored before they are joined
    for (int i = threadIdx.x; i < Weights::FILTERS * Weights::SUMS; i += THREADS) {
        const int s = i % S;
        const int r = i / S % R;
        const int channel = i / (S * R) % WEIGHT_CHANNELS;
        const int map = i / (S * R * WEIGHT_CHANNELS);
        if (k0 + map >= K || c0 + channel >= C) continue;
        const int item = map / WEIGHT_MAP_BLOCK * Weights::LINES + channel % Weights::SLOTS * R + r;
        const int slot = (map % WEIGHT_MAP_BLOCK * WEIGHT_CHANNEL_BLOCK + channel / Weights::SLOTS) * S + s;
        float joined = 0.0f;
        for (int group = 0; group < WEIGHT_ROW_GROUPS; ++group) {
            joined += shared[slot * Weights::ITEMS + group * Weights::FILTERS + item];
        }
        partial[((k0 + map) * C + c0 + channel) * R * S + r * S + s] = joined;
    }
}

// Block -> its filters and its split of the batch; partials (splits, K*C*R*S + K), weight first.
__device__ __forceinline__ void add_up_weights(
    int block, const Above& above, float* partials, int N, int splits, float* shared)
{
    const int c0 = block % Weights::CHANNEL_GROUPS * WEIGHT_CHANNELS;
    const int k0 = block / Weights::CHANNEL_GROUPS % (Weights::GROUPS / Weights::CHANNEL_GROUPS) * WEIGHT_MAPS;
    const int split = block / Weights::GROUPS;
    float* map_sums = shared;
    float* errors = map_sums + round_up(WEIGHT_MAPS, 4);
    float* inputs = errors + Weights::ERRORS;  // also the scratch memory of make_errors
    const int line = threadIdx.x % Weights::LINES;
    const int map = threadIdx.x / Weights::LINES % (WEIGHT_MAPS / WEIGHT_MAP_BLOCK) * WEIGHT_MAP_BLOCK;
    const int first_row = threadIdx.x / Weights::FILTERS;

    if (threadIdx.x < WEIGHT_MAPS) map_sums[threadIdx.x] = 0.0f;
    WeightSums sum = {};
    for (int tile = split; tile < N * Weights::TILES; tile += splits) {
        const int n = tile / Weights::TILES;
        const int p0 = tile / Weights::TILES_W % (Weights::TILES / Weights::TILES_W) * WEIGHT_ROWS;
        const int q0 = tile % Weights::TILES_W * WEIGHT_COLUMNS;
        const auto fetch_inputs = [&] {
            fetch_image<WEIGHT_CHANNELS, Weights::IN_ROWS, Weights::IN_STRIDE, Weights::PLANE>(
                inputs, above.x + n * C * H * W, c0, p0 * STRIDE_H - PAD_H, q0 * STRIDE_W - PAD_W);
        };
        __syncthreads();  // nobody still reads the errors and inputs before
        if (!RECOMPUTES) fetch_inputs();
        if (tile == split) follow();
        make_errors<WEIGHT_MAPS, WEIGHT_ROWS, WEIGHT_COLUMNS, Weights::ERROR_STRIDE>(
            errors, above, n, k0, p0, q0, inputs);
        if (RECOMPUTES) fetch_inputs();
        add_maps(map_sums, errors);
        wait_for_copies();
        __syncthreads();  // the inputs are complete before anyone reads them
        if (threadIdx.x < Weights::ITEMS) {
            const float* cells = inputs + line / R * Weights::PLANE + line % R * Weights::IN_STRIDE;
            add_tile(sum, errors + map * WEIGHT_ROWS * Weights::ERROR_STRIDE, cells, first_row);
        }
    }
    float* partial = partials + split * (K * C * R * S + K);
    if (c0 == 0 && threadIdx.x < WEIGHT_MAPS && k0 + threadIdx.x < K) {
        partial[K * C * R * S + k0 + threadIdx.x] = map_sums[threadIdx.x];
    }
    write_filters(sum, partial, k0, c0, shared);
}
