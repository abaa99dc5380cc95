//! Address space that a call takes before it does what may need much memory infallibly.

use super::buddy::{Buddies, MIN_BLOCK, tree_bytes};
use super::reserve;
use crate::error::{Result, fail};
use memmap2::MmapMut;
use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut};

/// Address space for requests that the system refuses. What was taken from it may outlive it.
#[derive(Debug)]
pub struct Room {
    region: Option<NonNull<Region>>,
}

// SAFETY: the region is used under the reserve's lock only, on whichever thread.
unsafe impl Send for Room {}
// SAFETY: as above.
unsafe impl Sync for Room {}

/// A thread's time in a room.
#[derive(Debug)]
pub struct Entered<'a> {
    outer: *mut Region,
    /// Not to be sent to another thread, either.
    _room: PhantomData<(&'a Room, *mut ())>,
}

/// The head of a room's mapping. The tree of its blocks follows, then, from a page's start, they.
pub(super) struct Region {
    map: ManuallyDrop<MmapMut>,
    levels: u32,
    blocks: NonNull<u8>,
    /// Blocks that are out.
    out: usize,
    /// The [`Room`] is gone, and the mapping goes with the last block.
    is_left: bool,
    next: *mut Region,
}

thread_local! {
    /// The room that this thread is in. Without a destructor, whose registration would need memory.
    static CURRENT: Cell<*mut Region> = const { Cell::new(null_mut()) };
}

impl Room {
    /// A room in which requests of `bytes` together can be served, up to 1 GB (64 MB where pointers
    /// have 32 bits). Errors: `OutOfMemory`.
    pub fn new(bytes: usize) -> Result<Room> {
        if !cfg!(any(feature = "c-library", test)) {
            return Ok(Room { region: None });
        }
        const MOST: usize = if usize::BITS == 64 { 1 << 30 } else { 64 << 20 };
        // A block takes up to twice its size.
        let blocks = bytes.min(MOST).div_ceil(MIN_BLOCK) * 2;
        let levels = blocks.max(1 << 10).next_power_of_two().trailing_zeros();
        let head = size_of::<Region>() + tree_bytes(levels);
        let head = head.next_multiple_of(reserve::MAX_ALIGN);
        let len = head + (MIN_BLOCK << levels);
        let mut map = match MmapMut::map_anon(len) {
            Ok(map) => ManuallyDrop::new(map),
            Err(_) => fail!(OutOfMemory, "{len} bytes of address space could not be had"),
        };
        let start = map.as_mut_ptr();
        let region = start.cast::<Region>();
        // SAFETY: within the mapping, whose length is more than `head`.
        let blocks = unsafe { NonNull::new_unchecked(start.add(head)) };
        // SAFETY: a mapping starts at a page and is long enough; nobody else knows it.
        unsafe {
            region.write(Region {
                map,
                levels,
                blocks,
                out: 0,
                is_left: false,
                next: null_mut(),
            });
        }
        reserve::with_rooms(|rooms| {
            // SAFETY: written above, and not in the list yet.
            unsafe { (*region).next = *rooms };
            *rooms = region;
        });
        Ok(Room {
            region: NonNull::new(region),
        })
    }

    /// A room for work that is linear in its input.
    pub(crate) fn for_input(bytes: usize) -> Result<Room> {
        /// What is less fits into requests that the reserve serves.
        const SMALL: usize = 1 << 10;
        const PER_BYTE: usize = 256;
        const MOST: usize = if usize::BITS == 64 {
            512 << 20
        } else {
            64 << 20
        };
        match bytes {
            ..=SMALL => Ok(Room { region: None }),
            _ => Room::new(bytes.saturating_mul(PER_BYTE).min(MOST)),
        }
    }

    /// Bytes of requests that it is for.
    pub(crate) fn bytes(&self) -> usize {
        // SAFETY: the region stays mapped while the room lives, and this of it never changes.
        self.region.map_or(usize::MAX, |region| unsafe {
            MIN_BLOCK << (*region.as_ptr()).levels >> 1
        })
    }

    /// From now on, what the system refuses to this thread comes from here.
    pub fn enter(&self) -> Entered<'_> {
        let mine = self.region.map_or(null_mut(), NonNull::as_ptr);
        Entered {
            outer: CURRENT.replace(mine),
            _room: PhantomData,
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        CURRENT.set(self.outer);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let Some(region) = self.region else { return };
        let region = region.as_ptr();
        let is_empty = reserve::with_rooms(|rooms| {
            // SAFETY: the region is in the list until it is unlinked here or, once it is left, with
            // its last block; the lock is held.
            unsafe {
                (*region).is_left = true;
                if (*region).out == 0 {
                    unlink(rooms, region);
                }
                (*region).out == 0
            }
        });
        if is_empty {
            // SAFETY: left, empty and unlinked by this thread.
            unsafe { unmap(region) };
        }
    }
}

/// The room that this thread is in, or NULL.
pub(super) fn current() -> *mut Region {
    CURRENT.try_with(Cell::get).unwrap_or(null_mut())
}

impl Region {
    /// # Safety
    /// The region is in its mapping, and the reserve's lock is held for as long as the result lives.
    unsafe fn buddies(&mut self) -> Buddies<'_> {
        let tree = std::ptr::from_mut(self).wrapping_add(1).cast::<u8>();
        // SAFETY: the tree lies behind the region in the same mapping, which is writable.
        let tree = unsafe { std::slice::from_raw_parts_mut(tree, tree_bytes(self.levels)) };
        Buddies::new(tree, self.levels)
    }

    /// The offset of an address among the blocks.
    fn offset(&self, address: usize) -> Option<usize> {
        let offset = address.wrapping_sub(self.blocks.addr().get());
        (offset < MIN_BLOCK << self.levels).then_some(offset)
    }
}

/// A block of a room, if there is one (and a room).
///
/// # Safety
/// `room` is NULL or in the list, and the reserve's lock is held.
pub(super) unsafe fn take(room: *mut Region, size: usize) -> Option<NonNull<u8>> {
    let room = NonNull::new(room)?.as_ptr();
    // SAFETY: by contract, `room` is NULL or in the list, and the reserve's lock is held.
    unsafe {
        let offset = (*room).buddies().take(size)?;
        (*room).out += 1;
        Some((*room).blocks.add(offset))
    }
}

/// Takes a block back. Whether the mapping has to go now.
///
/// # Safety
/// `room` is in the list, the block was taken from it with this size, and the reserve's lock is held.
pub(super) unsafe fn give_back(room: *mut Region, address: usize, size: usize) -> bool {
    // SAFETY: by contract, `room` is in the list, the block came from it with this size, and the lock is held.
    unsafe {
        if let Some(offset) = (*room).offset(address) {
            (*room).buddies().give_back(offset, size);
            (*room).out -= 1;
        }
        (*room).is_left && (*room).out == 0
    }
}

/// The room that an address is in, or NULL. The lock is held, since the caller has the list.
pub(super) fn find(rooms: *mut Region, address: usize) -> *mut Region {
    let mut room = rooms;
    // SAFETY: all regions in the list are mapped, and only the holder of the lock changes them.
    while let Some(region) = unsafe { room.as_ref() } {
        if region.offset(address).is_some() {
            break;
        }
        room = region.next;
    }
    room
}

/// Takes a room out of the list.
///
/// # Safety
/// The reserve's lock is held, and `room` is in the list.
pub(super) unsafe fn unlink(rooms: &mut *mut Region, room: *mut Region) {
    let mut place: *mut *mut Region = rooms;
    // SAFETY: all regions in the list are mapped; `place` points to the head or to a link in one.
    unsafe {
        while !(*place).is_null() && *place != room {
            place = &raw mut (**place).next;
        }
        if !(*place).is_null() {
            *place = (*room).next;
        }
    }
}

/// Gives the mapping back to the system.
///
/// # Safety
/// The region is in no list, no block of it is out, and nobody will use it again.
pub(super) unsafe fn unmap(room: *mut Region) {
    // SAFETY: by contract, this is the only read of it; dropping the map, which lies on the stack now,
    // unmaps the place that it was read from, which is not used any more.
    let map = unsafe { std::ptr::read(&raw const (*room).map) };
    drop(ManuallyDrop::into_inner(map));
}
