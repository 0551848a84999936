// mean_squared_error.cu - mean squared error against one-hot targets, forward and backward
//
// Computes   loss[n] = mean over k of (x[n,k] - (k == label[n]))^2
//            prediction[n] = k of the largest x[n,k]
//            grad_x[n,k] = 2 * (x[n,k] - (k == label[n])) / (N * K)
// Shapes     x, grad_x (N,K)   label, loss, prediction (N); float32, label and prediction int32; contiguous
// Launch     forward: one thread an image, launch.linear(N); backward: one thread a score, launch.linear(N*K)
// Traffic    forward reads 4*N*(K+1) and writes 8*N bytes; for few classes the bound is latency
// Limits     N*K < 2^31 (32-bit indices); 0 <= label < K
// Repeats    bitwise: one thread sums an image's scores in order
// Ties, NaN  the first of equal scores is predicted; a NaN score makes the loss NaN
// Reference  baseline/pcnn_baseline/mean_squared_error.py, compared by pcnn_bench/verify.py
// Idea       the textbook form

extern "C" __global__ void mean_squared_error_forward(
    const float* __restrict__ x, const int* __restrict__ label, float* __restrict__ loss,
    int* __restrict__ prediction, int N, int K)
{
    const int n = blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= N) return;

    const float* scores = x + n * K;
    int best = 0;
    float sum = 0.0f;
    for (int k = 0; k < K; ++k) {
        const float difference = scores[k] - (k == label[n] ? 1.0f : 0.0f);
        sum += difference * difference;
        if (scores[k] > scores[best]) best = k;
    }
    loss[n] = sum / K;
    prediction[n] = best;
}

extern "C" __global__ void mean_squared_error_backward(
    const float* __restrict__ x, const int* __restrict__ label, float* __restrict__ grad_x, int N, int K)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N * K) return;

    const float target = i % K == label[i / K] ? 1.0f : 0.0f;
    grad_x[i] = 2.0f * (x[i] - target) / ((float)N * K);
}
