#pragma once
#include "args_common.h"

// Generated from src/backend/cuda/launch/args/ by `make header`. Do not edit.

// Most columns of a head's state.
constexpr uint32_t MAX_COLS = 256;

// Threads of a head in a step, four for a row of its state.
constexpr uint32_t STEP_THREADS = 512;

// Blocks that share these and the rows where that is faster.
constexpr uint32_t STEP_BLOCKS = 4;

// Threads of a head where its state is copied in bulk.
constexpr uint32_t BATCH_THREADS = 128;

// Most columns of such a state.
constexpr uint32_t BATCH_COLS = 128;

// Rows of it that are copied together, one for four threads.
constexpr uint32_t BATCH_ROWS = 32;

// Most such pieces.
constexpr uint32_t BATCH_PIECES = 16;

// Rows of a chunk that a block of a convolution takes.
constexpr uint32_t CONV_ROWS = 32;

// Rows of a state that a block of a scan has.
constexpr uint32_t SCAN_ROWS = 32;

// Tokens that it fetches at a time.
constexpr uint32_t SCAN_TOKENS = 16;

// Channels of the first Mamba that a block has in a step.
constexpr uint32_t STEP_CHANNELS = 64;

// And in a scan.
constexpr uint32_t SCAN_CHANNELS = 32;

// Most numbers of such a channel.
constexpr uint32_t MAX_STATES = 64;

struct RecurrentArgs {
    const Session* const* sessions;
    // `[rows of input][in_stride]`: channels of the convolution, gate, numbers per head.
    const float* input;
    // `[rows of input][heads * rows]`.
    float* out;
    // Chunks: `[rows of input][channels]`.
    float* convolved;
    // `[channels][width]`, the current token's last.
    const float* conv_weight;
    // `[channels]` or NULL.
    const float* conv_bias;
    // `[heads]`, below zero: decay = exp(rate * step).
    const float* rate;
    // `[heads]`: step = softplus(in + bias), between the bounds.
    const float* step_bias;
    // `[heads]` or NULL.
    const float* skip;
    // `[rows]`: of a head's outputs before their gate, where that is done here; or NULL.
    const float* norm;
    // Bytes to the layer's part of a fixed state.
    uint64_t state_offset;
    // Bytes to S.
    uint64_t matrix_offset;
    uint32_t in_stride;
    uint32_t channels;
    uint32_t width;
    uint32_t heads;
    // Heads that share q and k.
    uint32_t per_key;
    uint32_t rows;
    uint32_t cols;
    // Of the channels.
    uint32_t q_at;
    uint32_t k_at;
    uint32_t v_at;
    // Of the input row.
    uint32_t gate_at;
    uint32_t step_at;
    uint32_t beta_at;
    // Delta rule: q and k have length 1, `scale = beta_scale * sigmoid(in[beta_at])`; else scale = step.
    uint32_t delta;
    float q_scale;
    // Of the norm.
    float eps;
    // Of the step.
    float least;
    float most;
    // Chunks: rows of input.
    uint32_t count;
    // Heads take the keys in turns; else `per_key` in succession use the same.
    uint32_t tiled;
    // A step without norm multiplies by silu(gate).
    uint32_t gated;
    float beta_scale;
    // Where each channel has a step of its own, `[rows of input][steps_stride]`: `[heads][cols]` numbers, as many as `step_bias` has,
    // with `decay = exp(rate * softplus(in + bias))`, or `exp(floor * sigmoid(rate * (in + bias)))` if the floor is below 0.
    const float* steps;
    // And there, `[rows of input][gates_stride]`: gates, in place of those at `gate_at`.
    const float* gates;
    uint32_t steps_stride;
    uint32_t gates_stride;
    float floor;
    uint32_t padding;
    // Where not NULL, a step of many sessions has its outputs there instead, as int8 with a scale for 32 of them:
    // `[rows of input][heads * rows]` and `[rows of input][heads * rows / 32]`.
    int8_t* q8;
    float* q8_scale;
};

// The norm of groups of a row, and their gate, in place.
struct GatedNormArgs {
    // `[rows][len]`.
    float* x;
    // `[rows][gate_stride]`.
    const float* gate;
    // `[len]`, or of one group where all groups have the same; NULL: no norm.
    const float* weight;
    uint32_t len;
    // Elements of a group.
    uint32_t group;
    uint32_t gate_stride;
    // All groups have the same weights.
    uint32_t same;
    // The norm is of x * silu(gate); else the norm of x is multiplied by it.
    uint32_t gate_first;
    float eps;
    // The gate is a factor by its sigmoid; not if it comes first.
    uint32_t sigmoid;
    uint32_t padding;
};

// out = c * convolution(b * x): of rows `[b, c, x]`.
struct ShortConvArgs {
    const Session* const* sessions;
    // `[rows][in_stride]`.
    const float* input;
    // `[rows][channels]`.
    float* out;
    // `[channels][width]`.
    const float* weight;
    // `[channels]` or NULL.
    const float* bias;
    uint64_t state_offset;
    uint32_t in_stride;
    uint32_t channels;
    uint32_t width;
    // Rows are positions of session 0.
    uint32_t prefill;
    uint32_t count;
    uint32_t padding;
};

struct SelectiveArgs {
    const Session* const* sessions;
    // `[rows of input][in_stride]`: channels, gates.
    const float* input;
    // `[rows of input][channels]`.
    const float* convolved;
    // `[rows of input][part_stride]`: B, C.
    const float* parts;
    // `[rows of input][channels]`: dt before softplus.
    const float* steps;
    // `[rows of input][channels]`, which may be where the steps are.
    float* out;
    // `[blocks of CHANNELS][state_dim][CHANNELS]`, times log2(e).
    const float* rate;
    // `[channels]`.
    const float* skip;
    // Of B and of C; weight NULL: none.
    NormArgs norms[2];
    // Bytes to S in a fixed state.
    uint64_t matrix_offset;
    uint32_t in_stride;
    uint32_t part_stride;
    uint32_t channels;
    uint32_t state_dim;
    // Chunks: rows of input.
    uint32_t count;
    uint32_t padding;
};

static_assert(sizeof(RecurrentArgs) == 232);
static_assert(sizeof(GatedNormArgs) == 56);
static_assert(sizeof(ShortConvArgs) == 72);
static_assert(sizeof(SelectiveArgs) == 144);
