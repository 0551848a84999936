// conv2d_act_pool_forward.cuh - a tile of the convolution, in registers; then pooled and activated

#pragma once

#include "conv2d_act_pool_window.cuh"

// MAPS_ x ROWS_ x COLUMNS_ outputs of the convolution, CHUNK_ channels at a time. An item is a thread's share:
// MAP_BLOCK_ maps x PIXEL_BLOCK_ neighbours of a row.
template <int MAPS_, int ROWS_, int COLUMNS_, int CHUNK_, int MAP_BLOCK_, int PIXEL_BLOCK_>
struct ConvolutionTile {
    static constexpr int COUNT = MAPS_, ROWS = ROWS_, COLUMNS = COLUMNS_, CHUNK = CHUNK_;
    static constexpr int MAP_BLOCK = MAP_BLOCK_, PIXEL_BLOCK = PIXEL_BLOCK_;
    static constexpr int GROUPS = round_up(COLUMNS, PIXEL_BLOCK) / PIXEL_BLOCK;
    static constexpr int ITEMS = COUNT / MAP_BLOCK * ROWS * GROUPS;
    static constexpr int STEP = PIXEL_BLOCK * STRIDE_W;                  // from group to group
    static constexpr int SEGMENT = (PIXEL_BLOCK - 1) * STRIDE_W + S;     // input cells below a group, in one row
    static constexpr int IN_ROWS = (ROWS - 1) * STRIDE_H + R;
    static constexpr int IN_STRIDE = row_stride((GROUPS - 1) * STEP + round_up(SEGMENT, 4));
    static constexpr int PLANE = IN_ROWS * IN_STRIDE;
    static constexpr int FILTER_STRIDE = row_stride(COUNT);
    static constexpr int SCRATCH = CHUNK * (PLANE + R * S * FILTER_STRIDE);
    static_assert(COUNT % MAP_BLOCK == 0, "a tile holds whole blocks of maps");
};

// Adds what a chunk of channels contributes to an item: every cell loaded serves MAP_BLOCK maps and all its taps.
template <class T>
__device__ __forceinline__ void add_channels(
    float (&sum)[T::MAP_BLOCK][T::PIXEL_BLOCK], const float* inputs, const float* filters)
{
    for (int c = 0; c < T::CHUNK; ++c) {
#pragma unroll 5
        for (int r = 0; r < R; ++r) {
            const float* row = inputs + c * T::PLANE + r * T::IN_STRIDE;
            float copy[round_up(T::SEGMENT, 4)];
            load_run<T::SEGMENT, T::STEP>(copy, row);
#pragma unroll
            for (int s = 0; s < S; ++s) {
                float factor[round_up(T::MAP_BLOCK, 4)];
                load_run<T::MAP_BLOCK, T::MAP_BLOCK>(factor, filters + ((c * R + r) * S + s) * T::FILTER_STRIDE);
#pragma unroll
                for (int i = 0; i < T::PIXEL_BLOCK; ++i) {
                    const float value = S <= LONGEST_COPY ? copy[i * STRIDE_W + s] : row[i * STRIDE_W + s];
#pragma unroll
                    for (int k = 0; k < T::MAP_BLOCK; ++k) sum[k][i] += factor[k] * value;
                }
            }
        }
    }
}

// The tile at map k0, row p0, column q0 of one image -> out[map][row][column], as far as the limits allow. `out` may
// lie over `scratch` if the block has a thread for each item. Where FOLLOWS, the image is what the kernel before wrote.
template <class T, bool FOLLOWS = false>
__device__ __forceinline__ void convolve(
    const float* image, const float* weight, const float* bias, int k0, int p0, int q0, float* scratch, float* out,
    int out_plane, int out_stride, int row_limit, int column_limit)
{
    float* filters = scratch + T::CHUNK * T::PLANE;
    for (int pass = 0; pass < T::ITEMS; pass += THREADS) {
        const int item = pass + threadIdx.x;
        const int column = item % T::GROUPS * T::PIXEL_BLOCK;
        const int row = item / T::GROUPS % T::ROWS;
        const int map = item / (T::GROUPS * T::ROWS) * T::MAP_BLOCK;
        float sum[T::MAP_BLOCK][T::PIXEL_BLOCK] = {};
        for (int c0 = 0; c0 < C; c0 += T::CHUNK) {
            __syncthreads();  // nobody still reads what was in the scratch memory
            fetch_filters<T::CHUNK, STORED, T::COUNT, C * STORED, T::FILTER_STRIDE>(
                filters, weight + (k0 * C + c0) * STORED, C - c0, K - k0);
            if (FOLLOWS && pass == 0 && c0 == 0) follow();
            fetch_image<T::CHUNK, T::IN_ROWS, T::IN_STRIDE, T::PLANE>(
                scratch, image, c0, p0 * STRIDE_H - PAD_H, q0 * STRIDE_W - PAD_W);
            wait_for_copies();
            __syncthreads();  // the chunk is complete before anyone reads it
            if (item < T::ITEMS) {
                add_channels<T>(sum, scratch + row * STRIDE_H * T::IN_STRIDE + column * STRIDE_W, filters + map);
            }
        }
        __syncthreads();  // the scratch memory is free: out may lie there
        if (item >= T::ITEMS || row >= row_limit) continue;
#pragma unroll
        for (int k = 0; k < T::MAP_BLOCK; ++k) {
            const float start = k0 + map + k < K ? bias[k0 + map + k] : 0.0f;
#pragma unroll
            for (int i = 0; i < T::PIXEL_BLOCK; ++i) {
                if (column + i >= column_limit) continue;
                out[(map + k) * out_plane + row * out_stride + column + i] = start + sum[k][i];
            }
        }
    }
}

#if !defined(FORWARD_MAPS) || !defined(FORWARD_ROWS) || !defined(FORWARD_COLUMNS) || !defined(FORWARD_CHUNK)
#error "compile with -DFORWARD_MAPS= -DFORWARD_ROWS= -DFORWARD_COLUMNS= -DFORWARD_CHUNK=; the host chooses the tile"
#endif
#if !defined(FORWARD_MAP_BLOCK) || !defined(FORWARD_PIXEL_BLOCK) || !defined(FORWARD_SHARED)
#error "compile with -DFORWARD_MAP_BLOCK= -DFORWARD_PIXEL_BLOCK= -DFORWARD_SHARED=; the host chooses or counts them"
#endif

// A block owns FORWARD_MAPS maps of FORWARD_ROWS x FORWARD_COLUMNS pooled cells of an image.
using ForwardTile = ConvolutionTile<
    FORWARD_MAPS, (FORWARD_ROWS - 1) * STEP_H + SIZE_H, (FORWARD_COLUMNS - 1) * STEP_W + SIZE_W, FORWARD_CHUNK,
    FORWARD_MAP_BLOCK, FORWARD_PIXEL_BLOCK>;
constexpr int FORWARD_TILES_W = round_up(V, FORWARD_COLUMNS) / FORWARD_COLUMNS;
constexpr int FORWARD_TILES = round_up(U, FORWARD_ROWS) / FORWARD_ROWS * FORWARD_TILES_W;
constexpr int FORWARD_GROUPS = round_up(K, FORWARD_MAPS) / FORWARD_MAPS;
constexpr int OUT_STRIDE = ForwardTile::COLUMNS | 1;  // odd: windows below each other start in different banks
constexpr int OUT_PLANE = ForwardTile::ROWS * OUT_STRIDE;
static_assert(THREADS >= ForwardTile::ITEMS, "the pre-pool tile lies over the inputs: one pass over the items");
static_assert(FORWARD_SHARED >= at_least(ForwardTile::SCRATCH, FORWARD_MAPS * OUT_PLANE), "the tile fits");

__device__ __forceinline__ void convolve_and_pool(
    const float* x, const float* weight, const float* bias, float* y, unsigned char* passed, float* tile)
{
    const int k0 = blockIdx.x % FORWARD_GROUPS * FORWARD_MAPS;
    const int v0 = blockIdx.x / FORWARD_GROUPS % FORWARD_TILES_W * FORWARD_COLUMNS;
    const int u0 = blockIdx.x / (FORWARD_GROUPS * FORWARD_TILES_W) % (FORWARD_TILES / FORWARD_TILES_W) * FORWARD_ROWS;
    const int n = blockIdx.x / (FORWARD_GROUPS * FORWARD_TILES);

    convolve<ForwardTile, true>(
        x + n * C * H * W, weight, bias, k0, u0 * STEP_H, v0 * STEP_W, tile, tile, OUT_PLANE, OUT_STRIDE,
        ForwardTile::ROWS, ForwardTile::COLUMNS);
    __syncthreads();  // the pre-pool tile is complete before it is pooled
    for (int i = threadIdx.x; i < FORWARD_MAPS * FORWARD_ROWS * FORWARD_COLUMNS; i += THREADS) {
        const int column = i % FORWARD_COLUMNS;
        const int row = i / FORWARD_COLUMNS % FORWARD_ROWS;
        const int map = i / (FORWARD_COLUMNS * FORWARD_ROWS);
        if (k0 + map >= K || u0 + row >= U || v0 + column >= V) continue;
        const int out = ((n * K + k0 + map) * U + u0 + row) * V + v0 + column;
        const float* window = tile + map * OUT_PLANE + row * STEP_H * OUT_STRIDE + column * STEP_W;
        y[out] = pool([&](int r) { return window + r * OUT_STRIDE; }, passed + out * PASSED_BYTES);
    }
}
