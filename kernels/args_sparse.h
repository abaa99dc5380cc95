#pragma once
#include "args_common.h"

// Generated from src/backend/cuda/launch/args/ by `make header`. Do not edit.

struct SparseMixerArgs {
    // `[rows][score_stride]`: of all experts, two at least.
    float* scores;
    uint32_t score_stride;
    uint32_t n_experts;
    // How near to the largest score others are that count, twice, as a share of it.
    float nearness;
    uint32_t padding;
};

static_assert(sizeof(SparseMixerArgs) == 24);
