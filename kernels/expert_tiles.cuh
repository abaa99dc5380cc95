// What the products of many rows with the matrices of their experts take, whatever kernel does them.
#pragma once
#include "activation.cuh"

// Slots of one expert that are multiplied together: the expert, the first slot and how many they are.
struct alignas(16) TilePlace {
    uint32_t expert, begin, rows, padding;
};
static_assert(sizeof(TilePlace) == 16, "as in places.rs");

struct ExpertMatmulArgs {
    const __half* x;          // [inputs][k], tiled
    const float* x_scale;     // [inputs]: a row's values are x * x_scale
    const uint32_t* pairs;    // pair of each slot, whose input is pair / pairs_per_input; NULL: slots
    const uint32_t* tiles;    // [.. + 1]: first tile of each expert, and the end
    const TilePlace* places;  // of each tile
    const void* w[2];         // f16: [experts from first_expert on][n] rows of k, tiled; or the records of all experts
    const float* bias[2];     // [all experts][n] or NULL
    float* out;               // [slots][out_stride]
    uint32_t pairs_per_input;
    uint32_t first_expert;
    uint32_t end_expert;      // the tiles of these experts are done
    uint32_t n, k;            // rows of each matrix; k a multiple of 32
    uint32_t out_stride;
    uint32_t n_experts;
    uint32_t gated;           // experts_wgmma.cuh: there are two matrices, of a gate and of what it lets through
    Activation activation;    // of both: SILU or CLAMPED_SWIGLU
    uint32_t padding;
};
static_assert(sizeof(ExpertMatmulArgs) == 128, "as in args.rs");
