//! The kernels of a step, in order: for one position of each of a few sessions.

mod experts;
mod products;
mod timeline;

use super::args;
use super::attention::{MAX_PARTS, part_stride};
use super::driver::{Buffer, Context, Stream};
use super::experts::ExpertPlaces;
use super::kernels::Kernels;
use super::state::KvPlan;
use super::matrix::{Inputs, Matrix};
use super::plan::{FeedForwardPlan, LayerPlan, Plan};
use super::product::RowInput;
use super::sampling::{GROUPS, Stages};
use crate::backend::Work;
use crate::error::Result;
use std::sync::Arc;
pub use timeline::Timeline;

/// Offsets within one allocation, handed out one after the other.
#[derive(Default)]
pub struct Arena {
    bytes: u64,
}

impl Arena {
    /// An offset for `n` bytes.
    pub fn take(&mut self, n: u64) -> u64 {
        let at = self.bytes.next_multiple_of(256);
        self.bytes = at + n;
        at
    }

    /// Bytes handed out.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Where things are in the memory of a step: offsets, then addresses.
#[derive(Clone, Copy, Debug, Default)]
struct Places {
    h: u64,
    branch: u64,
    q8: u64,
    q8_scale: u64,
    f32: u64,
    wide: u64,
    q: u64,
    parts: u64,
    logits: u64,
    group_value: u64,
    group_id: u64,
    experts: ExpertPlaces,
}

impl Places {
    fn all(&mut self) -> [&mut u64; 11] {
        [
            &mut self.h,
            &mut self.branch,
            &mut self.q8,
            &mut self.q8_scale,
            &mut self.f32,
            &mut self.wide,
            &mut self.q,
            &mut self.parts,
            &mut self.logits,
            &mut self.group_value,
            &mut self.group_id,
        ]
    }
}

/// Memory between the kernels of a step.
pub struct StepBuffers {
    _memory: Buffer,
    at: Places,
    h_stride: u32,
    wide_stride: u32,
    n_chunks: u32,
    n_vocab: u32,
    /// Zeros between any two kernels.
    tickets: Buffer,
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
}

/// Parts that a context is cut into at most: enough for two blocks a multiprocessor.
fn chunks(plan: &Plan, multiprocessors: u32) -> u32 {
    let heads = plan.layers.iter().map(|l| l.attention.n_kv_heads).min();
    (2 * multiprocessors)
        .div_ceil(heads.unwrap_or(1))
        .clamp(1, MAX_PARTS)
}

fn places(plan: &Plan, rows: u32, multiprocessors: u32) -> (Places, u64) {
    let mut arena = Arena::default();
    let rows = u64::from(rows);
    let input = u64::from(plan.widest_input());
    let h = rows * u64::from(plan.embedding.groups) * 128;
    let queries = u64::from(plan.most(|a| a.n_heads * a.head_dim));
    let parts = u64::from(plan.most(|a| a.n_heads * part_stride(a.head_dim)));
    let n_chunks = u64::from(chunks(plan, multiprocessors));
    let groups = rows * u64::from(GROUPS) * 4;
    let places = Places {
        h: arena.take(h),
        branch: arena.take(if plan.is_parallel() { h } else { 0 }),
        q8: arena.take(rows * input * 32),
        q8_scale: arena.take(rows * input * 4),
        f32: arena.take(rows * input * 128),
        wide: arena.take(rows * u64::from(plan.widest_row()) * 4),
        q: arena.take(rows * queries * 4),
        parts: arena.take(rows * parts * n_chunks * 4),
        logits: arena.take(rows * u64::from(plan.n_vocab) * 4),
        group_value: arena.take(groups),
        group_id: arena.take(groups),
        experts: ExpertPlaces::step(&mut arena, plan, rows as u32),
    };
    (places, arena.bytes())
}

impl StepBuffers {
    /// Bytes for `rows` sessions at a time.
    pub fn bytes(plan: &Plan, rows: u32, multiprocessors: u32) -> u64 {
        places(plan, rows, multiprocessors).1 + u64::from(rows * plan.most(|a| a.n_heads)) * 4
    }

    /// Memory for `rows` sessions at a time.
    pub fn new(context: &Arc<Context>, plan: &Plan, rows: u32) -> Result<StepBuffers> {
        let multiprocessors = context.properties().multiprocessors;
        let (mut at, bytes) = places(plan, rows, multiprocessors);
        let memory = Buffer::new(context, bytes as usize, "memory of a decode step")?;
        let heads = plan.most(|a| a.n_heads) as usize;
        at.all()
            .into_iter()
            .for_each(|place| *place += memory.address());
        at.experts.place(memory.address());
        Ok(StepBuffers {
            at,
            h_stride: plan.embedding.groups * 32,
            wide_stride: plan.widest_row(),
            n_chunks: chunks(plan, multiprocessors),
            n_vocab: plan.n_vocab,
            tickets: Buffer::from_slice(
                context,
                &vec![0u32; rows as usize * heads],
                "memory of a decode step",
            )?,
            _memory: memory,
        })
    }

    /// Where the logits of input row `row` are, `n_vocab` floats.
    pub fn logits(&self, row: u32) -> u64 {
        self.at.logits + u64::from(row) * u64::from(self.n_vocab) * 4
    }

    /// Where a producer writes int8, its scales and f32, of those that are wanted.
    fn forms(&self, q8: bool, f32: bool) -> (u64, u64, u64) {
        let or_none = |address, wanted| if wanted { address } else { 0 };
        (
            or_none(self.at.q8, q8),
            or_none(self.at.q8_scale, q8),
            or_none(self.at.f32, f32),
        )
    }

    fn inputs(&self) -> Inputs {
        Inputs {
            q8: self.at.q8,
            q8_scale: self.at.q8_scale,
            f32: self.at.f32,
        }
    }

    /// What attention of a layer reads and writes.
    pub(super) fn attend(
        &self,
        plan: &Plan,
        kv: &KvPlan,
        layer: usize,
        sessions: u64,
    ) -> args::Attend {
        let attention = &plan.layers[layer].attention;
        let (q8, f32) = attention.output.needs();
        let (q8, q8_scale, f32) = self.forms(q8, f32);
        let [q_norm, k_norm] = attention.head_norms;
        args::Attend {
            sessions,
            q: self.at.q,
            parts: self.at.parts,
            q8,
            q8_scale,
            f32,
            qkv: self.at.wide,
            tickets: self.tickets.address(),
            rotation: attention.rotation,
            q_norm,
            k_norm,
            layout: kv.layers[layer],
            scores: attention.scores,
            qkv_stride: self.wide_stride,
            n_heads: attention.n_heads,
            n_chunks: self.n_chunks,
            ..Default::default()
        }
    }

    /// Enqueues a whole step of `batch` sessions, whose addresses are at `sessions`.
    ///
    /// # Safety
    /// The sessions, their caches up to their positions, the plan's memory and this memory must be
    /// valid until the work is done, and nothing else may use this memory meanwhile.
    #[expect(clippy::too_many_arguments, reason = "they outlive the call apart")]
    pub unsafe fn enqueue(
        &self,
        kernels: &Kernels,
        plan: &Plan,
        kv: &KvPlan,
        stream: &Stream,
        sessions: u64,
        batch: u32,
        ending: Ending,
    ) -> Result<()> {
        let step = Enqueue {
            buffers: self,
            kernels,
            plan,
            kv,
            stream,
            sessions,
            batch,
            timeline: None,
        };
        // SAFETY: the caller's word.
        unsafe {
            if ending.advance {
                step.evaluate()?;
            }
            step.end(ending)
        }
    }

    /// Enqueues a whole step of one session, which chooses so, with marks on `timeline` between its kernels.
    ///
    /// # Safety
    /// As [`StepBuffers::enqueue`].
    #[expect(clippy::too_many_arguments, reason = "they outlive the call apart")]
    pub unsafe fn enqueue_profiled(
        &self,
        kernels: &Kernels,
        plan: &Plan,
        kv: &KvPlan,
        stream: &Stream,
        sessions: u64,
        stages: Stages,
        timeline: &Timeline,
    ) -> Result<()> {
        let step = Enqueue {
            buffers: self,
            kernels,
            plan,
            kv,
            stream,
            sessions,
            batch: 1,
            timeline: Some(timeline),
        };
        // SAFETY: the caller's word.
        unsafe {
            step.evaluate()?;
            step.end(Ending {
                advance: true,
                choose: true,
                stages,
            })
        }
    }
}

/// What all kernels of a step have in common.
struct Enqueue<'a> {
    buffers: &'a StepBuffers,
    kernels: &'a Kernels,
    plan: &'a Plan,
    kv: &'a KvPlan,
    stream: &'a Stream,
    sessions: u64,
    batch: u32,
    timeline: Option<&'a Timeline>,
}

impl Enqueue<'_> {
    /// Notes the end of a kernel that does `work` and reads `bytes`, where that is wanted.
    fn mark(&self, work: Work, bytes: u64) -> Result<()> {
        match self.timeline {
            Some(timeline) => timeline.mark(self.stream, work, bytes),
            None => Ok(()),
        }
    }

    /// Bytes that attention of a layer reads of the KV cache.
    fn kv_bytes(&self, layer: usize) -> u64 {
        let layout = &self.kv.layers[layer];
        let seen = self.timeline.map_or(0, |t| t.positions);
        let row = 2 * u64::from(layout.n_kv_heads) * u64::from(layout.row_bytes);
        seen.min(u64::from(layout.window)) * row
    }

    /// # Safety
    /// As [`StepBuffers::enqueue`].
    unsafe fn evaluate(&self) -> Result<()> {
        let (at, plan) = (self.buffers.at, self.plan);
        let embed = args::Embed {
            sessions: self.sessions,
            out: at.h,
            ..plan.embed()
        };
        let row_bytes = |m: &Matrix| m.bytes() / u64::from(m.rows);
        let bytes = row_bytes(&plan.embedding) + plan.positions.as_ref().map_or(0, row_bytes);
        // SAFETY: the caller's word, here and below.
        unsafe { self.kernels.embed(self.stream, &embed, self.batch)? };
        self.mark(Work::Embed, bytes)?;
        // SAFETY: as above.
        unsafe {
            self.layers()?;
            if plan.logit_scale != 1.0 || plan.logit_cap.is_some() {
                let finish = args::Logits {
                    logits: at.logits,
                    n_vocab: plan.n_vocab,
                    scale: plan.logit_scale,
                    cap: plan.logit_cap.unwrap_or(0.0),
                    padding: 0,
                };
                self.kernels
                    .finish_logits(self.stream, &finish, self.batch)?;
                self.mark(Work::Head, 0)?;
            }
        }
        Ok(())
    }

    /// Layers and head.
    ///
    /// # Safety
    /// As [`StepBuffers::enqueue`].
    unsafe fn layers(&self) -> Result<()> {
        let plan = self.plan;
        // SAFETY: the caller's word.
        unsafe {
            for (i, layer) in plan.layers.iter().enumerate() {
                self.layer(i, layer)?;
            }
            let norm = Some(plan.final_norm);
            let logits = self.buffers.at.logits;
            self.normed(norm, &plan.head, logits, plan.n_vocab)?;
        }
        self.mark(Work::Head, plan.head.bytes())
    }

    /// # Safety
    /// As [`StepBuffers::enqueue`].
    unsafe fn layer(&self, index: usize, layer: &LayerPlan) -> Result<()> {
        let (b, at) = (self.buffers, self.buffers.at);
        // The residual stream is in `h`; in a parallel block, what attention adds to it is kept
        // apart until the feed-forward part has read it, too.
        let between = if layer.parallel { at.branch } else { at.h };
        let scale = layer.residual_scale;
        let attention = &layer.attention;
        // SAFETY: the caller's word.
        unsafe {
            let norm = layer.mixer_norm;
            self.normed(norm, &attention.qkv, at.wide, b.wide_stride)?;
            self.mark(Work::Qkv, attention.qkv.bytes())?;
            self.attention(index)?;
            self.mark(Work::Attention, self.kv_bytes(index))?;
            let post_norm = layer.mixer_post_norm;
            let rounded = RowInput::Rounded(b.inputs());
            let output = &attention.output;
            self.branch(output, &rounded, post_norm, scale, at.h, between)?;
            self.mark(Work::Output, attention.output.bytes())?;
            match &layer.feed_forward {
                FeedForwardPlan::Dense(mlp) => {
                    let input = self.mlp(layer.feed_forward_norm, mlp)?;
                    let post_norm = layer.feed_forward_post_norm;
                    self.branch(&mlp.down, &input, post_norm, scale, between, at.h)?;
                    self.mark(Work::Down, mlp.down.bytes())
                }
                FeedForwardPlan::Experts(experts) => self.experts(layer, experts, between),
            }
        }
    }

    /// # Safety
    /// As [`StepBuffers::enqueue`].
    unsafe fn end(&self, ending: Ending) -> Result<()> {
        let at = self.buffers.at;
        let sample = args::Sample {
            sessions: self.sessions,
            logits: at.logits,
            group_value: at.group_value,
            group_id: at.group_id,
            n_vocab: self.plan.n_vocab,
            advance: u32::from(ending.advance),
            choose: u32::from(ending.choose),
            ..Default::default()
        };
        // SAFETY: the caller's word.
        unsafe {
            self.kernels
                .sample(self.stream, &sample, ending.stages, self.batch)?
        };
        self.mark(Work::Sample, u64::from(self.plan.n_vocab) * 4)
    }

    /// # Safety
    /// As [`StepBuffers::enqueue`].
    unsafe fn attention(&self, layer: usize) -> Result<()> {
        let (b, at) = (self.buffers, self.buffers.at);
        let attention = &self.plan.layers[layer].attention;
        if let Some(norms) = attention.row_norms(at.wide, b.wide_stride) {
            // SAFETY: the caller's word.
            unsafe { self.kernels.norm_parts(self.stream, &norms, self.batch)? };
        }
        let attend = b.attend(self.plan, self.kv, layer, self.sessions);
        // SAFETY: the caller's word.
        unsafe { self.kernels.attend(self.stream, &attend, self.batch) }
    }
}
