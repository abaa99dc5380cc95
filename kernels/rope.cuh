// What the kernels that rotate queries and keys have in common.
#pragma once
#include "args_common.h"
#include "norm.cuh"

__device__ __forceinline__ const float* frequencies(const Rotation& r, const Session* s) {
    return r.long_inv_freq && s->context > r.long_above ? r.long_inv_freq : r.inv_freq;
}
// The factor on the queries of a position, where positions are counted from 0.
__device__ __forceinline__ float query_factor(const Rotation& r, uint32_t position) {
    if (r.temperature_length == 0.0f) return 1.0f;
    return __fmaf_rn(r.temperature, logf(1.0f + floorf(__fdiv_rn((float)position, r.temperature_length))), 1.0f);
}
// The same for kernels that also count them from 1.
__device__ __forceinline__ float counted_query_factor(const Rotation& r, uint32_t position) {
    if (r.temperature_length >= 0.0f) return query_factor(r, position);
    return __fmaf_rn(r.temperature, logf(1.0f + floorf(__fdiv_rn((float)(position + 1), -r.temperature_length))), 1.0f);
}

// Four neighbours of a line, from `i` on, as f16 times a factor.
__device__ __forceinline__ uint2 four_halves(const float* line, uint32_t i, float factor) {
    const float4 v = *(const float4*)(line + i);
    __half2 lo = __floats2half2_rn(__fmul_rn(v.x, factor), __fmul_rn(v.y, factor));
    __half2 hi = __floats2half2_rn(__fmul_rn(v.z, factor), __fmul_rn(v.w, factor));
    return make_uint2(*(uint32_t*)&lo, *(uint32_t*)&hi);
}

// A head's key or value in the form of the cache, by a warp; `fours`: four elements at a time lie at multiples of their size.
__device__ __forceinline__ void store_head(const KvLayout& l, uint8_t* to, const float* line, bool fours) {
    const uint32_t hd = l.head_dim, lane = threadIdx.x & 31;
    if (!l.q8) {
        if (fours && l.row_bytes == hd * 2)
            for (uint32_t i = lane * 4; i < hd; i += 128) *(uint2*)(to + i * 2) = four_halves(line, i, 1.0f);
        else
            for (uint32_t i = lane; i < l.row_bytes / 2; i += 32) ((__half*)to)[i] = __float2half_rn(i < hd ? line[i] : 0.0f);
        return;
    }
    const uint32_t groups = (hd + 31) / 32;
    for (uint32_t g = 0; g < groups; g++) {
        uint32_t i = g * 32 + lane;
        float v = i < hd ? line[i] : 0.0f;
        // The stored scale is rounded up, so that quotients stay within -127..127.
        __half d = __float2half_ru(warp_max(fabsf(v)) / 127.0f);
        float f = __half2float(d);
        bool bad = __any_sync(~0u, !(v == v));
        ((int8_t*)to)[i] = (int8_t)(f > 0.0f ? __float2int_rn(v / f) : 0);
        if (lane == 0) ((__half*)(to + groups * 32))[g] = bad ? __ushort_as_half(0x7fff) : d;
    }
}
