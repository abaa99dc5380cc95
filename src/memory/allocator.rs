//! The allocator of the C library: the system's, and the reserve where that has nothing.

use super::{mark, reserve};
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{NonNull, null_mut};

/// Takes from `system`, and from the reserve what it refuses.
pub(super) struct Allocator<S> {
    system: S,
}

impl<S> Allocator<S> {
    pub(super) const fn new(system: S) -> Allocator<S> {
        Allocator { system }
    }

    /// For what the system has refused.
    #[cold]
    #[inline(never)]
    fn rescue(&self, layout: Layout) -> *mut u8 {
        mark();
        reserve::take(layout).map_or(null_mut(), NonNull::as_ptr)
    }
}

/// The block, if it is one of the reserve. Nearly always no block is out, and that is all that is
/// looked at.
#[inline]
fn reserved(block: *mut u8) -> Option<NonNull<u8>> {
    if !reserve::is_used() {
        return None;
    }
    NonNull::new(block).filter(|block| reserve::owns(*block))
}

// SAFETY: a block comes from `system`, whose contract it has, or from the reserve: then it is aligned
// and as large as asked for, nobody else has it until it comes back, and it comes back to the reserve
// because its address says so. Nothing here unwinds.
unsafe impl<S: GlobalAlloc> GlobalAlloc for Allocator<S> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by contract, `layout` has a size.
        let block = unsafe { self.system.alloc(layout) };
        if block.is_null() {
            return self.rescue(layout);
        }
        block
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by contract, `layout` has a size.
        let mut block = unsafe { self.system.alloc_zeroed(layout) };
        if block.is_null() {
            block = self.rescue(layout);
            if !block.is_null() {
                // SAFETY: a block of that size.
                unsafe { block.write_bytes(0, layout.size()) };
            }
        }
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match reserved(block) {
            // SAFETY: the reserve gave it for this layout; the caller does not use it any more.
            Some(block) => unsafe { reserve::give_back(block, layout) },
            // SAFETY: what the reserve does not own, the system gave.
            None => unsafe { self.system.dealloc(block, layout) },
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let in_reserve = reserved(block).is_some();
        if !in_reserve {
            // SAFETY: what the reserve does not own, the system gave.
            let new = unsafe { self.system.realloc(block, layout, size) };
            if !new.is_null() {
                return new;
            }
            mark();
        }
        // SAFETY: not too large by contract.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        if in_reserve && reserve::same_block(layout, wanted) {
            return block;
        }
        // From the reserve back to the system where that can be had again.
        let new = if in_reserve {
            // SAFETY: `size` is not 0 by contract.
            unsafe { self.alloc(wanted) }
        } else {
            self.rescue(wanted)
        };
        if !new.is_null() {
            // SAFETY: two different blocks, each at least that large; the old one is given back as
            // the layout that it was got with.
            unsafe {
                block.copy_to_nonoverlapping(new, layout.size().min(size));
                self.dealloc(block, layout);
            }
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Call, Room, check};
    use std::alloc::System;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// The system, when it has memory.
    struct Fails(AtomicBool);

    // SAFETY: passed on to the system, or refused.
    unsafe impl GlobalAlloc for Fails {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            match self.0.load(Ordering::Relaxed) {
                true => null_mut(),
                // SAFETY: by contract, `layout` has a size.
                false => unsafe { System.alloc(layout) },
            }
        }
        unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
            // SAFETY: by contract, `layout` has a size, and a block has come from here with it.
            unsafe { System.dealloc(block, layout) }
        }
    }

    fn allocator() -> Allocator<Fails> {
        Allocator::new(Fails(AtomicBool::new(false)))
    }

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    /// Fills a block, and returns whether it had been zeros.
    fn fill(block: *mut u8, size: usize, value: u8) -> bool {
        // SAFETY: the tests' blocks have that size.
        let bytes = unsafe { std::slice::from_raw_parts_mut(block, size) };
        let zeros = bytes.iter().all(|&b| b == 0);
        bytes.fill(value);
        zeros
    }

    #[test]
    fn small_requests_are_served_and_marked() {
        let from = allocator();
        let _call = Call::begin();
        // SAFETY: each block is given back once, with its layout.
        unsafe {
            let kind = layout(100, 8);
            let outside = from.alloc(kind);
            assert_eq!(check(), Ok(()));
            from.system.0.store(true, Ordering::Relaxed);
            for (size, align) in [(1, 1), (100, 8), (4096, 4096), (200_000, 64)] {
                let kind = layout(size, align);
                let block = from.alloc(kind);
                assert!(!block.is_null() && block.addr().is_multiple_of(align));
                fill(block, size, 0xaa);
                from.dealloc(block, kind);
                let block = from.alloc_zeroed(kind);
                assert!(fill(block, size, 0xbb));
                from.dealloc(block, kind);
            }
            assert!(check().is_err());
            // Larger ones are fallible, and so are strange alignments.
            assert!(from.alloc(layout(1 << 20, 8)).is_null());
            assert!(from.alloc(layout(64, 1 << 16)).is_null());
            // What the system gave goes back to it.
            from.dealloc(outside, kind);
        }
    }

    #[test]
    fn blocks_grow_into_the_reserve_and_out_of_it() {
        let from = allocator();
        let _call = Call::begin();
        // SAFETY: each block is given back once, with its layout.
        unsafe {
            let block = from.alloc(layout(10, 1));
            fill(block, 10, 7);
            from.system.0.store(true, Ordering::Relaxed);
            let block = from.realloc(block, layout(10, 1), 90);
            assert!(reserve::owns(NonNull::new(block).unwrap()));
            assert_eq!(std::slice::from_raw_parts(block, 10), [7; 10]);
            let same = from.realloc(block, layout(90, 1), 120);
            assert_eq!(same, block);
            assert!(from.realloc(block, layout(120, 1), 1 << 20).is_null());
            from.system.0.store(false, Ordering::Relaxed);
            let block = from.realloc(block, layout(120, 1), 1 << 20);
            assert!(!reserve::owns(NonNull::new(block).unwrap()));
            assert_eq!(std::slice::from_raw_parts(block, 10), [7; 10]);
            from.dealloc(block, layout(1 << 20, 1));
        }
    }

    #[test]
    fn a_room_serves_large_requests_of_the_threads_in_it() {
        let from = allocator();
        from.system.0.store(true, Ordering::Relaxed);
        let kind = layout(3 << 20, 16);
        let room = Room::new(8 << 20).unwrap();
        // SAFETY: each block is given back once, with its layout.
        unsafe {
            assert!(from.alloc(kind).is_null());
            let entered = room.enter();
            let block = from.alloc(kind);
            assert!(!block.is_null());
            fill(block, kind.size(), 1);
            std::thread::scope(|scope| {
                scope.spawn(|| assert!(from.alloc(kind).is_null()));
            });
            let inner = Room::new(1 << 20).unwrap();
            {
                let _inner = inner.enter();
                assert!(from.alloc(kind).is_null());
            }
            let second = from.alloc(kind);
            assert!(!second.is_null());
            from.dealloc(second, kind);
            drop(entered);
            assert!(from.alloc(kind).is_null());
            // What is left of it outlives the room.
            drop(room);
            assert!(!fill(block, kind.size(), 2));
            assert!(reserve::owns(NonNull::new(block).unwrap()));
            from.dealloc(block, kind);
            assert!(!reserve::owns(NonNull::new(block).unwrap()));
        }
    }

    #[test]
    fn threads_share_the_reserve() {
        let from = allocator();
        from.system.0.store(true, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let from = &from;
                scope.spawn(move || {
                    for round in 0..500 {
                        let kind = layout(1 + round * 7 % 3000, 8);
                        // SAFETY: given back once, with its layout.
                        unsafe {
                            let block = from.alloc(kind);
                            fill(block, kind.size(), thread);
                            std::thread::yield_now();
                            let bytes = std::slice::from_raw_parts(block, kind.size());
                            assert!(bytes.iter().all(|&b| b == thread));
                            from.dealloc(block, kind);
                        }
                    }
                });
            }
        });
    }
}
