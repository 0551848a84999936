// dense_head_error.cuh - a block's errors back through the layers
//
// Repeats    bitwise, also for another number of images a block: groups share the units, their sums are added in order
// Idea       a thread owns VECTOR neighbouring features of all images, so that the rows of weights are read as they lie;
//            with few features the units are shared among groups of threads, which needs one more barrier, no shuffles

#pragma once

#include "dense_head.cuh"

template <int LAYER>
struct Columns {
    using L = Layer<LAYER>;
    static constexpr int LANES = lesser(L::VECTORS, THREADS);  // threads across the features
    static constexpr int GROUPS = lesser(THREADS / LANES, L::K);
    static constexpr int TERMS = ceil_div(L::K, GROUPS);  // of a thread's sum
    static constexpr int LOADS = lesser(TERMS, 4);        // on their way together
    static_assert(GROUPS * padded(L::F) <= CELLS, "the groups' sums of an image fit");
};

// The weights of LOADS units from term `term` of a group on, for one vector of features; others are left as they were.
template <int LAYER>
__device__ __forceinline__ void load_terms(
    float (&weights)[Columns<LAYER>::LOADS][Layer<LAYER>::VECTOR], const float* parameter, int column, int group, int term)
{
    using L = Layer<LAYER>;
#pragma unroll
    for (int i = 0; i < Columns<LAYER>::LOADS; ++i) {
        const int k = group + (term + i) * Columns<LAYER>::GROUPS;
        if (k < L::K) load_cells<L::VECTOR, L::VECTOR>(weights[i], parameter + L::WEIGHT + k * L::F + column * L::VECTOR);
    }
}

// The groups' sums of error times weight, for each image and feature.
template <int LAYER, int IMAGES>
__device__ __forceinline__ void sum_errors(const Block<IMAGES>& block, const float* parameter)
{
    using L = Layer<LAYER>;
    using C = Columns<LAYER>;
    const int lane = threadIdx.x % C::LANES;
    const int group = threadIdx.x / C::LANES;
    const bool is_busy = group < C::GROUPS;
    float weights[C::LOADS][L::VECTOR] = {};
    float ahead[C::LOADS][L::VECTOR] = {};
    if (is_busy) load_terms<LAYER>(weights, parameter, lane, group, 0);
    __syncthreads();  // the errors above are complete, and nobody reads what lies at the place of the sums
    if (!is_busy) return;

    for (int column = lane; column < L::VECTORS; column += C::LANES) {
        if (column != lane) load_terms<LAYER>(weights, parameter, column, group, 0);
        float sum[IMAGES][L::VECTOR] = {};
#pragma unroll 2
        for (int term = 0; term < C::TERMS; term += C::LOADS) {
            load_terms<LAYER>(ahead, parameter, column, group, term + C::LOADS);
#pragma unroll
            for (int j = 0; j < C::LOADS; ++j) {
                const int k = group + (term + j) * C::GROUPS;
                if (k >= L::K) continue;
                float errors[IMAGES];
                load_cells<vector_width(IMAGES), IMAGES>(errors, block.errors + (L::PLACE + k) * IMAGES);
#pragma unroll
                for (int i = 0; i < IMAGES; ++i) {
#pragma unroll
                    for (int v = 0; v < L::VECTOR; ++v) sum[i][v] += errors[i] * weights[j][v];
                }
            }
#pragma unroll
            for (int j = 0; j < C::LOADS; ++j) {
#pragma unroll
                for (int v = 0; v < L::VECTOR; ++v) weights[j][v] = ahead[j][v];
            }
        }
#pragma unroll
        for (int i = 0; i < IMAGES; ++i) {
            float* sums = block.cells + (group * IMAGES + i) * padded(L::F) + column * L::VECTOR;
            store_cells<L::VECTOR, L::VECTOR>(sums, sum[i], L::VECTOR);
        }
    }
}

template <int LAYER, int IMAGES>
__device__ __forceinline__ void backward_layer(
    const Block<IMAGES>& block, const float* parameter, float* saved_errors, float* grad_x)
{
    using L = Layer<LAYER>;
    sum_errors<LAYER>(block, parameter);
    __syncthreads();  // every group's sums are stored before they are added
    for (int output = threadIdx.x; output < IMAGES * L::F; output += THREADS) {
        const int image = output / L::F;
        const int f = output % L::F;
        const float* sums = block.cells + image * padded(L::F) + f;
        float grad = sums[0];
#pragma unroll 8
        for (int group = 1; group < Columns<LAYER>::GROUPS; ++group) grad += sums[group * IMAGES * padded(L::F)];
        if constexpr (LAYER == 1) {
            if (image < block.count) grad_x[(block.n0 + image) * L::F + f] = grad;
        } else {
            using Below = Layer<LAYER - 1>;
            const float error = error_as(Below::KIND, grad, block.units[image * PITCH + Below::PLACE + f]);
            block.errors[(Below::PLACE + f) * IMAGES + image] = error;
            if (image < block.count) saved_errors[(block.n0 + image) * PITCH + Below::PLACE + f] = error;
        }
    }
}

template <int LAYER, int IMAGES>
__device__ __forceinline__ void backward_layers(
    const Block<IMAGES>& block, const float* parameter, float* saved_errors, float* grad_x)
{
    if constexpr (LAYER > 1 || NEEDS_GRAD_X) backward_layer<LAYER>(block, parameter, saved_errors, grad_x);
    if constexpr (LAYER > 1) backward_layers<LAYER - 1>(block, parameter, saved_errors, grad_x);
}
