//! Handles: numbers that look like pointers to C and are looked up, never followed.
//!
//! A handle's value holds the kind of object, a slot of the kind's table and the slot's generation.
//! A slot gets a new generation each time it is used again, and a slot that has had all its
//! generations is retired, so no value is ever given out twice.

use crate::error::{Error, Result, Status, fail};
use crate::memory;
use std::sync::{Arc, PoisonError, RwLock};

/// The lowest bits: the kind, an odd number, so that no handle looks like an aligned address.
const KIND_BITS: u32 = 4;
const SLOT_BITS: u32 = if usize::BITS == 64 { 28 } else { 12 };
const GENERATION_BITS: u32 = usize::BITS - KIND_BITS - SLOT_BITS;
const MAX_SLOTS: usize = 1 << SLOT_BITS;
const MAX_GENERATION: usize = (1 << GENERATION_BITS) - 1;

/// What a handle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Model = 1,
    Session = 3,
    TextStream = 7,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Model => "model",
            Kind::Session => "session",
            Kind::TextStream => "text stream",
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
        generation << (KIND_BITS + SLOT_BITS) | slot << KIND_BITS | self.kind as usize
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
        for bad in [a, 0, 1, 3, a ^ 2, b ^ 1 << 30, usize::MAX, b + 1] {
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

    #[test]
    fn a_slot_without_generations_left_is_retired() {
        let table = Table::new(Kind::Session);
        let first = table.insert(Arc::new(())).unwrap();
        table.remove(first).unwrap();
        table.slots.write().unwrap().slots[0].generation = MAX_GENERATION;
        let last = table.insert(Arc::new(())).unwrap();
        assert_eq!(last >> KIND_BITS & (MAX_SLOTS - 1), 0);
        table.remove(last).unwrap();
        let next = table.insert(Arc::new(())).unwrap();
        assert_eq!(next >> KIND_BITS & (MAX_SLOTS - 1), 1);
        assert!(table.get(last).is_err());
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
