// The input row of a product, as int8 in shared memory, and the product of a lane's group with weights.
#pragma once
#include "blocks.cuh"
#include "norm.cuh"
#include "quantize.cuh"

// Of the blocks that make their input.
constexpr uint32_t INPUT_THREADS = WARPS * 32;

// As it is in global memory: 32 bytes a group, then a scale a group.
struct Input {
    // Elements that a block rounds at a time.
    static constexpr uint32_t STEP = INPUT_THREADS * 4;
    uint8_t* at;
    uint32_t groups;
    __device__ __forceinline__ float* scales() const { return (float*)(at + groups * 32); }
    __device__ __forceinline__ float* after() const { return (float*)(at + groups * INPUT_BYTES); }

    // Four values of one of the 8 lanes that share a group, from element `place` on.
    __device__ __forceinline__ void put(uint32_t place, const PackedValues& p) const {
        *(uint32_t*)(at + place) = p.q;
        if (place % 32 == 0) scales()[place / 32] = p.scale;
    }
    // Rounds N times four elements of each thread, from `first` on and each time STEP further, which `values(i, r)` makes: two at a time, that
    // they need not wait for each other. Whole warps call it.
    template <int N, class Values> __device__ __forceinline__ void take_rows(uint32_t first, Values values) const {
        const uint32_t width = groups * 32, thread = threadIdx.x;
        uint8_t* const to = at + first;
        float* const scales_to = scales() + first / 32;
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            if (first - (thread & 31) * 4 + i * STEP >= width) break;
            PackedValues p[2];
#pragma unroll
            for (int j = 0; j < 2 && i + j < N; j++) {
                float r[4];
                values(i + j, r);
                p[j] = pack_q8(r);
            }
#pragma unroll
            for (int j = 0; j < 2 && i + j < N; j++) {
                if (first + (i + j) * STEP >= width) break;
                *(uint32_t*)(to + (i + j) * STEP) = p[j].q;
                if (thread % 8 == 0) scales_to[(i + j) * (STEP / 32)] = p[j].scale;
            }
        }
    }
    // The whole block rounds a row of f32; `asked` is called when the first of it has been asked for.
    template <class Asked> __device__ __forceinline__ void take(const float* x, Asked asked) const {
        constexpr int N = 8;
        const uint32_t width = groups * 32;
        uint32_t first = threadIdx.x * 4;
        float4 v[N];
        auto ask = [&] {
#pragma unroll
            for (int i = 0; i < N; i++) v[i] = first + i * STEP < width ? __ldcg((const float4*)(x + first + i * STEP)) : make_float4(0, 0, 0, 0);
        };
        ask();
        asked();
        for (;;) {
            take_rows<N>(first, [&](int i, float* r) { r[0] = v[i].x; r[1] = v[i].y; r[2] = v[i].z; r[3] = v[i].w; });
            first += N * STEP;
            if (first - (threadIdx.x & 31) * 4 >= width) return;
            ask();
        }
    }
    // Or the norm of a row, which NormRow has loaded.
    template <int N> __device__ __forceinline__ void take(const NormRowOf<N, INPUT_THREADS>& norm, const NormArgs& a) const {
        take_rows<N>(norm.place(0), [&](int i, float* r) { norm.values(a, i, groups * 32, r); });
    }
    // The same of a row that may have no norm.
    template <int N> __device__ __forceinline__ void take_either(const NormRowOf<N, INPUT_THREADS>& row, const NormArgs& a) const {
        take_rows<N>(row.place(0), [&](int i, float* r) {
            r[0] = row.v[i].x; r[1] = row.v[i].y; r[2] = row.v[i].z; r[3] = row.v[i].w;
            if (a.weight) row.values(a, i, groups * 32, r);
        });
    }
};

// A lane's group of the input, and its product with a group of weights: the bits of QuantizedInput::dot.
struct LaneInput {
    int x[8], s0, s1;
    float d, sum;
    __device__ __forceinline__ void load(const Input& input, uint32_t group) {
        const uint4 *from = (const uint4*)(input.at + group * 32), p = from[0], q = from[1];
        x[0] = p.x; x[1] = p.y; x[2] = p.z; x[3] = p.w;
        x[4] = q.x; x[5] = q.y; x[6] = q.z; x[7] = q.w;
        d = input.scales()[group];
        s0 = s1 = 0;
#pragma unroll
        for (int t = 0; t < 4; t++) {
            s0 = __dp4a(x[t], 0x01010101, s0);
            s1 = __dp4a(x[4 + t], 0x01010101, s1);
        }
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

// The same of several rows, whose inputs share what is made of the weights.
template <uint32_t T, int N> __device__ __forceinline__ void record_dots(const LaneInput (&x)[N], const uint8_t* r, uint32_t g, uint32_t n, float (&out)[N]) {
    if constexpr (N == 1) {
        out[0] = record_dot<T>(x[0], r, g, n);
    } else if constexpr (T == Q4_K) {
        const uint4 q = *(const uint4*)(r + g * 16);
        const uint32_t w[4] = {q.x, q.y, q.z, q.w};
        float scale, minimum;
        Codec<T>::template scales<FromShared>(r, g, n, scale, minimum);
#pragma unroll
        for (int b = 0; b < N; b++) {
            int low = MAGIC_BITS, high = 0;
#pragma unroll
            for (int t = 0; t < 4; t++) {
                low = __dp4a((int)(w[t] & 0x0f0f0f0f), x[b].x[t], low);
                high = dot_unsigned(w[t] & 0xf0f0f0f0, x[b].x[4 + t], high);
            }
            const float v = __fmul_rn(scale, lowered(low + (high >> 4)));
            out[b] = __fmul_rn(x[b].d, __fmaf_rn(-minimum, x[b].sum, v));
        }
    } else {
        Group group;
        Codec<T>::template decode<FromShared>(r, g, n, group);
#pragma unroll
        for (int b = 0; b < N; b++) out[b] = x[b].template dot<T>(group);
    }
}
