#pragma once
#include "args_common.h"

// Generated from src/backend/cuda/launch/args/ by `make header`. Do not edit.

// Most GPUs of a group.
constexpr size_t MAX_RANKS = 8;

// Most pieces of a sum.
constexpr uint32_t MAX_SUM_PIECES = 128;

// Flags of a meeting: of pieces, and some others.
constexpr uint32_t SUM_FLAGS = 136;

// What all kernels need that meet.
struct MeetingArgs {
    // Of each rank: `[2][MAX_RANKS][SUM_FLAGS]` u64 in its memory.
    uint64_t flags[MAX_RANKS];
    // The number of this launch, the same on all ranks, below 2^48.
    const uint64_t* launch;
    // A peer did not come.
    uint32_t* failed;
    // How long to wait for it, in ns.
    uint64_t patience;
    uint32_t rank;
    uint32_t n_ranks;
    // Of the meeting in the launch.
    uint32_t index;
    uint32_t padding;
};

struct RankSumArgs {
    MeetingArgs meeting;
    // Of each rank: `[2][n_ranks][capacity]` f32 in its memory.
    uint64_t inboxes[MAX_RANKS];
    // Of each rank: `[2][n_ranks][tagged_capacity]` pairs of an f32 and a tag.
    uint64_t tagged[MAX_RANKS];
    // `[rows][x_stride]`: what this rank has.
    const float* x;
    // `[rows][stride]`, or NULL: what is added to the sum.
    const float* base;
    // `[rows][stride]`; may be `x` or `base`.
    float* out;
    uint64_t capacity;
    // A multiple of 4.
    uint32_t tagged_capacity;
    uint32_t rows;
    uint32_t len;
    uint32_t x_stride;
    uint32_t stride;
    uint32_t pieces;
};

// A row that is added up over all ranks, and how they meet for that.
struct LinkedRow {
    MeetingArgs meeting;
    // Of each rank: `[2][n_ranks][tagged_capacity]` pairs of an f32 and a tag.
    uint64_t tagged[MAX_RANKS];
    uint32_t tagged_capacity;
    uint32_t padding;
};

// A plain product of one row whose output is added up over all ranks: out = residual + sum.
struct LinkedProductArgs {
    ProductArgs product;
    LinkedRow row;
};

struct RankLogitsArgs {
    MeetingArgs meeting;
    // `[rows][n_vocab]`: logits of the other ranks, in the memory of rank 0.
    const float* inbox;
    // `[rows][n_vocab]`, of rank 0.
    float* logits;
    // 0: nothing but the meeting.
    uint32_t rows;
    uint32_t n_vocab;
    // Logits that are this rank's own.
    uint32_t first;
    uint32_t end;
};

struct RankPackArgs {
    // `[rows][x_stride]`.
    const float* x;
    // `[rows][out_stride]`.
    float* out;
    uint32_t rows;
    uint32_t len;
    uint32_t x_stride;
    uint32_t out_stride;
};

struct RankAddArgs {
    // `[n_ranks][rows][len]`: what each rank has.
    const float* x;
    // `[rows][stride]`, or NULL: what is added to the sum.
    const float* base;
    // `[rows][stride]`; may be `base`.
    float* out;
    uint32_t n_ranks;
    uint32_t rows;
    uint32_t len;
    uint32_t stride;
};

struct RankPlaceArgs {
    // `[n_ranks][rows][width]`: logits of each rank, of which the first ranks may have one more than the others.
    const float* x;
    // `[rows][n_vocab]`.
    float* logits;
    uint32_t n_ranks;
    uint32_t rows;
    uint32_t width;
    uint32_t n_vocab;
};

static_assert(sizeof(MeetingArgs) == 104);
static_assert(sizeof(RankSumArgs) == 288);
static_assert(sizeof(LinkedRow) == 176);
static_assert(sizeof(LinkedProductArgs) == 528);
static_assert(sizeof(RankLogitsArgs) == 136);
static_assert(sizeof(RankPackArgs) == 32);
static_assert(sizeof(RankAddArgs) == 40);
static_assert(sizeof(RankPlaceArgs) == 32);
