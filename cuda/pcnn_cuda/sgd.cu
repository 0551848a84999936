// sgd.cu - stochastic gradient descent with momentum and weight decay
//
// Computes   velocity[i]  = momentum * velocity[i] + (grad[i] + weight_decay * parameter[i])
//            parameter[i] = parameter[i] - learning_rate[0] * velocity[i]
//            joined: before that, for each row of joins (FIRST_BLOCK, FIRST, COUNT, SPLITS, LOG2_SLICES, PARTIALS) and i from
//            FIRST on, grad[i] = sum over split of the partial gradient at PARTIALS + split * COUNT + i - FIRST
// Shapes     grad, velocity, parameter (count)   learning_rate (1)   joins (JOINS, 6) int32   memory: what holds the
//            partial gradients, PARTIALS counts 64 floats; float32, contiguous
// Launch     update: one thread a parameter, launch.linear(count)
//            joined: UPDATE_THREADS a block; with SLICES = 2^LOG2_SLICES, a row's blocks take UPDATE_THREADS / SLICES
//            parameters each and SLICES threads a parameter; from block first_plain on, one thread a parameter that is in no row
// Traffic    reads 12*count and writes 8*count bytes; joined reads 4*SPLITS*COUNT a row in place of the gradient's 4*COUNT,
//            which it writes; bound by bandwidth, for small layers by the launch
// Limits     count < 2^31 (32-bit indices)
// Repeats    bitwise: each parameter is its own; splits are added in a fixed order
// Reference  baseline/pcnn_baseline/sgd.py, compared by pcnn_bench/verify.py
// Idea       the learning rate lies in device memory, so that it can change without binding the launch anew. What adds up
//            the parts of a gradient has it in a register when it is needed: the launch that updates does it on its way

#include "follow.cuh"

#define UPDATE_THREADS 256
enum { FIRST_BLOCK, FIRST, COUNT, SPLITS, LOG2_SLICES, PARTIALS, COLUMNS };

struct Moving {
    float velocity, parameter, learning_rate;
};

__device__ __forceinline__ void move(
    float grad, const Moving& old, float* velocity, float* parameter, float momentum, float weight_decay, int i)
{
    const float moved = momentum * old.velocity + (grad + weight_decay * old.parameter);
    velocity[i] = moved;
    parameter[i] = old.parameter - old.learning_rate * moved;
}

extern "C" __global__ void sgd_update(
    const float* __restrict__ grad, const float* __restrict__ learning_rate,
    float* __restrict__ velocity, float* __restrict__ parameter,
    float momentum, float weight_decay, int count)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const bool is_there = i < count;
    const Moving old = is_there ? Moving{velocity[i], parameter[i], learning_rate[0]} : Moving{};
    follow();
    if (is_there) move(grad[i], old, velocity, parameter, momentum, weight_decay, i);
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
        const Moving old = is_plain ? Moving{velocity[i], parameter[i], learning_rate[0]} : Moving{};
        follow();
        if (is_plain) move(grad[i], old, velocity, parameter, momentum, weight_decay, i);
        return;
    }

    int row = join_count - 1;
    while (block < joins[row * COLUMNS + FIRST_BLOCK]) --row;
    const int* join = joins + row * COLUMNS;
    const int slices = 1 << join[LOG2_SLICES];
    const int width = UPDATE_THREADS >> join[LOG2_SLICES];  // parameters of the block
    const int slice = threadIdx.x * slices / UPDATE_THREADS;
    const int place = threadIdx.x & (width - 1);
    const int element = (block - join[FIRST_BLOCK]) * width + place;
    const bool is_there = element < join[COUNT];
    const int i = join[FIRST] + element;
    const bool is_mine = is_there && slice == 0;
    const Moving old = is_mine ? Moving{velocity[i], parameter[i], learning_rate[0]} : Moving{};

    follow();
    float sum = 0.0f;
    if (is_there) {
        const float* partials = memory + static_cast<long long>(join[PARTIALS]) * 64 + element;
        for (int first = slice; first < join[SPLITS]; first += 8 * slices) {
            float values[8];  // on their way together, also where there are fewer
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                const int split = first + k * slices;
                values[k] = split < join[SPLITS] ? partials[split * join[COUNT]] : 0.0f;
            }
#pragma unroll
            for (int k = 0; k < 8; ++k) sum += values[k];
        }
    }
    for (int offset = 16; offset >= width; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (slices > 1) {  // the same for the whole block
        const int group_size = width > 32 ? width : 32;
        const int group = width > 32 ? slice : threadIdx.x / 32;
        if (threadIdx.x % group_size < width) sums[group * width + place] = sum;
        __syncthreads();  // every group's sums are stored before the first adds them
        if (is_mine) {
            for (int other = 1; other < UPDATE_THREADS / group_size; ++other) sum += sums[other * width + place];
        }
    }
    if (!is_mine) return;
    grad[i] = sum;
    move(sum, old, velocity, parameter, momentum, weight_decay, i);
}
