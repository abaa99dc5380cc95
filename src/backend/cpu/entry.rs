//! What a head that guesses further tokens has in front of its layers.

use super::elementwise::add_bias;
use super::layer::{NormWeights, Product, product};
use super::matmul::Isa;
use super::pass::{Pass, Rows};
use super::pool::Work;
use super::token::embed;
use super::weights::CpuWeights;
use crate::backend::StatesFrom;
use crate::error::{Result, fail};
use crate::model::Entry;

/// See [`Entry`].
pub(super) struct EntryWeights {
    token_norm: NormWeights,
    state_norm: NormWeights,
    projection: Product,
    /// Of a head that reads several hidden states: whether the residual stream begins as the norm.
    fusion: Option<bool>,
}

impl EntryWeights {
    pub fn new(entry: &Entry, isa: Isa) -> Result<EntryWeights> {
        Ok(EntryWeights {
            token_norm: NormWeights::new(&entry.token_norm)?,
            state_norm: NormWeights::new(&entry.state_norm)?,
            projection: product(&entry.projection, isa)?,
            fusion: entry.fusion.as_ref().map(|fusion| fusion.normed_stream),
        })
    }

    /// Whether the mixer reads embeddings and hidden states.
    pub fn is_read(&self) -> bool {
        self.fusion.is_some()
    }

    /// Floats of its own.
    pub fn floats(&self) -> usize {
        let norms = self.token_norm.floats() + self.state_norm.floats();
        norms + self.projection.bias_len()
    }
}

/// Takes the hidden states of positions: in place of the residual stream, or several of each position into rows of `entry`. Says
/// whether it is the latter.
///
/// Errors: `Internal` for states that the network does not take, or that are not there.
pub(super) fn take_states(
    weights: &CpuWeights,
    from: StatesFrom<'_>,
    x: &mut [f32],
    entry: &mut [f32],
) -> Result<bool> {
    let (width, hidden) = (from.states.width(), weights.hidden);
    if width == hidden {
        from.states.read(from.position, x)?;
        return Ok(false);
    }
    let fused = weights.entry.as_ref().filter(|entry| entry.is_read());
    if fused.is_none_or(|entry| entry.projection.matrix.cols() != width) {
        fail!(
            Internal,
            "hidden states of {width} floats for a network of {hidden}"
        );
    }
    let rows = entry.chunks_exact_mut(weights.sizes.entry);
    for (i, row) in rows.take(x.len() / hidden).enumerate() {
        from.states.read(from.position + i, &mut row[..width])?;
    }
    Ok(true)
}

impl Pass<'_, '_> {
    /// Makes the residual stream of these tokens and of the hidden states that are in its place; or, if these are `fused`, several of
    /// each token that are beside.
    pub fn project_entry(&self, ids: &[u32], fused: bool) -> Result<()> {
        let (tokens, b) = (self.tokens, &self.tokens.buffers);
        let weights = tokens.weights;
        let Some(entry) = &weights.entry else {
            return Ok(());
        };
        if fused {
            self.project(entry, entry.projection.matrix.cols())?;
        }
        let (hidden, stride) = (weights.hidden, b.sizes.entry);
        let work = Work::even(tokens.count, 100 + hidden as u64);
        self.phase(work, move |me, range| {
            for t in range {
                // SAFETY: each token is one thread's. The weights' instruction set is the processor's.
                unsafe {
                    let both = b.entry.part(t * stride, 2 * hidden);
                    let (token, state) = both.split_at_mut(hidden);
                    // Networks with learned positions have no heads.
                    embed(weights, (ids[t], 0), None, token, &mut me.row);
                    entry
                        .token_norm
                        .apply_in_place(tokens.isa(), token, &mut me.row);
                    let x = b.x.part(t * hidden, hidden);
                    state.copy_from_slice(x);
                    entry
                        .state_norm
                        .apply_in_place(tokens.isa(), state, &mut me.row);
                    if entry.fusion == Some(true) {
                        x.copy_from_slice(state);
                    }
                }
            }
        })?;
        match entry.fusion {
            None => self.project(entry, 2 * hidden),
            // They are read as they are.
            Some(_) => Ok(()),
        }
    }

    /// Embeddings and hidden states of the tokens, as the mixer of a head with a fusion reads them.
    pub fn joined(&self) -> Option<Rows<'_>> {
        let entry = self.tokens.weights.entry.as_ref();
        entry.filter(|entry| entry.is_read())?;
        let b = &self.tokens.buffers;
        Some(Rows {
            span: b.entry,
            width: 2 * b.sizes.hidden,
            stride: b.sizes.entry,
        })
    }

    /// Makes the residual stream what the projection makes of so many floats of each token.
    fn project(&self, entry: &EntryWeights, width: usize) -> Result<()> {
        let (tokens, b) = (self.tokens, &self.tokens.buffers);
        let hidden = b.sizes.hidden;
        let both = Rows {
            span: b.entry,
            width,
            stride: b.sizes.entry,
        };
        self.encode(None, both, entry.projection.matrix.encodings())?;
        self.products([&entry.projection], [self.residual()])?;
        let Some(bias) = entry.projection.bias.as_deref() else {
            return Ok(());
        };
        self.phase(Work::even(tokens.count, hidden as u64), move |_, range| {
            for t in range {
                // SAFETY: each token is one thread's.
                add_bias(unsafe { b.x.part(t * hidden, hidden) }, Some(bias));
            }
        })
    }
}
