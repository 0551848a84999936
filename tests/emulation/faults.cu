// faults.cu - ten kernels, each breaking one rule of CUDA, and one that breaks none; see tests/test_checker.py
//
// Launch     2 blocks of 64 threads; 256 bytes of dynamic shared memory
// Shapes     y (128)
// The lines marked FAULT are those that a report must name.

extern "C" __global__ void well_behaved(float* y) {
    __shared__ float reversed[64];
    reversed[63 - threadIdx.x] = blockIdx.x;
    __syncthreads();  // all written before any is read
    y[blockIdx.x * blockDim.x + threadIdx.x] = reversed[threadIdx.x];
}

extern "C" __global__ void static_shared_overrun(float* y) {
    __shared__ float tile[64], other[64];
    other[threadIdx.x] = 0.0f;
    tile[threadIdx.x + 1] = 1.0f;  // FAULT static_shared_overrun
    __syncthreads();
    y[blockIdx.x * blockDim.x + threadIdx.x] = other[63 - threadIdx.x];
}

extern "C" __global__ void dynamic_shared_overrun(float* y) {
    extern __shared__ float tile[];
    tile[threadIdx.x] = 1.0f;
    __syncthreads();
    y[blockIdx.x * blockDim.x + threadIdx.x] = tile[threadIdx.x + 1];  // FAULT dynamic_shared_overrun
}

extern "C" __global__ void global_overrun(float* y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i + 1] = 1.0f;  // FAULT global_overrun
}

extern "C" __global__ void no_barrier_before_read(float* y) {
    __shared__ float tile[64];
    tile[threadIdx.x] = threadIdx.x;
    y[blockIdx.x * blockDim.x + threadIdx.x] = tile[63 - threadIdx.x];  // FAULT no_barrier_before_read
}

extern "C" __global__ void no_barrier_before_rewrite(float* y) {
    __shared__ float tile[64];
    float sum = 0.0f;
    for (int step = 0; step < 3; ++step) {
        tile[threadIdx.x] = step;  // FAULT no_barrier_before_rewrite
        __syncthreads();
        sum += tile[63 - threadIdx.x];
    }
    y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

extern "C" __global__ void barrier_in_a_branch(float* y) {
    if (threadIdx.x < 48) {
        __syncthreads();  // FAULT barrier_in_a_branch
    }
    y[blockIdx.x * blockDim.x + threadIdx.x] = 1.0f;
}

extern "C" __global__ void two_barriers(float* y) {
    if (threadIdx.x % 2 == 0) {
        __syncthreads();
    } else {
        __syncthreads();  // FAULT two_barriers
    }
    y[blockIdx.x * blockDim.x + threadIdx.x] = 1.0f;
}

extern "C" __global__ void lane_gone_before_shuffle(float* y) {
    if (threadIdx.x % 32 == 7) return;
    const float above = __shfl_down_sync(0xFFFFFFFFu, 1.0f, 1);  // FAULT lane_gone_before_shuffle
    y[blockIdx.x * blockDim.x + threadIdx.x] = above;
}

extern "C" __global__ void blocks_add_to_one_cell(float* y) {
    if (threadIdx.x == 0) {
        y[5] += 1.0f;  // FAULT blocks_add_to_one_cell
    }
}

extern "C" __global__ void unset_shared(float* y) {
    __shared__ float tile[64];
    if (threadIdx.x > 0) tile[threadIdx.x] = 1.0f;
    __syncthreads();
    y[blockIdx.x * blockDim.x + threadIdx.x] = tile[threadIdx.x];  // FAULT unset_shared
}
