// What the kernels for attention of a prefill share.
#pragma once
#include "mma.cuh"
#include "powers.cuh"
#include "scores.cuh"

struct FlashArgs {
    const Session* const* sessions;  // one
    const __half* q;                 // [rows][n_heads * head_dim], times scores.scale
    float* out;                      // [rows][n_heads * value_dim]
    KvLayout layout;
    Scores scores;
    uint32_t first_row;              // rows from here on are evaluated
    uint32_t rows;
    uint32_t n_heads;
    uint32_t value_dim;              // elements of a value, at most head_dim
};
static_assert(sizeof(FlashArgs) == 96, "as in args.rs");

// Whether position `p` is hidden from position `mine`: outside its window, or later, where the
// difference wraps around.
__device__ __forceinline__ bool hidden(const KvLayout& l, uint32_t mine, uint32_t p) { return mine - p >= l.window; }
