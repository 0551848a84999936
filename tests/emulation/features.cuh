// features.cuh - device functions shared by the kernels of features.cu

#pragma once

template <class T>
__device__ __forceinline__ T warp_sum(T value) {
    #pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(0xFFFFFFFFu, value, offset);
    return value;  // complete in lane 0
}

// Sum over a block of whole warps, in every thread.
__device__ float block_sum(float value) {
    __shared__ float partial[32];
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();  // partial sums complete
    float sum = 0.0f;
    for (int warp = 0; warp < blockDim.x / 32; ++warp) sum += partial[warp];
    __syncthreads();  // all have read, so that the next call may write
    return sum;
}
