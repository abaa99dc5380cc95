//! The structures of the kernels of mixers with a state of fixed size.

use super::Norm;

/// `RecurrentArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Recurrent {
    pub sessions: u64,
    pub input: u64,
    pub out: u64,
    pub convolved: u64,
    pub conv_weight: u64,
    pub conv_bias: u64,
    pub rate: u64,
    pub step_bias: u64,
    pub skip: u64,
    pub norm: u64,
    pub state_offset: u64,
    pub matrix_offset: u64,
    pub in_stride: u32,
    pub channels: u32,
    pub width: u32,
    pub heads: u32,
    pub per_key: u32,
    pub rows: u32,
    pub cols: u32,
    pub q_at: u32,
    pub k_at: u32,
    pub v_at: u32,
    pub gate_at: u32,
    pub step_at: u32,
    pub beta_at: u32,
    pub delta: u32,
    pub q_scale: f32,
    pub eps: f32,
    pub least: f32,
    pub most: f32,
    pub count: u32,
    pub tiled: u32,
    pub gated: u32,
    pub padding: u32,
}

/// `GatedNormArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GatedNorm {
    pub x: u64,
    pub gate: u64,
    pub weight: u64,
    pub len: u32,
    pub group: u32,
    pub gate_stride: u32,
    pub same: u32,
    pub gate_first: u32,
    pub eps: f32,
}

/// `ShortConvArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ShortConv {
    pub sessions: u64,
    pub input: u64,
    pub out: u64,
    pub weight: u64,
    pub bias: u64,
    pub state_offset: u64,
    pub in_stride: u32,
    pub channels: u32,
    pub width: u32,
    pub prefill: u32,
    pub count: u32,
    pub padding: u32,
}

/// `SelectiveArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Selective {
    pub sessions: u64,
    pub input: u64,
    pub convolved: u64,
    pub parts: u64,
    pub steps: u64,
    pub out: u64,
    pub rate: u64,
    pub skip: u64,
    pub norms: [Norm; 2],
    pub matrix_offset: u64,
    pub in_stride: u32,
    pub part_stride: u32,
    pub channels: u32,
    pub state_dim: u32,
    pub count: u32,
    pub padding: u32,
}

// The kernels assert the same sizes of their twins.
const _: () = {
    assert!(size_of::<Recurrent>() == 184);
    assert!(size_of::<GatedNorm>() == 48);
    assert!(size_of::<ShortConv>() == 72);
    assert!(size_of::<Selective>() == 144);
};
