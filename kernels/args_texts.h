#pragma once
#include "args_common.h"

// Generated from src/backend/cuda/launch/args/ by `make header`. Do not edit.

// Texts of a `dense_texts` block.
constexpr uint32_t DENSE_TEXTS = 8;

// Outputs of it, one a warp.
constexpr uint32_t DENSE_OUTPUTS = 4;

// Queries that a block attends with: those of a text from one on.
struct TextTile {
    // The text's first row.
    uint32_t start;
    // Its rows.
    uint32_t len;
    // The first query, counted from `start`.
    uint32_t first;
    uint32_t padding;
};

// Attention of whole texts. Of `flash`, `sessions`, `first_row` and `rows` are not used.
struct TextFlashArgs {
    FlashArgs flash;
    // One for each block of a head.
    const TextTile* tiles;
    // Keys and values of `kv_rows` rows.
    const uint8_t* kv;
    // `[rows][n_heads * head_dim]`, tiled, in place of `out`; or NULL. Whole tiles, heads of a multiple of 8.
    __half* f16;
    // `[rows]` becomes ones.
    float* f16_scale;
    uint32_t kv_rows;
    // Position p sees p - window + 1 to p + ahead - 1.
    uint32_t ahead;
};

struct TextSpan {
    // The text's first row.
    uint32_t start;
    // Its rows.
    uint32_t len;
};

struct PoolArgs {
    // `[rows][x_stride]`.
    const float* x;
    const TextSpan* texts;
    // `[texts][out_stride]`.
    float* out;
    uint32_t x_stride;
    uint32_t out_stride;
    // Elements of a row.
    uint32_t len;
    uint32_t pooling;
};

// out = activation(w x + bias), all in f32.
struct DenseArgs {
    // `[outputs][inputs]`.
    const float* w;
    // `[outputs]` or NULL.
    const float* bias;
    // `[count][x_stride]`.
    const float* x;
    // `[count][out_stride]`.
    float* out;
    uint32_t x_stride;
    uint32_t out_stride;
    uint32_t inputs;
    uint32_t outputs;
    uint32_t count;
    uint32_t activation;
};

static_assert(sizeof(TextTile) == 16);
static_assert(sizeof(TextFlashArgs) == 144);
static_assert(sizeof(TextSpan) == 8);
static_assert(sizeof(PoolArgs) == 40);
static_assert(sizeof(DenseArgs) == 56);
