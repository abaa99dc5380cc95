//! Zeroed memory aligned to a cache line, written through shared references under the caller's
//! promise of disjointness.

use crate::error::{Result, fail};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

const ALIGN: usize = 64;

/// An owned, 64-byte aligned block of memory that starts as zeros.
pub(super) struct Buffer {
    ptr: NonNull<u8>,
    layout: Option<Layout>,
}

// SAFETY: plain owned memory; the unsafe functions that write it state who may do so when.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `bytes` bytes, or `OutOfMemory` naming `what`.
    pub(super) fn new(bytes: usize, what: &str) -> Result<Buffer> {
        if bytes == 0 {
            return Ok(Buffer {
                ptr: NonNull::dangling(),
                layout: None,
            });
        }
        let layout = Layout::from_size_align(bytes, ALIGN).ok();
        let ptr = match layout {
            // SAFETY: the size is not zero.
            Some(layout) => unsafe { alloc_zeroed(layout) },
            None => std::ptr::null_mut(),
        };
        match NonNull::new(ptr) {
            Some(ptr) => Ok(Buffer { ptr, layout }),
            None => fail!(OutOfMemory, "{what}: {bytes} bytes could not be allocated"),
        }
    }

    /// The first byte.
    pub(super) fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(layout) = self.layout {
            // SAFETY: allocated with this layout in `new`.
            unsafe { dealloc(self.ptr.as_ptr(), layout) }
        }
    }
}
