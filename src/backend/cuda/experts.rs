//! Mixtures of experts: their place in the plan, and the launches of their kernels.

mod places;

pub use places::{Choice, ChunkExperts, Sorted, StepExperts};

use super::args;
use super::driver::Stream;
use super::kernels::Kernels;
use super::matrix::{Inputs, Matrix, tiled_bytes};
use super::plan::{Jobs, MlpPlan, activation};
use super::record::RecordType;
use crate::error::{Result, fail};
use crate::model::{Experts, Scoring};

/// Most experts of a layer, as `MAX_EXPERTS` of experts.cu.
const MAX_EXPERTS: usize = 1024;
/// Most groups of experts: a lane each.
const MAX_GROUPS: usize = 32;
/// Most experts that a token goes through: a chunk's pairs must fit a grid.
const MAX_USED: usize = 31;
/// Rows of a tile of the products of many rows, as `Tile` of matmul_experts.cu.
const TILE_ROWS: u32 = 128;
/// Input rows that a block of the router's product takes, as `SCORE_ROWS` of experts.cu.
const SCORE_ROWS: u32 = 4;
/// Warps of a block that scores a step's rows, as `ROUTE_WARPS` of experts.cu.
const ROUTE_WARPS: u32 = 8;
/// Longest input that every block of a step's last product makes for itself.
const OWN_INPUT_BYTES: usize = 16 * 1024;
/// Bytes of weights in f16 that are there at a time while a prompt is evaluated, if an expert is no
/// larger.
const WEIGHT_BYTES: u64 = 256 << 20;

/// A mixture of experts on the device.
#[derive(Clone, Debug)]
pub struct ExpertsPlan {
    /// Number of experts.
    pub n_experts: u32,
    /// Experts that each token goes through.
    pub n_used: u32,
    /// Rows of scores: of the experts, then of the shared one if it has any.
    pub router: Matrix,
    /// f32, one per expert; 0 if there is none.
    pub selection_bias: u64,
    /// `Scoring` of experts.cu.
    pub scoring: u32,
    /// Groups of experts, groups that are used, and experts that count for one; zeros without groups.
    pub groups: [u8; 3],
    /// Whether the weights of the chosen are divided by their sum.
    pub normalize: bool,
    /// Factor on the weights.
    pub weight_scale: f32,
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
}

impl Jobs {
    /// Lays a mixture out. `Unsupported` names what the kernels cannot do.
    pub fn experts(&mut self, e: &Experts) -> Result<ExpertsPlan> {
        if e.n_experts > MAX_EXPERTS || e.n_used > MAX_USED {
            fail!(
                Unsupported,
                "tensor {}: {} of {} experts; the GPU takes {MAX_USED} of {MAX_EXPERTS} at most",
                e.router.weight.name,
                e.n_used,
                e.n_experts
            );
        }
        if let Some(groups) = e.groups
            && groups.n_groups > MAX_GROUPS
        {
            fail!(
                Unsupported,
                "tensor {}: {} groups of experts; the GPU takes {MAX_GROUPS} at most",
                e.router.weight.name,
                groups.n_groups
            );
        }
        let mut scores = vec![&e.router];
        scores.extend(e.shared.as_ref().and_then(|s| s.gate.as_ref()));
        Ok(ExpertsPlan {
            n_experts: e.n_experts as u32,
            n_used: e.n_used as u32,
            router: self.fuse(&scores)?,
            selection_bias: self.tensor(e.selection_bias.as_ref())?,
            scoring: match e.scoring {
                Scoring::Softmax => 0,
                Scoring::Sigmoid => 1,
                Scoring::SoftmaxOfChosen => 2,
            },
            groups: match e.groups {
                Some(g) => [g.n_groups as u8, g.n_used as u8, g.n_best as u8],
                None => [0; 3],
            },
            normalize: e.normalize,
            weight_scale: e.weight_scale,
            gate: e.gate.as_ref().map(|g| self.fuse(&[g])).transpose()?,
            up: self.fuse(&[&e.up])?,
            down: self.fuse(&[&e.down])?,
            n_ff: (e.up.weight.rows() / e.n_experts) as u32,
            activation: activation(e.activation),
            shared: match &e.shared {
                Some(shared) => Some(self.mlp(&shared.mlp)?),
                None => None,
            },
        })
    }
}

impl ExpertsPlan {
    /// The matrices that every token is multiplied with.
    pub fn common_matrices(&self) -> impl Iterator<Item = &Matrix> {
        let shared = self.shared.iter().flat_map(|s| [&s.up, &s.down]);
        std::iter::once(&self.router).chain(shared)
    }

    /// The matrices that read the layer's input: gate and up, or up.
    pub fn first_matrices(&self) -> Vec<&Matrix> {
        self.gate.iter().chain([&self.up]).collect()
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

    /// Tiles that so many pairs take at most, in a part of the experts.
    pub fn most_tiles(&self, pairs: u32, experts: u32) -> u32 {
        pairs / TILE_ROWS + experts.min(pairs)
    }
}

/// What a step's product with experts reads.
#[derive(Clone, Copy)]
pub enum ExpertInput {
    /// Rows of input in the forms that the matrices need, each for so many
    /// consecutive pairs.
    Rows(Inputs, u32),
    /// The activation of a pair's inner values.
    Inner(ExpertInner),
}

/// The values of pairs whose activation is an input.
#[derive(Clone, Copy)]
pub struct ExpertInner {
    /// f32, `[pairs][stride]`: gates, then ups, or ups alone.
    pub address: u64,
    /// Floats from one pair's to the next: twice `len` with gates.
    pub stride: u32,
    /// Inner width of an expert.
    pub len: u32,
    /// Of gate and up, or of up.
    pub activation: args::Activation,
}

/// The pairs of a step's product with experts.
pub struct ExpertPairs {
    /// The input.
    pub input: ExpertInput,
    /// u32, `[pairs]`.
    pub chosen: u64,
    /// u32, `[pairs]`: the pairs sorted by expert, or 0.
    pub order: u64,
    /// Pairs.
    pub pairs: u32,
    /// f32, `[pairs][out_stride]`.
    pub out: u64,
    /// Floats from one pair's output to the next.
    pub out_stride: u32,
}

impl Kernels {
    /// Makes the kernels for experts known.
    pub(super) fn find_experts(&mut self) -> Result<()> {
        let shared = self.context().properties().shared_bytes;
        for name in [
            "route",
            "step_route",
            "expert_sort",
            "expert_tiles",
            "expert_combine",
        ] {
            self.find("experts", name, 0)?;
        }
        let beside_rows = SCORE_ROWS as usize * 32 * 36 * 4;
        self.find("experts", "expert_scores", shared - beside_rows)?;
        self.find("matmul_experts", "matmul_experts", self.matmul_shared())?;
        for ty in RecordType::ALL {
            let name = format!("matvec_experts_{}", ty.name());
            self.find(&matvec_module(ty), &name, shared)?;
        }
        Ok(())
    }

    /// Chooses the experts of `rows` rows by their scores.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn route(&self, stream: &Stream, args: &args::Route, rows: u32) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.launch(stream, "route", (rows, 1, 1), 32, 0, args) }
    }

    /// Scores and experts of a step's `rows` rows of f32 input at `x`. The tickets, one a row, are
    /// zeros, and left so.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn step_route(
        &self,
        stream: &Stream,
        router: &Matrix,
        route: &args::Route,
        x: u64,
        tickets: u64,
        rows: u32,
    ) -> Result<()> {
        let mut args = args::StepRoute {
            route: *route,
            x,
            tickets,
            groups: router.groups,
            n_parts: router.segments.len() as u32,
            ..Default::default()
        };
        for (part, s) in args.parts.iter_mut().zip(&router.segments) {
            *part = args::RouterPart {
                matrix: s.address,
                bias: router.segment_bias(s),
                ty: s.ty.number(),
                rows: s.rows,
            };
        }
        let grid = (router.rows.div_ceil(ROUTE_WARPS), rows, 1);
        // SAFETY: the caller's word.
        unsafe { self.launch(stream, "step_route", grid, ROUTE_WARPS * 32, 0, &args) }
    }

    /// Scores of `rows` rows of f32 input at `x`, `[rows][router.rows]`.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn expert_scores(
        &self,
        stream: &Stream,
        router: &Matrix,
        x: u64,
        out: u64,
        rows: u32,
    ) -> Result<()> {
        for s in &router.segments {
            let at = u64::from(s.out_offset) * 4;
            let args = args::Score {
                matrix: s.address,
                bias: router.segment_bias(s),
                x,
                out: out + at,
                ty: s.ty.number(),
                matrix_rows: s.rows,
                groups: router.groups,
                rows,
                out_stride: router.rows,
                padding: 0,
            };
            let shared = (SCORE_ROWS * s.rows * 4) as usize;
            let grid = (rows.div_ceil(SCORE_ROWS), 1, 1);
            // SAFETY: the caller's word.
            unsafe { self.launch(stream, "expert_scores", grid, 256, shared, &args)? };
        }
        Ok(())
    }

    /// Sorts pairs by expert.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn expert_sort(&self, stream: &Stream, args: &args::Sort) -> Result<()> {
        let grid = (args.n_experts, 1, 1);
        // SAFETY: the caller's word.
        unsafe { self.launch(stream, "expert_sort", grid, 256, 0, args) }
    }

    /// Deals tiles out to sorted pairs.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn expert_tiles(&self, stream: &Stream, args: &args::Sort) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.launch(stream, "expert_tiles", (1, 1, 1), 1024, 0, args) }
    }

    /// Products of pairs with one or two matrices of the experts that they chose. The second one's
    /// outputs are behind the first one's.
    ///
    /// # Safety
    /// As [`Stream::launch`]; the inputs must be in the forms that the matrices' types need.
    pub unsafe fn expert_matvec(
        &self,
        stream: &Stream,
        n_experts: u32,
        matrices: &[&Matrix],
        to: &ExpertPairs,
    ) -> Result<()> {
        // Parts that one kernel can do together: of one type.
        let mut offset = 0;
        let mut parts = Vec::new();
        for m in matrices {
            for s in &m.segments {
                parts.push((s, m.bias, offset));
            }
            offset += m.rows / n_experts;
        }
        while let Some(&(first, ..)) = parts.first() {
            let ty = first.ty;
            let (mine, rest): (Vec<_>, Vec<_>) = parts.into_iter().partition(|(s, ..)| s.ty == ty);
            parts = rest;
            let groups = matrices[0].groups;
            let slices = first.slices(groups);
            let mut args = args::ExpertMatvec {
                chosen: to.chosen,
                order: to.order,
                out: to.out,
                n_segments: mine.len() as u32,
                groups,
                out_stride: to.out_stride,
                pairs_per_input: 1,
                n_experts,
                ..Default::default()
            };
            let mut own_input = 0;
            match to.input {
                ExpertInput::Rows(inputs, pairs_per_input) => {
                    args.q8 = inputs.q8;
                    args.q8_scale = inputs.q8_scale;
                    args.f32 = inputs.f32;
                    args.pairs_per_input = pairs_per_input;
                }
                ExpertInput::Inner(inner) => {
                    args.inner = inner.address;
                    args.inner_stride = inner.stride;
                    args.activation = inner.activation;
                    args.len = inner.len;
                    own_input = own_input_bytes(ty, groups);
                }
            }
            // Two blocks a multiprocessor, shared by the pairs and segments.
            let blocks = (2 * self.multiprocessors()).div_ceil(to.pairs * mine.len() as u32);
            let (mut first_block, mut most_rows) = (0, 1);
            for (segment, (s, bias, out_offset)) in args.segments.iter_mut().zip(&mine) {
                let each = s.rows / n_experts;
                let blocks = blocks.clamp(1, each);
                *segment = args::Segment {
                    matrix: s.address,
                    bias: *bias,
                    ty: s.ty.number(),
                    rows: s.rows,
                    first_block,
                    blocks,
                    out_offset: *out_offset,
                    padding: 0,
                };
                first_block += blocks;
                most_rows = most_rows.max(each.div_ceil(blocks));
            }
            let limit = self.context().properties().shared_bytes.min(96 * 1024) - own_input;
            let per_row = slices as usize * 4;
            args.chunk_rows = most_rows.min((limit / per_row).max(1) as u32);
            let shared = own_input + args.chunk_rows as usize * per_row;
            let name = format!("matvec_experts_{}", ty.name());
            let grid = (first_block, to.pairs, 1);
            // SAFETY: the caller's word.
            unsafe { self.launch(stream, &name, grid, 512, shared, &args)? };
        }
        Ok(())
    }

    /// Products of the slots of some experts; `tiles` is how many they have at most.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn expert_matmul(
        &self,
        stream: &Stream,
        args: &args::ExpertMatmul,
        tiles: u32,
    ) -> Result<()> {
        let grid = (tiles, args.n.div_ceil(128), 1);
        // SAFETY: the caller's word.
        unsafe {
            self.launch(
                stream,
                "matmul_experts",
                grid,
                256,
                self.matmul_shared(),
                args,
            )
        }
    }

    /// Sums of what the experts of `rows` rows gave.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn expert_combine(
        &self,
        stream: &Stream,
        args: &args::Combine,
        rows: u32,
    ) -> Result<()> {
        let grid = (args.len.div_ceil(128), rows, 1);
        // SAFETY: the caller's word.
        unsafe { self.launch(stream, "expert_combine", grid, 128, 0, args) }
    }
}

/// The arguments that sort pairs, but for those that deal tiles out to them.
pub fn sort_args(e: &ExpertsPlan, choice: &Choice, sorted: &Sorted, pairs: u32) -> args::Sort {
    args::Sort {
        chosen: choice.chosen,
        starts: sorted.starts,
        slots: sorted.slots,
        pairs: sorted.pairs,
        n_pairs: pairs,
        n_experts: e.n_experts,
        tile_rows: TILE_ROWS,
        ..Default::default()
    }
}

/// The arguments that choose experts by their scores.
pub fn route_args(e: &ExpertsPlan, choice: &Choice) -> args::Route {
    args::Route {
        scores: choice.scores,
        selection_bias: e.selection_bias,
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
fn own_input_bytes(ty: RecordType, groups: u32) -> usize {
    let group = if ty.is_float() { 128 } else { 36 };
    (groups as usize * group).next_multiple_of(128)
}

/// The kernel file of a type's products.
fn matvec_module(ty: RecordType) -> String {
    let file = if ty.is_float() { "k" } else { ty.row().file };
    format!("matvec_experts_{file}")
}
