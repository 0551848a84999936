// relu.cu - the relu activation, one thread an element, forward and backward
//
// Computes   y = max(x, 0)
//            grad_x = grad_y where y > 0, else 0
// Shapes     x, y, grad_y, grad_x (count): the arrays' shape does not matter; float32, contiguous
// Launch     one thread an element: launch.linear(count); no shared memory
// Traffic    forward reads and writes 4*count bytes each, backward reads 8*count and writes 4*count; bound by bandwidth
// Limits     count < 2^31 (32-bit indices)
// Repeats    bitwise: each element is its own
// Ties, NaN  a NaN stays a NaN (as numpy.maximum); the derivative at 0 is 0
// Reference  baseline/pcnn_baseline/relu.py, compared by pcnn_bench/verify.py
// Idea       backward needs y alone, so y may overwrite x, and grad_x may overwrite grad_y: no __restrict__ here

extern "C" __global__ void relu_forward(const float* x, float* y, int count)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;

    y[i] = x[i] > 0.0f || x[i] != x[i] ? x[i] : 0.0f;
}

extern "C" __global__ void relu_backward(const float* y, const float* grad_y, float* grad_x, int count)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;

    grad_x[i] = y[i] > 0.0f ? grad_y[i] : 0.0f;
}
