// Rows of one token that GPUs which share the layers of a network store into each other's memory. Each element goes with a tag that
// says which meeting it is of, so that it needs no flag behind it.
#pragma once
#include "args_ranks.h"
#include "common.cuh"
#include "instructions.cuh"

#if !defined(EMULATED)

// Pairs of an f32 and a tag, which another GPU may read or write meanwhile: each pair as a whole.
__device__ __forceinline__ uint2 load_pair(uint64_t at) {
    uint2 v;
    asm volatile("ld.volatile.global.v2.u32 {%0,%1},[%2];" : "=r"(v.x), "=r"(v.y) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ uint4 load_pairs(uint64_t at) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3},[%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ void store_pair(uint64_t at, float v, uint32_t tag) {
    asm volatile("st.volatile.global.v2.u32 [%0],{%1,%2};" ::"l"(at), "r"(__float_as_uint(v)), "r"(tag) : "memory");
}
__device__ __forceinline__ void store_pairs(uint64_t at, float v, float w, uint32_t tag) {
    asm volatile("st.volatile.global.v4.u32 [%0],{%1,%3,%2,%3};" ::"l"(at), "r"(__float_as_uint(v)), "r"(__float_as_uint(w)), "r"(tag) : "memory");
}
// The time of all GPUs of a machine, in ns.
__device__ __forceinline__ uint64_t now_ns() {
    uint64_t ns;
    asm volatile("mov.u64 %0,%%globaltimer;" : "=l"(ns));
    return ns;
}

#endif

__device__ __forceinline__ float4 plus(float4 a, float4 b) {
    return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}

// Nobody waits for ever, and behind a meeting that failed nobody waits at all. Whether one has is looked up rarely: that is in memory of
// the host, and thousands of threads that ask for it make all others wait.
struct Patience {
    static constexpr uint64_t PAUSE = 2000000;  // ns
    uint64_t since = 0, next = 0;
    uint32_t turn = 0;

    __device__ __forceinline__ bool goes_on(const MeetingArgs& m, uint32_t peer) {
        if (++turn % 64) return true;
        const uint64_t now = now_ns();
        if (since && now < next) return true;
        next = now + min(PAUSE, m.patience);
        if (!since) {
            since = now;
            return true;
        }
        if (*(volatile uint32_t*)m.failed) return false;
        if (now - since <= m.patience) return true;
        *(volatile uint32_t*)m.failed = 1 + peer;
        return false;
    }
};

// The tag of a meeting of this launch.
__device__ __forceinline__ uint32_t tag_of(const MeetingArgs& m) {
    const uint64_t launch = *(volatile const uint64_t*)m.launch;
    return ((uint32_t)(launch >> 16) * 4 + (uint32_t)(launch & 3)) * 1024 + m.index + 1;
}

// Where a row lies in the memory of each rank: [2][n_ranks][capacity] pairs of an f32 and a tag.
struct TaggedRow {
    const uint64_t* memory;  // of each rank
    uint32_t capacity, n_ranks, index, tag;

    __device__ __forceinline__ uint64_t place(uint32_t at, uint32_t from, uint32_t i) const {
        return memory[at] + (((uint64_t)(index & 1) * n_ranks + from) * capacity + i) * 8;
    }
    // Element i, or four from there on, of what rank `from` has, into the memory of another one.
    __device__ __forceinline__ void send(uint32_t to, uint32_t from, uint32_t i, float v) const {
        store_pair(place(to, from, i), v, tag);
    }
    __device__ __forceinline__ void send(uint32_t to, uint32_t from, uint32_t i, float4 v) const {
        const uint64_t at = place(to, from, i);
        store_pairs(at, v.x, v.y, tag);
        store_pairs(at + 16, v.z, v.w, tag);
    }
    // Waits for element i, or four from there on, that rank `from` has stored here.
    __device__ __forceinline__ float take(const MeetingArgs& m, uint32_t from, uint32_t i) const {
        const uint64_t here = place(m.rank, from, i);
        Patience patience;
        uint2 p;
        do p = load_pair(here);
        while (p.y != tag && patience.goes_on(m, from));
        return __uint_as_float(p.x);
    }
    __device__ __forceinline__ float4 take_four(const MeetingArgs& m, uint32_t from, uint32_t i) const {
        const uint64_t here = place(m.rank, from, i);
        Patience patience;
        uint4 p, q;
        do {
            p = load_pairs(here);
            q = load_pairs(here + 16);
        } while ((p.y != tag || p.w != tag || q.y != tag || q.w != tag) && patience.goes_on(m, from));
        return make_float4(__uint_as_float(p.x), __uint_as_float(p.z), __uint_as_float(q.x), __uint_as_float(q.z));
    }
};
