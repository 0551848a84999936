// dense_head.cuh - the layers' sizes, and where their numbers lie in the arrays and in shared memory
//
// Idea       layer 0 is x, layers 1 .. LAYERS are the fully connected ones. Rows of `units` and `errors`, in global and in
//            shared memory, hold the layers side by side, each rounded up to whole vectors, so that every layer's part may
//            be loaded four numbers at a time; parameters lie unpadded, weight and bias of one layer after another

#pragma once

#include "activation.cuh"
#include "tile.cuh"

#if !defined(LAYERS) || !defined(FEATURES) || !defined(UNITS_1) || !defined(UNITS_2) || !defined(UNITS_3)
#error "compile with -DLAYERS= -DFEATURES= -DUNITS_1= .. -DUNITS_3=, 0 for no layer; the host takes them from the layers"
#endif
#if !defined(ACTIVATION_1) || !defined(ACTIVATION_2) || !defined(ACTIVATION_3) || !defined(LOSS) || !defined(NEEDS_GRAD_X)
#error "compile with -DACTIVATION_1= .. -DACTIVATION_3= -DLOSS= -DNEEDS_GRAD_X=; the host takes them from the layers"
#endif
#if !defined(THREADS) || !defined(IMAGE_FLOATS) || !defined(EDGE) || !defined(DEPTH)
#error "compile with -DTHREADS= -DIMAGE_FLOATS= -DEDGE= -DDEPTH=; the host takes them from dense_head.py"
#endif

// To whole vectors.
__host__ __device__ constexpr int padded(int count) { return ceil_div(count, 4) * 4; }

__host__ __device__ constexpr int units_of(int layer)
{
    return layer == 0 ? FEATURES : layer == 1 ? UNITS_1 : layer == 2 ? UNITS_2 : UNITS_3;
}

__host__ __device__ constexpr int activation_of(int layer)
{
    return layer == 1 ? ACTIVATION_1 : layer == 2 ? ACTIVATION_2 : ACTIVATION_3;
}

// Where a layer's part of a row begins.
__host__ __device__ constexpr int place_of(int layer)
{
    return layer <= 1 ? 0 : place_of(layer - 1) + padded(units_of(layer - 1));
}

// Where a layer's parameters begin.
__host__ __device__ constexpr int parameters_before(int layer)
{
    return layer <= 1 ? 0 : parameters_before(layer - 1) + units_of(layer - 1) * (units_of(layer - 2) + 1);
}

template <int LAYER>
struct Layer {
    static constexpr int F = units_of(LAYER - 1);
    static constexpr int K = units_of(LAYER);
    static constexpr int KIND = activation_of(LAYER);
    static constexpr int PLACE = place_of(LAYER);
    static constexpr int WEIGHT = parameters_before(LAYER);
    static constexpr int BIAS = WEIGHT + K * F;
    static constexpr int VECTOR = vector_width(WEIGHT, F);  // cells that one load may bring of a row of weights
    static constexpr int VECTORS = F / VECTOR;
};

constexpr int PARAMETERS = parameters_before(LAYERS + 1);
constexpr int HIDDEN_PITCH = place_of(LAYERS);       // of a row of units in global memory, which leaves the scores out
constexpr int PITCH = place_of(LAYERS + 1);          // of a row of errors, and of units in shared memory
constexpr int INPUT_PITCH = padded(FEATURES);
constexpr int WARPS = THREADS / 32;

__host__ __device__ constexpr int larger(int a, int b) { return a > b ? a : b; }
__host__ __device__ constexpr int lesser(int a, int b) { return a < b ? a : b; }
// Floats of the place for x, and later for sums of groups of threads; an image.
constexpr int CELLS = larger(larger(4 * THREADS, INPUT_PITCH), larger(padded(UNITS_1), padded(UNITS_2)));
static_assert(CELLS + 2 * PITCH == IMAGE_FLOATS, "the host's arithmetic is the kernels'");

// What a block of the step works on. `units` is (IMAGES, PITCH), `errors` (PITCH, IMAGES), so that the errors of all images
// for one unit come together; `cells` is x (IMAGES, INPUT_PITCH), then sums (groups, IMAGES, features).
template <int IMAGES>
struct Block {
    float* cells;
    float* units;
    float* errors;
    int n0;     // the first image; those beyond the last are computed as it, and not stored
    int count;  // images that exist
};

template <int IMAGES>
__device__ __forceinline__ Block<IMAGES> make_block(float* memory, int N)
{
    const int n0 = blockIdx.x * IMAGES;
    float* units = memory + IMAGES * CELLS;
    return {memory, units, units + IMAGES * PITCH, n0, min(IMAGES, N - n0)};
}
