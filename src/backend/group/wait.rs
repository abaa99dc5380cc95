//! A wait for other ranks, which the caller may stop.

use super::line::pause;
use crate::error::Result;
use std::time::{Duration, Instant};

/// Asked while a rank waits: an error ends the wait.
pub type Stop<'a> = dyn FnMut() -> Result<()> + 'a;

/// How often that is asked.
const ASK: Duration = Duration::from_millis(10);
/// How often others are told that a rank is there and waits.
const NOTICE: Duration = Duration::from_millis(100);

/// A wait that has begun.
pub struct Wait<'a, 's> {
    begun: Instant,
    asked: Instant,
    noted: Instant,
    stop: &'a mut Stop<'s>,
}

impl<'a, 's> Wait<'a, 's> {
    pub fn new(stop: &'a mut Stop<'s>) -> Wait<'a, 's> {
        let begun = Instant::now();
        Wait {
            begun,
            asked: begun,
            noted: begun,
            stop,
        }
    }

    /// Whether it has lasted longer than that.
    pub fn is_longer(&self, patience: Duration) -> bool {
        self.begun.elapsed() > patience
    }

    /// What is left of a time, at most `most`.
    pub fn left(&self, patience: Duration, most: Duration) -> Option<Duration> {
        let left = patience.checked_sub(self.begun.elapsed())?;
        (!left.is_zero()).then(|| left.min(most))
    }

    /// Whether others are to be told now that this one waits.
    pub fn has_notice(&mut self) -> bool {
        let now = self.noted.elapsed() > NOTICE;
        if now {
            self.noted = Instant::now();
        }
        now
    }

    /// Waits a moment. The error of who stops it.
    pub fn pause(&mut self) -> Result<()> {
        if self.asked.elapsed() > ASK {
            self.asked = Instant::now();
            (self.stop)()?;
        }
        pause(self.begun);
        Ok(())
    }
}
