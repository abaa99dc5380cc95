// Groups of records that are asked for before they are decoded.
#pragma once
#include "halves.cuh"

// What a decoder asks for, kept until it comes: AskAhead loads, FromKept decodes.
struct KeptWords {
    uint32_t word[10];
};
struct AskAhead {
    KeptWords& kept;
    int at = 0;
    __device__ __forceinline__ uint4 v4(const void* p) {
        const uint4 v = FromCached::v4(p);
        keep(v.x), keep(v.y), keep(v.z), keep(v.w);
        return v;
    }
    __device__ __forceinline__ uint2 v2(const void* p) {
        const uint2 v = FromCached::v2(p);
        keep(v.x), keep(v.y);
        return v;
    }
    __device__ __forceinline__ uint32_t u32(const void* p) { return keep(FromCached::u32(p)); }
    __device__ __forceinline__ uint32_t u16(const void* p) { return keep(FromCached::u16(p)); }
    __device__ __forceinline__ uint32_t u8(const void* p) { return keep(FromCached::u8(p)); }
    __device__ __forceinline__ uint32_t keep(uint32_t v) { return kept.word[at++] = v; }
};
struct FromKept {
    const KeptWords& kept;
    int at = 0;
    __device__ __forceinline__ uint4 v4(const void*) {
        at += 4;
        return make_uint4(kept.word[at - 4], kept.word[at - 3], kept.word[at - 2], kept.word[at - 1]);
    }
    __device__ __forceinline__ uint2 v2(const void*) {
        at += 2;
        return make_uint2(kept.word[at - 2], kept.word[at - 1]);
    }
    __device__ __forceinline__ uint32_t u32(const void*) { return kept.word[at++]; }
    __device__ __forceinline__ uint32_t u16(const void*) { return kept.word[at++]; }
    __device__ __forceinline__ uint32_t u8(const void*) { return kept.word[at++]; }
};

// A thread's group: its place in its record, and what has been asked of it.
template <uint32_t T> struct KeptGroup {
    static constexpr uint32_t BEYOND = ~0u;  // the end of the row
    KeptWords words;
    uint32_t group;
    __device__ __forceinline__ void ask(const uint8_t* record, uint32_t its, uint32_t groups) {
        group = its < groups ? its : BEYOND;
        if (group == BEYOND) return;
        AskAhead from{words};
        Group unused;
        Codec<T>::template decode<AskAhead&>(record, its, groups, unused, from);
    }
    __device__ __forceinline__ void decode(Group& o) const {
        FromKept from{words};
        Codec<T>::template decode<FromKept&>(NULL, group, 0, o, from);
    }
};
