//! Mixtures of experts, as the kernels take them, and the launches of these.

mod launch;
mod pairs;
mod products;
mod sparse;

pub use launch::{ExpertInner, ExpertInput, ExpertPairs};
pub use pairs::{Choice, PairTile, PairTiles, Sorted};
pub use products::{Beside, DownSum, OneRow, PairInput};
#[cfg(all(test, target_os = "linux"))]
pub(super) use products::{ROUTE_BYTES, stages};

use super::adapters::AdaptedApart;
use super::args;
use super::feed_forward::MlpPlan;
use super::matrix::{Matrix, tiled_bytes};
use super::record::RecordType;

/// Most groups of experts: a lane each.
pub(in crate::backend::cuda) const MAX_GROUPS: usize = 32;
/// Rows of an expert up to which a prompt's products read records where they do not go by warpgroups: 64 were faster so, 128 slower (benches/cuda.md).
const FEW_ROWS: u32 = 96;
/// Longest input that every block of a step's last product makes for itself.
const OWN_INPUT_BYTES: usize = 16 * 1024;
/// Bytes of weights in f16 that are there at a time while a prompt is evaluated, if an expert is no
/// larger.
const WEIGHT_BYTES: u64 = 256 << 20;

/// Scores of experts: of all of them, then of the shared one if it has any. In f32 whatever the file's types.
#[derive(Clone, Copy, Debug)]
pub struct Router {
    /// f32, `[rows][width]`.
    pub address: u64,
    /// f32, one per row; 0 if there is none.
    pub bias: u64,
    /// Scores.
    pub rows: u32,
    /// Elements of a row, a multiple of 32; those beyond the network's width are zeros.
    pub width: u32,
}

impl Router {
    /// Bytes of the rows.
    pub fn bytes(&self) -> u64 {
        u64::from(self.rows) * u64::from(self.width) * 4
    }

    /// Groups of 32 elements of an input.
    pub fn groups(&self) -> u32 {
        self.width / 32
    }
}

/// A mixture of experts on the device.
#[derive(Clone, Debug)]
pub struct ExpertsPlan {
    /// Number of experts.
    pub n_experts: u32,
    /// Experts that each token goes through.
    pub n_used: u32,
    /// Elements of their inputs and outputs, if these are not of the network's width. What they read is in `Wide` then.
    pub own_width: Option<u32>,
    /// What chooses them.
    pub router: Router,
    /// Norm of what it reads, if that is not what the experts read.
    pub router_norm: Option<args::Norm>,
    /// f32, one per expert; 0 if there is none.
    pub selection_bias: u64,
    /// f32, factors on the weights of experts, likewise.
    pub expert_scales: u64,
    /// `Scoring` of experts.cu.
    pub scoring: u32,
    /// How near to the largest score those are that count, where two experts are weighed as SparseMixer does.
    pub jitter: Option<f32>,
    /// Groups of experts, groups that are used, and experts that count for one; zeros without groups.
    pub groups: [u8; 3],
    /// Whether the weights of the chosen are divided by their sum.
    pub normalize: bool,
    /// Factor on the weights.
    pub weight_scale: f32,
    /// Whether weights are factors on what experts read, and not on what they make.
    pub weighs_inputs: bool,
    /// Of all experts, one below the other: `n_experts * n_ff` rows. None where up is activated itself.
    pub gate: Option<Matrix>,
    /// As `gate`.
    pub up: Matrix,
    /// Of all experts: `n_experts * hidden` rows.
    pub down: Matrix,
    /// Inner width of an expert.
    pub n_ff: u32,
    /// Of gate and up, or of up.
    pub activation: args::Activation,
    /// The expert for all tokens.
    pub shared: Option<MlpPlan>,
    /// f32, added to the sum of the experts' outputs; 0 if there is none.
    pub sum_bias: u64,
    /// What adapters can be added to, but for the shared expert.
    pub adapted: AdaptedExperts,
}

/// What adapters can be added to of a mixture.
#[derive(Clone, Copy, Debug, Default)]
pub struct AdaptedExperts {
    /// Scores of the experts, and of the shared one.
    pub scores: [Option<AdaptedApart>; 2],
    /// As `gate` of [`ExpertsPlan`].
    pub gate: Option<AdaptedApart>,
    /// As `up`.
    pub up: Option<AdaptedApart>,
    /// As `down`.
    pub down: Option<AdaptedApart>,
}

impl AdaptedExperts {
    /// Whether there is something.
    pub fn any(&self) -> bool {
        let [experts, shared] = self.scores;
        let mut all = [experts, shared, self.gate, self.up, self.down].into_iter();
        all.any(|adapted| adapted.is_some())
    }
}

impl ExpertsPlan {
    /// The matrices that every token is multiplied with, but for the router.
    pub fn common_matrices(&self) -> impl Iterator<Item = &Matrix> {
        self.shared.iter().flat_map(|s| [&s.up, &s.down])
    }

    /// Elements of an expert's output, in a network of that width.
    pub fn width(&self, hidden: u32) -> u32 {
        self.own_width.unwrap_or(hidden)
    }

    /// The matrices that read the layer's input: gate and up, or up.
    pub fn first_matrices(&self) -> Vec<&Matrix> {
        self.gate.iter().chain([&self.up]).collect()
    }

    /// What adapters can be added to of these.
    pub fn first_adapted(&self) -> impl Iterator<Item = &Option<AdaptedApart>> {
        let gate = self.gate.iter().map(|_| &self.adapted.gate);
        gate.chain([&self.adapted.up])
    }

    /// The matrices of the experts.
    pub fn expert_matrices(&self) -> impl Iterator<Item = &Matrix> {
        self.gate.iter().chain([&self.up, &self.down])
    }

    /// How the input of `down` comes from the inner values.
    pub fn source(&self) -> args::Source {
        match self.gate {
            Some(_) => args::Source::Gated,
            None => args::Source::Activated,
        }
    }

    /// Inner values of a pair: gates and ups, or ups.
    pub fn inner_width(&self) -> u32 {
        match self.gate {
            Some(_) => 2 * self.n_ff,
            None => self.n_ff,
        }
    }

    /// Inner values of one row's experts where the last product makes its own input. Those of the shared expert follow them.
    pub fn one_row_inner(&self) -> u32 {
        self.n_used * self.n_ff
    }

    /// Bytes of the experts' matrices that a token needs.
    pub fn used_bytes(&self, matrices: &[&Matrix]) -> u64 {
        let bytes: u64 = matrices.iter().map(|m| m.bytes()).sum();
        bytes / u64::from(self.n_experts) * u64::from(self.n_used)
    }

    /// How many experts' weights in f16 are there at a time while a prompt is evaluated.
    pub fn experts_at_once(&self, matrix: &Matrix) -> u32 {
        let rows = matrix.rows / self.n_experts;
        let one = u64::from(rows) * u64::from(matrix.groups) * 64;
        (WEIGHT_BYTES / one.max(1)).clamp(1, u64::from(self.n_experts)) as u32
    }

    /// Bytes of those.
    pub fn unpacked_bytes(&self) -> u64 {
        let bytes = |m: &Matrix| {
            let rows = m.rows / self.n_experts * self.experts_at_once(m);
            tiled_bytes(rows, m.groups)
        };
        self.expert_matrices().map(bytes).max().unwrap_or(0)
    }

    /// Whether the blocks of a step's last product make its input for themselves: where it is short.
    pub fn own_inputs(&self) -> bool {
        let segments = self.down.segments.iter();
        let bytes = segments.map(|s| own_input_bytes(s.ty, self.down.groups));
        bytes.max().unwrap_or(0) <= OWN_INPUT_BYTES
    }

    /// Whether a chunk of so many pairs reads quantized records as they are where products do not go by warpgroups: where
    /// experts have few rows each, to bring all of their weights to f16 takes longer than the products. Both ways have the
    /// same bits.
    pub fn reads_records(&self, pairs: u32) -> bool {
        pairs <= self.n_experts * FEW_ROWS
    }

    /// Tiles of up to `rows` slots that so many pairs take at most, in a part of the experts.
    pub fn most_tiles(&self, pairs: u32, experts: u32, rows: u32) -> u32 {
        pairs / rows + experts.min(pairs)
    }
}

/// The arguments that sort pairs, and deal tiles of `tile_rows` slots out to them.
pub fn sort_args(
    e: &ExpertsPlan,
    choice: &Choice,
    sorted: &Sorted,
    pairs: u32,
    tile_rows: u32,
) -> args::Sort {
    args::Sort {
        chosen: choice.chosen,
        starts: sorted.starts,
        slots: sorted.slots,
        pairs: sorted.pairs,
        n_pairs: pairs,
        n_experts: e.n_experts,
        tiles: sorted.tiles,
        places: sorted.places,
        tile_rows,
        padding: 0,
    }
}

/// The arguments that weigh the inner values at `inner`, which are by the slots of `pairs` or, where that is 0, by pairs.
pub fn weigh_args(e: &ExpertsPlan, choice: &Choice, inner: u64, pairs: u64) -> args::WeighInner {
    args::WeighInner {
        inner,
        weights: choice.weights,
        pairs,
        n_used: e.n_used,
        width: e.inner_width(),
    }
}

/// The arguments that choose experts by their scores.
pub fn route_args(e: &ExpertsPlan, choice: &Choice) -> args::Route {
    args::Route {
        scores: choice.scores,
        selection_bias: e.selection_bias,
        expert_scales: e.expert_scales,
        chosen: choice.chosen,
        weights: choice.weights,
        score_stride: e.router.rows,
        n_experts: e.n_experts,
        n_used: e.n_used,
        scoring: e.scoring,
        shared: match e.shared {
            None => 0,
            Some(_) if e.router.rows == e.n_experts => 1,
            Some(_) => 2,
        },
        normalize: u32::from(e.normalize),
        weight_scale: e.weight_scale,
        n_groups: e.groups[0],
        used_groups: e.groups[1],
        group_best: e.groups[2],
        padding: 0,
    }
}

/// Bytes of an input that a block makes for itself, as `input_bytes` of matvec_experts.cuh.
pub(super) fn own_input_bytes(ty: RecordType, groups: u32) -> usize {
    let group = if ty.is_float() {
        128
    } else {
        args::INPUT_BYTES
    };
    ((groups * group) as usize).next_multiple_of(128)
}
