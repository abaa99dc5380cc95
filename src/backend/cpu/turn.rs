//! Whose turn it is: a lock handed over in the order of arrival, whose waiters can be interrupted,
//! and beside it seats for some of those who would wait.

use crate::error::{Result, fail};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often a waiter looks at its interrupt flag.
const LOOK: Duration = Duration::from_millis(5);

/// Waiters are woken singly, if they are no more than this.
const BELLS: usize = 32;

/// The lock. A thread that gives it up and asks again stands behind all who were waiting.
pub struct Turns {
    state: Mutex<State>,
    /// A waiter listens to the one of its ticket.
    bells: [Condvar; BELLS],
    seats_taken: AtomicUsize,
    /// Holders of the turn, of seats, and waiters.
    users: AtomicUsize,
}

struct State {
    taken: bool,
    free_seats: Vec<usize>,
    next_ticket: u64,
    waiting: VecDeque<Waiter>,
}

struct Waiter {
    ticket: u64,
    /// It takes a seat if there are at least so many users.
    seat_from: usize,
}

/// Held until dropped: the turn, or a seat.
pub struct Turn<'a> {
    turns: &'a Turns,
    seat: Option<usize>,
}

impl Turns {
    /// A free lock, and so many seats.
    pub fn new(seats: usize) -> Turns {
        let state = State {
            taken: false,
            free_seats: (0..seats).rev().collect(),
            next_ticket: 0,
            waiting: VecDeque::with_capacity(64),
        };
        Turns {
            state: Mutex::new(state),
            bells: [const { Condvar::new() }; BELLS],
            seats_taken: AtomicUsize::new(0),
            users: AtomicUsize::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that panics runs under this mutex.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Seats that are taken at the moment.
    pub fn seats_taken(&self) -> usize {
        self.seats_taken.load(Ordering::Relaxed)
    }

    /// Holders of the turn and of seats, and waiters, at the moment.
    pub fn users(&self) -> usize {
        self.users.load(Ordering::Relaxed)
    }

    /// Waits for the turn. Errors: `Interrupted` if the flag is set while waiting.
    pub fn take(&self, interrupt: &AtomicBool) -> Result<Turn<'_>> {
        self.take_unless(|| interrupt.load(Ordering::Relaxed))
    }

    /// Waits for the turn. Errors: `Interrupted` if `stop` says so while waiting.
    pub fn take_unless(&self, stop: impl Fn() -> bool) -> Result<Turn<'_>> {
        self.wait(usize::MAX, stop)
    }

    /// Waits for the turn, or a seat if users are at least half as many as `useful`, whichever
    /// comes first. Errors: `Interrupted` if `stop` says so while waiting.
    pub fn take_or_seat(&self, useful: usize, stop: impl Fn() -> bool) -> Result<Turn<'_>> {
        self.wait(useful.div_ceil(2), stop)
    }

    fn wait(&self, seat_from: usize, stop: impl Fn() -> bool) -> Result<Turn<'_>> {
        self.users.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.waiting.push_back(Waiter { ticket, seat_from });
        loop {
            if let Some(seat) = self.serve(&mut state, ticket) {
                // Whoever is first now may find something, too.
                self.ring(&state);
                return Ok(Turn { turns: self, seat });
            }
            if stop() {
                state.waiting.retain(|w| w.ticket != ticket);
                self.users.fetch_sub(1, Ordering::Relaxed);
                self.ring(&state);
                fail!(Interrupted, "interrupted while waiting for other sessions");
            }
            let bell = &self.bells[ticket as usize % BELLS];
            let waited = bell.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Gives a waiter the turn (`None`) or a seat, if it is its.
    #[allow(clippy::option_option)]
    fn serve(&self, state: &mut State, ticket: u64) -> Option<Option<usize>> {
        let first = state.waiting.front().map(|w| w.ticket);
        if !state.taken && first == Some(ticket) {
            state.waiting.pop_front();
            state.taken = true;
            return Some(None);
        }
        let (index, next) = self.next_for_seat(state)?;
        if next != ticket {
            return None;
        }
        let seat = state.free_seats.pop()?;
        state.waiting.remove(index);
        self.seats_taken.fetch_add(1, Ordering::Relaxed);
        Some(Some(seat))
    }

    /// The first waiter that takes a seat.
    fn next_for_seat(&self, state: &State) -> Option<(usize, u64)> {
        if state.free_seats.is_empty() {
            return None;
        }
        let users = self.users();
        let mut waiting = state.waiting.iter().enumerate();
        let next = waiting.find(|(_, w)| w.seat_from <= users);
        next.map(|(index, w)| (index, w.ticket))
    }

    /// Wakes whoever can be served.
    fn ring(&self, state: &State) {
        let first = state.waiting.front().filter(|_| !state.taken);
        let seated = self.next_for_seat(state).map(|(_, ticket)| ticket);
        for ticket in first.map(|w| w.ticket).into_iter().chain(seated) {
            let bell = &self.bells[ticket as usize % BELLS];
            bell.notify_all();
        }
    }
}

impl Turn<'_> {
    /// Whether somebody waits for this turn to end.
    pub fn is_wanted(&self) -> bool {
        !self.turns.state().waiting.is_empty()
    }

    /// The seat, if it is none other's turn that this is: one of `0..seats`.
    pub fn seat(&self) -> Option<usize> {
        self.seat
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let turns = self.turns;
        let mut state = turns.state();
        turns.users.fetch_sub(1, Ordering::Relaxed);
        match self.seat {
            None => state.taken = false,
            Some(seat) => {
                turns.seats_taken.fetch_sub(1, Ordering::Relaxed);
                // Within the capacity: it was taken from here.
                state.free_seats.push(seat);
            }
        }
        turns.ring(&state);
    }
}

#[cfg(test)]
#[path = "turn_tests.rs"]
mod tests;
