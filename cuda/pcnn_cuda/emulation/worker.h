// worker.h - an OS thread that runs blocks: its fibers, its shared memory, and how it reports; part of runtime.cpp

#pragma once

#include "runtime.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace emulation {

// ---- what runtime.py sees through ctypes ----

struct Region {  // an array that the launch may touch
    const char* name;
    char* first;
    uint64_t bytes;
    uint64_t loaded;  // bytes that the launch has read there; the checker counts them
};

struct Launch {
    Run run;
    const uint64_t* arguments;
    const void* const* image;  // of the kernel's library: first, end
    Region* regions;
    uint32_t argument_count, region_count;
    uint32_t grid[3], block[3];
    uint32_t shared_bytes, os_threads, seed;
};

enum Kind : uint32_t {  // in the order of KINDS
    RACE,
    OUT_OF_BOUNDS_READ,
    OUT_OF_BOUNDS_WRITE,
    UNINITIALISED_READ,
    DIVERGENT_BARRIER,
    MIXED_BARRIERS,
    LOST_LANE,
    SHARED_TOO_LARGE,
};

constexpr uint32_t NOBODY = ~0u, SEVERAL = ~0u - 1;

struct Report {
    Kind kind;
    uint32_t other_block, other_thread;  // linear, NOBODY or SEVERAL
    uint32_t line, other_line;           // if the place is known from the source ...
    uint64_t code, other_code;           // ... or offsets into the kernel's library
    int64_t offset;                      // bytes from the start of `array`
    uint3 block, thread;
    const char *file, *what, *array;
};

// ---- fibers ----

constexpr unsigned MAX_THREADS = 1024, WARP = 32, WARPS = MAX_THREADS / WARP;
constexpr size_t STACK_BYTES = 32 << 10;  // runtime.py refuses frames over half of it; larger stacks cost cache misses
constexpr size_t STATIC_SHARED_BYTES = 48 << 10, DYNAMIC_SHARED_BYTES = 227 << 10, MAX_SHARED_VARIABLES = 64;
#ifdef EMULATION_CHECKER
constexpr size_t GAP = 64;  // between shared variables, so that a step past one does not land in the next
#else
constexpr size_t GAP = 0;
#endif
constexpr size_t STATIC_ARENA_BYTES = STATIC_SHARED_BYTES + MAX_SHARED_VARIABLES * (GAP + 16);

struct Fiber {
    void* stack_pointer;
    uint3 thread;
    unsigned index;              // of the thread, linear in its block
    const unsigned* generation;  // of the barrier or rendezvous it waits for, else null
    unsigned seen;
    Place place;

    bool runnable() const { return generation && *generation != seen; }
};

// Lanes of a warp meeting under one mask. Complete when all have arrived, free again when all have read.
struct Rendezvous {
    unsigned mask, arrived, unread, generation, votes;
    uint64_t value[WARP];
};

struct Warp {
    unsigned synchronisations;
    Rendezvous meetings[WARP + 1];  // each lane holds at most one
};

extern "C" void emulation_switch(void** save, void* load);
#if defined(__x86_64__)
constexpr int RETURN = 6, FRAME = 8;  // rbp, rbx, r12-r15
asm(R"(
.text
.globl emulation_switch
.hidden emulation_switch
.type emulation_switch, @function
emulation_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
.size emulation_switch, .-emulation_switch
)");
#elif defined(__aarch64__)
constexpr int RETURN = 11, FRAME = 20;  // x19-x30, d8-d15
asm(R"(
.text
.globl emulation_switch
.hidden emulation_switch
.type emulation_switch, %function
emulation_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size emulation_switch, .-emulation_switch
)");
#else
#error "the emulated device knows x86-64 and aarch64 only"
#endif

char* reserve(size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) abort();
    return static_cast<char*>(memory);
}

// One OS thread's fibers and shared memory, and the block that it runs.
struct Worker {
    Fiber fibers[MAX_THREADS] = {};
    Warp warps[WARPS] = {};
    unsigned order[MAX_THREADS];
    char* stacks = reserve(STACK_BYTES * MAX_THREADS);
    char* static_shared = reserve(STATIC_ARENA_BYTES);
    char* dynamic_shared = reserve(DYNAMIC_SHARED_BYTES);
    void* home = nullptr;  // the OS thread's own stack
    const Launch* launch = nullptr;
    Fiber* current = nullptr;
    unsigned initialised = 0;  // fibers whose stack holds a frame to switch to
    unsigned fiber_count = 0, threads = 0, started = 0, finished = 0;
    unsigned arrived = 0, generation = 0;  // at the block's barrier
    Place barrier = {};
    uint64_t random = 0;  // 0: threads run in order
    uint32_t block_number = 0;
    bool failed = false;

    Worker() { madvise(stacks, STACK_BYTES * MAX_THREADS, MADV_HUGEPAGE); }
    ~Worker() {
        munmap(stacks, STACK_BYTES * MAX_THREADS);
        munmap(static_shared, STATIC_ARENA_BYTES);
        munmap(dynamic_shared, DYNAMIC_SHARED_BYTES);
    }
};

// Reached through one pointer: initial-exec storage is scarce in a process that has loaded many libraries.
static __thread Worker* worker __attribute__((tls_model("initial-exec")));
__thread State state;

// ---- reports ----

static std::mutex report_mutex;
static std::vector<Report> reports;
static std::atomic<bool> stop_launch;
constexpr size_t MAX_REPORTS = 100;

static Report describe(Kind kind, uint3 thread, Place place) {
    Report report{};
    report.kind = kind;
    report.other_block = report.other_thread = NOBODY;
    report.block = state.block;
    report.thread = thread;
    report.what = place.what;
    report.file = place.file;
    report.line = static_cast<uint32_t>(place.line);
    return report;
}

static void add(const Report& report) {
    std::lock_guard<std::mutex> lock(report_mutex);
    if (reports.size() < MAX_REPORTS) reports.push_back(report);
}

// Give the block, and with it the launch, up. Device code has no destructors, so its stacks are simply left.
[[noreturn]] static void abandon() {
    worker->failed = true;
    stop_launch = true;
    void* nowhere;
    emulation_switch(&nowhere, worker->home);
    __builtin_unreachable();
}

[[noreturn]] static void fail(const Report& report) {
    add(report);
    abandon();
}

}  // namespace emulation
