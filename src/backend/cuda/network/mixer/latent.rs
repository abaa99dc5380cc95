//! Latent attention of a layer: its plan, its memory, and its kernels in a step and in a chunk.
//!
//! Queries go into the space of the latent vectors before they meet the keys, and what heads gather leaves it, in steps
//! and chunks alike. So no key or value of a head is ever made.

use crate::backend::Work;
use crate::backend::cuda::driver::arena::Arena;
use crate::backend::cuda::launch::adapters::AdaptedApart;
use crate::backend::cuda::launch::args::{self, MAX_LATENT_KEY};
use crate::backend::cuda::launch::attention::{FMA_ROWS, part_stride};
use crate::backend::cuda::launch::matrix::Matrix;
use crate::backend::cuda::launch::product::RowInput;
use crate::backend::cuda::launch::span::Span;
use crate::backend::cuda::network::jobs::Jobs;
use crate::backend::cuda::network::plan::Plan;
use crate::backend::cuda::network::prefill::ChunkOperations;
use crate::backend::cuda::network::step::StepOperations;
use crate::backend::cuda::network::walk::Operations;
use crate::error::{Result, fail};
use crate::model::{KvShape, LatentAttention};
use std::f32::consts::LOG2_E;

/// Latent attention of a layer on the device.
#[derive(Clone, Debug)]
pub struct LatentPlan {
    /// Queries, or the shorter vector that they come from, then the latent vector and the part of a key that is rotated, then the gates
    /// of heads, if there are any.
    pub input: Matrix,
    gated: bool,
    /// The norm of that vector, and queries of it.
    pub by_vector: Option<(args::Norm, Matrix)>,
    /// From the heads' outputs to the residual stream.
    pub output: Matrix,
    /// What it keeps.
    pub kv: KvShape,
    /// From plain parts of queries into the space of latent vectors, and from there to values; a matrix of each head.
    to_latent: Matrix,
    from_latent: Matrix,
    /// What adapters can be added to of these two.
    adapted: [Option<AdaptedApart>; 2],
    /// Of the latent vector; weight 0: none.
    norm: args::Norm,
    rotation: args::Rotation,
    /// Factor on queries; scores are exponents of two.
    scale: f32,
    n_heads: u32,
    rank: u32,
    plain: u32,
    value_dim: u32,
}

impl Jobs {
    /// Lays out latent attention of layer `layer`.
    pub(super) fn latent(
        &mut self,
        layer: usize,
        a: &LatentAttention,
        kv: KvShape,
    ) -> Result<LatentPlan> {
        if kv.head_dim > MAX_LATENT_KEY as usize {
            fail!(
                Unsupported,
                "layer {layer}: latent keys of {} elements; the GPU's attention takes {MAX_LATENT_KEY}",
                kv.head_dim
            );
        }
        let norm = match &a.kv_norm {
            Some(norm) => self.norm(norm)?,
            None => args::Norm::default(),
        };
        let (first, by_vector) = match (&a.q_a, &a.q_a_norm) {
            (Some(q_a), Some(norm)) => {
                let by_vector = (self.norm(norm)?, self.fuse(&[&a.q])?);
                (q_a, Some(by_vector))
            }
            _ => (&a.q, None),
        };
        let adapted = [&a.to_latent, &a.from_latent].map(|linear| {
            let rows = 0..linear.weight.rows() / a.n_heads;
            self.linears.find_apart(linear, a.n_heads, rows)
        });
        let mut parts = vec![first, &a.kv];
        parts.extend(&a.gate);
        Ok(LatentPlan {
            input: self.fuse(&parts)?,
            gated: a.gate.is_some(),
            by_vector,
            output: self.fuse(&[&a.output])?,
            kv,
            to_latent: self.fuse(&[&a.to_latent])?,
            from_latent: self.fuse(&[&a.from_latent])?,
            adapted,
            norm,
            rotation: self.rotation(Some(&a.rope), a.temperature),
            scale: a.scale * LOG2_E,
            n_heads: a.n_heads as u32,
            rank: a.rank as u32,
            plain: a.plain_dim as u32,
            value_dim: a.value_dim as u32,
        })
    }
}

impl LatentPlan {
    /// The matrices that are products of whole rows.
    pub fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let q = self.by_vector.iter().map(|(_, q)| q);
        [&self.input, &self.output].into_iter().chain(q)
    }

    /// Bytes of the weights before attention, and of those of each head behind it.
    pub fn bytes(&self) -> [u64; 2] {
        let q = self.by_vector.as_ref().map_or(0, |(_, q)| q.bytes());
        let before = self.input.bytes() + q + self.to_latent.bytes();
        [before, self.from_latent.bytes()]
    }

    /// Elements of all heads' queries.
    fn q_len(&self) -> u32 {
        self.n_heads * (self.plain + 2 * self.rotation.n_pairs)
    }

    /// Rows of the input's first part.
    fn first_len(&self) -> u32 {
        self.input.rows - self.key_len() - self.n_gates()
    }

    fn n_gates(&self) -> u32 {
        if self.gated { self.n_heads } else { 0 }
    }

    /// The arguments that multiply values by their gates, if there are any.
    fn gates(&self, wide: Span, values: Span) -> Option<args::FinishHeads> {
        let gates = self.first_len() + self.key_len();
        self.gated.then(|| args::FinishHeads {
            x: values.address,
            gate: wide.address + u64::from(gates) * 4,
            out: values.address,
            x_stride: values.stride,
            gate_stride: wide.stride,
            out_stride: values.stride,
            n_heads: self.n_heads,
            head_dim: self.value_dim,
            value_dim: self.value_dim,
            per_head: 1,
            softplus: 0,
        })
    }

    fn key_len(&self) -> u32 {
        self.rank + 2 * self.rotation.n_pairs
    }

    /// Elements of what all heads gather, and of their values.
    fn gathered_len(&self) -> u32 {
        self.n_heads * self.rank
    }
    fn values_len(&self) -> u32 {
        self.n_heads * self.value_dim
    }

    /// The arguments that place queries and keys, but for the sessions and the layout. Queries are at `q`.
    fn place(&self, wide: Span, q: Span, q16: u64) -> args::Latent {
        args::Latent {
            kv: wide.address + u64::from(self.first_len()) * 4,
            q: q.address,
            q16,
            rotation: self.rotation,
            norm: self.norm,
            q_scale: self.scale,
            kv_stride: wide.stride,
            q_stride: q.stride,
            n_heads: self.n_heads,
            rank: self.rank,
            plain: self.plain,
            ..Default::default()
        }
    }

    /// The arguments of the product of each head's plain queries.
    fn queries_product(&self, q: Span, q16: u64, count: u32) -> args::HeadProduct {
        args::HeadProduct {
            x: q.address,
            f16: q16,
            rows: self.rank,
            len: self.plain,
            x_stride: q.stride,
            x_head: self.plain + 2 * self.rotation.n_pairs,
            out_stride: self.n_heads * self.key_len(),
            out_head: self.key_len(),
            scale: self.scale,
            ..head_product(&self.to_latent, count)
        }
    }

    /// The arguments of the product of what each head has gathered.
    fn values_product(&self, gathered: Span, values: u64, count: u32) -> args::HeadProduct {
        args::HeadProduct {
            x: gathered.address,
            f32: values,
            rows: self.value_dim,
            len: self.rank,
            x_stride: gathered.stride,
            x_head: self.rank,
            out_stride: self.values_len(),
            out_head: self.value_dim,
            scale: 1.0,
            ..head_product(&self.from_latent, count)
        }
    }

    fn scores(&self) -> args::Scores {
        args::Scores {
            scale: self.scale,
            ..Default::default()
        }
    }
}

fn head_product(matrix: &Matrix, count: u32) -> args::HeadProduct {
    let segment = &matrix.segments[0];
    args::HeadProduct {
        matrix: segment.address,
        ty: segment.ty.number(),
        groups: matrix.groups,
        matrix_rows: matrix.rows,
        count,
        ..Default::default()
    }
}

/// Memory of latent attention in a step or a chunk.
#[derive(Clone, Copy, Debug)]
struct Rows {
    /// f32, `[rows][q_len]`: queries that come from a shorter vector.
    q: u64,
    /// f16, `[rows][n_heads][key_len]`: queries in the space of keys.
    q16: u64,
    /// f32, `[rows][n_heads * rank]`, rows of whole groups: what heads gather.
    gathered: u64,
    /// f32, `[rows][n_heads * value_dim]`.
    values: u64,
}

impl Rows {
    fn place(arena: &mut Arena, plan: &Plan, rows: u32) -> Rows {
        let most = |number: fn(&LatentPlan) -> u32| {
            let most = plan.latent().map(number).max().unwrap_or(0);
            u64::from(rows) * u64::from(most)
        };
        Rows {
            q: arena.array::<f32>(most(|l| match l.by_vector {
                Some(_) => l.q_len(),
                None => 0,
            })),
            q16: arena.array::<u16>(most(|l| l.n_heads * l.key_len())),
            gathered: arena.array::<f32>(most(|l| l.gathered_len().next_multiple_of(32))),
            values: arena.array::<f32>(most(LatentPlan::values_len)),
        }
    }
}

/// Floats of the parts of a context of a row.
fn parts_len(plan: &Plan) -> u64 {
    let of = |l: &LatentPlan| l.n_heads * part_stride(l.rank);
    u64::from(plan.latent().map(of).max().unwrap_or(0))
}

/// Memory of latent attention in a step.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::cuda) struct StepLatent {
    rows: Rows,
    /// f32, `[rows][n_heads][MAX_PARTS][part_stride]`.
    parts: u64,
}

impl StepLatent {
    /// For steps of `rows` sessions.
    pub fn place(arena: &mut Arena, plan: &Plan, rows: u32) -> Self {
        StepLatent {
            rows: Rows::place(arena, plan, rows),
            parts: arena
                .array::<f32>(u64::from(rows) * u64::from(args::MAX_PARTS) * parts_len(plan)),
        }
    }
}

impl StepOperations<'_> {
    /// From the outputs of the first product to the input of the last.
    pub(in crate::backend::cuda) fn latent(
        &self,
        layer: usize,
        latent: &LatentPlan,
    ) -> Result<RowInput> {
        let (e, places) = (&self.eval, self.buffers.at());
        let (at, wide) = (&places.latent, places.rows.wide);
        let rows = at.rows;
        let q = match &latent.by_vector {
            None => wide,
            Some((norm, matrix)) => {
                let span = Span {
                    address: rows.q,
                    stride: latent.q_len(),
                };
                let input = self.row_input(wide, latent.first_len(), Some(*norm), matrix)?;
                self.product_of(matrix, &input, span, 0)?;
                span
            }
        };
        let layout = e.kv.layers[layer];
        let gathered = Span {
            address: rows.gathered,
            stride: latent.gathered_len().next_multiple_of(32),
        };
        let place = args::Latent {
            sessions: e.sessions,
            layout,
            ..latent.place(wide, q, rows.q16)
        };
        let attend = args::Attend {
            sessions: e.sessions,
            q16: rows.q16,
            parts: at.parts,
            f32: gathered.address,
            layout,
            scores: latent.scores(),
            n_heads: latent.n_heads,
            n_chunks: args::MAX_PARTS,
            value_dim: latent.rank,
            ..Default::default()
        };
        let [before, behind] = latent.bytes();
        // SAFETY: addresses of the *weights*, the *sessions* and the *workspace*, which `self` promises.
        unsafe {
            e.kernels.latent_place(e.stream, &place, self.batch)?;
            let product = latent.queries_product(q, rows.q16, self.batch);
            e.kernels.head_product(e.stream, &product, latent.n_heads)?;
            let [adapted, _] = &latent.adapted;
            e.adapt_heads(adapted, &product, latent.n_heads, false)?;
            self.mark(Work::Qkv, before)?;
            e.kernels
                .attend_placed(e.stream, &attend, true, self.batch)?;
            self.mark(
                Work::Attention,
                self.positions() * u64::from(layout.row_bytes),
            )?;
            let product = latent.values_product(gathered, rows.values, self.batch);
            e.kernels.head_product(e.stream, &product, latent.n_heads)?;
            let [_, adapted] = &latent.adapted;
            e.adapt_heads(adapted, &product, latent.n_heads, false)?;
        }
        self.mark(Work::Output, behind)?;
        let values = Span {
            address: rows.values,
            stride: latent.values_len(),
        };
        if let Some(gates) = latent.gates(wide, values) {
            // SAFETY: addresses of the *workspace*, which `self` promises.
            unsafe { e.kernels.finish_heads(e.stream, &gates, self.batch)? };
        }
        self.row_input(values, latent.values_len(), None, &latent.output)
    }
}

/// Memory of latent attention in a chunk.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::cuda) struct ChunkLatent {
    rows: Rows,
    /// f32, `[FMA_ROWS][n_heads][part_stride]`.
    parts: u64,
}

impl ChunkLatent {
    /// For chunks of `rows` tokens.
    pub fn place(arena: &mut Arena, plan: &Plan, rows: u32) -> Self {
        ChunkLatent {
            rows: Rows::place(arena, plan, rows),
            parts: arena.array::<f32>(u64::from(FMA_ROWS) * parts_len(plan)),
        }
    }
}

impl ChunkOperations<'_> {
    /// From the outputs of the first product to the input of the last.
    pub(in crate::backend::cuda) fn latent(&self, layer: usize, latent: &LatentPlan) -> Result<()> {
        let (e, places) = (&self.eval, self.at());
        let (at, wide) = (&places.latent, places.rows.wide);
        let rows = at.rows;
        let q = match &latent.by_vector {
            None => wide,
            Some((norm, matrix)) => {
                let span = Span {
                    address: rows.q,
                    stride: latent.q_len(),
                };
                let len = latent.first_len();
                self.quantize_input(args::QuantizeInput {
                    x: wide.address,
                    norm: *norm,
                    x_stride: wide.stride,
                    len,
                    groups: matrix.groups,
                    source: args::Source::Norm as u32,
                    inverse_len: 1.0 / len as f32,
                    ..Default::default()
                })?;
                self.matmul(matrix, span, 0)?;
                span
            }
        };
        let values = Span {
            address: rows.values,
            stride: latent.values_len(),
        };
        let layout = e.kv.layers[layer];
        let gathered = Span {
            address: rows.gathered,
            stride: latent.gathered_len(),
        };
        let place = args::Latent {
            sessions: e.sessions,
            layout,
            prefill: 1,
            ..latent.place(wide, q, rows.q16)
        };
        let flash = args::Flash {
            sessions: e.sessions,
            q: rows.q16,
            out: gathered.address,
            layout,
            scores: latent.scores(),
            first_row: 0,
            rows: self.rows,
            n_heads: latent.n_heads,
            value_dim: latent.rank,
            slopes: 0,
        };
        // SAFETY: addresses of the *weights*, the *sessions* and the *workspace*, which `self` promises; the cache
        // is backed up to the rows' positions.
        unsafe {
            e.kernels.latent_place(e.stream, &place, self.rows)?;
            let product = latent.queries_product(q, rows.q16, self.rows);
            e.kernels.head_product(e.stream, &product, latent.n_heads)?;
            let [adapted, _] = &latent.adapted;
            e.adapt_heads(adapted, &product, latent.n_heads, true)?;
            e.kernels.flash_long(e.stream, &flash, at.parts, true)?;
            let product = latent.values_product(gathered, rows.values, self.rows);
            e.kernels.head_product(e.stream, &product, latent.n_heads)?;
            let [_, adapted] = &latent.adapted;
            e.adapt_heads(adapted, &product, latent.n_heads, true)?;
            if let Some(gates) = latent.gates(wide, values) {
                e.kernels.finish_heads(e.stream, &gates, self.rows)?;
            }
        }
        self.quantize_input(args::QuantizeInput {
            x: values.address,
            x_stride: values.stride,
            len: latent.values_len(),
            groups: latent.output.groups,
            source: args::Source::Copy as u32,
            ..Default::default()
        })
    }
}
