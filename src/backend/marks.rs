//! Which copies of a state there are, for states that a step overwrites.
//!
//! There are a few slots for copies. The end of every prompt is marked, and every [`INTERVAL`]th
//! position or so. When all slots are taken, the mark that is missed least makes room: the distances
//! between marks grow with the distance from the end. What lies between a mark and the wanted position
//! is evaluated again.

use arrayvec::ArrayVec;

/// Copies of a state.
pub const MARKS: usize = 4;
/// Positions from a mark to the next one, at most.
const INTERVAL: usize = 256;

/// A copy of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Positions in it.
    pub position: usize,
    /// The number of its slot, below [`MARKS`].
    pub slot: usize,
    /// Whether the logits of the last position are with it.
    pub has_logits: bool,
}

/// The copies of a state, and what the state itself stands at.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    /// Ascending by position.
    copies: ArrayVec<Copied, MARKS>,
    /// Positions that are in the state.
    at: usize,
}

impl Marks {
    /// The copies, ascending by position.
    pub fn copies(&self) -> &[Copied] {
        &self.copies
    }

    /// Notes that the state is that of `len` positions.
    pub fn settle(&mut self, len: usize) {
        self.at = len;
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
        len >= self.copies.last().map_or(0, |c| c.position) + INTERVAL
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
            None if !self.copies.is_full() => {
                let taken = |slot: usize| self.copies.iter().any(|c| c.slot == slot);
                (0..MARKS).find(|slot| !taken(*slot)).unwrap_or(0)
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

    /// The copy that is missed least when `end` is marked as well: without it, the gap is shortest for
    /// its distance from the end.
    fn least(&self, end: usize) -> usize {
        let position = |i: usize| self.copies.get(i).map_or(end, |c| c.position);
        let cost = |i: usize| {
            let before = if i == 0 { 0 } else { position(i - 1) };
            let gap = position(i + 1).saturating_sub(before) as f64;
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
        *self = Marks::default();
    }
}
