// runtime.cpp - runs launches of emulated kernels: blocks over OS threads; their threads are fibers (threads.h)
//
// With EMULATION_CHECKER, checker.h watches every memory access and barriers are held to CUDA's letter.

#include "worker.h"

#ifdef EMULATION_CHECKER
#include "checker.h"
constexpr bool checking = true;
#else
constexpr bool checking = false;
#endif

#include "threads.h"

#include <condition_variable>
#include <memory>
#include <numeric>
#include <thread>

namespace emulation {

// ---- blocks ----

static void run_block(Worker& w, uint64_t number) {
    const Launch& launch = *w.launch;
    if (launch.seed) {  // another order of the blocks, and of the threads in each
        const uint64_t blocks = uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
        number = (number + launch.seed) % blocks;
        w.random = (uint64_t{launch.seed} << 32 | number) + 1;
        for (unsigned i = w.threads; i > 1; --i) std::swap(w.order[i - 1], w.order[next_random(w, i)]);
    }
    const uint64_t row = number / launch.grid[0];
    state.block = {static_cast<unsigned>(number % launch.grid[0]), static_cast<unsigned>(row % launch.grid[1]),
                   static_cast<unsigned>(row / launch.grid[1])};
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
