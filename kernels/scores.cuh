// Scores on their way into the softmax, which works in powers of two: factor, soft cap, sinks.
#pragma once
#include "args_common.h"
#include "common.cuh"

// cap * tanh(x), to an error of about cap * 2^-23.
__device__ __forceinline__ float capped(float cap, float x) {
    return __fmul_rn(cap, 1.0f - __fdividef(2.0f, 1.0f + __expf(2.0f * x)));
}
// The score of positions `mine` and `p`, less by their distance.
__device__ __forceinline__ float leaned(float slope, uint32_t mine, uint32_t p, float score) {
    return __fmaf_rn(fabsf((float)((int)mine - (int)p)), -slope, score);
}
// The weight of a head's softmax with its sink, for the largest score that the weight goes by.
__device__ __forceinline__ float with_sink(const Scores& s, uint32_t head, float largest, float weight) {
    return s.sinks ? __fadd_rn(weight, exp2f(__fmaf_rn(s.sinks[head], 1.44269504f, -largest))) : weight;
}
