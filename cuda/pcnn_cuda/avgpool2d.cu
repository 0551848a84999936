// avgpool2d.cu - the mean of each window, one thread an output, forward and backward
//
// Computes   y[m,p,q] = mean over (r,s) of x[m, p*STRIDE_H+r, q*STRIDE_W+s], r < SIZE_H, s < SIZE_W
//            grad_x[m,h,w] = sum of grad_y / (SIZE_H*SIZE_W) over the windows that contain (h,w)
// Shapes     x, grad_x (M,H,W)   y, grad_y (M,P,Q)   M = N*C; float32, contiguous
// Launch     forward: one thread an output cell; backward: one thread an input cell; launch.linear
// Traffic    forward reads 4*M*H*W and writes 4*M*P*Q bytes, backward is the mirror image; bound by bandwidth
// Limits     M*H*W < 2^31 (32-bit indices)
// Repeats    bitwise: backward gathers, so windows may overlap without two threads writing one cell
// Reference  baseline/pcnn_baseline/avgpool2d.py, compared by pcnn_bench/verify.py
// Idea       the textbook form

#include "pooling.cuh"

extern "C" __global__ void avgpool2d_forward(
    const float* __restrict__ x, float* __restrict__ y, int M, int H, int W, int P, int Q)
{
    const int out = blockIdx.x * blockDim.x + threadIdx.x;
    if (out >= M * P * Q) return;

    const int q = out % Q;
    const int p = out / Q % P;
    const float* window = x + (out / (Q * P) * H + p * STRIDE_H) * W + q * STRIDE_W;
    float sum = 0.0f;
    for (int r = 0; r < SIZE_H; ++r) {
        for (int s = 0; s < SIZE_W; ++s) sum += window[r * W + s];
    }
    y[out] = sum * (1.0f / (SIZE_H * SIZE_W));
}

extern "C" __global__ void avgpool2d_backward(
    const float* __restrict__ grad_y, float* __restrict__ grad_x, int M, int H, int W, int P, int Q)
{
    const int in = blockIdx.x * blockDim.x + threadIdx.x;
    if (in >= M * H * W) return;

    const int w = in % W;
    const int h = in / W % H;
    const float* map = grad_y + in / (W * H) * P * Q;
    const Windows rows = windows_over(h, SIZE_H, STRIDE_H, P);
    const Windows columns = windows_over(w, SIZE_W, STRIDE_W, Q);
    float sum = 0.0f;
    for (int p = rows.first; p < rows.end; ++p) {
        for (int q = columns.first; q < columns.end; ++q) sum += map[p * Q + q];
    }
    grad_x[in] = sum * (1.0f / (SIZE_H * SIZE_W));
}
