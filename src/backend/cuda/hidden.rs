//! Hidden states of a session's last positions, in memory of the device.

use super::args;
use super::driver::{Buffer, Context, Stream};
use super::runner::core::RESULT_SLOTS;
use super::walk::Span;
use crate::backend::{DeviceStates, HiddenStates, StatesFrom};
use crate::error::{Result, fail};
use std::any::Any;
use std::sync::Arc;

/// Bytes in front of the rows of a ring.
const HEADER_BYTES: usize = size_of::<args::StateRing>();

/// A ring of rows, as hidden.cuh finds them, behind what they are of.
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
        let bytes = slots.saturating_mul(width).saturating_mul(4);
        bytes.saturating_add(HEADER_BYTES)
    }

    /// Room for so many positions of a network that is so wide: for what is behind its final norm, or between layers at these places.
    pub fn states(
        context: &Arc<Context>,
        hidden: usize,
        places: &[usize],
        rows: usize,
    ) -> Result<HiddenStates> {
        let width = hidden.saturating_mul(places.len().max(1));
        let mut header = args::StateRing {
            n_places: places.len() as u32,
            ..Default::default()
        };
        if places.len() > header.places.len() {
            fail!(Internal, "hidden states at {} places", places.len());
        }
        for (to, place) in header.places.iter_mut().zip(places) {
            *to = *place as u32;
        }
        let buffer = Buffer::new(context, StateRing::bytes(width, rows), "hidden states")?;
        buffer.write(0, &[header])?;
        let ring = StateRing {
            buffer,
            width,
            rows: StateRing::slots(rows),
        };
        HiddenStates::on_device(width, places, rows, Box::new(ring))
    }

    /// Those of hidden states that are on this device.
    pub fn of<'a>(states: &'a HiddenStates, context: &Context) -> Result<&'a StateRing> {
        let ring = states.device().and_then(|d| d.as_any().downcast_ref());
        match ring {
            Some(ring @ StateRing { buffer, .. }) if buffer.context().is(context) => Ok(ring),
            _ => fail!(Internal, "hidden states of another device"),
        }
    }

    /// Its address, and how many rows there are.
    pub fn place(&self) -> (u64, u32) {
        (self.buffer.address(), self.rows as u32)
    }

    /// Floats of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The row of a position.
    fn offset(&self, position: usize) -> usize {
        HEADER_BYTES + position % self.rows * self.width * 4
    }

    /// The same.
    pub fn row(&self, position: usize) -> Span {
        Span {
            address: self.buffer.address() + self.offset(position) as u64,
            stride: self.width as u32,
        }
    }

    /// The row before that of a position.
    pub fn row_before(&self, position: usize) -> Span {
        self.row(position + self.rows - 1)
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
        if theirs.width != self.width {
            fail!(
                Internal,
                "hidden states of {} floats for a network of {}",
                theirs.width,
                self.width
            );
        }
        let (to, from) = (self.row_before(position), theirs.row(from.position));
        let (to, from) = (to.address, from.address);
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
