#pragma once
#include "args_common.h"

// Generated from src/backend/cuda/launch/args/ by `make header`. Do not edit.

// Heads of a `ready_heads` block, one a warp.
constexpr uint32_t READY_HEADS = 8;

// Queries, keys and values of rows, in place: their limit, norms with weights of each head, and the factor on values. Values that are
// shorter than keys get zeros behind them, at another place of the row.
struct ReadyHeadsArgs {
    // `[rows][stride]`: queries, keys, then values.
    float* qkv;
    // `[n_heads][head_dim]` weights, and so many biases; weight NULL: none.
    NormArgs q_norm;
    // `[n_kv_heads][head_dim]`, likewise.
    NormArgs k_norm;
    uint32_t stride;
    uint32_t n_heads;
    // 0: there are queries alone.
    uint32_t n_kv_heads;
    uint32_t head_dim;
    // Elements of a value, at most head_dim.
    uint32_t value_dim;
    // Where values begin in a row,
    uint32_t values;
    // and where they go, head_dim elements each: there, if they have so many.
    uint32_t padded_values;
    // What is beyond it, or below its negative, becomes it; 0: none.
    float limit;
    // Factor on the values.
    float value_scale;
    uint32_t padding;
};

// The heads' results, as many elements of each as values have, times their gates.
struct FinishHeadsArgs {
    // `[rows][x_stride]`: head_dim elements of each head.
    const float* x;
    // `[rows][gate_stride]`: of each head or of each element of the result; or NULL.
    const float* gate;
    // `[rows][out_stride]`: value_dim elements of each head.
    float* out;
    uint32_t x_stride;
    uint32_t gate_stride;
    uint32_t out_stride;
    uint32_t n_heads;
    uint32_t head_dim;
    uint32_t value_dim;
    // Gates are of heads.
    uint32_t per_head;
    // Gates are factors by their softplus and not by their sigmoid.
    uint32_t softplus;
};

static_assert(sizeof(ReadyHeadsArgs) == 96);
static_assert(sizeof(FinishHeadsArgs) == 56);
