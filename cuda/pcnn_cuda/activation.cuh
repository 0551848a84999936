// activation.cuh - the activation that a kernel applies along with its own work, chosen at compile time
//
// Ties, NaN  relu as relu.cu: a NaN stays a NaN

enum { NONE, TANH, RELU, SIGMOID };

// Every call knows its kind, so nothing of the choice is left in the machine code.
__device__ __forceinline__ float activate_as(int kind, float x)
{
    if (kind == TANH) return tanhf(x);
    if (kind == RELU) return x > 0.0f || x != x ? x : 0.0f;
    if (kind == SIGMOID) return 1.0f / (1.0f + expf(-x));
    return x;
}

// grad_y times the derivative, from y.
__device__ __forceinline__ float error_as(int kind, float grad_y, float y)
{
    if (kind == TANH) return grad_y * (1.0f - y * y);
    if (kind == RELU) return y > 0.0f ? grad_y : 0.0f;
    if (kind == SIGMOID) return grad_y * y * (1.0f - y);
    return grad_y;
}

#ifdef ACTIVATION  // a kernel with one: 0 none, 1 tanh, 2 relu, 3 sigmoid; the host takes it from the layers
__device__ __forceinline__ float activate(float x) { return activate_as(ACTIVATION, x); }
#endif
