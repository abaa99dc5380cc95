// What every kernel file shares: the structures that the host fills (src/backend/cuda/args.rs holds
// their Rust twins) and warp helpers.
#pragma once
#include <cuda_fp16.h>
#include "instructions.cuh"

// How a session's tokens are chosen; src/engine/sampling/mod.rs defines what the numbers do.
struct Settings {
    uint64_t seed;
    uint64_t bias;              // address of a float per token, or NULL
    uint64_t single_breakers;   // address of a bit per token, or NULL
    uint64_t breakers;          // address of longer ones, packed as sampling.rs says; or NULL
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
    uint64_t kv_ring;      // address of the cache of layers with a window
    uint64_t fixed;        // address of the states of fixed size
    uint64_t results;      // address (pinned host memory) of the ring of chosen tokens
    uint64_t logprobs;     // the same of their log-probabilities, as many entries
    uint64_t draw_offset;  // index of a draw = positions in the cache + this
    uint64_t history;      // address of the tokens in the cache
    uint64_t adjusted;     // address of the logits that are chosen by, if they are not the model's
    uint64_t counts;       // address of a number per token: how often it is in the window; zeros between steps
    uint64_t lengths;      // the same of the length of a repetition that it would go on with
    uint64_t mask;         // address of a bit per token
    uint64_t adapters;     // address of the pairs of its adapters (adapters.cuh), or NULL
    uint64_t thin;         // address of [rows][thin_stride] floats between their thin matrices; zeros behind ranks
    uint64_t states;       // address of a ring of hidden states, a row of floats a position (predictor.cu), or NULL
    uint32_t adapter_uses; // pairs of a linear layer
    uint32_t thin_stride;
    uint32_t position;     // positions in the cache
    uint32_t token;        // the token that the next step appends
    uint32_t sequence;     // steps finished; entry sequence % result_slots of the rings comes next
    uint32_t result_slots;
    uint32_t context;      // positions that the session may hold
    uint32_t states_rows;  // rows of `states`: position p has row p % states_rows
    Settings settings;
};
static_assert(sizeof(Session) == 240, "as in args.rs");

// Positions of a tile of the KV cache.
constexpr uint32_t KV_TILE = 64;

// Where the KV rows of a layer lie. A cache is a sequence of tiles; a tile holds, for every layer of
// the cache, first keys then values, `[kv head][position in the tile][row_bytes]`, so that growing the
// cache by a tile grows all layers. Layers with a window have a cache of their own, a ring of tiles.
struct KvLayout {
    uint64_t tile_bytes;
    uint64_t layer_offset;  // of the layer's keys within a tile
    uint32_t row_bytes;     // one head's row, a multiple of 16
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint32_t q8;            // 0: f16; 1: int8 with an f16 scale per 32 elements after the row's values
    uint32_t ring;          // tiles of the ring; 0: the layer's cache holds the whole context
    uint32_t window;        // position p sees p - window + 1 to p; 2^31 - 1 where there is no window
};
static_assert(sizeof(KvLayout) == 40, "as in args.rs");

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
    const uint32_t lane = threadIdx.x & 31, warps = (blockDim.x + 31) >> 5;
    v = warp_sum(v);
    __syncthreads();
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
