//! Work that runs while the caller does something else: decodes, and prefills.

use super::Session;
use super::residence::Residence;
use crate::backend::{Outcome, When};
use crate::error::{Result, fail};
use crate::threads::event::Event;
use std::sync::Arc;

/// What was started and not collected yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Started {
    /// Nothing.
    Nothing,
    /// Decodes.
    Decodes {
        /// Choices that the runner has.
        running: usize,
        /// Choices that it gets when those were collected, because it takes no more at a time.
        later: usize,
    },
    /// One decode, in a batch, and decodes of the session alone behind it.
    Batch {
        /// How many.
        later: usize,
    },
    /// A prefill behind the first `before` tokens.
    Prefill {
        /// Tokens of the context.
        before: usize,
    },
}

impl Started {
    /// Decodes, if there are any.
    pub(super) fn decodes(running: usize, later: usize) -> Started {
        match running + later {
            0 => Started::Nothing,
            _ => Started::Decodes { running, later },
        }
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
        let result = self.try_start(count);
        self.answered(result)
    }

    fn try_start(&mut self, count: usize) -> Result<()> {
        if self.is_ahead() {
            self.check_started()?;
            self.check_room(count)?;
            // Collected from the runner, which has it.
            self.started = Started::decodes(1, count - 1);
            self.notify();
            return Ok(());
        }
        self.prepare_decodes(count)?;
        let running = match self.follow_grammar()? {
            // Collected from the grammar.
            Some(_) => 0,
            None => self.submit_choices(count, When::Background)?,
        };
        self.started = self.submitted(running, count - running);
        if running == 0 {
            self.notify();
        }
        Ok(())
    }

    /// What is started when choices were submitted.
    fn submitted(&self, running: usize, later: usize) -> Started {
        match self.lent_to {
            Some(_) => Started::Batch { later },
            None => Started::decodes(running, later),
        }
    }

    /// The next token of the started decodes, or `None` while it is not there. Never blocks.
    ///
    /// Errors: `NothingPending` if none was started; those of `decode`, after which the decodes
    /// that were not collected are over and the context is as it was before them. An interrupt
    /// comes after the tokens that had been chosen by then.
    pub fn decode_poll(&mut self) -> Result<Option<u32>> {
        self.decode_result(false)
    }

    /// The next token of the started decodes, which is waited for.
    pub(super) fn decode_wait(&mut self) -> Result<u32> {
        match self.decode_result(true)? {
            Some(token) => Ok(token),
            None => fail!(Internal, "a decode that was waited for is not there"),
        }
    }

    fn decode_result(&mut self, wait: bool) -> Result<Option<u32>> {
        self.no_generation()?;
        let result = match self.started {
            Started::Decodes { running, later } => self.collect(running, later, wait),
            Started::Batch { .. } => {
                let result = self.poll_batch(wait);
                return self.answered(result);
            }
            _ => fail!(NothingPending, "no decode was started"),
        };
        if result.is_err() {
            self.stop();
        }
        self.answered(result)
    }

    fn collect(&mut self, mut running: usize, mut later: usize, wait: bool) -> Result<Option<u32>> {
        if running == 0 {
            if self.is_interrupted() {
                fail!(Interrupted, "interrupted between two decodes");
            }
            if self.is_ahead() {
                running = 1;
            } else {
                if let Some(token) = self.follow_grammar()? {
                    self.started = Started::decodes(0, later - 1);
                    self.notify_of_more(0);
                    return self.append(token).map(Some);
                }
                running = self.submit_choices(later, When::Background)?;
            }
            later -= running;
            self.started = self.submitted(running, later);
            if self.lent_to.is_some() {
                return self.poll_batch(wait);
            }
        }
        match self.poll_token(wait) {
            Ok(None) => Ok(None),
            Ok(Some(token)) => {
                self.started = Started::decodes(running - 1, later);
                self.notify_of_more(running - 1);
                self.append(token).map(Some)
            }
            Err(e) => {
                self.started = Started::Nothing;
                Err(e)
            }
        }
    }

    /// A token was collected, and so many are under way. If the next one is there as well, or the next poll has to start it, nothing else
    /// would set the event.
    fn notify_of_more(&self, running: usize) {
        if (running == 0 || self.is_ahead()) && self.started != Started::Nothing {
            self.notify();
        }
    }

    /// Starts what `prefill` does and returns at once; [`Session::prefill_poll`] tells when it is
    /// done. Until then other calls fail with `DecodePending`, except for `rewind`. The context
    /// grows at its end.
    ///
    /// Errors: those of `prefill` that are known before any work.
    pub fn prefill_start(&mut self, tokens: &[u32]) -> Result<()> {
        let taken = self.take_prompt(tokens);
        self.answered(taken)?;
        let before = self.tokens.len() - tokens.len();
        let result = self.evaluate(When::Background);
        if result.is_err() {
            self.tokens.truncate(before);
            return self.answered(result);
        }
        self.started = Started::Prefill { before };
        Ok(())
    }

    /// Whether the started prefill is done, and how many of its tokens are evaluated by now. Never
    /// blocks.
    ///
    /// Errors: `NothingPending` if none was started; those of `prefill`, after which it is over and
    /// the context is as it was before it.
    pub fn prefill_poll(&mut self) -> Result<(bool, usize)> {
        self.prefill_result(false)
    }

    /// Waits for the started prefill.
    pub(super) fn prefill_wait(&mut self) -> Result<()> {
        match self.prefill_result(true)? {
            (true, _) => Ok(()),
            (false, _) => fail!(Internal, "a prefill that was waited for is not done"),
        }
    }

    /// What a generation has started is for it to collect.
    fn no_generation(&self) -> Result<()> {
        if self.generation.is_some() {
            fail!(
                NothingPending,
                "a generation was started, whose tokens ember_generate_next returns"
            );
        }
        Ok(())
    }

    fn prefill_result(&mut self, wait: bool) -> Result<(bool, usize)> {
        self.no_generation()?;
        let Started::Prefill { before } = self.started else {
            fail!(NothingPending, "no prefill was started");
        };
        let total = self.tokens.len() - before;
        let result = match self.residence.runner()?.poll(wait) {
            Ok(None) => {
                let done = self.residence.runner()?.progress().saturating_sub(before);
                return Ok((false, done.min(total)));
            }
            Ok(Some(Outcome::Logits)) => Ok(()),
            Ok(Some(other)) => fail!(Internal, "{other:?} where logits were wanted"),
            Err(e) => Err(e),
        };
        self.started = Started::Nothing;
        self.end_prompt(before, &result);
        self.answered(result).map(|()| (true, total))
    }

    /// Has whoever waits for the session's event poll.
    pub(super) fn notify(&self) {
        if let Some(event) = &self.event {
            event.set();
        }
    }

    /// Sets an event whenever a call of `decode_poll` or `prefill_poll` may find something; none from now on if there is
    /// none.
    ///
    /// Errors: `DecodePending`.
    pub fn set_event(&mut self, event: Option<Arc<Event>>) -> Result<()> {
        self.begin()?;
        if let Residence::Device(runner) = &mut self.residence {
            runner.set_event(event.clone());
        }
        self.event = event;
        Ok(())
    }

    /// Ends what was started and waits until it has ended. Tokens that were not collected are lost.
    pub(super) fn stop(&mut self) {
        let mut running = match self.started {
            Started::Nothing => return,
            Started::Decodes { running, .. } => running,
            Started::Batch { .. } => {
                self.interrupts.stop_work();
                let before = self.tokens.len();
                // Whatever it has come to is not wanted.
                if let Ok(Some(_)) = self.poll_batch(true) {
                    self.take_back(before);
                }
                0
            }
            Started::Prefill { before } => {
                self.tokens.truncate(before);
                1
            }
        };
        let was_ahead = self.is_ahead();
        let is_prefill = matches!(self.started, Started::Prefill { .. });
        self.started = Started::Nothing;
        if self.residence.runner().is_err() {
            return;
        }
        // What is ahead is a part of what a step has chosen: all of that is dropped.
        while running > 0 && !was_ahead {
            self.interrupts.stop_work();
            let polled = match is_prefill {
                true => self.wait().is_ok(),
                false => self.poll_token(true).is_ok(),
            };
            running = if polled { running - 1 } else { 0 };
        }
        self.drop_ahead();
        self.interrupts.end_work_stop();
        // The runner may be ahead of the context now.
        self.residence.roll_back_to(self.tokens.len());
    }
}
