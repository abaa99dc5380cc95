//! Handles: numbers that look like pointers to C and are looked up, never followed.
//!
//! A handle's value holds the kind of object, a slot of the kind's table and the slot's generation.
//! A slot gets a new generation each time it is used again, and a slot that has had all its
//! generations is retired, so no value is ever given out twice.
//!
//! | bits (of 64) | |
//! |---|---|
//! | 52 to 63 | [`MARK`], which no address has |
//! | 24 to 51 | generation, from 1 on |
//! | 4 to 23 | slot |
//! | 0 to 3 | kind |
//!
//! Hosts hold handles in variables of pointer type, which a garbage collector follows: Go's ends the
//! program when it finds one that looks like an address in a freed part of its heap.

use crate::error::{Error, Result, Status, fail};
use crate::memory;
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError};

/// The lowest bits: the kind, an odd number, so that no handle looks like an aligned address.
const KIND_BITS: u32 = 4;
const SLOT_BITS: u32 = if usize::BITS == 64 { 20 } else { 12 };
/// The highest bits. Addresses of 48 or 57 bits have the same bit in all that are above these; the byte at the top, which
/// ARM may use for tags, is none that systems use (0 to 0x0f, 0xb4, 0xff). A 32-bit process has no such bits to spare.
const MARK: usize = if usize::BITS == 64 { 0xe5b } else { 0 };
const MARK_BITS: u32 = if usize::BITS == 64 { 12 } else { 0 };
const GENERATION_BITS: u32 = usize::BITS - MARK_BITS - KIND_BITS - SLOT_BITS;
const MAX_SLOTS: usize = 1 << SLOT_BITS;
const MAX_GENERATION: usize = (1 << GENERATION_BITS) - 1;

/// What a handle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Model = 1,
    Session = 3,
    Group = 5,
    TextStream = 7,
    Event = 9,
    Load = 11,
    Embedder = 13,
    Adapter = 15,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Model => "model",
            Kind::Session => "session",
            Kind::Group => "group",
            Kind::TextStream => "text stream",
            Kind::Event => "event",
            Kind::Load => "load",
            Kind::Embedder => "embedder",
            Kind::Adapter => "adapter",
        }
    }
}

/// All living objects of one kind.
pub(super) struct Table<T> {
    kind: Kind,
    slots: RwLock<Slots<T>>,
}

struct Slots<T> {
    slots: Vec<Slot<T>>,
    /// Empty slots that can be used again.
    free: Vec<usize>,
}

struct Slot<T> {
    generation: usize,
    object: Option<Arc<T>>,
}

impl<T> Table<T> {
    pub(super) const fn new(kind: Kind) -> Table<T> {
        Table {
            kind,
            slots: RwLock::new(Slots {
                slots: Vec::new(),
                free: Vec::new(),
            }),
        }
    }

    /// Gives an object a handle.
    ///
    /// Errors: `OutOfMemory`, also if memory ran out while the object was made.
    pub(super) fn insert(&self, object: Arc<T>) -> Result<usize> {
        memory::check()?;
        let mut table = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let slot = match table.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = table.slots.len();
                // Room in `free` as well, so that removing never allocates.
                let grown = slot < MAX_SLOTS
                    && table.slots.try_reserve(1).is_ok()
                    && table.free.try_reserve(slot + 1).is_ok();
                if !grown {
                    fail!(OutOfMemory, "no handle left for a {}", self.kind.name());
                }
                table.slots.push(Slot {
                    generation: 1,
                    object: None,
                });
                slot
            }
        };
        let entry = &mut table.slots[slot];
        entry.object = Some(object);
        Ok(self.value(slot, entry.generation))
    }

    /// The object of a handle, or `InvalidHandle`.
    pub(super) fn get(&self, handle: usize) -> Result<Arc<T>> {
        let table = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let slot = self.slot(&table, handle)?;
        let object = table.slots[slot].object.clone();
        object.ok_or_else(|| self.invalid(handle))
    }

    /// Makes a handle invalid and returns its object, or `InvalidHandle`.
    pub(super) fn remove(&self, handle: usize) -> Result<Arc<T>> {
        let mut table = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let slot = self.slot(&table, handle)?;
        let entry = &mut table.slots[slot];
        let object = entry.object.take().ok_or_else(|| self.invalid(handle))?;
        if entry.generation < MAX_GENERATION {
            entry.generation += 1;
            table.free.push(slot);
        }
        Ok(object)
    }

    fn value(&self, slot: usize, generation: usize) -> usize {
        let mark = MARK.wrapping_shl(usize::BITS - MARK_BITS);
        mark | generation << (KIND_BITS + SLOT_BITS) | slot << KIND_BITS | self.kind as usize
    }

    /// The slot of a handle, if kind and generation are right.
    fn slot(&self, table: &Slots<T>, handle: usize) -> Result<usize> {
        let slot = handle >> KIND_BITS & (MAX_SLOTS - 1);
        match table.slots.get(slot) {
            Some(entry) if self.value(slot, entry.generation) == handle => Ok(slot),
            _ => Err(self.invalid(handle)),
        }
    }

    fn invalid(&self, handle: usize) -> Error {
        let kind = self.kind.name();
        let message = match handle {
            0 => format!("the {kind} handle is NULL"),
            _ => format!("{handle:#x} is not the handle of a living {kind}"),
        };
        Error::new(Status::InvalidHandle, message)
    }
}

/// What a handle that was just removed stood for, unless a call is using it: then it goes with its cell, when that call lets go of it. A
/// thread that found the cell before finds nothing in it. After a caught bug, it can still be freed.
pub(super) fn take_unused<T>(object: &Mutex<Option<T>>) -> Option<T> {
    match object.try_lock() {
        Ok(mut guard) => guard.take(),
        Err(TryLockError::Poisoned(e)) => e.into_inner().take(),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_doubled_forged_and_null_handles_are_invalid() {
        let table = Table::new(Kind::Model);
        let a = table.insert(Arc::new(1)).unwrap();
        let b = table.insert(Arc::new(2)).unwrap();
        assert_ne!(a, b);
        assert_eq!((*table.get(a).unwrap(), *table.get(b).unwrap()), (1, 2));
        assert_eq!(*table.remove(a).unwrap(), 1);
        let unmarked = b & !(usize::MAX << (usize::BITS - 8));
        for bad in [a, 0, 1, 3, a ^ 2, b ^ 1 << 30, usize::MAX, b + 1, unmarked] {
            if bad == b {
                continue; // On 32 bits there is no mark.
            }
            for result in [table.get(bad), table.remove(bad)] {
                assert_eq!(
                    result.unwrap_err().status,
                    Status::InvalidHandle,
                    "{bad:#x}"
                );
            }
        }
        assert_eq!(*table.get(b).unwrap(), 2);
    }

    #[test]
    fn a_slot_is_used_again_with_another_value() {
        let table = Table::new(Kind::Session);
        let mut seen = std::collections::HashSet::new();
        for i in 0..1000 {
            let handle = table.insert(Arc::new(i)).unwrap();
            assert!(seen.insert(handle));
            table.remove(handle).unwrap();
        }
        assert_eq!(table.slots.read().unwrap().slots.len(), 1);
        assert!(seen.iter().all(|&h| table.get(h).is_err()));
    }

    /// The last generations of a slot, then its end: nothing wraps into the mark or to a value that was
    /// given out before.
    #[test]
    fn a_slot_without_generations_left_is_retired() {
        let table = Table::new(Kind::Session);
        let first = table.insert(Arc::new(0)).unwrap();
        table.remove(first).unwrap();
        table.slots.write().unwrap().slots[0].generation = MAX_GENERATION - 1;
        let mut seen = vec![first];
        for left in [1, 0] {
            let handle = table.insert(Arc::new(1)).unwrap();
            assert_eq!(handle >> KIND_BITS & (MAX_SLOTS - 1), 0);
            assert_eq!(
                handle >> (KIND_BITS + SLOT_BITS) & MAX_GENERATION,
                MAX_GENERATION - left
            );
            assert!(!looks_like_an_address(handle) && !seen.contains(&handle));
            table.remove(handle).unwrap();
            seen.push(handle);
        }
        for i in 0..10 {
            let next = table.insert(Arc::new(i)).unwrap();
            assert_ne!(next >> KIND_BITS & (MAX_SLOTS - 1), 0, "slot 0 is retired");
            assert!(!seen.contains(&next));
            assert!(seen.iter().all(|&h| table.get(h).is_err()));
            table.remove(next).unwrap();
            seen.push(next);
        }
        let slots = table.slots.read().unwrap();
        assert_eq!(
            (slots.slots.len(), slots.slots[0].generation),
            (2, MAX_GENERATION)
        );
    }

    /// Whether it could be the address of anything in a process with 48- or 57-bit addresses, the top
    /// byte being whatever ARM's tags leave of it.
    fn looks_like_an_address(handle: usize) -> bool {
        let handle = handle as u64;
        usize::BITS == 64
            && [47, 56].iter().any(|bits| {
                let top = (handle as i64) >> bits;
                top == 0 || top == -1
            })
    }

    #[test]
    fn no_handle_looks_like_an_address() {
        for kind in [
            Kind::Model,
            Kind::Session,
            Kind::TextStream,
            Kind::Event,
            Kind::Load,
        ] {
            let table = Table::<()>::new(kind);
            for slot in [0, 1, MAX_SLOTS / 2, MAX_SLOTS - 1] {
                for shift in 0..GENERATION_BITS {
                    for generation in [1 << shift, MAX_GENERATION >> shift] {
                        let handle = table.value(slot, generation);
                        assert!(handle != 0 && !looks_like_an_address(handle), "{handle:#x}");
                        assert!(handle & 1 == 1, "{handle:#x} is even");
                        // Without the mark it would.
                        if usize::BITS == 64 {
                            assert_eq!(handle >> (usize::BITS - MARK_BITS), MARK);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn handles_run_out_with_an_error() {
        let table = Table::new(Kind::Session);
        let object = Arc::new(());
        for _ in 0..MAX_SLOTS {
            table.insert(object.clone()).unwrap();
        }
        let e = table.insert(object.clone()).unwrap_err();
        assert_eq!(e.status, Status::OutOfMemory);
        let last = table.value(MAX_SLOTS - 1, 1);
        table.remove(last).unwrap();
        let again = table.insert(object).unwrap();
        assert_eq!(again, table.value(MAX_SLOTS - 1, 2));
    }

    #[test]
    fn kinds_do_not_mix() {
        let models = Table::new(Kind::Model);
        let sessions = Table::new(Kind::Session);
        let model = models.insert(Arc::new(())).unwrap();
        sessions.insert(Arc::new(())).unwrap();
        assert!(sessions.get(model).is_err());
        assert!(sessions.remove(model).is_err());
    }
}
