//! The structures of the kernels for experts.

use super::{Activation, Segment};

/// `RouteArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Route {
    pub scores: u64,
    pub selection_bias: u64,
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

/// `RouterPart`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RouterPart {
    pub matrix: u64,
    pub bias: u64,
    pub ty: u32,
    pub rows: u32,
}

/// `StepRouteArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct StepRoute {
    pub route: Route,
    pub parts: [RouterPart; 2],
    pub x: u64,
    pub tickets: u64,
    pub groups: u32,
    pub n_parts: u32,
}

/// `ScoreArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Score {
    pub matrix: u64,
    pub bias: u64,
    pub x: u64,
    pub out: u64,
    pub ty: u32,
    pub matrix_rows: u32,
    pub groups: u32,
    pub rows: u32,
    pub out_stride: u32,
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
    pub tile_experts: u64,
    pub n_pairs: u32,
    pub n_experts: u32,
    pub tile_rows: u32,
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
    pub starts: u64,
    pub tiles: u64,
    pub tile_experts: u64,
    pub w: u64,
    pub bias: u64,
    pub out: u64,
    pub pairs_per_input: u32,
    pub first_expert: u32,
    pub end_expert: u32,
    pub n: u32,
    pub k: u32,
    pub out_stride: u32,
}

/// `CombineArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Combine {
    pub x: u64,
    pub slots: u64,
    pub weights: u64,
    pub shared: u64,
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
    assert!(size_of::<Route>() == 64);
    assert!(size_of::<StepRoute>() == 136);
    assert!(size_of::<Score>() == 56);
    assert!(size_of::<Sort>() == 64);
    assert!(size_of::<ExpertMatvec>() == 184);
    assert!(size_of::<ExpertMatmul>() == 96);
    assert!(size_of::<Combine>() == 72);
};
