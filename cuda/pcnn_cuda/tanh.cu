// tanh.cu - the tanh activation, one thread an element, forward and backward
//
// Computes   y = tanh(x)
//            grad_x = grad_y * (1 - y*y)
// Shapes     x, y, grad_y, grad_x (count): the arrays' shape does not matter; float32, contiguous
// Launch     one thread an element: launch.linear(count); no shared memory
// Traffic    forward reads and writes 4*count bytes each, backward reads 8*count and writes 4*count; the special functions and bandwidth share the bound
// Limits     count < 2^31 (32-bit indices)
// Repeats    bitwise: each element is its own
// Reference  baseline/pcnn_baseline/tanh.py, compared by pcnn_bench/verify.py
// Idea       backward needs y alone, so y may overwrite x, and grad_x may overwrite grad_y: no __restrict__ here

extern "C" __global__ void tanh_forward(const float* x, float* y, int count)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;

    y[i] = tanhf(x[i]);
}

extern "C" __global__ void tanh_backward(const float* y, const float* grad_y, float* grad_x, int count)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;

    grad_x[i] = grad_y[i] * (1.0f - y[i] * y[i]);
}
