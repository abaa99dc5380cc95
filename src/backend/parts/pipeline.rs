//! Tokens go through the parts in pieces: while one part has a piece, the part before has the next one.

use super::core::Core;
use super::weights::PartsWeights;
use crate::backend::{
    HostFloats, MaskSource, Residual, Row, Runner, Want, Weights, When, heap_floats,
};
use crate::error::{Error, Result, fail};
use crate::{memory, panics, threads};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Tokens of the smallest whole piece.
pub(super) const PIECE: usize = 512;

/// Pieces between two parts.
const SLOTS: usize = 2;

/// Memory for the residual streams of pieces, between each two parts.
#[derive(Default)]
pub(super) struct Slots {
    /// Floats of a piece.
    floats: usize,
    between: Vec<[Mutex<HostFloats>; SLOTS]>,
}

impl Slots {
    /// Errors: `OutOfMemory`.
    pub fn new(parts: &[Arc<dyn Weights>], floats: usize) -> Result<Slots> {
        let mut between = Vec::new();
        for two in parts.windows(2) {
            // Memory that is good for a GPU is good for all.
            let of = |weights: &Arc<dyn Weights>| weights.host_floats(floats);
            let slot = || match of(&two[0])? {
                Some(floats) => Ok(floats),
                None => match of(&two[1])? {
                    Some(floats) => Ok(floats),
                    None => heap_floats(floats, "the residual stream between parts"),
                },
            };
            between.push([Mutex::new(slot()?), Mutex::new(slot()?)]);
        }
        Ok(Slots { floats, between })
    }

    /// Whether a piece of so many floats has room.
    pub fn have_room(&self, floats: usize) -> bool {
        floats <= self.floats
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Floats and counts; after a panic, the work has failed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How far the parts are.
struct Progress {
    /// Pieces that each part has done.
    done: Vec<usize>,
    /// Parts that have one now.
    busy: Vec<bool>,
    failed: Option<Error>,
}

impl Progress {
    /// A part that can go on, the last one if several can, and its piece.
    fn next(&self, pieces: usize) -> Option<(usize, usize)> {
        let parts = self.done.len();
        let can_go_on = |part: &usize| {
            let piece = self.done[*part];
            let has_input = *part == 0 || self.done[part - 1] > piece;
            let has_room = part + 1 == parts || self.done[part + 1] + SLOTS > piece;
            !self.busy[*part] && piece < pieces && has_input && has_room
        };
        let part = (0..parts).rev().find(can_go_on)?;
        Some((part, self.done[part]))
    }

    /// Whether there is nothing to begin any more.
    fn is_over(&self, pieces: usize) -> bool {
        self.failed.is_some() || self.done.last().is_none_or(|done| *done == pieces)
    }
}

/// What threads share that bring pieces through parts.
struct Pipeline<'a> {
    weights: &'a PartsWeights,
    parts: Vec<Mutex<&'a mut Box<dyn Runner>>>,
    pieces: Vec<&'a [u32]>,
    /// Of the last piece.
    want: Want,
    interrupt: &'a Arc<AtomicBool>,
    slots: &'a Slots,
    progress: Mutex<Progress>,
    moved: Condvar,
    /// The session's, for other threads: positions that all parts have.
    evaluated: &'a AtomicUsize,
}

impl Pipeline<'_> {
    /// Brings pieces through parts until the last one is through, or one fails.
    fn work(&self) {
        let n = self.pieces.len();
        let mut progress = lock(&self.progress);
        while !progress.is_over(n) {
            let Some((part, piece)) = progress.next(n) else {
                let waited = self.moved.wait(progress);
                progress = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            progress.busy[part] = true;
            drop(progress);
            let done = panics::catch(|| {
                self.evaluate(part, piece)?;
                memory::check()
            });
            progress = lock(&self.progress);
            progress.busy[part] = false;
            match done {
                Ok(()) => progress.done[part] += 1,
                Err(e) => progress.failed = progress.failed.take().or(Some(e)),
            }
            self.moved.notify_all();
        }
    }

    fn evaluate(&self, part: usize, piece: usize) -> Result<()> {
        let tokens = self.pieces[piece];
        let floats = tokens.len() * self.weights.hidden();
        let is_last = part + 1 == self.parts.len();
        let slot = |boundary: usize| lock(&self.slots.between[boundary][piece % SLOTS]);
        let input = part.checked_sub(1).map(slot);
        let mut output = (!is_last).then(|| slot(part));
        let mut runner = lock(&self.parts[part]);
        let row = Row {
            runner: &mut ***runner,
            tokens,
            want: match piece + 1 == self.pieces.len() {
                true => self.want,
                false => Want::Evaluated,
            },
            mask: None::<&mut MaskSource<'_>>,
            interrupt: self.interrupt,
            residual: Residual {
                input: input.as_ref().map(|input| &input[..floats]).into(),
                output: output.as_mut().map(|output| &mut output[..floats]),
            },
        };
        let weights = &self.weights.parts()[part];
        let submitted = weights.submit(&mut [row], When::Now);
        submitted.map_err(|e| e.error)?;
        runner.poll(true)?;
        if is_last {
            self.evaluated.fetch_add(tokens.len(), Relaxed);
        }
        Ok(())
    }
}

/// Has all parts of a session evaluate tokens, for the logits of the last one or for nothing else. After an error, the parts may be at
/// different positions.
pub(super) fn evaluate(
    core: &mut Core,
    tokens: &[u32],
    want: Want,
    interrupt: &Arc<AtomicBool>,
) -> Result<()> {
    let weights = core.weights.clone();
    let mut pieces = Vec::new();
    let mut rest = tokens;
    // The last token is never alone: then it would be evaluated as a step, which has other sums on a GPU.
    let most = weights.piece(tokens.len());
    while rest.len() > most {
        let (first, behind) = rest.split_at(most.min(rest.len() - 1));
        pieces.push(first);
        rest = behind;
    }
    pieces.push(rest);
    let slots = weights.slots(pieces[0].len())?;
    let n = core.parts.len();
    let evaluated = core.progress.clone();
    let pipeline = Pipeline {
        weights: &weights,
        parts: core.parts.iter_mut().map(Mutex::new).collect(),
        want,
        interrupt,
        slots: &slots,
        progress: Mutex::new(Progress {
            done: vec![0; n],
            busy: vec![false; n],
            failed: None,
        }),
        moved: Condvar::new(),
        evaluated: &evaluated,
        pieces,
    };
    memory::check()?;
    let helpers = n.min(pipeline.pieces.len()) - 1;
    let help = || {
        weights.placement().apply();
        pipeline.work();
    };
    match helpers {
        0 => pipeline.work(),
        // With fewer threads than parts, some take turns.
        _ => threads::beside("ember-parts", helpers, &help, |_| pipeline.work()),
    }
    let progress = pipeline.progress.into_inner();
    match progress.unwrap_or_else(PoisonError::into_inner) {
        Progress {
            failed: Some(e), ..
        } => Err(e),
        Progress { done, .. } if done.last() != Some(&pipeline.pieces.len()) => {
            fail!(Internal, "a piece that is not through all parts")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_at_most_two_pieces_apart() {
        let mut progress = Progress {
            done: vec![0; 3],
            busy: vec![false; 3],
            failed: None,
        };
        assert_eq!(progress.next(5), Some((0, 0)));
        progress.busy[0] = true;
        assert_eq!(progress.next(5), None);
        progress.busy[0] = false;
        progress.done[0] = 1;
        // The part that is furthest goes first.
        assert_eq!(progress.next(5), Some((1, 0)));
        progress.busy[1] = true;
        assert_eq!(progress.next(5), Some((0, 1)));
        progress.done[0] = 2;
        // No room for a third.
        assert_eq!(progress.next(5), None);
        progress.busy[1] = false;
        progress.done[1] = 1;
        progress.busy[2] = true;
        assert_eq!(progress.next(5), Some((1, 1)));
        progress.busy[1] = true;
        assert_eq!(progress.next(5), Some((0, 2)));
        // A part that has done all pieces has no more.
        progress.done = vec![2, 2, 1];
        progress.busy = vec![false; 3];
        assert_eq!(progress.next(2), Some((2, 1)));
        assert!(!progress.is_over(2));
        progress.done[2] = 2;
        assert_eq!(progress.next(2), None);
        assert!(progress.is_over(2));
    }
}
