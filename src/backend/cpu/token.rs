//! What is done to single tokens, in the forward pass of one and of many alike.

use super::elementwise::{add, add_bias, rope_table, rotate, scale_by, soft_cap};
use super::kv::{Element, KvCache, put};
use super::layer::{HeadNorm, Layer, Product};
use super::matmul::Isa;
use super::pages::Span;
use super::weights::{CpuWeights, Sizes};

/// The buffers of a step or chunk: rows of tokens, a stride apart.
#[derive(Clone, Copy)]
pub(super) struct Buffers<'a> {
    pub x: Span<'a>,
    pub q: Span<'a>,
    pub k: Span<'a>,
    pub v: Span<'a>,
    pub y: Span<'a>,
    pub gate: Span<'a>,
    pub rope: Span<'a>,
    pub sizes: &'a Sizes,
}

/// Writes the embedding of a token at a position to `x`. `scratch` has as many floats.
pub(super) fn embed(
    weights: &CpuWeights,
    (token, position): (u32, usize),
    x: &mut [f32],
    scratch: &mut [f32],
) {
    weights.embedding.row(token as usize, x);
    scale_by(x, weights.embedding_scale);
    if let Some(positions) = &weights.positions {
        let scratch = &mut scratch[..x.len()];
        positions.row(position, scratch);
        add(x, scratch, None);
    }
}

/// Writes the tables of all ropes for a position of a session with that context.
pub(super) fn rope_tables(
    weights: &CpuWeights,
    context: usize,
    position: usize,
    mut out: &mut [f32],
) {
    for rope in &weights.ropes {
        let (table, rest) = out.split_at_mut(super::layer::table_len(rope));
        rope_table(rope, context, position, table);
        out = rest;
    }
}

/// Adds biases to a token's queries (`part` 0) or keys (1) and norms them, if the layer norms all
/// heads together.
///
/// # Safety
/// The processor has `isa`. Nobody else uses this token's queries or keys.
pub(super) unsafe fn norm_all_heads(
    isa: Isa,
    layer: &Layer,
    b: &Buffers,
    token: usize,
    part: usize,
    scratch: &mut [f32],
) {
    let (norm, product, span, stride) = match part {
        0 => (&layer.q_norm, &layer.q, b.q, b.sizes.q),
        _ => (&layer.k_norm, &layer.k, b.k, b.sizes.kv),
    };
    if let Some(HeadNorm::All(norm)) = norm {
        // SAFETY: the caller's promise.
        unsafe {
            let x = span.part(token * stride, product.matrix.rows());
            add_bias(x, product.bias.as_deref());
            norm.apply_in_place(isa, x, scratch);
        }
    }
}

/// A head of queries or keys: bias and norm, if that is not done yet, and rotation.
///
/// # Safety
/// The processor has `isa`.
unsafe fn ready(
    isa: Isa,
    layer: &Layer,
    (product, norm): (&Product, &Option<HeadNorm>),
    (first, x): (usize, &mut [f32]),
    table: &[f32],
    scratch: &mut [f32],
) {
    let bias = product.bias.as_ref().map(|b| &b[first..first + x.len()]);
    // SAFETY: the caller's promise.
    unsafe {
        match norm {
            None => add_bias(x, bias),
            Some(HeadNorm::Each(norm)) => {
                add_bias(x, bias);
                norm.apply_in_place(isa, x, scratch);
            }
            // By `norm_all_heads`.
            Some(HeadNorm::All(_)) => {}
        }
        if let Some(rope) = &layer.rope {
            rotate(isa, rope.pairing, table, x);
        }
    }
}

/// Puts one token's new key and value of a KV head into the cache and readies the queries of its
/// group: biases, norms, rotation, scale. Norms over all heads are done before.
///
/// # Safety
/// The processor has `isa`. Nobody else uses this token's q, k and v of the group, nor this
/// position of the KV head.
pub(super) unsafe fn place<E: Element>(
    isa: Isa,
    layer: &Layer,
    kv: &KvCache,
    b: &Buffers,
    (token, position): (usize, usize),
    kv_head: usize,
    scratch: &mut [f32],
) {
    let (dim, s) = (layer.head_dim, b.sizes);
    let rope = layer.rope.as_ref().map_or(0..0, |rope| rope.at.clone());
    // SAFETY: exclusive by the caller's promise, but for the table, which nobody writes.
    unsafe {
        let table = b.rope.part(token * s.rope + rope.start, rope.len());
        for h in kv_head * layer.group()..(kv_head + 1) * layer.group() {
            let first = h * dim;
            let q = b.q.part(token * s.q + first, dim);
            let what = (&layer.q, &layer.q_norm);
            ready(isa, layer, what, (first, &mut *q), table, scratch);
            q.iter_mut().for_each(|q| *q *= layer.scale);
        }
        let first = kv_head * dim;
        let at = token * s.kv + first;
        let (k, v) = (b.k.part(at, dim), b.v.part(at, dim));
        let what = (&layer.k, &layer.k_norm);
        ready(isa, layer, what, (first, &mut *k), table, scratch);
        let bias = layer.v.bias.as_ref().map(|b| &b[first..first + dim]);
        add_bias(v, bias);
        put(isa, kv.head::<E>(layer.index, kv_head), position, k, v);
    }
}

/// Turns rows of the head's product into logits: bias, scale, cap.
///
/// # Safety
/// The processor has the weights' instruction set.
pub(super) unsafe fn finish_logits(
    weights: &CpuWeights,
    rows: std::ops::Range<usize>,
    logits: &mut [f32],
) {
    add_bias(logits, weights.head.bias.as_ref().map(|b| &b[rows]));
    scale_by(logits, weights.logit_scale);
    if let Some(cap) = weights.logit_cap {
        // SAFETY: the caller's promise.
        unsafe { soft_cap(weights.isa, logits, cap) };
    }
}
