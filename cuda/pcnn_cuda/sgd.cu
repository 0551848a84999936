// sgd.cu - stochastic gradient descent with momentum and weight decay
//
// Computes   velocity[i]  = momentum * velocity[i] + (grad[i] + weight_decay * parameter[i])
//            parameter[i] = parameter[i] - learning_rate[0] * velocity[i]
//            joined: before that, for each row of joins (FIRST_BLOCK, FIRST, COUNT, SPLITS, SLICES, PARTIALS) and i from
//            FIRST on, grad[i] = sum over split of the partial gradient at PARTIALS + split * COUNT + i - FIRST
// Shapes     grad, velocity, parameter (count)   learning_rate (1)   joins (JOINS, 6) int32   memory: what holds the
//            partial gradients, PARTIALS counts 64 floats; float32, contiguous
// Launch     update: one thread a parameter, launch.linear(count)
//            joined: UPDATE_THREADS a block; a row's blocks take UPDATE_THREADS / SLICES parameters each and SLICES threads
//            a parameter; from block first_plain on, one thread a parameter that is in no row
// Traffic    reads 12*count and writes 8*count bytes; joined reads 4*SPLITS*COUNT more a row and writes 4*COUNT; bound by
//            bandwidth, for small layers by the launch
// Limits     count < 2^31 (32-bit indices); SLICES a power of two
// Repeats    bitwise: each parameter is its own; splits are added in a fixed order
// Reference  baseline/pcnn_baseline/sgd.py, compared by pcnn_bench/verify.py
// Idea       the learning rate lies in device memory, so that it can change without binding the launch anew. What adds up
//            the parts of a gradient has it in a register when it is needed: the launch that updates does it on its way

#define UPDATE_THREADS 256
enum { FIRST_BLOCK, FIRST, COUNT, SPLITS, SLICES, PARTIALS, COLUMNS };

__device__ __forceinline__ void move(
    float grad, float learning_rate, float* velocity, float* parameter, float momentum, float weight_decay, int i)
{
    const float moved = momentum * velocity[i] + (grad + weight_decay * parameter[i]);
    velocity[i] = moved;
    parameter[i] -= learning_rate * moved;
}

extern "C" __global__ void sgd_update(
    const float* __restrict__ grad, const float* __restrict__ learning_rate,
    float* __restrict__ velocity, float* __restrict__ parameter,
    float momentum, float weight_decay, int count)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) move(grad[i], learning_rate[0], velocity, parameter, momentum, weight_decay, i);
}

extern "C" __global__ void __launch_bounds__(UPDATE_THREADS) sgd_update_joined(
    const float* __restrict__ memory, const int* __restrict__ joins, float* __restrict__ grad,
    const float* __restrict__ learning_rate, float* __restrict__ velocity, float* __restrict__ parameter,
    float momentum, float weight_decay, int count, int join_count, int first_plain)
{
    __shared__ float sums[UPDATE_THREADS];
    const int block = blockIdx.x;
    if (block >= first_plain) {
        const int i = (block - first_plain) * UPDATE_THREADS + threadIdx.x;
        bool is_plain = i < count;
        for (int row = 0; row < join_count; ++row) {
            const int* join = joins + row * COLUMNS;
            if (i >= join[FIRST] && i < join[FIRST] + join[COUNT]) is_plain = false;
        }
        if (is_plain) move(grad[i], learning_rate[0], velocity, parameter, momentum, weight_decay, i);
        return;
    }

    int row = join_count - 1;
    while (block < joins[row * COLUMNS + FIRST_BLOCK]) --row;
    const int* join = joins + row * COLUMNS;
    const int slices = join[SLICES];
    const int width = UPDATE_THREADS / slices;
    const int slice = threadIdx.x / width;
    const int element = (block - join[FIRST_BLOCK]) * width + threadIdx.x % width;
    const bool is_there = element < join[COUNT];
    float sum = 0.0f;
    if (is_there) {
        const float* partials = memory + static_cast<long long>(join[PARTIALS]) * 64 + element;
#pragma unroll 8
        for (int split = slice; split < join[SPLITS]; split += slices) sum += partials[split * join[COUNT]];
    }
    for (int half = slices / 2; half > 0; half /= 2) {  // the same for the whole block
        sums[threadIdx.x] = sum;
        __syncthreads();  // all sums are stored before the lower half adds the upper's
        if (slice < half) sum += sums[threadIdx.x + half * width];
        __syncthreads();  // the upper half is read before it is overwritten
    }
    if (slice > 0 || !is_there) return;
    const int i = join[FIRST] + element;
    grad[i] = sum;
    move(sum, learning_rate[0], velocity, parameter, momentum, weight_decay, i);
}
