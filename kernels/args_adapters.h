#pragma once
#include "args_common.h"

// Generated from src/backend/cuda/launch/args/ by `make header`. Do not edit.

// Parts of a row of `A`, a warp each, whose products with the input are added up in order.
constexpr uint32_t LORA_DOWN_PARTS = 16;

// Most linear layers of a fused matrix that adapters can be added to, and most pieces that its rows are cut into.
constexpr size_t MAX_LINEARS = 8;

// Most ranks of a pair that [`AdaptEach`] takes.
constexpr uint32_t MOST_RANKS_OF_EACH = 4096;

// Threads of a block of [`AdaptEach`], and outputs that it has a part in.
constexpr uint32_t ADAPT_EACH_THREADS = 256;

constexpr uint32_t ADAPT_EACH_OUTPUTS = 1024;

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

// What adapters have for entries that have a matrix each: a token with one of the experts that a router has chosen for it, with a head of
// latent attention, or with a router, which is the only one of its kind. In order, entries are `[rows][per_row]`, unless slots say otherwise.
struct AdaptEachArgs {
    const Session* const* sessions;
    // `[inputs][groups * 32]`, or NULL.
    const int8_t* q8;
    // `[inputs][groups]`.
    const float* q8_scale;
    // Tiled, or NULL.
    const __half* f16;
    // `[inputs]`.
    const float* f16_scale;
    // `[inputs][x_stride]`, or NULL.
    const float* f32;
    // `[rows][per_row]`: the matrix of each entry, or NULL where an entry's matrix is its place in its row.
    const uint32_t* chosen;
    // The entry in each slot, or NULL where they are in order.
    const uint32_t* slots;
    // f32, or f16 where `halves`: `[slots][out_stride]` where matrices are chosen, else `[rows][out_stride]`.
    uint8_t* out;
    uint32_t x_stride;
    // From the input in f32 of a matrix to that of the next one.
    uint32_t x_matrix;
    uint32_t len;
    uint32_t groups;
    uint32_t out_stride;
    uint32_t out_matrix;
    uint32_t halves;
    // Factor on what is added.
    float out_scale;
    uint32_t per_row;
    // Inputs are those of slots, not of rows.
    uint32_t of_slots;
    // All rows are of the first session.
    uint32_t one_session;
    // Of the network.
    uint32_t linear;
    uint32_t matrices;
    // Rows of each matrix, and those that the output is of.
    uint32_t matrix_rows;
    uint32_t first;
    uint32_t outputs;
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
static_assert(sizeof(AdaptEachArgs) == 136);
static_assert(sizeof(AdaptedProductArgs) == 552);
