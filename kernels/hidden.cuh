// Rings of hidden states (src/backend/cuda/network/hidden.rs).
#pragma once
#include "args_common.h"
#include "args_predictor.h"
#include "instructions.cuh"

using Scratch = float[32];  // of sums over a block

// The row of a position in a ring of so many rows of `width` floats.
__device__ __forceinline__ float* ring_row(const StateRing* ring, uint32_t rows, uint32_t position, uint32_t width) {
    return (float*)(ring + 1) + (uint64_t)(position % rows) * width;
}
