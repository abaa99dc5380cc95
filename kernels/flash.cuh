// What the kernels for attention of a prefill share.
#pragma once
#include "mma.cuh"
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

// 2^x; results below the smallest normal number are zeros.
__device__ __forceinline__ float power_of_2(float x) {
#if defined(EMULATED)
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
    return y;
#endif
}
