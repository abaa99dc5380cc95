//! Launches of the kernels for experts that every device can run.

use super::{Router, own_input_bytes};
use crate::backend::cuda::driver::Stream;
use crate::backend::cuda::launch::args::{
    self, EXPERT_SLOTS, SCORE_WARPS, SCORES_AT_ONCE, TILE_ROWS,
};
use crate::backend::cuda::launch::kernel_id::KernelId;
use crate::backend::cuda::launch::kernels::Kernels;
use crate::backend::cuda::launch::matrix::{Inputs, Matrix};
use crate::backend::cuda::launch::record::RecordType;
use crate::error::Result;

/// Shared memory of the products by warpgroups: five stages of 128 rows of the matrix and the slots of a tile, 64 elements each, and
/// room to align them.
const WGMMA_SHARED: usize = 5 * (128 + EXPERT_SLOTS as usize) * 64 * 2 + 1024;

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
    pub(in crate::backend::cuda) fn find_experts(&mut self) -> Result<()> {
        let shared = self.context().properties().shared_bytes;
        self.find(KernelId::RouterRows, 48 * 1024)?;
        let (bytes, of_halves) = match self.has_wgmma() {
            true => (WGMMA_SHARED, KernelId::ExpertsWgmmaF16),
            false => (self.records_shared(), KernelId::MatmulExpertsF16),
        };
        self.find(of_halves, bytes.max(self.matmul_shared()))?;
        for ty in RecordType::ALL {
            if !ty.is_float() {
                self.find(self.expert_matmul_id(ty), bytes)?;
            }
            self.find(KernelId::MatvecExperts { ty }, shared)?;
        }
        self.find_expert_products()
    }

    /// The product of many rows with records of a type.
    fn expert_matmul_id(&self, ty: RecordType) -> KernelId {
        match self.has_wgmma() {
            true => KernelId::ExpertsWgmma { ty },
            false => KernelId::MatmulExperts { ty },
        }
    }

    /// Chooses the experts of `rows` rows by their scores.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn route(&self, stream: &Stream, args: &args::Route, rows: u32) -> Result<()> {
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, KernelId::Route, (rows, 1, 1), 32, 0, args) }
    }

    /// Multiplies the inner values of `pairs` pairs by their weights, which are 1 from then on: a weight that is a factor on what
    /// an expert reads is one on what its first products make.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn weigh_inner(
        &self,
        stream: &Stream,
        args: &args::WeighInner,
        pairs: u32,
    ) -> Result<()> {
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, KernelId::WeighInner, (pairs, 1, 1), 256, 0, args) }
    }

    /// Scores of `rows` rows of f32 input at `x`, `[rows][router.rows]`.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn router_rows(
        &self,
        stream: &Stream,
        router: &Router,
        x: u64,
        out: u64,
        rows: u32,
    ) -> Result<()> {
        // The rows of a step are few, and many blocks are to have a part in them.
        let per_block = match rows {
            0..=64 => rows.div_ceil(16),
            65..=1024 => 8,
            _ => 32,
        };
        let args = args::Router {
            x,
            out,
            rows,
            per_block,
            ..router_args(router)
        };
        let scores = SCORE_WARPS * SCORES_AT_ONCE;
        let grid = (router.rows.div_ceil(scores), rows.div_ceil(per_block), 1);
        let shared = (scores * per_block * 4) as usize;
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe {
            self.launch(
                stream,
                KernelId::RouterRows,
                grid,
                SCORE_WARPS * 32,
                shared,
                &args,
            )
        }
    }

    /// Sorts pairs by expert.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn expert_sort(&self, stream: &Stream, args: &args::Sort) -> Result<()> {
        let grid = (args.n_experts, 1, 1);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, KernelId::ExpertSort, grid, 256, 0, args) }
    }

    /// Deals tiles out to sorted pairs.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn expert_tiles(&self, stream: &Stream, args: &args::Sort) -> Result<()> {
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, KernelId::ExpertTiles, (1, 1, 1), 1024, 0, args) }
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
            let id = KernelId::MatvecExperts { ty };
            let grid = (first_block, to.pairs, 1);
            // SAFETY: by contract, the inputs have the forms that the types need, and all addresses are valid.
            unsafe { self.launch(stream, id, grid, 512, shared, &args)? };
        }
        Ok(())
    }

    /// Shared memory of the products with records: stages of a tile of inputs, and two tiles of the matrix.
    fn records_shared(&self) -> usize {
        self.matmul_shared() / 2 + 2 * 128 * 64 * 2
    }

    /// Most slots of a tile of the products of many rows.
    pub fn expert_slots(&self) -> u32 {
        match self.has_wgmma() {
            true => EXPERT_SLOTS,
            false => TILE_ROWS,
        }
    }

    /// Products of all slots with their experts' rows of a quantized matrix, whose records are at `args.w`; `tiles` is how
    /// many tiles there are at most. By warpgroups, of two matrices as well.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn expert_matmul_records(
        &self,
        stream: &Stream,
        ty: RecordType,
        args: &args::ExpertMatmul,
        tiles: u32,
    ) -> Result<()> {
        let id = self.expert_matmul_id(ty);
        if self.has_wgmma() {
            // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
            return unsafe { self.launch_expert_tiles(stream, id, args, tiles) };
        }
        let grid = (tiles, args.n.div_ceil(128), 1);
        // SAFETY: as above.
        unsafe { self.launch(stream, id, grid, 256, self.records_shared(), args) }
    }

    /// Products of the slots of some experts with a matrix in f16; `tiles` is how many they have at most.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn expert_matmul(
        &self,
        stream: &Stream,
        args: &args::ExpertMatmul,
        tiles: u32,
    ) -> Result<()> {
        if self.has_wgmma() {
            let id = KernelId::ExpertsWgmmaF16;
            // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
            return unsafe { self.launch_expert_tiles(stream, id, args, tiles) };
        }
        let grid = (tiles, args.n.div_ceil(128), 1);
        let (id, shared) = (KernelId::MatmulExpertsF16, self.matmul_shared());
        // SAFETY: as above.
        unsafe { self.launch(stream, id, grid, 256, shared, args) }
    }

    /// Enqueues a kernel of experts_wgmma.cuh.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    unsafe fn launch_expert_tiles(
        &self,
        stream: &Stream,
        id: KernelId,
        args: &args::ExpertMatmul,
        tiles: u32,
    ) -> Result<()> {
        let columns = (args.n << args.gated).div_ceil(128);
        let grid = (self.multiprocessors().min(tiles * columns), 1, 1);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, id, grid, 512, WGMMA_SHARED, args) }
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
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, KernelId::ExpertCombine, grid, 128, 0, args) }
    }
}

/// What the kernels are told of a router.
pub(super) fn router_args(router: &Router) -> args::Router {
    args::Router {
        matrix: router.address,
        bias: router.bias,
        width: router.width,
        matrix_rows: router.rows,
        ..Default::default()
    }
}
