// async_copy.cuh - copies from global to shared memory that go on while the thread computes
//
// Idea       own; what the next step reads is on its way while this one computes, and needs no registers. Before compute
//            capability 8.0, and on the emulated device, the copy is done at once

#pragma once

// *to = *from, or zero where nothing is there; `from` must be an address in any case. Arrives by wait_for_copies.
__device__ __forceinline__ void copy_async(float* to, const float* from, bool is_there)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    const int bytes = is_there ? 4 : 0;  // the rest of the four is filled with zeros
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
#else
    *to = is_there ? *from : 0.0f;
#endif
}

// The thread's own copies have arrived; after a barrier, everybody's.
__device__ __forceinline__ void wait_for_copies()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
