// runtime.h - what emulated kernels and the runtime say to each other; no standard library, as every kernel includes it

#pragma once

#include <stddef.h>
#include <stdint.h>

struct uint3 {
    unsigned x, y, z;
};

namespace emulation {

// The CUDA thread now running on this OS thread, and its block.
struct State {
    uint3 thread, block, block_extent, grid_extent;
    bool straight;    // no thread of this block has waited yet: they run one after another in a plain loop
    unsigned launch;  // serial number, never 0
    char *static_shared, *dynamic_shared;
};

// A __shared__ variable; its place in the block's memory is assigned when a launch first reaches its declaration.
struct SharedVariable {
    const char* name;
    unsigned bytes;
    unsigned launch;  // the one for which `offset` holds
    unsigned offset;
};

// Where a kernel waits: the CUDA function and the line that called it.
struct Place {
    const char* what;
    const char* file;
    int line;
};

using Run = void (*)(const uint64_t* arguments);

#pragma GCC visibility push(default)
// __thread, not thread_local: the latter calls an initialisation check from every other translation unit.
extern __thread State state __attribute__((tls_model("initial-exec")));
extern "C" {
bool emulation_next_thread();
void emulation_sync_block(Place place);
uint64_t emulation_exchange(unsigned mask, uint64_t value, unsigned source_lane, Place place);
unsigned emulation_ballot(unsigned mask, bool predicate, Place place);
void emulation_place_shared(SharedVariable* variable, Place place);
void emulation_fence();                                                          // checker only
void emulation_atomic_access(const void* address, unsigned bytes, const void* pc);  // checker only
}
#pragma GCC visibility pop

}  // namespace emulation
