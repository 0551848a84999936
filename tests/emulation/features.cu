// features.cu - every part of CUDA C++ that the emulation knows, used rightly: no report, and results that Python knows

#include "features.cuh"

#ifndef SCALE
#error "compile with -DSCALE=<int>"
#endif

__constant__ float offsets[4] = {0.0f, 1.0f, 2.0f, 3.0f};

extern "C" __global__ void __launch_bounds__(256) axpy(
    const float* __restrict__ x, float* __restrict__ y, float a, int M)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= M) return;
    y[i] = SCALE * a * __ldg(&x[i]) + offsets[i % 4];
}

// index of each thread in a grid of 3 x 2 x 2 blocks of 5 x 3 x 2 threads
extern "C" __global__ void number_threads(int* y) {
    const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    y[block * blockDim.x * blockDim.y * blockDim.z + thread] = 1000 * block + thread;
}

// y[b] = sum of the b-th 128 elements, twice over
extern "C" __global__ void sum_rows(const float* __restrict__ x, float* __restrict__ y) {
    const float value = x[blockIdx.x * 128 + threadIdx.x];
    const float first = block_sum(value);
    const float second = block_sum(2.0f * value);
    if (threadIdx.x == 0) y[blockIdx.x] = first + second;
}

// the total of x (M) by the block that finishes last
extern "C" __global__ void sum_in_last_block(
    const float* __restrict__ x, float* partial, int* finished, float* y, int M)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const float sum = block_sum(i < M ? x[i] : 0.0f);
    if (threadIdx.x > 0) return;
    partial[blockIdx.x] = sum;
    __threadfence();  // the partial sum is seen by all before the count
    if (atomicAdd(finished, 1) < gridDim.x - 1) return;
    float total = 0.0f;
    for (int block = 0; block < gridDim.x; ++block) total += partial[block];
    y[0] = total;
}

// 16 x 16 tiles; grid (M / 16, M / 16), block (16, 16)
extern "C" __global__ void transpose(const float* __restrict__ x, float* __restrict__ y, int M) {
    __shared__ float tile[16][16 + 1];
    tile[threadIdx.y][threadIdx.x] = x[(blockIdx.y * 16 + threadIdx.y) * M + blockIdx.x * 16 + threadIdx.x];
    __syncthreads();  // tile complete
    y[(blockIdx.x * 16 + threadIdx.y) * M + blockIdx.y * 16 + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}

// histogram of 8-bit values, first per block; dynamic shared memory: 256 ints
extern "C" __global__ void histogram(const unsigned char* __restrict__ x, int* counts, int M) {
    extern __shared__ int block_counts[];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) block_counts[i] = 0;
    __syncthreads();  // all zero
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < M; i += gridDim.x * blockDim.x) {
        atomicAdd(&block_counts[x[i]], 1);
    }
    __syncthreads();  // all counted
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&counts[i], block_counts[i]);
}

// y[0..5]: the extremes and the sum of x (M), by atomics only
extern "C" __global__ void atomics(const int* __restrict__ x, int* y, float* sum, int M) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= M) return;
    atomicMax(&y[0], x[i]);
    atomicMin(&y[1], x[i]);
    atomicAdd(&y[2], x[i]);
    atomicSub(&y[3], x[i]);
    if (atomicCAS(&y[4], 0, 1) == 0) atomicExch(&y[5], 77);
    atomicAdd(sum, x[i]);
}

// one warp: exchanges of every kind, for each of 9 rows of 32
extern "C" __global__ void warp_exchange(int* y) {
    const int lane = threadIdx.x;
    y[0 * 32 + lane] = __shfl_sync(0xFFFFFFFFu, lane, 5);
    y[1 * 32 + lane] = __shfl_sync(0xFFFFFFFFu, lane, 3, 8);
    y[2 * 32 + lane] = __shfl_up_sync(0xFFFFFFFFu, lane, 2);
    y[3 * 32 + lane] = __shfl_down_sync(0xFFFFFFFFu, lane, 3, 16);
    y[4 * 32 + lane] = __shfl_xor_sync(0xFFFFFFFFu, lane, 9);
    y[5 * 32 + lane] = __ballot_sync(0xFFFFFFFFu, lane % 3 == 0);
    y[6 * 32 + lane] = 2 * __any_sync(0xFFFFFFFFu, lane == 31) + __all_sync(0xFFFFFFFFu, lane < 31);
    // halves of the warp go separate ways
    if (lane < 16) {
        y[7 * 32 + lane] = __shfl_xor_sync(0x0000FFFFu, lane, 1);
        y[7 * 32 + lane] += __shfl_xor_sync(0x0000FFFFu, 100 * lane, 2);
    } else {
        y[7 * 32 + lane] = __ballot_sync(0xFFFF0000u, lane % 2);
    }
    // warp-synchronous: shared memory written and read by one warp, ordered by __syncwarp alone
    __shared__ int row[32];
    row[lane] = lane;
    __syncwarp();
    const int mirrored = row[31 - lane];
    __syncwarp();
    row[lane] = mirrored;
    y[8 * 32 + lane] = row[lane];
}

extern "C" __global__ void vectors(const float* __restrict__ x, float* __restrict__ y, int M) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (4 * i >= M) return;
    const float4 v = reinterpret_cast<const float4*>(x)[i];
    const float2 low = make_float2(v.x, v.y);
    const int4 rounded = make_int4(rintf(v.x), rintf(v.y), rintf(v.z), rintf(v.w));
    const uchar4 bytes = make_uchar4(1, 2, 3, 4);
    reinterpret_cast<float4*>(y)[i] = make_float4(low.x + rounded.x, low.y + bytes.y, v.z + bytes.z, v.w + rounded.w);
}

// y (12, M): functions of x (M)
extern "C" __global__ void functions(const float* __restrict__ x, float* __restrict__ y, int M) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= M) return;
    const float v = x[i];
    y[0 * M + i] = tanhf(v);
    y[1 * M + i] = expf(v);
    y[2 * M + i] = logf(fabsf(v));
    y[3 * M + i] = __expf(v);
    y[4 * M + i] = rsqrtf(fabsf(v));
    y[5 * M + i] = fmaf(v, v, 1.0f);
    y[6 * M + i] = fmaxf(v, 0.5f);
    y[7 * M + i] = fminf(v, 0.5f);
    y[8 * M + i] = max(i, 3);
    y[9 * M + i] = min(i, 3u);
    y[10 * M + i] = sqrtf(fabsf(v));
    y[11 * M + i] = isnan(v) ? 1.0f : 0.0f;
}
