// tile.cuh - what kernels with tiles in shared memory share: vector loads, staging rows, sizes at compile time
//
// Idea       a load instruction costs an issue slot however many bytes it brings, so cells come four or two at a time
//            where their address allows; the lanes that stage a row find the row once, not once a cell

// a / b rounded up, also for negative a.
__host__ __device__ constexpr int ceil_div(int a, int b) { return a > 0 ? (a - 1) / b + 1 : a / b; }

// How many cells one load may bring if addresses are multiples of `a` and of `b`.
__host__ __device__ constexpr int vector_width(int a, int b = 0)
{
    return a % 4 == 0 && b % 4 == 0 ? 4 : a % 2 == 0 && b % 2 == 0 ? 2 : 1;
}

// Threads that share a row of `length` cells: 8 make a whole 32-byte sector.
__host__ __device__ constexpr int lanes_for(int length, int threads)
{
    int lanes = 8;
    while (lanes > length || lanes > threads) lanes /= 2;
    return lanes;
}

// COUNT cells from an address that is a multiple of VECTOR.
template <int VECTOR, int COUNT>
__device__ __forceinline__ void load_cells(float* to, const float* from)
{
    static_assert(COUNT % VECTOR == 0, "whole vectors only");
#pragma unroll
    for (int i = 0; i < COUNT; i += VECTOR) {
        if constexpr (VECTOR == 4) {
            const float4 cells = *reinterpret_cast<const float4*>(from + i);
            to[i] = cells.x;
            to[i + 1] = cells.y;
            to[i + 2] = cells.z;
            to[i + 3] = cells.w;
        } else if constexpr (VECTOR == 2) {
            const float2 cells = *reinterpret_cast<const float2*>(from + i);
            to[i] = cells.x;
            to[i + 1] = cells.y;
        } else {
            to[i] = from[i];
        }
    }
}

// The first `count` of COUNT cells to an address that is a multiple of VECTOR; `count` must be one too, unless it is larger.
template <int VECTOR, int COUNT>
__device__ __forceinline__ void store_cells(float* to, const float* cells, int count)
{
    static_assert(COUNT % VECTOR == 0, "whole vectors only");
#pragma unroll
    for (int i = 0; i < COUNT; i += VECTOR) {
        if (i >= count) break;
        if constexpr (VECTOR == 4) {
            *reinterpret_cast<float4*>(to + i) = make_float4(cells[i], cells[i + 1], cells[i + 2], cells[i + 3]);
        } else if constexpr (VECTOR == 2) {
            *reinterpret_cast<float2*>(to + i) = make_float2(cells[i], cells[i + 1]);
        } else {
            to[i] = cells[i];
        }
    }
}

// ROWS rows of PITCH cells into shared memory, each from cell `left` of what `row_at(row)` points to, which has WIDTH
// cells; zero beyond them, and for a null pointer. All THREAD_COUNT threads of the block take part; no barrier.
template <int THREAD_COUNT, int ROWS, int PITCH, int WIDTH, class RowAt>
__device__ __forceinline__ void stage_rows(float* tile, int left, RowAt row_at)
{
    constexpr int LANES = lanes_for(PITCH, THREAD_COUNT);
    constexpr int ROWS_AT_ONCE = THREAD_COUNT / LANES;
    const int lane = threadIdx.x % LANES;
    if (threadIdx.x >= ROWS_AT_ONCE * LANES) return;

#pragma unroll 2
    for (int row = threadIdx.x / LANES; row < ROWS; row += ROWS_AT_ONCE) {
        const float* cells = row_at(row);
#pragma unroll
        for (int column = lane; column < PITCH; column += LANES) {
            const int from = left + column;
            tile[row * PITCH + column] = cells && from >= 0 && from < WIDTH ? cells[from] : 0.0f;
        }
    }
}
