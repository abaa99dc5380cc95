//! Log-probabilities of a choice.

use super::filter::{Candidate, first, largest, rank};
use super::{Scratch, fixed};
use crate::error::Result;
use arrayvec::ArrayVec;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// Boxes that the log-probabilities of a session's choices are kept in, used again and again, so that a
/// choice asks for no memory. Clones share them.
#[derive(Clone, Default)]
pub struct LogprobBoxes(Arc<Mutex<ArrayVec<Box<Logprobs>, KEPT_BOXES>>>);

/// More choices than these wait to be collected only where the host has started as many.
const KEPT_BOXES: usize = 64;

impl LogprobBoxes {
    /// With one for the choice that the host may look at, and one for the next.
    pub fn new() -> LogprobBoxes {
        let boxes = LogprobBoxes::default();
        boxes.put_back(Some(Box::default()));
        boxes.put_back(Some(Box::default()));
        boxes
    }

    /// A box with `values`.
    pub fn fill(&self, values: Logprobs) -> Box<Logprobs> {
        match self.lock().pop() {
            Some(mut spare) => {
                *spare = values;
                spare
            }
            None => Box::new(values),
        }
    }

    /// Takes a box back.
    pub fn put_back(&self, spare: Option<Box<Logprobs>>) {
        if let Some(spare) = spare {
            // Beyond the limit it is freed.
            let _ = self.lock().try_push(spare);
        }
    }

    fn lock(&self) -> MutexGuard<'_, ArrayVec<Box<Logprobs>, KEPT_BOXES>> {
        // Nothing that panics runs under this mutex.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
