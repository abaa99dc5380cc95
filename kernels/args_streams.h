#pragma once
#include "args_common.h"

// Generated from src/backend/cuda/launch/args/ by `make header`. Do not edit.

// Most streams.
constexpr uint32_t MAX_STREAMS = 16;

struct StreamsArgs {
    // `[rows][count][stride]`.
    float* streams;
    // `[rows][stride]`: the residual stream.
    float* x;
    // `[rows][y_stride]`: what products have left.
    float* y;
    // Weight NULL: none.
    NormArgs norm;
    NormArgs thin_norm;
    // `[count][len]`.
    const float* router;
    // Of predictions `[count][count][count]`, of corrections `[count][count]`.
    const float* coefficients;
    // `[len]`.
    const float* scale;
    uint32_t count;
    uint32_t active;
    uint32_t len;
    uint32_t stride;
    uint32_t y_stride;
    uint32_t padding;
};

// Gates, in place, by as much as they are so many standard deviations above their mean; 0 below.
struct SparseGatesArgs {
    // `[rows][stride]`.
    float* x;
    uint32_t len;
    uint32_t stride;
    float cutoff;
    uint32_t padding;
};

