//! The structures of most kernels.

use super::{ConstPtr, Half, Ptr};
use std::ffi::c_void;

/// Positions of a tile of the KV cache.
pub const KV_TILE: u32 = 64;

/// Most parts that a context is cut into: those of a head fit in a block's tiles (fewer of them where tiles are of one stage).
pub const MAX_PARTS: u32 = 120;

/// Longest head that attention takes.
pub const MAX_HEAD_DIM: u32 = 512;

/// Rows of a tile of a product of many rows.
pub const TILE_ROWS: u32 = 128;

/// Elements of each.
pub const TILE_K: u32 = 64;

/// Warps of a block of the products of one row or a few.
pub const WARPS: i32 = 16;

/// Bytes of a group of their input in shared memory: int8 and a scale.
pub const INPUT_BYTES: u32 = 36;

/// Fours of elements that a thread has at most of a row that is added up first.
pub const FOURS_OF_SUM: i32 = 2;

/// Warps of a block of the products of batches.
pub const BATCH_WARPS: u32 = 8;

/// Weight rows of a tile there.
pub const BATCH_TILE_ROWS: u32 = 8;

/// Most stages of a ring there.
pub const BATCH_MAX_STAGES: u32 = 8;

/// Groups of tokens whose best is found first.
pub const BEST_GROUPS: i32 = 256;

/// Words of `asked` before its tokens.
pub const ASKED_TOKENS: u32 = 2;

/// `Settings`.
///
/// How a session's tokens are chosen; src/engine/sampling/mod.rs defines what the numbers do.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Settings {
    pub seed: u64,
    /// Address of a float per token, or NULL.
    pub bias: u64,
    /// Address of a bit per token, or NULL.
    pub single_breakers: u64,
    /// Address of longer ones, packed as sampling.rs says; or NULL.
    pub breakers: u64,
    pub temperature: f32,
    pub top_k: u32,
    pub top_p: f32,
    pub min_p: f32,
    pub typical_p: f32,
    /// 0 if no penalty looks at it.
    pub penalty_window: u32,
    pub repeat_penalty: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    /// 0 if there is no DRY penalty.
    pub dry_multiplier: f32,
    pub dry_base: f32,
    pub dry_allowed_length: u32,
    pub dry_window: u32,
    /// Longer repetitions cost no more.
    pub dry_longest: u32,
    /// How many to report.
    pub logprobs: u32,
    /// The mask counts.
    pub masked: u32,
}

/// `Session`.
///
/// The device-side state of one session. A step reads and writes it, so that a captured graph never
/// changes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Session {
    /// Address of the KV cache.
    pub kv: u64,
    /// Address of the cache of layers with a window.
    pub kv_ring: u64,
    /// Address of the states of fixed size.
    pub fixed: u64,
    /// Address of those before its position: the same, but for rows of drafts, each of which leaves its own.
    pub before: u64,
    /// Address (pinned host memory) of the ring of chosen tokens.
    pub results: u64,
    /// The same of their log-probabilities, as many entries.
    pub logprobs: u64,
    /// Index of a draw = positions in the cache + this.
    pub draw_offset: u64,
    /// Address of the tokens in the cache.
    pub history: u64,
    /// Address of the logits that are chosen by, if they are not the model's.
    pub adjusted: u64,
    /// Address of a number per token: how often it is in the window; zeros between steps.
    pub counts: u64,
    /// The same of the length of a repetition that it would go on with.
    pub lengths: u64,
    /// Address of a bit per token.
    pub mask: u64,
    /// Address of the pairs of its adapters (adapters.cuh), or NULL.
    pub adapters: u64,
    /// Address of `[rows][thin_stride]` floats between their thin matrices; zeros behind ranks.
    pub thin: u64,
    /// Address of a ring of hidden states, a row of floats a position (predictor.cu), or NULL.
    pub states: u64,
    /// Pairs of a linear layer.
    pub adapter_uses: u32,
    pub thin_stride: u32,
    /// Positions in the cache.
    pub position: u32,
    /// The token that the next step appends.
    pub token: u32,
    /// Steps finished; entry sequence % result_slots of the rings comes next.
    pub sequence: u32,
    pub result_slots: u32,
    /// Positions that the session may hold.
    pub context: u32,
    /// Rows of `states`: position p has row p % states_rows.
    pub states_rows: u32,
    /// Rows of a step from this one on that go on from each other; 0: it is not the first of them.
    pub chain: u32,
    pub padding: u32,
    pub settings: Settings,
}

/// `Drafts`.
///
/// What a session has for its rows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Drafts {
    pub session: Ptr<Session>,
    pub rows: Ptr<Session>,
    /// Ring of the rows' results, of as many entries as the session's.
    pub results: u64,
    /// In host memory: rows, choices that count at most, and the rows' tokens.
    pub asked: ConstPtr<u32>,
}

/// `DraftsArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DraftRows {
    /// Of the sessions that have drafts; NULL: of none.
    pub drafts: ConstPtr<ConstPtr<Drafts>>,
}

/// Most log-probabilities of an entry.
pub const ENTRY_LOGPROBS: usize = 64;

/// `LogprobEntry`.
///
/// An entry of the ring of log-probabilities.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LogprobEntry {
    /// Of the weights of all tokens.
    pub sum: u64,
    /// The largest logit.
    pub best: f32,
    /// The logit of the chosen token.
    pub chosen: f32,
    /// Of the largest logits.
    pub count: u32,
    pub padding: u32,
    pub ids: [u32; ENTRY_LOGPROBS],
    pub logits: [f32; ENTRY_LOGPROBS],
}

/// `KvLayout`.
///
/// Where the KV rows of a layer lie. A cache is a sequence of tiles; a tile holds, for every layer of
/// the cache, first keys then values, `[kv head][position in the tile][row_bytes]`, so that growing the
/// cache by a tile grows all layers. Layers with a window have a cache of their own, a ring of tiles.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvLayout {
    pub tile_bytes: u64,
    /// Of the layer's keys within a tile.
    pub layer_offset: u64,
    /// One head's row, a multiple of 16.
    pub row_bytes: u32,
    pub n_kv_heads: u32,
    pub head_dim: u32,
    /// 0: f16; 1: int8 with an f16 scale per 32 elements after the row's values.
    pub q8: u32,
    /// Tiles of the ring; 0: the layer's cache holds the whole context.
    pub ring: u32,
    /// Position p sees p - window + 1 to p; 2^31 - 1 where there is no window. With CHUNKED, the rest of the number is that of positions
    /// of a chunk, and p sees its own chunk up to p; kernels that know of no chunks see all.
    pub window: u32,
}

/// What stands for no window in `KvLayout`.
pub const NO_WINDOW: u32 = 0x7fff_ffff;

/// What tells positions of a chunk from those of a window there.
pub const CHUNKED: u32 = 0x8000_0000;

/// `RepackArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Repack {
    /// Rows [first_row, first_row + rows) as in the file.
    pub raw: ConstPtr<u8>,
    /// The whole matrix's records.
    pub matrix: Ptr<u8>,
    /// Bytes per row in `raw`.
    pub raw_stride: u64,
    /// Of the file's type, if that has one.
    pub codebook: ConstPtr<u16>,
    /// Of the records.
    pub ty: u32,
    /// Type in the file, as GGUF numbers it.
    pub file: u32,
    /// Of a block in the file.
    pub block_bytes: u32,
    /// Elements per row in the file; less than groups * 32 for float types only.
    pub row_len: u32,
    pub groups: u32,
    pub matrix_rows: u32,
    /// Of the matrix.
    pub first_row: u32,
    pub rows: u32,
    /// What the numbers of a codebook stand for, as bytes.
    pub values: [u32; 4],
    /// Of a block's scale.
    pub factor: f32,
    pub padding: u32,
}

/// `UnpackArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Unpack {
    pub matrix: ConstPtr<u8>,
    /// f32 `[rows][groups * 32]`, or f16, tiled.
    pub out: Ptr<c_void>,
    pub ty: u32,
    pub groups: u32,
    pub matrix_rows: u32,
    pub first_row: u32,
    pub rows: u32,
    /// Which of the two kernels is meant.
    pub to_f32: u32,
    /// Row of `out` that takes the first row.
    pub out_row: u32,
    /// Rows of an expert, where there are `starts`.
    pub expert_rows: u32,
    /// Each expert's first slot, and the end: rows of experts without slots are left out; or NULL.
    pub starts: ConstPtr<u32>,
    /// 0: rows of `out` follow each other; 1, 2: every other GATED_ROWS rows of `out` take them, the even or the odd ones.
    pub spread: u32,
    /// The kernel in front of it is still at work, which has begun behind all that read `out`.
    pub beside: u32,
}

/// `Table` of `EmbedArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Table {
    pub matrix: ConstPtr<u8>,
    pub ty: u32,
    pub rows: u32,
}

/// `EmbedArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Embed {
    pub embedding: Table,
    /// Matrix NULL: none.
    pub positions: Table,
    /// Matrix NULL: none.
    pub kinds: Table,
    /// Row i is the token and position of session i, or, where there are `tokens`, the i-th of these, at the i-th position
    /// from session 0's on, or at the i-th of `text_positions`, if they are not NULL.
    pub sessions: ConstPtr<ConstPtr<Session>>,
    pub tokens: ConstPtr<u32>,
    pub text_positions: ConstPtr<u32>,
    /// `[count]`, where there are kinds.
    pub text_kinds: ConstPtr<u32>,
    /// `[count][groups * 32]`.
    pub out: Ptr<f32>,
    pub groups: u32,
    pub scale: f32,
    /// 1 + where the embedding's pairs are among those of linear layers; 0: adapters add nothing.
    pub adapted: u32,
    pub padding: u32,
}

/// `LayerInputsArgs`.
///
/// With `x` the projections of the embedding, the inputs of the layers become, in place, `scale * (norm(projection_scale * x) +
/// embedding_scale * embedding[token])`, the norm being over the part of each layer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct LayerInputs {
    /// Rows of all layers' parts, one behind the other.
    pub embedding: Table,
    /// As of EmbedArgs.
    pub sessions: ConstPtr<ConstPtr<Session>>,
    pub tokens: ConstPtr<u32>,
    /// `[count][stride]`.
    pub x: Ptr<f32>,
    pub norm: Norm,
    /// Elements of a layer's part.
    pub len: u32,
    pub stride: u32,
    /// Of a row of the embedding.
    pub groups: u32,
    pub embedding_scale: f32,
    pub projection_scale: f32,
    pub scale: f32,
}

/// `Source` of `QuantizeInputArgs`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Copy = 0,
    Norm = 1,
    Gated = 2,
    Activated = 3,
    Sigmoid = 4,
    Weighted = 5,
}

/// `NormArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Norm {
    pub weight: ConstPtr<f32>,
    /// Or NULL.
    pub bias: ConstPtr<f32>,
    pub eps: f32,
    /// The mean is subtracted first.
    pub layer: u32,
}

/// `Activation`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Activation {
    pub kind: u32,
    /// CLAMPED_SWIGLU: steepness of the sigmoid; XIELU: factor above 0.
    pub alpha: f32,
    /// CLAMPED_SWIGLU: cap of both inputs; XIELU: factor below 0.
    pub limit: f32,
}

/// `QuantizeInputArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct QuantizeInput {
    /// `[rows][x_stride]`.
    pub x: ConstPtr<f32>,
    /// NORM; of the others the norm of what they make, or weight NULL: none.
    pub norm: Norm,
    /// `[rows][groups * 32]`, or NULL.
    pub q8: Ptr<i8>,
    /// `[rows][groups]`.
    pub q8_scale: Ptr<f32>,
    /// `[rows][groups * 32]`, or NULL.
    pub f32: Ptr<f32>,
    /// `[rows][groups * 32]`, tiled or for products of `columns` rows, or NULL.
    pub f16: Ptr<Half>,
    /// `[rows]`: value = f16 * scale.
    pub f16_scale: Ptr<f32>,
    /// `[rows]` largest of the absolute values, where they are known; or NULL.
    pub largest: ConstPtr<f32>,
    /// `[rows]` becomes zeros, or NULL.
    pub clear: Ptr<f32>,
    /// SIGMOID, WEIGHTED: `[rows][gate_stride]`.
    pub gate: ConstPtr<f32>,
    pub x_stride: u32,
    /// Elements; the rest up to groups * 32 is written as zeros.
    pub len: u32,
    pub groups: u32,
    pub source: u32,
    /// With a norm.
    pub inverse_len: f32,
    /// GATED, ACTIVATED, WEIGHTED.
    pub activation: Activation,
    pub gate_stride: u32,
    /// 0: f16 is tiled. Else arranged for products of that many rows: `[elements / 128][8 steps][columns / 8][2][8 rows][8]`. Elements 4 * s
    /// and 4 * s + 2 of the four groups in 128 are the first 8 of step s, 4 * s + 1 and 4 * s + 3 the second.
    pub columns: u32,
}

/// `ResidualAddArgs`.
///
/// What a block adds to the residual stream where that is more than a product's output: its norm, or
/// its multiple. out = out_scale * (base + scale * norm(x)).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ResidualAdd {
    /// `[rows][x_stride]`.
    pub x: ConstPtr<f32>,
    /// `[rows][stride]`; NULL: zeros.
    pub base: ConstPtr<f32>,
    /// `[rows][stride]`; may be `base`.
    pub out: Ptr<f32>,
    /// Weight NULL: none.
    pub norm: Norm,
    pub scale: f32,
    pub len: u32,
    pub x_stride: u32,
    pub stride: u32,
    pub out_scale: f32,
    pub padding: u32,
}

/// `NormPartsArgs`.
///
/// Norms of parts of rows, in place: of all queries and of all keys of a position.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct NormParts {
    /// `[rows][stride]`.
    pub x: Ptr<f32>,
    pub norms: [Norm; 2],
    /// Where a part begins.
    pub first: [u32; 2],
    /// 0: none.
    pub len: [u32; 2],
    pub stride: u32,
    pub padding: u32,
}

/// `LogitsArgs`.
///
/// The network's last touch on the logits: out = cap * tanh(scale * x / cap), in place.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Logits {
    /// `[rows][n_vocab]`.
    pub logits: Ptr<f32>,
    pub n_vocab: u32,
    pub scale: f32,
    /// 0: none.
    pub cap: f32,
    pub padding: u32,
}

/// `Segment` of `MatvecArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Segment {
    pub matrix: ConstPtr<u8>,
    /// `[rows]` or NULL.
    pub bias: ConstPtr<f32>,
    pub ty: u32,
    pub rows: u32,
    /// Of the grid; blocks of a segment share its rows evenly.
    pub first_block: u32,
    pub blocks: u32,
    /// Where its first row lies in an output row.
    pub out_offset: u32,
    pub padding: u32,
}

/// Most segments of a fused matrix.
pub const MAX_SEGMENTS: usize = 4;

/// `MatvecArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Matvec {
    pub segments: [Segment; MAX_SEGMENTS],
    /// `[batch][groups * 32]`.
    pub q8: ConstPtr<i8>,
    /// `[batch][groups]`.
    pub q8_scale: ConstPtr<f32>,
    /// `[batch][groups * 32]`, for segments of float types.
    pub f32: ConstPtr<f32>,
    /// `[batch][out_stride]`.
    pub out: Ptr<f32>,
    /// `[batch][out_stride]`, added to the result, or NULL; may be `out`.
    pub residual: ConstPtr<f32>,
    pub n_segments: u32,
    pub groups: u32,
    pub out_stride: u32,
    /// Input rows, at most the kernel's NB.
    pub batch: u32,
    /// Of matvec_batch.cuh.
    pub ring_bytes: u32,
    /// Rows that a block sums at a time: bounds its shared memory.
    pub chunk_rows: u32,
    /// Per block.
    pub prefetch_bytes: u32,
    pub padding: u32,
}

/// `Part`.
///
/// Rows of one type of a product. A block has `each` of them, the first `more` blocks one more; with GATE,
/// all is said of half the rows.
///
/// So memory is read in thousands of places at once, as far from each other as a share is long; where that
/// distance suits its channels badly, a fifth of its speed is lost. Of a large matrix, where that counts, blocks take
/// turns at groups of rows, of which `each` and `more` then tell the number, and a block's warps at the stages of a group,
/// so that the grid reads in one place. `spread` is the number of blocks, or 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ProductPart {
    pub matrix: ConstPtr<u8>,
    /// Or NULL.
    pub bias: ConstPtr<f32>,
    pub ty: u32,
    pub rows: u32,
    pub first_block: u32,
    pub each: u32,
    pub more: u32,
    /// Where its first row lies in the output.
    pub out_offset: u32,
    pub n_slices: u32,
    /// Groups of a slice.
    pub full: u32,
    /// Groups of a slice.
    pub last: u32,
    /// Of a record.
    pub full_bytes: u32,
    /// Of a record.
    pub last_bytes: u32,
    pub spread: u32,
}

/// `ProductArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Product {
    pub parts: [ProductPart; MAX_SEGMENTS],
    /// `[groups * 32]`; or NULL, and `q8` has the row.
    pub x: ConstPtr<f32>,
    /// `[groups * 32]`: the row as int8.
    pub q8: ConstPtr<i8>,
    /// `[groups]`.
    pub q8_scale: ConstPtr<f32>,
    /// Of x; weight NULL: none.
    pub norm: Norm,
    pub out: Ptr<f32>,
    /// Added to the result, or NULL; may be `out`.
    pub residual: ConstPtr<f32>,
    pub n_parts: u32,
    pub groups: u32,
    /// Of all warps.
    pub ring_bytes: u32,
    pub finish: u32,
    pub inverse_len: f32,
    pub activation: Activation,
}

/// `RowSumArgs`.
///
/// A row that is added up before it is read: out_scale * (base + scale * x), of the norm of x where it has one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RowSum {
    /// Weight NULL: none.
    pub norm: Norm,
    /// NULL: nothing is added up.
    pub base: ConstPtr<f32>,
    /// Where the sum is kept: neither `base` nor x.
    pub sum: Ptr<f32>,
    pub scale: f32,
    pub out_scale: f32,
}

/// `SummedProductArgs`.
///
/// A product of a row that is added up before.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SummedProduct {
    /// `x` is what is added, and `norm` that of the sum.
    pub product: Product,
    /// At most 4096 elements.
    pub added: RowSum,
}

/// `FewProductArgs`.
///
/// A product of a few rows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FewProduct {
    /// `q8`, `q8_scale`, `out` and `residual` are those of the first row. Its input is rounded, and its groups are a multiple of 4.
    pub product: Product,
    /// At most the kernel's.
    pub rows: u32,
    /// Floats from one row of `out` and `residual` to the next.
    pub stride: u32,
}

/// `MatmulArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Matmul {
    /// `[m][k]`, tiled.
    pub x: ConstPtr<Half>,
    /// `[m]`: a row's values are x * x_scale.
    pub x_scale: ConstPtr<f32>,
    /// `[n][k]`, tiled.
    pub w: ConstPtr<Half>,
    /// `[n]` or NULL.
    pub bias: ConstPtr<f32>,
    /// `[m][out_stride]`, added, or NULL; may be `out`.
    pub residual: ConstPtr<f32>,
    /// `[m][out_stride]`.
    pub out: Ptr<f32>,
    /// K a multiple of 32.
    pub m: u32,
    /// K a multiple of 32.
    pub n: u32,
    /// K a multiple of 32.
    pub k: u32,
    pub out_stride: u32,
}

/// `GatedMatmulArgs`.
///
/// A gate and what it lets through, of which GATED_ROWS rows each lie in `w` by turns, so that a thread has
/// both: out = silu(gate) * other.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GatedMatmul {
    /// N: rows of both; neither bias nor residual.
    pub product: Matmul,
    /// `[m]` grows to the largest of a row's absolute values.
    pub largest: Ptr<f32>,
}

/// `Rotation`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Rotation {
    /// `[n_pairs]`.
    pub inv_freq: ConstPtr<f32>,
    /// Of sessions with a context of more than `long_above`, or NULL.
    pub long_inv_freq: ConstPtr<f32>,
    pub magnitude: f32,
    /// 0: no rotation.
    pub n_pairs: u32,
    /// Pairs are (2i, 2i + 1), else (i, i + n_pairs).
    pub interleaved: u32,
    pub long_above: u32,
    /// Factors on a head's elements of queries and of keys, after the rotation, or NULL.
    pub after: [ConstPtr<f32>; 2],
    /// Of the factor on queries that grows with the position.
    pub temperature: f32,
    /// Positions of a step of the factor on queries; 0: none; below 0 the same, with positions counted from 1.
    pub temperature_length: f32,
}

/// `Scores`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Scores {
    /// `[n_heads]` logits without a value, or NULL.
    pub sinks: ConstPtr<f32>,
    /// Of queries: log2(e) times the attention's factor; without log2(e), over the cap, where there is one.
    pub scale: f32,
    /// Soft cap, times log2(e), or 0.
    pub cap: f32,
}

/// `RopeArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Rope {
    pub sessions: ConstPtr<ConstPtr<Session>>,
    /// `[rows][qkv_stride]`: query heads, key heads, value heads.
    pub qkv: ConstPtr<f32>,
    /// `[rows][n_heads * head_dim]` or NULL.
    pub q_f32: Ptr<f32>,
    /// The same as `q_f32`, times q_scale, or NULL.
    pub q_f16: Ptr<Half>,
    /// Of rows of texts, or NULL.
    pub positions: ConstPtr<u32>,
    pub rotation: Rotation,
    /// Of each head, before the rotation; weight NULL: none.
    pub q_norm: Norm,
    pub k_norm: Norm,
    /// Of each head's values.
    pub v_norm: Norm,
    pub layout: KvLayout,
    pub q_scale: f32,
    pub qkv_stride: u32,
    pub n_heads: u32,
    /// Rows are positions of session 0.
    pub prefill: u32,
    pub first_row: u32,
    /// The head of `qkv` that values begin with.
    pub value_head: u32,
    /// There are queries alone, and nothing is appended.
    pub shares: u32,
    /// Rows of texts that there are keys and values for, at the session's cache.
    pub text_rows: u32,
}

/// `AttendArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Attend {
    pub sessions: ConstPtr<ConstPtr<Session>>,
    /// Fma kernels: `[batch][n_heads * head_dim]`, rotated.
    pub q: ConstPtr<f32>,
    /// Long heads, and rows of one session: the same, times scores.scale.
    pub q16: ConstPtr<Half>,
    /// `[batch][n_heads][n_chunks][part_stride(value_dim)]`: sum of values, largest score, weight.
    pub parts: Ptr<f32>,
    /// Result: `[batch][n_heads * value_dim]` padded to groups of 32, or NULL.
    pub q8: Ptr<i8>,
    pub q8_scale: Ptr<f32>,
    /// Result: the same in f32, or NULL Tiles: norm, rotation and append are done here.
    pub f32: Ptr<f32>,
    /// `[batch][qkv_stride]`.
    pub qkv: ConstPtr<f32>,
    /// `[batch][qkv_stride]`: the sigmoid of it multiplies the result; or NULL.
    pub gate: ConstPtr<f32>,
    /// `[batch][n_kv_heads * head_parts]` zeros: chunks done, of heads of whole groups.
    pub tickets: Ptr<u32>,
    pub rotation: Rotation,
    /// Of each head, before the rotation; weight NULL: none.
    pub q_norm: Norm,
    pub k_norm: Norm,
    /// Of each head's values.
    pub v_norm: Norm,
    pub layout: KvLayout,
    pub scores: Scores,
    pub qkv_stride: u32,
    pub n_heads: u32,
    /// Parts that a context is cut into at most, up to MAX_PARTS.
    pub n_chunks: u32,
    /// Blocks that share a KV head's queries.
    pub head_parts: u32,
    /// The last block of a KV head joins the chunks (heads of whole groups of 32).
    pub join: u32,
    /// The head of `qkv` that values begin with.
    pub value_head: u32,
    /// Keys and values are in the cache already, also those of the current position.
    pub shares: u32,
    /// Long heads: rows are positions of session 0.
    pub prefill: u32,
    /// Of those.
    pub first_row: u32,
    /// Elements of a value, at most head_dim.
    pub value_dim: u32,
    /// `[n_heads]`: how much less scores are with each position of distance, in the unit of the scores' scale, or NULL. Kernels for
    /// sessions look there only if there is a cap, which then is none.
    pub slopes: ConstPtr<f32>,
    /// Kernels for rows of one session: how many there are.
    pub rows: u32,
    /// Of those, too: blocks that run at once.
    pub at_once: u32,
}

/// `FlashArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Flash {
    /// One.
    pub sessions: ConstPtr<ConstPtr<Session>>,
    /// `[rows][n_heads * head_dim]`, times scores.scale.
    pub q: ConstPtr<Half>,
    /// `[rows][n_heads * value_dim]`.
    pub out: Ptr<f32>,
    pub layout: KvLayout,
    pub scores: Scores,
    /// Rows from here on are evaluated.
    pub first_row: u32,
    pub rows: u32,
    pub n_heads: u32,
    /// Elements of a value, at most head_dim.
    pub value_dim: u32,
    /// `[n_heads]`: how much less scores are with each position of distance, in the unit of the scores' scale, or NULL. Kernels for
    /// sessions look there only if there is a cap, which then is none.
    pub slopes: ConstPtr<f32>,
}

/// `SampleArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    pub sessions: ConstPtr<Ptr<Session>>,
    /// `[batch][n_vocab]`.
    pub logits: ConstPtr<f32>,
    /// `[batch][BEST_GROUPS]`: the largest logit of each group of tokens.
    pub group_value: Ptr<f32>,
    pub group_id: Ptr<u32>,
    pub n_vocab: u32,
    /// The step appended a token.
    pub advance: u32,
    /// A token is to be chosen.
    pub choose: u32,
    /// A session may have its logits adjusted.
    pub adjust: u32,
}

// The kernels assert the same, and tests/driver/cuda.c does of those that it reads.
const _: () = {
    assert!(size_of::<Settings>() == 96);
    assert!(size_of::<Session>() == 256);
    assert!(size_of::<LogprobEntry>() == 536);
    assert!(size_of::<Drafts>() == 32);
    assert!(size_of::<DraftRows>() == 8);
    assert!(size_of::<KvLayout>() == 40);
    assert!(size_of::<Repack>() == 88);
    assert!(size_of::<Unpack>() == 64);
    assert!(size_of::<Embed>() == 104);
    assert!(size_of::<LayerInputs>() == 88);
    assert!(size_of::<Norm>() == 24);
    assert!(size_of::<QuantizeInput>() == 136);
    assert!(size_of::<ResidualAdd>() == 72);
    assert!(size_of::<NormParts>() == 80);
    assert!(size_of::<Logits>() == 24);
    assert!(size_of::<Segment>() == 40);
    assert!(size_of::<Matvec>() == 232);
    assert!(size_of::<Product>() == 352);
    assert!(size_of::<RowSum>() == 48);
    assert!(size_of::<SummedProduct>() == 400);
    assert!(size_of::<FewProduct>() == 360);
    assert!(size_of::<Matmul>() == 64);
    assert!(size_of::<GatedMatmul>() == 72);
    assert!(size_of::<Rotation>() == 56);
    assert!(size_of::<Scores>() == 16);
    assert!(size_of::<Rope>() == 240);
    assert!(size_of::<Attend>() == 320);
    assert!(size_of::<Flash>() == 104);
    assert!(size_of::<Sample>() == 48);
};
