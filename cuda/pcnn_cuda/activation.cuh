// activation.cuh - the activation that a kernel applies along with its own work, chosen at compile time
//
// Ties, NaN  relu as relu.cu: a NaN stays a NaN

#ifndef ACTIVATION
#error "compile with -DACTIVATION=<0 none, 1 tanh, 2 relu, 3 sigmoid>; the host takes it from the layers"
#endif

enum { NONE, TANH, RELU, SIGMOID };

__device__ __forceinline__ float activate(float x)
{
    if (ACTIVATION == TANH) return tanhf(x);
    if (ACTIVATION == RELU) return x > 0.0f || x != x ? x : 0.0f;
    if (ACTIVATION == SIGMOID) return 1.0f / (1.0f + expf(-x));
    return x;
}
