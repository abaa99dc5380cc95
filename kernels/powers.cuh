// Exponentials.
#pragma once
#include "instructions.cuh"

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

// 2^e, of an exponent that normal numbers have.
__device__ __forceinline__ float exact_power(int e) { return __uint_as_float((uint32_t)(127 + e) << 23); }
