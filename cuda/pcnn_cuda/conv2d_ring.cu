// conv2d_ring.cu - convolution, activation and subsampling in one kernel that walks down a map, forward and backward
//
// Computes   what conv2d_act_pool.cu computes, y, passed, grad_x, grad_weight and grad_bias as there
// Shapes     x, grad_x (N,C,H,W)   y, grad_y (N,K,U,V)   passed (N,K,U,V,PASSED_BYTES) uint8   weight, grad_weight
//            (K,C,R,S)   bias, grad_bias (K)   partials (SPLITS, K*C*R*S + K); float32, contiguous
// Launch     forward: a block owns FORWARD_MAPS maps of a strip of FORWARD_COLUMNS pooled columns of an image, and BAND
//            pooled rows; N * map groups * strips * bands blocks
//            backward_push, backward_pull: the first INPUTS blocks own INPUT_BAND steps (of STRIDE_H rows) down a strip
//            of INPUT_COLUMNS columns of INPUT_CHANNELS channels of grad_x; the others walk down strips of the batch,
//            WEIGHT_BAND rows of units each, for the filters that they own; backward_sum: 32 gradients a block of 256
//            THREADS threads a block; FORWARD_SHARED floats of dynamic shared memory, or INPUT_SHARED or WEIGHT_SHARED,
//            whichever is more. Compiled for one direction: PUSHES says which backward kernel may be launched
// Traffic    forward 4*(N*C*H*W + K*C*R*S + K + N*K*U*V) + N*K*U*V*PASSED_BYTES bytes; of these x once for each map
//            group, and a band's or strip's halo once more: a walk of B pooled rows reads
//            ((B-1)*STEP_H + SIZE_H - 1)*STRIDE_H + R source rows once, however far filters and windows overlap
// Limits     every array < 2^31 elements (32-bit indices); the rings of all channels, or maps, and the block's filters
//            fit shared memory
// Repeats    bitwise: each sum has one owner and a fixed order; push separates its writers by barriers, not atomics
// Ties, NaN  the first maximum in row order wins; a NaN beats every number (as numpy.argmax)
// Reference  baseline/pcnn_baseline/conv2d.py, then maxpool2d.py, avgpool2d.py and the activations, compared by
//            pcnn_bench/verify.py
// Idea       circular buffers of source rows in shared memory, from this project's first plan: a step down a map brings
//            in only the rows that are new; own: rings of errors and of sums, which do the same for backward

#include "conv2d_act_pool_sum.cuh"
#include "conv2d_ring_forward.cuh"
#include "conv2d_ring_input.cuh"
#include "conv2d_ring_weight.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 2) conv2d_ring_forward(
    const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
    float* __restrict__ y, unsigned char* __restrict__ passed, int BAND)
{
    extern __shared__ float4 arena[];
    walk_forward(x, weight, bias, y, passed, BAND, reinterpret_cast<float*>(arena));
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) conv2d_ring_backward_push(
    const float* __restrict__ grad_y, const float* __restrict__ y, const unsigned char* __restrict__ passed,
    const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
    float* __restrict__ grad_x, float* __restrict__ partials, int N, int INPUTS, int SPLITS, int INPUT_BAND,
    int WEIGHT_BAND)
{
    extern __shared__ float4 arena[];
    float* shared = reinterpret_cast<float*>(arena);
    const Above above = {grad_y, y, passed, x, weight, bias};
    const int block = blockIdx.x;
    if (PUSHES && block < INPUTS) {
        push_input(block, above, grad_x, INPUT_BAND, shared);
    } else {
        add_up_weights(block - INPUTS, above, partials, N, SPLITS, WEIGHT_BAND, shared);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) conv2d_ring_backward_pull(
    const float* __restrict__ grad_y, const float* __restrict__ y, const unsigned char* __restrict__ passed,
    const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
    float* __restrict__ grad_x, float* __restrict__ partials, int N, int INPUTS, int SPLITS, int INPUT_BAND,
    int WEIGHT_BAND)
{
    extern __shared__ float4 arena[];
    float* shared = reinterpret_cast<float*>(arena);
    const Above above = {grad_y, y, passed, x, weight, bias};
    const int block = blockIdx.x;
    if (!PUSHES && block < INPUTS) {
        pull_input(block, above, grad_x, INPUT_BAND, shared);
    } else {
        add_up_weights(block - INPUTS, above, partials, N, SPLITS, WEIGHT_BAND, shared);
    }
}

extern "C" __global__ void __launch_bounds__(32 * SUM_SLICES) conv2d_ring_backward_sum(
    const float* __restrict__ partials, float* __restrict__ grad_weight, float* __restrict__ grad_bias, int SPLITS)
{
    __shared__ float sums[32 * SUM_SLICES];
    join_splits(partials, grad_weight, grad_bias, SPLITS, sums);
}
