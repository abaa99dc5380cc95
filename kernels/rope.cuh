// What the kernels that rotate queries and keys have in common.
#pragma once
#include "norm.cuh"

struct Rotation {
    const float* inv_freq;       // [n_pairs]
    const float* long_inv_freq;  // of sessions with a context of more than `long_above`, or NULL
    float magnitude;
    uint32_t n_pairs;            // 0: no rotation
    uint32_t interleaved;        // pairs are (2i, 2i + 1), else (i, i + n_pairs)
    uint32_t long_above;
    const float* after[2];       // factors on a head's elements of queries and of keys, after the rotation, or NULL
    float temperature;           // of the factor on queries
    float temperature_length;    // and the positions of a step of it; 0: none
};
static_assert(sizeof(Rotation) == 56, "as in args.rs");

__device__ __forceinline__ const float* frequencies(const Rotation& r, const Session* s) {
    return r.long_inv_freq && s->context > r.long_above ? r.long_inv_freq : r.inv_freq;
}
// The factor on the queries of a position.
__device__ __forceinline__ float query_factor(const Rotation& r, uint32_t position) {
    if (r.temperature_length == 0.0f) return 1.0f;
    return __fmaf_rn(r.temperature, logf(1.0f + floorf(__fdiv_rn((float)position, r.temperature_length))), 1.0f);
}
