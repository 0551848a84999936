// mean_squared_error_tuned.cu - mean squared error and its gradient in one launch, one warp an image
//
// Computes   with d[n,k] = x[n,k] - (k == label[n]):
//            loss[first[0] + n] = mean over k of d[n,k]^2
//            prediction[n] = k of the largest x[n,k]   grad_x[n,k] = 2 * d[n,k] / (N * K)
// Shapes     x, grad_x (N,K)   label, prediction (N)   loss (history)   first (1); float32 or int32, contiguous
// Launch     one warp an image in blocks of WARPS warps: launch.warps(N)
// Traffic    reads 4*N*(K+1) bytes and writes 4*N*(K+2); the bound is latency
// Limits     N*K < 2^31 (32-bit indices); 0 <= label < K
// Repeats    bitwise: a lane sums its scores in order, the lanes are joined as a tree
// Ties, NaN  the first of equal scores is predicted; a NaN score makes the loss NaN
// Reference  baseline/pcnn_baseline/mean_squared_error.py, compared by pcnn_bench/verify.py
// Idea       as softmax_cross_entropy_tuned.cu

#include "warp_reduce.cuh"

extern "C" __global__ void mean_squared_error_tuned_step(
    const float* __restrict__ x, const int* __restrict__ label, const int* __restrict__ first,
    float* __restrict__ loss, int* __restrict__ prediction, float* __restrict__ grad_x, int N, int K)
{
    const int n = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (n >= N) return;  // whole warps leave, so the shuffles below miss no lane

    const int lane = threadIdx.x % 32;
    const float* scores = x + n * K;
    const Largest best = largest_of_row(scores, K, lane);
    const int target = label[n];

    float sum = 0.0f;
    for (int k = lane; k < K; k += 32) {
        const float difference = scores[k] - (k == target ? 1.0f : 0.0f);
        sum += difference * difference;
        grad_x[n * K + k] = 2.0f * difference / ((float)N * K);
    }
    sum = warp_sum(sum);
    if (lane == 0) {
        loss[first[0] + n] = sum / K;
        prediction[n] = best.index;
    }
}
