#pragma once
#include "args_common.h"

// Generated from src/backend/cuda/launch/args/ by `make header`. Do not edit.

// Blocks of the cluster.
constexpr uint32_t OWN_BLOCKS = 8;

// A matrix of one type, as `slices_of` cuts it.
struct OwnMatrix {
    const uint8_t* matrix;
    uint32_t rows;
    uint32_t n_slices;
    // Groups of a slice.
    uint32_t full;
    // Groups of a slice.
    uint32_t last;
    // Of a record.
    uint32_t full_bytes;
    // Of a record.
    uint32_t last_bytes;
};

struct OwnInputArgs {
    // From the residual stream, and to it.
    OwnMatrix gate;
    OwnMatrix projection;
    // `[groups * 32]`: what is added to the residual stream first, or that.
    const float* x;
    // `sum` NULL: it is not kept.
    RowSumArgs added;
    // `[gate.rows]`: the layer's input.
    const float* own;
    // Of the projection; weight NULL: none.
    NormArgs norm;
    // `[groups * 32]`: may be what is added to, or x.
    float* out;
    float scale;
    float out_scale;
    float inverse_len;
    // Of a row of the residual stream.
    uint32_t groups;
    // Where parts of a block's shared memory begin.
    uint32_t projection_at;
    uint32_t input_at;
    uint32_t inner_at;
    uint32_t own_at;
    Activation activation;
    uint32_t padding;
};

static_assert(sizeof(OwnMatrix) == 32);
static_assert(sizeof(OwnInputArgs) == 208);
