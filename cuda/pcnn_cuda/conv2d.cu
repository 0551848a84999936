// conv2d.cu - convolution over maps, one thread an output: forward, and the three gradients
//
// Computes   y[n,k,p,q] = bias[k] + sum over c,r,s of x[n,c,h,w] weight[k,c,r,s]
//              with h = p*STRIDE_H + r - PAD_H, w = q*STRIDE_W + s - PAD_W, zero outside the map
//            grad_x[n,c,h,w]      = sum over k,r,s of grad_y[n,k,p,q] weight[k,c,r,s]
//            grad_weight[k,c,r,s] = sum over n,p,q of grad_y[n,k,p,q] x[n,c,h,w]
//            grad_bias[k]         = sum over n,p,q of grad_y[n,k,p,q]
// Shapes     x, grad_x (N,C,H,W)   y, grad_y (N,K,P,Q)   weight, grad_weight (K,C,R,S)   bias, grad_bias (K)
//            R = KERNEL_H, S = KERNEL_W; float32, contiguous
// Launch     forward, backward_input: one thread an element, launch.linear
//            backward_weight, backward_bias: one block a weight, launch.reduction(K*C*R*S or K, N, P*Q)
// Traffic    forward 4*(N*C*H*W + K*C*R*S + K + N*K*P*Q) bytes if the caches serve every re-read; each input value is
//            asked for K*R*S times, so the bound is the load units, not arithmetic
// Limits     every array < 2^31 elements (32-bit indices)
// Repeats    bitwise: each output is summed by one thread or one block, in a fixed order
// Reference  baseline/pcnn_baseline/conv2d.py, compared by pcnn_bench/verify.py
// Idea       the textbook form; gradients gather ("pull"), so no two threads write one cell

#include "block_sum.cuh"
#include "image_sum.cuh"

#if !defined(KERNEL_H) || !defined(KERNEL_W) || !defined(STRIDE_H) || !defined(STRIDE_W)
#error "compile with -DKERNEL_H= -DKERNEL_W= -DSTRIDE_H= -DSTRIDE_W=; the host takes them from Conv2dSpec"
#endif
#if !defined(PAD_H) || !defined(PAD_W)
#error "compile with -DPAD_H= -DPAD_W=; the host takes them from Conv2dSpec.padding"
#endif

// Whether a position lies on the map; without padding it always does, and the test vanishes.
__device__ __forceinline__ bool on_map(int position, int extent, int padding)
{
    return padding == 0 || (position >= 0 && position < extent);
}

extern "C" __global__ void conv2d_forward(
    const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
    float* __restrict__ y, int N, int C, int H, int W, int K, int P, int Q)
{
    const int out = blockIdx.x * blockDim.x + threadIdx.x;
    if (out >= N * K * P * Q) return;

    const int q = out % Q;
    const int p = out / Q % P;
    const int k = out / (Q * P) % K;
    const int n = out / (Q * P * K);
    const int top = p * STRIDE_H - PAD_H;
    const int left = q * STRIDE_W - PAD_W;

    float sum = bias[k];
    for (int c = 0; c < C; ++c) {
        const float* map = x + (n * C + c) * H * W;
        const float* filter = weight + (k * C + c) * KERNEL_H * KERNEL_W;
        for (int r = 0; r < KERNEL_H; ++r) {
            if (!on_map(top + r, H, PAD_H)) continue;
            for (int s = 0; s < KERNEL_W; ++s) {
                if (!on_map(left + s, W, PAD_W)) continue;
                sum += map[(top + r) * W + left + s] * filter[r * KERNEL_W + s];
            }
        }
    }
    y[out] = sum;
}

extern "C" __global__ void conv2d_backward_input(
    const float* __restrict__ grad_y, const float* __restrict__ weight, float* __restrict__ grad_x,
    int N, int C, int H, int W, int K, int P, int Q)
{
    const int in = blockIdx.x * blockDim.x + threadIdx.x;
    if (in >= N * C * H * W) return;

    const int w = in % W;
    const int h = in / W % H;
    const int c = in / (W * H) % C;
    const int n = in / (W * H * C);

    float sum = 0.0f;
    for (int k = 0; k < K; ++k) {
        const float* map = grad_y + (n * K + k) * P * Q;
        const float* filter = weight + (k * C + c) * KERNEL_H * KERNEL_W;
        for (int r = 0; r < KERNEL_H; ++r) {
            const int above = h + PAD_H - r;  // p * STRIDE_H, if some output row used this cell with r
            if (above < 0 || above % STRIDE_H != 0 || above / STRIDE_H >= P) continue;
            for (int s = 0; s < KERNEL_W; ++s) {
                const int before = w + PAD_W - s;
                if (before < 0 || before % STRIDE_W != 0 || before / STRIDE_W >= Q) continue;
                sum += map[above / STRIDE_H * Q + before / STRIDE_W] * filter[r * KERNEL_W + s];
            }
        }
    }
    grad_x[in] = sum;
}

extern "C" __global__ void conv2d_backward_weight(
    const float* __restrict__ x, const float* __restrict__ grad_y, float* __restrict__ grad_weight,
    int N, int C, int H, int W, int K, int P, int Q)
{
    const int s = blockIdx.x % KERNEL_W;
    const int r = blockIdx.x / KERNEL_W % KERNEL_H;
    const int c = blockIdx.x / (KERNEL_W * KERNEL_H) % C;
    const int k = blockIdx.x / (KERNEL_W * KERNEL_H * C);

    // A thread keeps its cells of the map and walks the images: neighbours read neighbours, and nothing is divided inside.
    float sum = 0.0f;
    for (int i = threadIdx.x; i < P * Q; i += blockDim.x) {
        const int h = i / Q * STRIDE_H + r - PAD_H;
        const int w = i % Q * STRIDE_W + s - PAD_W;
        if (!on_map(h, H, PAD_H) || !on_map(w, W, PAD_W)) continue;
        const float* from_y = grad_y + k * P * Q + i;
        const float* from_x = x + (c * H + h) * W + w;
        sum += image_sum(N, [&](int n) { return from_y[n * K * P * Q] * from_x[n * C * H * W]; });
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) grad_weight[blockIdx.x] = sum;
}

extern "C" __global__ void conv2d_backward_bias(
    const float* __restrict__ grad_y, float* __restrict__ grad_bias, int N, int K, int P, int Q)
{
    const int k = blockIdx.x;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < P * Q; i += blockDim.x) {
        const float* from_y = grad_y + k * P * Q + i;
        sum += image_sum(N, [&](int n) { return from_y[n * K * P * Q]; });
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) grad_bias[k] = sum;
}
