// Norms of a row: sums over a block, and the value of an element.
#pragma once
#include "common.cuh"

struct NormArgs {
    const float* weight;
    const float* bias;  // or NULL
    float eps;
    uint32_t layer;     // the mean is subtracted first
};
static_assert(sizeof(NormArgs) == 24, "as in args.rs");

struct NormSums {
    float mean;   // 0 without `layer`
    float scale;  // 1 / sqrt(mean square + eps)
};

__device__ __forceinline__ float normed(const NormArgs& a, uint32_t i, float x, NormSums s) {
    float v = __fmul_rn(__fmul_rn(__fsub_rn(x, s.mean), s.scale), a.weight[i]);
    return a.bias ? __fadd_rn(v, a.bias[i]) : v;
}

// The sums of a row of `len` elements, the same in every thread of the block.
__device__ __forceinline__ NormSums norm_sums(const NormArgs& a, const float* x, uint32_t len, float* scratch) {
    NormSums s = {0.0f, 0.0f};
    if (a.layer) {
        float sum = 0.0f;
        for (uint32_t i = threadIdx.x; i < len; i += blockDim.x) sum += x[i];
        s.mean = block_sum(sum, scratch) / (float)len;
    }
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < len; i += blockDim.x) {
        float v = __fsub_rn(x[i], s.mean);
        sum = __fmaf_rn(v, v, sum);
    }
    s.scale = 1.0f / sqrtf(__fmaf_rn(block_sum(sum, scratch), 1.0f / (float)len, a.eps));
    return s;
}

// The norm of a head, in place, by one warp. Short code, for most networks pass it by.
__device__ __forceinline__ void norm_head(const NormArgs& a, float* x, uint32_t len) {
    const uint32_t lane = threadIdx.x & 31;
    const float inverse = 1.0f / (float)len;
    NormSums s = {0.0f, 0.0f};
    if (a.layer) {
        float sum = 0.0f;
#pragma unroll 1
        for (uint32_t i = lane; i < len; i += 32) sum += x[i];
        s.mean = __fmul_rn(warp_sum(sum), inverse);
    }
    float sum = 0.0f;
#pragma unroll 1
    for (uint32_t i = lane; i < len; i += 32) {
        float v = __fsub_rn(x[i], s.mean);
        sum = __fmaf_rn(v, v, sum);
    }
    s.scale = 1.0f / sqrtf(__fmaf_rn(warp_sum(sum), inverse, a.eps));
#pragma unroll 1
    for (uint32_t i = lane; i < len; i += 32) x[i] = normed(a, i, x[i], s);
}
