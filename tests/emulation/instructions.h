// What kernels/instructions.cuh, bulk.cuh and mma.cuh have, for the emulator.
#pragma once

#define DYNAMIC_SHARED(name) uint8_t* const name = emulator::thread->block->shared + emulator::STATIC_BYTES
#define STATIC_SHARED(type, name)                          \
    static_assert(sizeof(type) <= emulator::STATIC_BYTES); \
    type& name = *(type*)emulator::thread->block->shared

inline void release_dependents() {}
inline void wait_for_producers() {}
inline uint32_t cluster_rank() { return blockIdx.x % (uint32_t)emulator::thread->block->cluster->blocks.size(); }
template <int N> inline int kept() { return N; }
inline uint32_t kept(uint32_t n) { return n; }
inline uint32_t own_zero() { return 0; }
inline uint4 load_once(const void* p) { return *(const uint4*)p; }
inline uint32_t permuted(uint32_t low, uint32_t high, uint32_t indices) {
    uint32_t v = __byte_perm(low, high, indices);
    for (int i = 0; i < 4; i++)
        if (indices >> 4 * i & 8) v = (v & ~(0xffu << 8 * i)) | (v >> (8 * i + 7) & 1 ? 0xffu : 0u) << 8 * i;
    return v;
}
inline float reciprocal(float v) { return 1.0f / v; }
inline int dot_unsigned(uint32_t a, int b, int c) {
    for (int i = 0; i < 32; i += 8) c += (int)(uint8_t)(a >> i) * (int)(int8_t)(b >> i);
    return c;
}

template <class T> inline T* kept(T* p) { return p; }
inline float load_shared(uint32_t at) {
    float v;
    memcpy(&v, emulator::thread->block->shared + at, 4);
    return v;
}
inline void prefetch_l2(const void*) {}
inline uint64_t load_shared_word(const uint64_t* p) { return *(const volatile uint64_t*)p; }
inline void store_shared_word(uint64_t* p, uint64_t v) {
    *(volatile uint64_t*)p = v;
    emulator::progress++;
}
// ranks.cuh
inline uint2 load_pair(uint64_t at) { return *(const uint2*)at; }
inline uint4 load_pairs(uint64_t at) { return *(const uint4*)at; }
inline void store_pair(uint64_t at, float v, uint32_t tag) {
    memcpy((void*)at, &v, 4);
    memcpy((void*)(at + 4), &tag, 4);
}
inline void store_pairs(uint64_t at, float v, float w, uint32_t tag) {
    store_pair(at, v, tag);
    store_pair(at + 8, w, tag);
}
inline uint64_t now_ns() { return 0; }

inline uint32_t warp_largest(uint32_t v) {
    const emulator::Words* all = emulator::exchange(&v, 1);
    for (int i = 0; i < 32; i++) v = v > all[i][0] ? v : all[i][0];
    return v;
}

// bulk.cuh
inline void barrier_init(uint32_t barrier, uint32_t arrivals) { emulator::barrier_init(barrier, arrivals); }
inline void fence_shared() {}
inline void barrier_arrive(uint32_t barrier) { emulator::barrier_arrive(barrier, 1); }
inline void barrier_expect(uint32_t barrier, uint32_t bytes) {
    emulator::barrier_announce(barrier, bytes);
    emulator::barrier_arrive(barrier, 1);
}
inline void barrier_wait(uint32_t barrier, uint32_t parity) { emulator::barrier_wait(barrier, parity); }
inline void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
    emulator::bulk_copy(to, from, bytes, barrier);
}
inline void bulk_copy_once(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) { bulk_copy(to, from, bytes, barrier); }
inline void bulk_prefetch(const void* from, uint32_t bytes) { emulator::bulk_prefetch(from, bytes); }
inline void bulk_store_once(void* to, uint32_t from, uint32_t bytes) { emulator::bulk_store(to, from, bytes); }
inline void bulk_stores_read() { emulator::bulk_stores_read(); }
inline void copy_piece(uint32_t to, const void* from) { emulator::copy(to, from, 16); }
inline void copy_word(uint32_t to, const void* from) { emulator::copy(to, from, 4); }
inline void barrier_arrive_copied(uint32_t barrier) { emulator::arrive_copied(barrier); }
inline void cluster_sync() {
    emulator::Cluster& c = *emulator::thread->block->cluster;
    emulator::meet(c.meeting, blockDim.x * (uint32_t)c.blocks.size());
}
inline void cluster_sync_shared() { cluster_sync(); }
inline void cluster_join() { cluster_sync(); }
inline void cluster_arrive() {}
inline void cluster_wait() { cluster_sync(); }
inline void fence_barriers() {}
constexpr uint32_t REMOTE = 1 << 24;  // more than the addresses of a block
inline uint32_t remote_address(uint32_t address, uint32_t rank) { return address + rank * REMOTE; }
inline float load_remote(uint32_t remote) {
    float v;
    memcpy(&v, emulator::thread->block->cluster->blocks[remote / REMOTE]->shared + remote % REMOTE, 4);
    return v;
}
inline void store_remote(uint32_t remote, float v, uint32_t barrier) {
    uint32_t word;
    memcpy(&word, &v, 4);
    emulator::store_remote(remote / REMOTE, remote % REMOTE, word, barrier % REMOTE);
}

// mma.cuh
inline void copy16(uint32_t to, const void* from, bool valid) { emulator::copy_in_group(to, valid ? from : nullptr, 16); }
inline void copy16_once(uint32_t to, const void* from, bool valid) { copy16(to, from, valid); }
inline void copies_commit() { emulator::end_group(); }
template <int LEFT> inline void copies_wait() { emulator::wait_for_groups(LEFT); }
// Four matrices of 8 x 8, whose rows' addresses the lanes have.
template <class Element> inline void load_matrices(uint32_t* r, uint32_t from, Element element) {
    const emulator::Words* rows = emulator::exchange(&from, 1);
    const uint32_t lane = emulator::thread->lane;
    for (uint32_t m = 0; m < 4; m++) {
        r[m] = 0;
        for (uint32_t e = 0; e < 2; e++) {
            const auto [row, column] = element(lane / 4, lane % 4 * 2 + e);
            uint16_t v;
            memcpy(&v, emulator::thread->block->shared + rows[m * 8 + row][0] + column * 2, 2);
            r[m] |= (uint32_t)v << 16 * e;
        }
    }
    __syncwarp();
}
struct Cell { uint32_t row, column; };
inline void load_matrices(uint32_t* r, uint32_t from) {
    load_matrices(r, from, [](uint32_t row, uint32_t column) { return Cell{row, column}; });
}
inline void load_matrices_transposed(uint32_t* r, uint32_t from) {
    load_matrices(r, from, [](uint32_t row, uint32_t column) { return Cell{column, row}; });
}
inline float half_of(uint32_t pair, uint32_t i) { return __half2float(__ushort_as_half((unsigned short)(pair >> 16 * i))); }
inline uint32_t transposed(uint32_t pair) {
    const emulator::Words* all = emulator::exchange(&pair, 1);
    const uint32_t lane = emulator::thread->lane, row = lane / 4;
    auto element = [&](uint32_t from) { return all[from * 4 + row / 2][0] >> 16 * (row & 1) & 0xffff; };
    return element(lane % 4 * 2) | element(lane % 4 * 2 + 1) << 16;
}
// A fragment of int8 has four of them a register: a0 those of summands 4 * (lane % 4), a1 of the row 8 below, a2 and
// a3 of summands 16 further.
inline void mma_s8(int* c, const int* origin, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    const uint32_t fragments[6] = {a0, a1, a2, a3, b0, b1};
    const emulator::Words* all = emulator::exchange(fragments, 6);
    const uint32_t lane = emulator::thread->lane;
    for (uint32_t e = 0; e < 4; e++) {
        const uint32_t row = lane / 4, below = e >> 1, column = lane % 4 * 2 + (e & 1);
        c[e] = origin[e];
        for (uint32_t k = 0; k < 8; k++)
            c[e] = __dp4a((int)all[row * 4 + k % 4][k / 4 * 2 + below], (int)all[column * 4 + k % 4][4 + k / 4], c[e]);
    }
}
inline void mma_s8_half(int* c, const int* origin, uint32_t a0, uint32_t a1, uint32_t b0) {
    mma_s8(c, origin, a0, a1, 0, 0, b0, 0);
}
inline void mma(float* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
    const uint32_t fragments[6] = {a[0], a[1], a[2], a[3], b0, b1};
    const emulator::Words* all = emulator::exchange(fragments, 6);
    const uint32_t lane = emulator::thread->lane;
    for (uint32_t e = 0; e < 4; e++) {
        const uint32_t row = lane / 4, below = e >> 1, column = lane % 4 * 2 + (e & 1);
        for (uint32_t k = 0; k < 16; k++) {
            const uint32_t owner = k % 8 / 2, second = k / 8;
            c[e] += half_of(all[row * 4 + owner][second * 2 + below], k & 1) * half_of(all[column * 4 + owner][4 + second], k & 1);
        }
    }
}
