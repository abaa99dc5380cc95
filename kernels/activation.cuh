// Activation functions of feed-forward parts, as src/model/network.rs defines them.
#pragma once
#include "args_common.h"
#include "common.cuh"

enum ActivationKind : uint32_t { SILU = 0, GELU_TANH = 1, GELU = 2, CLAMPED_SWIGLU = 3, RELU_SQUARED = 4, XIELU = 5, LIMITED_SILU = 6 };

// Comparisons that let a NaN through.
__device__ __forceinline__ float at_most(float x, float limit) { return x > limit ? limit : x; }
__device__ __forceinline__ float at_least(float x, float limit) { return x < limit ? limit : x; }

// Not inlined: the code of the usual one stays short.
static __device__ __noinline__ float activated_otherwise(uint32_t kind, float alpha, float limit, float x) {
    if (kind == GELU) return __fmul_rn(__fmul_rn(0.5f, x), __fadd_rn(1.0f, erff(__fmul_rn(x, 0.70710678f))));
    if (kind == CLAMPED_SWIGLU) {
        x = at_most(x, limit);
        return let_through(alpha * x, x);
    }
    if (kind == RELU_SQUARED) {
        x = at_least(x, 0.0f);
        return __fmul_rn(x, x);
    }
    if (kind == XIELU) {
        const float p = at_least(x, 0.0f), n = at_most(x, 0.0f);
        return __fmaf_rn(__fsub_rn(expm1f(n), n), limit, __fmaf_rn(__fmul_rn(p, p), alpha, __fmul_rn(x, 0.5f)));
    }
    // (1 + tanh(u)) / 2 = 1 / (1 + e^(-2u))
    const float u = __fmul_rn(0.79788456f, __fmaf_rn(__fmul_rn(0.044715f, __fmul_rn(x, x)), x, x));
    return let_through(2.0f * u, x);
}
__device__ __forceinline__ float activated(const Activation& a, float x) {
    if (a.kind == SILU) return silu(x);
    return activated_otherwise(a.kind, a.alpha, a.limit, x);
}
// Of a gate and the value that it lets through.
__device__ __forceinline__ float gated_silu(float gate, float up) { return __fmul_rn(silu(gate), up); }
static __device__ __noinline__ float gated_otherwise(uint32_t kind, float alpha, float limit, float gate, float up) {
    if (kind == CLAMPED_SWIGLU || kind == LIMITED_SILU) up = at_most(at_least(up, -limit), limit);
    if (kind == CLAMPED_SWIGLU) up = __fadd_rn(up, 1.0f);
    if (kind == LIMITED_SILU) return __fmul_rn(at_most(silu(gate), limit), up);
    return __fmul_rn(activated_otherwise(kind, alpha, limit, gate), up);
}
__device__ __forceinline__ float gated(const Activation& a, float gate, float up) {
    if (a.kind == SILU) return gated_silu(gate, up);
    return gated_otherwise(a.kind, a.alpha, a.limit, gate, up);
}
