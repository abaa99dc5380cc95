//! Self-attention of a layer: its plan, its memory, and its kernels in a step and in a chunk.

use super::heads::HeadsPlan;
use super::recurrent::rows;
use crate::backend::Work;
use crate::backend::cuda::driver::arena::Arena;
use crate::backend::cuda::launch::args::{self, CHUNKED, MAX_HEAD_DIM};
use crate::backend::cuda::launch::attention::{FMA_ROWS, LONGEST_SHORT, part_stride};
use crate::backend::cuda::launch::matrix::{Forms, Matrix};
use crate::backend::cuda::launch::product::RowInput;
use crate::backend::cuda::launch::span::Span;
use crate::backend::cuda::network::jobs::Jobs;
use crate::backend::cuda::network::kv_plan::KvPlan;
use crate::backend::cuda::network::linears::Piece;
use crate::backend::cuda::network::plan::Plan;
use crate::backend::cuda::network::prefill::ChunkOperations;
use crate::backend::cuda::network::step::StepOperations;
use crate::backend::cuda::network::walk::Operations;
use crate::error::{Result, fail};
use crate::model::{Attention, KvShape, Linear};
use std::f32::consts::LOG2_E;

/// Attention of a layer on the device.
#[derive(Clone, Debug)]
pub struct AttentionPlan {
    /// Queries, keys, values; queries and keys where these are the values, and queries alone where keys and values are
    /// another layer's.
    pub qkv: Matrix,
    /// The layer whose keys and values it reads, itself or an earlier one.
    pub keys_of: usize,
    /// The head of `qkv` that values begin with.
    pub value_head: u32,
    /// The row of `qkv` where gates of the heads' results begin, behind the values; 0: there are none for attention's kernels.
    pub gate: u32,
    /// Query heads.
    pub n_heads: u32,
    /// Key and value heads.
    pub n_kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Norms of queries and keys over each head; weight 0: none.
    pub head_norms: [args::Norm; 2],
    /// Norm of values over each head; weight 0: none.
    pub value_norm: args::Norm,
    /// Norms of queries and keys over all heads; weight 0: none.
    pub row_norms: [args::Norm; 2],
    /// What is done to heads before that, and to their results.
    pub(in crate::backend::cuda) heads: HeadsPlan,
    /// Of queries and keys.
    pub rotation: args::Rotation,
    /// How products of queries and keys become weights.
    pub scores: args::Scores,
    /// f32, `[n_heads]`: how much less scores are with each position of distance, in the unit of `scores`; 0: not at all.
    pub slopes: u64,
    /// What it keeps.
    pub kv: KvShape,
    /// Positions of a chunk, of which each position sees its own, if there are chunks.
    pub chunk: Option<u32>,
    /// Whether a position sees none behind it.
    pub causal: bool,
    /// Of the heads' outputs; none of most networks.
    pub output_norm: Option<args::Norm>,
    /// From there to the residual stream.
    pub output: Matrix,
}

impl Jobs {
    /// Lays out attention of layer `layer`.
    pub(super) fn attention(
        &mut self,
        layer: usize,
        a: &Attention,
        kv: KvShape,
    ) -> Result<AttentionPlan> {
        if a.head_dim > MAX_HEAD_DIM as usize {
            fail!(
                Unsupported,
                "layer {layer}: heads of {} elements; the GPU's attention takes {MAX_HEAD_DIM}",
                a.head_dim
            );
        }
        if let Some(offset) = a.temperature.map(|t| t.offset).filter(|o| *o > 1) {
            fail!(
                Unsupported,
                "layer {layer}: a factor on the queries with an offset of {offset} is not supported on a GPU, only one of 1; it is on a CPU"
            );
        }
        let mut head_norms = [args::Norm::default(); 2];
        let mut row_norms = head_norms;
        let shares = a.shares.is_some();
        for (i, norm) in [&a.q_norm, &a.k_norm].into_iter().enumerate() {
            if let Some(norm) = norm
                && !a.own_head_norms
            {
                let of_a_head = norm.weight.row_len() == a.head_dim;
                let to = if of_a_head {
                    &mut head_norms
                } else {
                    &mut row_norms
                };
                to[i] = self.norm(norm)?;
            }
        }
        let mut rotation = self.rotation(a.rope.as_ref(), a.temperature);
        if a.norm_after_rope {
            // A rotation leaves a head's mean square alone: what comes after it are the weights.
            rotation.magnitude = 1.0;
            for (after, norm) in rotation.after.iter_mut().zip(&mut head_norms) {
                *after = norm.weight;
                if norm.weight != 0 {
                    norm.weight = self.vector(vec![1.0; a.head_dim]);
                }
            }
        }
        // The kernels' softmax works in powers of two.
        let (scale, cap) = match (a.score_cap, &a.slopes) {
            (Some(_), Some(_)) => fail!(
                Unsupported,
                "layer {layer}: scores with a soft cap that fall with the distance are not supported on a GPU; they are on a CPU"
            ),
            (Some(cap), None) => (a.scale / cap, cap * LOG2_E),
            // Has kernels look at the slopes.
            (None, Some(_)) => (a.scale * LOG2_E, 1.0),
            (None, None) => (a.scale * LOG2_E, 0.0),
        };
        if a.distances.is_some() {
            fail!(
                Unsupported,
                "layer {layer}: numbers that scores get by the distance are not supported on a GPU; they are on a CPU"
            );
        }
        // Of few kernels.
        let few = [
            (a.slopes.is_some(), "scores that fall with the distance"),
            (a.chunk.is_some(), "attention within chunks"),
        ];
        for (_, what) in few.iter().filter(|(is_there, _)| *is_there) {
            if a.head_dim > LONGEST_SHORT as usize || a.window.is_some() && a.chunk.is_some() {
                fail!(
                    Unsupported,
                    "layer {layer}: {what} in heads of {} elements, or with a window beside chunks, is not supported on a GPU; it is on a CPU",
                    a.head_dim
                );
            }
        }
        let keys_are_values = a.k.weight.same_data(&a.v.weight) && a.k.bias.is_none();
        let keys_and_values: &[&Linear] = match (shares, keys_are_values) {
            (true, _) => &[],
            (false, true) => &[&a.k],
            (false, false) => &[&a.k, &a.v],
        };
        let (qkv, gate) = match a.gated {
            false => {
                let mut parts = vec![&a.q];
                parts.extend(keys_and_values);
                let rows = parts.iter().map(|p| p.weight.rows()).sum::<usize>();
                parts.extend(&a.gate);
                let gate = if a.gate.is_some() { rows as u32 } else { 0 };
                (self.fuse(&parts)?, gate)
            }
            true => {
                let of = |half| (0..a.n_heads).map(move |h| (2 * h + half) * a.head_dim);
                let part = |row| rows(&a.q, row..row + a.head_dim);
                let [q, gates] = [0, 1].map(|half| of(half).map(part).collect::<Vec<_>>());
                let mut parts: Vec<&Linear> = q.iter().collect();
                parts.extend(keys_and_values);
                let gate = parts.iter().map(|p| p.weight.rows()).sum::<usize>();
                parts.extend(&gates);
                let half = |first| Piece {
                    linear: &a.q,
                    rows: a.n_heads * a.head_dim,
                    first,
                    run: a.head_dim,
                    step: 2 * a.head_dim,
                };
                let mut pieces = vec![half(0)];
                pieces.extend(keys_and_values.iter().map(|l| Piece::whole(l)));
                pieces.push(half(a.head_dim));
                (self.fuse_pieces(&parts, &pieces)?, gate as u32)
            }
        };
        let heads = self.heads(layer, a, (qkv.rows, gate))?;
        let value_head = match keys_are_values {
            true => a.n_heads,
            false => a.n_heads + a.n_kv_heads,
        };
        let value_norm = match a.value_norm {
            Some(eps) if !shares => args::Norm {
                weight: self.vector(vec![1.0; a.head_dim]),
                eps,
                ..Default::default()
            },
            _ => args::Norm::default(),
        };
        Ok(AttentionPlan {
            qkv,
            keys_of: a.shares.unwrap_or(layer),
            value_head: heads.value_head().unwrap_or(value_head as u32),
            value_norm,
            gate: if heads.finishes() { 0 } else { gate },
            n_heads: a.n_heads as u32,
            n_kv_heads: a.n_kv_heads as u32,
            head_dim: a.head_dim as u32,
            head_norms,
            row_norms,
            heads,
            rotation,
            scores: args::Scores {
                sinks: self.tensor(a.sinks.as_ref())?,
                scale,
                cap,
            },
            slopes: match &a.slopes {
                Some(slopes) => self.vector(slopes.iter().map(|slope| slope * LOG2_E).collect()),
                None => 0,
            },
            kv,
            // No context has as many positions as a larger one.
            chunk: a
                .chunk
                .and_then(|chunk| u32::try_from(chunk).ok())
                .filter(|chunk| *chunk < CHUNKED),
            causal: a.causal,
            output_norm: self.find_norm(&a.output_norm)?,
            output: self.fuse(&[&a.output])?,
        })
    }
}

impl AttentionPlan {
    /// Whether heads are longer than most kernels take.
    pub(in crate::backend::cuda) fn is_long(&self) -> bool {
        self.head_dim > LONGEST_SHORT
    }

    /// Where its keys and values lie, and what a position sees of them.
    fn layout(&self, kv: &KvPlan) -> args::KvLayout {
        let layout = kv.layers[self.keys_of];
        args::KvLayout {
            window: self.chunk.map_or(layout.window, |chunk| chunk | CHUNKED),
            ..layout
        }
    }

    /// Elements of a row of the heads' results in a step.
    fn result_stride(&self) -> u32 {
        (self.n_heads * self.head_dim).next_multiple_of(32)
    }

    /// The norms of whole rows of queries and keys at `x`, if there are any.
    pub fn row_norms(&self, x: u64, stride: u32) -> Option<args::NormParts> {
        let len = [self.n_heads, self.n_kv_heads].map(|n| n * self.head_dim);
        let is_there = self.row_norms.map(|n| n.weight != 0);
        is_there.contains(&true).then(|| args::NormParts {
            x,
            norms: self.row_norms,
            first: [0, len[0]],
            len: [0, 1].map(|i| if is_there[i] { len[i] } else { 0 }),
            stride,
            padding: 0,
        })
    }
}

/// Memory of attention in a step.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::cuda) struct StepAttention {
    /// f32, `[rows][n_heads * head_dim]`: queries.
    q: u64,
    /// f16, the same of long heads.
    q16: u64,
    /// f32, `[rows][n_heads][n_chunks][part_stride]`: what parts of a context give.
    parts: u64,
    /// f32, `[rows][n_heads * head_dim rounded up to groups of 32]`: results that are not the output product's input.
    attended: u64,
    /// Parts that a context is cut into at most.
    n_chunks: u32,
}

impl StepAttention {
    /// For steps of `rows` sessions.
    pub fn place(arena: &mut Arena, plan: &Plan, rows: u32, multiprocessors: u32) -> Self {
        // Enough parts for two blocks a multiprocessor.
        let heads = plan.attention().map(|a| a.n_kv_heads).min();
        let n_chunks = (2 * multiprocessors)
            .div_ceil(heads.unwrap_or(1))
            .clamp(1, args::MAX_PARTS);
        let rows = u64::from(rows);
        let queries = u64::from(plan.most(|a| a.n_heads * a.head_dim));
        let parts = u64::from(plan.most(|a| a.n_heads * part_stride(a.head_dim)));
        let attended = plan.most(|a| match a.heads.finishes() {
            true => a.result_stride(),
            false => 0,
        });
        StepAttention {
            q: arena.array::<f32>(rows * queries),
            q16: arena.array::<u16>(rows * queries),
            parts: arena.array::<f32>(rows * parts * u64::from(n_chunks)),
            attended: arena.array::<f32>(rows * u64::from(attended)),
            n_chunks,
        }
    }
}

impl StepOperations<'_> {
    /// From queries, keys and values to the input of the output product.
    pub(in crate::backend::cuda) fn attention(
        &self,
        layer: usize,
        attention: &AttentionPlan,
    ) -> Result<RowInput> {
        let (e, b) = (&self.eval, self.buffers);
        let (at, qkv) = (&b.at().attention, b.at().rows.wide);
        let heads = &attention.heads;
        let forms = match attention.output_norm {
            // Never in f16, which needs the largest value of a row first: a kernel more costs what the product would gain.
            None if !heads.finishes() => attention.output.forms(),
            // What the norm or another kernel reads.
            _ => Forms {
                q8: false,
                f32: true,
                f16: false,
            },
        };
        let inputs = b.at().inputs.only(forms);
        let attended = match heads.finishes() {
            true => Span {
                address: at.attended,
                stride: attention.result_stride(),
            },
            false => Span {
                address: inputs.f32,
                stride: attention.output.groups * 32,
            },
        };
        let [q_norm, k_norm] = attention.head_norms;
        let layout = attention.layout(e.kv);
        let shares = u32::from(attention.keys_of != layer);
        let attend = args::Attend {
            sessions: e.sessions,
            q: at.q,
            q16: at.q16,
            parts: at.parts,
            q8: inputs.q8,
            q8_scale: inputs.q8_scale,
            f32: attended.address,
            qkv: qkv.address,
            gate: match attention.gate {
                0 => 0,
                at => qkv.address + u64::from(at) * 4,
            },
            tickets: b.tickets(),
            rotation: attention.rotation,
            q_norm,
            k_norm,
            v_norm: attention.value_norm,
            layout,
            scores: attention.scores,
            slopes: attention.slopes,
            qkv_stride: qkv.stride,
            n_heads: attention.n_heads,
            n_chunks: at.n_chunks,
            value_head: attention.value_head,
            shares,
            value_dim: attention.head_dim,
            ..Default::default()
        };
        if let Some(ready) = heads.ready(qkv) {
            // SAFETY: addresses of the *weights* and the *workspace*, which `StepOperations` promises.
            unsafe { e.kernels.ready_heads(e.stream, &ready, self.batch)? };
        }
        if let Some(norms) = attention.row_norms(qkv.address, qkv.stride) {
            // SAFETY: likewise.
            unsafe { e.kernels.norm_parts(e.stream, &norms, self.batch)? };
        }
        // SAFETY: addresses of the *weights*, the *sessions* and the *workspace*, likewise; tickets are
        // zeros between any two kernels.
        unsafe {
            e.kernels
                .attend(e.stream, &attend, self.batch, self.rows_of)?
        };
        let row = 2 * u64::from(layout.n_kv_heads) * u64::from(layout.row_bytes);
        let seen = self.positions().min(u64::from(layout.window));
        self.mark(Work::Attention, seen * row)?;
        if let Some(finish) = heads.finish(attended, qkv) {
            // SAFETY: addresses of the *workspace*, likewise.
            unsafe { e.kernels.finish_heads(e.stream, &finish, self.batch)? };
            let norm = attention.output_norm;
            return self.row_input(qkv, heads.result_len(), norm, &attention.output);
        }
        let Some(norm) = attention.output_norm else {
            return Ok(RowInput::Rounded(inputs));
        };
        // Rows of norms may take the place of what they are of.
        self.row_input(attended, heads.result_len(), Some(norm), &attention.output)
    }
}

/// Memory of attention in a chunk.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::cuda) struct ChunkAttention {
    /// f16, `[rows][n_heads * head_dim]`: queries.
    pub q: u64,
    /// f32, `[rows][n_heads * head_dim]`: outputs.
    pub attended: u64,
    /// Of long heads: f32, `[FMA_ROWS][n_heads][part_stride]`.
    parts: u64,
}

impl ChunkAttention {
    /// For chunks of `rows` tokens.
    pub fn place(arena: &mut Arena, plan: &Plan, rows: u32) -> Self {
        let parts = plan.most(|a| match a.is_long() {
            true => a.n_heads * part_stride(a.head_dim),
            false => 0,
        });
        let elements = u64::from(rows) * u64::from(plan.most(|a| a.n_heads * a.head_dim));
        ChunkAttention {
            q: arena.array::<u16>(elements),
            attended: arena.array::<f32>(elements),
            parts: arena.array::<f32>(u64::from(FMA_ROWS) * u64::from(parts)),
        }
    }
}

impl ChunkOperations<'_> {
    /// From queries, keys and values to the input of the output product.
    pub(in crate::backend::cuda) fn attention(
        &self,
        layer: usize,
        attention: &AttentionPlan,
    ) -> Result<()> {
        let e = &self.eval;
        let (at, qkv) = (&self.at().attention, self.at().rows.wide);
        let layout = attention.layout(e.kv);
        let [q_norm, k_norm] = attention.head_norms;
        let rope = args::Rope {
            sessions: e.sessions,
            qkv: qkv.address,
            q_f16: at.q,
            rotation: attention.rotation,
            q_norm,
            k_norm,
            v_norm: attention.value_norm,
            layout,
            q_scale: attention.scores.scale,
            qkv_stride: qkv.stride,
            n_heads: attention.n_heads,
            prefill: 1,
            value_head: attention.value_head,
            shares: u32::from(attention.keys_of != layer),
            ..Default::default()
        };
        let flash = args::Flash {
            sessions: e.sessions,
            q: at.q,
            out: at.attended,
            layout,
            scores: attention.scores,
            slopes: attention.slopes,
            first_row: 0,
            rows: self.rows,
            n_heads: attention.n_heads,
            value_dim: attention.head_dim,
        };
        // A ring has no room for more at a time.
        let at_once = match attention.kv.window {
            Some(_) => e.kv.ring_chunk() as u32,
            None => self.rows,
        };
        self.ready(attention)?;
        for first_row in (0..self.rows).step_by(at_once as usize) {
            let rows = self.rows.min(first_row + at_once);
            let rope = args::Rope { first_row, ..rope };
            let flash = args::Flash {
                first_row,
                rows,
                ..flash
            };
            // SAFETY: addresses of the *weights*, the *sessions* and the *workspace*, likewise; the cache
            // is backed up to the rows' positions.
            unsafe {
                e.kernels.rope_append(e.stream, &rope, rows - first_row)?;
                match attention.is_long() {
                    false => e.kernels.flash(e.stream, &flash)?,
                    true => e.kernels.flash_long(e.stream, &flash, at.parts, false)?,
                }
            }
        }
        self.attended(attention)
    }

    /// Does to queries, keys and values what the kernels that rotate them do not.
    pub(in crate::backend::cuda) fn ready(&self, attention: &AttentionPlan) -> Result<()> {
        let (e, qkv) = (&self.eval, self.at().rows.wide);
        // SAFETY: addresses of the *weights* and the *workspace*, which `ChunkOperations` promises.
        unsafe {
            if let Some(ready) = attention.heads.ready(qkv) {
                e.kernels.ready_heads(e.stream, &ready, self.rows)?;
            }
            if let Some(norms) = attention.row_norms(qkv.address, qkv.stride) {
                e.kernels.norm_parts(e.stream, &norms, self.rows)?;
            }
        }
        Ok(())
    }

    /// The input of the output product, from what heads have attended to.
    pub(in crate::backend::cuda) fn attended(&self, attention: &AttentionPlan) -> Result<()> {
        let (e, at, qkv) = (&self.eval, &self.at().attention, self.at().rows.wide);
        let mut attended = Span {
            address: at.attended,
            stride: attention.n_heads * attention.head_dim,
        };
        if let Some(finish) = attention.heads.finish(attended, qkv) {
            // SAFETY: addresses of the *workspace*, which `ChunkOperations` promises.
            unsafe { e.kernels.finish_heads(e.stream, &finish, self.rows)? };
            attended = qkv;
        }
        let len = attention.heads.result_len();
        self.quantize_input(args::QuantizeInput {
            x: attended.address,
            x_stride: attended.stride,
            len,
            groups: attention.output.groups,
            gate: qkv.address + u64::from(attention.gate) * 4,
            gate_stride: qkv.stride,
            norm: attention.output_norm.unwrap_or_default(),
            inverse_len: 1.0 / len as f32,
            source: match attention.gate {
                0 => args::Source::Copy as u32,
                _ => args::Source::Sigmoid as u32,
            },
            ..Default::default()
        })
    }
}
