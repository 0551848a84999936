// block_sum.cuh - the sum of one value a thread over a block, for kernels in which a block owns an output
//
// Launch     every thread of the block must call it; whole warps, at most MAX_BLOCK_THREADS threads
// Repeats    bitwise: the order of the sum is fixed
// Idea       one barrier, then the first warp folds: a tree over all warps would wait at every level

#ifndef MAX_BLOCK_THREADS
#error "compile with -DMAX_BLOCK_THREADS=<most threads a block>; the host takes it from launch.BLOCK_THREADS"
#endif

// Thread 0 gets the sum; what the other threads get means nothing.
__device__ __forceinline__ float block_sum(float value)
{
    __shared__ float values[MAX_BLOCK_THREADS];
    const int thread = threadIdx.x;
    float sum = value;
    if (blockDim.x > 32) {  // the same for the whole block, so all of it meets at the barrier
        values[thread] = value;
        __syncthreads();  // every value is stored before the first warp reads it
        if (thread >= 32) return 0.0f;
        for (int i = thread + 32; i < blockDim.x; i += 32) sum += values[i];
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        sum += __shfl_down_sync(0xffffffffu, sum, offset);
    }
    return sum;
}
