// planted.cu - two faulty kernels, so that a checker which finds nothing is known to be looking

extern "C" __global__ void planted_out_of_bounds(float* y)
{
    y[blockIdx.x * blockDim.x + threadIdx.x + 1] = 1.0f;  // the last thread writes past the end
}

extern "C" __global__ void planted_race(float* y)
{
    __shared__ float values[64];
    values[threadIdx.x] = 1.0f;
    y[threadIdx.x] = values[63 - threadIdx.x];  // no barrier between the write and another thread's read
}
