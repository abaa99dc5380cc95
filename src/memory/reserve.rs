//! The memory that is used when the system has none: some megabytes that belong to the library from
//! its start, and the rooms of calls that wanted more.

use super::buddy::{Buddies, MIN_BLOCK, block_bytes, tree_bytes};
use super::room::Region;
use std::alloc::Layout;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The reserve has `MIN_BLOCK << LEVELS` bytes: 8 MB. They have no contents in the library's file, so
/// they take address space from its start, and memory once they are used.
const LEVELS: u32 = 17;
const BYTES: usize = MIN_BLOCK << LEVELS;
/// The largest request that the reserve serves.
const MAX_REQUEST: usize = 256 << 10;
/// Calls are refused while more of the reserve than this is in use.
const LOW: usize = BYTES / 2;
/// Every request for a larger alignment is left to the system.
pub(super) const MAX_ALIGN: usize = 4096;

#[repr(C, align(4096))]
struct Aligned(MaybeUninit<[u8; BYTES]>);

/// What is in use.
struct State {
    tree: [u8; tree_bytes(LEVELS)],
    /// All rooms, as a list.
    rooms: *mut Region,
}

/// Gives out the reserve.
struct Reserve {
    locked: AtomicBool,
    memory: UnsafeCell<Aligned>,
    state: UnsafeCell<State>,
    /// Bytes of the reserve that are in use.
    used: AtomicUsize,
    /// Blocks that were given out, those of rooms included, and did not come back.
    blocks: AtomicUsize,
}

// SAFETY: `state` is used by the holder of `locked` alone; of `memory` only the address is taken, and
// its blocks belong to those that they were given to; the rest is atomic.
unsafe impl Sync for Reserve {}

static RESERVE: Reserve = Reserve {
    locked: AtomicBool::new(false),
    memory: UnsafeCell::new(Aligned(MaybeUninit::uninit())),
    state: UnsafeCell::new(State {
        tree: [0; tree_bytes(LEVELS)],
        rooms: null_mut(),
    }),
    used: AtomicUsize::new(0),
    blocks: AtomicUsize::new(0),
};

impl Reserve {
    fn base(&self) -> NonNull<u8> {
        NonNull::from(&self.memory).cast()
    }

    /// Runs `work` under the lock. Held for some hundred instructions and never across anything that
    /// waits or allocates; the system's locks may allocate when they are used first.
    fn with<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        struct Unlock<'a>(&'a AtomicBool);
        impl Drop for Unlock<'_> {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Release);
            }
        }
        let mut tries = 0u32;
        while self.locked.swap(true, Ordering::Acquire) {
            tries += 1;
            if tries.is_multiple_of(64) {
                // The holder may need this core.
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        let _unlock = Unlock(&self.locked);
        // SAFETY: `locked` was taken, so nobody else has a reference; `work` gets none that outlives
        // it, and does not call back here.
        work(unsafe { &mut *self.state.get() })
    }

    /// The offset in the reserve of an address, if it is one of it.
    fn offset(&self, address: usize) -> Option<usize> {
        let offset = address.wrapping_sub(self.base().addr().get());
        (offset < BYTES).then_some(offset)
    }
}

/// The bytes that a block for this layout has to have.
fn wanted(layout: Layout) -> usize {
    layout.size().max(layout.align())
}

/// Memory for a request that the system has refused, from the room that the thread is in, or from
/// the reserve if the request is small.
pub(super) fn take(layout: Layout) -> Option<NonNull<u8>> {
    if layout.align() > MAX_ALIGN {
        return None;
    }
    let size = wanted(layout);
    let room = super::room::current();
    RESERVE.with(|state| {
        // SAFETY: a room that a thread is in outlives the time in it, and the lock is held.
        let block = unsafe { super::room::take(room, size) }.or_else(|| {
            if size > MAX_REQUEST {
                return None;
            }
            let offset = Buddies::new(&mut state.tree, LEVELS).take(size)?;
            RESERVE.used.fetch_add(block_bytes(size), Ordering::Relaxed);
            // SAFETY: within the reserve by the contract of `take`.
            Some(unsafe { RESERVE.base().add(offset) })
        })?;
        RESERVE.blocks.fetch_add(1, Ordering::Relaxed);
        Some(block)
    })
}

/// Whether any block is out. Whoever has got a block from another thread sees that it is.
pub(super) fn is_used() -> bool {
    RESERVE.blocks.load(Ordering::Relaxed) > 0
}

/// Whether an address is one of a block that [`take`] gave.
pub(super) fn owns(block: NonNull<u8>) -> bool {
    let address = block.addr().get();
    RESERVE.offset(address).is_some()
        || RESERVE.with(|state| !super::room::find(state.rooms, address).is_null())
}

/// Takes a block back.
///
/// # Safety
/// [`take`] gave the block for this layout, [`owns`] says so, and nobody uses it any more.
pub(super) unsafe fn give_back(block: NonNull<u8>, layout: Layout) {
    let (address, size) = (block.addr().get(), wanted(layout));
    let emptied = RESERVE.with(|state| {
        RESERVE.blocks.fetch_sub(1, Ordering::Relaxed);
        if let Some(offset) = RESERVE.offset(address) {
            Buddies::new(&mut state.tree, LEVELS).give_back(offset, size);
            RESERVE.used.fetch_sub(block_bytes(size), Ordering::Relaxed);
            return null_mut();
        }
        let room = super::room::find(state.rooms, address);
        // SAFETY: the room is in the list, and the lock is held; the block is one of it.
        let is_left = unsafe { super::room::give_back(room, address, size) };
        if is_left {
            // SAFETY: as above.
            unsafe { super::room::unlink(&mut state.rooms, room) };
            room
        } else {
            null_mut()
        }
    });
    if !emptied.is_null() {
        // SAFETY: its owner has left it, no block of it is out, and it is not in the list any more.
        unsafe { super::room::unmap(emptied) };
    }
}

/// Whether a block for one layout is also one for the other.
pub(super) fn same_block(one: Layout, other: Layout) -> bool {
    block_bytes(wanted(one)) == block_bytes(wanted(other))
}

pub(super) fn is_low() -> bool {
    RESERVE.used.load(Ordering::Relaxed) > LOW
}

/// Runs `work` with the list of rooms.
pub(super) fn with_rooms<R>(work: impl FnOnce(&mut *mut Region) -> R) -> R {
    RESERVE.with(|state| work(&mut state.rooms))
}
