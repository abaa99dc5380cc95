//! Log-probabilities of a choice.

use super::filter::{Candidate, first, largest, rank};
use super::{Scratch, fixed};
use crate::error::Result;
use arrayvec::ArrayVec;

/// The most tokens that are reported with a choice.
pub const MAX_LOGPROBS: usize = 64;

/// How probable the model holds a chosen token and the most probable ones: natural logarithms of the
/// softmax of the model's own logits, before any setting changes them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logprobs {
    /// The log-probability of the token that was chosen.
    pub chosen: f32,
    /// Token ids and their log-probabilities, the most probable first, equal ones by id.
    pub top: ArrayVec<(u32, f32), MAX_LOGPROBS>,
}

impl Logprobs {
    /// Those of token `chosen` and the `n` most probable, at most [`MAX_LOGPROBS`].
    ///
    /// Errors: those of `choose` about the logits.
    pub fn of(logits: &[f32], chosen: u32, n: u32, scratch: &mut Scratch) -> Result<Logprobs> {
        let best = largest(logits)?.value;
        let sum = logits
            .iter()
            .map(|&l| fixed::weight(f64::from(l) - f64::from(best)))
            .sum();
        let n = (n as usize).min(MAX_LOGPROBS).min(logits.len());
        let candidates = &mut scratch.candidates;
        first(logits, n, candidates);
        candidates.sort_unstable_by(rank);
        Ok(Logprobs::from_parts(
            best,
            sum,
            logits[chosen as usize],
            candidates.iter().map(|c: &Candidate| (c.id, c.value)),
        ))
    }

    /// From the largest logit, the sum of the weights of all, the chosen token's logit, and the ids
    /// and logits of the top.
    pub fn from_parts(
        best: f32,
        sum: u64,
        chosen: f32,
        top: impl Iterator<Item = (u32, f32)>,
    ) -> Logprobs {
        let ln = fixed::ln(sum);
        let of = |logit: f32| (f64::from(logit) - f64::from(best) - ln) as f32;
        Logprobs {
            chosen: of(chosen),
            top: top.take(MAX_LOGPROBS).map(|(id, l)| (id, of(l))).collect(),
        }
    }
}
