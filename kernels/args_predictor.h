#pragma once
#include "args_common.h"

// Generated from src/backend/cuda/args/ by `make header`. Do not edit.

struct KeepArgs {
    // Row i is of session i, or, of a chunk, at the i-th position from session 0's on.
    const Session* const* sessions;
    // `[rows][x_stride]`: the residual stream behind the last layer.
    const float* x;
    // The network's last one.
    NormArgs norm;
    uint32_t x_stride;
    uint32_t len;
    // Rows of a chunk; 0 in a step.
    uint32_t chunk;
    uint32_t padding;
};

struct EnterArgs {
    const Session* const* sessions;
    // `[rows][x_stride]`: embeddings of the rows' tokens.
    const float* x;
    // A ring of hidden states, of which row i has that of row first + i; NULL: of the position before its own in session i's ring.
    const float* states;
    // `[rows][out_stride]`: the norm of the embedding, and behind it that of the state.
    float* out;
    NormArgs norms[2];
    uint32_t x_stride;
    uint32_t out_stride;
    uint32_t len;
    uint32_t states_rows;
    uint32_t first;
    uint32_t padding;
};

static_assert(sizeof(KeepArgs) == 56);
static_assert(sizeof(EnterArgs) == 104);
