//! The kernels of a step, in order: for one position of each of a few sessions, or for several of a session that verifies drafts.

mod experts;
mod own_part;
mod products;
mod timeline;

use super::evaluation::Evaluation;
use super::experts::StepExperts;
use super::host_layers::HostRows;
use super::mixer::{
    AttentionPlan, LatentPlan, Mamba1Plan, RecurrentPlan, StepAttention, StepLatent, StepMamba1,
    StepRecurrent,
};
use super::plan::{EntryPlan, FusionPlan, Plan};
use super::rows::{AllRows, Rows};
use super::streams::{StreamLayerPlan, StreamWork};
use super::walk::{Addition, ExpertSum, MlpInput, Operations, walk};
use crate::backend::cuda::driver::arena::{Arena, Placed};
use crate::backend::cuda::driver::{Buffer, Context};
use crate::backend::cuda::launch::adapters::Adapters;
use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::attention::RowsOf;
use crate::backend::cuda::launch::batch_f16;
use crate::backend::cuda::launch::experts::{Beside, ExpertsPlan};
use crate::backend::cuda::launch::feed_forward::MlpPlan;
use crate::backend::cuda::launch::matrix::{Inputs, Matrix};
use crate::backend::cuda::launch::own_input::LayerInputPlan;
use crate::backend::cuda::launch::product::RowInput;
use crate::backend::cuda::launch::sampling::{GROUPS, Stages};
use crate::backend::cuda::launch::span::Span;
use crate::backend::row::Front;
use crate::backend::{HostPart, Work};
use crate::error::{Result, fail};
use std::cell::Cell;
use std::sync::Arc;
pub use timeline::Timeline;

/// What a step has in its memory.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::cuda) struct StepPlaces {
    pub rows: AllRows,
    /// Where the residual stream of a single session is by turns with its own place.
    other_residual: u64,
    /// Of the products.
    pub inputs: Inputs,
    pub attention: StepAttention,
    pub latent: StepLatent,
    pub recurrent: StepRecurrent,
    pub mamba1: StepMamba1,
    /// f32, `[rows][n_vocab]`.
    logits: u64,
    /// f32, `[rows][head.rows]`: those of the tokens that a head knows, if these are not all.
    known: u64,
    /// f32 and u32, `[rows][GROUPS]`: the best of each group of tokens.
    group_value: u64,
    group_id: u64,
    experts: StepExperts,
}

impl StepPlaces {
    fn place(arena: &mut Arena, plan: &Plan, rows: u32, multiprocessors: u32) -> StepPlaces {
        let n = u64::from(rows);
        let (h_stride, wide_stride) = (plan.residual_stride(), plan.widest_row());
        let h = n * u64::from(h_stride);
        let residual = arena.array::<f32>(h);
        let branch = arena.array::<f32>(if plan.has_branch() { h } else { 0 });
        let mut inputs = Inputs::place(arena, n * u64::from(plan.widest_input()));
        if plan.f16_batches {
            batch_f16::place(arena, &mut inputs, rows, plan.widest_input());
        }
        let wide = arena.array::<f32>(n * u64::from(wide_stride));
        let part = arena.array::<f32>(h);
        let other_residual = arena.array::<f32>(u64::from(h_stride));
        let attention = StepAttention::place(arena, plan, rows, multiprocessors);
        let latent = StepLatent::place(arena, plan, rows);
        let recurrent = StepRecurrent::place(arena, plan, rows);
        let mamba1 = StepMamba1::place(arena, plan, rows);
        let logits = arena.array::<f32>(n * u64::from(plan.logits_len()));
        let group_value = arena.array::<f32>(n * u64::from(GROUPS));
        let group_id = arena.array::<u32>(n * u64::from(GROUPS));
        let experts = StepExperts::place(arena, plan, rows);
        let own_inputs = arena.array::<f32>(n * u64::from(plan.inputs_len()));
        let streams_stride = plan.n_streams() * h_stride;
        let streams = arena.array::<f32>(n * u64::from(streams_stride));
        let entry = arena.array::<f32>(n * u64::from(plan.entry_stride()));
        let known = arena.array::<f32>(n * u64::from(plan.known_len()));
        let span = |address, stride| Span { address, stride };
        StepPlaces {
            rows: AllRows {
                residual: span(residual, h_stride),
                branch: span(branch, h_stride),
                wide: span(wide, wide_stride),
                part: span(part, h_stride),
                shared_expert: span(experts.shared, plan.hidden),
                inputs: span(own_inputs, plan.inputs_len()),
                streams: span(streams, streams_stride),
                entry: span(entry, plan.entry_stride()),
            },
            other_residual,
            inputs,
            attention,
            latent,
            recurrent,
            mamba1,
            logits,
            known,
            group_value,
            group_id,
            experts,
        }
    }
}

/// Tickets of steps of `rows` sessions, u32 each, with which the blocks that attend count, for each head of each session.
fn n_tickets(plan: &Plan, rows: u32) -> u32 {
    rows * plan.most(|a| a.n_heads)
}

/// Memory between the kernels of a step.
pub struct StepBuffers {
    memory: Placed<Buffer, StepPlaces>,
    /// Zeros between any two kernels.
    tickets: Buffer,
    /// Where rows cross to the host, if it evaluates parts of layers.
    host: Option<HostRows>,
    /// Sessions that there is room for.
    most: u32,
    n_vocab: u32,
}

/// What a step does besides evaluating.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// A token was appended.
    pub advance: bool,
    /// A token is chosen.
    pub choose: bool,
    /// How.
    pub stages: Stages,
    /// Whose positions its rows are.
    pub rows: RowsOf,
}

impl Ending {
    /// Of a step that chooses nothing.
    pub const EVALUATE: Ending = Ending {
        advance: true,
        choose: false,
        stages: Stages {
            adjust: false,
            penalize: false,
            draw: false,
            logprobs: false,
        },
        rows: RowsOf::Sessions,
    };
}

impl StepBuffers {
    /// Bytes for `rows` sessions at a time.
    pub fn bytes(plan: &Plan, rows: u32, multiprocessors: u32) -> u64 {
        Arena::count(|arena| StepPlaces::place(arena, plan, rows, multiprocessors))
            + u64::from(n_tickets(plan, rows)) * 4
    }

    /// Memory for `rows` sessions at a time.
    pub fn new(
        context: &Arc<Context>,
        (plan, host): (&Plan, Option<&HostPart>),
        rows: u32,
    ) -> Result<StepBuffers> {
        let multiprocessors = context.properties().multiprocessors;
        let what = "memory of a decode step";
        let tickets = vec![0u32; n_tickets(plan, rows) as usize];
        let stride = plan.embedding.groups * 32;
        let host = host.map(|host| HostRows::new(context, &host.0, (rows, stride)));
        Ok(StepBuffers {
            host: host.transpose()?,
            memory: Placed::new(
                |arena| StepPlaces::place(arena, plan, rows, multiprocessors),
                |bytes| Buffer::new(context, bytes, what),
            )?,
            tickets: Buffer::from_slice(context, &tickets, what)?,
            most: rows,
            n_vocab: plan.n_vocab,
        })
    }

    /// Where the logits of input row `row` are, `n_vocab` floats.
    pub fn logits(&self, row: u32) -> u64 {
        self.at().logits + u64::from(row) * u64::from(self.n_vocab) * 4
    }

    /// What has gone wrong on the host in steps that are done.
    pub fn check_host(&self) -> Result<()> {
        self.host.as_ref().map_or(Ok(()), HostRows::check)
    }

    pub(in crate::backend::cuda) fn at(&self) -> &StepPlaces {
        self.memory.at()
    }

    /// The address of zeros that kernels count with, and leave as zeros.
    pub(super) fn tickets(&self) -> u64 {
        self.tickets.address()
    }

    /// Enqueues a whole step of the first `batch` sessions of the table.
    ///
    /// # Safety
    /// *weights*, *sessions* and *workspace* of [`Evaluation`]; the workspace is this memory. It must
    /// be for the plan of `eval`.
    pub unsafe fn enqueue(&self, eval: &Evaluation, batch: u32, ending: Ending) -> Result<()> {
        // SAFETY: by contract, *weights*, *sessions* and *workspace* hold, and this memory is for the plan of `eval`.
        let mut step = unsafe { self.operations(eval, batch, None)? };
        step.rows_of = ending.rows;
        step.run(ending)
    }

    /// Enqueues what makes a head's joined state of the model's: a row of a ring each, `(from, to)`.
    ///
    /// # Safety
    /// As [`StepBuffers::enqueue`]; the rows are valid until the work is done, and no other work uses the second.
    pub(in crate::backend::cuda) unsafe fn fuse(
        &self,
        eval: &Evaluation,
        (entry, fusion): (&EntryPlan, &FusionPlan),
        rows: (Span, Span),
    ) -> Result<()> {
        // SAFETY: by contract, *weights*, *sessions* and *workspace* hold, and this memory is for the plan of `eval`.
        unsafe { self.operations(eval, 1, None)? }.fuse(entry, fusion, rows)
    }

    /// Enqueues a whole step of one session, which chooses so, with marks on `timeline` between its kernels.
    ///
    /// # Safety
    /// As [`StepBuffers::enqueue`].
    pub unsafe fn enqueue_profiled(
        &self,
        eval: &Evaluation,
        stages: Stages,
        timeline: &Timeline,
    ) -> Result<()> {
        // SAFETY: by contract, *weights*, *sessions* and *workspace* hold, and this memory is for the plan of `eval`.
        let step = unsafe { self.operations(eval, 1, Some(timeline))? };
        step.run(Ending {
            advance: true,
            choose: true,
            stages,
            rows: RowsOf::Sessions,
        })
    }

    /// # Safety
    /// As [`StepBuffers::enqueue`].
    unsafe fn operations<'a>(
        &'a self,
        eval: &Evaluation<'a>,
        batch: u32,
        timeline: Option<&'a Timeline>,
    ) -> Result<StepOperations<'a>> {
        if batch > self.most {
            let most = self.most;
            fail!(Internal, "a step of {batch} sessions in memory for {most}");
        }
        Ok(StepOperations {
            buffers: self,
            eval: *eval,
            batch,
            rows_of: RowsOf::Sessions,
            met: Cell::new(0),
            waiting: Cell::new(None),
            is_moved: Cell::new(false),
            timeline,
        })
    }
}

/// The operations of a step, one row per session.
///
/// They promise what [`Evaluation`] asks for: only [`StepBuffers::operations`] makes them, whose callers
/// promise it.
pub(super) struct StepOperations<'a> {
    pub buffers: &'a StepBuffers,
    pub eval: Evaluation<'a>,
    pub batch: u32,
    pub rows_of: RowsOf,
    /// Meetings with other ranks so far.
    pub(super) met: Cell<u32>,
    /// What is still to be added to the residual stream: the next product may do it.
    pub(super) waiting: Cell<Option<Addition>>,
    /// Whether the residual stream is in its other place.
    is_moved: Cell<bool>,
    timeline: Option<&'a Timeline>,
}

impl StepOperations<'_> {
    /// Whether rows may be positions of one cache.
    pub(super) fn share_caches(&self) -> bool {
        self.rows_of.share_caches()
    }

    /// Positions that attention reads, where a timeline asks.
    pub fn positions(&self) -> u64 {
        self.timeline.map_or(0, |t| t.positions)
    }

    /// Where rows are now.
    pub(super) fn rows(&self) -> AllRows {
        let at = self.buffers.at();
        let mut rows = at.rows;
        if self.is_moved.get() {
            rows.residual.address = at.other_residual;
        }
        rows
    }

    /// The residual stream, or the norm of it, as the input of a product with `matrix` that makes its own. What waits is added by that
    /// product, if it can.
    pub(super) fn take_residual(
        &self,
        norm: Option<args::Norm>,
        matrix: &Matrix,
    ) -> Result<RowInput> {
        let (e, hidden) = (&self.eval, self.eval.plan.hidden);
        if e.adapts(matrix) || !e.kernels.makes_sum(matrix, hidden) {
            self.settle()?;
        }
        let before = self.rows();
        let Some(addition) = self.waiting.take() else {
            return Ok(RowInput::Row {
                x: before.residual.address,
                norm,
            });
        };
        // Other blocks still read what it was.
        self.is_moved.set(!self.is_moved.get());
        Ok(RowInput::Sum {
            x: before.of(addition.from).address,
            added: args::RowSum {
                norm: addition.norm.unwrap_or_default(),
                base: before.residual.address,
                sum: self.rows().residual.address,
                scale: addition.scale,
                out_scale: addition.out_scale,
            },
            norm,
        })
    }

    /// Adds what waits to the residual stream.
    pub(super) fn settle(&self) -> Result<()> {
        match self.waiting.take() {
            // SAFETY: *weights*, *workspace*, which `self` promises.
            Some(addition) => unsafe { self.eval.add(&self.rows(), &addition, self.batch) },
            None => Ok(()),
        }
    }

    /// The same, and brings the residual stream to where it is outside of steps.
    fn bring_home(&self) -> Result<()> {
        self.settle()?;
        if !self.is_moved.get() {
            return Ok(());
        }
        let from = self.rows().residual;
        self.is_moved.set(false);
        let copy = args::ResidualAdd {
            x: from.address,
            out: self.rows().residual.address,
            ..self.eval.plan.residual_add(from.stride, None, 1.0)
        };
        let (kernels, stream) = (self.eval.kernels, self.eval.stream);
        // SAFETY: addresses of the *workspace*, which `self` promises.
        unsafe { kernels.residual_add(stream, &copy, self.batch) }
    }

    /// Keeps the residual stream before layer `place`, where sessions do.
    fn keep_place(&self, place: usize) -> Result<()> {
        if self.eval.keeps.has(place) {
            self.settle()?;
        }
        // SAFETY: addresses of the *sessions* and the *workspace*, which `self` promises.
        unsafe { (self.eval).keep_place(place, self.rows().residual, self.batch, false) }
    }

    /// Whether an addition waits for the product that reads its sum. One without a norm is a short kernel, which takes less than
    /// what all blocks of the product would add.
    fn waits(&self, addition: &Addition) -> bool {
        self.batch == 1
            && self.eval.link.is_none()
            && addition.is_of_residual()
            && addition.norm.is_some()
    }

    fn run(&self, ending: Ending) -> Result<()> {
        if ending.advance {
            self.evaluate()?;
        }
        self.end(ending)
    }

    /// From the sessions' tokens to their logits.
    fn evaluate(&self) -> Result<()> {
        let (e, at) = (&self.eval, self.buffers.at());
        let plan = e.plan;
        if let Adapters::One(one) = &e.adapters {
            // SAFETY: of the *sessions*, which `self` promises.
            unsafe { one.clear(e.stream)? };
        }
        // Of another part, the residual stream is there.
        if plan.ends.0 != Front::Stream {
            self.embed()?;
        }
        if let Some(entry) = &plan.entry {
            self.enter(entry)?;
        }
        for (i, layer) in plan.layers.iter().enumerate() {
            self.keep_place(i)?;
            walk(self, i, layer)?;
        }
        self.keep_place(plan.layers.len())?;
        if !plan.ends.1 {
            return self.bring_home();
        }
        self.end_streams()?;
        if e.keeps.has_normed() {
            self.settle()?;
        }
        // SAFETY: addresses of the *weights*, the *sessions* and the *workspace*, which `self` promises.
        unsafe { e.keep(self.rows().residual, self.batch, false)? };
        let logits = Span {
            address: e.link.map_or(at.logits, |link| link.logits(at.logits)),
            stride: plan.n_vocab,
        };
        match plan.place_of() {
            None => self.normed(Some(plan.final_norm), &plan.head, logits)?,
            Some(place_of) => {
                let known = Span {
                    address: at.known,
                    stride: plan.known_len(),
                };
                self.normed(Some(plan.final_norm), &plan.head, known)?;
                // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises.
                unsafe { e.spread_logits(place_of, (known, logits), self.batch)? };
            }
        }
        self.mark(Work::Head, plan.head.bytes())?;
        if let Some(link) = e.link {
            let with = (e.kernels, e.stream);
            // SAFETY: an address of the *workspace*, which `self` promises, as that all ranks do the same.
            unsafe { link.end(with, self.met.get(), at.logits, self.batch)? };
            if !link.chooses() {
                return Ok(());
            }
        }
        if plan.logit_scale == 1.0 && plan.logit_cap.is_none() {
            return Ok(());
        }
        let finish = args::Logits {
            logits: at.logits,
            n_vocab: plan.n_vocab,
            scale: plan.logit_scale,
            cap: plan.logit_cap.unwrap_or(0.0),
            padding: 0,
        };
        // SAFETY: an address of the *workspace*, which `self` promises.
        unsafe { e.kernels.finish_logits(e.stream, &finish, self.batch)? };
        self.mark(Work::Head, 0)
    }

    /// What comes before the first layer.
    fn embed(&self) -> Result<()> {
        let (e, at) = (&self.eval, self.buffers.at());
        let plan = e.plan;
        let embed = args::Embed {
            out: at.rows.residual.address,
            ..e.embed()
        };
        // SAFETY: addresses of the *weights*, the *sessions* and the *workspace*, which `self` promises.
        unsafe { e.kernels.embed(e.stream, &embed, self.batch)? };
        let row_bytes = |m: &Matrix| m.bytes() / u64::from(m.rows);
        let bytes = row_bytes(&plan.embedding) + plan.positions.as_ref().map_or(0, row_bytes);
        self.mark(Work::Embed, bytes)?;
        if plan.embedding_norm.is_some() {
            let norm = Addition::norm_of_residual(plan.embedding_norm);
            // SAFETY: as above.
            unsafe { e.add(&at.rows, &norm, self.batch)? };
        }
        self.layer_inputs()?;
        self.begin_streams()
    }

    /// The inputs of layers, where they have their own.
    fn layer_inputs(&self) -> Result<()> {
        let (e, at) = (&self.eval, self.buffers.at());
        let Some(inputs) = &e.plan.inputs else {
            return Ok(());
        };
        self.normed(None, &inputs.projection, at.rows.inputs)?;
        let make = args::LayerInputs {
            sessions: e.sessions,
            x: at.rows.inputs.address,
            ..e.plan.layer_inputs(inputs)
        };
        let layers = e.plan.layers.len() as u32;
        // SAFETY: addresses of the *weights*, the *sessions* and the *workspace*, which `self` promises.
        unsafe {
            e.kernels
                .layer_inputs(e.stream, &make, layers, self.batch)?
        };
        self.mark(Work::Embed, inputs.projection.bytes())
    }

    fn end(&self, ending: Ending) -> Result<()> {
        let (e, at) = (&self.eval, self.buffers.at());
        let sample = args::Sample {
            sessions: e.sessions,
            logits: at.logits,
            group_value: at.group_value,
            group_id: at.group_id,
            n_vocab: e.plan.n_vocab,
            advance: u32::from(ending.advance),
            choose: u32::from(ending.choose),
            ..Default::default()
        };
        // SAFETY: addresses of the *sessions* and the *workspace*, which `self` promises.
        unsafe {
            e.kernels
                .sample(e.stream, &sample, ending.stages, self.batch)?
        };
        self.mark(Work::Sample, u64::from(e.plan.n_vocab) * 4)
    }
}

impl Operations for StepOperations<'_> {
    type Input = RowInput;

    fn project(&self, norm: Option<args::Norm>, matrix: &Matrix) -> Result<()> {
        self.normed(norm, matrix, self.buffers.at().rows.wide)
    }

    fn project_entry(&self, matrix: &Matrix) -> Result<()> {
        let rows = &self.buffers.at().rows;
        let input = self.row_input(rows.entry, 2 * self.eval.plan.hidden, None, matrix)?;
        self.product_of(matrix, &input, rows.wide, 0)
    }

    fn attend(&self, layer: usize, attention: &AttentionPlan) -> Result<RowInput> {
        self.attention(layer, attention)
    }

    fn attend_latent(&self, layer: usize, latent: &LatentPlan) -> Result<RowInput> {
        self.latent(layer, latent)
    }

    fn recur(&self, recurrent: &RecurrentPlan) -> Result<RowInput> {
        self.recurrence(recurrent)
    }

    fn recur_mamba1(&self, mamba: &Mamba1Plan) -> Result<RowInput> {
        self.mamba1(mamba)
    }

    fn inner(&self, input: MlpInput, mlp: &MlpPlan) -> Result<RowInput> {
        self.mlp(input, mlp)
    }

    fn input_from(&self, rows: Rows, len: u32, matrix: &Matrix) -> Result<RowInput> {
        self.settle()?;
        self.row_input(self.rows().of(rows), len, None, matrix)
    }

    fn streams(&self, layer: &StreamLayerPlan, work: StreamWork) -> Result<()> {
        self.settle()?;
        // SAFETY: *weights*, *workspace*, which `self` promises.
        unsafe { (self.eval).layer_streams(&self.rows(), layer, work, self.batch) }
    }

    fn own_part(&self, layer: usize, own: &LayerInputPlan, addition: &Addition) -> Result<bool> {
        self.whole_own_part(layer, own, addition)
    }

    fn own_input(&self, layer: usize, own: &LayerInputPlan) -> Result<RowInput> {
        if let Some(weighted) = self.fused_weighted(layer, own)? {
            return Ok(weighted);
        }
        self.normed(None, &own.gate, self.rows().wide)?;
        self.weighted_input(layer, own)
    }

    fn product(
        &self,
        matrix: &Matrix,
        input: &RowInput,
        to: Rows,
        residual: Option<Rows>,
    ) -> Result<()> {
        if residual.is_some() {
            self.settle()?;
        }
        let rows = self.rows();
        let residual = residual.map_or(0, |residual| rows.of(residual).address);
        self.product_of(matrix, input, rows.of(to), residual)
    }

    fn is_rank(&self) -> bool {
        self.eval.link.is_some()
    }

    fn output_of_rank(
        &self,
        matrix: &Matrix,
        input: &RowInput,
        addition: &Addition,
    ) -> Result<bool> {
        self.linked_output(matrix, input, addition)
    }

    fn sum_ranks(&self, from: Rows, base: Option<Rows>, to: Rows) -> Result<()> {
        let rows = self.rows();
        // SAFETY: *workspace*, which `self` promises, as that all ranks do the same.
        unsafe {
            self.eval
                .sum_ranks(&rows, (from, base, to), self.batch, &self.met)
        }
    }

    fn add(&self, addition: &Addition) -> Result<()> {
        self.settle()?;
        if self.waits(addition) {
            self.waiting.set(Some(*addition));
            return Ok(());
        }
        // SAFETY: *weights*, *workspace*, which `self` promises.
        unsafe { self.eval.add(&self.rows(), addition, self.batch) }
    }

    fn route(&self, norm: Option<args::Norm>, experts: &ExpertsPlan) -> Result<()> {
        self.settle()?;
        self.choose_experts(norm, experts)
    }

    fn experts_up(&self, norm: Option<args::Norm>, experts: &ExpertsPlan) -> Result<()> {
        self.gates_and_ups(norm, experts)
    }

    fn experts_down(&self, experts: &ExpertsPlan) -> Result<()> {
        self.expert_outputs(experts)
    }

    fn joins(&self, norm: Option<args::Norm>, experts: &ExpertsPlan) -> bool {
        self.one_row(norm, experts).is_some()
    }

    fn beside(&self, norm: Option<args::Norm>, experts: &ExpertsPlan) -> Beside {
        self.shared_beside(norm, experts)
    }

    fn combine(
        &self,
        norm: Option<args::Norm>,
        experts: &ExpertsPlan,
        sum: &ExpertSum,
    ) -> Result<()> {
        self.sum_experts(norm, experts, sum)
    }

    fn on_host(&self, layer: usize) -> Result<()> {
        self.settle()?;
        let residual = self.rows().residual;
        match &self.buffers.host {
            // SAFETY: *workspace*, which `self` promises.
            Some(host) => unsafe {
                let with = (self.eval.kernels, self.eval.stream);
                host.enqueue(with, self.eval.plan, layer, residual, self.batch)
            },
            None => fail!(
                Internal,
                "a layer of the host's without memory for its rows"
            ),
        }
    }

    fn mark(&self, work: Work, bytes: u64) -> Result<()> {
        match self.timeline {
            Some(timeline) => timeline.mark(self.eval.stream, work, bytes),
            None => Ok(()),
        }
    }
}
