// async_copy.cuh - copies from global to shared memory that go on while the thread computes
//
// Launch     whoever asked for copies waits for them, then the block meets at a barrier before anyone reads them
// Limits     compute capability 8.0 on; before that, and on the emulated device, a cell is copied when it is asked for
// Idea       a load needs a register until its cell arrives, so few are on their way at once; a copy needs none, and a
//            whole tile costs the latency of memory once, while the thread computes

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
