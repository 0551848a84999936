// ceilings.cu - how fast this device copies and multiplies at best: what a step's rates are held against
//
// Computes   copy: PASSES times, target[chunk] = source[(chunk + pass) % CHUNKS] for every chunk, so that in the end
//            target[chunk] = source[(chunk + PASSES - 1) % CHUNKS]
//            fma: y[thread] = sum over CHAINS chains c of (c, then STEPS times x = x * factor + addend); with factor and
//            addend 1 that is CHAINS * (CHAINS - 1) / 2 + CHAINS * STEPS
// Shapes     source, target (CHUNKS, VECTORS, THREADS) float4   y (count); float32, contiguous
// Launch     THREADS a block; copy: any number of blocks, each takes every gridDim-th chunk; fma: one thread an element of
//            y. THREADS, VECTORS (those that a thread has in flight) and CHAINS are compiled in
// Traffic    copy reads and writes 16*CHUNKS*VECTORS*THREADS bytes a pass, bound by bandwidth; fma writes 4 bytes a thread
//            for 2*CHAINS*STEPS operations, bound by arithmetic
// Limits     CHUNKS and PASSES < 2^30; count a multiple of THREADS; the sum is exact below 2^24
// Repeats    bitwise: nothing depends on the order of threads
// Reference  cuda/pcnn_cuda/ceilings.py, which computes the known results and compares all of them
// Idea       one launch makes as many passes as a measurable time needs, so that no time between launches is measured. A
//            pass reads another block's chunk than the one before, so that no multiprocessor finds it in its own cache;
//            source and target might overlap for all that the compiler knows, so that no pass can be left out.
//            Independent chains hide the latency of the multiply-add, whose operands the compiler does not know

#define CHUNK (THREADS * VECTORS)

extern "C" __global__ void __launch_bounds__(THREADS) ceilings_copy(
    const float* source, float* target, int CHUNKS, int PASSES)
{
    for (int pass = 0; pass < PASSES; ++pass) {
        for (int chunk = blockIdx.x; chunk < CHUNKS; chunk += gridDim.x) {
            const long long from = (chunk + pass) % CHUNKS;
            const float4* read = reinterpret_cast<const float4*>(source) + from * CHUNK + threadIdx.x;
            float4* write = reinterpret_cast<float4*>(target) + static_cast<long long>(chunk) * CHUNK + threadIdx.x;
            float4 values[VECTORS];
#pragma unroll
            for (int i = 0; i < VECTORS; ++i) values[i] = read[i * THREADS];
#pragma unroll
            for (int i = 0; i < VECTORS; ++i) write[i * THREADS] = values[i];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) ceilings_fma(
    float* __restrict__ y, float factor, float addend, int STEPS)
{
    float x[CHAINS];
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) x[c] = static_cast<float>(c);
#pragma unroll 16
    for (int step = 0; step < STEPS; ++step) {
#pragma unroll
        for (int c = 0; c < CHAINS; ++c) x[c] = fmaf(x[c], factor, addend);
    }
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) sum += x[c];
    y[blockIdx.x * THREADS + threadIdx.x] = sum;
}
