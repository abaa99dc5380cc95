// What nvcc knows by itself, for kernels that an emulator runs (emulator.h): keywords, vector types, f16
// and the functions that these kernels use, on one thread of a warp that only moves on where all do.
#pragma once
#include "emulator.h"
#include <cmath>
#include <cstring>
#include <type_traits>

#define __device__
#define __global__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __CUDA_ARCH__ 900
#define EMULATED

#define threadIdx (emulator::thread->index)
#define blockIdx (emulator::thread->block->index)
#define gridDim emulator::grid
#define blockDim emulator::block

struct alignas(8) uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

template <class To, class From> inline To same_bits(From v) {
    static_assert(sizeof(To) == sizeof(From));
    To r;
    memcpy(&r, &v, sizeof r);
    return r;
}
inline uint32_t __float_as_uint(float v) { return same_bits<uint32_t>(v); }
inline int __float_as_int(float v) { return same_bits<int>(v); }
inline float __uint_as_float(uint32_t v) { return same_bits<float>(v); }
inline float __int_as_float(int v) { return same_bits<float>(v); }

using __half = _Float16;
struct __half2 { __half x, y; };
inline float __half2float(__half v) { return (float)v; }
inline __half __float2half_rn(float v) { return (__half)v; }
inline __half __float2half_ru(float v) {
    const __half h = (__half)v;
    return (float)h < v ? same_bits<__half>((uint16_t)(same_bits<uint16_t>(h) + 1)) : h;
}
inline float2 __half22float2(__half2 v) { return {(float)v.x, (float)v.y}; }
inline __half2 __floats2half2_rn(float x, float y) { return {(__half)x, (__half)y}; }
inline __half2 __hsub2(__half2 a, __half2 b) { return {(__half)(a.x - b.x), (__half)(a.y - b.y)}; }
inline __half2 __hmul2(__half2 a, __half2 b) { return {(__half)(a.x * b.x), (__half)(a.y * b.y)}; }
inline __half __ushort_as_half(unsigned short v) { return same_bits<__half>(v); }

inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
inline float __expf(float v) { return expf(v); }
inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
inline int __float2int_rn(float v) { return (int)nearbyintf(v); }
template <class A, class B> inline auto min(A a, B b) {
    using C = std::common_type_t<A, B>;
    return (C)a < (C)b ? (C)a : (C)b;
}
template <class A, class B> inline auto max(A a, B b) {
    using C = std::common_type_t<A, B>;
    return (C)a > (C)b ? (C)a : (C)b;
}

inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 32; i += 8) c += (int)(int8_t)(a >> i) * (int)(int8_t)(b >> i);
    return c;
}
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t n) {
    return (uint32_t)(((uint64_t)high << 32 | low) >> (n & 31));
}
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) r |= (uint32_t)(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return r;
}

template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T __ldcg(const T* p) { return *p; }
template <class T> inline T __ldcs(const T* p) { return *p; }
template <class T> inline void __stcg(T* p, T v) {
    *p = v;
    emulator::progress++;
}
template <class T> inline void __stcs(T* p, T v) { __stcg(p, v); }
inline uint32_t atomicAdd(uint32_t* p, uint32_t v) {
    emulator::progress++;
    const uint32_t before = *p;
    *p += v;
    return before;
}
inline void __threadfence() {}
inline void __threadfence_system() {}
inline void __nanosleep(uint32_t) { emulator::yield(); }
inline long long clock64() { return 0; }

inline uint32_t __cvta_generic_to_shared(const void* p) {
    return (uint32_t)((const uint8_t*)p - emulator::thread->block->shared);
}
inline void* __cvta_shared_to_generic(uint32_t address) { return emulator::thread->block->shared + address; }

inline void __syncthreads() { emulator::meet(emulator::thread->block->meetings[0], emulator::block.x); }
inline void __syncwarp() { emulator::meet(emulator::thread->warp->meeting, 32); }
template <class T> inline T __shfl_sync(uint32_t, T v, int lane) {
    static_assert(sizeof(T) % 4 == 0);
    uint32_t words[sizeof(T) / 4];
    memcpy(words, &v, sizeof v);
    memcpy(&v, emulator::exchange(words, sizeof(T) / 4)[lane & 31], sizeof v);
    return v;
}
template <class T> inline T __shfl_xor_sync(uint32_t all, T v, int mask) {
    return __shfl_sync(all, v, (int)emulator::thread->lane ^ mask);
}
template <class T> inline T __shfl_up_sync(uint32_t all, T v, int below) {
    const int lane = (int)emulator::thread->lane;
    return __shfl_sync(all, v, lane >= below ? lane - below : lane);
}
inline bool __any_sync(uint32_t, bool v) {
    const uint32_t word = v;
    const emulator::Words* words = emulator::exchange(&word, 1);
    for (int i = 0; i < 32; i++)
        if (words[i][0]) return true;
    return false;
}

inline uint32_t __ballot_sync(uint32_t, bool v) {
    const uint32_t word = v;
    const emulator::Words* words = emulator::exchange(&word, 1);
    uint32_t mask = 0;
    for (int i = 0; i < 32; i++) mask |= words[i][0] << i;
    return mask;
}
inline int __popc(uint32_t v) { return __builtin_popcount(v); }
inline int __ffs(uint32_t v) { return __builtin_ffs((int)v); }

#include "instructions.h"
