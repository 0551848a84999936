// softmax_cross_entropy.cu - softmax and cross-entropy in one stable step, forward and backward
//
// Computes   with m = max over k of x[n,k]:
//            probability[n,k] = exp(x[n,k] - m) / sum over j of exp(x[n,j] - m)
//            loss[n] = log(sum over j of exp(x[n,j] - m)) + m - x[n,label[n]]
//            prediction[n] = k of the largest x[n,k]
//            grad_x[n,k] = (probability[n,k] - (k == label[n])) / N
// Shapes     x, probability, grad_x (N,K)   label, loss, prediction (N); float32, label and prediction int32; contiguous
// Launch     forward: one thread an image, launch.linear(N); backward: one thread a score, launch.linear(N*K)
// Traffic    forward reads 4*N*(K+1) and writes 4*N*(K+2) bytes; for few classes the bound is latency
// Limits     N*K < 2^31 (32-bit indices); 0 <= label < K
// Repeats    bitwise: one thread sums an image's scores in order
// Ties, NaN  the first of equal scores is predicted; a NaN score makes the loss NaN
// Reference  baseline/pcnn_baseline/softmax_cross_entropy.py, compared by pcnn_bench/verify.py
// Idea       subtracting the maximum keeps exp in range; the logarithm is taken of the sum, never of a probability

extern "C" __global__ void softmax_cross_entropy_forward(
    const float* __restrict__ x, const int* __restrict__ label, float* __restrict__ probability,
    float* __restrict__ loss, int* __restrict__ prediction, int N, int K)
{
    const int n = blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= N) return;

    const float* scores = x + n * K;
    int best = 0;
    for (int k = 1; k < K; ++k) {
        if (scores[k] > scores[best]) best = k;
    }
    float sum = 0.0f;
    for (int k = 0; k < K; ++k) {
        const float value = expf(scores[k] - scores[best]);
        probability[n * K + k] = value;
        sum += value;
    }
    for (int k = 0; k < K; ++k) probability[n * K + k] /= sum;
    loss[n] = logf(sum) + (scores[best] - scores[label[n]]);
    prediction[n] = best;
}

extern "C" __global__ void softmax_cross_entropy_backward(
    const float* __restrict__ probability, const int* __restrict__ label, float* __restrict__ grad_x,
    int N, int K)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N * K) return;

    const float target = i % K == label[i / K] ? 1.0f : 0.0f;
    grad_x[i] = (probability[i] - target) / N;
}
