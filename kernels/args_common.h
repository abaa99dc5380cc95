#pragma once
#include <cstdint>
#include <cuda_fp16.h>

// Generated from src/backend/cuda/launch/args/ by `make header`. Do not edit.

// Positions of a tile of the KV cache.
constexpr uint32_t KV_TILE = 64;

// Most parts that a context is cut into: those of a head fit in a block's tiles (fewer of them where tiles are of one stage).
constexpr uint32_t MAX_PARTS = 120;

// Longest head that attention takes.
constexpr uint32_t MAX_HEAD_DIM = 512;

// Rows of a tile of a product of many rows.
constexpr uint32_t TILE_ROWS = 128;

// Elements of each.
constexpr uint32_t TILE_K = 64;

// Warps of a block of the products of one row or a few.
constexpr int32_t WARPS = 16;

// Bytes of a group of their input in shared memory: int8 and a scale.
constexpr uint32_t INPUT_BYTES = 36;

// Fours of elements that a thread has at most of a row that is added up first.
constexpr int32_t FOURS_OF_SUM = 2;

// Warps of a block of the products of batches.
constexpr uint32_t BATCH_WARPS = 8;

// Weight rows of a tile there.
constexpr uint32_t BATCH_TILE_ROWS = 8;

// Most stages of a ring there.
constexpr uint32_t BATCH_MAX_STAGES = 8;

// Groups of tokens whose best is found first.
constexpr int32_t BEST_GROUPS = 256;

// Words of `asked` before its tokens.
constexpr uint32_t ASKED_TOKENS = 2;

// Most log-probabilities of an entry.
constexpr size_t ENTRY_LOGPROBS = 64;

// What stands for no window in `KvLayout`.
constexpr uint32_t NO_WINDOW = 2147483647;

// What tells positions of a chunk from those of a window there.
constexpr uint32_t CHUNKED = 2147483648;

// Most segments of a fused matrix.
constexpr size_t MAX_SEGMENTS = 4;

// How a session's tokens are chosen; src/engine/sampling/mod.rs defines what the numbers do.
struct Settings {
    uint64_t seed;
    // Address of a float per token, or NULL.
    uint64_t bias;
    // Address of a bit per token, or NULL.
    uint64_t single_breakers;
    // Address of longer ones, packed as sampling.rs says; or NULL.
    uint64_t breakers;
    float temperature;
    uint32_t top_k;
    float top_p;
    float min_p;
    float typical_p;
    // 0 if no penalty looks at it.
    uint32_t penalty_window;
    float repeat_penalty;
    float presence_penalty;
    float frequency_penalty;
    // 0 if there is no DRY penalty.
    float dry_multiplier;
    float dry_base;
    uint32_t dry_allowed_length;
    uint32_t dry_window;
    // Longer repetitions cost no more.
    uint32_t dry_longest;
    // How many to report.
    uint32_t logprobs;
    // The mask counts.
    uint32_t masked;
};

// The device-side state of one session. A step reads and writes it, so that a captured graph never
// changes.
struct Session {
    // Address of the KV cache.
    uint64_t kv;
    // Address of the cache of layers with a window.
    uint64_t kv_ring;
    // Address of the states of fixed size.
    uint64_t fixed;
    // Address of those before its position: the same, but for rows of drafts, each of which leaves its own.
    uint64_t before;
    // Address (pinned host memory) of the ring of chosen tokens.
    uint64_t results;
    // The same of their log-probabilities, as many entries.
    uint64_t logprobs;
    // Index of a draw = positions in the cache + this.
    uint64_t draw_offset;
    // Address of the tokens in the cache.
    uint64_t history;
    // Address of the logits that are chosen by, if they are not the model's.
    uint64_t adjusted;
    // Address of a number per token: how often it is in the window; zeros between steps.
    uint64_t counts;
    // The same of the length of a repetition that it would go on with.
    uint64_t lengths;
    // Address of a bit per token.
    uint64_t mask;
    // Address of the pairs of its adapters (adapters.cuh), or NULL.
    uint64_t adapters;
    // Address of `[rows][thin_stride]` floats between their thin matrices; zeros behind ranks.
    uint64_t thin;
    // Address of a ring of hidden states, a row of floats a position (predictor.cu), or NULL.
    uint64_t states;
    // Pairs of a linear layer.
    uint32_t adapter_uses;
    uint32_t thin_stride;
    // Positions in the cache.
    uint32_t position;
    // The token that the next step appends.
    uint32_t token;
    // Steps finished; entry sequence % result_slots of the rings comes next.
    uint32_t sequence;
    uint32_t result_slots;
    // Positions that the session may hold.
    uint32_t context;
    // Rows of `states`: position p has row p % states_rows.
    uint32_t states_rows;
    // Rows of a step from this one on that go on from each other; 0: it is not the first of them.
    uint32_t chain;
    uint32_t padding;
    Settings settings;
};

// What a session has for its rows.
struct Drafts {
    Session* session;
    Session* rows;
    // Ring of the rows' results, of as many entries as the session's.
    uint64_t results;
    // In host memory: rows, choices that count at most, and the rows' tokens.
    const uint32_t* asked;
};

struct DraftsArgs {
    // Of the sessions that have drafts; NULL: of none.
    const Drafts* const* drafts;
};

// An entry of the ring of log-probabilities.
struct LogprobEntry {
    // Of the weights of all tokens.
    uint64_t sum;
    // The largest logit.
    float best;
    // The logit of the chosen token.
    float chosen;
    // Of the largest logits.
    uint32_t count;
    uint32_t padding;
    uint32_t ids[ENTRY_LOGPROBS];
    float logits[ENTRY_LOGPROBS];
};

// Where the KV rows of a layer lie. A cache is a sequence of tiles; a tile holds, for every layer of
// the cache, first keys then values, `[kv head][position in the tile][row_bytes]`, so that growing the
// cache by a tile grows all layers. Layers with a window have a cache of their own, a ring of tiles.
struct KvLayout {
    uint64_t tile_bytes;
    // Of the layer's keys within a tile.
    uint64_t layer_offset;
    // One head's row, a multiple of 16.
    uint32_t row_bytes;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    // 0: f16; 1: int8 with an f16 scale per 32 elements after the row's values.
    uint32_t q8;
    // Tiles of the ring; 0: the layer's cache holds the whole context.
    uint32_t ring;
    // Position p sees p - window + 1 to p; 2^31 - 1 where there is no window. With CHUNKED, the rest of the number is that of positions
    // of a chunk, and p sees its own chunk up to p; kernels that know of no chunks see all.
    uint32_t window;
};

struct RepackArgs {
    // Rows [first_row, first_row + rows) as in the file.
    const uint8_t* raw;
    // The whole matrix's records.
    uint8_t* matrix;
    // Bytes per row in `raw`.
    uint64_t raw_stride;
    // Of the file's type, if that has one.
    const uint16_t* codebook;
    // Of the records.
    uint32_t type;
    // Type in the file, as GGUF numbers it.
    uint32_t file;
    // Of a block in the file.
    uint32_t block_bytes;
    // Elements per row in the file; less than groups * 32 for float types only.
    uint32_t row_len;
    uint32_t groups;
    uint32_t matrix_rows;
    // Of the matrix.
    uint32_t first_row;
    uint32_t rows;
    // What the numbers of a codebook stand for, as bytes.
    uint32_t values[4];
    // Of a block's scale.
    float factor;
    uint32_t padding;
};

struct UnpackArgs {
    const uint8_t* matrix;
    // f32 `[rows][groups * 32]`, or f16, tiled.
    void* out;
    uint32_t type;
    uint32_t groups;
    uint32_t matrix_rows;
    uint32_t first_row;
    uint32_t rows;
    // Which of the two kernels is meant.
    uint32_t to_f32;
    // Row of `out` that takes the first row.
    uint32_t out_row;
    // Rows of an expert, where there are `starts`.
    uint32_t expert_rows;
    // Each expert's first slot, and the end: rows of experts without slots are left out; or NULL.
    const uint32_t* starts;
    // 0: rows of `out` follow each other; 1, 2: every other GATED_ROWS rows of `out` take them, the even or the odd ones.
    uint32_t spread;
    // The kernel in front of it is still at work, which has begun behind all that read `out`.
    uint32_t beside;
};

// `Table` of `EmbedArgs`.
struct Table {
    const uint8_t* matrix;
    uint32_t type;
    uint32_t rows;
};

struct EmbedArgs {
    Table embedding;
    // Matrix NULL: none.
    Table positions;
    // Matrix NULL: none.
    Table kinds;
    // Row i is the token and position of session i, or, where there are `tokens`, the i-th of these, at the i-th position
    // from session 0's on, or at the i-th of `text_positions`, if they are not NULL.
    const Session* const* sessions;
    const uint32_t* tokens;
    const uint32_t* text_positions;
    // `[count]`, where there are kinds.
    const uint32_t* text_kinds;
    // `[count][groups * 32]`.
    float* out;
    uint32_t groups;
    float scale;
    // 1 + where the embedding's pairs are among those of linear layers; 0: adapters add nothing.
    uint32_t adapted;
    uint32_t padding;
};

struct NormArgs {
    const float* weight;
    // Or NULL.
    const float* bias;
    float eps;
    // The mean is subtracted first.
    uint32_t layer;
};

// With `x` the projections of the embedding, the inputs of the layers become, in place, `scale * (norm(projection_scale * x) +
// embedding_scale * embedding[token])`, the norm being over the part of each layer.
struct LayerInputsArgs {
    // Rows of all layers' parts, one behind the other.
    Table embedding;
    // As of EmbedArgs.
    const Session* const* sessions;
    const uint32_t* tokens;
    // `[count][stride]`.
    float* x;
    NormArgs norm;
    // Elements of a layer's part.
    uint32_t len;
    uint32_t stride;
    // Of a row of the embedding.
    uint32_t groups;
    float embedding_scale;
    float projection_scale;
    float scale;
};

struct Activation {
    uint32_t kind;
    // CLAMPED_SWIGLU: steepness of the sigmoid; XIELU: factor above 0.
    float alpha;
    // CLAMPED_SWIGLU: cap of both inputs; XIELU: factor below 0.
    float limit;
};

struct QuantizeInputArgs {
    // `[rows][x_stride]`.
    const float* x;
    // NORM; of the others the norm of what they make, or weight NULL: none.
    NormArgs norm;
    // `[rows][groups * 32]`, or NULL.
    int8_t* q8;
    // `[rows][groups]`.
    float* q8_scale;
    // `[rows][groups * 32]`, or NULL.
    float* f32;
    // `[rows][groups * 32]`, tiled or for products of `columns` rows, or NULL.
    __half* f16;
    // `[rows]`: value = f16 * scale.
    float* f16_scale;
    // `[rows]` largest of the absolute values, where they are known; or NULL.
    const float* largest;
    // `[rows]` becomes zeros, or NULL.
    float* clear;
    // SIGMOID, WEIGHTED: `[rows][gate_stride]`.
    const float* gate;
    uint32_t x_stride;
    // Elements; the rest up to groups * 32 is written as zeros.
    uint32_t len;
    uint32_t groups;
    uint32_t source;
    // With a norm.
    float inverse_len;
    // GATED, ACTIVATED, WEIGHTED.
    Activation activation;
    uint32_t gate_stride;
    // 0: f16 is tiled. Else arranged for products of that many rows: `[elements / 128][8 steps][columns / 8][2][8 rows][8]`. Elements 4 * s
    // and 4 * s + 2 of the four groups in 128 are the first 8 of step s, 4 * s + 1 and 4 * s + 3 the second.
    uint32_t columns;
};

// What a block adds to the residual stream where that is more than a product's output: its norm, or
// its multiple. out = out_scale * (base + scale * norm(x)).
struct ResidualAddArgs {
    // `[rows][x_stride]`.
    const float* x;
    // `[rows][stride]`; NULL: zeros.
    const float* base;
    // `[rows][stride]`; may be `base`.
    float* out;
    // Weight NULL: none.
    NormArgs norm;
    float scale;
    uint32_t len;
    uint32_t x_stride;
    uint32_t stride;
    float out_scale;
    uint32_t padding;
};

// Norms of parts of rows, in place: of all queries and of all keys of a position.
struct NormPartsArgs {
    // `[rows][stride]`.
    float* x;
    NormArgs norms[2];
    // Where a part begins.
    uint32_t first[2];
    // 0: none.
    uint32_t len[2];
    uint32_t stride;
    uint32_t padding;
};

// The network's last touch on the logits: out = cap * tanh(scale * x / cap), in place.
struct LogitsArgs {
    // `[rows][n_vocab]`.
    float* logits;
    uint32_t n_vocab;
    float scale;
    // 0: none.
    float cap;
    uint32_t padding;
};

// `Segment` of `MatvecArgs`.
struct Segment {
    const uint8_t* matrix;
    // `[rows]` or NULL.
    const float* bias;
    uint32_t type;
    uint32_t rows;
    // Of the grid; blocks of a segment share its rows evenly.
    uint32_t first_block;
    uint32_t blocks;
    // Where its first row lies in an output row.
    uint32_t out_offset;
    uint32_t padding;
};

struct MatvecArgs {
    Segment segments[MAX_SEGMENTS];
    // `[batch][groups * 32]`.
    const int8_t* q8;
    // `[batch][groups]`.
    const float* q8_scale;
    // `[batch][groups * 32]`, for segments of float types.
    const float* f32;
    // `[batch][out_stride]`.
    float* out;
    // `[batch][out_stride]`, added to the result, or NULL; may be `out`.
    const float* residual;
    uint32_t n_segments;
    uint32_t groups;
    uint32_t out_stride;
    // Input rows, at most the kernel's NB.
    uint32_t batch;
    // Of matvec_batch.cuh.
    uint32_t ring_bytes;
    // Rows that a block sums at a time: bounds its shared memory.
    uint32_t chunk_rows;
    // Per block.
    uint32_t prefetch_bytes;
    uint32_t padding;
};

// Rows of one type of a product. A block has `each` of them, the first `more` blocks one more; with GATE,
// all is said of half the rows.
//
// So memory is read in thousands of places at once, as far from each other as a share is long; where that
// distance suits its channels badly, a fifth of its speed is lost. Of a large matrix, where that counts, blocks take
// turns at groups of rows, of which `each` and `more` then tell the number, and a block's warps at the stages of a group,
// so that the grid reads in one place. `spread` is the number of blocks, or 0.
struct Part {
    const uint8_t* matrix;
    // Or NULL.
    const float* bias;
    uint32_t type;
    uint32_t rows;
    uint32_t first_block;
    uint32_t each;
    uint32_t more;
    // Where its first row lies in the output.
    uint32_t out_offset;
    uint32_t n_slices;
    // Groups of a slice.
    uint32_t full;
    // Groups of a slice.
    uint32_t last;
    // Of a record.
    uint32_t full_bytes;
    // Of a record.
    uint32_t last_bytes;
    uint32_t spread;
};

struct ProductArgs {
    Part parts[MAX_SEGMENTS];
    // `[groups * 32]`; or NULL, and `q8` has the row.
    const float* x;
    // `[groups * 32]`: the row as int8.
    const int8_t* q8;
    // `[groups]`.
    const float* q8_scale;
    // Of x; weight NULL: none.
    NormArgs norm;
    float* out;
    // Added to the result, or NULL; may be `out`.
    const float* residual;
    uint32_t n_parts;
    uint32_t groups;
    // Of all warps.
    uint32_t ring_bytes;
    uint32_t finish;
    float inverse_len;
    Activation activation;
};

// A row that is added up before it is read: out_scale * (base + scale * x), of the norm of x where it has one.
struct RowSumArgs {
    // Weight NULL: none.
    NormArgs norm;
    // NULL: nothing is added up.
    const float* base;
    // Where the sum is kept: neither `base` nor x.
    float* sum;
    float scale;
    float out_scale;
};

// A product of a row that is added up before.
struct SummedProductArgs {
    // `x` is what is added, and `norm` that of the sum.
    ProductArgs product;
    // At most 4096 elements.
    RowSumArgs added;
};

// A product of a few rows.
struct FewProductArgs {
    // `q8`, `q8_scale`, `out` and `residual` are those of the first row. Its input is rounded, and its groups are a multiple of 4.
    ProductArgs product;
    // At most the kernel's.
    uint32_t rows;
    // Floats from one row of `out` and `residual` to the next.
    uint32_t stride;
};

struct MatmulArgs {
    // `[m][k]`, tiled.
    const __half* x;
    // `[m]`: a row's values are x * x_scale.
    const float* x_scale;
    // `[n][k]`, tiled.
    const __half* w;
    // `[n]` or NULL.
    const float* bias;
    // `[m][out_stride]`, added, or NULL; may be `out`.
    const float* residual;
    // `[m][out_stride]`.
    float* out;
    // K a multiple of 32.
    uint32_t m;
    // K a multiple of 32.
    uint32_t n;
    // K a multiple of 32.
    uint32_t k;
    uint32_t out_stride;
};

// A gate and what it lets through, of which GATED_ROWS rows each lie in `w` by turns, so that a thread has
// both: out = silu(gate) * other.
struct GatedMatmulArgs {
    // N: rows of both; neither bias nor residual.
    MatmulArgs product;
    // `[m]` grows to the largest of a row's absolute values.
    float* largest;
};

struct Rotation {
    // `[n_pairs]`.
    const float* inv_freq;
    // Of sessions with a context of more than `long_above`, or NULL.
    const float* long_inv_freq;
    float magnitude;
    // 0: no rotation.
    uint32_t n_pairs;
    // Pairs are (2i, 2i + 1), else (i, i + n_pairs).
    uint32_t interleaved;
    uint32_t long_above;
    // Factors on a head's elements of queries and of keys, after the rotation, or NULL.
    const float* after[2];
    // Of the factor on queries that grows with the position.
    float temperature;
    // Positions of a step of the factor on queries; 0: none; below 0 the same, with positions counted from 1.
    float temperature_length;
};

struct Scores {
    // `[n_heads]` logits without a value, or NULL.
    const float* sinks;
    // Of queries: log2(e) times the attention's factor; without log2(e), over the cap, where there is one.
    float scale;
    // Soft cap, times log2(e), or 0.
    float cap;
};

struct RopeArgs {
    const Session* const* sessions;
    // `[rows][qkv_stride]`: query heads, key heads, value heads.
    const float* qkv;
    // `[rows][n_heads * head_dim]` or NULL.
    float* q_f32;
    // The same as `q_f32`, times q_scale, or NULL.
    __half* q_f16;
    // Of rows of texts, or NULL.
    const uint32_t* positions;
    Rotation rotation;
    // Of each head, before the rotation; weight NULL: none.
    NormArgs q_norm;
    NormArgs k_norm;
    // Of each head's values.
    NormArgs v_norm;
    KvLayout layout;
    float q_scale;
    uint32_t qkv_stride;
    uint32_t n_heads;
    // Rows are positions of session 0.
    uint32_t prefill;
    uint32_t first_row;
    // The head of `qkv` that values begin with.
    uint32_t value_head;
    // There are queries alone, and nothing is appended.
    uint32_t shares;
    // Rows of texts that there are keys and values for, at the session's cache.
    uint32_t text_rows;
};

struct AttendArgs {
    const Session* const* sessions;
    // Fma kernels: `[batch][n_heads * head_dim]`, rotated.
    const float* q;
    // Long heads, and rows of one session: the same, times scores.scale.
    const __half* q16;
    // `[batch][n_heads][n_chunks][part_stride(value_dim)]`: sum of values, largest score, weight.
    float* parts;
    // Result: `[batch][n_heads * value_dim]` padded to groups of 32, or NULL.
    int8_t* q8;
    float* q8_scale;
    // Result: the same in f32, or NULL Tiles: norm, rotation and append are done here.
    float* f32;
    // `[batch][qkv_stride]`.
    const float* qkv;
    // `[batch][qkv_stride]`: the sigmoid of it multiplies the result; or NULL.
    const float* gate;
    // `[batch][n_kv_heads * head_parts]` zeros: chunks done, of heads of whole groups.
    uint32_t* tickets;
    Rotation rotation;
    // Of each head, before the rotation; weight NULL: none.
    NormArgs q_norm;
    NormArgs k_norm;
    // Of each head's values.
    NormArgs v_norm;
    KvLayout layout;
    Scores scores;
    uint32_t qkv_stride;
    uint32_t n_heads;
    // Parts that a context is cut into at most, up to MAX_PARTS.
    uint32_t n_chunks;
    // Blocks that share a KV head's queries.
    uint32_t head_parts;
    // The last block of a KV head joins the chunks (heads of whole groups of 32).
    uint32_t join;
    // The head of `qkv` that values begin with.
    uint32_t value_head;
    // Keys and values are in the cache already, also those of the current position.
    uint32_t shares;
    // Long heads: rows are positions of session 0.
    uint32_t prefill;
    // Of those.
    uint32_t first_row;
    // Elements of a value, at most head_dim.
    uint32_t value_dim;
    // `[n_heads]`: how much less scores are with each position of distance, in the unit of the scores' scale, or NULL. Kernels for
    // sessions look there only if there is a cap, which then is none.
    const float* slopes;
    // Kernels for rows of one session: how many there are.
    uint32_t rows;
    // Of those, too: blocks that run at once.
    uint32_t at_once;
};

struct FlashArgs {
    // One.
    const Session* const* sessions;
    // `[rows][n_heads * head_dim]`, times scores.scale.
    const __half* q;
    // `[rows][n_heads * value_dim]`.
    float* out;
    KvLayout layout;
    Scores scores;
    // Rows from here on are evaluated.
    uint32_t first_row;
    uint32_t rows;
    uint32_t n_heads;
    // Elements of a value, at most head_dim.
    uint32_t value_dim;
    // `[n_heads]`: how much less scores are with each position of distance, in the unit of the scores' scale, or NULL. Kernels for
    // sessions look there only if there is a cap, which then is none.
    const float* slopes;
};

struct SampleArgs {
    Session* const* sessions;
    // `[batch][n_vocab]`.
    const float* logits;
    // `[batch][BEST_GROUPS]`: the largest logit of each group of tokens.
    float* group_value;
    uint32_t* group_id;
    uint32_t n_vocab;
    // The step appended a token.
    uint32_t advance;
    // A token is to be chosen.
    uint32_t choose;
    // A session may have its logits adjusted.
    uint32_t adjust;
};

static_assert(sizeof(Settings) == 96);
static_assert(sizeof(Session) == 256);
static_assert(sizeof(LogprobEntry) == 536);
static_assert(sizeof(Drafts) == 32);
static_assert(sizeof(DraftsArgs) == 8);
static_assert(sizeof(KvLayout) == 40);
static_assert(sizeof(RepackArgs) == 88);
static_assert(sizeof(UnpackArgs) == 64);
static_assert(sizeof(EmbedArgs) == 104);
static_assert(sizeof(LayerInputsArgs) == 88);
static_assert(sizeof(NormArgs) == 24);
static_assert(sizeof(QuantizeInputArgs) == 136);
static_assert(sizeof(ResidualAddArgs) == 72);
static_assert(sizeof(NormPartsArgs) == 80);
static_assert(sizeof(LogitsArgs) == 24);
static_assert(sizeof(Segment) == 40);
static_assert(sizeof(MatvecArgs) == 232);
static_assert(sizeof(ProductArgs) == 352);
static_assert(sizeof(RowSumArgs) == 48);
static_assert(sizeof(SummedProductArgs) == 400);
static_assert(sizeof(FewProductArgs) == 360);
static_assert(sizeof(MatmulArgs) == 64);
static_assert(sizeof(GatedMatmulArgs) == 72);
static_assert(sizeof(Rotation) == 56);
static_assert(sizeof(Scores) == 16);
static_assert(sizeof(RopeArgs) == 240);
static_assert(sizeof(AttendArgs) == 320);
static_assert(sizeof(FlashArgs) == 104);
static_assert(sizeof(SampleArgs) == 48);
