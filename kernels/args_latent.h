#pragma once
#include "args_common.h"

// Generated from src/backend/cuda/launch/args/ by `make header`. Do not edit.

// Longest key of latent attention.
constexpr uint32_t MAX_LATENT_KEY = 768;

// Rows of input that a block of the `head_product` kernels takes.
constexpr uint32_t HEAD_ROWS = 64;

struct LatentArgs {
    const Session* const* sessions;
    // `[rows][kv_stride]`: the latent vector, then the part of a key that is rotated.
    const float* kv;
    // `[rows][q_stride]`: of each head the plain part, which gets the position's factor, then the rotated one.
    float* q;
    // `[rows][n_heads * head_dim]`: rotated parts are written behind the `rank` other elements.
    __half* q16;
    // Of all of a rotated part.
    Rotation rotation;
    // Of the latent vector; weight NULL: none.
    NormArgs norm;
    KvLayout layout;
    float q_scale;
    uint32_t kv_stride;
    uint32_t q_stride;
    uint32_t n_heads;
    uint32_t rank;
    // Elements of a plain part.
    uint32_t plain;
    // Rows are positions of session 0.
    uint32_t prefill;
    uint32_t padding;
};

struct HeadProductArgs {
    // `[n_heads][rows][groups * 32]`, one below the other.
    const uint8_t* matrix;
    // `[count][x_stride]`, head h's from h * x_head on.
    const float* x;
    // `[count][out_stride]`, head h's from h * out_head on; or NULL.
    float* f32;
    // The same as `f32`, times scale; or NULL.
    __half* f16;
    uint32_t type;
    uint32_t groups;
    // Of all heads.
    uint32_t matrix_rows;
    // Outputs of a head.
    uint32_t rows;
    uint32_t count;
    // Elements of a head's input.
    uint32_t len;
    uint32_t x_stride;
    uint32_t x_head;
    uint32_t out_stride;
    uint32_t out_head;
    float scale;
    uint32_t padding;
};

static_assert(sizeof(LatentArgs) == 184);
static_assert(sizeof(HeadProductArgs) == 80);
