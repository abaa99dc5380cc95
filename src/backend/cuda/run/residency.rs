//! Weights that leave the device for a while: a copy in host memory, from where they come back to the
//! same addresses.

use crate::backend::cuda::driver::{Context, Event, Pinned, Range, Stream};
use crate::error::{Error, Result, Status, fail};
use crate::memory::Pages;
use crate::threads;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

/// Bytes that a thread copies at a time. Pinning them takes half a millisecond a megabyte.
const PIECE: usize = 2 << 20;
/// Pieces of a thread that are under way.
const SLOTS: usize = 2;
/// Most threads.
const THREADS: usize = 12;

/// Where the weights are.
pub struct Residency {
    /// Their addresses, and, unless there is a copy, their memory.
    memory: Range,
    bytes: usize,
    copy: Option<HostCopy>,
}

impl Residency {
    /// On the device.
    pub fn new(memory: Range) -> Residency {
        Residency {
            bytes: memory.backed(),
            memory,
            copy: None,
        }
    }

    /// Whether they are on the device.
    pub fn is_on_device(&self) -> bool {
        self.copy.is_none()
    }

    /// Their memory on the device.
    pub fn memory(&self) -> &Range {
        &self.memory
    }

    /// Gives the device's memory back, of which there is a copy.
    pub fn leave(&mut self, copy: HostCopy) -> Result<()> {
        self.memory.clear()?;
        self.copy = Some(copy);
        Ok(())
    }

    /// Brings them back. After an error they are still in host memory.
    pub fn come_back(&mut self, context: &Arc<Context>) -> Result<()> {
        let Some(copy) = &mut self.copy else {
            return Ok(());
        };
        self.memory.grow(self.bytes, "weights")?;
        let copied = copy.transfer(context, self.memory.address(), Direction::ToDevice);
        if copied.is_err() {
            self.memory.clear()?;
        } else {
            self.copy = None;
        }
        copied
    }
}

/// Host memory with a copy of a range.
pub struct HostCopy {
    memory: Pages,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToHost,
    ToDevice,
}

impl HostCopy {
    /// A copy of what a range holds.
    pub fn of(context: &Arc<Context>, range: &Range) -> Result<HostCopy> {
        let bytes = range.backed();
        let memory = Pages::new(bytes.max(1), "host memory for the weights")?;
        let mut copy = HostCopy { memory };
        copy.transfer(context, range.address(), Direction::ToHost)?;
        Ok(copy)
    }

    /// Copies all of it, by several threads.
    fn transfer(
        &mut self,
        context: &Arc<Context>,
        address: u64,
        direction: Direction,
    ) -> Result<()> {
        let next = AtomicUsize::new(0);
        let stop = AtomicBool::new(false);
        let failure: Mutex<Option<Error>> = Mutex::new(None);
        let pieces: Vec<Mutex<&mut [u8]>> = self
            .memory
            .bytes_mut()
            .chunks_mut(PIECE)
            .map(Mutex::new)
            .collect();
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let work = || {
            let result = run(context, address, &pieces, direction, &next, &stop);
            if let Err(e) = result {
                stop.store(true, Ordering::Relaxed);
                let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert(e);
            }
        };
        let others = cores.min(THREADS).min(pieces.len()).saturating_sub(1);
        // Fewer threads take longer.
        threads::beside("ember-transfer", others, &work, |_| work());
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(e) => Err(e),
            None => Ok(()),
        }
    }
}

/// One thread's share: takes pieces until none is left.
fn run(
    context: &Arc<Context>,
    address: u64,
    pieces: &[Mutex<&mut [u8]>],
    direction: Direction,
    next: &AtomicUsize,
    stop: &AtomicBool,
) -> Result<()> {
    let _current = context.enter()?;
    let stream = Stream::new(context, 0)?;
    let mut slots = Vec::new();
    for _ in 0..SLOTS {
        let memory = Pinned::new(context, PIECE, "memory of a transfer")?;
        slots.push((memory, Event::new(context, false)?));
    }
    // Whatever happens, the device must be done with the slots before they are freed.
    let result = (|| {
        // The pieces whose copies to a slot are under way.
        let mut fetched: [Option<usize>; SLOTS] = [None; SLOTS];
        for turn in 0.. {
            let slot = turn % SLOTS;
            let (memory, event) = &slots[slot];
            if turn >= SLOTS {
                event.synchronize()?;
            }
            if let Some(done) = fetched[slot].take() {
                write(pieces, done, memory)?;
            }
            let i = next.fetch_add(1, Ordering::Relaxed);
            let at = address + (i * PIECE) as u64;
            let Some(piece) = pieces.get(i) else { break };
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let Ok(piece) = piece.lock() else {
                fail!(Internal, "a piece of the weights was lost");
            };
            // SAFETY: the slot is as long as the longest piece, and free: its last copy has ended. The
            // device's range is backed that far, and the copies are awaited below.
            unsafe {
                match direction {
                    Direction::ToHost => {
                        stream.copy_out(memory.pointer(), at, piece.len())?;
                        fetched[slot] = Some(i);
                    }
                    Direction::ToDevice => {
                        let (from, to) = (piece.as_ptr(), memory.pointer());
                        std::ptr::copy_nonoverlapping(from, to, piece.len());
                        stream.copy_in(at, to, piece.len())?;
                    }
                }
            }
            event.record(&stream)?;
        }
        stream.synchronize()?;
        for (slot, done) in fetched.into_iter().enumerate() {
            if let Some(done) = done {
                write(pieces, done, &slots[slot].0)?;
            }
        }
        Ok(())
    })();
    let finished = stream.synchronize();
    result.and(finished)
}

/// Writes a fetched piece to its place.
fn write(pieces: &[Mutex<&mut [u8]>], index: usize, from: &Pinned) -> Result<()> {
    let Ok(mut piece) = pieces[index].lock() else {
        return Err(Error::new(
            Status::Internal,
            "a piece of the weights was lost",
        ));
    };
    // SAFETY: the slot holds the piece, whose copy has ended.
    let bytes = unsafe { std::slice::from_raw_parts(from.pointer(), piece.len()) };
    piece.copy_from_slice(bytes);
    Ok(())
}
