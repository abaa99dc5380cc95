//! What a head that guesses further tokens has in front of its layers.

use super::elementwise::add_bias;
use super::layer::{NormWeights, Product, product};
use super::matmul::Isa;
use super::pass::{Pass, Rows};
use super::pool::Work;
use super::token::embed;
use crate::error::Result;
use crate::model::Entry;

/// See [`Entry`].
pub(super) struct EntryWeights {
    token_norm: NormWeights,
    state_norm: NormWeights,
    projection: Product,
}

impl EntryWeights {
    pub fn new(entry: &Entry, isa: Isa) -> Result<EntryWeights> {
        Ok(EntryWeights {
            token_norm: NormWeights::new(&entry.token_norm)?,
            state_norm: NormWeights::new(&entry.state_norm)?,
            projection: product(&entry.projection, isa)?,
        })
    }

    /// Floats of its own.
    pub fn floats(&self) -> usize {
        let norms = self.token_norm.floats() + self.state_norm.floats();
        norms + self.projection.bias_len()
    }
}

impl Pass<'_, '_> {
    /// Makes the residual stream of these tokens and of the hidden states that are in its place.
    pub fn project_entry(&self, ids: &[u32]) -> Result<()> {
        let (tokens, b) = (self.tokens, &self.tokens.buffers);
        let weights = tokens.weights;
        let Some(entry) = &weights.entry else {
            return Ok(());
        };
        let hidden = weights.hidden;
        let work = Work::even(tokens.count, 100 + hidden as u64);
        self.phase(work, move |me, range| {
            for t in range {
                // SAFETY: each token is one thread's. The weights' instruction set is the processor's.
                unsafe {
                    let both = b.entry.part(2 * t * hidden, 2 * hidden);
                    let (token, state) = both.split_at_mut(hidden);
                    // Networks with learned positions have no heads.
                    embed(weights, (ids[t], 0), token, &mut me.row);
                    entry
                        .token_norm
                        .apply_in_place(tokens.isa(), token, &mut me.row);
                    state.copy_from_slice(b.x.part(t * hidden, hidden));
                    entry
                        .state_norm
                        .apply_in_place(tokens.isa(), state, &mut me.row);
                }
            }
        })?;
        let both = Rows {
            span: b.entry,
            width: 2 * hidden,
            stride: 2 * hidden,
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
