// What the kernels for attention of a prefill share.
#pragma once
#include "args_common.h"
#include "args_texts.h"
#include "matmul.cuh"
#include "mma.cuh"
#include "powers.cuh"
#include "scores.cuh"
#include "texts.cuh"

// What a block attends with and to.
struct FlashPlace {
    const __half* q;       // of query 0
    float* out;            // likewise
    const uint8_t* cache;  // the KV head's keys at position 0
    uint64_t plane;        // bytes from keys to values
    uint32_t head;         // of queries
    uint32_t q0;           // the first query of the block
    uint32_t rows;         // the end of the queries
    uint32_t before;       // the position of query 0
    uint32_t first;        // the first position that one of them sees
    uint32_t end;          // the one behind the last
    float slope;           // of texts
    uint32_t ahead;        // likewise
    uint32_t start;        // the row of query 0, likewise
    __half* f16;           // as of TextFlashArgs
    float* f16_scale;
};

// Of `count` queries of a session.
__device__ __forceinline__ FlashPlace place_in_session(const FlashArgs& a, uint32_t head, uint32_t q0, uint32_t count) {
    const Session* s = a.sessions[0];
    const uint32_t before = s->position, kv_head = head / (a.n_heads / a.layout.n_kv_heads);
    const uint8_t* cache = kv_base(a.layout, s) + (uint64_t)kv_head * KV_TILE * a.layout.row_bytes;
    return {a.q, a.out, cache, kv_plane(a.layout), head, q0, a.rows, before, first_seen(a.layout, before + q0 + 1), before + min(a.rows, q0 + count),
            0.0f, 1, 0, NULL, NULL};
}
// Of up to `count` queries of a text.
__device__ __forceinline__ FlashPlace place_in_text(const TextFlashArgs& t, uint32_t head, const TextTile& tile, uint32_t count) {
    const FlashArgs& a = t.flash;
    const uint32_t kv_head = head / (a.n_heads / a.layout.n_kv_heads);
    const uint64_t start = (uint64_t)tile.start * a.n_heads;
    const uint8_t* cache = t.kv + ((uint64_t)kv_head * t.kv_rows + tile.start) * a.layout.row_bytes;
    return {a.q + start * a.layout.head_dim, a.out + start * a.value_dim, cache, text_plane(a.layout, t.kv_rows), head, tile.first, tile.len, 0,
            first_seen(a.layout, tile.first + 1), min(tile.len, min(tile.len, tile.first + count) - 1 + t.ahead),
            a.slopes ? a.slopes[head] : 0.0f, t.ahead, tile.start, t.f16, t.f16_scale};
}

// Whether position `p` of a text is hidden from its position `mine`: further before than the window, further ahead, or behind the
// end. Differences wrap around.
__device__ __forceinline__ bool hidden_in_text(const KvLayout& l, const FlashPlace& f, uint32_t mine, uint32_t p) {
    return (mine - p >= l.window && p - mine >= f.ahead) || p >= f.rows;
}
// Two neighbours of a head's result for query `row`, from `d` (even) on, as the output's product reads them. Results are means of
// values that were f16, so they need no scale.
__device__ __forceinline__ void store_f16(const FlashArgs& a, const FlashPlace& f, uint32_t row, uint32_t d, float x, float y) {
    const uint32_t width = a.n_heads * a.layout.head_dim, i = f.head * a.layout.head_dim + d;
    const __half2 both = __floats2half2_rn(x, y);
    *(uint32_t*)((uint8_t*)f.f16 + tiled(f.start + row, i & ~7u, width / TILE_K) + (i & 7) * 2) = *(const uint32_t*)&both;
    if (i == 0) f.f16_scale[f.start + row] = 1.0f;
}

// Whether position `p` is hidden from position `mine`: outside its window, or later, where the
// difference wraps around.
__device__ __forceinline__ bool hidden(const KvLayout& l, uint32_t mine, uint32_t p) { return mine - p >= l.window; }
