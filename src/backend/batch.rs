//! Steps of several sessions together.

use super::{MaskSource, Runner, Step};
use crate::error::{Error, Result};
use std::sync::atomic::AtomicBool;

/// The most sessions in a batch.
pub const MAX_BATCH: usize = 32;

/// The error of one session of a batch, which names it.
pub fn at_index(index: usize, error: Error) -> Error {
    Error::new(
        error.status,
        format!("session at index {index}: {}", error.message),
    )
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
