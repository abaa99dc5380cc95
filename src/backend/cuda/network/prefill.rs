//! Evaluating many positions of one session at once, or of whole texts (`texts`).
//!
//! Weights of a matrix are brought to plain f16 in a scratch buffer, then multiplied on tensor cores
//! with f16 inputs that carry one power-of-two scale per row; sums are f32. The workspace belongs to
//! the model and serves one prefill at a time.

mod experts;
mod products;

use super::crossing;
use super::evaluation::Evaluation;
use super::experts::ChunkExperts;
use super::hidden::{StateRing, StateRows};
use super::host_layers::{GUEST_ROWS, HOST_CHUNK, HostRows};
use super::mixer::{
    AttentionPlan, ChunkAttention, ChunkLatent, ChunkMamba1, ChunkRecurrent, LatentPlan,
    Mamba1Plan, MixerPlan, RecurrentPlan,
};
use super::plan::{FeedForwardPlan, LayerPlan, Plan};
use super::rows::{AllRows, Rows};
use super::streams::{StreamLayerPlan, StreamWork};
use super::texts::TextPlaces;
use super::walk::{Addition, ExpertSum, MlpInput, Operations, walk};
use crate::backend::cuda::driver::arena::{Arena, Placed};
use crate::backend::cuda::driver::{Buffer, Context};
use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::experts::ExpertsPlan;
use crate::backend::cuda::launch::feed_forward::MlpPlan;
use crate::backend::cuda::launch::matrix::{Matrix, tiled_bytes};
use crate::backend::cuda::launch::own_input::LayerInputPlan;
use crate::backend::cuda::launch::span::Span;
use crate::backend::row::Front;
use crate::backend::{HostPart, Residual, TokenInput};
use crate::error::{Result, fail};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What a chunk has in its memory.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::cuda) struct ChunkPlaces {
    /// u32, `[rows]`.
    pub tokens: u64,
    pub rows: AllRows,
    /// The input of a product: f16, tiled, and f32 `[rows]`.
    pub x: u64,
    pub x_scale: u64,
    /// f32, `[rows]`: of each row of a feed-forward part's inner values.
    largest: u64,
    pub attention: ChunkAttention,
    pub latent: ChunkLatent,
    pub recurrent: ChunkRecurrent,
    pub mamba1: ChunkMamba1,
    /// f16, tiled: the matrix of a product, or that of some experts.
    weights: u64,
    experts: ChunkExperts,
}

impl ChunkPlaces {
    /// For chunks of `rows` tokens.
    pub fn place(arena: &mut Arena, plan: &Plan, rows: u32) -> ChunkPlaces {
        let n = u64::from(rows);
        // Ranks add up such rows, and all of them must do so in the same way: the shares of some may have odd rows.
        let wide_stride = plan.widest_row().next_multiple_of(4);
        let h_stride = plan.residual_stride();
        let h = n * u64::from(h_stride);
        let weights = plan
            .inner_matrices()
            .map(|m| tiled_bytes(m.rows, m.groups))
            .chain(plan.experts().map(ExpertsPlan::unpacked_bytes))
            .max();
        let tokens = arena.array::<u32>(n);
        let residual = arena.array::<f32>(h);
        let branch = arena.array::<f32>(if plan.has_branch() { h } else { 0 });
        let x = arena.take(tiled_bytes(rows, plan.widest_input()));
        let x_scale = arena.array::<f32>(n);
        let largest = arena.array::<f32>(n);
        let wide = arena.array::<f32>(n * u64::from(wide_stride));
        let attention = ChunkAttention::place(arena, plan, rows);
        let latent = ChunkLatent::place(arena, plan, rows);
        let recurrent = ChunkRecurrent::place(arena, plan, rows);
        let mamba1 = ChunkMamba1::place(arena, plan, rows);
        let weights = arena.take(weights.unwrap_or(0));
        let experts = ChunkExperts::place(arena, plan, rows);
        let inputs = arena.array::<f32>(n * u64::from(plan.inputs_len()));
        let streams_stride = plan.n_streams() * h_stride;
        let streams = arena.array::<f32>(n * u64::from(streams_stride));
        let entry = arena.array::<f32>(n * u64::from(plan.entry_stride()));
        let span = |address, stride| Span { address, stride };
        ChunkPlaces {
            tokens,
            rows: AllRows {
                residual: span(residual, h_stride),
                branch: span(branch, h_stride),
                wide: span(wide, wide_stride),
                // Nothing reads it while something else is in the other.
                part: span(wide, wide_stride),
                shared_expert: span(experts.shared, plan.hidden),
                inputs: span(inputs, plan.inputs_len()),
                streams: span(streams, streams_stride),
                entry: span(entry, plan.entry_stride()),
            },
            x,
            x_scale,
            largest,
            attention,
            latent,
            recurrent,
            mamba1,
            weights,
            experts,
        }
    }
}

/// Memory of a prefill.
pub struct PrefillBuffers {
    memory: Placed<Buffer, ChunkPlaces>,
    /// Where rows cross to the host, if it evaluates parts of layers.
    host: Option<HostRows>,
    /// Most rows of a chunk.
    most: usize,
}

/// A chunk whose first layers are enqueued. What it has evaluated so far is in the memory of the
/// [`PrefillBuffers`] that it was begun with, which serve no other chunk meanwhile.
#[derive(Debug)]
pub struct Chunk {
    rows: u32,
    /// The layer that comes next.
    next: usize,
    n_layers: usize,
    /// Meetings with other ranks so far.
    met: u32,
}

impl Chunk {
    /// Layers that are still to be enqueued.
    pub fn layers_left(&self) -> usize {
        self.n_layers - self.next
    }
}

impl PrefillBuffers {
    /// Bytes that a prefill of this network works in.
    pub fn bytes(plan: &Plan) -> u64 {
        Arena::count(|arena| ChunkPlaces::place(arena, plan, plan.chunk() as u32))
    }

    /// Memory for prefills.
    pub fn new(
        context: &Arc<Context>,
        (plan, host): (&Plan, Option<&HostPart>),
    ) -> Result<PrefillBuffers> {
        let memory = Placed::new(
            |arena| ChunkPlaces::place(arena, plan, plan.chunk() as u32),
            |bytes| Buffer::new(context, bytes, "memory of the prefill"),
        )?;
        let rows = (HOST_CHUNK as u32, plan.embedding.groups * 32);
        let host = host.map(|host| HostRows::new(context, &host.0, rows));
        Ok(PrefillBuffers {
            memory,
            host: host.transpose()?,
            most: plan.chunk(),
        })
    }

    /// Enqueues and awaits chunks by `work`, which `interrupt` ends while the host evaluates a part of a layer, as an error there does.
    pub fn until(&self, interrupt: &AtomicBool, work: impl FnOnce() -> Result<()>) -> Result<()> {
        match &self.host {
            Some(host) => {
                let done = host.until(interrupt, work);
                host.check().and(done)
            }
            None => work(),
        }
    }

    /// Enqueues the evaluation of `tokens`, at most as many as there is room for and at least one, from the position of
    /// the first session of the table on. The position on the device stays as it is. `pause` is called
    /// between pieces of the work, and its error ends the evaluation. Where the residual stream goes elsewhere, the work is
    /// awaited.
    ///
    /// # Safety
    /// *weights*, *sessions* and *workspace* of [`Evaluation`]; the workspace is this memory. It must
    /// be for the plan of `eval`. The caller waits for the stream before the residual stream goes, also after an error.
    pub unsafe fn enqueue(
        &self,
        eval: &Evaluation,
        tokens: &[u32],
        residual: Residual<'_>,
        pause: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        // SAFETY: by contract, *weights*, *sessions* and *workspace* hold, and this memory is for the plan of `eval`.
        let mut chunk = unsafe { self.begin(eval, tokens, residual.input)? };
        while chunk.layers_left() > 0 {
            // SAFETY: as above.
            unsafe { self.layer(eval, &mut chunk, pause)? };
        }
        let residual_rows = self.memory.at().rows.residual;
        // SAFETY: by contract, *weights*, *sessions* and *workspace* hold.
        unsafe {
            eval.keep_place(chunk.n_layers, residual_rows, chunk.rows, true)?;
            eval.keep(residual_rows, chunk.rows, true)?;
        }
        if let Some(link) = eval.link {
            // SAFETY: by contract, all ranks do the same.
            unsafe { link.end((eval.kernels, eval.stream), chunk.met, 0, 0)? };
        }
        if let Some(output) = residual.output {
            let (from, width) = (self.memory.at().rows.residual, eval.plan.hidden as usize);
            // SAFETY: by contract, the *workspace* is valid, and the layers' work has written it.
            unsafe { crossing::leave(eval.stream, from, width, output)? };
        }
        Ok(())
    }

    /// Enqueues what comes before the first layer of a chunk. Its layers may be enqueued whenever it
    /// suits, each by [`PrefillBuffers::layer`], with work of other sessions in between.
    ///
    /// # Safety
    /// As [`PrefillBuffers::enqueue`], until the work of the last layer is done.
    pub unsafe fn begin(
        &self,
        eval: &Evaluation,
        tokens: &[u32],
        input: TokenInput<'_>,
    ) -> Result<Chunk> {
        let count = tokens.len();
        if count == 0 || count > self.most {
            fail!(Internal, "a chunk of {count} tokens");
        }
        let rows = count as u32;
        let at = self.memory.at();
        eval.begin()?;
        let states = match (eval.plan.ends.0, input) {
            (Front::Embeddings, TokenInput::Embeddings)
            | (Front::Stream, TokenInput::Stream(_)) => None,
            (Front::States, TokenInput::States(from)) => {
                let ring = StateRing::of(from.states, eval.stream.context())?;
                if ring.width() != eval.plan.states_width() {
                    fail!(Internal, "hidden states of {} floats", ring.width());
                }
                Some(StateRows {
                    place: ring.place(),
                    first: from.position,
                })
            }
            _ => fail!(
                Internal,
                "a chunk of a network that begins with something else"
            ),
        };
        let embed = || args::Embed {
            tokens: at.tokens,
            out: at.rows.residual.address,
            ..eval.embed()
        };
        // SAFETY: `tokens` is read before the call returns, as it is not pinned, and there is room for a
        // chunk; the residual stream stays as it is until the stream is idle, for which the caller waits; the addresses are of the *weights*, the *sessions* and the *workspace*, by the caller's
        // promise.
        unsafe {
            let from = tokens.as_ptr().cast();
            eval.stream.copy_in(at.tokens, from, size_of_val(tokens))?;
            match input {
                TokenInput::Stream(input) => {
                    let width = eval.plan.hidden as usize;
                    crossing::enter(eval.stream, input, width, at.rows.residual)?;
                }
                _ => {
                    eval.kernels.embed(eval.stream, &embed(), rows)?;
                    if let Some(norm) = eval.plan.embedding_norm {
                        eval.add(&at.rows, &Addition::norm_of_residual(Some(norm)), rows)?;
                    }
                }
            }
        }
        let mut go_on = || Ok(());
        let ops = ChunkOperations {
            places: at,
            eval: *eval,
            rows,
            texts: None,
            host: self.host.as_ref(),
            meetings: Meetings::default(),
            pause: RefCell::new(&mut go_on),
        };
        if let (Some(entry), Some(states)) = (&eval.plan.entry, states) {
            ops.enter(entry, states)?;
        }
        ops.layer_inputs()?;
        ops.begin_streams()?;
        Ok(Chunk {
            rows,
            next: 0,
            met: 0,
            n_layers: eval.plan.layers.len(),
        })
    }

    /// Enqueues the next layer of a chunk.
    ///
    /// # Safety
    /// As [`PrefillBuffers::enqueue`]. The chunk must have been begun with this memory and the network
    /// and session of `eval`, and no other since; on another stream, what was enqueued of it must be done.
    pub unsafe fn layer(
        &self,
        eval: &Evaluation,
        chunk: &mut Chunk,
        pause: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let Some(layer) = eval.plan.layers.get(chunk.next) else {
            fail!(Internal, "a chunk has no layer {}", chunk.next);
        };
        let ops = ChunkOperations {
            places: self.memory.at(),
            eval: *eval,
            rows: chunk.rows,
            texts: None,
            host: self.host.as_ref(),
            meetings: Meetings {
                met: Cell::new(chunk.met),
                layer: Some(layer),
                before_layer: chunk.met,
                ..Meetings::default()
            },
            pause: RefCell::new(pause),
        };
        let residual = ops.at().rows.residual;
        // SAFETY: by contract, *sessions* and *workspace* hold.
        unsafe { eval.keep_place(chunk.next, residual, chunk.rows, true)? };
        walk(&ops, chunk.next, layer)?;
        chunk.next += 1;
        chunk.met = ops.meetings.met.get();
        Ok(())
    }
}

/// How far a chunk is with what all ranks do together.
#[derive(Default)]
pub(in crate::backend::cuda) struct Meetings<'a> {
    /// Meetings so far.
    met: Cell<u32>,
    /// The layer that is evaluated, and meetings before it.
    layer: Option<&'a LayerPlan>,
    before_layer: u32,
    /// The next product's matrix was unpacked ahead.
    is_unpacked: Cell<bool>,
}

/// The operations of a chunk, one row per token.
///
/// They promise what [`Evaluation`] asks for: only [`PrefillBuffers`] and `CudaEmbedder` make them, whose callers
/// promise it.
pub(in crate::backend::cuda) struct ChunkOperations<'a> {
    /// The *workspace*.
    pub places: &'a ChunkPlaces,
    pub eval: Evaluation<'a>,
    pub rows: u32,
    /// Where texts are, if the rows are not of a session.
    pub texts: Option<&'a TextPlaces>,
    /// With other ranks.
    pub meetings: Meetings<'a>,
    /// Where rows cross to the host.
    pub host: Option<&'a HostRows>,
    /// Called between pieces of the work.
    pub pause: RefCell<&'a mut dyn FnMut() -> Result<()>>,
}

impl ChunkOperations<'_> {
    /// Lets other sessions have their turn.
    fn pause(&self) -> Result<()> {
        (self.pause.borrow_mut())()
    }

    pub fn at(&self) -> &ChunkPlaces {
        self.places
    }

    /// The feed-forward part whose first product comes behind the sum over ranks that was enqueued, if that is the next product.
    fn follows_sum(&self) -> Option<&MlpPlan> {
        let meetings = &self.meetings;
        let layer = meetings.layer?;
        let is_first = meetings.met.get() == meetings.before_layer + 1;
        let has_one_output = match layer.mixer {
            MixerPlan::Attention(_)
            | MixerPlan::Latent(_)
            | MixerPlan::Recurrent(_)
            | MixerPlan::Mamba1(_) => true,
            MixerPlan::SideBySide(_) | MixerPlan::Absent => false,
        };
        let beside = self.eval.link.is_some_and(|link| link.is_peer());
        match &layer.feed_forward {
            FeedForwardPlan::Dense(mlp) if is_first && has_one_output && beside => Some(mlp),
            _ => None,
        }
    }

    /// The inputs of layers for tokens whose embeddings are the residual stream, where layers have their own.
    pub fn layer_inputs(&self) -> Result<()> {
        let (e, at) = (&self.eval, self.at());
        let Some(inputs) = &e.plan.inputs else {
            return Ok(());
        };
        self.input(None, inputs.projection.groups, 0)?;
        self.matmul(&inputs.projection, at.rows.inputs, 0)?;
        let make = args::LayerInputs {
            sessions: e.sessions,
            tokens: at.tokens,
            x: at.rows.inputs.address,
            ..e.plan.layer_inputs(inputs)
        };
        let layers = e.plan.layers.len() as u32;
        // SAFETY: addresses of the *weights*, the *sessions* and the *workspace*, which `self` promises.
        unsafe { e.kernels.layer_inputs(e.stream, &make, layers, self.rows) }
    }
}

/// That the input of a part's last product has been written to where all are.
pub(in crate::backend::cuda) struct Written;

impl Operations for ChunkOperations<'_> {
    type Input = Written;

    fn project(&self, norm: Option<args::Norm>, matrix: &Matrix) -> Result<()> {
        self.input(norm, matrix.groups, 0)?;
        self.product(matrix, &Written, Rows::Wide, None)
    }

    fn project_entry(&self, matrix: &Matrix) -> Result<()> {
        let rows = &self.at().rows;
        self.input_of(rows.entry, 2 * self.eval.plan.hidden, matrix)?;
        self.matmul(matrix, rows.wide, 0)
    }

    fn attend(&self, layer: usize, attention: &AttentionPlan) -> Result<Written> {
        match self.texts {
            None => self.attention(layer, attention)?,
            Some(texts) => self.attention_in_texts(texts, attention)?,
        }
        Ok(Written)
    }

    fn attend_latent(&self, layer: usize, latent: &LatentPlan) -> Result<Written> {
        self.latent(layer, latent)?;
        Ok(Written)
    }

    fn recur(&self, recurrent: &RecurrentPlan) -> Result<Written> {
        self.recurrence(recurrent)?;
        Ok(Written)
    }

    fn recur_mamba1(&self, mamba: &Mamba1Plan) -> Result<Written> {
        self.mamba1(mamba)?;
        Ok(Written)
    }

    fn inner(&self, input: MlpInput, mlp: &MlpPlan) -> Result<Written> {
        match input {
            MlpInput::Residual(norm) => self.input(norm, mlp.up.groups, 0)?,
            // It is where all are.
            MlpInput::OfExperts(_) | MlpInput::Beside(_) => {}
        }
        self.mlp(mlp)?;
        Ok(Written)
    }

    fn input_from(&self, rows: Rows, len: u32, matrix: &Matrix) -> Result<Written> {
        self.input_of(self.at().rows.of(rows), len, matrix)?;
        Ok(Written)
    }

    fn streams(&self, layer: &StreamLayerPlan, work: StreamWork) -> Result<()> {
        // SAFETY: *weights*, *workspace*, which `self` promises.
        unsafe {
            self.eval
                .layer_streams(&self.at().rows, layer, work, self.rows)
        }
    }

    fn own_input(&self, layer: usize, own: &LayerInputPlan) -> Result<Written> {
        let rows = &self.at().rows;
        self.input(None, own.gate.groups, 0)?;
        self.matmul(&own.gate, rows.wide, 0)?;
        self.quantize_input(own.weighted(layer, rows))?;
        Ok(Written)
    }

    fn product(
        &self,
        matrix: &Matrix,
        _input: &Written,
        to: Rows,
        residual: Option<Rows>,
    ) -> Result<()> {
        let rows = &self.at().rows;
        let residual = residual.map_or(0, |residual| rows.of(residual).address);
        self.matmul(matrix, rows.of(to), residual)
    }

    fn is_rank(&self) -> bool {
        self.eval.link.is_some()
    }

    fn sum_ranks(&self, from: Rows, base: Option<Rows>, to: Rows) -> Result<()> {
        let rows = &self.at().rows;
        // SAFETY: *workspace*, which `self` promises, as that all ranks do the same.
        unsafe {
            self.eval
                .sum_ranks(rows, (from, base, to), self.rows, &self.meetings.met)?;
        }
        match self.follows_sum() {
            Some(mlp) => self.unpack_ahead(mlp),
            None => Ok(()),
        }
    }

    fn add(&self, addition: &Addition) -> Result<()> {
        // SAFETY: *weights*, *workspace*, which `self` promises.
        unsafe { self.eval.add(&self.at().rows, addition, self.rows) }
    }

    fn route(&self, norm: Option<args::Norm>, experts: &ExpertsPlan) -> Result<()> {
        self.choose_experts(norm, experts)
    }

    fn experts_up(&self, _: Option<args::Norm>, experts: &ExpertsPlan) -> Result<()> {
        self.gates_and_ups(experts)
    }

    fn experts_down(&self, experts: &ExpertsPlan) -> Result<()> {
        self.expert_outputs(experts)
    }

    fn on_host(&self, layer: usize) -> Result<()> {
        let plan = self.eval.plan.guests.get(layer);
        if let (Some(guests), Some(plan)) = (self.eval.guests, plan)
            && self.rows >= GUEST_ROWS
        {
            self.pause()?;
            // SAFETY: *weights*, which `self` promises; one chunk at a time has the *workspace*, and with it the guests' place.
            unsafe { guests.bring((self.eval.kernels, self.eval.stream), layer)? };
            return walk(self, layer, plan);
        }
        match self.host {
            // SAFETY: *workspace*, which `self` promises.
            Some(host) => unsafe {
                let (with, residual) = (
                    (self.eval.kernels, self.eval.stream),
                    self.at().rows.residual,
                );
                host.enqueue(with, self.eval.plan, layer, residual, self.rows)
            },
            None => fail!(
                Internal,
                "a layer of the host's without memory for its rows"
            ),
        }
    }

    fn combine(&self, _: Option<args::Norm>, experts: &ExpertsPlan, sum: &ExpertSum) -> Result<()> {
        self.sum_experts(experts, sum)
    }
}
