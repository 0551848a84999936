// runtime.cpp - runs emulated kernels: blocks over OS threads, the threads of a block as fibers
//
// A block starts on one stack and its threads run there one after another; only a thread that waits keeps its stack, and
// the next thread continues on a fresh one. A kernel without barriers therefore never switches. Fibers switch only at
// barriers, shuffles and votes, so a thread that spins on memory for another one hangs.
// With EMULATION_CHECKER, checker.h watches every memory access and barriers are held to CUDA's letter.

#include "runtime.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

namespace emulation {

// ---- what emulated_device.py sees through ctypes ----

struct Region {  // an array that the launch may touch
    const char* name;
    char* first;
    uint64_t bytes;
};

struct Launch {
    Run run;
    const uint64_t* arguments;
    const void* const* image;  // of the kernel's library: first, end
    const Region* regions;
    uint32_t argument_count, region_count;
    uint32_t grid[3], block[3];
    uint32_t shared_bytes, os_threads, seed;
};

enum Kind : uint32_t { RACE, OUT_OF_BOUNDS_READ, OUT_OF_BOUNDS_WRITE, UNINITIALISED_READ, DIVERGENT_BARRIER, MIXED_BARRIERS,
                       LOST_LANE, SHARED_TOO_LARGE };

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
constexpr size_t STACK_BYTES = 32 << 10;  // toolchain.py refuses frames over half of it; larger stacks cost cache misses
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
    unsigned index;             // of the thread, linear in its block
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

#ifdef EMULATION_CHECKER
constexpr bool checking = true;
#include "checker.h"
#else
constexpr bool checking = false;
#endif

namespace emulation {

// ---- scheduling the threads of a block ----

static unsigned next_random(Worker& w, unsigned below) {
    w.random = w.random * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX
    return static_cast<unsigned>((w.random >> 33) % below);
}

static uint3 position(unsigned index) {
    const uint3 extent = state.block_extent;
    if (extent.x == worker->threads) return {index, 0, 0};  // the common case saves divisions
    return {index % extent.x, index / extent.x % extent.y, index / extent.x / extent.y};
}

static unsigned linear(uint3 thread) {
    return thread.x + state.block_extent.x * (thread.y + state.block_extent.y * thread.z);
}

static void start_next_thread(Worker& w, Fiber* fiber) {
    fiber->index = w.order[w.started++];
    fiber->generation = nullptr;
    fiber->thread = state.thread = position(fiber->index);
    w.current = fiber;
}

static void fiber_main();

// A stack from which the first switch "returns" into fiber_main.
static void initialise(Worker& w, unsigned number) {
    // 61 different offsets: stacks that are a power of two apart would share their cache sets
    char* top = w.stacks + (number + 1) * STACK_BYTES - (number % 61) * 64;
    void** frame = reinterpret_cast<void**>(top) - FRAME;
    std::fill(frame, frame + FRAME, nullptr);
    frame[RETURN] = reinterpret_cast<void*>(fiber_main);
    w.fibers[number].stack_pointer = frame;
}

static Fiber* new_fiber(Worker& w) {
    const unsigned number = w.fiber_count++;
    if (number >= w.initialised) initialise(w, w.initialised++);
    return &w.fibers[number];
}

static Fiber* find_runnable(Worker& w) {
    Fiber* fiber = w.random ? &w.fibers[next_random(w, w.fiber_count)] : w.current;
    for (unsigned i = 0; i < w.fiber_count; ++i) {
        if (++fiber == w.fibers + w.fiber_count) fiber = w.fibers;
        if (fiber->runnable()) return fiber;
    }
    return nullptr;
}

// Nobody can go on: say who waits where.
[[noreturn]] static void deadlock(Worker& w) {
    const Fiber *at_barrier = nullptr, *in_warp = nullptr;
    for (unsigned i = 0; i < w.fiber_count; ++i) {
        const Fiber* fiber = &w.fibers[i];
        if (!fiber->generation) continue;
        (fiber->generation == &w.generation ? at_barrier : in_warp) = fiber;
    }
    const Fiber* waiting = in_warp ? in_warp : at_barrier;
    Report report = describe(at_barrier && in_warp ? MIXED_BARRIERS : LOST_LANE, waiting->thread, waiting->place);
    if (at_barrier && in_warp) report.other_line = static_cast<uint32_t>(at_barrier->place.line);
    fail(report);
}

// Leave the current fiber for whoever can run.
static void switch_away(Worker& w) {
    Fiber* self = w.current;
    Fiber* next = nullptr;
    if (w.random && next_random(w, 2)) next = find_runnable(w);
    if (!next && w.started < w.threads) {
        next = new_fiber(w);
        start_next_thread(w, next);
    } else {
        if (!next) next = find_runnable(w);
        if (!next) deadlock(w);
        w.current = next;
        state.thread = next->thread;
        next->generation = nullptr;
    }
    if (next != self) emulation_switch(&self->stack_pointer, next->stack_pointer);
}

static void wait(Worker& w, const unsigned* generation, Place place) {
    Fiber* self = w.current;
    self->generation = generation;
    self->seen = *generation;
    self->place = place;
    switch_away(w);
}

// The first wait of a block: from here on, threads are tracked one by one.
static Worker& track() {
    Worker& w = *worker;
    if (state.straight) {
        state.straight = false;
        Fiber* fiber = w.current;
        fiber->thread = state.thread;
        fiber->index = linear(state.thread);
        w.finished = fiber->index;
        w.started = fiber->index + 1;
    }
    return w;
}

static void release_barrier(Worker& w) {
    w.arrived = 0;
    ++w.generation;
}

extern "C" bool emulation_next_thread() {
    Worker& w = *worker;
    ++w.finished;
    if (w.arrived) {
        if (checking) fail(describe(DIVERGENT_BARRIER, state.thread, w.barrier));
        if (w.arrived == w.threads - w.finished) release_barrier(w);  // the hardware counts exited threads out, too
    }
    if (w.started == w.threads) return false;
    start_next_thread(w, w.current);
    return true;
}

static void fiber_main() {
    for (;;) {
        Worker& w = *worker;
        w.launch->run(w.launch->arguments);
        if (state.straight || w.finished == w.threads) {
            emulation_switch(&w.current->stack_pointer, w.home);
        } else {
            switch_away(w);
        }
    }
}

extern "C" void emulation_sync_block(Place place) {
    Worker& w = track();
    if (checking) {
        if (w.finished) fail(describe(DIVERGENT_BARRIER, state.thread, place));
        if (w.arrived && place.line != w.barrier.line) {
            Report report = describe(MIXED_BARRIERS, state.thread, place);
            report.other_line = static_cast<uint32_t>(w.barrier.line);
            fail(report);
        }
    }
    w.barrier = place;
    if (++w.arrived == w.threads - w.finished) {
        release_barrier(w);
    } else {
        wait(w, &w.generation, place);
    }
}

// ---- warps ----

static Rendezvous& join(Worker& w, unsigned mask, Place place) {
    const unsigned index = w.current->index, lane = index % WARP, first = index - lane;
    if (w.threads - first < WARP) mask &= (1u << (w.threads - first)) - 1;  // lanes that the block does not have
    if (!(mask >> lane & 1)) fail(describe(LOST_LANE, state.thread, place));
    Warp& warp = w.warps[index / WARP];
    Rendezvous* free = nullptr;
    for (Rendezvous& meeting : warp.meetings) {
        if (meeting.mask == mask && meeting.arrived != mask) return meeting;
        if (!meeting.mask) {
            if (!free) free = &meeting;
            if (!meeting.generation) break;  // never used, and so are those after it
        }
    }
    free->mask = free->unread = mask;
    free->arrived = free->votes = 0;
    return *free;
}

static void meet(Worker& w, Rendezvous& meeting, Place place) {
    meeting.arrived |= 1u << w.current->index % WARP;
    if (meeting.arrived == meeting.mask) {
        ++meeting.generation;
        ++w.warps[w.current->index / WARP].synchronisations;
    } else {
        wait(w, &meeting.generation, place);
    }
}

static void leave(Worker& w, Rendezvous& meeting) {
    meeting.unread &= ~(1u << w.current->index % WARP);
    if (!meeting.unread) meeting.mask = 0;
}

extern "C" uint64_t emulation_exchange(unsigned mask, uint64_t value, unsigned source_lane, Place place) {
    Worker& w = track();
    Rendezvous& meeting = join(w, mask, place);
    meeting.value[w.current->index % WARP] = value;
    meet(w, meeting, place);
    const bool named = meeting.mask >> source_lane & 1;
    const uint64_t result = named ? meeting.value[source_lane] : ~uint64_t{0};  // undefined: shown as a NaN
    leave(w, meeting);
    return result;
}

extern "C" unsigned emulation_ballot(unsigned mask, bool predicate, Place place) {
    Worker& w = track();
    Rendezvous& meeting = join(w, mask, place);
    meeting.votes |= static_cast<unsigned>(predicate) << w.current->index % WARP;
    meet(w, meeting, place);
    const unsigned votes = meeting.votes;
    leave(w, meeting);
    return votes;
}

// ---- shared memory ----

static std::mutex shared_mutex;
static size_t shared_used;
static unsigned shared_count;

extern "C" void emulation_place_shared(SharedVariable* variable) {
    std::unique_lock<std::mutex> lock(shared_mutex);
    if (variable->launch == state.launch) return;
    const size_t first = (shared_used + 15) & ~size_t{15};
    if (first + variable->bytes > STATIC_SHARED_BYTES || ++shared_count > MAX_SHARED_VARIABLES) {
        lock.unlock();  // fail does not unwind
        Report report = describe(SHARED_TOO_LARGE, state.thread, {"__shared__", "", 0});
        report.array = variable->name;
        report.offset = static_cast<int64_t>(first + variable->bytes);
        fail(report);
    }
    variable->offset = static_cast<unsigned>(first + GAP * shared_count);
    shared_used = first + variable->bytes;
#ifdef EMULATION_CHECKER
    checker.add_shared(*variable, state.static_shared);
#endif
    __atomic_store_n(&variable->launch, state.launch, __ATOMIC_RELEASE);
}

// ---- blocks ----

static void run_block(Worker& w, uint64_t number) {
    const Launch& launch = *w.launch;
    if (launch.seed) {  // another order of the blocks, and of the threads in each
        const uint64_t blocks = uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
        number = (number + launch.seed) % blocks;
        w.random = (uint64_t{launch.seed} << 32 | number) + 1;
        for (unsigned i = w.threads; i > 1; --i) std::swap(w.order[i - 1], w.order[next_random(w, i)]);
    }
    state.block = {static_cast<unsigned>(number % launch.grid[0]), static_cast<unsigned>(number / launch.grid[0] % launch.grid[1]),
                   static_cast<unsigned>(number / launch.grid[0] / launch.grid[1])};
    state.straight = !launch.seed;
    w.block_number = static_cast<uint32_t>(number);
    w.fiber_count = w.started = w.finished = w.arrived = 0;
    w.current = new_fiber(w);
    start_next_thread(w, w.current);
#ifdef EMULATION_CHECKER
    checker.begin_block(w);
#endif
    emulation_switch(&w.home, w.current->stack_pointer);
    if (w.failed) {
        w.initialised = 0;
        for (Warp& warp : w.warps) warp = {};
    }
}

static std::atomic<uint64_t> next_block;
static unsigned launch_serial;

static void run_blocks(const Launch& launch) {
    if (!worker) {
        static thread_local std::unique_ptr<Worker> owner;
        owner.reset(new Worker{});
        worker = owner.get();
    }
    Worker& w = *worker;
    w.launch = &launch;
    w.failed = false;
    w.random = 0;
    w.threads = launch.block[0] * launch.block[1] * launch.block[2];
    std::iota(w.order, w.order + w.threads, 0u);
    state.block_extent = {launch.block[0], launch.block[1], launch.block[2]};
    state.grid_extent = {launch.grid[0], launch.grid[1], launch.grid[2]};
    state.launch = launch_serial;
    state.static_shared = w.static_shared;
    state.dynamic_shared = w.dynamic_shared;
    const uint64_t blocks = uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
    const uint64_t chunk = std::max<uint64_t>(1, blocks / (uint64_t{launch.os_threads} * 16));
    for (;;) {
        const uint64_t first = next_block.fetch_add(chunk, std::memory_order_relaxed);
        for (uint64_t i = first; i < std::min(first + chunk, blocks); ++i) {
            if (stop_launch.load(std::memory_order_relaxed)) return;
            run_block(w, i);
        }
        if (first + chunk >= blocks) return;
    }
}

// ---- OS threads ----

// Helpers that join a launch while it is open. Nobody waits for one that comes too late, so waking them costs little.
class Pool {
    std::mutex mutex_;
    std::condition_variable wake_, idle_;
    const Launch* open_ = nullptr;
    unsigned started_ = 0, places_ = 0, active_ = 0, sleeping_ = 0;
    std::atomic<unsigned> opened_{0};
    static constexpr int SPINS = 2000;  // some 20 us: launches follow each other closely, and waking takes longer

    void help() {
        unsigned seen = 0;
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            if (open_ && places_ && opened_ != seen) {
                seen = opened_;
                --places_;
                ++active_;
                const Launch* launch = open_;
                lock.unlock();
                run_blocks(*launch);
                lock.lock();
                if (!--active_) idle_.notify_one();
            }
            const unsigned before = opened_;
            lock.unlock();
            for (int i = 0; i < SPINS && opened_.load(std::memory_order_relaxed) == before; ++i) {
#if defined(__x86_64__)
                __builtin_ia32_pause();
#else
                asm volatile("yield");
#endif
            }
            lock.lock();
            ++sleeping_;
            wake_.wait(lock, [&] { return opened_ != before; });
            --sleeping_;
        }
    }

public:
    void open(const Launch& launch, unsigned helpers) {
        std::lock_guard<std::mutex> lock(mutex_);
        for (; started_ < helpers; ++started_) std::thread([this] { help(); }).detach();
        open_ = &launch;
        places_ = helpers;
        ++opened_;
        if (sleeping_) wake_.notify_all();
    }

    void close() {
        std::unique_lock<std::mutex> lock(mutex_);
        open_ = nullptr;
        idle_.wait(lock, [this] { return !active_; });
    }
};

static Pool& pool = *new Pool;  // never destroyed: helpers may outlive main, and a forked child has none
static std::mutex launch_mutex;

#pragma GCC visibility push(default)

// Run a launch to its end; the number of reports.
extern "C" uint32_t emulation_launch(const Launch* launch) {
    std::lock_guard<std::mutex> lock(launch_mutex);
    reports.clear();
    stop_launch = false;
    next_block = 0;
    shared_used = 0;
    shared_count = 0;
    if (!++launch_serial) ++launch_serial;
#ifdef EMULATION_CHECKER
    checker.begin_launch(*launch);
#endif
    const uint64_t blocks = uint64_t{launch->grid[0]} * launch->grid[1] * launch->grid[2];
    const unsigned helpers = static_cast<unsigned>(std::min<uint64_t>(launch->os_threads, blocks)) - 1;
    if (helpers) pool.open(*launch, helpers);
    run_blocks(*launch);
    if (helpers) pool.close();
    return static_cast<uint32_t>(reports.size());
}

extern "C" const Report* emulation_reports() { return reports.data(); }

#pragma GCC visibility pop

}  // namespace emulation
