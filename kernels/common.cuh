// What every kernel file shares: places in the KV cache, and helpers of warps and blocks.
#pragma once
#include "args_common.h"
#include "instructions.cuh"

// Bytes from a layer's keys to its values.
__device__ __forceinline__ uint64_t kv_plane(const KvLayout& l) {
    return (uint64_t)l.n_kv_heads * KV_TILE * l.row_bytes;
}
// The keys of tile 0.
__device__ __forceinline__ uint8_t* kv_base(const KvLayout& l, const Session* s) {
    return (uint8_t*)(l.ring ? s->kv_ring : s->kv) + l.layer_offset;
}
__device__ __forceinline__ uint8_t* kv_row(const KvLayout& l, const Session* s, bool value, uint32_t head, uint32_t position) {
    uint32_t t = position / KV_TILE, p = position % KV_TILE;
    if (l.ring) t %= l.ring;
    return kv_base(l, s) + t * l.tile_bytes + (value ? kv_plane(l) : 0) + ((uint64_t)head * KV_TILE + p) * l.row_bytes;
}
// The first position that the last of `length` positions sees.
__device__ __forceinline__ uint32_t first_seen(const KvLayout& l, uint32_t length) {
    return length > l.window ? length - l.window : 0;
}

// How many positions position `mine` may see, itself and those before it, be they there or not: of its window, or of its chunk.
__device__ __forceinline__ uint32_t reach(const KvLayout& l, uint32_t mine) {
    return l.window & CHUNKED ? mine % (l.window & ~CHUNKED) + 1 : l.window;
}
// `first_seen` of kernels that know of chunks.
__device__ __forceinline__ uint32_t first_reached(const KvLayout& l, uint32_t length) {
    const uint32_t seen = reach(l, length - 1);
    return length > seen ? length - seen : 0;
}

// What a gate lets through of a number, to 2 units in the last place.
__device__ __forceinline__ float let_through(float gate, float v) { return __fdividef(v, 1.0f + __expf(-gate)); }
__device__ __forceinline__ float silu(float v) { return let_through(v, v); }

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
    return v;
}

// Sum (or largest value) over a block of up to 1024 threads, the same in every thread, always added
// in the same order. `scratch` holds 32 floats of shared memory; UNUSED says that no thread has used them since the last barrier.
template <bool UNUSED = false> __device__ __forceinline__ float block_sum(float v, float* scratch, uint32_t threads = blockDim.x) {
    const uint32_t lane = threadIdx.x & 31, warps = (threads + 31) >> 5;
    v = warp_sum(v);
    if (!UNUSED) __syncthreads();
    if (lane == 0) scratch[threadIdx.x >> 5] = v;
    __syncthreads();
    return warp_sum(lane < warps ? scratch[lane] : 0.0f);
}
__device__ __forceinline__ float block_max(float v, float* scratch) {
    v = warp_max(v);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = v;
    __syncthreads();
    int warps = (blockDim.x + 31) >> 5, lane = threadIdx.x & 31;
    return warp_max(lane < warps ? scratch[lane] : -INFINITY);
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ float half_bits(uint32_t bits) {
    return __half2float(__ushort_as_half((unsigned short)bits));
}

// Rows of shared memory tiles are cut into 16-byte pieces, which are permuted within 8 rows so that
// neither copies nor ldmatrix meet bank conflicts. Offset in bytes of piece `c` of row `r`.
template <int PIECES> __device__ __forceinline__ uint32_t swizzled(uint32_t r, uint32_t c) {
    static_assert(PIECES >= 8, "rows of at least 128 bytes");
    return r * (PIECES * 16) + ((c ^ (r & 7)) * 16);
}
