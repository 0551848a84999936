// dense_tuned.cu - fully connected layer by tiled matrix products, with or without the activation that follows it
//
// Computes   z[n,k] = bias[k] + sum over f of x[n,f] weight[k,f], y = f(z) with f of ACTIVATION
//            error[n,k]       = grad_y[n,k] times the derivative, from y
//            grad_x[n,f]      = sum over k of error[n,k] weight[k,f]
//            grad_weight[k,f] = sum over n of error[n,k] x[n,f]
//            grad_bias[k]     = sum over n of error[n,k]
// Shapes     x, grad_x (N,F)   y, grad_y (N,K)   weight, grad_weight (K,F)   bias, grad_bias (K); F = FEATURES, K = UNITS
//            float32, contiguous, aligned to 16 bytes; ACTIVATION 0 none, 1 tanh, 2 relu, 3 sigmoid
// Launch     EDGE x EDGE outputs a block of TILE_THREADS threads: forward ceil(N/EDGE)*ceil(K/EDGE) blocks; backward
//            ceil(K/EDGE)*ceil((F+1)/EDGE) for the weights, then ceil(N/EDGE)*ceil(F/EDGE) for grad_x where it is needed
// Traffic    forward reads 4*N*F*ceil(K/EDGE) + 4*K*F*ceil(N/EDGE) bytes, from the second time on out of the L2 cache, and
//            writes 4*N*K; for layers of hundreds of units the bound is latency
// Limits     N*F, N*K, K*F < 2^31 (32-bit indices)
// Repeats    bitwise: an output is summed by one block in a fixed order
// Ties, NaN  relu as relu.cu: a NaN stays a NaN, the derivative at 0 is 0
// Reference  baseline/pcnn_baseline/dense.py, compared by pcnn_bench/verify.py
// Idea       the bias is the weight of a feature that is always 1, so its gradient is one more column of the weights';
//            both gradients in one launch, since neither waits for the other

#include "activation.cuh"
#include "matrix_tile.cuh"

#if !defined(FEATURES) || !defined(UNITS) || !defined(ACTIVATION)
#error "compile with -DFEATURES= -DUNITS= -DACTIVATION=; the host takes them from the layer"
#endif
#if !defined(FORWARD_DEPTH) || !defined(INPUT_DEPTH) || !defined(WEIGHT_DEPTH)
#error "compile with -DFORWARD_DEPTH= -DINPUT_DEPTH= -DWEIGHT_DEPTH=; the host takes them from dense_tuned.py"
#endif

// x or weight: `rows` rows of FEATURES, and beyond them, if AND_ONE, a column of ones.
template <bool IS_DEPTH_FIRST, bool AND_ONE = false>
struct Features {
    static constexpr bool DEPTH_IS_ROW = IS_DEPTH_FIRST;
    static constexpr int VECTOR = vector_width(FEATURES);
    const float* cells;
    int rows;

    __device__ __forceinline__ void load(float* to, int row, int column) const
    {
        if (row < rows && column < FEATURES) {
            load_cells<VECTOR, VECTOR>(to, cells + row * FEATURES + column);
            return;
        }
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) to[v] = AND_ONE && row < rows && column + v == FEATURES ? 1.0f : 0.0f;
    }
};

// error: `rows` rows of UNITS.
template <bool IS_DEPTH_FIRST>
struct Errors {
    static constexpr bool DEPTH_IS_ROW = IS_DEPTH_FIRST;
    static constexpr int VECTOR = vector_width(UNITS);
    const float* grad_y;
    const float* y;
    int rows;

    __device__ __forceinline__ void load(float* to, int row, int column) const
    {
        float grads[VECTOR] = {};
        float values[VECTOR] = {};
        if (row < rows && column < UNITS) {
            load_cells<VECTOR, VECTOR>(grads, grad_y + row * UNITS + column);
            if (ACTIVATION != NONE) load_cells<VECTOR, VECTOR>(values, y + row * UNITS + column);
        }
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) to[v] = error_as(ACTIVATION, grads[v], values[v]);
    }
};

extern "C" __global__ void __launch_bounds__(TILE_THREADS, 2) dense_tuned_forward(
    const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
    float* __restrict__ y, int N)
{
    __shared__ __align__(16) float memory[tile_memory(FORWARD_DEPTH)];
    constexpr int COLUMN_TILES = ceil_div(UNITS, EDGE);
    const int row0 = blockIdx.x / COLUMN_TILES * EDGE;
    const int column0 = blockIdx.x % COLUMN_TILES * EDGE;
    const auto store = [&](int n, int k, float sum) {
        if (n < N && k < UNITS) y[n * UNITS + k] = activate(sum + bias[k]);
    };
    multiply<FORWARD_DEPTH>(
        memory, Features<false>{x, N}, Features<false>{weight, UNITS}, row0, column0, FEATURES, store);
}

__device__ __forceinline__ void backward_weight(
    float* memory, int tile, const float* x, const float* y, const float* grad_y, float* grad_weight, float* grad_bias, int N)
{
    constexpr int COLUMN_TILES = ceil_div(FEATURES + 1, EDGE);
    const auto store = [&](int k, int f, float sum) {
        if (k >= UNITS || f > FEATURES) return;
        if (f < FEATURES) {
            grad_weight[k * FEATURES + f] = sum;
        } else {
            grad_bias[k] = sum;
        }
    };
    multiply<WEIGHT_DEPTH>(
        memory, Errors<true>{grad_y, y, N}, Features<true, true>{x, N}, tile / COLUMN_TILES * EDGE,
        tile % COLUMN_TILES * EDGE, N, store);
}

__device__ __forceinline__ void backward_input(
    float* memory, int tile, const float* y, const float* grad_y, const float* weight, float* grad_x, int N)
{
    constexpr int COLUMN_TILES = ceil_div(FEATURES, EDGE);
    const auto store = [&](int n, int f, float sum) {
        if (n < N && f < FEATURES) grad_x[n * FEATURES + f] = sum;
    };
    multiply<INPUT_DEPTH>(
        memory, Errors<false>{grad_y, y, N}, Features<true>{weight, UNITS}, tile / COLUMN_TILES * EDGE,
        tile % COLUMN_TILES * EDGE, UNITS, store);
}

extern "C" __global__ void __launch_bounds__(TILE_THREADS, 2) dense_tuned_backward(
    const float* __restrict__ x, const float* __restrict__ y, const float* __restrict__ grad_y,
    const float* __restrict__ weight, float* __restrict__ grad_weight, float* __restrict__ grad_bias,
    float* __restrict__ grad_x, int N)
{
    __shared__ __align__(16) float memory[tile_memory(WEIGHT_DEPTH > INPUT_DEPTH ? WEIGHT_DEPTH : INPUT_DEPTH)];
    constexpr int WEIGHT_TILES = ceil_div(UNITS, EDGE) * ceil_div(FEATURES + 1, EDGE);
    const int tile = blockIdx.x;
    if (tile < WEIGHT_TILES) {  // the same for the whole block, so all of it meets at the barriers inside
        backward_weight(memory, tile, x, y, grad_y, grad_weight, grad_bias, N);
    } else {
        backward_input(memory, tile - WEIGHT_TILES, y, grad_y, weight, grad_x, N);
    }
}
