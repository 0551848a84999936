// block_sum.cuh - the sum of one value a thread over a block of BLOCK_THREADS, for kernels in which a block owns an output
//
// Launch     every thread of the block must call it; BLOCK_THREADS a multiple of 32
// Repeats    bitwise: the order of the sum is fixed
// Idea       one barrier, then the first warp folds: a tree over all warps would wait eight times

#ifndef BLOCK_THREADS
#error "compile with -DBLOCK_THREADS=<threads a block>; the host takes it from launch.BLOCK_THREADS"
#endif
static_assert(BLOCK_THREADS % 32 == 0, "the block is made of whole warps");

// The sum is returned to thread 0; other threads get a partial one.
__device__ __forceinline__ float block_sum(float value)
{
    __shared__ float values[BLOCK_THREADS];
    const int thread = threadIdx.x;
    values[thread] = value;
    __syncthreads();  // every value is stored before the first warp reads it
    if (thread >= 32) return 0.0f;

    float sum = 0.0f;
    for (int i = thread; i < BLOCK_THREADS; i += 32) sum += values[i];
    for (int offset = 16; offset > 0; offset /= 2) {
        sum += __shfl_down_sync(0xffffffffu, sum, offset);
    }
    return sum;
}
