//! A state to a stream of no device ([`crate::backend::state`]), and back.
//!
//! A tile of a cache is laid out as a block of the stream is, so whole ranges are copied.

use super::{KV_TILE, State};
use crate::backend::cuda::driver::{Context, Event, Pinned, Stream};
use crate::backend::state::{BLOCK, Plane, StateLayout, StateSink, StateSource, held_from};
use crate::error::{Result, fail};
use std::ops::Range;
use std::sync::Arc;

const _: () = assert!(BLOCK == KV_TILE, "a tile is a block of the stream");

/// Bytes that go over the bus at a time.
const PIECE: usize = 16 << 20;

/// Pinned memory that streams go through, two pieces by turns. One session at a time uses it.
pub struct Staging {
    slots: [(Pinned, Event); 2],
}

impl Staging {
    /// Memory for pieces of at least `bytes` bytes.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Staging> {
        let slot = || -> Result<(Pinned, Event)> {
            let memory = Pinned::new(context, PIECE.max(bytes), "memory of a saved state")?;
            Ok((memory, Event::new(context, false)?))
        };
        Ok(Staging {
            slots: [slot()?, slot()?],
        })
    }

    /// Bytes of a piece.
    pub fn bytes(&self) -> usize {
        self.slots[0].0.bytes()
    }
}

/// Part of a stream, and the memory of the device that it is a copy of.
struct Piece {
    address: u64,
    bytes: usize,
    /// Planes in it, of which not all rows are held: each with its place in the piece.
    partial: Vec<(Plane, Range<usize>)>,
    /// Read and left out, because the ring has no room for it.
    skipped: bool,
}

impl State {
    /// The pieces of the stream behind the logits, in order, none longer than `most`.
    fn pieces(&self, layout: &StateLayout, most: usize) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let [tile, _] = self.plan.tile_bytes();
        if let Some(fitting) = most.checked_div(tile) {
            let at_once = fitting.max(1);
            let mut block = 0;
            while block < layout.blocks() {
                let blocks = at_once.min(layout.blocks() - block);
                let last = block + blocks - 1;
                let mut place = (blocks - 1) * tile;
                let mut partial = Vec::new();
                for plane in layout.planes_of(false, last) {
                    let bytes = layout.plane_bytes(plane.layer);
                    if layout.rows(plane.layer, last).len() < BLOCK {
                        partial.push((plane, place..place + bytes));
                    }
                    place += bytes;
                }
                pieces.push(Piece {
                    address: self.caches[0].address() + (block * tile) as u64,
                    bytes: blocks * tile,
                    partial,
                    skipped: false,
                });
                block += blocks;
            }
        }
        for plane in layout.planes(true) {
            let bytes = layout.plane_bytes(plane.layer);
            let whole = layout.rows(plane.layer, plane.block).len() == BLOCK;
            pieces.push(Piece {
                address: self.plane_address(plane, bytes),
                bytes,
                partial: if whole {
                    Vec::new()
                } else {
                    vec![(plane, 0..bytes)]
                },
                skipped: plane.block * BLOCK < self.held_from(plane.layer),
            });
        }
        pieces
    }

    /// Where a plane of the ring lies.
    fn plane_address(&self, plane: Plane, bytes: usize) -> u64 {
        let [_, tile] = self.plan.tile_bytes();
        let layer = &self.plan.layers[plane.layer];
        let value = if plane.is_value { bytes as u64 } else { 0 };
        let place = self.plan.ring_place(plane.block) * tile;
        self.caches[1].address() + place as u64 + layer.layer_offset + value
    }

    /// The first position that a layer holds.
    fn held_from(&self, layer: usize) -> usize {
        let window = self.plan.shapes()[layer].window;
        held_from(&self.windows, window)
    }

    /// Writes `logits` (an address and a number of bytes) and the keys and values to a stream.
    pub fn save(
        &self,
        layout: &StateLayout,
        logits: (u64, usize),
        staging: &mut Staging,
        stream: &Stream,
        sink: &mut dyn StateSink,
    ) -> Result<()> {
        let pieces = self.all_pieces(layout, logits, staging.bytes());
        let result = save(&pieces, layout, staging, stream, sink);
        // Whatever happened, the device must be done with the staging memory.
        result.and(stream.synchronize())
    }

    /// Reads logits and keys and values from a stream. The positions are prepared.
    pub fn load(
        &mut self,
        layout: &StateLayout,
        logits: (u64, usize),
        staging: &mut Staging,
        stream: &Stream,
        source: &mut dyn StateSource,
    ) -> Result<()> {
        let pieces = self.all_pieces(layout, logits, staging.bytes());
        let result = load(&pieces, staging, stream, source);
        result.and(stream.synchronize())
    }

    /// Takes over what layers with windows hold from elsewhere, as far as there is room for it.
    pub fn set_windows(&mut self, windows: &[crate::backend::state::WindowState]) {
        for (mine, theirs) in self.windows.iter_mut().zip(windows) {
            mine.from = mine.from.max(theirs.from);
        }
    }

    fn all_pieces(
        &self,
        layout: &StateLayout,
        (address, bytes): (u64, usize),
        most: usize,
    ) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for at in (0..bytes).step_by(most) {
            pieces.push(Piece {
                address: address + at as u64,
                bytes: most.min(bytes - at),
                partial: Vec::new(),
                skipped: false,
            });
        }
        pieces.extend(self.pieces(layout, most));
        pieces
    }
}

fn save(
    pieces: &[Piece],
    layout: &StateLayout,
    staging: &Staging,
    stream: &Stream,
    sink: &mut dyn StateSink,
) -> Result<()> {
    let fetch = |i: usize| -> Result<()> {
        let Some(piece) = pieces.get(i) else {
            return Ok(());
        };
        let (memory, event) = &staging.slots[i % 2];
        if piece.bytes > memory.bytes() {
            fail!(Internal, "a piece of {} bytes of a state", piece.bytes);
        }
        // SAFETY: the piece lies in backed memory of the session and fits the slot, which is not read
        // before the event; the caller waits for the stream.
        unsafe { stream.copy_out(memory.pointer(), piece.address, piece.bytes)? };
        event.record(stream)
    };
    fetch(0)?;
    for (i, piece) in pieces.iter().enumerate() {
        // The other slot was written to the sink, so its copy can be under way meanwhile.
        fetch(i + 1)?;
        let (memory, event) = &staging.slots[i % 2];
        event.synchronize()?;
        // SAFETY: the copy into the slot is done, and the next one into it comes after this use.
        let bytes = unsafe { std::slice::from_raw_parts_mut(memory.pointer(), piece.bytes) };
        for (plane, place) in &piece.partial {
            layout.clear_outside(*plane, &mut bytes[place.clone()]);
        }
        sink.write(bytes)?;
    }
    Ok(())
}

fn load(
    pieces: &[Piece],
    staging: &Staging,
    stream: &Stream,
    source: &mut dyn StateSource,
) -> Result<()> {
    for (i, piece) in pieces.iter().enumerate() {
        let (memory, event) = &staging.slots[i % 2];
        if i >= 2 {
            event.synchronize()?;
        }
        if piece.bytes > memory.bytes() {
            fail!(Internal, "a piece of {} bytes of a state", piece.bytes);
        }
        // SAFETY: the last copy out of the slot is done, and the next begins after this use.
        let bytes = unsafe { std::slice::from_raw_parts_mut(memory.pointer(), piece.bytes) };
        source.read(bytes)?;
        if !piece.skipped {
            // SAFETY: the piece lies in backed memory of the session; the slot stays as it is until
            // the event; the caller waits for the stream.
            unsafe { stream.copy_in(piece.address, memory.pointer(), piece.bytes)? };
        }
        event.record(stream)?;
    }
    Ok(())
}
