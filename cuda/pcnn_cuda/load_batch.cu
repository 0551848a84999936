// load_batch.cu - the next batch of a data set that lies on the device: gathered, and normalised by table
//
// Computes   with i = order[position[0] + n]:
//            x[n,c,m] = value[c, images[i,c,m]]   label[n] = labels[i]
//            and when the losses are in their place, position[0] += TAKEN, or 0 once the order is used up, and
//            first[0] += N: the place of the next losses in the history
// Shapes     images (I,C,M) uint8, M = H*W   labels (I)   order (COUNT)   value (C,256)   x (N,C,M)   label (N)
//            position, first (1); float32, int32 where not uint8; contiguous
// Launch     gather: one thread an element of x, launch.linear(N*C*M); advance: launch.ONE_THREAD
// Traffic    reads N*C*M bytes and writes 4*N*C*M; bound by bandwidth, for small batches by latency
// Limits     N*C*M < 2^31 (32-bit indices); images may be larger
// Repeats    bitwise: each element is its own; values are those that the host computed
// Reference  pcnn_bench/datasets/__init__.py (Dataset.normalize), compared in tests/test_resident.py and by verify
// Idea       a byte has 256 values a channel: looking them up gives the host's bits, whatever its formula. The position
//            lies on the device, so that a captured step needs nothing from the host

extern "C" __global__ void load_batch_gather(
    const unsigned char* __restrict__ images, const int* __restrict__ labels,
    const int* __restrict__ order, const float* __restrict__ value, const int* __restrict__ position,
    float* __restrict__ x, int* __restrict__ label, int N, int C, int M)
{
    const int out = blockIdx.x * blockDim.x + threadIdx.x;
    if (out >= N * C * M) return;

    const int first = position[0];
    const int n = out / (C * M);
    const int c = out / M % C;
    const long long image = order[first + n];
    x[out] = value[c * 256 + images[image * C * M + out % (C * M)]];
    if (out < N) label[out] = labels[order[first + out]];
}

extern "C" __global__ void load_batch_advance(
    int* __restrict__ position, int* __restrict__ first, int TAKEN, int N, int COUNT)
{
    const int next = position[0] + TAKEN;
    position[0] = next < COUNT ? next : 0;
    first[0] += N;
}
