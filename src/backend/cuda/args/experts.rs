//! The structures of the kernels for experts.

use super::{Activation, Norm, Segment};

/// `RouteArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Route {
    pub scores: u64,
    pub selection_bias: u64,
    pub expert_scales: u64,
    pub chosen: u64,
    pub weights: u64,
    pub score_stride: u32,
    pub n_experts: u32,
    pub n_used: u32,
    pub scoring: u32,
    pub shared: u32,
    pub normalize: u32,
    pub weight_scale: f32,
    pub n_groups: u8,
    pub used_groups: u8,
    pub group_best: u8,
    pub padding: u8,
}

/// `RouterArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Router {
    pub matrix: u64,
    pub bias: u64,
    pub x: u64,
    pub norm: Norm,
    pub out: u64,
    pub q8: u64,
    pub q8_scale: u64,
    pub width: u32,
    pub matrix_rows: u32,
    pub rows: u32,
    pub per_block: u32,
    pub inverse_len: f32,
    pub padding: u32,
}

/// `SortArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Sort {
    pub chosen: u64,
    pub starts: u64,
    pub slots: u64,
    pub pairs: u64,
    pub tiles: u64,
    pub places: u64,
    pub n_pairs: u32,
    pub n_experts: u32,
    pub tile_rows: u32,
    pub padding: u32,
}

/// `RoutePairsArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RoutePairs {
    pub route: Route,
    pub tiles: u64,
    pub n_tiles: u64,
    pub rows: u32,
    pub padding: u32,
}

/// `ExpertSlices`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ExpertSlices {
    pub all_rows: u32,
    pub count: u32,
    pub full: u32,
    pub last: u32,
    pub full_bytes: u32,
    pub last_bytes: u32,
}

/// `ExpertShare`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ExpertShare {
    pub each: u32,
    pub more: u32,
}

/// `ExpertsUpArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ExpertsUp {
    pub route: Route,
    pub matrices: [u64; 2],
    pub biases: [u64; 2],
    pub q8: u64,
    pub q8_scale: u64,
    pub out: u64,
    pub slices: ExpertSlices,
    pub gated: u32,
    pub groups: u32,
    pub rows: u32,
    pub blocks: u32,
    pub share: ExpertShare,
    pub ring_bytes: u32,
    pub activation: Activation,
}

/// `ExpertsDownArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ExpertsDown {
    pub matrix: u64,
    pub bias: u64,
    pub chosen: u64,
    pub weights: u64,
    pub x: u64,
    pub shared: u64,
    pub base: u64,
    pub out: u64,
    pub slices: ExpertSlices,
    pub n_experts: u32,
    pub n_used: u32,
    pub groups: u32,
    pub rows: u32,
    pub share: ExpertShare,
    pub ring_bytes: u32,
    pub scale: f32,
}

/// `ExpertsRowsArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ExpertsRows {
    pub matrices: [u64; 2],
    pub biases: [u64; 2],
    pub tiles: u64,
    pub n_tiles: u64,
    pub q8: u64,
    pub q8_scale: u64,
    pub x: u64,
    pub out: u64,
    pub slices: ExpertSlices,
    pub gated: u32,
    pub activates: u32,
    pub groups: u32,
    pub rows: u32,
    pub n_experts: u32,
    pub pairs_per_input: u32,
    pub chunk_rows: u32,
    pub ring_bytes: u32,
    pub activation: Activation,
    pub padding: u32,
}

/// `ExpertMatvecArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ExpertMatvec {
    pub segments: [Segment; 2],
    pub chosen: u64,
    pub order: u64,
    pub q8: u64,
    pub q8_scale: u64,
    pub f32: u64,
    pub out: u64,
    pub n_segments: u32,
    pub groups: u32,
    pub out_stride: u32,
    pub pairs_per_input: u32,
    pub n_experts: u32,
    pub chunk_rows: u32,
    pub inner: u64,
    pub inner_stride: u32,
    pub len: u32,
    pub activation: Activation,
    pub padding: u32,
}

/// `ExpertMatmulArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ExpertMatmul {
    pub x: u64,
    pub x_scale: u64,
    pub pairs: u64,
    pub tiles: u64,
    pub places: u64,
    pub w: [u64; 2],
    pub bias: [u64; 2],
    pub out: u64,
    pub pairs_per_input: u32,
    pub first_expert: u32,
    pub end_expert: u32,
    pub n: u32,
    pub k: u32,
    pub out_stride: u32,
    pub n_experts: u32,
    pub gated: u32,
    pub activation: Activation,
    pub padding: u32,
}

/// `CombineArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Combine {
    pub x: u64,
    pub slots: u64,
    pub weights: u64,
    pub shared: u64,
    pub bias: u64,
    pub base: u64,
    pub out: u64,
    pub scale: f32,
    pub n_used: u32,
    pub len: u32,
    pub x_stride: u32,
    pub out_stride: u32,
    pub padding: u32,
}

// The kernels assert the same sizes of their twins.
const _: () = {
    assert!(size_of::<Route>() == 72);
    assert!(size_of::<Router>() == 96);
    assert!(size_of::<RoutePairs>() == 96);
    assert!(size_of::<ExpertSlices>() == 24);
    assert!(size_of::<ExpertsUp>() == 192);
    assert!(size_of::<ExpertsDown>() == 120);
    assert!(size_of::<ExpertsRows>() == 152);
    assert!(size_of::<Sort>() == 64);
    assert!(size_of::<ExpertMatvec>() == 184);
    assert!(size_of::<ExpertMatmul>() == 128);
    assert!(size_of::<Combine>() == 80);
};
