#pragma once
#include "args_common.h"

// Generated from src/backend/cuda/launch/args/ by `make header`. Do not edit.

// Most places between layers whose hidden states a ring has.
constexpr size_t MAX_PLACES = 3;

// What a ring of hidden states begins with; its rows, of floats, are behind it.
struct StateRing {
    // A row has the residual stream before the layers of these numbers, one behind the other; as many as there are stands for behind the
    // last one.
    uint32_t places[MAX_PLACES];
    // 0: a row has the residual stream behind the final norm.
    uint32_t n_places;
    uint32_t padding[28];
};

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
    // Row i has the state of row first + i of this ring; NULL: that of the position before its own in session i's ring.
    const StateRing* states;
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

struct KeepPlaceArgs {
    // As of `KeepArgs`.
    const Session* const* sessions;
    // `[rows][x_stride]`: the residual stream before a layer.
    const float* x;
    uint32_t x_stride;
    uint32_t len;
    // Rows of a chunk; 0 in a step.
    uint32_t chunk;
    // The number of that layer.
    uint32_t place;
    // Factor on the rows.
    float unit;
    uint32_t padding;
};

struct GatherStatesArgs {
    const StateRing* ring;
    // `[rows][out_stride]`: row i is row first + i of the ring.
    float* out;
    uint32_t ring_rows;
    uint32_t first;
    // Floats of a row.
    uint32_t width;
    uint32_t out_stride;
};

struct JoinArgs {
    const Session* const* sessions;
    // `[rows][x_stride]`: embeddings of the rows' tokens, or hidden states; what the layer adds to comes in place of them.
    float* x;
    // `[rows][out_stride]`: the norm of the embedding, and behind it that of the state.
    float* out;
    NormArgs norms[2];
    uint32_t x_stride;
    uint32_t out_stride;
    uint32_t len;
    // 0: both norms, of embeddings and of the states of the positions before the sessions' in their own rings; 1: that of embeddings
    // alone, which stay; 2: that of states alone, which are `x`.
    uint32_t half;
    // What the layer adds to is the norm of the state.
    uint32_t normed;
    uint32_t padding;
};

struct SpreadLogitsArgs {
    // `[rows][n_known]`.
    const float* known;
    // `[n_vocab]`: a token's place among the known ones; n_known of others.
    const uint32_t* place_of;
    // `[rows][n_vocab]`.
    float* logits;
    uint32_t n_known;
    uint32_t n_vocab;
};

static_assert(sizeof(StateRing) == 128);
static_assert(sizeof(KeepArgs) == 56);
static_assert(sizeof(EnterArgs) == 104);
static_assert(sizeof(KeepPlaceArgs) == 40);
static_assert(sizeof(GatherStatesArgs) == 32);
static_assert(sizeof(JoinArgs) == 96);
static_assert(sizeof(SpreadLogitsArgs) == 32);
