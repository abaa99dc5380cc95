#pragma once
#include "args_common.h"

// Generated from src/backend/cuda/launch/args/ by `make header`. Do not edit.

// Most experts of a layer.
constexpr uint32_t MAX_EXPERTS = 1024;

// Most experts that a token goes through: a chunk's pairs must fit a grid.
constexpr uint32_t MAX_USED = 31;

// Warps of a block of the router's product with one row.
constexpr uint32_t ROUTER_WARPS = 16;

// Warps of a block of the router's product with rows.
constexpr uint32_t SCORE_WARPS = 8;

// Rows of the router that each takes.
constexpr uint32_t SCORES_AT_ONCE = 2;

// Pairs of one expert that share its weights, in a step of several rows.
constexpr uint32_t PAIRS_AT_ONCE = 4;

// Warps of the block that routes a step's rows.
constexpr uint32_t PAIR_WARPS = 16;

// Most pairs that it sorts.
constexpr uint32_t MOST_PAIRS = 2048;

// Most slots of a tile of the products of many rows by warpgroups: an instruction of the tensor cores may have no more registers than
// each of the block's threads at the start.
constexpr uint32_t EXPERT_SLOTS = 192;

// `PairTile` of route.cuh.
struct PairTile;

// `TilePlace` of expert_tiles.cuh.
struct TilePlace;

struct RouteArgs {
    // `[rows][score_stride]`: of all experts, then of the shared one.
    const float* scores;
    // `[n_experts]`, added while choosing, or NULL.
    const float* selection_bias;
    // `[n_experts]`, factors on the weights, or NULL.
    const float* expert_scales;
    // `[rows][n_used]`, ascending.
    uint32_t* chosen;
    // `[rows][n_used + 1]`, the shared expert's last.
    float* weights;
    uint32_t score_stride;
    // At most MAX_EXPERTS.
    uint32_t n_experts;
    // At most MAX_USED.
    uint32_t n_used;
    uint32_t scoring;
    uint32_t shared;
    uint32_t normalize;
    float weight_scale;
    // Groups of consecutive experts, at most 32; 0: none.
    uint8_t n_groups;
    // Those that experts are chosen from.
    uint8_t used_groups;
    // Best experts that count for a group: 1 or 2.
    uint8_t group_best;
    uint8_t padding;
};

struct RouterArgs {
    // `[matrix_rows][width]`.
    const float* matrix;
    // `[matrix_rows]` or NULL.
    const float* bias;
    // `[rows][width]`.
    const float* x;
    // router_row: of the row; weight NULL: none.
    NormArgs norm;
    // `[rows][matrix_rows]`.
    float* out;
    // router_row: the input as int8 for the experts, too.
    int8_t* q8;
    // `[width / 32]`.
    float* q8_scale;
    // A multiple of 32.
    uint32_t width;
    uint32_t matrix_rows;
    uint32_t rows;
    // Rows that a block takes: of the matrix (router_row), or of the input.
    uint32_t per_block;
    float inverse_len;
    uint32_t padding;
};

struct SortArgs {
    // `[n_pairs]`: experts of the pairs.
    const uint32_t* chosen;
    // `[n_experts + 1]`: first slot of each expert, and the end.
    uint32_t* starts;
    // `[n_pairs]`: slot of a pair.
    uint32_t* slots;
    // `[n_pairs]`: pair of a slot.
    uint32_t* pairs;
    // expert_tiles: `[n_experts + 1]`, first tile of each expert, and the end.
    uint32_t* tiles;
    // expert_tiles: of each tile.
    TilePlace* places;
    uint32_t n_pairs;
    uint32_t n_experts;
    // A multiple of 8.
    uint32_t tile_rows;
    uint32_t padding;
};

struct RoutePairsArgs {
    RouteArgs route;
    PairTile* tiles;
    uint32_t* n_tiles;
    uint32_t rows;
    uint32_t padding;
};

// How the rows of a matrix of all experts are cut, as `slices_of`.
struct ExpertSlices {
    uint32_t all_rows;
    uint32_t count;
    // Groups of a slice.
    uint32_t full;
    // Groups of a slice.
    uint32_t last;
    // Of a record.
    uint32_t full_bytes;
    // Of a record.
    uint32_t last_bytes;
};

// Rows that blocks share: `each` for each of them, one more for the first `more`.
struct ExpertShare {
    uint32_t each;
    uint32_t more;
};

struct ExpertsUpArgs {
    RouteArgs route;
    // Gate, then up; or up alone.
    const uint8_t* matrices[2];
    // `[n_experts * rows]` or NULL.
    const float* biases[2];
    // `[groups * 32]`.
    const int8_t* q8;
    // `[groups]`.
    const float* q8_scale;
    // `[n_used][rows]`.
    float* out;
    ExpertSlices slices;
    // 1: both matrices.
    uint32_t gated;
    uint32_t groups;
    // Of an expert.
    uint32_t rows;
    // For an expert.
    uint32_t blocks;
    ExpertShare share;
    // Of all warps.
    uint32_t ring_bytes;
    Activation activation;
};

// The router's product with one row, and beside it the gates and ups of the shared expert.
struct RouterSharedArgs {
    RouterArgs router;
    // Rows of the gate, then of up; or of up alone.
    const uint8_t* matrix;
    // `[rows]`.
    float* out;
    ExpertSlices slices;
    // 1: both.
    uint32_t gated;
    // Of each.
    uint32_t rows;
    // Blocks that have the router's rows; the others share those of the expert.
    uint32_t router_blocks;
    ExpertShare share;
    // Of all warps.
    uint32_t ring_bytes;
    Activation activation;
    uint32_t padding;
};

struct ExpertsDownArgs {
    const uint8_t* matrix;
    // `[n_experts * rows]` or NULL.
    const float* bias;
    // `[n_used]`.
    const uint32_t* chosen;
    // `[n_used + 1]`, the shared expert's last.
    const float* weights;
    // `[n_used][groups * 32]`.
    const float* x;
    // `[rows]`: outputs of the shared expert, or NULL.
    const float* shared;
    // Or its matrix, as wide as those of the others; `x` has its input behind theirs.
    const uint8_t* shared_matrix;
    // `[rows]`, or NULL.
    const float* base;
    // `[rows]` = base + scale * sum; may be `base`.
    float* out;
    ExpertSlices slices;
    uint32_t n_experts;
    uint32_t n_used;
    // Of an expert's input.
    uint32_t groups;
    uint32_t rows;
    ExpertShare share;
    uint32_t ring_bytes;
    float scale;
};

struct ExpertsRowsArgs {
    // Gate, then up; or one alone.
    const uint8_t* matrices[2];
    const float* biases[2];
    const PairTile* tiles;
    const uint32_t* n_tiles;
    // `[inputs][groups * 32]`, of which each is that of pairs_per_input pairs; or NULL:
    const int8_t* q8;
    const float* q8_scale;
    // `[pairs][groups * 32]`.
    const float* x;
    // `[pairs][rows]`.
    float* out;
    ExpertSlices slices;
    // 1: out = activation(first) * second.
    uint32_t gated;
    // 1: out = activation(first).
    uint32_t activates;
    uint32_t groups;
    // Of an expert.
    uint32_t rows;
    uint32_t n_experts;
    uint32_t pairs_per_input;
    // Rows that a block sums at a time: bounds its shared memory.
    uint32_t chunk_rows;
    uint32_t ring_bytes;
    Activation activation;
    uint32_t padding;
};

struct ExpertMatvecArgs {
    // Of all experts; blocks: that share one expert's rows.
    Segment segments[2];
    // `[pairs]`.
    const uint32_t* chosen;
    // `[pairs]`, or NULL: pairs sorted by expert, so that those of one meet in the cache.
    const uint32_t* order;
    // `[inputs][groups * 32]`.
    const int8_t* q8;
    // `[inputs][groups]`.
    const float* q8_scale;
    // `[inputs][groups * 32]`, for segments of float types.
    const float* f32;
    // `[pairs][out_stride]`.
    float* out;
    uint32_t n_segments;
    uint32_t groups;
    uint32_t out_stride;
    // Consecutive pairs that read the same input row.
    uint32_t pairs_per_input;
    uint32_t n_experts;
    // Rows that a block sums at a time: bounds its shared memory.
    uint32_t chunk_rows;
    // NULL, or `[pairs][inner_stride]`: gates, then ups, or ups, whose activation is the input.
    const float* inner;
    // 2 * len with gates, len without.
    uint32_t inner_stride;
    uint32_t len;
    Activation activation;
    uint32_t padding;
};

struct WeighInnerArgs {
    // `[pairs or slots][width]`: gates, then ups, or ups.
    float* inner;
    // `[rows][n_used + 1]`, which are 1 from then on, but for the shared expert's.
    float* weights;
    // Pair of each slot, or NULL where inner values are by pairs.
    const uint32_t* pairs;
    uint32_t n_used;
    uint32_t width;
};

struct ExpertMatmulArgs {
    // `[inputs][k]`, tiled.
    const __half* x;
    // `[inputs]`: a row's values are x * x_scale.
    const float* x_scale;
    // Pair of each slot, whose input is pair / pairs_per_input; NULL: slots.
    const uint32_t* pairs;
    // `[.. + 1]`: first tile of each expert, and the end.
    const uint32_t* tiles;
    // Of each tile.
    const TilePlace* places;
    // f16: `[experts from first_expert on][n]` rows of k, tiled; or the records of all experts.
    const void* w[2];
    // `[all experts][n]` or NULL.
    const float* bias[2];
    // `[slots][out_stride]`.
    float* out;
    uint32_t pairs_per_input;
    uint32_t first_expert;
    // The tiles of these experts are done.
    uint32_t end_expert;
    // Rows of each matrix; k a multiple of 32.
    uint32_t n;
    // Rows of each matrix; k a multiple of 32.
    uint32_t k;
    uint32_t out_stride;
    uint32_t n_experts;
    // experts_wgmma.cuh: there are two matrices, of a gate and of what it lets through.
    uint32_t gated;
    // Of both: SILU or CLAMPED_SWIGLU.
    Activation activation;
    uint32_t padding;
};

struct CombineArgs {
    // `[pairs or slots][x_stride]`: outputs of the experts.
    const float* x;
    // Slot of each pair, or NULL where x has pairs.
    const uint32_t* slots;
    // `[rows][n_used + 1]`.
    const float* weights;
    // `[rows][x_stride]`: outputs of the shared expert, or NULL.
    const float* shared;
    // `[len]`, added to the sum, or NULL.
    const float* bias;
    // `[rows][out_stride]`, or NULL.
    const float* base;
    // `[rows][out_stride]` = base + scale * sum; may be `base`.
    float* out;
    float scale;
    uint32_t n_used;
    uint32_t len;
    uint32_t x_stride;
    uint32_t out_stride;
    uint32_t padding;
};

static_assert(sizeof(RouteArgs) == 72);
static_assert(sizeof(RouterArgs) == 96);
static_assert(sizeof(RoutePairsArgs) == 96);
static_assert(sizeof(ExpertSlices) == 24);
static_assert(sizeof(ExpertsUpArgs) == 192);
static_assert(sizeof(ExpertsDownArgs) == 128);
static_assert(sizeof(RouterSharedArgs) == 176);
static_assert(sizeof(ExpertsRowsArgs) == 152);
static_assert(sizeof(SortArgs) == 64);
static_assert(sizeof(ExpertMatvecArgs) == 184);
static_assert(sizeof(WeighInnerArgs) == 32);
static_assert(sizeof(ExpertMatmulArgs) == 128);
static_assert(sizeof(CombineArgs) == 80);
