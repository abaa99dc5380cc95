// Tensor-core products of f16 with f32 sums, for every architecture from sm_75 on, and of int8, from sm_80 on
// (instructions.cuh says what EMULATED is).
#pragma once
#include "common.cuh"

#if !defined(EMULATED)

// 16 bytes from global to shared memory, or zeros.
__device__ __forceinline__ void copy16(uint32_t to, const void* from, bool valid) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
#else
    uint4 v = valid ? *(const uint4*)from : make_uint4(0, 0, 0, 0);
    asm volatile("st.shared.v4.u32 [%0],{%1,%2,%3,%4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
#endif
}
// The same of what is read once a step: it leaves the L2 cache before anything else.
__device__ __forceinline__ void copy16_once(uint32_t to, const void* from, bool valid) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0],[%1],16,%2,%3;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0), "l"(EVICT_FIRST) : "memory");
#else
    copy16(to, from, valid);
#endif
}
__device__ __forceinline__ void copies_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int LEFT> __device__ __forceinline__ void copies_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

__device__ __forceinline__ void load_matrices(uint32_t* r, uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t* r, uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
// A matrix of 8 x 8, of which a lane holds elements 2 * (lane & 3) and the next of row lane / 4.
__device__ __forceinline__ uint32_t transposed(uint32_t pair) {
    uint32_t r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0,%1;" : "=r"(r) : "r"(pair));
    return r;
}

// c[16 x 8] += a[16 x 16] * b[16 x 8].
__device__ __forceinline__ void mma(float* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

// c[16 x 8] = origin + a[16 x 32] * b[32 x 8] of int8, and of half as many summands.
__device__ __forceinline__ void mma_s8(int* c, const int* origin, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%11,%12,%13};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(origin[0]), "r"(origin[1]), "r"(origin[2]), "r"(origin[3]));
}
__device__ __forceinline__ void mma_s8_half(int* c, const int* origin, uint32_t a0, uint32_t a1, uint32_t b0) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5},{%6},{%7,%8,%9,%10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a0), "r"(a1), "r"(b0), "r"(origin[0]), "r"(origin[1]), "r"(origin[2]), "r"(origin[3]));
}

#endif
