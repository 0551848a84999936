// warp_reduce.cuh - sums and maxima over the 32 lanes of a warp
//
// Launch     every lane of the warp must call
// Repeats    bitwise: the order is a fixed tree

// The sum, in every lane.
__device__ __forceinline__ float warp_sum(float value)
{
    for (int offset = 16; offset > 0; offset /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    }
    return value;
}

struct Largest {
    float value;
    int index;
};

// The largest of row[0 .. count-1] and where it first stands, in every lane.
__device__ __forceinline__ Largest largest_of_row(const float* __restrict__ row, int count, int lane)
{
    Largest best = {row[0], 0};
    for (int i = lane; i < count; i += 32) {
        if (row[i] > best.value) best = {row[i], i};
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        const float value = __shfl_xor_sync(0xffffffffu, best.value, offset);
        const int index = __shfl_xor_sync(0xffffffffu, best.index, offset);
        if (value > best.value || (value == best.value && index < best.index)) best = {value, index};
    }
    return best;
}
