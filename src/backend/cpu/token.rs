//! What is done to single tokens, in the forward pass of one and of many alike.

use super::adapters::adapt_embedding;
use super::elementwise::{add, add_bias, rope_table, scale_by, soft_cap};
use super::pages::Span;
use super::weights::{CpuWeights, Sizes};
use crate::model::AdapterSet;

/// The buffers of a step or chunk: rows of tokens, a stride apart.
#[derive(Clone, Copy)]
pub(super) struct Buffers<'a> {
    pub x: Span<'a>,
    pub q: Span<'a>,
    pub k: Span<'a>,
    pub v: Span<'a>,
    pub y: Span<'a>,
    pub gate: Span<'a>,
    /// The numbers of a recurrence's heads.
    pub steps: Span<'a>,
    pub rope: Span<'a>,
    /// What the residual stream was before the first of two parts that read the same.
    pub held: Span<'a>,
    /// All residual streams of each token, where there are several.
    pub streams: Span<'a>,
    /// Inputs of all blocks beside the residual stream.
    pub inputs: Span<'a>,
    /// Of a head that guesses further tokens: embeddings and hidden states of the tokens, `2 * hidden` of each.
    pub entry: Span<'a>,
    pub sizes: &'a Sizes,
}

/// Writes the embedding of a token at a position to `x`, with what adapters add. `scratch` has as many floats.
pub(super) fn embed(
    weights: &CpuWeights,
    (token, position): (u32, usize),
    adapters: Option<&AdapterSet>,
    x: &mut [f32],
    scratch: &mut [f32],
) {
    weights.embedding.row(token as usize, x);
    if let Some(set) = adapters {
        // SAFETY: the weights' instruction set is the processor's.
        unsafe { adapt_embedding(weights.isa, set, token, x) };
    }
    scale_by(x, weights.embedding_scale);
    if let Some(positions) = &weights.positions {
        let scratch = &mut scratch[..x.len()];
        positions.row(position, scratch);
        add(x, scratch, None);
    }
    if let Some(norm) = &weights.embedding_norm {
        // SAFETY: the weights' instruction set is the processor's.
        unsafe { norm.apply_in_place(weights.isa, x, scratch) };
    }
}

/// The same for an encoder's token of a kind.
pub(super) fn embed_text(
    weights: &CpuWeights,
    place: (u32, usize),
    kind: usize,
    adapters: Option<&AdapterSet>,
    x: &mut [f32],
    scratch: &mut [f32],
) {
    embed(weights, place, adapters, x, scratch);
    let Some(encoder) = &weights.encoder else {
        return;
    };
    if let Some(kinds) = &encoder.token_types {
        let row = &mut scratch[..x.len()];
        kinds.row(kind.min(kinds.rows() - 1), row);
        add(x, row, None);
    }
    if let Some(norm) = &encoder.embedding_norm {
        // SAFETY: the weights' instruction set is the processor's.
        unsafe { norm.apply_in_place(weights.isa, x, scratch) };
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
        // SAFETY: by contract, the processor has the weights' instruction set.
        unsafe { soft_cap(weights.isa, logits, cap) };
    }
}
