// What the attention kernels of the decode step have in common.
#pragma once
#include "args_common.h"
#include "mma.cuh"
#include "quantize.cuh"
#include "rope.cuh"
#include "scores.cuh"

// Parts of a context at most: those of a head fit in a block's tiles (fewer of them where tiles are of one stage).
constexpr uint32_t MAX_PARTS = 120;
// Floats from a part to the next, which begin at multiples of 16 bytes.
__host__ __device__ constexpr uint32_t part_stride(uint32_t hd) { return (hd + 5) / 4 * 4; }

// Element `e` of a row of the result, past its gate.
__device__ __forceinline__ float let_through(const AttendArgs& a, uint32_t row, uint32_t e, float v) {
    if (!a.gate) return v;
    return __fdividef(v, 1.0f + __expf(-__ldcg(a.gate + (uint64_t)row * a.qkv_stride + e)));
}

// An element of the result, with the warp's 32 being a group; `at` is the element's place.
__device__ __forceinline__ void store_result(const AttendArgs& a, uint64_t at, float v) {
    if (a.f32) a.f32[at] = v;
    if (a.q8) {
        float largest = warp_max(fabsf(v)), id = largest > 0.0f ? 127.0f / largest : 0.0f;
        bool bad = __any_sync(~0u, !(v == v)) || largest > 3.4e38f;
        a.q8[at] = bad ? 1 : (int8_t)max(-127, min(127, __float2int_rn(__fmul_rn(v, id))));
        if ((threadIdx.x & 31) == 0) a.q8_scale[at / 32] = bad ? NAN : __fmul_rn(largest, 1.0f / 127.0f);
    }
}

// Four elements of the result, with 8 lanes having a group; whole warps call it.
__device__ __forceinline__ void store_four(const AttendArgs& a, uint64_t at, const float* v, bool inside) {
    if (a.f32 && inside) *(float4*)(a.f32 + at) = make_float4(v[0], v[1], v[2], v[3]);
    if (!a.q8) return;
    const PackedValues p = pack_q8(v);
    if (!inside) return;
    *(uint32_t*)(a.q8 + at) = p.q;
    if ((threadIdx.x & 7) == 0) a.q8_scale[at / 32] = p.scale;
}

// The positions that a step attends to are cut into chunks of this many, which depends on nothing but
// their number, so that the order of additions does not depend on who shares the batch.
__device__ __forceinline__ uint32_t chunk_positions(uint32_t length, uint32_t n_chunks) {
    return max(128u, ((length + n_chunks - 1) / n_chunks + KV_TILE - 1) / KV_TILE * KV_TILE);
}

// The session of a row.
__device__ __forceinline__ const Session* session_of(const AttendArgs& a, uint32_t row) { return a.sessions[a.prefill ? 0 : row]; }

// What a row's position sees, cut into chunks.
struct Chunks {
    uint32_t length;  // positions of the context, the current one included
    uint32_t first;   // the first that is seen
    uint32_t begin;   // and where its tile begins, which is where the first chunk does
    uint32_t per;     // positions of a chunk
    uint32_t used;    // chunks
};
// WITHIN: of layers, too, whose window is CHUNKED.
template <bool WITHIN = false> __device__ __forceinline__ Chunks chunks_of_length(const AttendArgs& a, uint32_t length) {
    Chunks c;
    c.length = length;
    c.first = WITHIN ? first_reached(a.layout, c.length) : first_seen(a.layout, c.length);
    c.begin = c.first / KV_TILE * KV_TILE;
    c.per = chunk_positions(c.length - c.begin, a.n_chunks);
    c.used = (c.length - c.begin + c.per - 1) / c.per;
    return c;
}
template <bool WITHIN = false> __device__ __forceinline__ Chunks chunks_of(const AttendArgs& a, const Session* s, uint32_t row) {
    return chunks_of_length<WITHIN>(a, s->position + 1 + (a.prefill ? a.first_row + row : 0));
}
