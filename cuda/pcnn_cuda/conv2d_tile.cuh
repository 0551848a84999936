// conv2d_tile.cuh - one tile of a convolution, or of its transpose, by one block
//
// Computes   out[n,k,p,q] = bias[k] + sum over c,r,s of in[n,c,h,w] filter[k,c,r,s]
//              with h = (p*UP_H + r - SHIFT_H) / DOWN_H where that divides and lies on the map, w likewise
//            the forward pass has DOWN = 1, UP = stride, SHIFT = padding; the input gradient has UP = 1, DOWN = stride,
//            SHIFT = kernel - 1 - padding and the filter mirrored, in and out exchanged
// Shapes     in (N,C_IN,H_IN,W_IN)   out (N,C_OUT,H_OUT,W_OUT); weight (C_OUT,C_IN,R,S), mirrored (C_IN,C_OUT,R,S)
// Launch     a block computes MAP_GROUPS*THREAD_MAPS maps of ROWS x COLUMN_GROUPS*THREAD_COLUMNS pixels of IMAGES
//            images, a thread THREAD_MAPS x THREAD_COLUMNS of them; grid (tiles of pixels, tiles of maps)
// Idea       a thread keeps a row of input in registers and slides it under the filter's row: each cell is loaded once
//            for S taps and THREAD_MAPS maps, each weight once for THREAD_COLUMNS pixels. Threads of a warp differ in
//            pixels, so weights are broadcast; they differ in rows first, and rows are an odd number of vectors long,
//            so the loads do not meet in one bank. Where the stride leaves gaps, the taps that fall in them vanish at
//            compile time along rows and are stepped over along columns: no multiplication by a known zero

#include "tile.cuh"

template <class Pass>
struct Tile {
    static constexpr int COLUMNS = Pass::COLUMN_GROUPS * Pass::THREAD_COLUMNS;
    static constexpr int MAPS = Pass::MAP_GROUPS * Pass::THREAD_MAPS;
    static constexpr int THREADS = Pass::ROWS * Pass::COLUMN_GROUPS * Pass::IMAGES * Pass::MAP_GROUPS;
    static constexpr int ROW_TILES = ceil_div(Pass::H_OUT, Pass::ROWS);
    static constexpr int COLUMN_TILES = ceil_div(Pass::W_OUT, COLUMNS);
    static constexpr int FIRST_LINE = ceil_div(-Pass::SHIFT_H, Pass::DOWN_H);  // of the input, for output row 0
    static constexpr int FIRST_CELL = ceil_div(-Pass::SHIFT_W, Pass::DOWN_W);
    static constexpr int STEP = Pass::THREAD_COLUMNS * Pass::UP_W / Pass::DOWN_W;  // cells from thread to thread
    static constexpr int VECTOR = Pass::COLUMN_GROUPS == 1 ? 4 : vector_width(STEP);
    static constexpr int WEIGHT_VECTOR = vector_width(Pass::THREAD_MAPS);
    static constexpr int TAPS = Pass::R * Pass::S;
    static constexpr int STEPS = ceil_div(Pass::R, Pass::DOWN_H);  // filter rows that meet an output row
    static constexpr int INPUT_SIZE = Pass::IMAGES * Pass::CHANNELS * Pass::LINES * Pass::PITCH;
    static constexpr int FILTER_SIZE = Pass::CHANNELS * TAPS * Pass::FILTER_PITCH;

    static_assert(Pass::ROWS % Pass::DOWN_H == 0, "a tile begins at a multiple of the stride");
    static_assert(Pass::THREAD_COLUMNS % Pass::DOWN_W == 0, "a thread's taps are known at compile time");
    static_assert((Pass::COLUMN_GROUPS - 1) * STEP + Pass::CELLS <= Pass::PITCH, "a row holds every thread's cells");
    static_assert(Pass::PITCH % VECTOR == 0 && Pass::CELLS % VECTOR == 0, "rows are whole vectors");
    static_assert(MAPS <= Pass::FILTER_PITCH && Pass::FILTER_PITCH % WEIGHT_VECTOR == 0, "taps are whole vectors");
};

// The filters of MAPS maps from k0 and CHANNELS channels from c0, as [channel][tap][map]; zero for maps beyond the last.
template <class Pass>
__device__ __forceinline__ void stage_filters(float* filters, const float* weight, int k0, int c0)
{
    using T = Tile<Pass>;
    constexpr int LANES = lanes_for(T::TAPS, T::THREADS);
    constexpr int AT_ONCE = T::THREADS / LANES;
    if (threadIdx.x >= AT_ONCE * LANES) return;

#pragma unroll 2
    for (int i = threadIdx.x / LANES; i < T::MAPS * Pass::CHANNELS; i += AT_ONCE) {
        const int map = Pass::MIRRORED ? i % T::MAPS : i / Pass::CHANNELS;  // neighbours in memory first
        const int channel = Pass::MIRRORED ? i / T::MAPS : i % Pass::CHANNELS;
        const int k = k0 + map;
        const int c = c0 + channel;
        const bool exists = k < Pass::C_OUT && c < Pass::C_IN;
        const float* filter = weight + (Pass::MIRRORED ? c * Pass::C_OUT + k : k * Pass::C_IN + c) * T::TAPS;
#pragma unroll
        for (int tap = threadIdx.x % LANES; tap < T::TAPS; tap += LANES) {
            const int place = channel * T::TAPS + (Pass::MIRRORED ? T::TAPS - 1 - tap : tap);
            filters[place * Pass::FILTER_PITCH + map] = exists ? filter[tap] : 0.0f;
        }
    }
}

// Add what CHANNELS staged channels give to a thread's pixels; `input` and `filters` point to the thread's own.
template <class Pass>
__device__ __forceinline__ void slide(
    float (&sum)[Pass::THREAD_MAPS][Pass::THREAD_COLUMNS], const float* input, const float* filters, int row,
    int channel_count)
{
    using T = Tile<Pass>;
    const int first_r = Pass::DOWN_H == 1 ? 0 : ((Pass::SHIFT_H - row) % Pass::DOWN_H + Pass::DOWN_H) % Pass::DOWN_H;
    const int first_line = (row * Pass::UP_H + first_r - Pass::SHIFT_H) / Pass::DOWN_H - T::FIRST_LINE;

    for (int c = 0; c < channel_count; ++c) {
        for (int step = 0; step < T::STEPS; ++step) {
            const int r = first_r + step * Pass::DOWN_H;
            if (Pass::DOWN_H > 1 && r >= Pass::R) break;
            float cells[Pass::CELLS];
            load_cells<T::VECTOR, Pass::CELLS>(cells, input + (c * Pass::LINES + first_line + step) * Pass::PITCH);
            const float* taps = filters + (c * Pass::R + r) * Pass::S * Pass::FILTER_PITCH;
#pragma unroll
            for (int s = 0; s < Pass::S; ++s) {
                float weights[Pass::THREAD_MAPS];
                load_cells<T::WEIGHT_VECTOR, Pass::THREAD_MAPS>(weights, taps + s * Pass::FILTER_PITCH);
#pragma unroll
                for (int j = 0; j < Pass::THREAD_COLUMNS; ++j) {
                    const int cell = j * Pass::UP_W + s - Pass::SHIFT_W;
                    if (cell % Pass::DOWN_W != 0) continue;  // between two outputs of a strided convolution
#pragma unroll
                    for (int k = 0; k < Pass::THREAD_MAPS; ++k) {
                        sum[k][j] += weights[k] * cells[cell / Pass::DOWN_W - T::FIRST_CELL];
                    }
                }
            }
        }
    }
}

template <class Pass>
__device__ __forceinline__ void convolve(
    const float* in, const float* weight, const float* bias, float* out, int N)
{
    using T = Tile<Pass>;
    __shared__ __align__(16) float input[T::INPUT_SIZE];
    __shared__ __align__(16) float filters[T::FILTER_SIZE];
    const int q0 = blockIdx.x % T::COLUMN_TILES * T::COLUMNS;
    const int p0 = blockIdx.x / T::COLUMN_TILES % T::ROW_TILES * Pass::ROWS;
    const int n0 = blockIdx.x / (T::COLUMN_TILES * T::ROW_TILES) * Pass::IMAGES;
    const int k0 = blockIdx.y * T::MAPS;
    const int top = p0 * Pass::UP_H / Pass::DOWN_H + T::FIRST_LINE;
    const int left = q0 * Pass::UP_W / Pass::DOWN_W + T::FIRST_CELL;

    const int row = threadIdx.x % Pass::ROWS;
    const int column_group = threadIdx.x / Pass::ROWS % Pass::COLUMN_GROUPS;
    const int image = threadIdx.x / (Pass::ROWS * Pass::COLUMN_GROUPS) % Pass::IMAGES;
    const int map = threadIdx.x / (Pass::ROWS * Pass::COLUMN_GROUPS * Pass::IMAGES) * Pass::THREAD_MAPS;

    float sum[Pass::THREAD_MAPS][Pass::THREAD_COLUMNS];
#pragma unroll
    for (int k = 0; k < Pass::THREAD_MAPS; ++k) {
#pragma unroll
        for (int j = 0; j < Pass::THREAD_COLUMNS; ++j) {
            sum[k][j] = Pass::HAS_BIAS && k0 + map + k < Pass::C_OUT ? bias[k0 + map + k] : 0.0f;
        }
    }
    for (int c0 = 0; c0 < Pass::C_IN; c0 += Pass::CHANNELS) {
        if (c0 > 0) __syncthreads();  // everyone is done with the channels before
        const auto line_at = [&](int i) -> const float* {
            const int n = n0 + i / (Pass::CHANNELS * Pass::LINES);
            const int c = c0 + i / Pass::LINES % Pass::CHANNELS;
            const int h = top + i % Pass::LINES;
            const bool exists = n < N && c < Pass::C_IN && h >= 0 && h < Pass::H_IN;
            return exists ? in + ((n * Pass::C_IN + c) * Pass::H_IN + h) * Pass::W_IN : nullptr;
        };
        stage_rows<T::THREADS, Pass::IMAGES * Pass::CHANNELS * Pass::LINES, Pass::PITCH, Pass::W_IN>(input, left, line_at);
        stage_filters<Pass>(filters, weight, k0, c0);
        __syncthreads();  // the tile is complete before anyone reads it
        slide<Pass>(
            sum, input + image * Pass::CHANNELS * Pass::LINES * Pass::PITCH + column_group * T::STEP, filters + map, row,
            min(Pass::CHANNELS, Pass::C_IN - c0));
    }

    const int n = n0 + image;
    const int p = p0 + row;
    const int q = q0 + column_group * Pass::THREAD_COLUMNS;
    if (n >= N || p >= Pass::H_OUT) return;
#pragma unroll
    for (int k = 0; k < Pass::THREAD_MAPS; ++k) {
        if (k0 + map + k >= Pass::C_OUT) break;
        float* to = out + ((n * Pass::C_OUT + k0 + map + k) * Pass::H_OUT + p) * Pass::W_OUT + q;
        constexpr int VECTOR = vector_width(Pass::W_OUT, Pass::THREAD_COLUMNS);
        store_cells<VECTOR, Pass::THREAD_COLUMNS>(to, sum[k], Pass::W_OUT - q);
    }
}
