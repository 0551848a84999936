// conv2d_act_pool_sum.cuh - adds up the gradients that the splits of the batch left

#pragma once

#include "conv2d_act_pool.cuh"

#ifndef SUM_SLICES
#error "compile with -DSUM_SLICES=<threads that share an element of the splits' sum>; the host chooses it"
#endif

// Adds up one element of all splits' partial gradients, every SUM_SLICES-th of them.
__device__ __forceinline__ float add_splits(const float* partials, int element, int slice, int splits)
{
    float sum = 0.0f;
#pragma unroll 8
    for (int split = slice; split < splits; split += SUM_SLICES) {
        sum += partials[split * (K * C * R * S + K) + element];
    }
    return sum;
}

// Block -> 32 elements of the gradients, SUM_SLICES threads each. What was folded is unfolded: a stored weight's
// gradient is the mean of those of the taps that hold it.
__device__ __forceinline__ void join_splits(
    const float* partials, float* grad_weight, float* grad_bias, int splits, float* sums)
{
    constexpr int COUNT = K * C * STORED;
    const int lane = threadIdx.x % 32;
    const int slice = threadIdx.x / 32;
    const int i = blockIdx.x * 32 + lane;
    float sum = 0.0f;
    if (i >= COUNT && i < COUNT + K) sum = add_splits(partials, K * C * R * S + i - COUNT, slice, splits);
    if (i < COUNT) {
        const int first = (i / STORED * R + i / S_STORED % R_STORED) * S + i % S_STORED;
        for (int row = 0; row < FOLD_H; ++row) {
            for (int column = 0; column < FOLD_W; ++column) {
                const int shift = row * FOLD_STEP_H * S + column * FOLD_STEP_W;
                sum += add_splits(partials, first + shift, slice, splits);
            }
        }
        if (FOLD_H * FOLD_W > 1) sum *= 1.0f / (FOLD_H * FOLD_W);
    }
    sums[slice * 32 + lane] = sum;
    __syncthreads();  // every slice is stored before they are joined
    if (slice != 0 || i >= COUNT + K) return;
    sum = 0.0f;
    for (int other = 0; other < SUM_SLICES; ++other) sum += sums[other * 32 + lane];
    if (i < COUNT) {
        grad_weight[i] = sum;
    } else {
        grad_bias[i - COUNT] = sum;
    }
}
