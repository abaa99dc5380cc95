// Runs a CUDA kernel on one thread of the CPU: every thread of the grid is a coroutine, and a random, unfair
// scheduler lets warps and copies go on. It finds kernels that count on an order which nobody promised:
// those do not end, or their results differ from run to run.
//
// It knows no weak memory: what is written is seen by all at once.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace emulator {

struct Dim { uint32_t x = 1, y = 1, z = 1; };
// Where a number of threads wait for each other, again and again.
struct Meeting { uint32_t count = 0, generation = 0; };
// A barrier of shared memory, that counts arrivals and bytes.
struct Barrier {
    uint32_t arrivals, missing, phase;
    int64_t bytes;
    bool passed(uint32_t parity) const { return (phase & 1) != parity; }
};
// What a lane shows the others of its warp.
using Words = uint32_t[8];
// What a copy brings, and counts where it is done.
struct Piece { uint8_t* to; const void* from; uint32_t bytes; };
struct Warp {
    Meeting meeting;
    Words words[2][32];
};
struct Thread;
struct Block;
struct Cluster {
    Meeting meeting;
    std::vector<Block*> blocks;
};
struct Block {
    Cluster* cluster;
    Dim index;
    uint8_t* shared;
    std::map<uint32_t, Barrier> barriers;
    Meeting meetings[16];
    std::vector<Warp> warps;
    std::vector<Thread> threads;
};
// Shared memory of a block: room for what the kernel declares, and behind it what the launch adds.
constexpr uint32_t STATIC_BYTES = 16384, SHARED_BYTES = STATIC_BYTES + 232448;

// The thread that runs, and its grid.
extern Thread* thread;
extern Dim grid, block;
// Grows with everything that another thread may have waited for.
extern uint64_t progress;

// Lets others run.
void yield();
void meet(Meeting& meeting, uint32_t threads);
// Shows words to the warp; the words of all lanes, until the next exchange but one.
const Words* exchange(const uint32_t* words, uint32_t n);

void barrier_init(uint32_t barrier, uint32_t arrivals);
void barrier_announce(uint32_t barrier, uint32_t bytes);
void barrier_arrive(uint32_t barrier, uint32_t count);
void barrier_wait(uint32_t barrier, uint32_t parity);
// Done at some time later, and counted by the barrier.
void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier);
// Done at some time later, before the thread's next `arrive_copied` counts.
void copy(uint32_t to, const void* from, uint32_t bytes);
void arrive_copied(uint32_t barrier);
void bulk_prefetch(const void* from, uint32_t bytes);
// Read when the thread waits for it, and no sooner.
void bulk_store(void* to, uint32_t from, uint32_t bytes);
void bulk_stores_read();
// Another block of the cluster: a word to its shared memory, which a barrier there counts.
void store_remote(uint32_t block, uint32_t to, uint32_t word, uint32_t barrier);
// Done when the thread waits for its group, and no sooner; nothing to copy from stands for zeros.
void copy_in_group(uint32_t to, const void* from, uint32_t bytes);
void end_group();
void wait_for_groups(uint32_t left);

// Runs `kernel` in every thread, with clusters of so many blocks; what was wrong, or nothing.
std::string run(uint32_t blocks, uint32_t threads, uint32_t seed, const std::function<void()>& kernel, uint32_t cluster = 1);

}  // namespace emulator

#include <setjmp.h>
struct emulator::Thread {
    Dim index;
    uint32_t lane;
    Block* block;
    Warp* warp;
    jmp_buf place;
    std::vector<Piece> pieces;  // not yet handed over to `arrive_copied`
    std::deque<std::vector<Piece>> groups = {{}};  // the last one has no end yet
    std::vector<Piece> stores;  // not yet read
    bool begun = false, done = false;
    // What it waits for, so that it need not be asked.
    const Meeting* meeting = nullptr;
    uint32_t generation = 0;
    const Barrier* barrier = nullptr;
    uint32_t parity = 0;
    bool waits() const { return (meeting && meeting->generation == generation) || (barrier && !barrier->passed(parity)); }
};
