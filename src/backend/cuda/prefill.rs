//! Evaluating many positions of one session at once.
//!
//! Weights of a matrix are brought to plain f16 in a scratch buffer, then multiplied on tensor cores
//! with f16 inputs that carry one power-of-two scale per row; sums are f32. The workspace belongs to
//! the model and serves one prefill at a time.

mod experts;

use super::args;
use super::driver::{Buffer, Context, Stream};
use super::experts::{ExpertPlaces, ExpertsPlan};
use super::kernels::Kernels;
use super::state::{KvPlan, RING_CHUNK};
use super::matrix::{Matrix, tiled_bytes};
use super::plan::{AttentionPlan, FeedForwardPlan, LayerPlan, MlpPlan, Plan};
use super::step::Arena;
use crate::error::Result;
use std::sync::Arc;

/// Most positions evaluated at a time.
pub const CHUNK: usize = 2048;

/// Memory of a prefill.
pub struct PrefillBuffers {
    _memory: Buffer,
    at: Places,
    h_stride: u32,
    wide_stride: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Places {
    tokens: u64,
    h: u64,
    branch: u64,
    x: u64,
    x_scale: u64,
    /// Of each row of a feed-forward part's inner values.
    largest: u64,
    wide: u64,
    q: u64,
    attended: u64,
    weights: u64,
    experts: ExpertPlaces,
}

fn places(plan: &Plan) -> (Places, u64) {
    let mut arena = Arena::default();
    let rows = CHUNK as u64;
    let heads = u64::from(plan.most(|a| a.n_heads * a.head_dim));
    let h = rows * u64::from(plan.embedding.groups) * 128;
    let weights = plan
        .layer_matrices()
        .map(|m| tiled_bytes(m.rows, m.groups))
        .chain(plan.experts().map(ExpertsPlan::unpacked_bytes))
        .max();
    let places = Places {
        tokens: arena.take(rows * 4),
        h: arena.take(h),
        branch: arena.take(if plan.is_parallel() { h } else { 0 }),
        x: arena.take(tiled_bytes(CHUNK as u32, plan.widest_input())),
        x_scale: arena.take(rows * 4),
        largest: arena.take(rows * 4),
        wide: arena.take(rows * u64::from(plan.widest_row()) * 4),
        q: arena.take(rows * heads * 2),
        attended: arena.take(rows * heads * 4),
        weights: arena.take(weights.unwrap_or(0)),
        experts: ExpertPlaces::chunk(&mut arena, plan, CHUNK as u32),
    };
    (places, arena.bytes())
}

impl PrefillBuffers {
    /// Bytes that a prefill of this network works in.
    pub fn bytes(plan: &Plan) -> u64 {
        places(plan).1
    }

    /// Memory for prefills.
    pub fn new(context: &Arc<Context>, plan: &Plan) -> Result<PrefillBuffers> {
        let (mut at, bytes) = places(plan);
        let memory = Buffer::new(context, bytes as usize, "memory of the prefill")?;
        let base = memory.address();
        for place in [
            &mut at.tokens,
            &mut at.h,
            &mut at.branch,
            &mut at.x,
            &mut at.x_scale,
            &mut at.largest,
            &mut at.wide,
            &mut at.q,
            &mut at.attended,
            &mut at.weights,
        ] {
            *place += base;
        }
        at.experts.place(base);
        Ok(PrefillBuffers {
            _memory: memory,
            at,
            h_stride: plan.embedding.groups * 32,
            wide_stride: plan.widest_row(),
        })
    }

    /// Enqueues the evaluation of `tokens` (at most [`CHUNK`]) from the session's position on. The
    /// position on the device stays as it is. `pause` is called between pieces, and its error ends
    /// the evaluation.
    ///
    /// # Safety
    /// The session (whose address is at `sessions`), its cache up to the new positions, the plan's
    /// memory and this memory must be valid until the work is done, and nothing else may use this
    /// memory meanwhile.
    #[expect(
        clippy::too_many_arguments,
        reason = "the same things that a step takes"
    )]
    pub unsafe fn enqueue(
        &self,
        kernels: &Kernels,
        plan: &Plan,
        kv: &KvPlan,
        stream: &Stream,
        sessions: u64,
        tokens: &[u32],
        pause: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let work = Enqueue {
            buffers: self,
            kernels,
            plan,
            kv,
            stream,
            sessions,
            rows: tokens.len() as u32,
        };
        let at = self.at;
        let embed = args::Embed {
            sessions,
            tokens: at.tokens,
            out: at.h,
            ..plan.embed()
        };
        // SAFETY: the tokens are read before the call returns; the rest is the caller's word.
        unsafe {
            stream.copy_in(at.tokens, tokens.as_ptr().cast(), size_of_val(tokens))?;
            kernels.embed(stream, &embed, work.rows)?;
        }
        for (i, layer) in plan.layers.iter().enumerate() {
            pause()?;
            // SAFETY: the caller's word.
            unsafe { work.layer(i, layer)? };
        }
        Ok(())
    }
}

struct Enqueue<'a> {
    buffers: &'a PrefillBuffers,
    kernels: &'a Kernels,
    plan: &'a Plan,
    kv: &'a KvPlan,
    stream: &'a Stream,
    sessions: u64,
    rows: u32,
}

impl Enqueue<'_> {
    /// # Safety
    /// As [`PrefillBuffers::enqueue`].
    unsafe fn layer(&self, index: usize, layer: &LayerPlan) -> Result<()> {
        let (b, at) = (self.buffers, self.buffers.at);
        // As in a step.
        let between = if layer.parallel { at.branch } else { at.h };
        let scale = layer.residual_scale;
        let attention = &layer.attention;
        // SAFETY: the caller's word.
        unsafe {
            self.input(layer.mixer_norm, attention.qkv.groups)?;
            self.matmul(&attention.qkv, at.wide, b.wide_stride, 0)?;
            self.attention(index, attention)?;
            let post_norm = layer.mixer_post_norm;
            self.branch(&attention.output, post_norm, scale, at.h, between)?;
            match &layer.feed_forward {
                FeedForwardPlan::Dense(mlp) => {
                    self.input(layer.feed_forward_norm, mlp.up.groups)?;
                    self.inner(mlp)?;
                    let post_norm = layer.feed_forward_post_norm;
                    self.branch(&mlp.down, post_norm, scale, between, at.h)
                }
                FeedForwardPlan::Experts(experts) => self.experts(layer, experts, between),
            }
        }
    }

    /// Attention up to the input of its last product.
    ///
    /// # Safety
    /// As [`PrefillBuffers::enqueue`].
    unsafe fn attention(&self, layer: usize, attention: &AttentionPlan) -> Result<()> {
        let (b, at) = (self.buffers, self.buffers.at);
        let layout = self.kv.layers[layer];
        let [q_norm, k_norm] = attention.head_norms;
        let rope = args::Rope {
            sessions: self.sessions,
            qkv: at.wide,
            q_f16: at.q,
            rotation: attention.rotation,
            q_norm,
            k_norm,
            layout,
            q_scale: attention.scores.scale,
            qkv_stride: b.wide_stride,
            n_heads: attention.n_heads,
            prefill: 1,
            ..Default::default()
        };
        let flash = args::Flash {
            sessions: self.sessions,
            q: at.q,
            out: at.attended,
            layout,
            scores: attention.scores,
            first_row: 0,
            rows: self.rows,
            n_heads: attention.n_heads,
            padding: 0,
        };
        // A ring has no room for more at a time.
        let at_once = match attention.kv.window {
            Some(_) => RING_CHUNK as u32,
            None => self.rows,
        };
        let heads = attention.n_heads * attention.head_dim;
        // SAFETY: the caller's word.
        unsafe {
            if let Some(norms) = attention.row_norms(at.wide, b.wide_stride) {
                self.kernels.norm_parts(self.stream, &norms, self.rows)?;
            }
            for first_row in (0..self.rows).step_by(at_once as usize) {
                let rows = self.rows.min(first_row + at_once);
                let rope = args::Rope { first_row, ..rope };
                self.kernels
                    .rope_append(self.stream, &rope, rows - first_row)?;
                let flash = args::Flash {
                    first_row,
                    rows,
                    ..flash
                };
                self.kernels.flash(self.stream, &flash)?;
            }
            self.produce(args::Produce {
                x: at.attended,
                x_stride: heads,
                len: heads,
                groups: attention.output.groups,
                source: args::Source::Copy as u32,
                ..Default::default()
            })
        }
    }

    /// The input of the last product of a feed-forward part, from the input that is there.
    ///
    /// # Safety
    /// As [`PrefillBuffers::enqueue`].
    unsafe fn inner(&self, mlp: &MlpPlan) -> Result<()> {
        let (b, at) = (self.buffers, self.buffers.at);
        let mut produce = args::Produce {
            x: at.wide,
            x_stride: b.wide_stride,
            len: mlp.n_ff,
            groups: mlp.down.groups,
            source: mlp.source() as u32,
            activation: mlp.activation,
            ..Default::default()
        };
        // SAFETY: the caller's word.
        unsafe {
            if self.kernels.gates(mlp) {
                self.unpack(&mlp.up, Some(mlp.n_ff))?;
                let gated = args::GatedMatmul {
                    product: self.product(&mlp.up, at.wide, b.wide_stride, 0),
                    largest: at.largest,
                };
                self.kernels.matmul_gated(self.stream, &gated)?;
                produce.source = args::Source::Copy as u32;
                produce.largest = at.largest;
            } else {
                self.matmul(&mlp.up, at.wide, b.wide_stride, 0)?;
            }
            self.produce(produce)
        }
    }

    /// `to = base + scale * norm(matrix * input)`.
    ///
    /// # Safety
    /// As [`PrefillBuffers::enqueue`].
    unsafe fn branch(
        &self,
        matrix: &Matrix,
        norm: Option<args::Norm>,
        scale: f32,
        base: u64,
        to: u64,
    ) -> Result<()> {
        let (b, at) = (self.buffers, self.buffers.at);
        if norm.is_none() && scale == 1.0 {
            // SAFETY: the caller's word.
            return unsafe { self.matmul(matrix, to, b.h_stride, base) };
        }
        let add = args::AddBranch {
            x: at.wide,
            base,
            out: to,
            ..self.plan.add_branch(b.wide_stride, norm, scale)
        };
        // SAFETY: the caller's word.
        unsafe {
            self.matmul(matrix, at.wide, b.wide_stride, 0)?;
            self.kernels.add_branch(self.stream, &add, self.rows)
        }
    }

    /// The input of a product: the residual stream or its norm.
    ///
    /// # Safety
    /// As [`PrefillBuffers::enqueue`].
    unsafe fn input(&self, norm: Option<args::Norm>, groups: u32) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.input_with(norm, groups, 0) }
    }

    /// The same, and as f32 at `f32` if that is not 0.
    ///
    /// # Safety
    /// As [`PrefillBuffers::enqueue`].
    unsafe fn input_with(&self, norm: Option<args::Norm>, groups: u32, f32: u64) -> Result<()> {
        let source = match norm {
            Some(_) => args::Source::Norm,
            None => args::Source::Copy,
        };
        let produce = args::Produce {
            x: self.buffers.at.h,
            norm: norm.unwrap_or_default(),
            x_stride: self.buffers.h_stride,
            len: self.plan.hidden,
            groups,
            f32,
            clear: self.buffers.at.largest,
            source: source as u32,
            inverse_len: 1.0 / self.plan.hidden as f32,
            ..Default::default()
        };
        // SAFETY: the caller's word.
        unsafe { self.produce(produce) }
    }

    /// Writes the input of a product, in the form that it reads.
    ///
    /// # Safety
    /// As [`PrefillBuffers::enqueue`].
    unsafe fn produce(&self, args: args::Produce) -> Result<()> {
        let produce = args::Produce {
            f16: self.buffers.at.x,
            f16_scale: self.buffers.at.x_scale,
            ..args
        };
        // SAFETY: the caller's word.
        unsafe { self.kernels.produce(self.stream, &produce, self.rows) }
    }

    /// # Safety
    /// As [`PrefillBuffers::enqueue`].
    unsafe fn matmul(
        &self,
        matrix: &Matrix,
        out: u64,
        out_stride: u32,
        residual: u64,
    ) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe {
            self.unpack(matrix, None)?;
            let product = self.product(matrix, out, out_stride, residual);
            self.kernels.matmul(self.stream, &product)
        }
    }

    /// A matrix in f16, at `weights`. With `half` rows in each of two parts, these lie by turns, as
    /// [`Kernels::matmul_gated`] reads them.
    ///
    /// # Safety
    /// As [`PrefillBuffers::enqueue`].
    unsafe fn unpack(&self, matrix: &Matrix, half: Option<u32>) -> Result<()> {
        for s in &matrix.segments {
            let all = args::Unpack {
                matrix: s.address,
                out: self.buffers.at.weights,
                ty: args::type_number(s.ty),
                groups: matrix.groups,
                matrix_rows: s.rows,
                rows: s.rows,
                out_row: s.out_offset,
                ..Default::default()
            };
            let Some(half) = half else {
                // SAFETY: the caller's word.
                unsafe { self.kernels.unpack(self.stream, &all)? };
                continue;
            };
            for part in 0..2 {
                let (begin, behind) = (part * half, (part + 1) * half);
                let first = s.out_offset.clamp(begin, behind);
                let end = (s.out_offset + s.rows).clamp(begin, behind);
                let unpack = args::Unpack {
                    first_row: first.saturating_sub(s.out_offset),
                    rows: end - first,
                    out_row: first - begin,
                    spread: part + 1,
                    ..all
                };
                if unpack.rows > 0 {
                    // SAFETY: the caller's word.
                    unsafe { self.kernels.unpack(self.stream, &unpack)? };
                }
            }
        }
        Ok(())
    }

    /// The arguments of a product with the matrix that was unpacked last.
    fn product(&self, matrix: &Matrix, out: u64, out_stride: u32, residual: u64) -> args::Matmul {
        let at = self.buffers.at;
        args::Matmul {
            x: at.x,
            x_scale: at.x_scale,
            w: at.weights,
            bias: matrix.bias,
            residual,
            out,
            m: self.rows,
            n: matrix.rows,
            k: matrix.groups * 32,
            out_stride,
        }
    }
}
