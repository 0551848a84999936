// checker.h - bounds, races and initialisation of every memory access of an emulated kernel; part of runtime.cpp
//
// g++ -fsanitize=thread puts a call before each access. Those calls are answered here, with CUDA's rules of what is
// ordered, and not by libtsan, whose idea of a thread is the operating system's. Each 4-byte cell of memory remembers
// its last write and its last read. Two accesses to a byte, one of them a write and not both atomic, must be ordered by
//   the same thread; a block barrier; for one warp, a warp barrier, shuffle or vote;
//   for two blocks, fence + atomic in the earlier one and an atomic in the later one (as in a last-block reduction).
// One OS thread runs the whole launch, so nothing here needs a lock.
// Limits: a barrier of some lanes counts for the whole warp; fences are not matched to addresses: a race may be missed,
// none is invented. Reads of global memory that nobody wrote are not reported; the device fills memory with NaN.

#pragma once

#include "worker.h"

namespace emulation {

struct Access {
    uint32_t launch;  // 0: no access yet
    uint32_t block, thread, barrier, warp_barrier, time, code;
    uint8_t bytes;  // of the cell, one bit each
    bool atomic;
};

struct Cell {
    Access write, read;
    uint32_t launch, block;  // of shared memory: whom the rest concerns
    uint8_t initialised;     // bytes
};

class Checker {
    struct Area {
        const char* name;
        const char *first, *end;
        Cell* cells;
        Region* region;  // null: shared memory
    };

    std::vector<Area> areas_;  // the launch's arrays, then shared variables as they are reached
    std::vector<Cell> static_cells_{STATIC_ARENA_BYTES / 4}, dynamic_cells_{DYNAMIC_SHARED_BYTES / 4};
    std::vector<Cell*> owned_;
    std::vector<uint32_t> released_;  // by block: time of the last fence that an atomic followed
    const Launch* launch_ = nullptr;
    uint32_t time_ = 1, fenced_ = 0;
    bool acquired_ = false;

public:
    void begin_launch(const Launch& launch) {
        for (Cell* cells : owned_) free(cells);
        owned_.clear();
        areas_.clear();
        released_.clear();
        launch_ = &launch;
        for (Region* region = launch.regions; region < launch.regions + launch.region_count; ++region) {
            owned_.push_back(static_cast<Cell*>(calloc(region->bytes / 4 + 2, sizeof(Cell))));
            areas_.push_back({region->name, region->first, region->first + region->bytes, owned_.back(), region});
        }
    }

    void begin_block(const Worker& w) {
        acquired_ = false;
        fenced_ = 0;
        if (launch_->shared_bytes && areas_.size() == launch_->region_count) {
            areas_.push_back({"dynamic __shared__ memory", w.dynamic_shared, w.dynamic_shared + launch_->shared_bytes,
                              dynamic_cells_.data(), nullptr});
        }
    }

    void add_shared(const SharedVariable& variable, const char* arena) {
        const char* first = arena + variable.offset;
        areas_.push_back({variable.name, first, first + variable.bytes, &static_cells_[variable.offset / 4], nullptr});
    }

    void fence() { fenced_ = time_++; }

    void touch(const char* address, size_t bytes, bool write, bool atomic, const void* pc) {
        if (!worker || !launch_) return;
        const Area* area = nullptr;
        for (const Area& candidate : areas_) {
            if (address >= candidate.first && address < candidate.end) area = &candidate;
        }
        if (!area && is_private(address)) return;
        if (!area || address + bytes > area->end) {
            fail(out_of_bounds(address, write, code_of(pc)));
        }
        if (area->region && !write) area->region->loaded += bytes;
        if (atomic) {
            acquired_ = true;
            if (fenced_) {
                released_.resize(std::max<size_t>(released_.size(), worker->block_number + 1));
                released_[worker->block_number] = fenced_;
            }
        }
        const size_t begin = static_cast<size_t>(address - area->first), end = begin + bytes;
        for (size_t cell = begin / 4; cell * 4 < end; ++cell) {
            const unsigned low = begin > cell * 4 ? static_cast<unsigned>(begin - cell * 4) : 0;
            const unsigned high = static_cast<unsigned>(std::min<size_t>(4, end - cell * 4));
            Access now{};
            now.launch = state.launch;
            now.block = worker->block_number;
            now.thread = linear_index();
            now.barrier = worker->generation;
            now.warp_barrier = worker->warps[now.thread / WARP].synchronisations;
            now.time = time_;
            now.code = code_of(pc);
            now.bytes = static_cast<uint8_t>((1u << high) - (1u << low));
            now.atomic = atomic;
            check(*area, area->cells[cell], now, write, static_cast<int64_t>(cell * 4 + low));
        }
    }

private:
    static unsigned linear_index() {
        return state.thread.x + state.block_extent.x * (state.thread.y + state.block_extent.y * state.thread.z);
    }

    uint32_t code_of(const void* pc) const {  // the call itself, not the instruction that it returns to
        return static_cast<uint32_t>(static_cast<const char*>(pc) - static_cast<const char*>(launch_->image[0]) - 1);
    }

    // Memory of one thread, or of no interest: stacks, the library's own data, thread indices, kernel arguments.
    bool is_private(const char* address) const {
        const auto within = [address](const void* first, size_t bytes) {
            return address >= first && address < static_cast<const char*>(first) + bytes;
        };
        return within(worker->stacks, STACK_BYTES * MAX_THREADS) || within(&state, sizeof state) ||
               within(launch_->arguments, launch_->argument_count * sizeof(uint64_t)) ||
               (address >= launch_->image[0] && address < launch_->image[1]);
    }

    Report out_of_bounds(const char* address, bool write, uint32_t code) const {
        Report report = describe(write ? OUT_OF_BOUNDS_WRITE : OUT_OF_BOUNDS_READ, state.thread, {"", "", 0});
        report.code = code;
        int64_t nearest = 1 << 20;  // further away, it is not a step past an array but a wild address
        for (const Area& area : areas_) {
            const int64_t distance = address < area.first ? area.first - address : address - area.end;
            if (distance >= nearest) continue;
            nearest = distance;
            report.array = area.name;
            report.offset = address - area.first;
        }
        return report;
    }

    void check(const Area& area, Cell& cell, const Access& now, bool write, int64_t offset) {
        if (!area.region && (cell.launch != now.launch || cell.block != now.block)) {
            cell = Cell{{}, {}, now.launch, now.block, 0};
        }
        if (!area.region && (!write || now.atomic) && (cell.initialised & now.bytes) != now.bytes) {
            report(UNINITIALISED_READ, area, now, nullptr, offset);
        }
        if (clash(cell.write, now)) {
            report(RACE, area, now, &cell.write, offset);
        } else if (write && clash(cell.read, now)) {
            report(RACE, area, now, &cell.read, offset);
        }
        Access& last = write ? cell.write : cell.read;
        last = !write || (now.atomic && last.atomic) ? merged(last, now) : now;
        if (write) cell.initialised |= now.bytes;
    }

    // Is there no order between these two?
    bool clash(const Access& before, const Access& now) const {
        if (before.launch != now.launch || !(before.bytes & now.bytes) || (before.atomic && now.atomic)) return false;
        if (before.block != now.block) {
            if (before.block == SEVERAL) return !acquired_;
            return !(acquired_ && before.block < released_.size() && before.time <= released_[before.block]);
        }
        if (before.barrier != now.barrier || before.thread == now.thread) return false;
        if (before.thread == SEVERAL) return true;
        const uint32_t thread = before.thread & ~WHOLE_WARP;
        return thread / WARP != now.thread / WARP || before.warp_barrier == now.warp_barrier;
    }

    // Accesses that do not disturb each other (reads, or atomics), remembered as one.
    static Access merged(const Access& before, Access now) {
        if (before.launch != now.launch) return now;
        now.bytes |= before.bytes;
        if (before.block != now.block) {
            now.block = SEVERAL;
        } else if (before.barrier == now.barrier && before.thread != now.thread) {
            const bool one_warp = before.thread != SEVERAL && (before.thread & ~WHOLE_WARP) / WARP == now.thread / WARP;
            if (!one_warp) {
                now.thread = SEVERAL;
            } else if (before.warp_barrier == now.warp_barrier) {
                now.thread |= WHOLE_WARP;
            }
        }
        return now;
    }

    void report(Kind kind, const Area& area, const Access& now, const Access* other, int64_t offset) const {
        Report found = describe(kind, state.thread, {"", "", 0});
        found.code = now.code;
        found.array = area.name;
        found.offset = offset;
        if (other) {
            found.other_block = other->block;
            found.other_thread = other->thread & WHOLE_WARP ? SEVERAL : other->thread;
            found.other_code = other->code;
        }
        for (const Report& old : reports) {  // one for each pair of places will do
            const bool same_place = old.code == found.code && old.other_code == found.other_code;
            if (old.kind == kind && old.array == area.name && same_place) return;
        }
        add(found);
    }

    static constexpr uint32_t WHOLE_WARP = 1u << 31;  // with a thread number: several lanes of its warp
};

static Checker checker;

#pragma GCC visibility push(default)
extern "C" {

void emulation_fence() { checker.fence(); }
void emulation_atomic_access(const void* address, unsigned bytes, const void* pc) {
    checker.touch(static_cast<const char*>(address), bytes, true, true, pc);
}

#define EMULATION_ACCESS(NAME, BYTES, WRITE)                                             \
    void __tsan_##NAME(const char* address) {                                            \
        checker.touch(address, BYTES, WRITE, false, __builtin_return_address(0));        \
    }
#define EMULATION_ACCESSES(BYTES)                            \
    EMULATION_ACCESS(read##BYTES, BYTES, false)              \
    EMULATION_ACCESS(write##BYTES, BYTES, true)              \
    EMULATION_ACCESS(unaligned_read##BYTES, BYTES, false)    \
    EMULATION_ACCESS(unaligned_write##BYTES, BYTES, true)    \
    EMULATION_ACCESS(volatile_read##BYTES, BYTES, false)     \
    EMULATION_ACCESS(volatile_write##BYTES, BYTES, true)
EMULATION_ACCESSES(1)
EMULATION_ACCESSES(2)
EMULATION_ACCESSES(4)
EMULATION_ACCESSES(8)
EMULATION_ACCESSES(16)
void __tsan_read_range(const char* address, size_t bytes) {
    checker.touch(address, bytes, false, false, __builtin_return_address(0));
}
void __tsan_write_range(const char* address, size_t bytes) {
    checker.touch(address, bytes, true, false, __builtin_return_address(0));
}
uint32_t __tsan_atomic32_load(const volatile uint32_t* address, int) { return *address; }  // emulation::Shared::get
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

}  // extern "C"
#pragma GCC visibility pop

}  // namespace emulation
