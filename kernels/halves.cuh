// Weights as f16, for products of many rows.
#pragma once
#include "blocks.cuh"

// Loads from a record whose parts are needed again soon.
struct FromCached {
    static __device__ __forceinline__ uint4 v4(const void* p) { return __ldg((const uint4*)p); }
    static __device__ __forceinline__ uint2 v2(const void* p) { return __ldg((const uint2*)p); }
    static __device__ __forceinline__ uint32_t u32(const void* p) { return __ldg((const uint32_t*)p); }
    static __device__ __forceinline__ uint32_t u16(const void* p) { return __ldg((const uint16_t*)p); }
    static __device__ __forceinline__ uint32_t u8(const void* p) { return __ldg((const uint8_t*)p); }
};

// The elements of a decoded group as f16, values beyond its range clamped to it.
template <uint32_t T> __device__ __forceinline__ void to_halves(const Group& o, uint32_t (&u)[16]) {
    constexpr bool SIGNED = Codec<T>::OFFSET == 0;
    // A byte becomes the low bits of 2^23, which is faster than a conversion, and as exact.
    constexpr float LESS = 8388608.0f + (SIGNED ? 128 : Codec<T>::OFFSET);
    float largest = 0.0f;
#pragma unroll
    for (int h = 0; h < 2; h++) largest = fmaxf(largest, fabsf(o.d[h]) * 255.0f + (Codec<T>::MINS ? fabsf(o.m[h]) : 0.0f));
    const bool fits = largest <= 65504.0f && !isnan(o.d[0]) && !isnan(o.d[1]);
#pragma unroll
    for (int t = 0; t < 8; t++) {
        const uint32_t bytes = SIGNED ? o.w[t] ^ 0x80808080 : o.w[t];
        float v[4];
#pragma unroll
        for (int b = 0; b < 4; b++) {
            const float q = __fsub_rn(__uint_as_float(__byte_perm(bytes, 0x4b000000, 0x7550 + b)), LESS);
            v[b] = __fmul_rn(o.d[t >> 2], q);
            if constexpr (Codec<T>::MINS) v[b] = __fsub_rn(v[b], o.m[t >> 2]);
        }
        if (!fits)
#pragma unroll
            for (int b = 0; b < 4; b++) v[b] = fminf(fmaxf(v[b], -65504.0f), 65504.0f);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            __half2 h = __floats2half2_rn(v[2 * j], v[2 * j + 1]);
            u[2 * t + j] = *(uint32_t*)&h;
        }
    }
}
