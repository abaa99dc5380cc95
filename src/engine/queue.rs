//! Decodes that run while the caller does something else.

use super::Session;
use super::session::{Next, mask_source};
use crate::backend::Step;
use crate::error::{Result, fail};
use std::sync::atomic::Ordering;

/// Started decodes that were not collected yet.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Steps that the runner has.
    running: usize,
    /// Steps that it gets when those were collected, because it takes no more at a time.
    later: usize,
}

impl Queue {
    /// Whether all that was started was collected.
    pub(super) fn is_empty(&self) -> bool {
        self.running == 0 && self.later == 0
    }
}

impl Session {
    /// Starts what `count` calls of `decode` do and returns at once. [`Session::decode_poll`] has
    /// the results, one by one; until all were collected other calls fail with `DecodePending`,
    /// except for `rewind`. No token stops it, not one that ends the text either.
    ///
    /// Errors: `InvalidArgument` for none; `ContextFull` if there is no room for all of them; else
    /// those of `decode` that are known before any work.
    pub fn decode_start(&mut self, count: usize) -> Result<()> {
        if count == 0 {
            fail!(InvalidArgument, "count is 0");
        }
        self.prepare_decodes(count)?;
        match self.next_decode()? {
            Next::Step(step) => self.start(&step, count)?,
            // Collected from the grammar.
            Next::Forced(_) => self.queue.later = count,
        }
        Ok(())
    }

    fn start(&mut self, step: &Step, count: usize) -> Result<()> {
        let now = match mask_source(&mut self.constraint) {
            // The mask of each depends on the token before it.
            Some(mut mask) => {
                self.runner
                    .step_start_masked(step, &mut mask, &self.interrupt)?;
                1
            }
            None => {
                let now = count.min(self.runner.queue_limit());
                self.runner.steps_start(step, now, &self.interrupt)?;
                now
            }
        };
        self.queue = Queue {
            running: now,
            later: count - now,
        };
        Ok(())
    }

    /// The next token of the started decodes, or `None` while it is not there. Never blocks.
    ///
    /// Errors: `NothingPending` if none was started; those of `decode`, after which the decodes
    /// that were not collected are over and the context is as it was before them. An interrupt
    /// comes after the tokens that had been chosen by then.
    pub fn decode_poll(&mut self) -> Result<Option<u32>> {
        if self.queue.is_empty() {
            fail!(NothingPending, "no decode was started");
        }
        let result = self.collect();
        if result.is_err() {
            self.stop();
        }
        result
    }

    fn collect(&mut self) -> Result<Option<u32>> {
        if self.queue.running == 0 {
            match self.next_decode()? {
                Next::Step(step) => self.start(&step, self.queue.later)?,
                Next::Forced(token) => {
                    self.queue.later -= 1;
                    return self.append(token).map(Some);
                }
            }
        }
        match self.runner.step_poll(false) {
            Ok(None) => Ok(None),
            Ok(Some(token)) => {
                self.queue.running -= 1;
                self.append(token).map(Some)
            }
            Err(e) => {
                self.queue.running = 0;
                Err(e)
            }
        }
    }

    /// Ends the started decodes and waits until they have ended. Tokens that were not collected are
    /// lost.
    pub(super) fn stop(&mut self) {
        self.queue.later = 0;
        if self.queue.running == 0 {
            return;
        }
        while self.queue.running > 0 {
            self.interrupt.store(true, Ordering::Relaxed);
            match self.runner.step_poll(true) {
                Ok(Some(_)) => self.queue.running -= 1,
                _ => self.queue.running = 0,
            }
        }
        // The runner may be ahead of the context now.
        if self.runner.len() > self.tokens.len() {
            self.runner.truncate(self.tokens.len());
        }
    }
}
