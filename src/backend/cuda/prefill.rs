//! Evaluating many positions of one session at once.
//!
//! Weights of a matrix are brought to plain f16 in a scratch buffer, then multiplied on tensor cores
//! with f16 inputs that carry one power-of-two scale per row; sums are f32. The workspace belongs to
//! the model and serves one prefill at a time.

use super::args::{self, KvLayout};
use super::driver::{Buffer, Context, Stream};
use super::kernels::Kernels;
use super::matrix::{Matrix, tiled_bytes};
use super::plan::{LayerPlan, NormPlan, Plan};
use super::step::Arena;
use crate::error::{Result, fail};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
    x: u64,
    x_scale: u64,
    wide: u64,
    q: u64,
    attended: u64,
    weights: u64,
}

fn places(plan: &Plan) -> (Places, u64) {
    let mut arena = Arena::default();
    let rows = CHUNK as u64;
    let heads = u64::from(plan.n_heads_max()) * u64::from(plan.head_dim);
    let weights = plan
        .layer_matrices()
        .map(|m| tiled_bytes(m.rows, m.groups))
        .max();
    let places = Places {
        tokens: arena.take(rows * 4),
        h: arena.take(rows * u64::from(plan.embedding.groups) * 128),
        x: arena.take(tiled_bytes(CHUNK as u32, plan.widest_input())),
        x_scale: arena.take(rows * 4),
        wide: arena.take(rows * u64::from(plan.widest_row()) * 4),
        q: arena.take(rows * heads * 2),
        attended: arena.take(rows * heads * 4),
        weights: arena.take(weights.unwrap_or(0)),
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
            &mut at.x,
            &mut at.x_scale,
            &mut at.wide,
            &mut at.q,
            &mut at.attended,
            &mut at.weights,
        ] {
            *place += base;
        }
        Ok(PrefillBuffers {
            _memory: memory,
            at,
            h_stride: plan.embedding.groups * 32,
            wide_stride: plan.widest_row(),
        })
    }

    /// Enqueues the evaluation of `tokens` (at most [`CHUNK`]) from the session's position on. The
    /// position on the device stays as it is.
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
        layout: &KvLayout,
        stream: &Stream,
        sessions: u64,
        tokens: &[u32],
        interrupt: &AtomicBool,
    ) -> Result<()> {
        let work = Enqueue {
            buffers: self,
            kernels,
            plan,
            layout,
            stream,
            sessions,
            rows: tokens.len() as u32,
        };
        let at = self.at;
        let embedding = &plan.embedding;
        let embed = args::Embed {
            matrix: embedding.segments[0].address,
            tokens: at.tokens,
            out: at.h,
            ty: args::type_number(embedding.segments[0].ty),
            groups: embedding.groups,
            matrix_rows: plan.n_vocab,
            count: tokens.len() as u32,
            ..Default::default()
        };
        // SAFETY: the tokens are read before the call returns; the rest is the caller's word.
        unsafe {
            stream.copy_in(at.tokens, tokens.as_ptr().cast(), size_of_val(tokens))?;
            kernels.embed(stream, &embed)?;
        }
        for (i, layer) in plan.layers.iter().enumerate() {
            if interrupt.load(Ordering::Relaxed) {
                fail!(
                    Interrupted,
                    "interrupted while evaluating {} tokens",
                    tokens.len()
                );
            }
            // SAFETY: the caller's word.
            unsafe { work.layer(i as u32, layer)? };
        }
        Ok(())
    }
}

struct Enqueue<'a> {
    buffers: &'a PrefillBuffers,
    kernels: &'a Kernels,
    plan: &'a Plan,
    layout: &'a KvLayout,
    stream: &'a Stream,
    sessions: u64,
    rows: u32,
}

impl Enqueue<'_> {
    /// # Safety
    /// As [`PrefillBuffers::enqueue`].
    unsafe fn layer(&self, index: u32, layer: &LayerPlan) -> Result<()> {
        let (b, at) = (self.buffers, self.buffers.at);
        let heads = layer.n_heads * self.plan.head_dim;
        let rope = args::Rope {
            sessions: self.sessions,
            qkv: at.wide,
            q_f16: at.q,
            inv_freq: layer.inv_freq,
            layout: *self.layout,
            magnitude: layer.magnitude,
            q_scale: layer.scale * std::f32::consts::LOG2_E,
            qkv_stride: b.wide_stride,
            n_heads: layer.n_heads,
            n_pairs: layer.n_pairs,
            interleaved: u32::from(layer.interleaved),
            layer: index,
            prefill: 1,
            ..Default::default()
        };
        let flash = args::Flash {
            sessions: self.sessions,
            q: at.q,
            out: at.attended,
            layout: *self.layout,
            rows: self.rows,
            n_heads: layer.n_heads,
            layer: index,
            padding: 0,
        };
        // SAFETY: the caller's word.
        unsafe {
            self.norm(layer.attention_norm, layer.qkv.groups)?;
            self.matmul(&layer.qkv, at.wide, b.wide_stride, false)?;
            self.kernels.rope_append(self.stream, &rope, self.rows)?;
            self.kernels.flash(self.stream, &flash)?;
            self.produce(
                args::Source::Copy,
                at.attended,
                heads,
                heads,
                layer.output.groups,
            )?;
            self.matmul(&layer.output, at.h, b.h_stride, true)?;
            self.norm(layer.feed_forward_norm, layer.gate_up.groups)?;
            self.matmul(&layer.gate_up, at.wide, b.wide_stride, false)?;
            self.produce(
                args::Source::SiluMul,
                at.wide,
                b.wide_stride,
                layer.n_ff,
                layer.down.groups,
            )?;
            self.matmul(&layer.down, at.h, b.h_stride, true)
        }
    }

    /// # Safety
    /// As [`PrefillBuffers::enqueue`].
    unsafe fn norm(&self, norm: NormPlan, groups: u32) -> Result<()> {
        let produce = args::Produce {
            x: self.buffers.at.h,
            weight: norm.weight,
            f16: self.buffers.at.x,
            f16_scale: self.buffers.at.x_scale,
            x_stride: self.buffers.h_stride,
            len: self.plan.hidden,
            groups,
            source: args::Source::RmsNorm as u32,
            eps: norm.eps,
            inverse_len: 1.0 / self.plan.hidden as f32,
            ..Default::default()
        };
        // SAFETY: the caller's word.
        unsafe { self.kernels.produce(self.stream, &produce, self.rows) }
    }

    /// # Safety
    /// As [`PrefillBuffers::enqueue`].
    unsafe fn produce(
        &self,
        source: args::Source,
        x: u64,
        x_stride: u32,
        len: u32,
        groups: u32,
    ) -> Result<()> {
        let produce = args::Produce {
            x,
            f16: self.buffers.at.x,
            f16_scale: self.buffers.at.x_scale,
            x_stride,
            len,
            groups,
            source: source as u32,
            ..Default::default()
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
        residual: bool,
    ) -> Result<()> {
        let at = self.buffers.at;
        for s in &matrix.segments {
            let unpack = args::Unpack {
                matrix: s.address,
                out: at.weights,
                ty: args::type_number(s.ty),
                groups: matrix.groups,
                matrix_rows: s.rows,
                first_row: 0,
                rows: s.rows,
                to_f32: 0,
                out_row: s.out_offset,
                padding: 0,
            };
            // SAFETY: the caller's word.
            unsafe { self.kernels.unpack(self.stream, &unpack)? };
        }
        let matmul = args::Matmul {
            x: at.x,
            x_scale: at.x_scale,
            w: at.weights,
            bias: matrix.bias,
            residual: if residual { out } else { 0 },
            out,
            m: self.rows,
            n: matrix.rows,
            k: matrix.groups * 32,
            out_stride,
        };
        // SAFETY: the caller's word.
        unsafe { self.kernels.matmul(self.stream, &matmul) }
    }
}
