//! The structures of the kernels of mixers with a state of fixed size.

use super::{ConstPtr, Norm, Ptr, Session};

/// Most columns of a head's state.
pub const MAX_COLS: u32 = 256;

/// Threads of a head in a step, four for a row of its state.
pub const STEP_THREADS: u32 = 512;

/// Blocks that share these and the rows where that is faster.
pub const STEP_BLOCKS: u32 = 4;

/// Threads of a head where its state is copied in bulk.
pub const BATCH_THREADS: u32 = 128;

/// Most columns of such a state.
pub const BATCH_COLS: u32 = 128;

/// Rows of it that are copied together, one for four threads.
pub const BATCH_ROWS: u32 = 32;

/// Most such pieces.
pub const BATCH_PIECES: u32 = 16;

/// Rows of a chunk that a block of a convolution takes.
pub const CONV_ROWS: u32 = 32;

/// Rows of a state that a block of a scan has.
pub const SCAN_ROWS: u32 = 32;

/// Tokens that it fetches at a time.
pub const SCAN_TOKENS: u32 = 16;

/// Channels of the first Mamba that a block has in a step.
pub const STEP_CHANNELS: u32 = 64;

/// And in a scan.
pub const SCAN_CHANNELS: u32 = 32;

/// Most numbers of such a channel.
pub const MAX_STATES: u32 = 64;

/// `RecurrentArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Recurrent {
    pub sessions: ConstPtr<ConstPtr<Session>>,
    /// `[rows of input][in_stride]`: channels of the convolution, gate, numbers per head.
    pub input: ConstPtr<f32>,
    /// `[rows of input][heads * rows]`.
    pub out: Ptr<f32>,
    /// Chunks: `[rows of input][channels]`.
    pub convolved: Ptr<f32>,
    /// `[channels][width]`, the current token's last.
    pub conv_weight: ConstPtr<f32>,
    /// `[channels]` or NULL.
    pub conv_bias: ConstPtr<f32>,
    /// `[heads]`, below zero: decay = exp(rate * step).
    pub rate: ConstPtr<f32>,
    /// `[heads]`: step = softplus(in + bias), between the bounds.
    pub step_bias: ConstPtr<f32>,
    /// `[heads]` or NULL.
    pub skip: ConstPtr<f32>,
    /// `[rows]`: of a head's outputs before their gate, where that is done here; or NULL.
    pub norm: ConstPtr<f32>,
    /// Bytes to the layer's part of a fixed state.
    pub state_offset: u64,
    /// Bytes to S.
    pub matrix_offset: u64,
    pub in_stride: u32,
    pub channels: u32,
    pub width: u32,
    pub heads: u32,
    /// Heads that share q and k.
    pub per_key: u32,
    pub rows: u32,
    pub cols: u32,
    /// Of the channels.
    pub q_at: u32,
    pub k_at: u32,
    pub v_at: u32,
    /// Of the input row.
    pub gate_at: u32,
    pub step_at: u32,
    pub beta_at: u32,
    /// Delta rule: q and k have length 1, `scale = beta_scale * sigmoid(in[beta_at])`; else scale = step.
    pub delta: u32,
    pub q_scale: f32,
    /// Of the norm.
    pub eps: f32,
    /// Of the step.
    pub least: f32,
    pub most: f32,
    /// Chunks: rows of input.
    pub count: u32,
    /// Heads take the keys in turns; else `per_key` in succession use the same.
    pub tiled: u32,
    /// A step without norm multiplies by silu(gate).
    pub gated: u32,
    pub beta_scale: f32,
    /// Where each channel has a step of its own, `[rows of input][steps_stride]`: `[heads][cols]` numbers, as many as `step_bias` has,
    /// with `decay = exp(rate * softplus(in + bias))`, or `exp(floor * sigmoid(rate * (in + bias)))` if the floor is below 0.
    pub steps: ConstPtr<f32>,
    /// And there, `[rows of input][gates_stride]`: gates, in place of those at `gate_at`.
    pub gates: ConstPtr<f32>,
    pub steps_stride: u32,
    pub gates_stride: u32,
    pub floor: f32,
    pub padding: u32,
    /// Where not NULL, a step of many sessions has its outputs there instead, as int8 with a scale for 32 of them:
    /// `[rows of input][heads * rows]` and `[rows of input][heads * rows / 32]`.
    pub q8: Ptr<i8>,
    pub q8_scale: Ptr<f32>,
}

/// `GatedNormArgs`.
///
/// The norm of groups of a row, and their gate, in place.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GatedNorm {
    /// `[rows][len]`.
    pub x: Ptr<f32>,
    /// `[rows][gate_stride]`.
    pub gate: ConstPtr<f32>,
    /// `[len]`, or of one group where all groups have the same; NULL: no norm.
    pub weight: ConstPtr<f32>,
    pub len: u32,
    /// Elements of a group.
    pub group: u32,
    pub gate_stride: u32,
    /// All groups have the same weights.
    pub same: u32,
    /// The norm is of x * silu(gate); else the norm of x is multiplied by it.
    pub gate_first: u32,
    pub eps: f32,
    /// The gate is a factor by its sigmoid; not if it comes first.
    pub sigmoid: u32,
    pub padding: u32,
}

/// `ShortConvArgs`.
///
/// out = c * convolution(b * x): of rows `[b, c, x]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ShortConv {
    pub sessions: ConstPtr<ConstPtr<Session>>,
    /// `[rows][in_stride]`.
    pub input: ConstPtr<f32>,
    /// `[rows][channels]`.
    pub out: Ptr<f32>,
    /// `[channels][width]`.
    pub weight: ConstPtr<f32>,
    /// `[channels]` or NULL.
    pub bias: ConstPtr<f32>,
    pub state_offset: u64,
    pub in_stride: u32,
    pub channels: u32,
    pub width: u32,
    /// Rows are positions of session 0.
    pub prefill: u32,
    pub count: u32,
    pub padding: u32,
}

/// `SelectiveArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Selective {
    pub sessions: ConstPtr<ConstPtr<Session>>,
    /// `[rows of input][in_stride]`: channels, gates.
    pub input: ConstPtr<f32>,
    /// `[rows of input][channels]`.
    pub convolved: ConstPtr<f32>,
    /// `[rows of input][part_stride]`: B, C.
    pub parts: ConstPtr<f32>,
    /// `[rows of input][channels]`: dt before softplus.
    pub steps: ConstPtr<f32>,
    /// `[rows of input][channels]`, which may be where the steps are.
    pub out: Ptr<f32>,
    /// `[blocks of CHANNELS][state_dim][CHANNELS]`, times log2(e).
    pub rate: ConstPtr<f32>,
    /// `[channels]`.
    pub skip: ConstPtr<f32>,
    /// Of B and of C; weight NULL: none.
    pub norms: [Norm; 2],
    /// Bytes to S in a fixed state.
    pub matrix_offset: u64,
    pub in_stride: u32,
    pub part_stride: u32,
    pub channels: u32,
    pub state_dim: u32,
    /// Chunks: rows of input.
    pub count: u32,
    pub padding: u32,
}

const _: () = {
    assert!(size_of::<Recurrent>() == 232);
    assert!(size_of::<GatedNorm>() == 56);
    assert!(size_of::<ShortConv>() == 72);
    assert!(size_of::<Selective>() == 144);
};
