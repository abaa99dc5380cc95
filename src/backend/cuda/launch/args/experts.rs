//! The structures of the kernels for experts.

use super::{Activation, ConstPtr, Half, Norm, Ptr, Segment};
use std::ffi::c_void;

/// Most experts of a layer.
pub const MAX_EXPERTS: u32 = 1024;

/// Most experts that a token goes through: a chunk's pairs must fit a grid.
pub const MAX_USED: u32 = 31;

/// Warps of a block of the router's product with one row.
pub const ROUTER_WARPS: u32 = 16;

/// Warps of a block of the router's product with rows.
pub const SCORE_WARPS: u32 = 8;

/// Rows of the router that each takes.
pub const SCORES_AT_ONCE: u32 = 2;

/// Pairs of one expert that share its weights, in a step of several rows.
pub const PAIRS_AT_ONCE: u32 = 4;

/// Warps of the block that routes a step's rows.
pub const PAIR_WARPS: u32 = 16;

/// Most pairs that it sorts.
pub const MOST_PAIRS: u32 = 2048;

/// Most slots of a tile of the products of many rows by warpgroups: an instruction of the tensor cores may have no more registers than
/// each of the block's threads at the start.
pub const EXPERT_SLOTS: u32 = 192;

/// `PairTile` of route.cuh.
pub enum PairTile {}

/// `TilePlace` of expert_tiles.cuh.
pub enum TilePlace {}

/// `RouteArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Route {
    /// `[rows][score_stride]`: of all experts, then of the shared one.
    pub scores: ConstPtr<f32>,
    /// `[n_experts]`, added while choosing, or NULL.
    pub selection_bias: ConstPtr<f32>,
    /// `[n_experts]`, factors on the weights, or NULL.
    pub expert_scales: ConstPtr<f32>,
    /// `[rows][n_used]`, ascending.
    pub chosen: Ptr<u32>,
    /// `[rows][n_used + 1]`, the shared expert's last.
    pub weights: Ptr<f32>,
    pub score_stride: u32,
    /// At most MAX_EXPERTS.
    pub n_experts: u32,
    /// At most MAX_USED.
    pub n_used: u32,
    pub scoring: u32,
    pub shared: u32,
    pub normalize: u32,
    pub weight_scale: f32,
    /// Groups of consecutive experts, at most 32; 0: none.
    pub n_groups: u8,
    /// Those that experts are chosen from.
    pub used_groups: u8,
    /// Best experts that count for a group: 1 or 2.
    pub group_best: u8,
    pub padding: u8,
}

/// `RouterArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Router {
    /// `[matrix_rows][width]`.
    pub matrix: ConstPtr<f32>,
    /// `[matrix_rows]` or NULL.
    pub bias: ConstPtr<f32>,
    /// `[rows][width]`.
    pub x: ConstPtr<f32>,
    /// router_row: of the row; weight NULL: none.
    pub norm: Norm,
    /// `[rows][matrix_rows]`.
    pub out: Ptr<f32>,
    /// router_row: the input as int8 for the experts, too.
    pub q8: Ptr<i8>,
    /// `[width / 32]`.
    pub q8_scale: Ptr<f32>,
    /// A multiple of 32.
    pub width: u32,
    pub matrix_rows: u32,
    pub rows: u32,
    /// Rows that a block takes: of the matrix (router_row), or of the input.
    pub per_block: u32,
    pub inverse_len: f32,
    pub padding: u32,
}

/// `SortArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Sort {
    /// `[n_pairs]`: experts of the pairs.
    pub chosen: ConstPtr<u32>,
    /// `[n_experts + 1]`: first slot of each expert, and the end.
    pub starts: Ptr<u32>,
    /// `[n_pairs]`: slot of a pair.
    pub slots: Ptr<u32>,
    /// `[n_pairs]`: pair of a slot.
    pub pairs: Ptr<u32>,
    /// expert_tiles: `[n_experts + 1]`, first tile of each expert, and the end.
    pub tiles: Ptr<u32>,
    /// expert_tiles: of each tile.
    pub places: Ptr<TilePlace>,
    pub n_pairs: u32,
    pub n_experts: u32,
    /// A multiple of 8.
    pub tile_rows: u32,
    pub padding: u32,
}

/// `RoutePairsArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RoutePairs {
    pub route: Route,
    pub tiles: Ptr<PairTile>,
    pub n_tiles: Ptr<u32>,
    pub rows: u32,
    pub padding: u32,
}

/// `ExpertSlices`.
///
/// How the rows of a matrix of all experts are cut, as `slices_of`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ExpertSlices {
    pub all_rows: u32,
    pub count: u32,
    /// Groups of a slice.
    pub full: u32,
    /// Groups of a slice.
    pub last: u32,
    /// Of a record.
    pub full_bytes: u32,
    /// Of a record.
    pub last_bytes: u32,
}

/// `ExpertShare`.
///
/// Rows that blocks share: `each` for each of them, one more for the first `more`.
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
    /// Gate, then up; or up alone.
    pub matrices: [ConstPtr<u8>; 2],
    /// `[n_experts * rows]` or NULL.
    pub biases: [ConstPtr<f32>; 2],
    /// `[groups * 32]`.
    pub q8: ConstPtr<i8>,
    /// `[groups]`.
    pub q8_scale: ConstPtr<f32>,
    /// `[n_used][rows]`.
    pub out: Ptr<f32>,
    pub slices: ExpertSlices,
    /// 1: both matrices.
    pub gated: u32,
    pub groups: u32,
    /// Of an expert.
    pub rows: u32,
    /// For an expert.
    pub blocks: u32,
    pub share: ExpertShare,
    /// Of all warps.
    pub ring_bytes: u32,
    pub activation: Activation,
}

/// `RouterSharedArgs`.
///
/// The router's product with one row, and beside it the gates and ups of the shared expert.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RouterShared {
    pub router: Router,
    /// Rows of the gate, then of up; or of up alone.
    pub matrix: ConstPtr<u8>,
    /// `[rows]`.
    pub out: Ptr<f32>,
    pub slices: ExpertSlices,
    /// 1: both.
    pub gated: u32,
    /// Of each.
    pub rows: u32,
    /// Blocks that have the router's rows; the others share those of the expert.
    pub router_blocks: u32,
    pub share: ExpertShare,
    /// Of all warps.
    pub ring_bytes: u32,
    pub activation: Activation,
    pub padding: u32,
}

/// `ExpertsDownArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ExpertsDown {
    pub matrix: ConstPtr<u8>,
    /// `[n_experts * rows]` or NULL.
    pub bias: ConstPtr<f32>,
    /// `[n_used]`.
    pub chosen: ConstPtr<u32>,
    /// `[n_used + 1]`, the shared expert's last.
    pub weights: ConstPtr<f32>,
    /// `[n_used][groups * 32]`.
    pub x: ConstPtr<f32>,
    /// `[rows]`: outputs of the shared expert, or NULL.
    pub shared: ConstPtr<f32>,
    /// Or its matrix, as wide as those of the others; `x` has its input behind theirs.
    pub shared_matrix: ConstPtr<u8>,
    /// `[rows]`, or NULL.
    pub base: ConstPtr<f32>,
    /// `[rows]` = base + scale * sum; may be `base`.
    pub out: Ptr<f32>,
    pub slices: ExpertSlices,
    pub n_experts: u32,
    pub n_used: u32,
    /// Of an expert's input.
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
    /// Gate, then up; or one alone.
    pub matrices: [ConstPtr<u8>; 2],
    pub biases: [ConstPtr<f32>; 2],
    pub tiles: ConstPtr<PairTile>,
    pub n_tiles: ConstPtr<u32>,
    /// `[inputs][groups * 32]`, of which each is that of pairs_per_input pairs; or NULL:
    pub q8: ConstPtr<i8>,
    pub q8_scale: ConstPtr<f32>,
    /// `[pairs][groups * 32]`.
    pub x: ConstPtr<f32>,
    /// `[pairs][rows]`.
    pub out: Ptr<f32>,
    pub slices: ExpertSlices,
    /// 1: out = activation(first) * second.
    pub gated: u32,
    /// 1: out = activation(first).
    pub activates: u32,
    pub groups: u32,
    /// Of an expert.
    pub rows: u32,
    pub n_experts: u32,
    pub pairs_per_input: u32,
    /// Rows that a block sums at a time: bounds its shared memory.
    pub chunk_rows: u32,
    pub ring_bytes: u32,
    pub activation: Activation,
    pub padding: u32,
}

/// `ExpertMatvecArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ExpertMatvec {
    /// Of all experts; blocks: that share one expert's rows.
    pub segments: [Segment; 2],
    /// `[pairs]`.
    pub chosen: ConstPtr<u32>,
    /// `[pairs]`, or NULL: pairs sorted by expert, so that those of one meet in the cache.
    pub order: ConstPtr<u32>,
    /// `[inputs][groups * 32]`.
    pub q8: ConstPtr<i8>,
    /// `[inputs][groups]`.
    pub q8_scale: ConstPtr<f32>,
    /// `[inputs][groups * 32]`, for segments of float types.
    pub f32: ConstPtr<f32>,
    /// `[pairs][out_stride]`.
    pub out: Ptr<f32>,
    pub n_segments: u32,
    pub groups: u32,
    pub out_stride: u32,
    /// Consecutive pairs that read the same input row.
    pub pairs_per_input: u32,
    pub n_experts: u32,
    /// Rows that a block sums at a time: bounds its shared memory.
    pub chunk_rows: u32,
    /// NULL, or `[pairs][inner_stride]`: gates, then ups, or ups, whose activation is the input.
    pub inner: ConstPtr<f32>,
    /// 2 * len with gates, len without.
    pub inner_stride: u32,
    pub len: u32,
    pub activation: Activation,
    pub padding: u32,
}

/// `WeighInnerArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct WeighInner {
    /// `[pairs or slots][width]`: gates, then ups, or ups.
    pub inner: Ptr<f32>,
    /// `[rows][n_used + 1]`, which are 1 from then on, but for the shared expert's.
    pub weights: Ptr<f32>,
    /// Pair of each slot, or NULL where inner values are by pairs.
    pub pairs: ConstPtr<u32>,
    pub n_used: u32,
    pub width: u32,
}

/// `ExpertMatmulArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ExpertMatmul {
    /// `[inputs][k]`, tiled.
    pub x: ConstPtr<Half>,
    /// `[inputs]`: a row's values are x * x_scale.
    pub x_scale: ConstPtr<f32>,
    /// Pair of each slot, whose input is pair / pairs_per_input; NULL: slots.
    pub pairs: ConstPtr<u32>,
    /// `[.. + 1]`: first tile of each expert, and the end.
    pub tiles: ConstPtr<u32>,
    /// Of each tile.
    pub places: ConstPtr<TilePlace>,
    /// f16: `[experts from first_expert on][n]` rows of k, tiled; or the records of all experts.
    pub w: [ConstPtr<c_void>; 2],
    /// `[all experts][n]` or NULL.
    pub bias: [ConstPtr<f32>; 2],
    /// `[slots][out_stride]`.
    pub out: Ptr<f32>,
    pub pairs_per_input: u32,
    pub first_expert: u32,
    /// The tiles of these experts are done.
    pub end_expert: u32,
    /// Rows of each matrix; k a multiple of 32.
    pub n: u32,
    /// Rows of each matrix; k a multiple of 32.
    pub k: u32,
    pub out_stride: u32,
    pub n_experts: u32,
    /// experts_wgmma.cuh: there are two matrices, of a gate and of what it lets through.
    pub gated: u32,
    /// Of both: SILU or CLAMPED_SWIGLU.
    pub activation: Activation,
    pub padding: u32,
}

/// `CombineArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Combine {
    /// `[pairs or slots][x_stride]`: outputs of the experts.
    pub x: ConstPtr<f32>,
    /// Slot of each pair, or NULL where x has pairs.
    pub slots: ConstPtr<u32>,
    /// `[rows][n_used + 1]`.
    pub weights: ConstPtr<f32>,
    /// `[rows][x_stride]`: outputs of the shared expert, or NULL.
    pub shared: ConstPtr<f32>,
    /// `[len]`, added to the sum, or NULL.
    pub bias: ConstPtr<f32>,
    /// `[rows][out_stride]`, or NULL.
    pub base: ConstPtr<f32>,
    /// `[rows][out_stride]` = base + scale * sum; may be `base`.
    pub out: Ptr<f32>,
    pub scale: f32,
    pub n_used: u32,
    pub len: u32,
    pub x_stride: u32,
    pub out_stride: u32,
    pub padding: u32,
}

const _: () = {
    assert!(size_of::<Route>() == 72);
    assert!(size_of::<Router>() == 96);
    assert!(size_of::<RoutePairs>() == 96);
    assert!(size_of::<ExpertSlices>() == 24);
    assert!(size_of::<ExpertsUp>() == 192);
    assert!(size_of::<ExpertsDown>() == 128);
    assert!(size_of::<RouterShared>() == 176);
    assert!(size_of::<ExpertsRows>() == 152);
    assert!(size_of::<Sort>() == 64);
    assert!(size_of::<ExpertMatvec>() == 184);
    assert!(size_of::<WeighInner>() == 32);
    assert!(size_of::<ExpertMatmul>() == 128);
    assert!(size_of::<Combine>() == 80);
};
