// matrix_tile.cuh - one tile of a matrix product by one block
//
// Computes   out[i,j] = sum over t < depth of left(i,t) right(t,j), handed to store(i, j, sum)
// Launch     EDGE x EDGE outputs a block; GROUPS sets of (EDGE/4)^2 threads share the depth, a thread adds 4 x 4 outputs
//            over every GROUPS-th t
// Repeats    bitwise: the groups' sums are added in order
// Idea       the layers of small networks have few outputs and short sums, so latency is the bound: the depth is shared
//            inside the block, which needs no second launch, and up to DEPTH of it is staged in one go, so that a block
//            waits for memory once or twice. Operands lie in shared memory depth first, whichever way their matrix runs

#include "tile.cuh"

#if !defined(EDGE) || !defined(GROUPS)
#error "compile with -DEDGE= -DGROUPS=; the host takes them from dense_tuned.py"
#endif

constexpr int ACROSS = EDGE / 4;  // threads along an edge
constexpr int GROUP_THREADS = ACROSS * ACROSS;
constexpr int TILE_THREADS = GROUP_THREADS * GROUPS;
constexpr int TILE_PITCH = EDGE + 4;
constexpr int TILE_OUTPUTS = EDGE * EDGE;
static_assert(EDGE % 8 == 0, "so that a row of EDGE + 4 is an odd number of vectors, and rows begin in different banks");

// Floats of shared memory for a product that stages `depth` at a time.
__host__ __device__ constexpr int tile_memory(int depth)
{
    return 2 * depth * TILE_PITCH > GROUPS * TILE_OUTPUTS ? 2 * depth * TILE_PITCH : GROUPS * TILE_OUTPUTS;
}

// Columns i and rows t of a tile, from a matrix whose rows are the depth or from one whose columns are. A matrix loads
// VECTOR cells of a row at a time, zeros where it ends.
template <int DEPTH, class Matrix>
__device__ __forceinline__ void stage_matrix(float* tile, const Matrix& matrix, int outer0, int depth0, int depth)
{
    constexpr int VECTORS = (Matrix::DEPTH_IS_ROW ? EDGE : DEPTH) / Matrix::VECTOR;  // in a row
    const int rows = Matrix::DEPTH_IS_ROW ? min(DEPTH, depth - depth0) : EDGE;
    const int row0 = Matrix::DEPTH_IS_ROW ? depth0 : outer0;
    const int column0 = Matrix::DEPTH_IS_ROW ? outer0 : depth0;
#pragma unroll 4
    for (int i = threadIdx.x; i < rows * VECTORS; i += TILE_THREADS) {
        const int row = i / VECTORS;
        const int column = i % VECTORS * Matrix::VECTOR;
        float cells[Matrix::VECTOR];
        matrix.load(cells, row0 + row, column0 + column);
#pragma unroll
        for (int v = 0; v < Matrix::VECTOR; ++v) {
            const int t = Matrix::DEPTH_IS_ROW ? row : column + v;
            const int outer = Matrix::DEPTH_IS_ROW ? column + v : row;
            tile[t * TILE_PITCH + outer] = cells[v];
        }
    }
}

template <int DEPTH, class Left, class Right, class Store>
__device__ __forceinline__ void multiply(
    float* memory, const Left& left, const Right& right, int row0, int column0, int depth, const Store& store)
{
    float* rights = memory + DEPTH * TILE_PITCH;
    const int group = threadIdx.x / GROUP_THREADS;
    const int down = threadIdx.x % GROUP_THREADS / ACROSS * 4;
    const int across = threadIdx.x % ACROSS * 4;

    float sum[4][4] = {};
    for (int depth0 = 0; depth0 < depth; depth0 += DEPTH) {
        stage_matrix<DEPTH>(memory, left, row0, depth0, depth);
        stage_matrix<DEPTH>(rights, right, column0, depth0, depth);
        __syncthreads();  // both operands are complete before anyone reads them
        const int end = min(DEPTH, depth - depth0);
#pragma unroll 2
        for (int t = group; t < end; t += GROUPS) {
            float a[4];
            float b[4];
            load_cells<4, 4>(a, memory + t * TILE_PITCH + down);
            load_cells<4, 4>(b, rights + t * TILE_PITCH + across);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) sum[i][j] += a[i] * b[j];
            }
        }
        __syncthreads();  // everyone is done with the operands
    }

    float* sums = memory + group * TILE_OUTPUTS + down * EDGE + across;  // over the operands' place
#pragma unroll
    for (int i = 0; i < 4; ++i) store_cells<4, 4>(sums + i * EDGE, sum[i], 4);
    __syncthreads();  // every group's sums are stored before they are added
    for (int output = threadIdx.x; output < TILE_OUTPUTS; output += TILE_THREADS) {
        float total = memory[output];
#pragma unroll
        for (int other = 1; other < GROUPS; ++other) total += memory[other * TILE_OUTPUTS + output];
        store(row0 + output / EDGE, column0 + output % EDGE, total);
    }
}
