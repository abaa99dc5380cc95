//! What other threads end the calls of a session with.
//!
//! An interrupt counts until a call has answered it with `Interrupted`, or until it is taken back: one that comes
//! just before a call, or between two of a loop, must not be lost.

use super::Session;
use crate::error::{Result, Status, fail};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The interrupts of a session. Any thread may use it.
#[derive(Debug, Default)]
pub struct Interrupts {
    /// An interrupt was asked for, and no call has answered it.
    asked: AtomicBool,
    /// What backends look at: as `asked`, and set while work is stopped that nobody wants any more.
    work: Arc<AtomicBool>,
}

impl Interrupts {
    /// Interrupts the call that is running, or else the next one.
    pub fn ask(&self) {
        self.asked.store(true, Ordering::SeqCst);
        self.work.store(true, Ordering::SeqCst);
    }

    /// Takes an interrupt back that no call has answered.
    pub fn clear(&self) {
        self.asked.store(false, Ordering::SeqCst);
        self.end_work_stop();
    }

    /// Whether an interrupt is waiting for a call to answer it.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    /// The flag of rows of work.
    pub(super) fn work(&self) -> &Arc<AtomicBool> {
        &self.work
    }

    /// Stops the work that is under way, without an interrupt.
    pub(super) fn stop_work(&self) {
        self.work.store(true, Ordering::SeqCst);
    }

    /// Work may begin again, unless there is an interrupt.
    pub(super) fn end_work_stop(&self) {
        self.work.store(false, Ordering::SeqCst);
        // One that came in between has set the flag before, and it was lost.
        if self.is_asked() {
            self.work.store(true, Ordering::SeqCst);
        }
    }
}

impl Session {
    /// What other threads end its calls with.
    pub fn interrupts(&self) -> &Arc<Interrupts> {
        &self.interrupts
    }

    /// Whether an interrupt is to end the call between two pieces of work; not where the work has to see it.
    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupts.is_asked() && !self.model.weights().answers_interrupts()
    }

    /// The start of every call that computes: [`begin`](Session::begin), and `Interrupted` if an interrupt
    /// has come before it.
    pub(super) fn begin_work(&mut self) -> Result<()> {
        self.begin()?;
        if self.is_interrupted() {
            fail!(Interrupted, "interrupted before the call");
        }
        Ok(())
    }

    /// The end of every call that computes: an interrupt that it is the answer to is over.
    pub(super) fn answered<R>(&self, result: Result<R>) -> Result<R> {
        if let Err(e) = &result
            && e.status == Status::Interrupted
        {
            self.interrupts.clear();
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopped_work_is_no_interrupt_and_takes_none_away() {
        let i = Interrupts::default();
        i.stop_work();
        assert!(!i.is_asked() && i.work().load(Ordering::SeqCst));
        i.end_work_stop();
        assert!(!i.is_asked() && !i.work().load(Ordering::SeqCst));
        i.stop_work();
        i.ask();
        i.end_work_stop();
        assert!(i.is_asked() && i.work().load(Ordering::SeqCst));
        i.clear();
        assert!(!i.is_asked() && !i.work().load(Ordering::SeqCst));
    }
}
