// softmax_cross_entropy_tuned.cu - softmax, cross-entropy and their gradient in one launch, one warp an image
//
// Computes   with m = max over k of x[n,k], p[n,k] = exp(x[n,k] - m) / sum over j of exp(x[n,j] - m):
//            loss[first[0] + n] = log(sum over j of exp(x[n,j] - m)) + m - x[n,label[n]]
//            prediction[n] = k of the largest x[n,k]   grad_x[n,k] = (p[n,k] - (k == label[n])) / N
// Shapes     x, grad_x (N,K)   label, prediction (N)   loss (history)   first (1); float32 or int32, contiguous
// Launch     one warp an image in blocks of WARPS warps: launch.warps(N)
// Traffic    reads 4*N*(K+1) bytes (x three times, from the cache) and writes 4*N*(K+2); the bound is latency
// Limits     N*K < 2^31 (32-bit indices); 0 <= label < K
// Repeats    bitwise: a lane sums its scores in order, the lanes are joined as a tree
// Ties, NaN  the first of equal scores is predicted; a NaN score makes the loss NaN
// Reference  baseline/pcnn_baseline/softmax_cross_entropy.py, compared by pcnn_bench/verify.py
// Idea       the probabilities never leave the registers; the place in the history is read from memory, so that a
//            captured step can be replayed

#include "warp_reduce.cuh"

extern "C" __global__ void softmax_cross_entropy_tuned_step(
    const float* __restrict__ x, const int* __restrict__ label, const int* __restrict__ first,
    float* __restrict__ loss, int* __restrict__ prediction, float* __restrict__ grad_x, int N, int K)
{
    const int n = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (n >= N) return;  // whole warps leave, so the shuffles below miss no lane

    const int lane = threadIdx.x % 32;
    const float* scores = x + n * K;
    Largest best = largest_of_row(scores, K, lane);

    float sum = 0.0f;
    for (int k = lane; k < K; k += 32) sum += expf(scores[k] - best.value);
    sum = warp_sum(sum);

    const int target = label[n];
    for (int k = lane; k < K; k += 32) {
        const float probability = expf(scores[k] - best.value) / sum;
        grad_x[n * K + k] = (probability - (k == target ? 1.0f : 0.0f)) / N;
    }
    if (lane == 0) {
        loss[first[0] + n] = logf(sum) + (best.value - scores[target]);
        prediction[n] = best.index;
    }
}
