// dense_head_forward.cuh - a block's images through the layers and the loss
//
// Repeats    bitwise, also for another number of images a block: lanes sum their features in order, a tree joins them
// Idea       a warp computes ROWS units of all images at a time: its lanes read whole rows of weights, so that loads are
//            coalesced and each number serves every image. The first weights of a layer do not depend on the layer below
//            and are on their way while the block waits for it

#pragma once

#include "dense_head.cuh"
#include "follow.cuh"
#include "warp_reduce.cuh"

// The sums over the lanes of COUNT values, a power of two up to 32: lane l gets that of value l / (32 / COUNT). Each
// exchange halves the values that a lane carries.
template <int COUNT, int OFFSET = 16>
__device__ __forceinline__ float warp_sums(const float (&values)[COUNT], int lane)
{
    if constexpr (OFFSET == 0) {
        return values[0];
    } else if constexpr (COUNT == 1) {
        const float sum[1] = {values[0] + __shfl_xor_sync(0xffffffffu, values[0], OFFSET)};
        return warp_sums<1, OFFSET / 2>(sum, lane);
    } else {
        const bool is_upper = lane & OFFSET;
        float sums[COUNT / 2];
#pragma unroll
        for (int i = 0; i < COUNT / 2; ++i) {
            const float kept = is_upper ? values[COUNT / 2 + i] : values[i];
            const float given = is_upper ? values[i] : values[COUNT / 2 + i];
            sums[i] = kept + __shfl_xor_sync(0xffffffffu, given, OFFSET);
        }
        return warp_sums<COUNT / 2, OFFSET / 2>(sums, lane);
    }
}

// Units that a warp computes at a time: as many as leave no warp idle, and at most the 4 that a lane has registers for.
__host__ __device__ constexpr int rows_for(int units) { return units > 2 * WARPS ? 4 : units > WARPS ? 2 : 1; }

// x into shared memory; no barrier.
template <int IMAGES>
__device__ __forceinline__ void stage_images(const Block<IMAGES>& block, const float* x)
{
    constexpr int VECTOR = vector_width(FEATURES);
    constexpr int VECTORS = FEATURES / VECTOR;
#pragma unroll 4
    for (int i = threadIdx.x; i < IMAGES * VECTORS; i += THREADS) {
        const int image = i / VECTORS;
        const int f = i % VECTORS * VECTOR;
        float cells[VECTOR];
        load_cells<VECTOR, VECTOR>(cells, x + (block.n0 + min(image, block.count - 1)) * FEATURES + f);
        store_cells<VECTOR, VECTOR>(block.cells + image * INPUT_PITCH + f, cells, VECTOR);
    }
}

// A lane's part of ROWS rows of weights, from vector `lane` of step `step` on; what does not exist is left as it was.
template <int LAYER, int ROWS>
__device__ __forceinline__ void load_rows(
    float (&weights)[ROWS][Layer<LAYER>::VECTOR], const float* parameter, int k0, int step, int lane)
{
    using L = Layer<LAYER>;
    const int vector = step * 32 + lane;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (vector >= L::VECTORS || k0 + r >= L::K) continue;
        load_cells<L::VECTOR, L::VECTOR>(weights[r], parameter + L::WEIGHT + (k0 + r) * L::F + vector * L::VECTOR);
    }
}

template <int LAYER, int IMAGES>
__device__ __forceinline__ void forward_layer(
    const Block<IMAGES>& block, const float* x, const float* parameter, float* saved_units)
{
    using L = Layer<LAYER>;
    constexpr int ROWS = rows_for(L::K);
    constexpr int STEPS = ceil_div(L::VECTORS, 32);
    constexpr int SHARE = 32 / (IMAGES * ROWS);  // lanes that get the same sum
    constexpr int IN_PITCH = LAYER == 1 ? INPUT_PITCH : PITCH;
    const float* in = LAYER == 1 ? block.cells : block.units + place_of(LAYER - 1);
    const int lane = threadIdx.x % 32;
    const int image = lane / SHARE / ROWS;  // of the sum that the lane gets
    const int row = lane / SHARE % ROWS;
    const auto bias_of = [&](int k) { return k < L::K ? parameter[L::BIAS + k] : 0.0f; };

    float weights[ROWS][L::VECTOR] = {};
    float ahead[ROWS][L::VECTOR] = {};
    int k0 = threadIdx.x / 32 * ROWS;
    load_rows<LAYER, ROWS>(weights, parameter, k0, 0, lane);
    float bias = bias_of(k0 + row);
    if constexpr (LAYER == 1) {
        follow();
        stage_images(block, x);
    }
    __syncthreads();  // the layer's input is complete before anyone reads it

    for (; k0 < L::K; k0 += WARPS * ROWS) {
        float sum[IMAGES * ROWS] = {};
#pragma unroll 2
        for (int step = 0; step < STEPS; ++step) {
            const bool is_last = step + 1 == STEPS;
            load_rows<LAYER, ROWS>(ahead, parameter, is_last ? k0 + WARPS * ROWS : k0, is_last ? 0 : step + 1, lane);
            const int vector = step * 32 + lane;
            if (vector < L::VECTORS) {
#pragma unroll
                for (int i = 0; i < IMAGES; ++i) {
                    float cells[L::VECTOR];
                    load_cells<L::VECTOR, L::VECTOR>(cells, in + i * IN_PITCH + vector * L::VECTOR);
#pragma unroll
                    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
                        for (int v = 0; v < L::VECTOR; ++v) sum[i * ROWS + r] += weights[r][v] * cells[v];
                    }
                }
            }
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
#pragma unroll
                for (int v = 0; v < L::VECTOR; ++v) weights[r][v] = ahead[r][v];
            }
        }
        const float total = warp_sums(sum, lane);
        const int k = k0 + row;
        if (lane % SHARE == 0 && k < L::K) {
            const float y = activate_as(L::KIND, total + bias);
            block.units[image * PITCH + L::PLACE + k] = y;
            if (LAYER < LAYERS && image < block.count) saved_units[(block.n0 + image) * HIDDEN_PITCH + L::PLACE + k] = y;
        }
        bias = bias_of(k + WARPS * ROWS);
    }
}

template <int LAYER, int IMAGES>
__device__ __forceinline__ void forward_layers(
    const Block<IMAGES>& block, const float* x, const float* parameter, float* saved_units)
{
    forward_layer<LAYER>(block, x, parameter, saved_units);
    if constexpr (LAYER < LAYERS) forward_layers<LAYER + 1>(block, x, parameter, saved_units);
}

// Loss, prediction and the last layer's errors of the image of this warp; `loss` points to that of the batch's first image.
template <int IMAGES>
__device__ __forceinline__ void finish_image(
    const Block<IMAGES>& block, int image, int target, float* loss, int* prediction, float* saved_errors, int N)
{
    using L = Layer<LAYERS>;
    const int lane = threadIdx.x % 32;
    const int n = block.n0 + image;
    const bool exists = image < block.count;
    const float* scores = block.units + image * PITCH + L::PLACE;
    const Largest best = largest_of_row(scores, L::K, lane);
    const auto store = [&](int k, float grad) {
        const float error = error_as(L::KIND, grad, scores[k]);
        block.errors[(L::PLACE + k) * IMAGES + image] = error;
        if (exists) saved_errors[n * PITCH + L::PLACE + k] = error;
    };

    float sum = 0.0f;
    if (LOSS == SOFTMAX_CROSS_ENTROPY) {
        for (int k = lane; k < L::K; k += 32) sum += expf(scores[k] - best.value);
        sum = warp_sum(sum);
        for (int k = lane; k < L::K; k += 32) {
            const float probability = expf(scores[k] - best.value) / sum;
            store(k, (probability - (k == target ? 1.0f : 0.0f)) / N);
        }
    } else {
        for (int k = lane; k < L::K; k += 32) {
            const float difference = scores[k] - (k == target ? 1.0f : 0.0f);
            sum += difference * difference;
            store(k, 2.0f * difference / ((float)N * L::K));
        }
        sum = warp_sum(sum);
    }
    if (lane == 0 && exists) {
        loss[n] = LOSS == SOFTMAX_CROSS_ENTROPY ? logf(sum) + (best.value - scores[target]) : sum / L::K;
        prediction[n] = best.index;
    }
}
