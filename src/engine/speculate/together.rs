//! How many drafts a batch verifies.
//!
//! A batch returns a token of each session, so drafts save a pass over the weights only where all of its sessions are ahead. So the
//! drafts of a pass are judged together: those of the same depth are worth what passes they save, if all sessions have one
//! that is right, against what their rows add to this pass.

use super::depth::{FIRST_PAUSE, LONGEST_PAUSE, PROMISE, StepTimes, TRIAL};
use super::drafting::Drafting;
use crate::backend::{MAX_BATCH, MAX_DRAFTS};
use arrayvec::ArrayVec;
use std::time::Duration;

/// What batches of a model took, and when drafts are tried again that were not worth it.
#[derive(Default)]
pub struct BatchDepth {
    /// By rows.
    times: StepTimes,
    /// Passes until the next trial, and between the last one and that.
    rest: u32,
    pause: u32,
}

/// A session of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seat {
    /// Drafts that it can bring to the pass at most.
    pub most: usize,
    /// It brings them all, as far as there is room.
    pub always: bool,
    /// It is ahead by up to so many tokens behind the one that this call returns.
    pub ahead: usize,
    /// The probability of the first of those, or of the first draft, and of each one behind a right one.
    pub first: f32,
    pub right: f32,
    /// What making its drafts takes.
    pub drafting: Drafting,
}

impl Seat {
    /// The probability that it needs no pass for its token `level` calls later, if it brings so many drafts to this one.
    fn has(&self, level: usize, drafts: usize) -> f32 {
        match level <= self.ahead.max(drafts) {
            true => self.first * self.right.powi(level as i32 - 1),
            false => 0.0,
        }
    }
}

/// Drafts of each seat, and what they save.
#[derive(Clone, Debug, Default)]
pub struct Shares {
    /// Of each seat.
    pub drafts: ArrayVec<usize, MAX_BATCH>,
    /// Seconds that they save a token of each session.
    pub gain: f32,
    /// Seconds of a token of each session without them; 0 if unknown.
    pub plain: f32,
}

/// Tokens of each session that a pass brings on average, and seconds of making drafts for it.
fn promise(seats: &[Seat], drafts: &[usize]) -> (f32, f32) {
    let deepest = (seats.iter().zip(drafts))
        .map(|(s, d)| s.ahead.max(*d))
        .max();
    let each = || seats.iter().zip(drafts);
    let all = |level: usize| each().map(|(s, d)| s.has(level, *d)).product::<f32>();
    let calls = 1.0 + (1..=deepest.unwrap_or(0)).map(all).sum::<f32>();
    let making = each().map(|(seat, drafts)| seat.drafting.seconds(*drafts));
    (calls, making.sum())
}

impl BatchDepth {
    /// How many drafts each seat brings to a pass of so many rows without them, `room` in all at most.
    pub fn choose(&mut self, seats: &[Seat], rows: usize, room: usize) -> Shares {
        let mut fixed = ArrayVec::<usize, MAX_BATCH>::new();
        let mut left = room;
        let mut asking = seats.iter().filter(|s| s.always).count();
        for seat in seats {
            let share = match seat.always {
                true => seat.most.min(left.div_ceil(asking.max(1))),
                false => 0,
            };
            asking -= usize::from(seat.always);
            left -= share;
            fixed.push(share);
        }
        let fixed_rows = rows + (room - left);
        let mut none = Shares {
            drafts: fixed.clone(),
            ..Shares::default()
        };
        let base = self.times.known(fixed_rows);
        // What drafts are compared with comes first.
        if base == 0.0 || rows == 0 || seats.iter().all(|s| s.always || s.most == 0) {
            return none;
        }
        let at = |depth: usize| -> ArrayVec<usize, MAX_BATCH> {
            let of = |(seat, fixed): (&Seat, &usize)| match seat.always {
                true => *fixed,
                false => seat.most.min(depth),
            };
            seats.iter().zip(&fixed).map(of).collect()
        };
        let (calls, making) = promise(seats, &fixed);
        let without = calls / (base + making);
        none.plain = 1.0 / without;
        let (mut best, mut rate) = (0, without);
        // The best of those that were hardly tried, if more rows cost no more than fewer.
        let (mut hopeful, mut hope) = (0, 0.0);
        let (mut least, mut deepest) = (base, 0);
        let most = seats.iter().filter(|s| !s.always).map(|s| s.most).max();
        for depth in 1..=most.unwrap_or(0).min(MAX_DRAFTS) {
            let drafts = at(depth);
            let size = rows + drafts.iter().sum::<usize>();
            if size > rows + room {
                break;
            }
            deepest = depth;
            let (calls, making) = promise(seats, &drafts);
            least = self.times.known(size).max(least);
            // What was measured when the machine had less to do is no reason for drafts.
            let cost = self.times.cost(fixed_rows, size).max(base);
            let known = calls / (cost + making);
            if known > rate.max(PROMISE * without) {
                (best, rate) = (depth, known);
            }
            let hoped = calls / (least + making);
            if self.times.is_new(size) && hoped > hope {
                (hopeful, hope) = (depth, hoped);
            }
        }
        if best > 0 && hope > PROMISE * rate {
            best = hopeful;
        }
        if best == 0 {
            let able = seats.iter().all(|s| s.most.max(s.ahead) > 0);
            best = if able { self.trial().min(deepest) } else { 0 };
            // Those that are right may be worth it only where there are many.
            let brings = |depth: usize| promise(seats, &at(depth)).0;
            if best > 0 && brings(deepest) > 2.0 * brings(best) {
                best = deepest;
            }
        } else {
            (self.rest, self.pause) = (0, FIRST_PAUSE);
        }
        match best {
            0 => none,
            depth => Shares {
                drafts: at(depth),
                gain: (1.0 / without - 1.0 / rate).max(0.0),
                ..none
            },
        }
    }

    /// Drafts of each session where none are worth it.
    fn trial(&mut self) -> usize {
        if self.rest > 0 {
            self.rest -= 1;
            return 0;
        }
        self.rest = self.pause.max(FIRST_PAUSE);
        self.pause = (2 * self.rest).min(LONGEST_PAUSE);
        TRIAL
    }

    /// A pass of so many rows took so long.
    pub fn took(&mut self, rows: usize, time: Duration) {
        self.times.took(rows.min(MAX_BATCH), time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::speculate::depth::Depth;
    use std::cell::RefCell;

    fn draws() -> impl FnMut() -> f32 {
        let mut random = 1u32;
        move || {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 8) as f32 / (1 << 24) as f32
        }
    }

    /// Time of `calls` calls of a batch whose sessions' drafts are right with these probabilities (below 0: no source), over
    /// that of a batch without drafts, where passes take what `cost` says of their rows, and twice that now and then if the
    /// machine is `busy`.
    fn slowdown(right: &[f32], cost: impl Fn(usize) -> f32, busy: bool, calls: usize) -> f32 {
        let mut batch = BatchDepth::default();
        let mut each: Vec<(Depth, Vec<bool>)> =
            right.iter().map(|_| (Depth::new(), vec![])).collect();
        let mut draw = draws();
        let (mut time, mut without) = (0.0, 0.0);
        for call in 0..calls {
            let load = if busy && call / 400 % 2 == 1 {
                2.0
            } else {
                1.0
            };
            without += load * 1.05 * cost(right.len());
            let choosing: Vec<bool> = each.iter().map(|(_, ahead)| ahead.is_empty()).collect();
            let rows = choosing.iter().filter(|c| **c).count();
            for (_, ahead) in &mut each {
                ahead.pop();
            }
            if rows == 0 {
                continue;
            }
            let seats: Vec<Seat> = (each.iter().zip(&choosing).zip(right))
                .map(
                    |(((depth, ahead), chooses), right)| match (chooses, *right >= 0.0) {
                        (_, false) => Seat::default(),
                        (true, _) => Seat {
                            most: 8,
                            first: depth.right(0),
                            right: depth.right(0),
                            ..Seat::default()
                        },
                        (false, _) => Seat {
                            ahead: ahead.len(),
                            first: 1.0,
                            right: depth.right(0),
                            ..Seat::default()
                        },
                    },
                )
                .collect();
            let shares = batch.choose(&seats, rows, MAX_BATCH - rows);
            let size = rows + shares.drafts.iter().sum::<usize>();
            assert!(size <= MAX_BATCH);
            // Times are noisy.
            let took = load * cost(size) * (1.0 + 0.1 * draw());
            time += took;
            batch.took(size, Duration::from_secs_f32(took / 1e3));
            for (i, (depth, ahead)) in each.iter_mut().enumerate().filter(|(i, _)| choosing[*i]) {
                let count = shares.drafts[i];
                let accepted = (0..count).take_while(|_| draw() < right[i]).count();
                if count > 0 {
                    depth.came_to(0, count, accepted);
                }
                *ahead = vec![true; accepted];
            }
        }
        time / without
    }

    #[test]
    fn drafts_of_a_batch_that_are_not_worth_it_cost_at_most_two_hundredths() {
        let batches: [&[f32]; 6] = [
            &[0.0, 0.0],
            &[1.0, 0.0],
            // The others need a pass for every token.
            &[1.0, -1.0],
            &[0.9, 0.9, 0.9, -1.0],
            &[0.1; 8],
            &[0.0; MAX_BATCH - 1],
        ];
        for right in batches {
            for row in [0.02, 0.25, 1.0] {
                for busy in [false, true] {
                    let slow = slowdown(right, |n| 1.0 + row * n as f32, busy, 6000);
                    assert!(
                        slow < 1.02,
                        "{slow} of {right:?}, rows of {row}, busy: {busy}"
                    );
                }
            }
        }
    }

    #[test]
    fn drafts_of_a_batch_that_are_right_save_passes() {
        for (right, row, wanted) in [
            (&[0.9, 0.9][..], 0.05, 0.55),
            (&[0.95; 4], 0.05, 0.6),
            (&[1.0; 2], 0.2, 0.7),
            (&[0.8], 0.05, 0.45),
        ] {
            let slow = slowdown(right, |n| 1.0 + row * n as f32, false, 6000);
            assert!(slow < wanted, "{slow} of {right:?} with rows of {row}");
        }
    }

    #[test]
    fn drafts_of_a_batch_whose_first_passes_were_slow_are_tried_again() {
        for busy in [false, true] {
            // The first pass of its size makes memory resident. A few drafts are not worth it, many are.
            let seen = RefCell::new([false; MAX_BATCH + 1]);
            let cost = |n: usize| match std::mem::replace(&mut seen.borrow_mut()[n], true) {
                _ if n <= 2 => 1.0,
                true => 2.8 + 0.1 * n as f32,
                false => 20.0,
            };
            let slow = slowdown(&[1.0, 0.99], cost, busy, 6000);
            assert!(slow < 0.6, "{slow}, busy: {busy}");
        }
    }

    #[test]
    fn drafts_share_the_room_that_rows_leave() {
        let mut batch = BatchDepth::default();
        let always = Seat {
            most: 6,
            always: true,
            first: 0.5,
            right: 0.5,
            ..Seat::default()
        };
        let plain = Seat::default();
        let drafts = |batch: &mut BatchDepth, seats: &[Seat]| {
            let rows = seats.len();
            batch.choose(seats, rows, MAX_BATCH - rows).drafts.to_vec()
        };
        assert_eq!(drafts(&mut batch, &[always, plain]), [6, 0]);
        assert_eq!(
            drafts(&mut batch, &[always; MAX_BATCH / 4]),
            [3; MAX_BATCH / 4]
        );
        assert_eq!(drafts(&mut batch, &[always; MAX_BATCH]), [0; MAX_BATCH]);
        let mut mixed = [plain; MAX_BATCH - 4];
        mixed[3] = always;
        mixed[40] = always;
        let shares = drafts(&mut batch, &mixed);
        assert_eq!(
            (shares[3], shares[40], shares.iter().sum::<usize>()),
            (2, 2, 4)
        );
    }
}
