//! What layers keep of fixed size: the last inputs of convolutions, the matrices of recurrences, with
//! a few copies to go back to.
//!
//! Rows of drafts leave the state as it is: each has one of its own. The device makes that of the last right row the session's, and the
//! one before takes the row's place (`accept_drafts` of drafts.cu). The others are there as long as the session may go back to them.

use crate::backend::cuda::driver::{Buffer, Context, Stream};
use crate::backend::cuda::network::fixed_plan::FixedPlan;
use crate::backend::marks::{MarkPlan, Marks};
use crate::backend::state::{StateSink, StateSource};
use crate::error::{Result, fail, try_vec};
use crate::model::FixedShape;
use std::sync::Arc;

/// The states of rows of drafts.
struct Rows {
    _memory: Buffer,
    places: Vec<RowPlace>,
}

/// Where a row leaves its state.
struct RowPlace {
    address: u64,
    /// Positions in what is there, if that is anything.
    position: Option<usize>,
}

/// The states of fixed size of a session.
pub struct FixedState {
    plan: Arc<FixedPlan>,
    n_vocab: usize,
    /// The state, then the copies; none if no layer has any.
    memory: Option<Buffer>,
    /// Where the state is: in front of the copies, or where a row has left it.
    live: u64,
    /// None before they are reserved.
    rows: Option<Rows>,
    /// Whether the state may go back to that of a row, because what was evaluated behind one is not wanted.
    back: bool,
    /// Whether the state is to become zeros before it is used.
    unset: bool,
    marks: Marks,
    /// Whether steps have begun to change the state, and not come to their end.
    moving: bool,
}

impl FixedState {
    /// Reserves the states and their copies.
    pub fn new(
        context: &Arc<Context>,
        plan: &Arc<FixedPlan>,
        n_vocab: usize,
        marks: MarkPlan,
    ) -> Result<Self> {
        let bytes = plan.session_bytes(n_vocab, marks) as usize;
        let memory = match bytes {
            0 => None,
            _ => Some(Buffer::new(
                context,
                bytes,
                "the state of recurrent layers",
            )?),
        };
        Ok(FixedState {
            plan: plan.clone(),
            n_vocab,
            live: memory.as_ref().map_or(0, Buffer::address),
            memory,
            rows: None,
            back: false,
            unset: true,
            marks: Marks::new(marks)?,
            moving: false,
        })
    }

    /// The address of the state; 0 if there is none.
    pub fn address(&self) -> u64 {
        self.live
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.memory.is_none()
    }

    /// Where the state is before any row's takes its place, and the copies behind it.
    fn first(&self) -> u64 {
        self.memory.as_ref().map_or(0, Buffer::address)
    }

    /// Where a copy is, and its logits.
    fn slot(&self, slot: usize) -> [u64; 2] {
        let first = self.first() + self.plan.bytes;
        let at = first + slot as u64 * self.plan.copy_bytes(self.n_vocab);
        [at, at + self.plan.bytes]
    }

    /// Reserves states of so many rows of drafts; the state itself may have another address then. Waits for `stream`; nothing else uses
    /// the state.
    pub fn reserve_rows(
        &mut self,
        context: &Arc<Context>,
        count: usize,
        stream: &Stream,
    ) -> Result<()> {
        let bytes = self.plan.bytes as usize;
        if self.memory.is_none() || self.rows.as_ref().is_some_and(|r| r.places.len() >= count) {
            return Ok(());
        }
        let what = "states of rows of drafts";
        let memory = Buffer::new(context, bytes.saturating_mul(count), what)?;
        let mut places = Vec::new();
        if places.try_reserve_exact(count).is_err() {
            fail!(OutOfMemory, "{what}");
        }
        places.extend((0..count).map(|row| RowPlace {
            address: memory.address() + (row * bytes) as u64,
            position: None,
        }));
        let first = self.first();
        if self.live != first {
            // SAFETY: the session's memory, of which nobody uses what is written; the copy is awaited.
            let copied = unsafe { stream.copy(first, self.live, bytes) };
            copied.and(stream.synchronize())?;
            self.live = first;
        }
        self.back = false;
        self.rows = Some(Rows {
            _memory: memory,
            places,
        });
        Ok(())
    }

    /// Where the next step has the state of a row; 0 if there is none.
    pub fn row(&self, row: usize) -> u64 {
        let rows = self.rows.as_ref();
        rows.map_or(0, |rows| rows.places[row].address)
    }

    /// Readies the state for a step of drafts on `stream`.
    pub fn begin_rows(&mut self, stream: &Stream) -> Result<()> {
        self.begin(stream)?;
        self.forget_rows();
        Ok(())
    }

    fn forget_rows(&mut self) {
        self.back = false;
        if let Some(rows) = &mut self.rows {
            rows.places.iter_mut().for_each(|row| row.position = None);
        }
    }

    /// Notes that the rows behind `len` positions were evaluated, and that the device has taken the state of the last of `count` rows.
    pub fn take_rows(&mut self, len: usize, count: usize) {
        let Some(rows) = &mut self.rows else {
            return;
        };
        for (i, row) in rows.places[..count].iter_mut().enumerate() {
            row.position = Some(len + i + 1);
        }
        if let Some(last) = rows.places[..count].last_mut() {
            std::mem::swap(&mut self.live, &mut last.address);
            last.position = Some(len);
        }
        self.settle(len + count);
    }

    /// Makes the state that of `len` positions, if a row has that: the number of the row, and where that has what was the state.
    pub fn take_row(&mut self, len: usize) -> Option<(usize, u64)> {
        let rows = self.rows.as_mut()?;
        let mut rows = rows.places.iter_mut().enumerate();
        let (i, row) = rows.find(|(_, row)| row.position == Some(len))?;
        std::mem::swap(&mut self.live, &mut row.address);
        row.position = None;
        let place = row.address;
        self.settle(len);
        Some((i, place))
    }

    /// Forgets the states of rows, and marks, of more than `len` positions.
    pub fn forget_behind(&mut self, len: usize) {
        self.marks.forget_behind(len);
        if let Some(rows) = &mut self.rows {
            for row in &mut rows.places {
                row.position = row.position.filter(|position| *position <= len);
            }
        }
    }

    /// Lets the state go back to that of a row, once.
    pub fn allow_back(&mut self) {
        self.back = true;
    }

    /// Notes that the state is that of no positions that anybody knows of.
    pub fn lose(&mut self) {
        self.forget_rows();
        self.moving = self.memory.is_some();
    }

    /// Whether going back to so many positions takes the state of a row.
    pub fn goes_to_row(&self, len: usize) -> bool {
        self.back && !self.is_at(len) && self.row_at(len).is_some()
    }

    /// Where a row has the state of so many positions.
    fn row_at(&self, len: usize) -> Option<u64> {
        let places = &self.rows.as_ref()?.places;
        let row = places.iter().find(|row| row.position == Some(len))?;
        Some(row.address)
    }

    /// Readies the state for steps on `stream`, which are about to change it.
    pub fn begin(&mut self, stream: &Stream) -> Result<()> {
        if self.memory.is_none() {
            return Ok(());
        }
        if self.unset {
            // SAFETY: the session's memory, which is used in stream order.
            unsafe { stream.fill32(self.address(), 0, self.plan.bytes as usize / 4)? };
            self.unset = false;
        }
        self.moving = true;
        Ok(())
    }

    /// Notes that the state is that of `len` positions.
    pub fn settle(&mut self, len: usize) {
        self.marks.settle(len);
        self.moving = false;
    }

    /// Whether steps have begun to change the state, and not come to their end.
    pub fn is_moving(&self) -> bool {
        self.moving
    }

    /// Whether the state is that of the first `len` positions.
    pub fn is_at(&self, len: usize) -> bool {
        self.memory.is_none() || self.marks.is_at(len) && !self.moving
    }

    /// Whether the state of the first `len` positions is there, or a copy of it.
    pub fn keeps(&self, len: usize) -> bool {
        let marked = || self.marks.find(len).is_some();
        len == 0 || self.is_at(len) || marked() || self.goes_to_row(len)
    }

    /// Positions of the copies, ascending.
    pub fn marked(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        self.marks.copies().iter().map(|c| c.position)
    }

    /// Whether a state of so many positions is to be marked.
    pub fn is_due(&self, len: usize) -> bool {
        self.memory.is_some() && self.marks.is_due(len)
    }

    /// Positions behind `len` to evaluate before a mark, at most `most`.
    pub fn piece(&self, len: usize, most: usize) -> usize {
        match self.memory {
            Some(_) => self.marks.piece(len, most),
            None => most,
        }
    }

    /// Copies the state of `position` positions, which is the present one or that of a row, with logits if there are some at an
    /// address. Waits for `stream`; nothing else uses the state.
    pub fn mark(&mut self, position: usize, logits: Option<u64>, stream: &Stream) -> Result<()> {
        if self.memory.is_none() {
            return Ok(());
        }
        let from = match self.marks.is_at(position) {
            true => self.live,
            false => self.row_at(position).unwrap_or(self.live),
        };
        let slot = self.marks.add(position, logits.is_some());
        let [to, to_logits] = self.slot(slot);
        // SAFETY: both are the session's memory and as long; the copies are awaited.
        let copied = unsafe {
            let state = stream.copy(to, from, self.plan.bytes as usize);
            state.and(match logits {
                Some(from) => stream.copy(to_logits, from, self.n_vocab * 4),
                None => Ok(()),
            })
        };
        let copied = copied.and(stream.synchronize());
        if copied.is_err() {
            self.marks.forget_behind(position.saturating_sub(1));
        }
        copied
    }

    /// Goes back to the first `len` positions, whose state is there, and forgets later copies. Whether
    /// their logits are there, too; then they are copied to the address. A row has none here. Waits for `stream`; nothing
    /// else uses the state.
    pub fn go_back(&mut self, len: usize, logits: u64, stream: &Stream) -> Result<bool> {
        self.marks.forget_behind(len);
        if self.is_at(len) {
            self.forget_rows();
            return Ok(false);
        }
        if let Some(from) = self.row_at(len).filter(|_| self.back) {
            self.forget_rows();
            // SAFETY: as in `mark`.
            let copied = unsafe { stream.copy(self.live, from, self.plan.bytes as usize) };
            copied.and(stream.synchronize())?;
            self.settle(len);
            return Ok(false);
        }
        self.forget_rows();
        let Some(copied) = self.marks.find(len) else {
            return Ok(false);
        };
        let [from, from_logits] = self.slot(copied.slot);
        // SAFETY: as in `mark`; what steps have begun is done before, in stream order or because it
        // was awaited.
        let result = unsafe {
            let state = stream.copy(self.address(), from, self.plan.bytes as usize);
            state.and(match copied.has_logits {
                true => stream.copy(logits, from_logits, self.n_vocab * 4),
                false => Ok(()),
            })
        };
        result.and(stream.synchronize())?;
        self.settle(len);
        Ok(copied.has_logits)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        (self.unset, self.moving) = (true, false);
        self.forget_rows();
        self.marks.clear();
    }

    /// The same for another session. Waits for `stream`.
    pub fn fork(&self, context: &Arc<Context>, stream: &Stream) -> Result<FixedState> {
        let marks = self.marks.plan();
        let mut other = FixedState::new(context, &self.plan, self.n_vocab, marks)?;
        (other.unset, other.marks) = (self.unset, self.marks.try_clone()?);
        if let (Some(from), Some(to)) = (&self.memory, &other.memory) {
            let state = self.plan.bytes;
            // SAFETY: as long, and different; the copies are awaited.
            let copied = unsafe {
                let copied = stream.copy(to.address(), self.live, state as usize);
                let copies = from.bytes() - state as usize;
                copied.and(match copies {
                    0 => Ok(()),
                    _ => stream.copy(to.address() + state, from.address() + state, copies),
                })
            };
            copied.and(stream.synchronize())?;
        }
        Ok(other)
    }

    /// Writes the state, which is that of `len` positions, one at least, to a stream of no device.
    pub fn save(&self, len: usize, stream: &Stream, sink: &mut dyn StateSink) -> Result<()> {
        for layer in &self.plan.layers {
            let shape = layer.shape;
            let mut ring = self.read(
                layer.offset,
                shape.conv_channels * (shape.conv_columns + 1),
                stream,
            )?;
            let matrices = shape.len() - shape.conv_len();
            let mut columns = try_vec(shape.conv_len(), 0f32, "a part of a saved state")?;
            for (at, from) in columns_of(&shape, len) {
                columns[at] = from.map_or(0.0, |from| ring[from]);
            }
            write(&columns, sink)?;
            ring = self.read(layer.offset + layer.matrices, matrices, stream)?;
            write(&ring, sink)?;
        }
        Ok(())
    }

    /// Reads the state of `len` positions, one at least, from a stream. It has no copies then.
    pub fn load(
        &mut self,
        len: usize,
        stream: &Stream,
        source: &mut dyn StateSource,
    ) -> Result<()> {
        self.clear();
        let plan = self.plan.clone();
        for layer in &plan.layers {
            let shape = layer.shape;
            let columns = read(shape.conv_len(), source)?;
            let ring_len = shape.conv_channels * (shape.conv_columns + 1);
            let mut ring = try_vec(ring_len, 0f32, "a part of a saved state")?;
            for (at, to) in columns_of(&shape, len) {
                if let Some(to) = to {
                    ring[to] = columns[at];
                }
            }
            self.write(layer.offset, &ring, stream)?;
            let matrices = read(shape.len() - shape.conv_len(), source)?;
            self.write(layer.offset + layer.matrices, &matrices, stream)?;
        }
        self.unset = false;
        self.settle(len);
        Ok(())
    }

    /// Floats of the state.
    fn read(&self, at: u64, len: usize, stream: &Stream) -> Result<Vec<f32>> {
        let mut floats = try_vec(len, 0f32, "a part of a saved state")?;
        if len > 0 {
            // SAFETY: inside the state; the copy is awaited.
            let copied = unsafe {
                let to = floats.as_mut_ptr().cast();
                stream.copy_out(to, self.address() + at, len * 4)
            };
            copied.and(stream.synchronize())?;
        }
        Ok(floats)
    }

    fn write(&mut self, at: u64, floats: &[f32], stream: &Stream) -> Result<()> {
        if floats.is_empty() {
            return Ok(());
        }
        // SAFETY: inside the state; the source is read before the call returns, as it is not pinned.
        let copied = unsafe {
            let from = floats.as_ptr().cast();
            stream.copy_in(self.address() + at, from, size_of_val(floats))
        };
        copied.and(stream.synchronize())
    }
}

/// Each entry of the columns of a stream, `[conv_columns][conv_channels]`, with its place in the ring;
/// none for a position before the first one.
fn columns_of(shape: &FixedShape, len: usize) -> impl Iterator<Item = (usize, Option<usize>)> {
    let (columns, channels) = (shape.conv_columns, shape.conv_channels);
    (0..columns).flat_map(move |column| {
        let position = (len + column).checked_sub(columns);
        (0..channels).map(move |channel| {
            let place = position.map(|p| channel * (columns + 1) + p % (columns + 1));
            (column * channels + channel, place)
        })
    })
}

/// Floats that go to a stream at a time.
const PIECE: usize = 1 << 14;

fn write(floats: &[f32], sink: &mut dyn StateSink) -> Result<()> {
    let mut bytes = try_vec(floats.len().min(PIECE) * 4, 0u8, "a part of a saved state")?;
    for piece in floats.chunks(PIECE) {
        let bytes = &mut bytes[..piece.len() * 4];
        for (x, to) in piece.iter().zip(bytes.chunks_exact_mut(4)) {
            to.copy_from_slice(&x.to_le_bytes());
        }
        sink.write(bytes)?;
    }
    Ok(())
}

fn read(len: usize, source: &mut dyn StateSource) -> Result<Vec<f32>> {
    let mut floats = try_vec(len, 0f32, "a part of a saved state")?;
    let mut bytes = try_vec(len.min(PIECE) * 4, 0u8, "a part of a saved state")?;
    for piece in floats.chunks_mut(PIECE) {
        let bytes = &mut bytes[..piece.len() * 4];
        source.read(bytes)?;
        for (x, from) in piece.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *x = f32::from_le_bytes(*from);
        }
    }
    Ok(floats)
}
