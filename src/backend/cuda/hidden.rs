//! Hidden states of a session's last positions, in memory of the device.

use super::driver::{Buffer, Context, Stream};
use super::runner::core::RESULT_SLOTS;
use crate::backend::{DeviceStates, HiddenStates, StatesFrom};
use crate::error::{Result, fail};
use std::any::Any;
use std::sync::Arc;

/// A ring of rows, as `keep_states` of predictor.cu writes it.
pub(super) struct StateRing {
    buffer: Buffer,
    width: usize,
    rows: usize,
}

impl StateRing {
    /// Rows for so many positions, and for those of steps beyond the ones that were polled.
    fn slots(rows: usize) -> usize {
        rows.saturating_add(RESULT_SLOTS as usize)
    }

    /// Bytes for so many positions.
    pub fn bytes(width: usize, rows: usize) -> usize {
        let slots = StateRing::slots(rows);
        slots.saturating_mul(width).saturating_mul(4)
    }

    /// Room for so many positions.
    pub fn states(context: &Arc<Context>, width: usize, rows: usize) -> Result<HiddenStates> {
        let buffer = Buffer::new(context, StateRing::bytes(width, rows), "hidden states")?;
        let ring = StateRing {
            buffer,
            width,
            rows: StateRing::slots(rows),
        };
        Ok(HiddenStates::on_device(width, rows, Box::new(ring)))
    }

    /// Those of hidden states that are on this device.
    pub fn of<'a>(states: &'a HiddenStates, context: &Context) -> Result<&'a StateRing> {
        let ring = states.device().and_then(|d| d.as_any().downcast_ref());
        match ring {
            Some(ring @ StateRing { buffer, .. }) if buffer.context().is(context) => Ok(ring),
            _ => fail!(Internal, "hidden states of another device"),
        }
    }

    /// The address of the first row, and how many there are.
    pub fn place(&self) -> (u64, u32) {
        (self.buffer.address(), self.rows as u32)
    }

    /// The row of a position.
    fn offset(&self, position: usize) -> usize {
        position % self.rows * self.width * 4
    }

    /// Enqueues the copy of a state to the row before that of a position, where a step of a head finds it.
    ///
    /// # Safety
    /// Both rings stay until the work is done, and no other work uses the row.
    pub unsafe fn take(
        &self,
        from: &StatesFrom<'_>,
        position: usize,
        stream: &Stream,
    ) -> Result<()> {
        let theirs = StateRing::of(from.states, stream.context())?;
        let to = self.buffer.address() + self.offset(position + self.rows - 1) as u64;
        let from = theirs.buffer.address() + theirs.offset(from.position) as u64;
        if to == from {
            return Ok(());
        }
        // SAFETY: rows of rings of one width, which the caller keeps; by contract, no other work uses the one that is written.
        unsafe { stream.copy(to, from, self.width * 4) }
    }
}

impl DeviceStates for StateRing {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn read(&self, position: usize, out: &mut [f32]) -> Result<()> {
        self.buffer.read(self.offset(position), out)
    }

    fn write(&self, position: usize, state: &[f32]) -> Result<()> {
        self.buffer.write(self.offset(position), state)
    }

    fn copy(&self, other: &dyn DeviceStates) -> Result<()> {
        let Some(other) = other.as_any().downcast_ref::<StateRing>() else {
            fail!(Internal, "hidden states of another device");
        };
        if (self.width, self.rows) != (other.width, other.rows) {
            fail!(Internal, "hidden states of another size");
        }
        let context = self.buffer.context();
        let _current = context.enter()?;
        let stream = Stream::new(context, 0)?;
        // SAFETY: both buffers have that many bytes, and stay until the copy is done, which is awaited. Who owns the rings has
        // no work under way.
        unsafe {
            let bytes = self.buffer.bytes();
            stream.copy(self.buffer.address(), other.buffer.address(), bytes)?;
        }
        stream.synchronize()
    }
}
