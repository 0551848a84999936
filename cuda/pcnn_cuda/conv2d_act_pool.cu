// conv2d_act_pool.cu - convolution, activation and subsampling in one kernel, forward and backward
//
// Computes   z[n,k,p,q] = bias[k] + sum over c,r,s of x[n,c,h,w] weight[k,c,r,s]
//              with h = p*STRIDE_H + r - PAD_H, w = q*STRIDE_W + s - PAD_W, zero outside the map
//            y[n,k,u,v] = act(max of window), act(mean of window) or mean of act(window); the window of z at
//              (u*STEP_H, v*STEP_W), SIZE_H x SIZE_W cells
//            passed[n,k,u,v]: max: the position of the maximum, low byte first; mean of ReLU: a bit a cell, set if
//              z > 0; else nothing
//            error[n,k,p,q] = dloss/dz from grad_y; then
//            grad_x[n,c,h,w]      = sum over k,r,s of error[n,k,p,q] weight[k,c,r,s]
//            grad_weight[k,c,r,s] = sum over n,p,q of error[n,k,p,q] x[n,c,h,w]
//            grad_bias[k]         = sum over n,p,q of error[n,k,p,q]
// Shapes     x, grad_x (N,C,H,W)   y, grad_y (N,K,U,V)   passed (N,K,U,V,PASSED_BYTES) uint8   weight, grad_weight
//            (K,C,R,S)   bias, grad_bias (K)   partials (SPLITS, K*C*R*S + K); float32, contiguous
// Launch     forward: a block owns FORWARD_MAPS maps of FORWARD_ROWS x FORWARD_COLUMNS pooled cells of an image
//            backward_push, backward_pull: the first INPUTS blocks own cells of grad_x (N*INPUT_BLOCKS, or 0 where there
//            is none), the others filters; backward_sum: 32 gradients a block of 256
//            THREADS threads a block, FORWARD_SHARED or BACKWARD_SHARED floats of dynamic shared memory
// Traffic    forward 4*(N*C*H*W + K*C*R*S + K + N*K*U*V) + N*K*U*V*PASSED_BYTES bytes, tiles' halos apart; the pre-pool
//            map z and its error exist in shared memory alone. Bound by arithmetic from a few channels on
// Limits     every array < 2^31 elements (32-bit indices)
// Repeats    bitwise: each sum has one owner and a fixed order; push separates its writers by barriers, not atomics
// Ties, NaN  the first maximum in row order wins; a NaN beats every number (as numpy.argmax)
// Reference  baseline/pcnn_baseline/conv2d.py, then maxpool2d.py, avgpool2d.py and the activations, compared by
//            pcnn_bench/verify.py
// Idea       own; pushing errors through fixed sets of units: Simard, Steinkraus, Platt 2003, section 3

#include "conv2d_act_pool_input.cuh"
#include "conv2d_act_pool_weight.cuh"

#if !defined(FORWARD_SHARED) || !defined(BACKWARD_SHARED)
#error "compile with -DFORWARD_SHARED= -DBACKWARD_SHARED=, floats of dynamic shared memory; the host counts them"
#endif
#if !defined(FORWARD_MAP_BLOCK) || !defined(FORWARD_PIXEL_BLOCK)
#error "compile with -DFORWARD_MAP_BLOCK= -DFORWARD_PIXEL_BLOCK=, what a thread computes; the host chooses them"
#endif
#if !defined(FORWARD_MAPS) || !defined(FORWARD_ROWS) || !defined(FORWARD_COLUMNS) || !defined(FORWARD_CHUNK)
#error "compile with -DFORWARD_MAPS= -DFORWARD_ROWS= -DFORWARD_COLUMNS= -DFORWARD_CHUNK=, a block's tile; the host chooses"
#endif

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
static_assert(THREADS >= at_least(Pull::ITEMS, Weights::ITEMS), "sums stay in registers: one pass over the items");

static_assert(BACKWARD_SHARED >= at_least(at_least(Pull::SHARED, Push::SHARED), Weights::SHARED), "the tiles fit");

extern "C" __global__ void __launch_bounds__(THREADS, 2) conv2d_act_pool_forward(
    const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
    float* __restrict__ y, unsigned char* __restrict__ passed)
{
    extern __shared__ float4 arena[];
    float* tile = reinterpret_cast<float*>(arena);
    const int k0 = blockIdx.x % FORWARD_GROUPS * FORWARD_MAPS;
    const int v0 = blockIdx.x / FORWARD_GROUPS % FORWARD_TILES_W * FORWARD_COLUMNS;
    const int u0 = blockIdx.x / (FORWARD_GROUPS * FORWARD_TILES_W) % (FORWARD_TILES / FORWARD_TILES_W) * FORWARD_ROWS;
    const int n = blockIdx.x / (FORWARD_GROUPS * FORWARD_TILES);

    convolve<ForwardTile>(
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
        y[out] = pool(window, OUT_STRIDE, passed + out * PASSED_BYTES);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) conv2d_act_pool_backward_push(
    const float* __restrict__ grad_y, const float* __restrict__ y, const unsigned char* __restrict__ passed,
    const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
    float* __restrict__ grad_x, float* __restrict__ partials, int N, int INPUTS, int SPLITS)
{
    extern __shared__ float4 arena[];
    float* shared = reinterpret_cast<float*>(arena);
    const Above above = {grad_y, y, passed, x, weight, bias};
    const int block = blockIdx.x;
    if (block < INPUTS) {
        push_input(block, above, grad_x, shared);
    } else {
        add_up_weights(block - INPUTS, above, partials, N, SPLITS, shared);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) conv2d_act_pool_backward_pull(
    const float* __restrict__ grad_y, const float* __restrict__ y, const unsigned char* __restrict__ passed,
    const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
    float* __restrict__ grad_x, float* __restrict__ partials, int N, int INPUTS, int SPLITS)
{
    extern __shared__ float4 arena[];
    float* shared = reinterpret_cast<float*>(arena);
    const Above above = {grad_y, y, passed, x, weight, bias};
    const int block = blockIdx.x;
    if (block < INPUTS) {
        pull_input(block, above, grad_x, shared);
    } else {
        add_up_weights(block - INPUTS, above, partials, N, SPLITS, shared);
    }
}

extern "C" __global__ void __launch_bounds__(256) conv2d_act_pool_backward_sum(
    const float* __restrict__ partials, float* __restrict__ grad_weight, float* __restrict__ grad_bias, int SPLITS)
{
    constexpr int WEIGHTS = K * C * R * S;
    __shared__ float sums[8][32];
    const int lane = threadIdx.x % 32;
    const int slice = threadIdx.x / 32;
    const int i = blockIdx.x * 32 + lane;

    float sum = 0.0f;
    if (i < WEIGHTS + K) {
#pragma unroll 8
        for (int split = slice; split < SPLITS; split += 8) sum += partials[split * (WEIGHTS + K) + i];
    }
    sums[slice][lane] = sum;
    __syncthreads();  // every slice is stored before they are joined
    if (slice != 0 || i >= WEIGHTS + K) return;
    sum = 0.0f;
    for (int other = 0; other < 8; ++other) sum += sums[other][lane];
    if (i < WEIGHTS) {
        grad_weight[i] = sum;
    } else {
        grad_bias[i - WEIGHTS] = sum;
    }
}
