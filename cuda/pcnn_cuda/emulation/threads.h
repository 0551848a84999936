// threads.h - the threads of a block: which runs next, and where they wait for each other; part of runtime.cpp
//
// A block starts on one stack and its threads run there one after another; only a thread that waits keeps its stack,
// and the next thread continues on a fresh one. A kernel without barriers therefore never switches. Fibers switch only
// at barriers, shuffles and votes, so a thread that spins on memory for another one hangs.

#pragma once

#include "worker.h"

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

// Leave the current fiber, which waits or has no thread, for one that can run.
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
    emulation_switch(&self->stack_pointer, next->stack_pointer);
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

extern "C" void emulation_place_shared(SharedVariable* variable, Place place) {
    std::unique_lock<std::mutex> lock(shared_mutex);
    if (variable->launch == state.launch) return;
    const size_t first = (shared_used + 15) & ~size_t{15};
    if (first + variable->bytes > STATIC_SHARED_BYTES || ++shared_count > MAX_SHARED_VARIABLES) {
        lock.unlock();  // fail does not unwind
        Report report = describe(SHARED_TOO_LARGE, state.thread, place);
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

}  // namespace emulation
