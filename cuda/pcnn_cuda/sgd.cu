// sgd.cu - stochastic gradient descent with momentum and weight decay, one thread a parameter
//
// Computes   velocity[i]  = momentum * velocity[i] + (grad[i] + weight_decay * parameter[i])
//            parameter[i] = parameter[i] - learning_rate[0] * velocity[i]
// Shapes     grad, velocity, parameter (count)   learning_rate (1); float32, contiguous
// Launch     one thread a parameter: launch.linear(count); no shared memory
// Traffic    reads 12*count and writes 8*count bytes; bound by bandwidth, for small layers by the launch
// Limits     count < 2^31 (32-bit indices)
// Repeats    bitwise: each parameter is its own
// Reference  baseline/pcnn_baseline/sgd.py, compared by pcnn_bench/verify.py
// Idea       the learning rate lies in device memory, so that it can change without binding the launch anew

extern "C" __global__ void sgd_update(
    const float* __restrict__ grad, const float* __restrict__ learning_rate,
    float* __restrict__ velocity, float* __restrict__ parameter,
    float momentum, float weight_decay, int count)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;

    const float moved = momentum * velocity[i] + (grad[i] + weight_decay * parameter[i]);
    velocity[i] = moved;
    parameter[i] -= learning_rate[0] * moved;
}
