//! What layers keep of fixed size, whatever the number of positions: the last inputs of
//! convolutions, the matrices of recurrences.
//!
//! A step overwrites it, so a way back needs a copy: see [`crate::backend::marks`].

use super::super::pages::Pages;
use crate::backend::marks::{MarkPlan, Marks};
use crate::backend::state::{StateSink, StateSource};
use crate::error::{Result, fail, try_vec};
use crate::memory::Account;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

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
    /// Whose memory it is.
    account: Arc<Account>,
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
        let what = "the state of recurrent layers";
        let slots = match len {
            0 => 0,
            _ => marks.plan().slots,
        };
        let floats = |len: usize| {
            let bytes = len.saturating_mul(size_of::<f32>());
            Pages::charged(account, bytes, what)
        };
        let mut copies = Vec::new();
        if copies.try_reserve_exact(slots).is_err() {
            fail!(OutOfMemory, "{what}: {slots} marks");
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

    /// The state of a layer, which the caller is about to change.
    pub fn of_layer(&self, layer: usize) -> *mut f32 {
        self.moving.store(true, Relaxed);
        match &self.live {
            Some(live) => live.base().cast::<f32>().wrapping_add(self.offsets[layer]),
            None => std::ptr::null_mut(),
        }
    }

    /// Notes that the state is that of `len` positions.
    pub fn settle(&mut self, len: usize) {
        self.marks.settle(len);
        *self.moving.get_mut() = false;
    }

    /// Positions of the marks.
    pub fn marks(&self) -> impl Iterator<Item = usize> + '_ {
        self.marks.copies().iter().map(|mark| mark.position)
    }

    /// Whether the state of the first `len` positions is there.
    pub fn keeps(&self, len: usize) -> bool {
        let live = self.marks.is_at(len) && !self.is_moving();
        self.live.is_none() || len == 0 || live || self.marks.find(len).is_some()
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

    /// Copies the state, which is that of `position` positions, with logits if there are some.
    pub fn mark(&mut self, position: usize, logits: Option<&[f32]>) {
        let Some(live) = &self.live else {
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
        let Some(live) = &self.live else {
            return false;
        };
        if self.marks.is_at(len) && !self.moving.load(Relaxed) {
            return false;
        }
        let Some(mark) = self.marks.find(len) else {
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
