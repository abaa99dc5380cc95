// What the attention kernels of the decode step have in common.
#pragma once
#include "args_common.h"
#include "mma.cuh"
#include "quantize.cuh"
#include "rope.cuh"
#include "scores.cuh"

// Floats from a part to the next, which begin at multiples of 16 bytes.
__host__ __device__ constexpr uint32_t part_stride(uint32_t hd) { return (hd + 5) / 4 * 4; }

// Element `e` of a row of the result, past its gate.
__device__ __forceinline__ float let_through(const AttendArgs& a, uint32_t row, uint32_t e, float v) {
    if (!a.gate) return v;
    return let_through(__ldcg(a.gate + (uint64_t)row * a.qkv_stride + e), v);
}

// The gate of four elements of a row of the result, from `e` on.
struct Gate4 {
    float4 v;
    bool is_there;
    __device__ __forceinline__ Gate4(const AttendArgs& a, uint32_t row, uint32_t e, bool wanted) : v(make_float4(0, 0, 0, 0)), is_there(a.gate != NULL) {
        if (is_there && wanted) v = __ldcg((const float4*)(a.gate + (uint64_t)row * a.qkv_stride + e));
    }
    __device__ __forceinline__ float lets_through(int i, float x) const {
        return is_there ? let_through(i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w, x) : x;
    }
};

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
    if (a.q8) store_packed(a.q8, a.q8_scale, at, v, inside);
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

__device__ __forceinline__ void add_scaled(float (&total)[4], float f, float4 v) {
    total[0] = __fmaf_rn(f, v.x, total[0]);
    total[1] = __fmaf_rn(f, v.y, total[1]);
    total[2] = __fmaf_rn(f, v.z, total[2]);
    total[3] = __fmaf_rn(f, v.w, total[3]);
}

// Blocks that attend in tiles: what those of one row and those of several have in common, with HD dims of a head and W warps.

// Turns two scores of a column, of positions of this thread, into their weights, and keeps the column's largest score and the sum of its
// weights. The result is the factor of what was summed before.
__device__ __forceinline__ float weigh_scores(float& c, float& d, float& top, float& sum) {
    float largest = fmaxf(c, d);
#pragma unroll
    for (int o = 4; o < 32; o <<= 1) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, o));
    largest = fmaxf(largest, top);
    // A warp whose positions are all out of sight keeps what it has, which is nothing.
    const float keep = largest == -INFINITY ? 1.0f : exp2f(top - largest);
    top = largest;
    if (largest == -INFINITY) largest = 0.0f;
    c = exp2f(c - largest);
    d = exp2f(d - largest);
    sum = __fmaf_rn(sum, keep, __fadd_rn(c, d));
    return keep;
}

// Floats of what a warp has of a column: sums, its largest score, the sum of its weights.
template <int HD> constexpr int MERGE_WIDTH = HD + 4;

// Column `e` of two that a thread has, of `acc`, to where the warps are merged. Of 16 dims, it has two neighbours where PAIRS, or two that are 8 apart.
template <int HD, bool PAIRS> __device__ __forceinline__ void store_column(const float (&acc)[HD / 16][4], int e, float top, float sum, float* to) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int o = 4; o < 32; o <<= 1) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, o));
#pragma unroll
    for (int j = 0; j < HD / 16; j++) {
        if constexpr (PAIRS) {
            *(float2*)(to + j * 16 + (lane >> 2) * 2) = make_float2(acc[j][e], acc[j][e + 2]);
        } else {
            to[j * 16 + (lane >> 2)] = acc[j][e];
            to[j * 16 + 8 + (lane >> 2)] = acc[j][e + 2];
        }
    }
    if (lane < 4) { to[HD] = top; to[HD + 1] = sum; }
}

// Adds up four elements of a column from `d` on, of all warps in their order, and what the column's weights sum up to; `from` is the first
// warp's, and STEP the distance to the next.
template <int HD, int W, int STEP> __device__ __forceinline__ void merge_warps(const float* from, uint32_t d, float& largest, float& weight, float (&total)[4]) {
#pragma unroll
    for (int r = 0; r < W; r++)
        if (from[r * STEP + HD + 1] != 0.0f) largest = fmaxf(largest, from[r * STEP + HD]);
#pragma unroll
    for (int r = 0; r < W; r++) {
        const float4 v = *(const float4*)&from[r * STEP + d];
        const float sum = from[r * STEP + HD + 1], f = sum != 0.0f ? exp2f(from[r * STEP + HD] - largest) : 0.0f;
        weight = __fmaf_rn(f, sum, weight);
        add_scaled(total, f, v);
    }
}

// Four elements of a chunk's sums, which others join.
__device__ __forceinline__ void store_part(const AttendArgs& a, uint32_t row, uint32_t head, uint32_t chunk, uint32_t d, const float (&total)[4], float largest, float weight) {
    const uint32_t hd = a.layout.head_dim;
    float* to = a.parts + (((uint64_t)row * a.n_heads + head) * a.n_chunks + chunk) * part_stride(hd);
    *(float4*)(to + d) = make_float4(total[0], total[1], total[2], total[3]);
    if (d == 0) *(float2*)(to + hd) = make_float2(largest, weight);
}

// Whether this block is the last of `used` that share a ticket. What the others have stored is seen then.
__device__ __forceinline__ bool is_last_of(uint32_t* ticket, uint32_t used, uint32_t& is_last) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(ticket, 1) == used - 1;
        if (is_last) *ticket = 0;
    }
    __syncthreads();
    if (!is_last) return false;
    __threadfence();
    return true;
}

// A warp finds what each chunk of a head counts for, and behind MAX_PARTS what their sum is multiplied by. `ends` is where the first
// chunk has its largest score and the sum of its weights.
__device__ __forceinline__ void weigh_chunks(const AttendArgs& a, uint32_t head, const float* ends, uint32_t used, uint32_t stride, float* factor) {
    const uint32_t lane = threadIdx.x & 31;
    float largest = -INFINITY;
    for (uint32_t c = lane; c < used; c += 32) largest = fmaxf(largest, ends[c * stride]);
    largest = warp_max(largest);
    float weight = 0.0f;
    for (uint32_t c = lane; c < used; c += 32) {
        const float2 end = *(const float2*)(ends + c * stride);
        const float f = exp2f(end.x - largest);
        factor[c] = f;
        weight = __fmaf_rn(f, end.y, weight);
    }
    weight = warp_sum(weight);
    if (lane == 0) factor[MAX_PARTS] = 1.0f / with_sink(a.scores, head, largest, weight);
}

// Four elements of the sum of all chunks, the first of which are at `parts`.
__device__ __forceinline__ void join_chunks(const float* parts, uint32_t used, uint32_t stride, const float* factor, float (&total)[4]) {
#pragma unroll 4
    for (uint32_t c = 0; c < used; c++) add_scaled(total, factor[c], *(const float4*)(parts + c * stride));
}
