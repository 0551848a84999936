// dense.cu - fully connected layer, one thread an output: forward, and the three gradients
//
// Computes   y[n,k]           = bias[k] + sum over f of x[n,f] weight[k,f]
//            grad_x[n,f]      = sum over k of grad_y[n,k] weight[k,f]
//            grad_weight[k,f] = sum over n of grad_y[n,k] x[n,f]
//            grad_bias[k]     = sum over n of grad_y[n,k]
// Shapes     x, grad_x (N,F)   y, grad_y (N,K)   weight, grad_weight (K,F)   bias, grad_bias (K); float32, contiguous
// Launch     one thread an element of the result: launch.linear; no shared memory
// Traffic    forward 4*(N*F + K*F + K + N*K) bytes if the caches serve every re-read; its weight rows are read with
//            a stride of F between neighbouring threads, which the first cache absorbs for small F
// Limits     every array < 2^31 elements (32-bit indices)
// Repeats    bitwise: each output is summed by one thread in a fixed order
// Reference  baseline/pcnn_baseline/dense.py, compared by pcnn_bench/verify.py
// Idea       the textbook form

#include "image_sum.cuh"

extern "C" __global__ void dense_forward(
    const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
    float* __restrict__ y, int N, int F, int K)
{
    const int out = blockIdx.x * blockDim.x + threadIdx.x;
    if (out >= N * K) return;

    const int k = out % K;
    const float* row = x + out / K * F;
    const float* weights = weight + k * F;
    float sum = bias[k];
    for (int f = 0; f < F; ++f) sum += row[f] * weights[f];
    y[out] = sum;
}

extern "C" __global__ void dense_backward_input(
    const float* __restrict__ grad_y, const float* __restrict__ weight, float* __restrict__ grad_x,
    int N, int F, int K)
{
    const int in = blockIdx.x * blockDim.x + threadIdx.x;
    if (in >= N * F) return;

    const int f = in % F;
    const float* row = grad_y + in / F * K;
    float sum = 0.0f;
    for (int k = 0; k < K; ++k) sum += row[k] * weight[k * F + f];
    grad_x[in] = sum;
}

extern "C" __global__ void dense_backward_weight(
    const float* __restrict__ x, const float* __restrict__ grad_y, float* __restrict__ grad_weight,
    int N, int F, int K)
{
    const int out = blockIdx.x * blockDim.x + threadIdx.x;
    if (out >= K * F) return;

    const int f = out % F;
    const int k = out / F;
    grad_weight[out] = image_sum(N, [&](int n) { return grad_y[n * K + k] * x[n * F + f]; });
}

extern "C" __global__ void dense_backward_bias(
    const float* __restrict__ grad_y, float* __restrict__ grad_bias, int N, int K)
{
    const int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= K) return;

    grad_bias[k] = image_sum(N, [&](int n) { return grad_y[n * K + k]; });
}
