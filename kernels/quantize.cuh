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
    float largest = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
#pragma unroll
    for (int o = 1; o < 8; o <<= 1) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, o));
    // A value that is not a number must reach the logits, so it must reach the scale.
    bool bad = !(v[0] == v[0] && v[1] == v[1] && v[2] == v[2] && v[3] == v[3]) || largest > 3.4e38f;
    bad = __ballot_sync(~0u, bad) >> (threadIdx.x & 24) & 0xff;
    const float d = __fmul_rn(largest, 1.0f / 127.0f), id = largest > 0.0f ? 127.0f / largest : 0.0f;
    uint32_t packed = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        int q = bad ? 1 : max(-127, min(127, __float2int_rn(__fmul_rn(v[j], id))));
        packed |= (uint32_t)(q & 0xff) << 8 * j;
    }
    return PackedValues{packed, bad ? NAN : d};
}
