//! Many tokens at once: a chunk goes through each layer as a whole, so that weights are read and
//! unpacked once for all its tokens. They are a run of one session's (see [`super::prefill`]) or
//! one each of several sessions' (see [`super::batch`]).

use super::adapters::{AdapterSpace, Sets};
use super::entry::take_states;
use super::experts::{ExpertChunkSpace, Mixture};
use super::latent_layer::Latents;
use super::matmul::{Activations, Matrix};
use super::pages::{Pages, Span};
pub(super) use super::pass::Places;
use super::pass::{Pass, Rows, Tokens, Up};
use super::pool::{PoolTurn, Work};
use super::profile::Marks;
use super::token::{Buffers, embed, embed_text, rope_tables};
use super::weights::{CpuWeights, Sizes};
use crate::backend::TokenInput;
use crate::backend::row::Front;
use crate::error::Result;

/// Memory of a chunk. It becomes resident as far as chunks have tokens.
pub(super) struct ChunkSpace {
    x: Pages,
    /// Queries, then attention's output. After that, and with rows of `hidden`, what is added to
    /// the residual stream.
    q: Pages,
    k: Pages,
    v: Pages,
    gate: Pages,
    /// Of each thread, a block of rows of `up`.
    up: Pages,
    rope: Pages,
    steps: Pages,
    held: Pages,
    streams: Pages,
    inputs: Pages,
    entry: Pages,
    latents: Pages,
    heads: Activations,
    input: Activations,
    experts: ExpertChunkSpace,
    /// Made by the first chunk with adapters.
    adapters: Option<AdapterSpace>,
}

impl ChunkSpace {
    /// Memory for chunks of up to `tokens`. Errors: `OutOfMemory`.
    pub fn new(weights: &CpuWeights, tokens: usize) -> Result<ChunkSpace> {
        let s = &weights.sizes;
        let pages = |width: usize| Pages::floats(tokens.saturating_mul(width), "chunk scratch");
        Ok(ChunkSpace {
            x: pages(s.hidden)?,
            q: pages(s.q.max(s.hidden))?,
            k: pages(s.kv)?,
            v: pages(s.kv)?,
            gate: pages(s.n_ff)?,
            up: pages(Matrix::ROW_QUANTUM * weights.pool.threads())?,
            rope: pages(s.rope)?,
            steps: pages(s.steps)?,
            held: pages(s.held)?,
            streams: pages(s.streams)?,
            inputs: pages(s.inputs)?,
            entry: pages(s.entry)?,
            latents: pages(s.latents)?,
            heads: s.heads.inputs(tokens)?,
            input: Activations::new(tokens, s.cols(), s.encodings)?,
            experts: ExpertChunkSpace::new(&s.experts, weights.pool.threads(), tokens)?,
            adapters: None,
        })
    }

    /// Readies the memory for adapters. Errors: `OutOfMemory`.
    pub fn reserve(&mut self, weights: &CpuWeights, sets: Option<Sets<'_>>) -> Result<()> {
        let most = self.tokens();
        if let Some(sets) = sets {
            AdapterSpace::reserve(&mut self.adapters, weights, most, sets)?;
        }
        Ok(())
    }

    /// Tokens in the largest chunk.
    pub fn tokens(&self) -> usize {
        self.input.max_tokens()
    }
}

/// Bytes of a [`ChunkSpace`].
pub(super) fn chunk_bytes(s: &Sizes, threads: usize, tokens: usize) -> usize {
    let floats = s.hidden + s.q.max(s.hidden) + 2 * s.kv + s.n_ff + s.beside();
    let up = Matrix::ROW_QUANTUM * threads;
    let input = Activations::bytes_for(tokens, s.cols(), s.encodings);
    let experts = ExpertChunkSpace::bytes_for(&s.experts, threads, tokens);
    tokens * (floats + up) * size_of::<f32>() + input + s.heads.bytes_for(tokens) + experts
}

/// A chunk on its way through the layers.
pub(super) struct Chunk<'a> {
    tokens: &'a [u32],
    rows: Tokens<'a>,
}

impl<'a> Chunk<'a> {
    /// A chunk of at most as many tokens as the memory is for. Errors: `OutOfMemory` for what the first chunk
    /// with adapters takes.
    pub fn new(
        weights: &'a CpuWeights,
        space: &'a mut ChunkSpace,
        tokens: &'a [u32],
        places: Places<'a>,
        sets: Option<Sets<'a>>,
    ) -> Result<Chunk<'a>> {
        assert!(!tokens.is_empty() && tokens.len() <= space.tokens());
        let most = space.tokens();
        let adapters = match sets {
            Some(sets) => Some(AdapterSpace::reserve(
                &mut space.adapters,
                weights,
                most,
                sets,
            )?),
            None => None,
        };
        let (q, up) = (space.q.span(), space.up.span());
        let rows = Tokens {
            weights,
            count: tokens.len(),
            places,
            adapters,
            buffers: Buffers {
                x: space.x.span(),
                q,
                k: space.k.span(),
                v: space.v.span(),
                y: q,
                gate: space.gate.span(),
                rope: space.rope.span(),
                steps: space.steps.span(),
                held: space.held.span(),
                streams: space.streams.span(),
                inputs: space.inputs.span(),
                entry: space.entry.span(),
                sizes: &weights.sizes,
            },
            input: &space.input,
            up: Up::Blocks(up),
            experts: Mixture::Many(space.experts.chunk(weights.isa, up)),
            latents: Latents {
                rows: space.latents.span(),
                inputs: &space.heads,
            },
            partials: None,
        };
        Ok(Chunk { tokens, rows })
    }

    pub fn pass<'p, 't>(&'p self, turn: &'p PoolTurn<'t>) -> Pass<'p, 't> {
        Pass {
            tokens: &self.rows,
            turn,
            marks: Marks(None),
            held: false,
        }
    }

    /// Writes embeddings and rope tables.
    pub fn embed(&self, turn: &PoolTurn) -> Result<()> {
        let (weights, b) = (self.rows.weights, &self.rows.buffers);
        let each = (weights.hidden + 8 * b.sizes.rope) as u64;
        let work = Work::even(self.tokens.len(), each);
        self.pass(turn).phase(work, |me, range| {
            for t in range {
                let (position, context) = self.rows.places.position(t);
                let place = (self.tokens[t], position);
                let set = self.rows.adapters.and_then(|adapters| adapters.of(t));
                // SAFETY: each token is one thread's.
                unsafe {
                    let x = b.x.part(t * weights.hidden, weights.hidden);
                    match self.rows.places {
                        Places::Texts(texts) => {
                            embed_text(weights, place, texts.kind(t), set, x, &mut me.row);
                        }
                        // It comes from elsewhere.
                        _ if weights.ends.0 != Front::Embeddings => {}
                        _ => embed(weights, place, set, x, &mut me.row),
                    }
                    let tables = b.rope.part(t * b.sizes.rope, b.sizes.rope);
                    rope_tables(weights, context, position, tables);
                }
            }
        })?;
        self.pass(turn).inputs(self.tokens)?;
        self.pass(turn).begin_streams()
    }

    /// Takes what `count` tokens from `first` on have in place of embeddings, as the residual stream.
    /// Says whether these are hidden states of several places.
    pub fn enter(&self, first: usize, count: usize, input: TokenInput<'_>) -> Result<bool> {
        let (weights, b) = (self.rows.weights, &self.rows.buffers);
        let (hidden, stride) = (weights.hidden, b.sizes.entry);
        // SAFETY: no phase runs, so nobody else uses the residual stream.
        let x = unsafe { b.x.part(first * hidden, count * hidden) };
        match input {
            TokenInput::Embeddings => {}
            TokenInput::Stream(rows) => x.copy_from_slice(rows),
            TokenInput::States(from) => {
                // SAFETY: likewise.
                let entry = unsafe { b.entry.part(first * stride, count * stride) };
                return take_states(weights, from, x, entry);
            }
        }
        Ok(false)
    }

    /// Goes on from hidden states that are in the place of the residual stream, in a head that guesses further tokens, or from those of
    /// several places if they are `fused`.
    pub fn project_entry(&self, turn: &PoolTurn, fused: bool) -> Result<()> {
        self.pass(turn).project_entry(self.tokens, fused)
    }

    /// Writes the residual stream of the tokens from `first` on.
    pub fn leave(&self, first: usize, rows: &mut [f32]) {
        let at = first * self.rows.weights.hidden;
        // SAFETY: as in `enter`.
        rows.copy_from_slice(unsafe { self.rows.buffers.x.part(at, rows.len()) });
    }

    /// Runs a layer.
    pub fn run_layer(&self, turn: &PoolTurn, index: usize) -> Result<()> {
        self.pass(turn).block(&self.rows.weights.layers[index])
    }

    /// Runs the head of the last token.
    pub fn last_logits(&self, turn: &PoolTurn, out: &mut [f32]) -> Result<()> {
        let mut last = self.rows;
        let hidden = last.weights.hidden;
        last.count = 1;
        // SAFETY: no phase runs, so nobody else uses the residual stream.
        let x = unsafe { last.buffers.x.part((self.rows.count - 1) * hidden, hidden) };
        let from = Rows {
            span: Span::new(x),
            width: hidden,
            stride: hidden,
        };
        let skipped = (self.rows.count - 1) * last.buffers.sizes.streams;
        last.buffers.x = from.span;
        last.buffers.streams = last.buffers.streams.from(skipped);
        let pass = Pass {
            tokens: &last,
            ..self.pass(turn)
        };
        pass.end_streams()?;
        pass.head(from, Span::new(out))
    }

    /// Runs the head of every token: `n_vocab` logits each.
    pub fn all_logits(&self, turn: &PoolTurn, out: Span) -> Result<()> {
        let pass = self.pass(turn);
        pass.end_streams()?;
        pass.head(pass.residual(), out)
    }
}
