//! Steps of several sessions together.

use super::{MaskSource, Runner, Step};
use crate::error::{Error, Result};
use std::sync::atomic::AtomicBool;

/// The most sessions in a batch.
pub const MAX_BATCH: usize = 32;

/// How an error begins that concerns one session of a batch.
const INDEX: &str = "session at index ";

/// The error of one session of a batch, which names it.
pub fn at_index(index: usize, error: Error) -> Error {
    Error::new(error.status, format!("{INDEX}{index}: {}", error.message))
}

/// The error of a batch of some of the sessions as one of all: the session that it names at index
/// `i` is at `places[i]` there.
pub fn move_index(error: Error, places: &[usize]) -> Error {
    let named = error.message.strip_prefix(INDEX).and_then(|rest| {
        let (index, message) = rest.split_once(": ")?;
        Some((places.get(index.parse::<usize>().ok()?)?, message))
    });
    match named {
        Some((place, message)) => at_index(*place, Error::new(error.status, message)),
        None => error,
    }
}

/// Does the steps one after another; after an error, takes back those that were done.
pub(super) fn one_by_one(
    runners: &mut [&mut dyn Runner],
    steps: &[Step],
    masks: &mut [Option<&mut MaskSource<'_>>],
    interrupts: &[&AtomicBool],
    tokens: &mut [u32],
) -> Result<()> {
    let n = runners.len();
    assert!(n <= MAX_BATCH && steps.len() == n && interrupts.len() == n && tokens.len() == n);
    let mut chosen = [0u32; MAX_BATCH];
    for i in 0..n {
        let mask = masks.get_mut(i).and_then(|m| m.as_deref_mut());
        match runners[i].step_masked(&steps[i], mask, interrupts[i]) {
            Ok(token) => chosen[i] = token,
            Err(e) => {
                let done = runners[..i].iter_mut().zip(steps);
                for (runner, _) in done.filter(|(_, step)| step.token.is_some()) {
                    runner.truncate(runner.len() - 1);
                }
                return Err(at_index(i, e));
            }
        }
    }
    tokens.copy_from_slice(&chosen[..n]);
    Ok(())
}
