//! The structures that kernels take, as `kernels/*.cuh` declare them. Each is the only parameter of
//! its kernels. Addresses are on the device; 0 stands for NULL.

#![expect(
    missing_docs,
    reason = "fields are described where the kernels declare them"
)]

mod adapters;
mod experts;
mod latent;
mod predictor;
mod ranks;
mod recurrent;
mod streams;
mod texts;

pub use adapters::*;
pub use experts::*;
pub use latent::*;
pub use predictor::*;
pub use ranks::*;
pub use recurrent::*;
pub use streams::*;
pub use texts::*;

use super::driver::Pod;
use crate::engine::sampling::MAX_LOGPROBS;

/// `Settings`: how a session's tokens are chosen.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Settings {
    pub seed: u64,
    pub bias: u64,
    pub single_breakers: u64,
    pub breakers: u64,
    pub temperature: f32,
    pub top_k: u32,
    pub top_p: f32,
    pub min_p: f32,
    pub typical_p: f32,
    pub penalty_window: u32,
    pub repeat_penalty: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub dry_multiplier: f32,
    pub dry_base: f32,
    pub dry_allowed_length: u32,
    pub dry_window: u32,
    pub dry_longest: u32,
    pub logprobs: u32,
    pub masked: u32,
}

/// `Session`: the device-side state of a session.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Session {
    pub kv: u64,
    pub kv_ring: u64,
    pub fixed: u64,
    pub results: u64,
    pub logprobs: u64,
    pub draw_offset: u64,
    pub history: u64,
    pub adjusted: u64,
    pub counts: u64,
    pub lengths: u64,
    pub mask: u64,
    pub adapters: u64,
    pub thin: u64,
    pub states: u64,
    pub adapter_uses: u32,
    pub thin_stride: u32,
    pub position: u32,
    pub token: u32,
    pub sequence: u32,
    pub result_slots: u32,
    pub context: u32,
    pub states_rows: u32,
    pub settings: Settings,
}

// SAFETY: numbers without padding: 14 * 8 + 8 * 4 bytes, and settings of 4 * 8 + 16 * 4.
unsafe impl Pod for Session {}

/// `Drafts`: what a session has for the rows of a step that verifies drafts.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Drafts {
    pub session: u64,
    pub rows: u64,
    pub results: u64,
    pub asked: u64,
}

/// `DraftsArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DraftRows {
    pub drafts: u64,
}

/// `LogprobEntry`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LogprobEntry {
    pub sum: u64,
    pub best: f32,
    pub chosen: f32,
    pub count: u32,
    pub padding: u32,
    pub ids: [u32; MAX_LOGPROBS],
    pub logits: [f32; MAX_LOGPROBS],
}

/// `KvLayout`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvLayout {
    pub tile_bytes: u64,
    pub layer_offset: u64,
    pub row_bytes: u32,
    pub n_kv_heads: u32,
    pub head_dim: u32,
    pub q8: u32,
    pub ring: u32,
    pub window: u32,
}

/// What stands for no window in [`KvLayout`].
pub const NO_WINDOW: u32 = i32::MAX as u32;

/// `RepackArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Repack {
    pub raw: u64,
    pub matrix: u64,
    pub raw_stride: u64,
    pub codebook: u64,
    pub ty: u32,
    pub file: u32,
    pub block_bytes: u32,
    pub row_len: u32,
    pub groups: u32,
    pub matrix_rows: u32,
    pub first_row: u32,
    pub rows: u32,
    pub values: [u32; 4],
    pub factor: f32,
    pub padding: u32,
}

/// `UnpackArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Unpack {
    pub matrix: u64,
    pub out: u64,
    pub ty: u32,
    pub groups: u32,
    pub matrix_rows: u32,
    pub first_row: u32,
    pub rows: u32,
    pub to_f32: u32,
    pub out_row: u32,
    pub expert_rows: u32,
    pub starts: u64,
    pub spread: u32,
    pub padding: u32,
}

/// `Table` of `EmbedArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Table {
    pub matrix: u64,
    pub ty: u32,
    pub rows: u32,
}

/// `EmbedArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Embed {
    pub embedding: Table,
    pub positions: Table,
    pub kinds: Table,
    pub sessions: u64,
    pub tokens: u64,
    pub text_positions: u64,
    pub text_kinds: u64,
    pub out: u64,
    pub groups: u32,
    pub scale: f32,
}

/// `LayerInputsArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct LayerInputs {
    pub embedding: Table,
    pub sessions: u64,
    pub tokens: u64,
    pub x: u64,
    pub norm: Norm,
    pub len: u32,
    pub stride: u32,
    pub groups: u32,
    pub embedding_scale: f32,
    pub projection_scale: f32,
    pub scale: f32,
}

/// `Source` of `ProduceArgs`.
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
    pub weight: u64,
    pub bias: u64,
    pub eps: f32,
    pub layer: u32,
}

/// `Activation`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Activation {
    pub kind: u32,
    pub alpha: f32,
    pub limit: f32,
}

/// `ProduceArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Produce {
    pub x: u64,
    pub norm: Norm,
    pub q8: u64,
    pub q8_scale: u64,
    pub f32: u64,
    pub f16: u64,
    pub f16_scale: u64,
    pub largest: u64,
    pub clear: u64,
    pub gate: u64,
    pub x_stride: u32,
    pub len: u32,
    pub groups: u32,
    pub source: u32,
    pub inverse_len: f32,
    pub activation: Activation,
    pub gate_stride: u32,
    pub padding: u32,
}

/// `AddBranchArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AddBranch {
    pub x: u64,
    pub base: u64,
    pub out: u64,
    pub norm: Norm,
    pub scale: f32,
    pub len: u32,
    pub x_stride: u32,
    pub stride: u32,
    pub out_scale: f32,
    pub padding: u32,
}

/// `NormPartsArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct NormParts {
    pub x: u64,
    pub norms: [Norm; 2],
    pub first: [u32; 2],
    pub len: [u32; 2],
    pub stride: u32,
    pub padding: u32,
}

/// `LogitsArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Logits {
    pub logits: u64,
    pub n_vocab: u32,
    pub scale: f32,
    pub cap: f32,
    pub padding: u32,
}

/// `Segment` of `MatvecArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Segment {
    pub matrix: u64,
    pub bias: u64,
    pub ty: u32,
    pub rows: u32,
    pub first_block: u32,
    pub blocks: u32,
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
    pub q8: u64,
    pub q8_scale: u64,
    pub f32: u64,
    pub out: u64,
    pub residual: u64,
    pub n_segments: u32,
    pub groups: u32,
    pub out_stride: u32,
    pub batch: u32,
    pub ring_bytes: u32,
    pub chunk_rows: u32,
    pub prefetch_bytes: u32,
    pub padding: u32,
}

/// `Part` of `ProductArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ProductPart {
    pub matrix: u64,
    pub bias: u64,
    pub ty: u32,
    pub rows: u32,
    pub first_block: u32,
    pub each: u32,
    pub more: u32,
    pub out_offset: u32,
    pub n_slices: u32,
    pub full: u32,
    pub last: u32,
    pub full_bytes: u32,
    pub last_bytes: u32,
    pub spread: u32,
}

/// `ProductArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Product {
    pub parts: [ProductPart; MAX_SEGMENTS],
    pub x: u64,
    pub q8: u64,
    pub q8_scale: u64,
    pub norm: Norm,
    pub out: u64,
    pub residual: u64,
    pub n_parts: u32,
    pub groups: u32,
    pub ring_bytes: u32,
    pub finish: u32,
    pub inverse_len: f32,
    pub activation: Activation,
}

/// `AdaptedProductArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AdaptedProduct {
    pub product: Product,
    pub adapted: Adapted,
}

/// `MatmulArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Matmul {
    pub x: u64,
    pub x_scale: u64,
    pub w: u64,
    pub bias: u64,
    pub residual: u64,
    pub out: u64,
    pub m: u32,
    pub n: u32,
    pub k: u32,
    pub out_stride: u32,
}

/// `GatedMatmulArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GatedMatmul {
    pub product: Matmul,
    pub largest: u64,
}

/// `Rotation`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Rotation {
    pub inv_freq: u64,
    pub long_inv_freq: u64,
    pub magnitude: f32,
    pub n_pairs: u32,
    pub interleaved: u32,
    pub long_above: u32,
    pub after: [u64; 2],
    pub temperature: f32,
    pub temperature_length: f32,
}

/// `Scores`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Scores {
    pub sinks: u64,
    pub scale: f32,
    pub cap: f32,
}

/// `RopeArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Rope {
    pub sessions: u64,
    pub qkv: u64,
    pub q_f32: u64,
    pub q_f16: u64,
    pub positions: u64,
    pub rotation: Rotation,
    pub q_norm: Norm,
    pub k_norm: Norm,
    pub v_norm: Norm,
    pub layout: KvLayout,
    pub q_scale: f32,
    pub qkv_stride: u32,
    pub n_heads: u32,
    pub prefill: u32,
    pub first_row: u32,
    pub value_head: u32,
    pub shares: u32,
    pub text_rows: u32,
}

/// `AttendArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Attend {
    pub sessions: u64,
    pub q: u64,
    pub q16: u64,
    pub parts: u64,
    pub q8: u64,
    pub q8_scale: u64,
    pub f32: u64,
    pub qkv: u64,
    pub gate: u64,
    pub tickets: u64,
    pub rotation: Rotation,
    pub q_norm: Norm,
    pub k_norm: Norm,
    pub v_norm: Norm,
    pub layout: KvLayout,
    pub scores: Scores,
    pub qkv_stride: u32,
    pub n_heads: u32,
    pub n_chunks: u32,
    pub head_parts: u32,
    pub join: u32,
    pub value_head: u32,
    pub shares: u32,
    pub prefill: u32,
    pub first_row: u32,
    pub value_dim: u32,
}

/// `FlashArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Flash {
    pub sessions: u64,
    pub q: u64,
    pub out: u64,
    pub layout: KvLayout,
    pub scores: Scores,
    pub first_row: u32,
    pub rows: u32,
    pub n_heads: u32,
    pub value_dim: u32,
}

/// `SampleArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    pub sessions: u64,
    pub logits: u64,
    pub group_value: u64,
    pub group_id: u64,
    pub n_vocab: u32,
    pub advance: u32,
    pub choose: u32,
    pub adjust: u32,
}

// The kernels assert the same sizes of their twins, and tests/driver/cuda.c does of those that it reads.
const _: () = {
    assert!(size_of::<Settings>() == 96);
    assert!(size_of::<Session>() == 240);
    assert!(size_of::<LogprobEntry>() == 536);
    assert!(size_of::<Drafts>() == 32);
    assert!(size_of::<DraftRows>() == 8);
    assert!(size_of::<KvLayout>() == 40);
    assert!(size_of::<Repack>() == 88);
    assert!(size_of::<Unpack>() == 64);
    assert!(size_of::<Embed>() == 96);
    assert!(size_of::<LayerInputs>() == 88);
    assert!(size_of::<Norm>() == 24);
    assert!(size_of::<Produce>() == 136);
    assert!(size_of::<AddBranch>() == 72);
    assert!(size_of::<NormParts>() == 80);
    assert!(size_of::<Logits>() == 24);
    assert!(size_of::<Segment>() == 40);
    assert!(size_of::<Matvec>() == 232);
    assert!(size_of::<Product>() == 352);
    assert!(size_of::<AdaptedProduct>() == 552);
    assert!(size_of::<Matmul>() == 64);
    assert!(size_of::<GatedMatmul>() == 72);
    assert!(size_of::<Rotation>() == 56);
    assert!(size_of::<Scores>() == 16);
    assert!(size_of::<Rope>() == 240);
    assert!(size_of::<Attend>() == 304);
    assert!(size_of::<Flash>() == 96);
    assert!(size_of::<Sample>() == 48);
};
