// Instructions of sm_90a: what blocks of a cluster send each other, warpgroup products.
#pragma once
#include "bulk.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// One arrival at the barrier at the same place in block `rank` of the cluster. It orders nothing between
// blocks but copies: to release ordinary writes to the other block would hold the thread up, for more
// than a third of a product's time.
__device__ __forceinline__ void barrier_arrive(uint32_t barrier, uint32_t rank) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there,%0,%1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _,[there];\n}" ::"r"(barrier), "r"(rank) : "memory");
}
// `bulk_copy` into every block of the cluster that `blocks` has a bit for, at the same place.
__device__ __forceinline__ void bulk_copy_all(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier, uint16_t blocks) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0],[%1],%2,[%3],%4;"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier), "h"(blocks) : "memory");
}

template <int REGISTERS> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// Of a tile in shared memory whose rows are 128 bytes, in groups of 8 rows with their 16-byte pieces
// permuted as `swizzled<8>` does it; groups begin at multiples of 1024.
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t address) {
    return (uint64_t)((address & 0x3ffff) >> 4) | 1ull << 16 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}

// The same for a tile whose rows run along the summands: `columns` bytes from 64 columns to the next 64.
__device__ __forceinline__ uint64_t transposed_descriptor(uint32_t address, uint32_t columns) {
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(columns >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}

__device__ __forceinline__ void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

#define F4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define F32(d, i) F8(d, i), F8(d, i + 8), F8(d, i + 16), F8(d, i + 24)
#define R8(i) "%" #i "0,%" #i "1,%" #i "2,%" #i "3,%" #i "4,%" #i "5,%" #i "6,%" #i "7,%" #i "8,%" #i "9,"
#define R60 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," R8(1) R8(2) R8(3) R8(4) R8(5)

// d[64 x 2 * DN] (+)= a[64 x 16] * b[2 * DN x 16]: f16 tiles in shared memory, f32 sums. The sums
// start at zero unless `add`.
__device__ __forceinline__ void product(float (&d)[64], uint64_t a, uint64_t b, bool add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p,%66,0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" R60 "%60,%61,%62,%63},%64,%65,p,1,1,0,0;\n}"
                 : F32(d, 0), F32(d, 32) : "l"(a), "l"(b), "r"((uint32_t)add));
}
__device__ __forceinline__ void product(float (&d)[128], uint64_t a, uint64_t b, bool add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p,%130,0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {" R60 R8(6) R8(7) R8(8) R8(9) R8(10) R8(11)
                 "%120,%121,%122,%123,%124,%125,%126,%127},%128,%129,p,1,1,0,0;\n}"
                 : F32(d, 0), F32(d, 32), F32(d, 64), F32(d, 96) : "l"(a), "l"(b), "r"((uint32_t)add));
}
// d[64 x 64 or 128] += a[64 x 16] * b[16 x 64 or 128]: `a` in registers as the tensor cores' fragments,
// `b` a tile in shared memory with one row per summand, `transposed_descriptor`.
__device__ __forceinline__ void add_product(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," R8(1) R8(2)
                 "%30,%31},{%32,%33,%34,%35},%36,1,1,1,1;"
                 : F32(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void add_product(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" R60 "%60,%61,%62,%63},{%64,%65,%66,%67},%68,1,1,1,1;"
                 : F32(d, 0), F32(d, 32) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// d[64 x N] += a[64 x 16] * b[N x 16], of which `d` has room for more. N is what tiles of experts have.
#define T2(i) "%" #i "0,%" #i "1"
#define T4(i) T2(i) ",%" #i "2,%" #i "3"
#define T6(i) T4(i) ",%" #i "4,%" #i "5"
#define T8(i) T6(i) ",%" #i "6,%" #i "7"
#define T10(i) T8(i) ",%" #i "8,%" #i "9"
#define D(i) T10(i) ","
#define COLUMNS(n, registers, from, to, ...)                                                                                      \
    if constexpr (N == n)                                                                                                         \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" registers "},%" #from ",%" #to ",1,1,1,0,0;" \
                     : __VA_ARGS__ : "l"(a), "l"(b));
template <uint32_t N, int ROOM> __device__ __forceinline__ void add_columns(float (&d)[ROOM], uint64_t a, uint64_t b) {
    static_assert(N > 0 && N % 24 == 0 && N <= 192 && N / 2 <= ROOM);
    COLUMNS(24, D() T2(1), 12, 13, F8(d, 0), F4(d, 8))
    COLUMNS(48, D() D(1) T4(2), 24, 25, F8(d, 0), F8(d, 8), F8(d, 16))
    COLUMNS(72, D() D(1) D(2) T6(3), 36, 37, F32(d, 0), F4(d, 32))
    COLUMNS(96, D() D(1) D(2) D(3) T8(4), 48, 49, F32(d, 0), F8(d, 32), F8(d, 40))
    COLUMNS(120, D() D(1) D(2) D(3) D(4) T10(5), 60, 61, F32(d, 0), F8(d, 32), F8(d, 40), F8(d, 48), F4(d, 56))
    COLUMNS(144, D() D(1) D(2) D(3) D(4) D(5) D(6) T2(7), 72, 73, F32(d, 0), F32(d, 32), F8(d, 64))
    COLUMNS(168, D() D(1) D(2) D(3) D(4) D(5) D(6) D(7) T4(8), 84, 85, F32(d, 0), F32(d, 32), F8(d, 64), F8(d, 72), F4(d, 80))
    COLUMNS(192, D() D(1) D(2) D(3) D(4) D(5) D(6) D(7) D(8) T6(9), 96, 97, F32(d, 0), F32(d, 32), F32(d, 64))
}
#undef T2
#undef T4
#undef T6
#undef T8
#undef T10
#undef D
#undef COLUMNS
#undef F4
#undef F8
#undef F32
#undef R8
#undef R60
#endif
