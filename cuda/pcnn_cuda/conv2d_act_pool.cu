// conv2d_act_pool.cu - convolution, activation and subsampling in one kernel, forward and backward
//
// Computes   z[n,k,p,q] = bias[k] + sum over c,r,s of x[n,c,h,w] weight[k,c,r,s]
//              with h = p*STRIDE_H + r - PAD_H, w = q*STRIDE_W + s - PAD_W, zero outside the map
//            y[n,k,u,v] = act(max of window), act(mean of window) or mean of act(window); the window of z at
//              (u*STEP_H, v*STEP_W), SIZE_H x SIZE_W cells
//            passed[n,k,u,v]: max: the position of the maximum, low byte first; mean of ReLU: a bit a cell, set if
//              z > 0; mean of another activation: nothing, and z is convolved again, or a float a cell, the derivative
//            error[n,k,p,q] = dloss/dz from grad_y; then
//            grad_x[n,c,h,w]      = sum over k,r,s of error[n,k,p,q] weight[k,c,r,s]
//            grad_weight[k,c,r,s] = sum over n,p,q of error[n,k,p,q] x[n,c,h,w]
//            grad_bias[k]         = sum over n,p,q of error[n,k,p,q]
// Shapes     x, grad_x (N,C,H,W)   y, grad_y (N,K,U,V)   passed (N,K,U,V,PASSED_BYTES) uint8   weight, grad_weight
//            (K,C,R,S)   bias, grad_bias (K)   partials (SPLITS, K*C*R*S + K); float32, contiguous
// Launch     forward: a block owns FORWARD_MAPS maps of FORWARD_ROWS x FORWARD_COLUMNS pooled cells of an image
//            backward_push, backward_pull: the first INPUTS blocks own cells of grad_x (N*INPUT_BLOCKS, or 0 where
//            there is none), the others filters; backward_sum: 32 gradients a block of 256
//            THREADS threads a block, FORWARD_SHARED or BACKWARD_SHARED floats of dynamic shared memory
// Traffic    forward 4*(N*C*H*W + K*C*R*S + K + N*K*U*V) + N*K*U*V*PASSED_BYTES bytes, tiles' halos apart; the pre-pool
//            map z and its error exist in shared memory alone. Backward reads x, grad_y and passed, y unless the mean
//            came after the activation, weight and bias where it convolves again or has a grad_x; it writes grad_x and
//            the partials, which backward_sum reads. Bound by arithmetic from a few channels on
// Limits     every array < 2^31 elements (32-bit indices)
// Repeats    bitwise: each sum has one owner and a fixed order; push separates its writers by barriers, not atomics
// Ties, NaN  the first maximum in row order wins; a NaN beats every number (as numpy.argmax)
// Reference  baseline/pcnn_baseline/conv2d.py, then maxpool2d.py, avgpool2d.py and the activations, compared by
//            pcnn_bench/verify.py
// Idea       own; pushing errors through fixed sets of units: Simard, Steinkraus, Platt 2003, section 3

#include "conv2d_act_pool_blocks.cuh"
#include "follow.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 2) conv2d_act_pool_forward(
    const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
    float* __restrict__ y, unsigned char* __restrict__ passed)
{
    extern __shared__ float4 arena[];
    convolve_and_pool(x, weight, bias, y, passed, reinterpret_cast<float*>(arena));
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

extern "C" __global__ void __launch_bounds__(32 * SUM_SLICES) conv2d_act_pool_backward_sum(
    const float* __restrict__ partials, float* __restrict__ grad_weight, float* __restrict__ grad_bias, int SPLITS)
{
    __shared__ float sums[32 * SUM_SLICES];
    follow();
    join_splits(partials, grad_weight, grad_bias, SPLITS, sums);
}
