// maxpool2d.cu - the largest value of each window, one thread an output, forward and backward
//
// Computes   y[m,p,q] = max over (r,s) of x[m, p*STRIDE_H+r, q*STRIDE_W+s], r < SIZE_H, s < SIZE_W
//            argmax[m,p,q] = r*SIZE_W + s of that maximum
//            grad_x[m,h,w] = sum of grad_y over the windows whose maximum lies at (h,w)
// Shapes     x, grad_x (M,H,W)   y, grad_y, argmax (M,P,Q)   M = N*C; float32, argmax int32; contiguous
// Launch     forward: one thread an output cell; backward: one thread an input cell; launch.linear
// Traffic    forward reads 4*M*H*W and writes 8*M*P*Q bytes, backward is the mirror image; bound by bandwidth
// Limits     M*H*W < 2^31 (32-bit indices)
// Repeats    bitwise: backward gathers, so windows may overlap without two threads writing one cell
// Ties, NaN  the first maximum in row order wins; a NaN beats every number (as numpy.argmax)
// Reference  baseline/pcnn_baseline/maxpool2d.py, compared by pcnn_bench/verify.py
// Idea       saving the position rather than comparing again in backward: common practice

#include "pooling.cuh"

extern "C" __global__ void maxpool2d_forward(
    const float* __restrict__ x, float* __restrict__ y, int* __restrict__ argmax,
    int M, int H, int W, int P, int Q)
{
    const int out = blockIdx.x * blockDim.x + threadIdx.x;
    if (out >= M * P * Q) return;

    const int q = out % Q;
    const int p = out / Q % P;
    const float* window = x + (out / (Q * P) * H + p * STRIDE_H) * W + q * STRIDE_W;
    float best = window[0];
    int best_cell = 0;
    for (int r = 0; r < SIZE_H; ++r) {
        for (int s = 0; s < SIZE_W; ++s) {
            const float value = window[r * W + s];
            const bool first_nan = value != value && best == best;
            if (value > best || first_nan) {
                best = value;
                best_cell = r * SIZE_W + s;
            }
        }
    }
    y[out] = best;
    argmax[out] = best_cell;
}

extern "C" __global__ void maxpool2d_backward(
    const float* __restrict__ grad_y, const int* __restrict__ argmax, float* __restrict__ grad_x,
    int M, int H, int W, int P, int Q)
{
    const int in = blockIdx.x * blockDim.x + threadIdx.x;
    if (in >= M * H * W) return;

    const int w = in % W;
    const int h = in / W % H;
    const int map = in / (W * H) * P * Q;
    const Windows rows = windows_over(h, SIZE_H, STRIDE_H, P);
    const Windows columns = windows_over(w, SIZE_W, STRIDE_W, Q);
    float sum = 0.0f;
    for (int p = rows.first; p < rows.end; ++p) {
        for (int q = columns.first; q < columns.end; ++q) {
            const int cell = (h - p * STRIDE_H) * SIZE_W + (w - q * STRIDE_W);
            if (argmax[map + p * Q + q] == cell) sum += grad_y[map + p * Q + q];
        }
    }
    grad_x[in] = sum;
}
