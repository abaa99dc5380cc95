//! What layers keep of fixed size, whatever the number of positions: the last inputs of
//! convolutions, the matrices of recurrences.
//!
//! A step overwrites it, so a way back needs a copy: see [`crate::backend::marks`]. Rows of drafts leave it as it is: each
//! has a state of its own, until it is known how many of them stay.

use super::super::pages::Pages;
use crate::backend::marks::{MarkPlan, Marks};
use crate::backend::state::{StateSink, StateSource};
use crate::error::{Result, fail, try_vec};
use crate::memory::Account;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const WHAT: &str = "the state of recurrent layers";

/// Floats that go to a stream at a time.
const PIECE: usize = 1 << 14;

/// The states of fixed size of all layers.
pub struct FixedStates {
    /// Where each layer's begins.
    offsets: Vec<usize>,
    /// Floats of all layers.
    len: usize,
    n_vocab: usize,
    /// `None` where no layer has one.
    live: Option<Pages>,
    marks: Marks,
    /// Whether a step has begun to change it.
    moving: AtomicBool,
    /// Of each copy the state, then logits.
    copies: Vec<Pages>,
    /// States of rows that were evaluated apart, and of what was there before them.
    rows: Vec<RowState>,
    /// Whether rows are evaluated apart now.
    apart: bool,
    /// Whose memory it is.
    account: Arc<Account>,
}

/// The state behind a row.
struct RowState {
    /// Positions in it, where it holds any state.
    position: Option<usize>,
    state: Pages,
}

fn copy(from: *const f32, to: *mut f32, len: usize) {
    // SAFETY: both have so many floats and are different mappings; the caller has the states for
    // itself.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

impl FixedStates {
    /// Reserves the states of layers of so many floats, all zero. Errors: `OutOfMemory`.
    pub fn new(
        layers: &[usize],
        n_vocab: usize,
        marks: MarkPlan,
        account: &Arc<Account>,
    ) -> Result<FixedStates> {
        let mut offsets = try_vec(layers.len(), 0usize, "places of states")?;
        let mut len = 0usize;
        for (offset, floats) in offsets.iter_mut().zip(layers) {
            *offset = len;
            len = len.saturating_add(*floats);
        }
        FixedStates::with_marks(offsets, len, n_vocab, Marks::new(marks)?, account)
    }

    /// All zero, with these marks. Errors: `OutOfMemory`.
    fn with_marks(
        offsets: Vec<usize>,
        len: usize,
        n_vocab: usize,
        marks: Marks,
        account: &Arc<Account>,
    ) -> Result<FixedStates> {
        let slots = match len {
            0 => 0,
            _ => marks.plan().slots,
        };
        let floats = |len: usize| {
            let bytes = len.saturating_mul(size_of::<f32>());
            Pages::charged(account, bytes, WHAT)
        };
        let mut copies = Vec::new();
        if copies.try_reserve_exact(slots).is_err() {
            fail!(OutOfMemory, "{WHAT}: {slots} marks");
        }
        for _ in 0..slots {
            copies.push(floats(len.saturating_add(n_vocab))?);
        }
        Ok(FixedStates {
            offsets,
            len,
            n_vocab,
            live: (len > 0).then(|| floats(len)).transpose()?,
            marks,
            moving: AtomicBool::new(false),
            copies,
            rows: Vec::new(),
            apart: false,
            account: account.clone(),
        })
    }

    /// Bytes of the states of so many floats, with their copies.
    pub fn bytes_for(len: usize, n_vocab: usize, marks: MarkPlan) -> u64 {
        if len == 0 {
            return 0;
        }
        let copies = (len as u64).saturating_add(n_vocab as u64);
        let floats = copies
            .saturating_mul(marks.slots as u64)
            .saturating_add(len as u64);
        floats.saturating_mul(size_of::<f32>() as u64)
    }

    /// States of the same size with the same content and marks. Errors: `OutOfMemory`.
    pub fn fork(&self) -> Result<FixedStates> {
        let mut offsets = try_vec(self.offsets.len(), 0usize, "places of states")?;
        offsets.copy_from_slice(&self.offsets);
        let marks = self.marks.try_clone()?;
        let other = FixedStates::with_marks(offsets, self.len, self.n_vocab, marks, &self.account)?;
        if let (Some(from), Some(to)) = (&self.live, &other.live) {
            copy(from.base().cast(), to.base().cast(), self.len);
        }
        for mark in self.marks.copies() {
            let floats = self.len + if mark.has_logits { self.n_vocab } else { 0 };
            let [from, to] = [self, &other].map(|s| s.copies[mark.slot].base().cast());
            copy(from, to, floats);
        }
        Ok(other)
    }

    /// Where row `t` of a session's pass finds the state of a layer, and where it leaves that: at the same place, unless rows
    /// are evaluated apart.
    pub fn of_row(&self, layer: usize, t: usize) -> (*const f32, *mut f32) {
        let Some(live) = &self.live else {
            return (std::ptr::null(), std::ptr::null_mut());
        };
        let part = |state: &Pages| state.base().cast::<f32>().wrapping_add(self.offsets[layer]);
        if self.apart {
            let before = t.checked_sub(1).map_or(live, |t| &self.rows[t].state);
            return (part(before), part(&self.rows[t].state));
        }
        // Threads that find it set leave its cache line to the others.
        if !self.is_moving() {
            self.moving.store(true, Relaxed);
        }
        (part(live), part(live))
    }

    /// Whether rows are evaluated apart.
    pub fn is_apart(&self) -> bool {
        self.apart
    }

    /// Reserves states of so many rows. Errors: `OutOfMemory`.
    pub fn reserve_rows(&mut self, count: usize) -> Result<()> {
        let more = count.saturating_sub(self.rows.len());
        if self.live.is_none() || more == 0 {
            return Ok(());
        }
        if self.rows.try_reserve_exact(more).is_err() {
            fail!(OutOfMemory, "{WHAT}: {count} rows");
        }
        let bytes = self.len.saturating_mul(size_of::<f32>());
        for _ in 0..more {
            self.rows.push(RowState {
                position: None,
                state: Pages::charged(&self.account, bytes, WHAT)?,
            });
        }
        Ok(())
    }

    /// Has the next pass evaluate `count` rows apart. Errors: `OutOfMemory`.
    pub fn part_rows(&mut self, count: usize) -> Result<()> {
        self.reserve_rows(count)?;
        self.apart = self.live.is_some();
        self.forget_rows();
        Ok(())
    }

    /// Notes that the rows behind `len` positions, the state's, were evaluated, `count` of them, if they were so apart.
    pub fn rows_done(&mut self, len: usize, count: usize) {
        if self.apart {
            for (t, row) in self.rows[..count].iter_mut().enumerate() {
                row.position = Some(len + t + 1);
            }
        }
        self.apart = false;
    }

    /// Makes the state that of `len` positions, if it is a row's. That of before takes the row's place.
    pub fn take_row(&mut self, len: usize) {
        let row = self.rows.iter_mut().find(|r| r.position == Some(len));
        if let (Some(row), Some(live)) = (row, &mut self.live) {
            std::mem::swap(live, &mut row.state);
            row.position = Some(self.marks.at());
            self.settle(len);
        }
    }

    /// Has passes change the state itself.
    pub fn join_rows(&mut self) {
        self.apart = false;
    }

    /// Notes that the state is that of `len` positions.
    pub fn settle(&mut self, len: usize) {
        self.marks.settle(len);
        *self.moving.get_mut() = false;
    }

    /// Positions that there is a state of beside the present one.
    pub fn marks(&self) -> impl Iterator<Item = usize> + '_ {
        let rows = self.rows.iter().filter_map(|row| row.position);
        let copies = self.marks.copies().iter();
        copies.map(|mark| mark.position).chain(rows)
    }

    /// Whether the state of the first `len` positions is there.
    pub fn keeps(&self, len: usize) -> bool {
        let live = self.marks.is_at(len) && !self.is_moving();
        self.live.is_none() || len == 0 || live || self.marks().any(|p| p == len)
    }

    /// Whether a step has begun to change the state, and not come to its end.
    pub fn is_moving(&self) -> bool {
        self.moving.load(Relaxed)
    }

    /// Whether a state of so many positions is to be marked.
    pub fn is_due(&self, len: usize) -> bool {
        self.live.is_some() && self.marks.is_due(len)
    }

    /// Positions behind `len` to evaluate before a mark, at most `most`.
    pub fn piece(&self, len: usize, most: usize) -> usize {
        match self.live {
            Some(_) => self.marks.piece(len, most),
            None => most,
        }
    }

    /// Forgets the states of rows.
    pub fn forget_rows(&mut self) {
        self.rows.iter_mut().for_each(|row| row.position = None);
    }

    /// Copies the state, which is that of `position` positions, or that of a row, with logits if there are some.
    pub fn mark(&mut self, position: usize, logits: Option<&[f32]>) {
        let row = self.rows.iter().find(|row| row.position == Some(position));
        let row = row.filter(|_| !self.marks.is_at(position));
        let Some(live) = row.map(|row| &row.state).or(self.live.as_ref()) else {
            return;
        };
        let logits = logits.filter(|l| l.len() == self.n_vocab);
        let to = &self.copies[self.marks.add(position, logits.is_some())];
        copy(live.base().cast(), to.base().cast(), self.len);
        if let Some(logits) = logits {
            let to = to.base().cast::<f32>().wrapping_add(self.len);
            copy(logits.as_ptr(), to, self.n_vocab);
        }
    }

    /// Goes back to the first `len` positions, whose state is there, and forgets later marks. Whether
    /// their logits are there, too; then they are written.
    pub fn go_back(&mut self, len: usize, logits: &mut [f32]) -> bool {
        self.marks.forget_behind(len);
        self.apart = false;
        for row in &mut self.rows {
            row.position = row.position.filter(|position| *position <= len);
        }
        let Some(live) = &mut self.live else {
            return false;
        };
        if self.marks.is_at(len) && !self.moving.load(Relaxed) {
            return false;
        }
        let Some(mark) = self.marks.find(len) else {
            if let Some(row) = self.rows.iter_mut().find(|r| r.position == Some(len)) {
                std::mem::swap(live, &mut row.state);
                row.position = None;
            }
            return false;
        };
        let from = &self.copies[mark.slot];
        copy(from.base().cast(), live.base().cast(), self.len);
        let has_logits = mark.has_logits && logits.len() == self.n_vocab;
        if has_logits {
            let from = from.base().cast::<f32>().wrapping_add(self.len);
            copy(from, logits.as_mut_ptr(), self.n_vocab);
        }
        has_logits
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.marks.clear();
        self.apart = false;
        self.forget_rows();
        if let Some(live) = &self.live {
            // SAFETY: so many floats; the caller has the states for itself.
            unsafe { std::ptr::write_bytes(live.base().cast::<f32>(), 0, self.len) };
        }
        self.settle(0);
    }

    /// Writes the state to a stream.
    pub fn save(&self, sink: &mut dyn StateSink) -> Result<()> {
        let Some(live) = &self.live else {
            return Ok(());
        };
        let mut bytes = try_vec(self.len.min(PIECE) * 4, 0u8, "a part of a saved state")?;
        for start in (0..self.len).step_by(PIECE) {
            let n = PIECE.min(self.len - start);
            let from = live.base().cast::<f32>().wrapping_add(start);
            for (i, to) in bytes[..n * 4].chunks_exact_mut(4).enumerate() {
                // SAFETY: inside the state; nobody writes it.
                to.copy_from_slice(&unsafe { *from.add(i) }.to_le_bytes());
            }
            sink.write(&bytes[..n * 4])?;
        }
        Ok(())
    }

    /// Reads the state from a stream. It has no marks then.
    pub fn load(&mut self, source: &mut dyn StateSource) -> Result<()> {
        self.clear();
        let Some(live) = &self.live else {
            return Ok(());
        };
        let mut bytes = try_vec(self.len.min(PIECE) * 4, 0u8, "a part of a saved state")?;
        for start in (0..self.len).step_by(PIECE) {
            let n = PIECE.min(self.len - start);
            source.read(&mut bytes[..n * 4])?;
            let to = live.base().cast::<f32>().wrapping_add(start);
            for (i, from) in bytes[..n * 4].chunks_exact(4).enumerate() {
                let x = f32::from_le_bytes([from[0], from[1], from[2], from[3]]);
                // SAFETY: inside the state, which is the caller's.
                unsafe { to.add(i).write(x) };
            }
        }
        Ok(())
    }
}
