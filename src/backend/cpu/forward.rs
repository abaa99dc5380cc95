//! A decode step: the forward pass of one token, and the logits that follow it.

use super::adapters::{AdapterSpace, Sets};
use super::attention_layer::partials_len;
use super::entry::take_states;
use super::experts::{ExpertSpace, Mixture};
use super::kv::KvCache;
use super::latent_layer::Latents;
use super::layer::Layer;
use super::matmul::Activations;
use super::pages::{Pages, Span};
use super::pass::{Pass, Places, Tokens, Up};
use super::profile::{Clock, Marks, embedding_bytes, norm_bytes, product_bytes};
use super::token::{Buffers, embed, rope_tables};
use super::weights::{CpuWeights, Sizes};
use crate::backend::{HiddenStates, Residual, TokenInput, Work};
use crate::error::{Result, fail, try_vec};
use crate::model::AdapterSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Memory of a decode step, one token wide.
pub(super) struct DecodeSpace {
    /// The residual stream, `hidden`.
    x: Vec<f32>,
    /// Queries, then attention's output.
    q: Vec<f32>,
    /// What is added to the residual stream, `hidden`.
    y: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    rope: Vec<f32>,
    steps: Vec<f32>,
    held: Vec<f32>,
    streams: Vec<f32>,
    inputs: Vec<f32>,
    entry: Vec<f32>,
    latents: Vec<f32>,
    heads: Activations,
    input: Activations,
    experts: ExpertSpace,
    /// Attention's results per segment, if several threads may take part.
    partials: Pages,
    /// Made by the first session with adapters.
    adapters: Option<AdapterSpace>,
}

impl DecodeSpace {
    pub fn new(sizes: &Sizes) -> Result<DecodeSpace> {
        let floats = |len| try_vec(len, 0.0, "scratch");
        Ok(DecodeSpace {
            x: floats(sizes.hidden)?,
            q: floats(sizes.q)?,
            y: floats(sizes.hidden)?,
            k: floats(sizes.kv)?,
            v: floats(sizes.kv)?,
            gate: floats(sizes.n_ff)?,
            up: floats(sizes.n_ff)?,
            rope: floats(sizes.rope)?,
            steps: floats(sizes.steps)?,
            held: floats(sizes.held)?,
            streams: floats(sizes.streams)?,
            inputs: floats(sizes.inputs)?,
            entry: floats(sizes.entry)?,
            latents: floats(sizes.latents)?,
            heads: sizes.heads.inputs(1)?,
            input: Activations::new(1, sizes.cols(), sizes.encodings)?,
            experts: ExpertSpace::new(&sizes.experts)?,
            partials: Pages::new(0, "")?,
            adapters: None,
        })
    }

    /// Bytes of [`DecodeSpace::new`].
    pub fn bytes_for(s: &Sizes) -> usize {
        let floats = 2 * s.hidden + s.q + 2 * s.kv + 2 * s.n_ff + s.beside();
        let input = Activations::bytes_for(1, s.cols(), s.encodings);
        floats * size_of::<f32>()
            + input
            + s.heads.bytes_for(1)
            + ExpertSpace::bytes_for(&s.experts)
    }

    /// One token on its way through the layers, in memory of a seat. Errors: `OutOfMemory` for what the first token with adapters
    /// takes.
    fn tokens<'a>(
        &'a mut self,
        weights: &'a CpuWeights,
        places: Places<'a>,
        adapters: Option<&'a AdapterSet>,
        seat: usize,
    ) -> Result<Tokens<'a>> {
        let adapters = match adapters {
            Some(set) => Some(AdapterSpace::reserve(
                &mut self.adapters,
                weights,
                1,
                Sets::One(set),
            )?),
            None => None,
        };
        Ok(Tokens {
            weights,
            count: 1,
            places,
            adapters,
            buffers: Buffers {
                x: Span::new(&mut self.x),
                q: Span::new(&mut self.q),
                k: Span::new(&mut self.k),
                v: Span::new(&mut self.v),
                y: Span::new(&mut self.y),
                gate: Span::new(&mut self.gate),
                rope: Span::new(&mut self.rope),
                steps: Span::new(&mut self.steps),
                held: Span::new(&mut self.held),
                streams: Span::new(&mut self.streams),
                inputs: Span::new(&mut self.inputs),
                entry: Span::new(&mut self.entry),
                sizes: &weights.sizes,
            },
            input: &self.input,
            up: Up::One(Span::new(&mut self.up)),
            experts: Mixture::One(self.experts.buffers()),
            latents: Latents {
                rows: Span::new(&mut self.latents),
                inputs: &self.heads,
            },
            // A session that runs alone does not share heads.
            partials: (seat == 0).then(|| self.partials.span()),
        })
    }

    /// Provides for sessions of up to `context` positions, on several threads.
    pub fn reserve(&mut self, weights: &CpuWeights, context: usize) -> Result<()> {
        let bytes = partials_bytes(&weights.sizes, weights.pool.threads(), context);
        if bytes > self.partials.bytes() {
            self.partials = Pages::new(bytes, "attention scratch")?;
        }
        Ok(())
    }
}

/// Bytes of attention's results per segment in a session of `context` positions.
pub(super) fn partials_bytes(sizes: &Sizes, threads: usize, context: usize) -> usize {
    match threads {
        1 => 0,
        _ => partials_len(sizes.partial, context).saturating_mul(size_of::<f32>()),
    }
}

/// What a pass reads of a session.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub kv: &'a KvCache,
    /// Where the hidden states of its positions go, if anywhere.
    pub states: Option<&'a HiddenStates>,
    /// What it adds to products.
    pub adapters: Option<&'a AdapterSet>,
}

/// Appends `token` at `position` and writes the logits that follow it. `clock` hears how long each
/// kind of work took, but for the choice of a token.
///
/// Errors: `Interrupted` (the flag is looked at in every layer), `Internal`. Then the logits are
/// as they were.
pub(super) fn decode(
    weights: &CpuWeights,
    context: Context<'_>,
    (position, token): (usize, u32),
    logits: &mut [f32],
    clock: Option<&Clock>,
    interrupt: &AtomicBool,
) -> Result<()> {
    step(
        weights,
        context,
        (position, token),
        (Residual::default(), Some(logits)),
        clock,
        interrupt,
    )
}

/// A decode step, with the residual stream at its ends where that is another's, and the logits that follow it if they are
/// wanted.
pub(super) fn step(
    weights: &CpuWeights,
    context: Context<'_>,
    (position, token): (usize, u32),
    (residual, logits): (Residual<'_>, Option<&mut [f32]>),
    clock: Option<&Clock>,
    interrupt: &AtomicBool,
) -> Result<()> {
    let Context {
        kv,
        adapters,
        states,
    } = context;
    let turn = weights
        .pool
        .turn_or_alone(weights.useful_threads, interrupt)?;
    let space = &weights.decode[turn.seat()];
    let mut space = space.lock().unwrap_or_else(|e| e.into_inner());
    let space = &mut *space;
    let mut fused = false;
    match residual.input {
        TokenInput::Embeddings => {
            let place = (token, position);
            embed(weights, place, adapters, &mut space.x, &mut space.y);
        }
        TokenInput::Stream(input) => space.x.copy_from_slice(input),
        TokenInput::States(from) => {
            fused = take_states(weights, from, &mut space.x, &mut space.entry)?;
        }
    }
    rope_tables(weights, kv.context(), position, &mut space.rope);
    if let Some(clock) = clock {
        clock.end(Work::Embed, embedding_bytes(weights));
    }
    let place = Places::Run(kv, position);
    let tokens = space.tokens(weights, place, adapters, turn.seat())?;
    let pass = Pass {
        tokens: &tokens,
        turn: &turn,
        marks: Marks(clock),
        held: false,
    };
    pass.project_entry(&[token], fused)?;
    pass.inputs(&[token])?;
    pass.begin_streams()?;
    for (index, layer) in weights.layers.iter().enumerate() {
        if interrupt.load(Relaxed) {
            fail!(Interrupted, "interrupted at position {position}");
        }
        if let Some(states) = states {
            pass.keep_before(index, states, position, (0, 1));
        }
        pass.block(layer)?;
    }
    pass.end_streams()?;
    if let Some(states) = states {
        pass.keep(states, position, (0, 1));
    }
    if let Some(output) = residual.output {
        // SAFETY: no phase runs, so nobody else uses the residual stream.
        output.copy_from_slice(unsafe { tokens.buffers.x.part(0, weights.hidden) });
    }
    if let Some(logits) = logits {
        pass.head(pass.residual(), Span::new(logits))?;
    }
    if let Some(clock) = clock {
        let bytes = product_bytes([&weights.head]) + norm_bytes([&weights.final_norm]);
        clock.end(Work::Head, bytes);
    }
    Ok(())
}

/// Brings a token's residual stream through a layer that has its mixer elsewhere.
///
/// Errors: `Interrupted` before it begins, `Internal`.
pub(super) fn run_layer(
    weights: &CpuWeights,
    layer: &Layer,
    row: &mut [f32],
    interrupt: &AtomicBool,
) -> Result<()> {
    let turn = weights
        .pool
        .turn_or_alone(weights.useful_threads, interrupt)?;
    let space = &weights.decode[turn.seat()];
    let mut space = space.lock().unwrap_or_else(|e| e.into_inner());
    space.x.copy_from_slice(row);
    let tokens = space.tokens(weights, Places::Unknown, None, turn.seat())?;
    let pass = Pass {
        tokens: &tokens,
        turn: &turn,
        marks: Marks(None),
        held: false,
    };
    pass.block(layer)?;
    // SAFETY: no phase runs, so nobody else uses the residual stream.
    row.copy_from_slice(unsafe { tokens.buffers.x.part(0, weights.hidden) });
    Ok(())
}

#[cfg(test)]
#[path = "forward_tests.rs"]
mod tests;
