//! Memory that becomes resident as it is used.

use crate::error::{Result, fail};
use crate::memory::{Account, Charge};
use memmap2::{MmapMut, MmapOptions};
use std::marker::PhantomData;
use std::sync::Arc;

/// Zeroed pages straight from the system, reserved but not touched. (The allocator does the same
/// for big blocks, unless it reuses one that it kept: then it touches all of it.)
pub struct Pages {
    base: *mut u8,
    bytes: usize,
    /// What `base` points to; an empty range cannot be mapped.
    _memory: Option<MmapMut>,
    /// Of an account, if it is charged to one.
    _charge: Option<Charge>,
}

// SAFETY: the memory is owned, and `Pages` itself never accesses it.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Reserves `bytes`. Errors: `OutOfMemory`, naming `what`.
    pub fn new(bytes: usize, what: &str) -> Result<Pages> {
        if bytes == 0 {
            let base = std::ptr::without_provenance_mut(64);
            return Ok(Pages {
                base,
                bytes,
                _memory: None,
                _charge: None,
            });
        }
        if bytes > isize::MAX as usize {
            fail!(OutOfMemory, "{what}: {bytes} bytes are beyond all memory");
        }
        match MmapOptions::new().len(bytes).no_reserve_swap().map_anon() {
            Ok(mut memory) => Ok(Pages {
                base: memory.as_mut_ptr(),
                bytes,
                _memory: Some(memory),
                _charge: None,
            }),
            Err(e) => fail!(
                OutOfMemory,
                "{what}: {bytes} bytes could not be reserved: {e}"
            ),
        }
    }

    /// The same, charged to an account.
    pub fn charged(account: &Arc<Account>, bytes: usize, what: &str) -> Result<Pages> {
        let charge = account.charge(bytes, what)?;
        Ok(Pages {
            _charge: Some(charge),
            ..Pages::new(bytes, what)?
        })
    }

    /// Reserves `len` floats.
    pub fn floats(len: usize, what: &str) -> Result<Pages> {
        Pages::new(len.saturating_mul(size_of::<f32>()), what)
    }

    /// The first byte, on a page's border.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Bytes reserved.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// All of it as floats that several threads share.
    pub fn span(&mut self) -> Span<'_> {
        Span {
            base: self.base.cast(),
            len: self.bytes / size_of::<f32>(),
            owner: PhantomData,
        }
    }
}

/// Elements, mostly floats, of which several threads use different parts at the same time.
pub struct Span<'a, T = f32> {
    base: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

impl<T> Clone for Span<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Span<'_, T> {}

// SAFETY: access is by `part`, which demands that nobody else uses the part.
unsafe impl<T: Send> Send for Span<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Span<'_, T> {}

impl<'a, T> Span<'a, T> {
    /// All of a slice.
    pub fn new(slice: &'a mut [T]) -> Span<'a, T> {
        Span {
            base: slice.as_mut_ptr(),
            len: slice.len(),
            owner: PhantomData,
        }
    }

    /// The first element.
    pub fn base(&self) -> *mut T {
        self.base
    }

    /// What is left from `start` on.
    pub fn from(&self, start: usize) -> Span<'a, T> {
        assert!(start <= self.len);
        Span {
            base: self.base.wrapping_add(start),
            len: self.len - start,
            owner: PhantomData,
        }
    }

    /// `len` elements from `start` on.
    ///
    /// # Safety
    /// Until the next barrier (or as long as the reference lives), no other thread writes them,
    /// and if anything is written through it, none reads them either.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, start: usize, len: usize) -> &'a mut [T] {
        assert!(start <= self.len && len <= self.len - start);
        // SAFETY: in range; by contract, nobody else uses the part.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(start), len) }
    }
}
