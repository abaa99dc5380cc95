//! Launches of the products of a step's experts (`kernels/experts_product.cuh`), from sm_90 on.

use super::launch::router_args;
use super::{ExpertsPlan, PairTiles, Router};
use crate::backend::cuda::driver::Stream;
use crate::backend::cuda::launch::args::{
    self, MAX_EXPERTS, MAX_USED, MOST_PAIRS, PAIR_WARPS, PAIRS_AT_ONCE,
};
use crate::backend::cuda::launch::kernel_id::{ExpertProduct, KernelId};
use crate::backend::cuda::launch::kernels::{Kernels, WARPS};
use crate::backend::cuda::launch::matrix::{Inputs, Matrix, MatrixSegment, slices};
use crate::backend::cuda::launch::record::RecordType;
use crate::error::{Result, fail};

/// At least the static shared memory of a block.
const STATIC_SHARED: usize = 9 * 1024;
/// Bytes of a group of the input in shared memory.
const INPUT_BYTES: usize = args::INPUT_BYTES as usize;
/// Widest row that a norm takes: what the registers of a block hold.
const WIDEST_NORM: u32 = 16 * 512;
/// Weights of a block of products that others' blocks may share a multiprocessor with, as for products of one row.
const SHARING_BYTES: std::ops::Range<u64> = 120 << 10..400 << 10;
/// Weights of the shared expert's first product that a block beside the router's takes at most: more are faster by a kernel of their own, which
/// has all multiprocessors.
const BESIDE_BYTES: u64 = 128 << 10;
/// Bytes of a `RouteMemory` of route.cuh.
pub(in crate::backend::cuda::launch) const ROUTE_BYTES: usize =
    (2 * MAX_EXPERTS as usize + 1 + MAX_USED as usize + 1) * 4;
/// Shared memory for the router's input and sums.
const ROUTER_SHARED: usize = 64 * 1024;

/// One session's token: its row, or the norm of it.
#[derive(Clone, Copy, Debug)]
pub struct OneRow {
    /// f32.
    pub x: u64,
    /// The norm.
    pub norm: Option<args::Norm>,
    /// Elements.
    pub len: u32,
}

/// What of the expert for all tokens the kernels for one row make beside the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Beside {
    /// Nothing: it has products of its own.
    #[default]
    Nothing,
    /// Its inner values.
    Inner,
    /// These and its outputs.
    Whole,
}

/// What becomes of the sum of the experts' outputs: `out = base + scale * sum`, or the sum alone.
#[derive(Clone, Copy, Debug)]
pub struct DownSum {
    /// f32, outputs of the shared expert; 0 if there is none, or if they are made here.
    pub shared: u64,
    /// Whether they are.
    pub makes_shared: bool,
    /// f32, or 0.
    pub base: u64,
    /// Factor.
    pub scale: f32,
    /// f32.
    pub out: u64,
}

/// The input of a product of several sessions' pairs.
#[derive(Clone, Copy, Debug)]
pub enum PairInput {
    /// int8, a row for so many consecutive pairs.
    Rows(Inputs, u32),
    /// f32, a row for each pair.
    Inner(u64),
}

/// How a matrix of all experts is cut, or matrices alike.
struct Cut<'a> {
    segments: Vec<&'a MatrixSegment>,
    biases: [u64; 2],
    slices: args::ExpertSlices,
    groups: u32,
    /// Of an expert.
    rows: u32,
    ring: usize,
}

impl<'a> Cut<'a> {
    /// Of one or two matrices of one quantized type.
    fn of(matrices: &[&'a Matrix], n_experts: u32) -> Option<Cut<'a>> {
        let mut segments = Vec::new();
        let mut biases = [0; 2];
        for (m, bias) in matrices.iter().zip(&mut biases) {
            let [segment] = &m.segments[..] else {
                return None;
            };
            segments.push(segment);
            *bias = m.bias;
        }
        let (first, groups) = (*segments.first()?, matrices[0].groups);
        let alike = |s: &&MatrixSegment| s.ty == first.ty && s.rows == first.rows;
        if first.ty.is_float() || !segments.iter().all(alike) {
            return None;
        }
        let (count, full, last) = slices(first.ty, groups);
        Some(Cut {
            biases,
            slices: args::ExpertSlices {
                all_rows: first.rows,
                count,
                full,
                last,
                full_bytes: first.ty.record_bytes(full) as u32,
                last_bytes: first.ty.record_bytes(last) as u32,
            },
            groups,
            rows: first.rows / n_experts,
            ring: ring_bytes(first.ty),
            segments,
        })
    }

    fn ty(&self) -> RecordType {
        self.segments[0].ty
    }

    fn addresses(&self) -> [u64; 2] {
        let mut addresses = [0; 2];
        for (to, s) in addresses.iter_mut().zip(&self.segments) {
            *to = s.address;
        }
        addresses
    }

    /// Slices of all matrices.
    fn runs(&self) -> usize {
        self.slices.count as usize * self.segments.len()
    }

    fn bytes(&self) -> u64 {
        self.segments.iter().map(|s| s.bytes).sum()
    }
}

/// Rows of a stage, and stages of a warp's ring, as `expert_stage_rows` and `expert_stages` of experts_product.cuh.
pub(in crate::backend::cuda::launch) fn stages(ty: RecordType) -> (usize, usize) {
    match ty.record_bytes(32) {
        0..=704 => (4, 3),
        705..=900 => (2, 4),
        _ => (2, 3),
    }
}

/// Bytes of the rings of a block.
fn ring_bytes(ty: RecordType) -> usize {
    let (rows, stages) = stages(ty);
    WARPS * rows * stages * ty.record_bytes(32) as usize
}

/// The arguments for the scores of one row, where they and the row as int8 go, and for so many rows a block.
fn one_row_args(
    router: &Router,
    row: &OneRow,
    (out, inputs): (u64, Inputs),
    per_block: u32,
) -> args::Router {
    args::Router {
        x: row.x,
        norm: row.norm.unwrap_or_default(),
        out,
        q8: inputs.q8,
        q8_scale: inputs.q8_scale,
        rows: 1,
        per_block,
        inverse_len: 1.0 / router.width as f32,
        ..router_args(router)
    }
}

/// `rows` rows shared by so many blocks.
fn share(rows: u32, blocks: u32) -> args::ExpertShare {
    args::ExpertShare {
        each: rows / blocks,
        more: rows % blocks,
    }
}

impl Kernels {
    /// Makes the kernels known where the device can run them.
    pub(super) fn find_expert_products(&mut self) -> Result<()> {
        if self.context().properties().capability.0 < 9 {
            return Ok(());
        }
        let most = self.most_shared();
        self.find(KernelId::RouterRow, ROUTER_SHARED)?;
        if PAIR_WARPS as usize * ROUTE_BYTES <= most {
            self.find(KernelId::RoutePairs, most)?;
        }
        for ty in RecordType::ALL.into_iter().filter(|ty| !ty.is_float()) {
            for product in ExpertProduct::ALL {
                self.find(KernelId::Experts { product, ty }, most)?;
            }
        }
        Ok(())
    }

    /// Dynamic shared memory that a block may have.
    fn most_shared(&self) -> usize {
        self.context().properties().shared_bytes - STATIC_SHARED
    }

    /// Shared memory of a block with so many bytes of weights: where it is to have a multiprocessor for itself, more than
    /// half of what there is, as products of one row have it.
    fn padded_shared(&self, shared: usize, weights: u64) -> usize {
        if SHARING_BYTES.contains(&weights) {
            return shared;
        }
        shared.max(self.most_shared() / 2 + 512)
    }

    /// Whether [`Kernels::experts_up`] and [`Kernels::experts_down`] take these experts.
    pub fn takes_one_row(&self, e: &ExpertsPlan, row: &OneRow) -> bool {
        row.len == e.router.width
            && (row.norm.is_none() || row.len <= WIDEST_NORM)
            && self.has(KernelId::RouterRow)
            && self.plan_up(e).is_some()
            && self.plan_down(e, false).is_some()
    }

    /// What of the shared expert these and [`Kernels::router_shared`] make, where they take the others.
    pub fn beside(&self, e: &ExpertsPlan) -> Beside {
        if self.plan_shared(e).is_none() {
            return Beside::Nothing;
        }
        match self.plan_down(e, true) {
            Some(_) => Beside::Whole,
            None => Beside::Inner,
        }
    }

    /// Scores of one row, of which every block makes the norm for itself. The row is written to `inputs` as int8.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn router_row(
        &self,
        stream: &Stream,
        router: &Router,
        row: &OneRow,
        out: u64,
        inputs: Inputs,
    ) -> Result<()> {
        let (grid, per_block, shared) = self.plan_router(router);
        let args = one_row_args(router, row, (out, inputs), per_block);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe {
            let threads = args::ROUTER_WARPS * 32;
            let grid = (grid, 1, 1);
            self.launch(stream, KernelId::RouterRow, grid, threads, shared, &args)
        }
    }

    /// Blocks for the scores of one row, rows of each, and their shared memory. Half of the multiprocessors are enough, and
    /// others work on the rest.
    fn plan_router(&self, router: &Router) -> (u32, u32, usize) {
        let per_block = router.rows.div_ceil(self.multiprocessors() / 2).max(1);
        let floats = router.width + per_block * router.width.div_ceil(1024);
        let blocks = router.rows.div_ceil(per_block);
        (blocks, per_block, floats as usize * 4)
    }

    /// The launch for scores of one row and the shared expert's gates and ups; `None` if there are none, or if it does not fit.
    fn plan_shared(&self, e: &ExpertsPlan) -> Option<(args::RouterShared, u32, usize, RecordType)> {
        let (expert, router) = (e.shared.as_ref()?, &e.router);
        let plain = expert.cutoff.is_none()
            && expert.inner_norm.is_none()
            && e.router_norm.is_none()
            && expert.up.bias == 0
            && expert.up.groups * 32 == router.width;
        let cut = Cut::of(&[&expert.up], 1).filter(|_| plain)?;
        let (router_blocks, _, router_shared) = self.plan_router(router);
        let halves = if expert.gated { 2 } else { 1 };
        let rows = cut.rows / halves;
        let blocks = (self.multiprocessors().checked_sub(router_blocks)?).min(rows);
        let fits = rows == expert.n_ff && cut.bytes() <= BESIDE_BYTES * u64::from(blocks);
        if blocks == 0 || !fits {
            return None;
        }
        let args = args::RouterShared {
            matrix: cut.addresses()[0],
            slices: cut.slices,
            gated: u32::from(expert.gated),
            rows,
            router_blocks,
            share: share(rows, blocks),
            ring_bytes: cut.ring as u32,
            activation: expert.activation,
            ..Default::default()
        };
        let sums = cut.runs() * halves as usize * rows.div_ceil(blocks) as usize * 4;
        let shared = cut.ring + cut.groups as usize * INPUT_BYTES + sums;
        let shared = shared.max(router_shared);
        let fits = shared <= self.most_shared() && router_shared <= ROUTER_SHARED;
        fits.then_some((args, router_blocks + blocks, shared, cut.ty()))
    }

    /// [`Kernels::router_row`], and the inner values of the shared expert, f32, at `inner`.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn router_shared(
        &self,
        stream: &Stream,
        e: &ExpertsPlan,
        row: &OneRow,
        (scores, inputs, inner): (u64, Inputs, u64),
    ) -> Result<()> {
        let Some((args, grid, shared, ty)) = self.plan_shared(e) else {
            fail!(Internal, "the shared expert does not fit");
        };
        let (_, per_block, _) = self.plan_router(&e.router);
        let args = args::RouterShared {
            router: one_row_args(&e.router, row, (scores, inputs), per_block),
            out: inner,
            ..args
        };
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.expert_product(stream, ExpertProduct::Shared, ty, grid, shared, &args) }
    }

    /// The launch for gates and ups of one row: its arguments, blocks and shared memory; `None` if it does not fit.
    fn plan_up(&self, e: &ExpertsPlan) -> Option<(args::ExpertsUp, u32, usize, RecordType)> {
        let cut = Cut::of(&e.first_matrices(), e.n_experts)?;
        let blocks = (self.multiprocessors() / e.n_used).clamp(1, cut.rows);
        let most_rows = cut.rows.div_ceil(blocks) as usize;
        let grid = blocks * e.n_used;
        let args = args::ExpertsUp {
            matrices: cut.addresses(),
            biases: cut.biases,
            slices: cut.slices,
            gated: u32::from(e.gate.is_some()),
            groups: cut.groups,
            rows: cut.rows,
            blocks,
            share: share(cut.rows, blocks),
            ring_bytes: cut.ring as u32,
            activation: e.activation,
            ..Default::default()
        };
        let shared = cut.ring + cut.groups as usize * INPUT_BYTES + cut.runs() * most_rows * 4;
        let used = cut.bytes() / u64::from(e.n_experts) * u64::from(e.n_used);
        let shared = self.padded_shared(shared, used / u64::from(grid));
        (shared <= self.most_shared()).then_some((args, grid, shared, cut.ty()))
    }

    /// The inner values of one row's experts, f32 `[n_used][n_ff]`. Chooses the experts by their scores, and writes which
    /// they are and their weights, as `route` says.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn experts_up(
        &self,
        stream: &Stream,
        e: &ExpertsPlan,
        route: &args::Route,
        inputs: Inputs,
        out: u64,
    ) -> Result<()> {
        let Some((args, grid, shared, ty)) = self.plan_up(e) else {
            fail!(Internal, "gates and ups of experts do not fit");
        };
        let args = args::ExpertsUp {
            route: *route,
            q8: inputs.q8,
            q8_scale: inputs.q8_scale,
            out,
            ..args
        };
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.expert_product(stream, ExpertProduct::Up, ty, grid, shared, &args) }
    }

    /// The same for the last product, which may make the outputs of the shared expert, too.
    fn plan_down(
        &self,
        e: &ExpertsPlan,
        makes_shared: bool,
    ) -> Option<(args::ExpertsDown, u32, usize, RecordType)> {
        let cut = Cut::of(&[&e.down], e.n_experts)?;
        if cut.groups * 32 != e.n_ff {
            return None;
        }
        let mut shared_matrix = 0;
        if makes_shared {
            let down = &e.shared.as_ref()?.down;
            let own = Cut::of(&[down], 1)?;
            let alike = (own.ty(), own.groups, own.rows) == (cut.ty(), cut.groups, cut.rows);
            if !alike || down.bias != 0 {
                return None;
            }
            [shared_matrix, _] = own.addresses();
        }
        let grid = self.multiprocessors().min(cut.rows);
        let most_rows = cut.rows.div_ceil(grid) as usize;
        let args = args::ExpertsDown {
            matrix: cut.addresses()[0],
            bias: cut.biases[0],
            shared_matrix,
            slices: cut.slices,
            n_experts: e.n_experts,
            n_used: e.n_used,
            groups: cut.groups,
            rows: cut.rows,
            share: share(cut.rows, grid),
            ring_bytes: cut.ring as u32,
            ..Default::default()
        };
        let pairs = e.n_used as usize + usize::from(makes_shared);
        let shared = cut.ring
            + pairs * cut.groups as usize * INPUT_BYTES
            + pairs * cut.runs() * most_rows * 4;
        let used = cut.bytes() / u64::from(e.n_experts) * pairs as u64;
        let shared = self.padded_shared(shared, used / u64::from(grid));
        (shared <= self.most_shared()).then_some((args, grid, shared, cut.ty()))
    }

    /// The outputs of one row's experts, by the inner values that [`Kernels::experts_up`] has left at `x`, and their sum.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn experts_down(
        &self,
        stream: &Stream,
        e: &ExpertsPlan,
        route: &args::Route,
        x: u64,
        sum: &DownSum,
    ) -> Result<()> {
        let Some((args, grid, shared, ty)) = self.plan_down(e, sum.makes_shared) else {
            fail!(Internal, "the last product of experts does not fit");
        };
        let args = args::ExpertsDown {
            chosen: route.chosen,
            weights: route.weights,
            x,
            shared: sum.shared,
            base: sum.base,
            out: sum.out,
            scale: sum.scale,
            ..args
        };
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.expert_product(stream, ExpertProduct::Down, ty, grid, shared, &args) }
    }

    /// Whether [`Kernels::experts_rows`] takes these experts, for so many pairs.
    pub fn takes_pairs(&self, e: &ExpertsPlan, pairs: u32) -> bool {
        let takes = |matrices: &[&Matrix]| {
            Cut::of(matrices, e.n_experts).is_some_and(|cut| self.chunk_rows(&cut) >= 16)
        };
        pairs <= MOST_PAIRS
            && e.down.groups * 32 == e.n_ff
            && self.has(KernelId::RoutePairs)
            && takes(&e.first_matrices())
            && takes(&[&e.down])
    }

    /// Rows of an expert that a block of [`Kernels::experts_rows`] can sum at a time.
    fn chunk_rows(&self, cut: &Cut<'_>) -> usize {
        let at_once = PAIRS_AT_ONCE as usize;
        let beside = cut.ring + at_once * cut.groups as usize * INPUT_BYTES;
        self.most_shared().saturating_sub(beside) / (cut.runs() * at_once * 4)
    }

    /// Chooses the experts of a step's `rows` rows by their scores, and deals their pairs out to tiles of one expert each.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn route_pairs(
        &self,
        stream: &Stream,
        route: &args::Route,
        tiles: &PairTiles,
        rows: u32,
    ) -> Result<()> {
        let args = args::RoutePairs {
            route: *route,
            tiles: tiles.tiles,
            n_tiles: tiles.count,
            rows,
            padding: 0,
        };
        let (threads, shared) = (PAIR_WARPS * 32, PAIR_WARPS as usize * ROUTE_BYTES);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe {
            self.launch(
                stream,
                KernelId::RoutePairs,
                (1, 1, 1),
                threads,
                shared,
                &args,
            )
        }
    }

    /// Products of pairs with one or two matrices of their experts, f32 `[pairs][rows]`: the activation of gates and ups, or
    /// with `activation` of ups; else the product itself.
    ///
    /// # Safety
    /// As [`Stream::launch`]; [`Kernels::route_pairs`] must have dealt the pairs out.
    #[expect(clippy::too_many_arguments, reason = "a product has that many parts")]
    pub unsafe fn experts_rows(
        &self,
        stream: &Stream,
        n_experts: u32,
        matrices: &[&Matrix],
        activation: Option<args::Activation>,
        tiles: &PairTiles,
        input: PairInput,
        out: u64,
    ) -> Result<()> {
        let Some(cut) = Cut::of(matrices, n_experts) else {
            fail!(Internal, "products of experts of several types");
        };
        let chunk_rows = self.chunk_rows(&cut).min(cut.rows as usize);
        let mut args = args::ExpertsRows {
            matrices: cut.addresses(),
            biases: cut.biases,
            tiles: tiles.tiles,
            n_tiles: tiles.count,
            out,
            slices: cut.slices,
            gated: u32::from(matrices.len() == 2),
            activates: u32::from(activation.is_some()),
            groups: cut.groups,
            rows: cut.rows,
            n_experts,
            chunk_rows: chunk_rows as u32,
            ring_bytes: cut.ring as u32,
            activation: activation.unwrap_or_default(),
            ..Default::default()
        };
        match input {
            PairInput::Rows(inputs, pairs_per_input) => {
                (args.q8, args.q8_scale) = (inputs.q8, inputs.q8_scale);
                args.pairs_per_input = pairs_per_input;
            }
            PairInput::Inner(x) => args.x = x,
        }
        let at_once = PAIRS_AT_ONCE as usize;
        let shared =
            cut.ring + at_once * (cut.groups as usize * INPUT_BYTES + cut.runs() * chunk_rows * 4);
        let grid = self.multiprocessors();
        // SAFETY: by contract, `route_pairs` has dealt the pairs out, and all addresses are valid.
        unsafe { self.expert_product(stream, ExpertProduct::Rows, cut.ty(), grid, shared, &args) }
    }

    /// # Safety
    /// As [`Stream::launch`].
    unsafe fn expert_product<T: Copy>(
        &self,
        stream: &Stream,
        product: ExpertProduct,
        ty: RecordType,
        grid: u32,
        shared: usize,
        args: &T,
    ) -> Result<()> {
        let id = KernelId::Experts { product, ty };
        let threads = (WARPS * 32) as u32;
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, id, (grid, 1, 1), threads, shared, args) }
    }
}
