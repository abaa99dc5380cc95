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
};
static_assert(sizeof(Rotation) == 32, "as in args.rs");

__device__ __forceinline__ const float* frequencies(const Rotation& r, const Session* s) {
    return r.long_inv_freq && s->context > r.long_above ? r.long_inv_freq : r.inv_freq;
}
