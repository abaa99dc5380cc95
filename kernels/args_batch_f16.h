#pragma once
#include "args_common.h"

// Generated from src/backend/cuda/launch/args/ by `make header`. Do not edit.

// Elements of a row that a stage of inputs has for a part of k.
constexpr uint32_t F16_BATCH_K = 128;

// Stages at most.
constexpr uint32_t F16_BATCH_STAGES = 8;

// Warpgroups of a block.
constexpr uint32_t F16_BATCH_WARPGROUPS = 4;

// Rows of the matrix that a warpgroup has.
constexpr uint32_t F16_BATCH_ROWS = 64;

struct BatchF16Args {
    // Blocks are a multiple of `shares`.
    Segment segments[MAX_SEGMENTS];
    // What LargestArgs says, of each segment.
    const float* largest[MAX_SEGMENTS];
    // `[columns][groups * 32]`, arranged as QuantizeInputArgs says.
    const __half* x;
    // `[batch]`: value = x * scale.
    const float* x_scale;
    // `[batch][out_stride]`.
    float* out;
    // `[batch][out_stride]`, added to the result, or NULL; may be `out`.
    const float* residual;
    // `[batch]`: of a gate with what it lets through, what is there and the largest result without its sign; else NULL. The matrix is one
    // segment then, gates before ups, and results are as many as gates.
    float* largest_out;
    uint32_t n_segments;
    uint32_t groups;
    uint32_t out_stride;
    // Input rows, at most the kernel's columns.
    uint32_t batch;
    // Parts of k that warpgroups of a block have: 1, 2 or 4. They have as many tiles of rows as are left.
    uint32_t parts;
    // Parts of k that blocks of a cluster have: 1 or 2.
    uint32_t shares;
    uint32_t stages;
    // Where sums begin in shared memory, where `parts` or `shares` are more than 1.
    uint32_t sums_at;
    Activation activation;
    uint32_t padding;
};

// Keeps a bound of what decoders make of a segment's records: of each scale times the largest number of its group, plus the subtrahend.
struct LargestArgs {
    const uint8_t* matrix;
    // What there was is kept if it is larger.
    float* largest;
    uint32_t type;
    uint32_t groups;
    uint32_t matrix_rows;
    // Of the rows to look at.
    uint32_t first_row;
    uint32_t rows;
    uint32_t padding;
};

static_assert(sizeof(BatchF16Args) == 280);
static_assert(sizeof(LargestArgs) == 40);
