//! Which copies of a state there are, for states that a step overwrites.
//!
//! The end of every prompt is marked, and every so many-th position. What lies between a mark and the wanted
//! position is evaluated again. Unless a session says otherwise, there are a few slots for copies; when all are
//! taken, the mark that is missed least makes room: the distances between marks grow with the distance from
//! the end. A session that asks for a mark every `n` positions has slots for all that takes.

use crate::error::{Result, fail};

/// Copies of a state, and positions from a mark to the next one at most, unless a session says otherwise.
const SLOTS: usize = 4;
const INTERVAL: usize = 256;

/// How many copies there are, and how far apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkPlan {
    /// Copies of a state.
    pub slots: usize,
    /// Positions from a mark to the next one, at most, when it is made.
    interval: usize,
    /// Whether no distance may grow beyond that.
    even: bool,
}

impl MarkPlan {
    /// For a session of so many positions that asks for a mark every `interval`, or does not (0).
    pub fn new(interval: usize, context: usize) -> MarkPlan {
        match interval {
            0 => MarkPlan {
                slots: SLOTS,
                interval: INTERVAL,
                even: false,
            },
            // Of so many marks there is always one between two that are no further apart: their distances
            // add up to twice the context at most.
            n => MarkPlan {
                slots: context.div_ceil(n).saturating_mul(2).saturating_add(2),
                interval: n,
                even: true,
            },
        }
    }
}

/// A copy of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Positions in it.
    pub position: usize,
    /// The number of its slot.
    pub slot: usize,
    /// Whether the logits of the last position are with it.
    pub has_logits: bool,
}

/// The copies of a state, and what the state itself stands at.
#[derive(Debug)]
pub struct Marks {
    plan: MarkPlan,
    /// Ascending by position, with capacity for all.
    copies: Vec<Copied>,
    /// Positions that are in the state.
    at: usize,
}

impl Marks {
    /// None yet. Errors: `OutOfMemory`.
    pub fn new(plan: MarkPlan) -> Result<Marks> {
        let mut copies = Vec::new();
        if copies.try_reserve_exact(plan.slots).is_err() {
            fail!(OutOfMemory, "{} marks of states", plan.slots);
        }
        Ok(Marks {
            plan,
            copies,
            at: 0,
        })
    }

    /// The same once more. Errors: `OutOfMemory`.
    pub fn try_clone(&self) -> Result<Marks> {
        let mut other = Marks::new(self.plan)?;
        other.copies.extend_from_slice(&self.copies);
        other.at = self.at;
        Ok(other)
    }

    /// How many there may be, and how far apart.
    pub fn plan(&self) -> MarkPlan {
        self.plan
    }

    /// The copies, ascending by position.
    pub fn copies(&self) -> &[Copied] {
        &self.copies
    }

    /// Notes that the state is that of `len` positions.
    pub fn settle(&mut self, len: usize) {
        self.at = len;
    }

    /// Positions that are in the state, unless steps have begun to change it.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Whether the state is that of the first `len` positions, unless steps have begun to change it.
    pub fn is_at(&self, len: usize) -> bool {
        self.at == len
    }

    /// The copy of the state of so many positions.
    pub fn find(&self, position: usize) -> Option<Copied> {
        self.copies.iter().copied().find(|c| c.position == position)
    }

    /// Whether a state of so many positions is to be marked.
    pub fn is_due(&self, len: usize) -> bool {
        self.until_due(len) == 0
    }

    /// Positions behind `len` until a state is to be marked.
    fn until_due(&self, len: usize) -> usize {
        let last = self.copies.last().map_or(0, |c| c.position);
        (last + self.plan.interval).saturating_sub(len)
    }

    /// Positions behind `len` to evaluate before a mark, at most `most`.
    pub fn piece(&self, len: usize, most: usize) -> usize {
        match self.plan.even {
            true => self.until_due(len).clamp(1, most),
            false => most,
        }
    }

    /// The slot for a copy of the state of `position` positions, which are not fewer than those of any
    /// other copy.
    pub fn add(&mut self, position: usize, has_logits: bool) -> usize {
        // One at the same position is replaced.
        let slot = match self.find(position) {
            Some(same) => {
                self.copies.retain(|c| c.position != position);
                same.slot
            }
            None if self.copies.len() < self.plan.slots => {
                let taken = |slot: usize| self.copies.iter().any(|c| c.slot == slot);
                (0..self.plan.slots).find(|slot| !taken(*slot)).unwrap_or(0)
            }
            None => self.copies.remove(self.least(position)).slot,
        };
        self.copies.push(Copied {
            position,
            slot,
            has_logits,
        });
        slot
    }

    /// The copy that is missed least when `end` is marked as well: without it, the gap is shortest, or
    /// shortest for its distance from the end.
    fn least(&self, end: usize) -> usize {
        let position = |i: usize| self.copies.get(i).map_or(end, |c| c.position);
        let cost = |i: usize| {
            let before = if i == 0 { 0 } else { position(i - 1) };
            let gap = position(i + 1).saturating_sub(before) as f64;
            if self.plan.even {
                return gap;
            }
            gap / end.saturating_sub(before).max(1) as f64
        };
        let all = 0..self.copies.len();
        all.min_by(|a, b| cost(*a).total_cmp(&cost(*b)))
            .unwrap_or(0)
    }

    /// Forgets the copies of more than `len` positions.
    pub fn forget_behind(&mut self, len: usize) {
        self.copies.retain(|c| c.position <= len);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.copies.clear();
        self.at = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::{MarkPlan, Marks};

    /// Prompts and decodes of random lengths, and rewinds: no two marks are further apart than asked for, and no
    /// slot is used twice.
    #[test]
    fn marks_stay_as_close_as_a_session_asks_for() {
        for (interval, context) in [(16, 100), (16, 4096), (64, 1000), (1000, 999)] {
            let mut marks = Marks::new(MarkPlan::new(interval, context)).unwrap();
            let mut random = interval as u64;
            let mut next = |below: usize| {
                random = random
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                (random >> 33) as usize % below
            };
            let mut len = 0;
            for _ in 0..20_000 {
                if len == context || next(50) == 0 {
                    let wanted = next(len + 1);
                    let mark = marks.copies().iter().rfind(|c| c.position <= wanted);
                    len = mark.map_or(0, |c| c.position);
                    assert!(wanted - len <= interval, "{wanted} from {len}");
                    marks.forget_behind(len);
                } else {
                    let end = (len + 1 + next(3 * interval)).min(context);
                    let is_prompt = next(2) == 0;
                    while len < end {
                        let piece = if is_prompt {
                            marks.piece(len, 512).min(end - len)
                        } else {
                            1
                        };
                        len += piece;
                        if is_prompt || marks.is_due(len) {
                            marks.add(len, false);
                        }
                    }
                }
                let copies = marks.copies();
                assert!(copies.is_sorted_by(|a, b| a.position < b.position));
                let mut slots: Vec<_> = copies.iter().map(|c| c.slot).collect();
                slots.sort_unstable();
                slots.dedup();
                assert_eq!(slots.len(), copies.len());
                assert!(slots.iter().all(|s| *s < marks.plan().slots));
            }
        }
    }
}
