//! Hidden states of a session's last positions, which heads that guess further tokens read.

use crate::error::{Result, try_vec};
use crate::memory::Charge;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The residual stream behind the last layer, of a run of positions: the last ones that a runner has evaluated, as many as there is room
/// for. Those of positions that the runner has gone back from stay until others take their places.
pub struct HiddenStates {
    width: usize,
    rows: usize,
    ring: Mutex<Ring>,
    _charge: Option<Charge>,
}

/// Rows by their position, modulo how many there are.
struct Ring {
    floats: Vec<f32>,
    start: usize,
    end: usize,
}

impl HiddenStates {
    /// Room for so many positions, of `width` floats each. Errors: `OutOfMemory`.
    pub fn new(width: usize, rows: usize, charge: Option<Charge>) -> Result<HiddenStates> {
        let floats = try_vec(width.saturating_mul(rows), 0.0, "hidden states")?;
        Ok(HiddenStates {
            width,
            rows,
            ring: Mutex::new(Ring {
                floats,
                start: 0,
                end: 0,
            }),
            _charge: charge,
        })
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        // Rows are written before the run says that they are there.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Floats of a position.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Positions that there is room for.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Takes those of positions from `position` on, and forgets those of all further ones.
    pub fn put(&self, position: usize, floats: &[f32]) {
        let ring = &mut *self.ring();
        let end = position + floats.len() / self.width;
        if !(ring.start..=ring.end).contains(&position) {
            ring.start = position;
        }
        ring.end = position;
        for (at, row) in (position..end).zip(floats.chunks_exact(self.width)) {
            let slot = at % self.rows * self.width;
            ring.floats[slot..slot + self.width].copy_from_slice(row);
        }
        ring.start = ring.start.max(end.saturating_sub(self.rows));
        ring.end = end;
    }

    /// The first position from which on all before `end` are there; none if that before `end` is not.
    pub fn first(&self, end: usize) -> Option<usize> {
        let ring = self.ring();
        (ring.start < end && end <= ring.end).then_some(ring.start)
    }

    /// Reads those of positions from `position` on, as many as there is room for in `out`. False if one is not there.
    pub fn read(&self, position: usize, out: &mut [f32]) -> bool {
        let ring = self.ring();
        let end = position + out.len() / self.width;
        if position < ring.start || end > ring.end {
            return false;
        }
        for (at, row) in (position..end).zip(out.chunks_exact_mut(self.width)) {
            let slot = at % self.rows * self.width;
            row.copy_from_slice(&ring.floats[slot..slot + self.width]);
        }
        true
    }

    /// Forgets all.
    pub fn clear(&self) {
        let mut ring = self.ring();
        (ring.start, ring.end) = (0, 0);
    }

    /// Becomes a copy of others of the same size.
    pub fn copy(&self, other: &HiddenStates) {
        if std::ptr::eq(self, other) {
            return;
        }
        let from = other.ring();
        let mut to = self.ring();
        to.floats.copy_from_slice(&from.floats);
        (to.start, to.end) = (from.start, from.end);
    }
}

#[cfg(test)]
mod tests {
    use super::HiddenStates;

    fn rows(first: usize, count: usize) -> Vec<f32> {
        let of = |p: usize| [p as f32, -(p as f32)];
        (first..first + count).flat_map(of).collect()
    }

    #[test]
    fn the_last_positions_are_there() {
        let states = HiddenStates::new(2, 4, None).unwrap();
        let mut out = [0.0; 6];
        assert_eq!(states.first(0), None);
        assert!(!states.read(0, &mut out));
        states.put(0, &rows(0, 3));
        assert_eq!(states.first(3), Some(0));
        assert_eq!(states.first(4), None);
        assert!(states.read(0, &mut out));
        assert_eq!(out[..], rows(0, 3));
        // More than there is room for.
        states.put(3, &rows(3, 6));
        assert_eq!(states.first(9), Some(5));
        assert!(states.read(6, &mut out));
        assert_eq!(out[..], rows(6, 3));
        assert!(!states.read(4, &mut out));
        // Going back forgets what comes behind.
        states.put(6, &rows(60, 1));
        assert_eq!(states.first(7), Some(5));
        assert_eq!(states.first(8), None);
        let mut two = [0.0; 4];
        assert!(states.read(5, &mut two));
        assert_eq!(two, [5.0, -5.0, 60.0, -60.0]);
        // A gap begins another run.
        states.put(9, &rows(9, 1));
        assert_eq!(states.first(10), Some(9));
        states.put(2, &rows(2, 1));
        assert_eq!(states.first(3), Some(2));
        let copy = HiddenStates::new(2, 4, None).unwrap();
        copy.copy(&states);
        assert!(copy.read(2, &mut two[..2]));
        assert_eq!(two[..2], [2.0, -2.0]);
        copy.clear();
        assert_eq!(copy.first(3), None);
    }
}
