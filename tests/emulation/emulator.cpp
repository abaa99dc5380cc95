// macOS has these functions only for those who ask for them.
#define _XOPEN_SOURCE 700
#define _DARWIN_C_SOURCE
#define _DEFAULT_SOURCE
#include "emulator.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <sys/mman.h>
#include <ucontext.h>

namespace emulator {

Thread* thread;
Dim grid, block;
uint64_t progress;

namespace {

// Of a thread; its pages are taken when they are touched.
constexpr size_t STACK_BYTES = 64 * 1024;
// Turns without any progress after which nothing will come any more.
constexpr uint64_t PATIENCE = 3000000;

// Pieces that are on their way, and what they count for at a barrier.
struct Copy { std::vector<Piece> pieces; Barrier* barrier; uint32_t bytes, arrivals; };

std::vector<Copy> copies;
std::string wrong;
const std::function<void()>* kernel;
jmp_buf scheduler;

void begin() {
    (*kernel)();
    thread->done = true;
    progress++;
    _longjmp(scheduler, 1);
}

// Lets a thread run until it yields. It begins by way of a context of its own.
void go_on(Thread& t, uint8_t* stack) {
    thread = &t;
    if (_setjmp(scheduler)) return;
    if (t.begun) _longjmp(t.place, 1);
    t.begun = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = nullptr;
    makecontext(&context, begin, 0);
    setcontext(&context);
}

void end_phase(Barrier& b) {
    if (b.missing > 0 || b.bytes != 0) return;
    b.phase++;
    b.missing = b.arrivals;
    progress++;
}
Barrier& at(uint32_t barrier) {
    auto& all = thread->block->barriers;
    const auto found = all.find(barrier);
    if (found != all.end()) return found->second;
    static Barrier none;
    wrong = "a barrier that is not initialized";
    none = {1000000, 1000000, 0, 0};
    return none;
}

void complete(size_t i) {
    const Copy c = copies[i];
    copies[i] = copies.back();
    copies.pop_back();
    for (const Piece& p : c.pieces) memcpy(p.to, p.from, p.bytes);
    c.barrier->bytes -= c.bytes;
    c.barrier->missing -= c.arrivals;
    progress++;
    end_phase(*c.barrier);
}

// Who reads what is on its way reads nonsense.
Piece on_its_way(uint32_t to, const void* from, uint32_t bytes) {
    uint8_t* p = thread->block->shared + to;
    memset(p, 0x5a, bytes);
    return {p, from, bytes};
}

void fail(const char* what) {
    wrong = what;
    yield();
}

}  // namespace

void yield() {
    if (!_setjmp(thread->place)) _longjmp(scheduler, 1);
}

void meet(Meeting& m, uint32_t threads) {
    const uint32_t generation = m.generation;
    if (++m.count == threads) {
        m.count = 0;
        m.generation++;
        progress++;
        return;
    }
    thread->meeting = &m;
    thread->generation = generation;
    while (m.generation == generation) yield();
    thread->meeting = nullptr;
}

const Words* exchange(const uint32_t* words, uint32_t n) {
    Warp& w = *thread->warp;
    Words* all = w.words[w.meeting.generation & 1];
    memcpy(all[thread->lane], words, n * 4);
    meet(w.meeting, 32);
    return all;
}

void barrier_init(uint32_t barrier, uint32_t arrivals) { thread->block->barriers[barrier] = {arrivals, arrivals, 0, 0}; }
void barrier_announce(uint32_t barrier, uint32_t bytes) { at(barrier).bytes += bytes; }
void barrier_arrive(uint32_t barrier, uint32_t count) {
    Barrier& b = at(barrier);
    if (count > b.missing) return fail("more arrive at a barrier than it has room for");
    b.missing -= count;
    progress++;
    end_phase(b);
}
void barrier_wait(uint32_t barrier, uint32_t parity) {
    thread->barrier = &at(barrier);
    thread->parity = parity;
    while (!thread->barrier->passed(parity)) yield();
    thread->barrier = nullptr;
}

void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
    if (bytes == 0 || (to | bytes | (uintptr_t)from) % 16 || to + bytes > SHARED_BYTES) return fail("a copy of wrong size or alignment");
    copies.push_back({{on_its_way(to, from, bytes)}, &at(barrier), bytes, 0});
}
void copy(uint32_t to, const void* from, uint32_t bytes) {
    if ((to | (uintptr_t)from) % bytes || to + bytes > SHARED_BYTES) return fail("a copy of wrong alignment");
    thread->pieces.push_back(on_its_way(to, from, bytes));
}
void arrive_copied(uint32_t barrier) {
    Barrier& b = at(barrier);
    if (b.missing == 0) return fail("more arrive at a barrier than it has room for");
    copies.push_back({std::move(thread->pieces), &b, 0, 1});
    thread->pieces.clear();
}
void store_remote(uint32_t block, uint32_t to, uint32_t word, uint32_t barrier) {
    Block& b = *thread->block->cluster->blocks[block];
    const auto counted = b.barriers.find(barrier);
    if (counted == b.barriers.end()) return fail("a barrier of another block that is not there yet");
    memcpy(b.shared + to, &word, 4);
    counted->second.bytes -= 4;
    progress++;
    end_phase(counted->second);
}
void bulk_prefetch(const void* from, uint32_t bytes) {
    if (bytes == 0 || (bytes | (uintptr_t)from) % 16) fail("a prefetch of wrong size or alignment");
}

void bulk_store(void* to, uint32_t from, uint32_t bytes) {
    if (bytes == 0 || (from | bytes | (uintptr_t)to) % 16 || from + bytes > SHARED_BYTES) return fail("a store of wrong size or alignment");
    thread->stores.push_back({(uint8_t*)to, thread->block->shared + from, bytes});
}
void bulk_stores_read() {
    for (const Piece& p : thread->stores) memcpy(p.to, p.from, p.bytes);
    thread->stores.clear();
}

void copy_in_group(uint32_t to, const void* from, uint32_t bytes) {
    if ((to | (uintptr_t)from) % bytes || to + bytes > SHARED_BYTES) return fail("a copy of wrong alignment");
    thread->groups.back().push_back(on_its_way(to, from, bytes));
}
void end_group() { thread->groups.emplace_back(); }
void wait_for_groups(uint32_t left) {
    for (; thread->groups.size() > left + 1; thread->groups.pop_front())
        for (const Piece& p : thread->groups.front()) {
            if (p.from) memcpy(p.to, p.from, p.bytes);
            else memset(p.to, 0, p.bytes);
        }
}

std::string run(uint32_t n_blocks, uint32_t n_threads, uint32_t seed, const std::function<void()>& of_each_thread, uint32_t cluster) {
    std::mt19937 random(seed);
    wrong.clear();
    copies.clear();
    kernel = &of_each_thread;
    grid = {n_blocks};
    block = {n_threads};
    const size_t bytes = STACK_BYTES * n_threads * n_blocks;
    auto* stacks = (uint8_t*)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stacks == MAP_FAILED) return "no memory for stacks";
    std::vector<std::unique_ptr<uint32_t[]>> memory;
    std::vector<Block> blocks(n_blocks);
    std::vector<Cluster> clusters(n_blocks / cluster);
    struct Turn { Block* block; uint32_t warp; uint8_t* stacks; bool favoured; };
    std::vector<Turn> turns;
    for (uint32_t i = 0; i < n_blocks; i++) {
        Block& b = blocks[i];
        b.index = {i, 0, 0};
        b.cluster = &clusters[i / cluster];
        b.cluster->blocks.push_back(&b);
        memory.emplace_back(new uint32_t[SHARED_BYTES / 4 + 256]);
        for (uint32_t w = 0; w < SHARED_BYTES / 4 + 256; w++) memory.back()[w] = 0x7fc5a5a5;  // not a number
        b.shared = (uint8_t*)(((uintptr_t)memory.back().get() + 1023) / 1024 * 1024);
        b.warps.resize(n_threads / 32);
        b.threads.resize(n_threads);
        for (uint32_t t = 0; t < n_threads; t++) {
            b.threads[t].index = {t, 0, 0};
            b.threads[t].lane = t % 32;
            b.threads[t].block = &b;
            b.threads[t].warp = &b.warps[t / 32];
        }
        for (uint32_t w = 0; w < n_threads / 32; w++)
            turns.push_back({&b, w, stacks + STACK_BYTES * (i * n_threads + w * 32), true});
    }
    uint32_t copy_odds = 1;
    uint64_t last = progress, idle = 0, n = 0;
    while (!turns.empty() && wrong.empty()) {
        // Whom the scheduler favours changes now and then, from nobody to a few, most or all; and so does how
        // long copies take.
        if (n++ % 4096 == 0) {
            const uint32_t one_in = 1u << random() % 5;
            const bool few = random() % 2;
            for (Turn& t : turns) t.favoured = (random() % one_in == 0) == few;
            copy_odds = 1u << random() % 8;
        }
        if (!copies.empty() && random() % 64 < copy_odds) complete(random() % copies.size());
        const size_t i = random() % turns.size();
        const Turn& turn = turns[i];
        if (!turn.favoured && random() % 256 != 0) continue;
        // The warp's threads go on as far as they can together.
        bool done = true;
        for (int round = 0; round < 40; round++) {
            const uint64_t before = progress;
            done = true;
            for (uint32_t l = 0; l < 32; l++) {
                Thread& t = turn.block->threads[turn.warp * 32 + l];
                if (!t.done && !t.waits()) go_on(t, turn.stacks + STACK_BYTES * l);
                done &= t.done;
            }
            if (progress == before) break;
        }
        if (done) turns.erase(turns.begin() + i);
        if (progress != last) {
            last = progress;
            idle = 0;
        } else if (++idle > PATIENCE) {
            wrong = "it does not end";
        }
    }
    if (wrong.empty() && !copies.empty()) wrong = "copies are under way when it ends";
    for (const Block& b : blocks)
        for (const Thread& t : b.threads)
            if (wrong.empty() && !t.stores.empty()) wrong = "a block ends before its stores have been read";
    munmap(stacks, bytes);
    return wrong;
}

}  // namespace emulator
