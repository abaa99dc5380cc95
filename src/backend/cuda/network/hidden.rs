//! Hidden states of a session's last positions, in memory of the device.

use crate::backend::cuda::driver::{Buffer, Context, Stream};
use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::sampling::RESULT_SLOTS;
use crate::backend::cuda::launch::span::Span;
use crate::backend::{DeviceStates, HiddenStates, StatesFrom};
use crate::error::{Result, fail};
use std::any::Any;
use std::sync::Arc;

/// Words of a set of places.
const PLACE_WORDS: usize = 4;
/// Bytes in front of the rows of a ring.
const HEADER_BYTES: usize = size_of::<args::StateRing>();

/// The hidden states that sessions keep: which kernels a step has for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keeps {
    /// Some keep what is behind the final norm.
    normed: bool,
    /// Some keep the residual stream at these places, a bit each.
    places: [u64; PLACE_WORDS],
}

impl Keeps {
    /// Places that there can be: before the layers of lower numbers.
    pub const MOST: usize = PLACE_WORDS * 64;

    /// Those of a session that keeps these.
    pub fn of(states: Option<&HiddenStates>) -> Keeps {
        let mut keeps = Keeps::default();
        let Some(states) = states else {
            return keeps;
        };
        keeps.normed = states.places().is_empty();
        for place in states.places() {
            keeps.places[place / 64] |= 1 << (place % 64);
        }
        keeps
    }

    /// Those of both.
    pub fn or(self, other: Keeps) -> Keeps {
        let mut both = self;
        both.normed |= other.normed;
        for (word, theirs) in both.places.iter_mut().zip(other.places) {
            *word |= theirs;
        }
        both
    }

    /// Whether some keep what is behind the final norm.
    pub(super) fn has_normed(&self) -> bool {
        self.normed
    }

    /// Whether some keep the residual stream at a place.
    pub(super) fn has(&self, place: usize) -> bool {
        let word = self.places.get(place / 64);
        word.is_some_and(|word| word >> (place % 64) & 1 == 1)
    }
}

/// Hidden states that rows of a chunk read, as a ring.
#[derive(Clone, Copy)]
pub(in crate::backend::cuda) struct StateRows {
    /// Its address, and how many rows it has.
    pub place: (u64, u32),
    /// The position that the first row of the chunk reads.
    pub first: usize,
}

/// A ring of rows, as hidden.cuh finds them, behind what they are of.
pub(in crate::backend::cuda) struct StateRing {
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
