// Instructions that CUDA has no function for, and how a kernel gets its shared memory. Tests run kernels on
// the CPU, where EMULATED is defined, what follows is left out, and so it is in the files that say so;
// tests/emulation/instructions.h has what they have.
#pragma once
#include <cstdint>

// Whether a block may have 227 KB of shared memory, as on the cards from Hopper to sm_11x, or 64 to 163, as on others
// (`has_large_shared` of kernels.rs).
#define LARGE_SHARED (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200)

#if !defined(EMULATED)

#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) uint8_t name[]
#define STATIC_SHARED(type, name) __shared__ __align__(16) type name

// Programmatic dependent launch (no-ops before Hopper): let the next node start its prologue, and
// wait for the results of the nodes before.
__device__ __forceinline__ void release_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_for_producers() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The block's number in its cluster; before Hopper, a block is one alone.
__device__ __forceinline__ uint32_t cluster_rank() {
#if __CUDA_ARCH__ >= 900
    uint32_t rank;
    asm volatile("mov.u32 %0,%%cluster_ctarank;" : "=r"(rank));
    return rank;
#else
    return 0;
#endif
}

// A number that the compiler must not make anew at every use.
template <int N> __device__ __forceinline__ int kept() {
    int v;
    asm volatile("mov.b32 %0,%1;" : "=r"(v) : "n"(N));
    return v;
}
// The same of one that it knows how to make.
__device__ __forceinline__ uint32_t kept(uint32_t n) {
    uint32_t v;
    asm volatile("mov.b32 %0,%1;" : "=r"(v) : "r"(n));
    return v;
}
template <class T> __device__ __forceinline__ T* kept(T* p) {
    T* v;
    asm volatile("mov.b64 %0,%1;" : "=l"(v) : "l"(p));
    return v;
}
// Zero, which the compiler takes for a number of each thread: ptxas 13.0 encodes a copy with a policy wrongly where a part of its address
// is the same for a warp.
__device__ __forceinline__ uint32_t own_zero() { return threadIdx.y; }

// What createpolicy.fractional.L2::evict_first makes of all lines.
#define EVICT_FIRST 0x12f0000000000000ull

// 16 bytes that are read once.
__device__ __forceinline__ uint4 load_once(const void* p) {
    uint4 v;
#if __CUDA_ARCH__ >= 900
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3},[%4],%5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p), "l"(EVICT_FIRST));
#else
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3},[%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
#endif
    return v;
}

// Asks for what is at an address to be brought into the L2 cache.
__device__ __forceinline__ void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
// A number at an address of shared memory.
__device__ __forceinline__ float load_shared(uint32_t at) {
    float v;
    asm volatile("ld.shared.f32 %0,[%1];" : "=f"(v) : "r"(at) : "memory");
    return v;
}
// A word that another block may write meanwhile, and how it does.
__device__ __forceinline__ uint64_t load_shared_word(const uint64_t* p) {
    uint64_t v;
    asm volatile("ld.relaxed.gpu.global.u64 %0,[%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_shared_word(uint64_t* p, uint64_t v) {
    asm volatile("st.relaxed.gpu.global.u64 [%0],%1;" ::"l"(p), "l"(v) : "memory");
}

// The largest number of a warp.
__device__ __forceinline__ uint32_t warp_largest(uint32_t v) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(~0u, v);
#else
#pragma unroll
    for (int o = 16; o; o >>= 1) v = max(v, __shfl_xor_sync(~0u, v, o));
    return v;
#endif
}
// As __byte_perm, but that bit 3 of an index asks for eight copies of the byte's highest bit.
__device__ __forceinline__ uint32_t permuted(uint32_t low, uint32_t high, uint32_t indices) {
    uint32_t v;
    asm("prmt.b32 %0,%1,%2,%3;" : "=r"(v) : "r"(low), "r"(high), "r"(indices));
    return v;
}

// 1 / v, to a unit in the last place; of zero and of numbers below 2^-126, infinity.
__device__ __forceinline__ float reciprocal(float v) {
    asm("rcp.approx.ftz.f32 %0,%0;" : "+f"(v));
    return v;
}

// c + the sum of the products of four unsigned bytes and four signed ones.
__device__ __forceinline__ int dot_unsigned(uint32_t a, int b, int c) {
    asm("dp4a.u32.s32 %0,%1,%2,%0;" : "+r"(c) : "r"(a), "r"(b));
    return c;
}

#endif

// The larger number; not a number if one of them is not.
__device__ __forceinline__ float largest_or_nan(float a, float b) {
#if __CUDA_ARCH__ >= 800 && !defined(EMULATED)
    float v;
    asm("max.NaN.f32 %0,%1,%2;" : "=f"(v) : "f"(a), "f"(b));
    return v;
#else
    return a == a && b == b ? fmaxf(a, b) : NAN;
#endif
}

// The smaller number; not a number if one of them is not.
__device__ __forceinline__ float smallest_or_nan(float a, float b) {
#if __CUDA_ARCH__ >= 800 && !defined(EMULATED)
    float v;
    asm("min.NaN.f32 %0,%1,%2;" : "=f"(v) : "f"(a), "f"(b));
    return v;
#else
    return a == a && b == b ? fminf(a, b) : NAN;
#endif
}
