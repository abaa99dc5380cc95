// The input of a product of the kernel of a whole step (persistent.cuh), as int8.
#pragma once
#include "persistent_ops.cuh"
#include "quantize.cuh"

#if __CUDA_ARCH__ >= 900

// Sums of the two halves of a group, in its first lane. Whole warps call it.
struct GroupSums {
    int first, second;
};
__device__ __forceinline__ GroupSums group_sums(const PackedValues& p) {
    int sum = __dp4a((int)p.q, 0x01010101, 0);
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    return GroupSums{sum, __shfl_xor_sync(~0u, sum, 4)};
}

// The input of a product in shared memory: per group 16 bytes of its first and, in another plane, of its
// second half, and {scale, sum of the first half, of the second} as {float, int, int}.
struct Input {
    uint8_t* at;
    uint32_t groups;
    __device__ __forceinline__ uint4* half(uint32_t h) const { return (uint4*)(at + h * groups * 16); }
    __device__ __forceinline__ uint4* sums() const { return (uint4*)(at + groups * 32); }
    __device__ __forceinline__ float* after() const { return (float*)(at + groups * 48); }

    // Four values of one of the 8 lanes that share a group, from element `place` on. Whole warps call it.
    __device__ __forceinline__ void put(uint32_t place, const PackedValues& p, bool inside) const {
        const GroupSums s = group_sums(p);
        const uint32_t group = place / 32, word = place / 4 & 7;
        if (!inside) return;
        ((uint32_t*)(half(word >> 2) + group))[word & 3] = p.q;
        if (word == 0) sums()[group] = make_uint4(__float_as_uint(p.scale), (uint32_t)s.first, (uint32_t)s.second, 0);
    }
};

// The same in global memory, made by all blocks together, in numbers that are not UNWRITTEN: no byte is
// -128, so no word of four has only ones after this flip; and sums are raised.
constexpr uint32_t FLIP = 0x7f7f7f7f, RAISE = 1 << 16;

// This block's share of the groups: the first one of `block`.
__device__ __forceinline__ uint32_t first_group(uint32_t groups, uint32_t block) { return groups * block / gridDim.x; }

__device__ __forceinline__ void encode_share(const ProductOp& op) {
    const uint32_t thread = Workers::thread(), word = thread & 7, end = first_group(op.groups, blockIdx.x + 1);
    for (uint32_t group = first_group(op.groups, blockIdx.x) + thread / 8; group - (thread & 31) / 8 < end; group += WORKERS / 8) {
        const bool inside = group < end;
        const float4* from = (const float4*)(op.x + group * 32 + word * 4);
        float4 v = inside ? Awaited::first(from) : make_float4(0, 0, 0, 0);
        if (inside) Awaited::finish(v, from);
        const float r[4] = {v.x, v.y, v.z, v.w};
        const PackedValues p = pack_q8(r);
        const GroupSums s = group_sums(p);
        if (!inside) continue;
        __stcg(op.encoded + ((word >> 2) * op.groups + group) * 4 + (word & 3), p.q ^ FLIP);
        if (word == 0)
            __stcg((uint4*)op.encoded + 2 * op.groups + group, make_uint4(__float_as_uint(p.scale), s.first + RAISE, s.second + RAISE, 0));
    }
}
__device__ __forceinline__ void take_encoded(const ProductOp& op, const Input& input) {
    constexpr int N = 4;
    const float4* from = (const float4*)op.encoded;
    for (uint32_t first = Workers::thread(); first < 3 * op.groups; first += N * WORKERS) {
        float4 v[N];
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = Awaited::first(from + min(first + i * WORKERS, 3 * op.groups - 1));
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint32_t at = first + i * WORKERS;
            if (at >= 3 * op.groups) break;
            Awaited::finish(v[i], from + at);
            const bool sums = at >= 2 * op.groups;
            const uint32_t flip = sums ? 0 : FLIP, raise = sums ? RAISE : 0;
            ((uint4*)input.at)[at] = make_uint4(__float_as_uint(v[i].x) ^ flip, (__float_as_uint(v[i].y) ^ flip) - raise,
                                                (__float_as_uint(v[i].z) ^ flip) - raise, __float_as_uint(v[i].w) ^ flip);
        }
    }
}

// Fills it.
__device__ __forceinline__ void take_input(const ProductOp& op, const Input& input, float* scratch) {
    const uint32_t width = op.groups * 32, thread = Workers::thread(), lane = thread & 31;
    if (op.encoded) {
        take_encoded(op, input);
        return;
    }
    if (op.norm.weight) {
        NormRow<Workers> norm;
        norm.load_weights(op.norm, width);
        norm.load<Awaited>(op.norm, op.x, width, op.inverse_len, scratch);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t at = norm.place(i);
            if (at - lane * 4 >= width) break;
            float r[4];
            norm.values(op.norm, i, width, r);
            input.put(at, pack_q8(r), at < width);
        }
        return;
    }
    constexpr int N = 8;
    for (uint32_t base = thread * 4; base - lane * 4 < width; base += N * 4 * WORKERS) {
        float4 v[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint32_t at = base + i * 4 * WORKERS;
            v[i] = at < width ? Awaited::first((const float4*)(op.x + at)) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint32_t at = base + i * 4 * WORKERS;
            if (at - lane * 4 >= width) break;
            if (at < width) Awaited::finish(v[i], (const float4*)(op.x + at));
            const float r[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
            input.put(at, pack_q8(r), at < width);
        }
    }
}

// A lane's group of the input, and its product with a group of weights: the bits of QuantizedInput::dot.
struct LaneInput {
    int x[8], s0, s1;
    float d, sum;
    __device__ __forceinline__ void load(const Input& input, uint32_t group) {
        const uint4 p = input.half(0)[group], q = input.half(1)[group], k = input.sums()[group];
        x[0] = p.x; x[1] = p.y; x[2] = p.z; x[3] = p.w;
        x[4] = q.x; x[5] = q.y; x[6] = q.z; x[7] = q.w;
        d = __uint_as_float(k.x);
        s0 = (int)k.y;
        s1 = (int)k.z;
        sum = (float)(s0 + s1);
    }
    template <uint32_t T> __device__ __forceinline__ float dot(const Group& g) const {
        using C = Codec<T>;
        int i0 = MAGIC_BITS - C::OFFSET * s0, i1 = (C::HALVES ? MAGIC_BITS : 0) - C::OFFSET * s1;
#pragma unroll
        for (int t = 0; t < 4; t++) {
            i0 = __dp4a((int)g.w[t], x[t], i0);
            i1 = __dp4a((int)g.w[4 + t], x[4 + t], i1);
        }
        float v;
        if (C::HALVES) v = __fmaf_rn(g.d[1], lowered(i1), __fmul_rn(g.d[0], lowered(i0)));
        else v = __fmul_rn(g.d[0], lowered(i0 + i1));
        if (C::MINS) {
            if (C::HALVES) v = __fmaf_rn(-g.m[1], (float)s1, __fmaf_rn(-g.m[0], (float)s0, v));
            else v = __fmaf_rn(-g.m[0], sum, v);
        }
        return __fmul_rn(d, v);
    }
};

// A lane's product with group `g` of a record of n groups.
template <uint32_t T> __device__ __forceinline__ float record_dot(const LaneInput& x, const uint8_t* r, uint32_t g, uint32_t n) {
    if constexpr (T == Q4_K) {
        // The high nibbles stay where they are, for their products are divided by 16 later.
        const uint4 q = *(const uint4*)(r + g * 16);
        const uint32_t w[4] = {q.x, q.y, q.z, q.w};
        int low = MAGIC_BITS, high = 0;
#pragma unroll
        for (int t = 0; t < 4; t++) {
            low = __dp4a((int)(w[t] & 0x0f0f0f0f), x.x[t], low);
            high = dot_unsigned(w[t] & 0xf0f0f0f0, x.x[4 + t], high);
        }
        float scale, minimum;
        Codec<T>::template scales<FromShared>(r, g, n, scale, minimum);
        const float v = __fmul_rn(scale, lowered(low + (high >> 4)));
        return __fmul_rn(x.d, __fmaf_rn(-minimum, x.sum, v));
    } else {
        Group group;
        Codec<T>::template decode<FromShared>(r, g, n, group);
        return x.dot<T>(group);
    }
}

#endif
