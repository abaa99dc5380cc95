// What adapters add to a product: out += scale * B (A x), of pairs of thin matrices that the sessions have.
//
// Which pairs a session has is in device memory, so a captured graph serves any. Order of additions, whatever the kernel and
// the rows beside: a row of A is cut into 16 parts for 32 lanes each, whose sums go over lanes and then over parts in a
// butterfly; a pair's ranks are added in ascending order, and pair after pair to the product, to which its residual was added
// before.
#pragma once
#include "args_adapters.h"
#include "common.cuh"

enum AdapterType : uint32_t { ADAPTER_F32 = 0, ADAPTER_F16 = 1, ADAPTER_BF16 = 2 };

// Numbers of a row of B.
__device__ __forceinline__ uint32_t ranks_of(const AdapterPair& pair) { return (pair.rank + 7) & ~7u; }

// The pairs of a linear layer of the network that a session has.
__device__ __forceinline__ const AdapterPair* pairs_of(const Session& s, uint32_t linear) {
    return (const AdapterPair*)s.adapters + linear * s.adapter_uses;
}

// The row of a linear layer that row `place` of a product's output is, and which layer that is.
__device__ __forceinline__ uint32_t adapted_row(const AdapterPiece* pieces, uint32_t place, uint32_t& linear) {
    uint32_t begin = 0, p = 0;
    while (place >= pieces[p].end) begin = pieces[p++].end;
    const AdapterPiece& piece = pieces[p];
    const uint32_t i = place - begin;
    linear = piece.linear;
    return i < piece.run ? piece.first + i : piece.first + i / piece.run * piece.step + i % piece.run;
}

__device__ __forceinline__ float2 two_numbers(uint32_t bits, uint32_t type) {
    if (type == ADAPTER_F16) return __half22float2(*(const __half2*)&bits);
    return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
}
// Eight numbers from element `i` on.
__device__ __forceinline__ void eight_numbers(const uint8_t* p, uint64_t i, uint32_t type, float (&v)[8]) {
    if (type == ADAPTER_F32) {
        const float4 *from = (const float4*)(p + i * 4), lo = from[0], hi = from[1];
        v[0] = lo.x; v[1] = lo.y; v[2] = lo.z; v[3] = lo.w;
        v[4] = hi.x; v[5] = hi.y; v[6] = hi.z; v[7] = hi.w;
        return;
    }
    const uint4 bits = *(const uint4*)(p + i * 2);
    const float2 x = two_numbers(bits.x, type), y = two_numbers(bits.y, type), z = two_numbers(bits.z, type), w = two_numbers(bits.w, type);
    v[0] = x.x; v[1] = x.y; v[2] = y.x; v[3] = y.y;
    v[4] = z.x; v[5] = z.y; v[6] = w.x; v[7] = w.y;
}
__device__ __forceinline__ float one_number(const uint8_t* p, uint64_t i, uint32_t type) {
    if (type == ADAPTER_F32) return ((const float*)p)[i];
    return two_numbers(((const uint16_t*)p)[i], type).x;
}
__device__ __forceinline__ const uint8_t* number_at(const uint8_t* p, uint64_t i, uint32_t type) { return p + i * (type == ADAPTER_F32 ? 4 : 2); }

// Eight elements of an input as int8.
__device__ __forceinline__ void eight_bytes(uint2 q, float (&x)[8]) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        x[j] = (float)(int8_t)(q.x >> 8 * j);
        x[4 + j] = (float)(int8_t)(q.y >> 8 * j);
    }
}
// sum + d * (w x), w x in ascending order.
__device__ __forceinline__ float add_eight(const float (&w)[8], const float (&x)[8], float d, float sum) {
    float s = __fmul_rn(w[0], x[0]);
#pragma unroll
    for (int j = 1; j < 8; j++) s = __fmaf_rn(w[j], x[j], s);
    return __fmaf_rn(d, s, sum);
}

// Row number `task` of all the matrices A of some pairs: its pair and its number there. All lanes of a warp ask for the same.
// Whether there is one.
__device__ __forceinline__ bool find_task(const AdapterPair* pairs, uint32_t n_pairs, uint32_t task, uint32_t& pair, uint32_t& k) {
    const uint32_t lane = threadIdx.x & 31;
    for (uint32_t base = 0; base < n_pairs; base += 32) {
        const uint32_t rank = base + lane < n_pairs ? pairs[base + lane].rank : 0;
        uint32_t sum = rank;
#pragma unroll
        for (int o = 1; o < 32; o <<= 1) {
            const uint32_t before = __shfl_up_sync(~0u, sum, o);
            if (lane >= o) sum += before;
        }
        const uint32_t found = __ballot_sync(~0u, task < sum);
        if (found) {
            const int at = __ffs(found) - 1;
            pair = base + at;
            k = task - __shfl_sync(~0u, sum - rank, at);
            return true;
        }
        task -= __shfl_sync(~0u, sum, 31);
    }
    return false;
}

constexpr uint32_t LORA_DOWN_THREADS = LORA_DOWN_PARTS * 32;

// The sum of the 16 lanes of a half warp, in each of them.
__device__ __forceinline__ float sum_of_parts(float v) {
#pragma unroll
    for (int o = LORA_DOWN_PARTS / 2; o; o >>= 1) v = __fadd_rn(v, __shfl_xor_sync(~0u, v, o));
    return v;
}

// Adds to `v` what a row of B and A x have for it.
template <class Thin> __device__ __forceinline__ float add_adapter(const uint8_t* b, uint32_t type, uint32_t rank, uint32_t at, float scale, Thin thin, float v) {
    float sum = 0.0f;
#pragma unroll 2
    for (uint32_t k = 0; k < rank; k += 8) {
        float w[8], t[8];
        eight_numbers(b, k, type, w);
        thin(at + k, t);
#pragma unroll
        for (int j = 0; j < 8; j++) sum = __fmaf_rn(w[j], t[j], sum);
    }
    return __fmaf_rn(scale, sum, v);
}
// Adds to `v` what pairs have for row `row` of their layer, of the thin row's part of that layer.
template <class Thin> __device__ __forceinline__ float add_adapters(const AdapterPair* pairs, uint32_t uses, uint32_t row, Thin thin, float v) {
    for (uint32_t u = 0; u < uses; u++) {
        const AdapterPair pair = pairs[u];
        if (pair.rank == 0) continue;
        v = add_adapter(number_at(pair.b, (uint64_t)row * ranks_of(pair), pair.b_type), pair.b_type, pair.rank, pair.at, pair.scale, thin, v);
    }
    return v;
}
