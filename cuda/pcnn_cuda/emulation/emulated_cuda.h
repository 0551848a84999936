// emulated_cuda.h - the CUDA C++ that our kernels use, for a host compiler; included before every translated .cu
//
// translate.py rewrites the two forms of __shared__ declaration; everything else is defined here.
// Includes next to nothing: parsing <cmath> and <utility> would take longer than compiling most kernels.

#pragma once

#include "runtime.h"

#define __global__ inline __attribute__((always_inline))  // into the loop over threads
#define __device__
#define __host__
#define __constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))

#define threadIdx (emulation::state.thread)
#define blockIdx (emulation::state.block)
#define blockDim (emulation::state.block_extent)
#define gridDim (emulation::state.grid_extent)
constexpr int warpSize = 32;

// ---- vector types ----

#define EMULATION_VECTOR(T, NAME)                                                              \
    struct alignas(2 * sizeof(T)) NAME##2 { T x, y; };                                         \
    struct NAME##3 { T x, y, z; };                                                             \
    struct alignas(4 * sizeof(T)) NAME##4 { T x, y, z, w; };                                   \
    inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                                 \
    inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }                         \
    inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMULATION_VECTOR(float, float)
EMULATION_VECTOR(int, int)
EMULATION_VECTOR(unsigned char, uchar)

// ---- running ----

// As last parameters: the caller's place.
#define EMULATION_HERE int line = __builtin_LINE(), const char *file = __builtin_FILE()
#define EMULATION_PLACE emulation::Place{__func__, file, line}

namespace emulation {

template <class T>
struct Shared : SharedVariable {
    constexpr explicit Shared(const char* name) : SharedVariable{name, sizeof(T), 0, 0} {}
    T& get(EMULATION_HERE) {
        const bool is_placed = __atomic_load_n(&launch, __ATOMIC_ACQUIRE) == state.launch;
        if (__builtin_expect(!is_placed, 0)) emulation_place_shared(this, EMULATION_PLACE);
        return *reinterpret_cast<T*>(state.static_shared + offset);
    }
};

// Run the threads of a block in order, starting with state.thread. As long as none waits this is a plain loop;
// once one has waited, the runtime chooses.
template <auto KERNEL, class... Parameters>
struct Threads {
    explicit Threads(Parameters... arguments) {
        uint3 thread = state.thread;
        for (;;) {
            KERNEL(arguments...);
            if (!state.straight) {
                if (!emulation_next_thread()) return;
                continue;
            }
            if (++thread.x == state.block_extent.x) {
                thread.x = 0;
                if (++thread.y == state.block_extent.y) {
                    thread.y = 0;
                    if (++thread.z == state.block_extent.z) return;
                }
            }
            state.thread = thread;
        }
    }
};

template <auto KERNEL, class... Parameters>
inline void run(const uint64_t* next, void (*)(Parameters...)) {
    Threads<KERNEL, Parameters...>{*reinterpret_cast<const Parameters*>(next++)...};  // braces evaluate in order
}

}  // namespace emulation

extern "C" __attribute__((visibility("hidden"))) char __ehdr_start, _end;  // from the linker: this library's image
#define EMULATION_EXPORT extern "C" __attribute__((visibility("default")))
EMULATION_EXPORT const void* const emulation_image[2];
const void* const emulation_image[2] = {&__ehdr_start, &_end};
#define EMULATION_KERNEL(NAME) \
    EMULATION_EXPORT void emulation_run_##NAME(const uint64_t* arguments) { emulation::run<&NAME>(arguments, &NAME); }

// ---- barriers, shuffles, votes ----

namespace emulation {

inline unsigned lane() {
    const State& s = state;
    return (s.thread.x + s.block_extent.x * (s.thread.y + s.block_extent.y * s.thread.z)) % 32;
}

template <class T>
inline T shuffle(unsigned mask, T value, unsigned source, Place place) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "shuffles move at most 8 bytes");
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    bits = emulation_exchange(mask, bits, source, place);
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

}  // namespace emulation

inline void __syncthreads(EMULATION_HERE) { emulation::emulation_sync_block(EMULATION_PLACE); }
inline void __syncwarp(unsigned mask = ~0u, EMULATION_HERE) {
    emulation::emulation_ballot(mask, false, EMULATION_PLACE);
}
inline unsigned __ballot_sync(unsigned mask, bool predicate, EMULATION_HERE) {
    return emulation::emulation_ballot(mask, predicate, EMULATION_PLACE);
}
inline int __any_sync(unsigned mask, bool predicate, EMULATION_HERE) {
    return emulation::emulation_ballot(mask, predicate, EMULATION_PLACE) != 0;
}
inline int __all_sync(unsigned mask, bool predicate, EMULATION_HERE) {
    return emulation::emulation_ballot(mask, !predicate, EMULATION_PLACE) == 0;
}
template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMULATION_HERE) {
    const unsigned first = emulation::lane() & -width;
    return emulation::shuffle(mask, value, first | (source & (width - 1)), EMULATION_PLACE);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, EMULATION_HERE) {
    const unsigned lane = emulation::lane(), first = lane & -width;
    return emulation::shuffle(mask, value, lane < first + delta ? lane : lane - delta, EMULATION_PLACE);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, EMULATION_HERE) {
    const unsigned lane = emulation::lane(), last = lane | (width - 1);
    return emulation::shuffle(mask, value, lane + delta > last ? lane : lane + delta, EMULATION_PLACE);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, EMULATION_HERE) {
    const unsigned lane = emulation::lane(), last = lane | (width - 1);
    return emulation::shuffle(mask, value, (lane ^ bits) > last ? lane : lane ^ bits, EMULATION_PLACE);
}

// ---- memory ----

template <class T>
inline T __ldg(const T* address) { return *address; }

#ifdef EMULATION_CHECKER  // one OS thread: plain arithmetic will do, and the checker is told that it was atomic
#define EMULATION_ATOMIC __attribute__((noinline, no_sanitize("thread")))
#define EMULATION_TELL(address) \
    emulation::emulation_atomic_access(address, sizeof *(address), __builtin_return_address(0))
inline void __threadfence() { emulation::emulation_fence(); }
#else
#define EMULATION_ATOMIC inline
#define EMULATION_TELL(address) (void)0
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
#endif
inline void __threadfence_block() {}

// Each returns the old value, as CUDA's do; `NEW` may use `old`.
#define EMULATION_READ_MODIFY_WRITE(NEW)                                                                        \
    EMULATION_TELL(address);                                                                                    \
    T old, changed;                                                                                             \
    __atomic_load(address, &old, __ATOMIC_RELAXED);                                                             \
    do changed = (NEW);                                                                                         \
    while (!__atomic_compare_exchange(address, &old, &changed, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));      \
    return old;
namespace emulation {
template <class T>
struct Same { using type = T; };
template <class T>
using same = typename Same<T>::type;  // lets atomicAdd(float*, 1) convert, as CUDA's overloads do
}  // namespace emulation
template <class T>
EMULATION_ATOMIC T atomicAdd(T* address, emulation::same<T> value) { EMULATION_READ_MODIFY_WRITE(old + value) }
template <class T>
EMULATION_ATOMIC T atomicSub(T* address, emulation::same<T> value) { EMULATION_READ_MODIFY_WRITE(old - value) }
template <class T>
EMULATION_ATOMIC T atomicMax(T* address, emulation::same<T> value) {
    EMULATION_READ_MODIFY_WRITE(old < value ? value : old)
}
template <class T>
EMULATION_ATOMIC T atomicMin(T* address, emulation::same<T> value) {
    EMULATION_READ_MODIFY_WRITE(value < old ? value : old)
}
template <class T>
EMULATION_ATOMIC T atomicExch(T* address, emulation::same<T> value) { EMULATION_READ_MODIFY_WRITE(value) }
template <class T>
EMULATION_ATOMIC T atomicCAS(T* address, emulation::same<T> expected, emulation::same<T> value) {
    EMULATION_READ_MODIFY_WRITE(old == expected ? value : old)
}

// ---- arithmetic ----

extern "C" {
float ceilf(float) noexcept, floorf(float) noexcept, rintf(float) noexcept;
float roundf(float) noexcept, truncf(float) noexcept;
float fabsf(float) noexcept, sqrtf(float) noexcept, fmodf(float, float) noexcept, copysignf(float, float) noexcept;
float fmaf(float, float, float) noexcept, fminf(float, float) noexcept, fmaxf(float, float) noexcept;
float expf(float) noexcept, exp2f(float) noexcept, expm1f(float) noexcept, powf(float, float) noexcept;
float logf(float) noexcept, log2f(float) noexcept, log10f(float) noexcept, log1pf(float) noexcept;
float sinf(float) noexcept, cosf(float) noexcept, tanf(float) noexcept, erff(float) noexcept;
float sinhf(float) noexcept, coshf(float) noexcept, tanhf(float) noexcept;
}
#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf(x)
#define isfinite(x) __builtin_isfinite(x)
#ifndef INFINITY
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#endif
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
inline int abs(int x) { return x < 0 ? -x : x; }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
template <class A, class B>
inline auto min(A a, B b) { return b < a ? b : a; }
template <class A, class B>
inline auto max(A a, B b) { return a < b ? b : a; }
inline float __int_as_float(int x) { float y; __builtin_memcpy(&y, &x, 4); return y; }
inline int __float_as_int(float x) { int y; __builtin_memcpy(&y, &x, 4); return y; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32); }
