// follow.cuh - a kernel that may be launched before the one it follows has ended
//
// Launch     once in every thread of every kernel of a source that includes this. Before it a kernel writes no global
//            memory, and reads only what the kernel before it does not write: parameters and their velocity, which the
//            update alone writes, at the end of the step; the labels; in backward, what forward left. All kernels before
//            that one have ended, since it has come past its own
// Limits     compute capability 9.0 on, and a recorded step; elsewhere the launch itself waits, and this does nothing
// Idea       between two kernels that wait for each other lies about a microsecond in which the card does nothing: the
//            blocks of the first drain, then those of the second are launched. Launched early, they are there when the
//            first ends (programmatic dependent launch)

#pragma once

// Waits until the kernels before have ended and what they wrote can be seen, then lets the next one be launched.
__device__ __forceinline__ void follow()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
