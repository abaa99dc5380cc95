//! A lock handed over in the order of arrival, whose waiters can be interrupted.

use crate::error::{Result, fail};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often a waiter looks at its interrupt flag.
const LOOK: Duration = Duration::from_millis(5);

/// The lock. A thread that gives it up and asks again stands behind all who were waiting.
pub struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    taken: bool,
    next_ticket: u64,
    waiting: VecDeque<u64>,
}

/// Held until dropped.
pub struct Turn<'a>(&'a Turns);

impl Turns {
    /// A free lock.
    pub fn new() -> Turns {
        let state = State {
            taken: false,
            next_ticket: 0,
            waiting: VecDeque::with_capacity(64),
        };
        Turns {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that panics runs under this mutex.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the turn. Errors: `Interrupted` if the flag is set while waiting.
    pub fn take(&self, interrupt: &AtomicBool) -> Result<Turn<'_>> {
        self.take_unless(|| interrupt.load(Ordering::Relaxed))
    }

    /// Waits for the turn. Errors: `Interrupted` if `stop` says so while waiting.
    pub fn take_unless(&self, stop: impl Fn() -> bool) -> Result<Turn<'_>> {
        let mut state = self.state();
        if state.taken || !state.waiting.is_empty() {
            let ticket = state.next_ticket;
            state.next_ticket += 1;
            state.waiting.push_back(ticket);
            while state.taken || state.waiting.front() != Some(&ticket) {
                if stop() {
                    state.waiting.retain(|&t| t != ticket);
                    drop(state);
                    self.changed.notify_all();
                    fail!(Interrupted, "interrupted while waiting for other sessions");
                }
                let waited = self.changed.wait_timeout(state, LOOK);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            state.waiting.pop_front();
        }
        state.taken = true;
        Ok(Turn(self))
    }
}

impl Turn<'_> {
    /// Whether somebody waits for this turn to end.
    pub fn is_wanted(&self) -> bool {
        !self.0.state().waiting.is_empty()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.taken = false;
        let wanted = !state.waiting.is_empty();
        drop(state);
        if wanted {
            self.0.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Status;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn turns_exclude_each_other() {
        let turns = Turns::new();
        let (inside, total) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _turn = turns.take(&AtomicBool::new(false)).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        total.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(total.into_inner(), 800);
    }

    #[test]
    fn turns_are_handed_over_in_order() {
        let turns = Turns::new();
        let order = Mutex::new(Vec::new());
        let never = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mut first = Some(turns.take(&never).unwrap());
            for i in 0..4 {
                let (turns, order, never) = (&turns, &order, &never);
                scope.spawn(move || {
                    let _turn = turns.take(never).unwrap();
                    order.lock().unwrap().push(i);
                });
                while turns.state().waiting.len() <= i {
                    std::thread::yield_now();
                }
                assert!(first.as_ref().unwrap().is_wanted());
            }
            drop(first.take());
        });
        assert_eq!(order.into_inner().unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn an_interrupted_waiter_leaves_the_queue() {
        let turns = Turns::new();
        let (never, set) = (AtomicBool::new(false), AtomicBool::new(true));
        let turn = turns.take(&never).unwrap();
        let error = turns.take(&set).err().unwrap();
        assert_eq!(error.status, Status::Interrupted);
        assert!(!turn.is_wanted());
        drop(turn);
        assert!(turns.take(&set).is_ok(), "a free turn is not refused");
    }
}
