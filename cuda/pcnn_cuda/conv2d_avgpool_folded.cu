// conv2d_avgpool_folded.cu - convolution and the average pooling directly after it as one strided convolution
//
// Computes   y[n,k,u,v] = act(bias[k] + sum over c,a,b of x[n,c,h,w] folded[k,c,a,b])
//              with h = u*STRIDE_H + a - PAD_H, w = v*STRIDE_W + b - PAD_W, zero outside the map
//            folded[k,c,a,b] = mean over i < FOLD_H, j < FOLD_W of weight[k,c, a - i*FOLD_STEP_H, b - j*FOLD_STEP_W],
//              zero outside the filter: what pooling FOLD_H x FOLD_W outputs of the convolution adds up
//            grad_x from the folded filters; grad_weight[k,c,r,s] = mean over i, j of
//              grad_folded[k,c, r + i*FOLD_STEP_H, s + j*FOLD_STEP_W]; grad_bias as for any convolution
// Shapes     x, grad_x (N,C,H,W)   y, grad_y (N,K,U,V)   weight, grad_weight (K,C,R_STORED,S_STORED)   bias, grad_bias
//            (K)   partials (SPLITS, K*C*R*S + K); float32, contiguous; R, S: the folded filter's. passed: unused
// Launch     as conv2d_act_pool.cu
// Traffic    forward 4*(N*C*H*W + N*K*U*V + K*C*R_STORED*S_STORED + K) bytes; 2*N*K*U*V*C*R*S FLOPs: for a filter of
//            5 x 5 and a window of 2 x 2 these are 36 products a pooled cell instead of 100
// Limits     every array < 2^31 elements (32-bit indices)
// Repeats    bitwise: each sum has one owner and a fixed order; push separates its writers by barriers, not atomics
// Reference  baseline/pcnn_baseline/conv2d.py, then avgpool2d.py, compared by pcnn_bench/verify.py; equal but for
//            rounding, since weights are added before they are multiplied
// Idea       a mean is a convolution, and two convolutions are one; a strided convolution in place of subsampling:
//            Simard, Steinkraus, Platt 2003, section 5

#include "conv2d_act_pool_blocks.cuh"
#include "follow.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 2) conv2d_avgpool_folded_forward(
    const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
    float* __restrict__ y, unsigned char* __restrict__ passed)
{
    extern __shared__ float4 arena[];
    convolve_and_pool(x, weight, bias, y, passed, reinterpret_cast<float*>(arena));
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) conv2d_avgpool_folded_backward_push(
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

extern "C" __global__ void __launch_bounds__(THREADS, 2) conv2d_avgpool_folded_backward_pull(
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

extern "C" __global__ void __launch_bounds__(32 * SUM_SLICES) conv2d_avgpool_folded_backward_sum(
    const float* __restrict__ partials, float* __restrict__ grad_weight, float* __restrict__ grad_bias, int SPLITS)
{
    __shared__ float sums[32 * SUM_SLICES];
    follow();
    join_splits(partials, grad_weight, grad_bias, SPLITS, sums);
}
