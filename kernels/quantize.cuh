// Rounding the inputs of a product to int8, with a scale per 32 elements.
#pragma once
#include "common.cuh"

// Four values of one of the 8 lanes that share a group, as bytes, and the group's scale. Whole warps
// call it.
struct PackedValues {
    uint32_t q;
    float scale;
};
__device__ __forceinline__ PackedValues pack_q8(const float* v) {
    // A value that is not a number must reach the logits, so it must reach the scale; so does an infinite one.
    float largest = largest_or_nan(largest_or_nan(fabsf(v[0]), fabsf(v[1])), largest_or_nan(fabsf(v[2]), fabsf(v[3])));
#pragma unroll
    for (int o = 1; o < 8; o <<= 1) largest = largest_or_nan(largest, __shfl_xor_sync(~0u, largest, o));
    // Zeros times a finite number are zeros.
    const float inverse = fminf(__fmul_rn(127.0f, reciprocal(largest)), 3e38f);
    // Rounds to integers: their two's complement is in the low bits of the sums.
    uint32_t bits[4];
#pragma unroll
    for (int j = 0; j < 4; j++) bits[j] = __float_as_uint(__fmaf_rn(v[j], inverse, 12582912.0f));
    const uint32_t low = __byte_perm(bits[0], bits[1], 0x0040), high = __byte_perm(bits[2], bits[3], 0x0040);
    return PackedValues{__byte_perm(low, high, 0x5410), __fmul_rn(largest, 1.0f / 127.0f)};
}

// Four elements of a row, from `at` on, as bytes with a scale for 32 of them, unless they lie behind it. Whole warps call it.
__device__ __forceinline__ void store_packed(int8_t* q8, float* q8_scale, uint64_t at, const float* v, bool inside) {
    const PackedValues p = pack_q8(v);
    if (!inside) return;
    *(uint32_t*)(q8 + at) = p.q;
    if ((threadIdx.x & 7) == 0) q8_scale[at / 32] = p.scale;
}
