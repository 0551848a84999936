// dense_head.cu - one to three fully connected layers with their activations, and the loss: forward and errors in one launch
//
// Computes   for each layer l, from y of layer 0 = x:
//            z[n,k] = bias[k] + sum over f of y[n,f] weight[k,f], with y of the layer below; y = f(z), f of ACTIVATION_l
//            loss, prediction as softmax_cross_entropy_tuned.cu or mean_squared_error_tuned.cu, from the last y
//            error[n,k] = dloss/dz[n,k]; that of the layer below is the sum over k of error[n,k] weight[k,f], times the
//            derivative, from y; grad_x[n,f] = sum over k of the first layer's error[n,k] weight[k,f]
//            partial[s]: of slice s of the batch, grad_weight[k,f] = sum over n of error[n,k] y[n,f], y of the layer below,
//            and grad_bias[k] = sum over n of error[n,k]; gradient[i] = sum over s of partial[s,i]
// Shapes     x, grad_x (N,FEATURES)   label, prediction (N)   loss (history)   first (1)
//            parameter, gradient (PARAMETERS): weight (K,F), bias (K) of each layer   partial (splits,PARAMETERS)
//            units (N,HIDDEN_PITCH): y of all layers but the last   errors (N,PITCH): each layer rounded up to 4, what lies
//            between is undefined; float32 or int32, contiguous, aligned to 16 bytes; ACTIVATION_l 0 none, 1 tanh, 2 relu,
//            3 sigmoid; LOSS 0 softmax and cross-entropy, 1 mean squared error
// Launch     step_*: ceil(N/IMAGES) blocks of THREADS, for IMAGES of one, two, four or eight; IMAGES * IMAGE_FLOATS floats of
//            dynamic shared memory
//            backward: grid (tiles, slices of slice_size images), blocks of DEPTH * EDGE / 4; a tile is EDGE units by EDGE
//            features, counted layer by layer, the bias being the last feature
//            sum: launch.linear(PARAMETERS)
// Traffic    step reads 4*N*FEATURES + 8*PARAMETERS*ceil(N/IMAGES) bytes, the weights from the second time on out of the L2
//            cache, which is the bound, and writes 4*N*(HIDDEN_PITCH + PITCH + FEATURES); backward reads each operand once a
//            row or column of tiles and writes 4*splits*PARAMETERS: bound by reads of shared memory
// Limits     every array < 2^31 elements (32-bit indices); 0 <= label < K
// Repeats    bitwise, whatever IMAGES: groups and lanes are joined in a fixed order, slices in theirs
// Ties, NaN  the first of equal scores is predicted; a NaN score makes the loss NaN; relu as relu.cu
// Reference  baseline/pcnn_baseline/dense.py, compared by pcnn_bench/verify.py
// Idea       layers of some hundred units take microseconds, and a launch and its wait as long: a block carries its images
//            all the way up and down again, with everything but the weights in shared memory. Blocks then share nothing but
//            the weights, so small batches take one image a block, to fill the device, large ones eight, to read less

enum { SOFTMAX_CROSS_ENTROPY, MEAN_SQUARED_ERROR };

#include "dense_head.cuh"
#include "dense_head_error.cuh"
#include "dense_head_forward.cuh"
#include "dense_head_weight.cuh"
#include "follow.cuh"

template <int IMAGES>
__device__ __forceinline__ void step(
    const float* __restrict__ x, const float* __restrict__ parameter, const int* __restrict__ label,
    const int* __restrict__ first, float* __restrict__ units, float* __restrict__ errors, float* __restrict__ loss,
    int* __restrict__ prediction, float* __restrict__ grad_x, int N)
{
    extern __shared__ __align__(16) float memory[];
    const auto block = make_block<IMAGES>(memory, N);
    const int image = threadIdx.x / 32;  // of this warp, for the loss
    const int target = label[block.n0 + min(image, block.count - 1)];
    const int place = first[0];
    forward_layers<1>(block, x, parameter, units);
    __syncthreads();  // the scores are complete before the loss reads them
    if (image < IMAGES) finish_image(block, image, target, loss + place, prediction, errors, N);
    backward_layers<LAYERS>(block, parameter, errors, grad_x);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) dense_head_step_one(
    const float* __restrict__ x, const float* __restrict__ parameter, const int* __restrict__ label,
    const int* __restrict__ first, float* __restrict__ units, float* __restrict__ errors, float* __restrict__ loss,
    int* __restrict__ prediction, float* __restrict__ grad_x, int N)
{
    step<1>(x, parameter, label, first, units, errors, loss, prediction, grad_x, N);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) dense_head_step_two(
    const float* __restrict__ x, const float* __restrict__ parameter, const int* __restrict__ label,
    const int* __restrict__ first, float* __restrict__ units, float* __restrict__ errors, float* __restrict__ loss,
    int* __restrict__ prediction, float* __restrict__ grad_x, int N)
{
    step<2>(x, parameter, label, first, units, errors, loss, prediction, grad_x, N);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) dense_head_step_four(
    const float* __restrict__ x, const float* __restrict__ parameter, const int* __restrict__ label,
    const int* __restrict__ first, float* __restrict__ units, float* __restrict__ errors, float* __restrict__ loss,
    int* __restrict__ prediction, float* __restrict__ grad_x, int N)
{
    step<4>(x, parameter, label, first, units, errors, loss, prediction, grad_x, N);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) dense_head_step_eight(
    const float* __restrict__ x, const float* __restrict__ parameter, const int* __restrict__ label,
    const int* __restrict__ first, float* __restrict__ units, float* __restrict__ errors, float* __restrict__ loss,
    int* __restrict__ prediction, float* __restrict__ grad_x, int N)
{
    step<8>(x, parameter, label, first, units, errors, loss, prediction, grad_x, N);
}

extern "C" __global__ void __launch_bounds__(WEIGHT_THREADS) dense_head_backward(
    const float* __restrict__ x, const float* __restrict__ units, const float* __restrict__ errors,
    float* __restrict__ partial, int N, int slice_size)
{
    __shared__ __align__(16) float memory[WEIGHT_MEMORY];
    follow();
    const int first = blockIdx.y * slice_size;
    weight_tiles<1>(
        memory, blockIdx.x, x, units, errors, partial + blockIdx.y * PARAMETERS, first, min(first + slice_size, N));
}

extern "C" __global__ void dense_head_sum(const float* __restrict__ partial, float* __restrict__ gradient, int split_count)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    follow();
    if (i >= PARAMETERS) return;

    float sum = 0.0f;
#pragma unroll 8
    for (int split = 0; split < split_count; ++split) sum += partial[split * PARAMETERS + i];
    gradient[i] = sum;
}
