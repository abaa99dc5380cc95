#pragma once
#include "args_common.h"

// Generated from src/backend/cuda/launch/args/ by `make header`. Do not edit.

// Parts of a row of `A`, a warp each, whose products with the input are added up in order.
constexpr uint32_t LORA_DOWN_PARTS = 16;

// Most linear layers of a fused matrix that adapters can be added to, and most pieces that its rows are cut into.
constexpr size_t MAX_LINEARS = 8;

// A pair for one linear layer.
struct AdapterPair {
    // `[rank][groups * 32]` of the input, zeros behind its length.
    const uint8_t* a;
    // `[outputs][rank, up to a multiple of 8]`, zeros behind its rank.
    const uint8_t* b;
    // 0: nothing is added.
    uint32_t rank;
    // Where its part of a thin row begins, a multiple of 8.
    uint32_t at;
    uint32_t a_type;
    uint32_t b_type;
    float scale;
    uint32_t padding;
};

// Rows of a product's output that belong to one of its linear layers, up to row `end`: `run` rows at a time from row `first` of the
// layer on, the next ones `step` rows further.
struct AdapterPiece {
    uint32_t end;
    uint32_t linear;
    uint32_t first;
    uint32_t run;
    uint32_t step;
};

// What the adapters of one session have for a product of one row.
struct Adapted {
    // Of its linear layers, `uses` each.
    const AdapterPair* pairs;
    // `[n_linears][ranks][LORA_DOWN_PARTS]` parts of A x: a float and, above it, `tag` once it is there.
    uint64_t* words;
    uint32_t uses;
    uint32_t ranks;
    uint32_t n_linears;
    // Of a block's shared memory, from where on it is for adapters (`Adapting`).
    uint32_t thin_at;
    // That no other product of the step has.
    uint32_t tag;
    uint32_t padding;
    AdapterPiece pieces[MAX_LINEARS];
};

struct AdaptArgs {
    const Session* const* sessions;
    // `[rows][groups * 32]`, or NULL.
    const int8_t* q8;
    // `[rows][groups]`.
    const float* q8_scale;
    // `[rows][groups * 32]`, or NULL.
    const float* f32;
    // Tiled, or NULL: rows of the first session.
    const __half* f16;
    // `[rows]`.
    const float* f16_scale;
    // `[rows][out_stride]`.
    float* out;
    uint32_t out_stride;
    uint32_t groups;
    // Of the inputs and outputs.
    uint32_t first_row;
    uint32_t rows;
    uint32_t outputs;
    // Of the network.
    uint32_t first_linear;
    uint32_t n_linears;
    uint32_t padding;
    AdapterPiece pieces[MAX_LINEARS];
};

// A product that adapters may add to.
struct AdaptedProductArgs {
    ProductArgs product;
    Adapted adapted;
};

static_assert(sizeof(AdapterPair) == 40);
static_assert(sizeof(AdapterPiece) == 20);
static_assert(sizeof(Adapted) == 200);
static_assert(sizeof(AdaptArgs) == 248);
static_assert(sizeof(AdaptedProductArgs) == 552);
