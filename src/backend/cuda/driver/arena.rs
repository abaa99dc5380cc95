//! One allocation for many parts.
//!
//! A layout is a function that takes its parts from an [`Arena`] and returns their addresses in a
//! structure. [`Placed::new`] runs it twice: from address 0, which counts the bytes, and from the
//! address of memory of that size. Both runs are the same code, so the count is what is handed out,
//! and a structure cannot be built with a field that nobody has placed.

use super::{Buffer, Pinned};
use crate::error::{Result, fail};

/// Every part begins at a multiple of this. 16-byte loads and bulk copies need 16; whole lines are
/// kinder to the cache.
pub const ALIGNMENT: u64 = 256;

/// Hands out the parts of an allocation, one behind the other.
#[derive(Debug)]
pub struct Arena {
    base: u64,
    bytes: u64,
}

impl Arena {
    /// The arena of an allocation at `base`, a multiple of [`ALIGNMENT`]. At 0 it only counts.
    pub fn at(base: u64) -> Arena {
        assert!(base.is_multiple_of(ALIGNMENT), "an aligned allocation");
        Arena { base, bytes: 0 }
    }

    /// Bytes of an allocation that is laid out so. A count beyond all memory is `u64::MAX`, which no
    /// allocation gives.
    pub fn count<T>(layout: impl FnOnce(&mut Arena) -> T) -> u64 {
        let mut arena = Arena::at(0);
        layout(&mut arena);
        arena.bytes
    }

    /// The address of the next `bytes` bytes. 0, which stands for "none", for none.
    pub fn take(&mut self, bytes: u64) -> u64 {
        let aligned = self.bytes.checked_next_multiple_of(ALIGNMENT);
        let at = aligned.unwrap_or(u64::MAX);
        self.bytes = at.saturating_add(bytes);
        if bytes == 0 {
            return 0;
        }
        self.base.saturating_add(at)
    }

    /// The address of the next `count` elements.
    pub fn array<T>(&mut self, count: u64) -> u64 {
        self.take(count.saturating_mul(size_of::<T>() as u64))
    }
}

/// Memory that an arena can hand out.
pub trait Memory {
    /// The address on the device.
    fn address(&self) -> u64;
    /// Length in bytes.
    fn bytes(&self) -> usize;
}

impl Memory for Buffer {
    fn address(&self) -> u64 {
        Buffer::address(self)
    }
    fn bytes(&self) -> usize {
        Buffer::bytes(self)
    }
}

impl Memory for Pinned {
    fn address(&self) -> u64 {
        Pinned::address(self)
    }
    fn bytes(&self) -> usize {
        Pinned::bytes(self)
    }
}

/// Memory together with the addresses of its parts.
#[derive(Debug)]
pub struct Placed<M, T> {
    memory: M,
    at: T,
}

impl<M: Memory, T> Placed<M, T> {
    /// Counts what `layout` takes, allocates that, and lays it out.
    pub fn new(
        layout: impl Fn(&mut Arena) -> T,
        allocate: impl FnOnce(usize) -> Result<M>,
    ) -> Result<Placed<M, T>> {
        let bytes = Arena::count(&layout);
        // Beyond the address space is beyond all memory.
        let memory = allocate(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        let mut arena = Arena::at(memory.address());
        let at = layout(&mut arena);
        if arena.bytes != bytes || arena.bytes > memory.bytes() as u64 {
            fail!(
                Internal,
                "{} bytes placed in memory of {}",
                arena.bytes,
                memory.bytes()
            );
        }
        Ok(Placed { memory, at })
    }

    /// The addresses of the parts.
    pub fn at(&self) -> &T {
        &self.at
    }

    /// The memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Status;

    struct Fake {
        address: u64,
        bytes: usize,
    }

    impl Memory for Fake {
        fn address(&self) -> u64 {
            self.address
        }
        fn bytes(&self) -> usize {
            self.bytes
        }
    }

    /// The parts of these sizes.
    fn parts(sizes: &[u64], arena: &mut Arena) -> Vec<(u64, u64)> {
        sizes.iter().map(|&n| (arena.take(n), n)).collect()
    }

    #[test]
    fn parts_are_aligned_apart_and_within_what_was_counted() {
        let sizes = [1, 256, 255, 257, 4, 1 << 33, 16, 0, 1024, 3];
        for base in [256, 0x7f00_0000_0000, 3 << 40] {
            let allocate = |bytes| {
                Ok(Fake {
                    address: base,
                    bytes,
                })
            };
            let placed = Placed::new(|arena| parts(&sizes, arena), allocate).unwrap();
            let counted = Arena::count(|arena| parts(&sizes, arena));
            assert_eq!(placed.memory().bytes as u64, counted);
            let mut free_from = base;
            for &(at, n) in placed.at().iter().filter(|(_, n)| *n > 0) {
                assert!(at.is_multiple_of(ALIGNMENT), "{at:#x}");
                assert!(at >= free_from, "{at:#x} is taken up to {free_from:#x}");
                assert!(at < free_from + ALIGNMENT, "a gap before {at:#x}");
                free_from = at + n;
            }
            assert_eq!(free_from, base + counted, "handed out is what was counted");
        }
    }

    #[test]
    fn an_empty_part_has_no_address() {
        let mut arena = Arena::at(512);
        assert_eq!((arena.take(0), arena.take(8), arena.take(0)), (0, 512, 0));
    }

    #[test]
    fn elements_count_by_their_size() {
        assert_eq!(Arena::count(|a| a.array::<u64>(3)), 24);
        assert_eq!(Arena::count(|a| (a.array::<u8>(3), a.array::<f32>(5))), 276);
    }

    #[test]
    fn more_than_all_memory_is_asked_for_and_refused() {
        let endless = |arena: &mut Arena| {
            let first = arena.array::<u64>(u64::MAX / 2);
            (first, arena.take(1), arena.take(u64::MAX))
        };
        assert_eq!(Arena::count(endless), u64::MAX);
        let refused = Placed::<Fake, _>::new(endless, |bytes| {
            assert_eq!(bytes as u64, u64::MAX);
            fail!(OutOfMemory, "{bytes} bytes")
        });
        assert_eq!(refused.err().map(|e| e.status), Some(Status::OutOfMemory));
    }

    #[test]
    fn a_layout_that_differs_between_its_runs_is_noticed() {
        let runs = std::cell::Cell::new(0);
        let grows = |arena: &mut Arena| {
            runs.set(runs.get() + 1);
            arena.take(runs.get() * 100)
        };
        let allocate = |bytes| {
            Ok(Fake {
                address: 1 << 20,
                bytes,
            })
        };
        let error = Placed::new(grows, allocate).err().unwrap();
        assert_eq!(error.status, Status::Internal);
    }

    #[test]
    #[should_panic(expected = "aligned")]
    fn an_unaligned_allocation_is_refused() {
        Arena::at(128);
    }
}
