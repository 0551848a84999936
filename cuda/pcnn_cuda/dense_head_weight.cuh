// dense_head_weight.cuh - one tile of a layer's weight gradient by one block
//
// Repeats    bitwise: groups of threads share the images, their sums are added in order
// Idea       both operands lie image by image, as the sum runs, so they reach shared memory as they are; the next DEPTH
//            images are on their way while these are multiplied. The bias is the weight of a feature that is always 1

#pragma once

#include "dense_head.cuh"

constexpr int ACROSS = EDGE / 4;  // threads along an edge, and vectors of a staged row
constexpr int WEIGHT_THREADS = DEPTH * ACROSS;
constexpr int GROUP_THREADS = ACROSS * ACROSS;
constexpr int WEIGHT_GROUPS = WEIGHT_THREADS / GROUP_THREADS;
constexpr int OPERAND = DEPTH * EDGE;
constexpr int TILE_OUTPUTS = EDGE * EDGE;
constexpr int WEIGHT_MEMORY = larger(4 * OPERAND, WEIGHT_GROUPS * TILE_OUTPUTS);
static_assert(WEIGHT_THREADS % GROUP_THREADS == 0, "each thread stages a vector of both operands and has a group");

template <int LAYER>
__device__ __forceinline__ void weight_tile(
    float* memory, int tile, const float* x, const float* units, const float* errors, float* partial, int first, int end)
{
    using L = Layer<LAYER>;
    constexpr int COLUMN_TILES = ceil_div(L::F + 1, EDGE);
    constexpr int IN_PITCH = LAYER == 1 ? FEATURES : HIDDEN_PITCH;
    constexpr int VECTOR = LAYER == 1 ? vector_width(FEATURES) : 4;
    const float* in = LAYER == 1 ? x : units + place_of(LAYER - 1);
    const int k0 = tile / COLUMN_TILES * EDGE;
    const int f0 = tile % COLUMN_TILES * EDGE;
    const int staged_row = threadIdx.x / ACROSS;
    const int staged = threadIdx.x % ACROSS * 4;

    float error[4];
    float cells[4];
    const auto load = [&](int n) {
        const int f = f0 + staged;
#pragma unroll
        for (int v = 0; v < 4; ++v) error[v] = 0.0f;
        if (n < end && k0 + staged < L::K) load_cells<4, 4>(error, errors + n * PITCH + L::PLACE + k0 + staged);
#pragma unroll
        for (int v = 0; v < 4; v += VECTOR) {
            if (n < end && f + v < L::F) load_cells<VECTOR, VECTOR>(cells + v, in + n * IN_PITCH + f + v);
        }
#pragma unroll
        for (int v = 0; v < 4; ++v) {
            if (n >= end || f + v >= L::F) cells[v] = n < end && f + v == L::F ? 1.0f : 0.0f;
        }
    };

    const int group = threadIdx.x / GROUP_THREADS;
    const int down = threadIdx.x % GROUP_THREADS / ACROSS * 4;
    const int across = threadIdx.x % ACROSS * 4;
    float sum[4][4] = {};
    float* operands = memory;
    load(first + staged_row);
    for (int n = first; n < end; n += DEPTH) {
        store_cells<4, 4>(operands + staged_row * EDGE + staged, error, 4);
        store_cells<4, 4>(operands + OPERAND + staged_row * EDGE + staged, cells, 4);
        __syncthreads();  // both operands are complete, and everyone is done with those before the last
        if (n + DEPTH < end) load(n + DEPTH + staged_row);
#pragma unroll
        for (int t = group; t < DEPTH; t += WEIGHT_GROUPS) {
            float a[4];
            float b[4];
            load_cells<4, 4>(a, operands + t * EDGE + down);
            load_cells<4, 4>(b, operands + OPERAND + t * EDGE + across);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) sum[i][j] += a[i] * b[j];
            }
        }
        operands = operands == memory ? memory + 2 * OPERAND : memory;
    }
    __syncthreads();  // everyone is done with the operands, whose place the sums take

    float* sums = memory + group * TILE_OUTPUTS + down * EDGE + across;
#pragma unroll
    for (int i = 0; i < 4; ++i) store_cells<4, 4>(sums + i * EDGE, sum[i], 4);
    __syncthreads();  // every group's sums are stored before they are added
    for (int output = threadIdx.x; output < TILE_OUTPUTS; output += WEIGHT_THREADS) {
        float total = memory[output];
#pragma unroll
        for (int other = 1; other < WEIGHT_GROUPS; ++other) total += memory[other * TILE_OUTPUTS + output];
        const int k = k0 + output / EDGE;
        const int f = f0 + output % EDGE;
        if (k < L::K && f <= L::F) partial[f < L::F ? L::WEIGHT + k * L::F + f : L::BIAS + k] = total;
    }
}

// The tile of this number, counted over all layers from LAYER on.
template <int LAYER>
__device__ __forceinline__ void weight_tiles(
    float* memory, int tile, const float* x, const float* units, const float* errors, float* partial, int first, int end)
{
    constexpr int TILES = ceil_div(Layer<LAYER>::K, EDGE) * ceil_div(Layer<LAYER>::F + 1, EDGE);
    if (tile < TILES) {  // the same for the whole block, so all of it meets at the barriers inside
        weight_tile<LAYER>(memory, tile, x, units, errors, partial, first, end);
    } else if constexpr (LAYER < LAYERS) {
        weight_tiles<LAYER + 1>(memory, tile - TILES, x, units, errors, partial, first, end);
    }
}
