// Whole texts without a session: rows of several texts, one text behind the other.
//
// There are keys and values of one layer at a time: for `rows` rows, first keys, then values,
// `[kv head][row][row_bytes]`. Of their layout, `tile_bytes` is KV_TILE rows, and there is no ring.
#pragma once
#include "args_texts.h"
#include "common.cuh"

__device__ __forceinline__ uint64_t text_plane(const KvLayout& l, uint32_t rows) {
    return (uint64_t)l.n_kv_heads * rows * l.row_bytes;
}
__device__ __forceinline__ uint8_t* text_row(const KvLayout& l, uint8_t* kv, uint32_t rows, bool value, uint32_t head, uint32_t row) {
    return kv + (value ? text_plane(l, rows) : 0) + ((uint64_t)head * rows + row) * l.row_bytes;
}
