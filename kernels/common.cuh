// What every kernel file shares: the structures that the host fills (src/backend/cuda/args.rs holds
// their Rust twins), warp helpers, and wrappers of the few
// instructions that need assembly.
#pragma once
#include <cuda_fp16.h>
#include <cstdint>

// How a session's tokens are chosen; src/engine/sampling/mod.rs defines what the numbers do.
struct Settings {
    uint64_t seed;
    uint64_t bias;              // address of a float per token, or NULL
    uint64_t single_breakers;   // address of a bit per token, or NULL
    uint64_t breakers;          // address of longer sequences, each its length and its tokens, then 0; or NULL
    float temperature;
    uint32_t top_k;
    float top_p;
    float min_p;
    float typical_p;
    uint32_t penalty_window;    // 0 if no penalty looks at it
    float repeat_penalty;
    float presence_penalty;
    float frequency_penalty;
    float dry_multiplier;       // 0 if there is no DRY penalty
    float dry_base;
    uint32_t dry_allowed_length;
    uint32_t dry_window;
    uint32_t dry_longest;       // longer repetitions cost no more
    uint32_t logprobs;          // how many to report
    uint32_t masked;            // the mask counts
};
static_assert(sizeof(Settings) == 96, "as in args.rs");

// The device-side state of one session. A step reads and writes it, so that a captured graph never
// changes.
struct Session {
    uint64_t kv;           // address of the KV cache
    uint64_t results;      // address (pinned host memory) of the ring of chosen tokens
    uint64_t logprobs;     // the same of their log-probabilities, as many entries
    uint64_t draw_offset;  // index of a draw = positions in the cache + this
    uint64_t history;      // address of the tokens in the cache
    uint64_t adjusted;     // address of the logits that are chosen by, if they are not the model's
    uint64_t counts;       // address of a number per token: how often it is in the window; zeros between steps
    uint64_t lengths;      // the same of the length of a repetition that it would go on with
    uint64_t mask;         // address of a bit per token
    uint32_t position;     // positions in the cache
    uint32_t token;        // the token that the next step appends
    uint32_t sequence;     // steps finished; entry sequence % result_slots of the rings comes next
    uint32_t result_slots;
    Settings settings;
};
static_assert(sizeof(Session) == 184, "as in args.rs");

// Where a KV row lies. The cache is a sequence of tiles of `tile` positions; a tile holds, for every
// layer, first keys then values, `[kv head][position in the tile][row_bytes]`, so that growing the
// cache by a tile grows all layers.
struct KvLayout {
    uint64_t tile_bytes;
    uint64_t layer_bytes;  // within a tile: keys and values of one layer
    uint32_t tile;         // positions per tile
    uint32_t row_bytes;    // one head's row, a multiple of 16
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint32_t q8;           // 0: f16; 1: int8 with an f16 scale per 32 elements after the row's values
};
static_assert(sizeof(KvLayout) == 40, "as in args.rs");

__device__ __forceinline__ uint8_t* kv_row(const KvLayout& l, uint64_t kv, uint32_t layer, bool value,
                                           uint32_t head, uint32_t position) {
    uint32_t t = position / l.tile, p = position % l.tile;
    uint64_t plane = (uint64_t)l.n_kv_heads * l.tile * l.row_bytes;
    return (uint8_t*)kv + t * l.tile_bytes + layer * l.layer_bytes + (value ? plane : 0) +
           ((uint64_t)head * l.tile + p) * l.row_bytes;
}

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
// in the same order. `scratch` holds 32 floats of shared memory.
__device__ __forceinline__ float block_sum(float v, float* scratch) {
    v = warp_sum(v);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = v;
    __syncthreads();
    int warps = (blockDim.x + 31) >> 5, lane = threadIdx.x & 31;
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
