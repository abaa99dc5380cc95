//! An address range on the device that gets its memory page by page. Ranges can share pages.
//!
//! What the driver takes to let the device use a page, about 27 us, does not depend on its size. So
//! pages grow with the range, and a growth by much takes few pages.

use super::{Context, Stream, sys};
use crate::error::Result;
use crate::memory::Charge;
use std::sync::Arc;

/// Physical memory on the device, of which ranges show all at an address of their own.
struct Page {
    context: Arc<Context>,
    handle: sys::CUmemGenericAllocationHandle,
    bytes: usize,
    _charge: Charge,
}

impl Page {
    /// `bytes` bytes, a multiple of the granularity. `wanted` and `what` go into the error.
    fn new(context: &Arc<Context>, bytes: usize, wanted: usize, what: &str) -> Result<Page> {
        if context.fails_now() {
            return Err(context.out_of_memory(wanted, what));
        }
        let charge = context.account().charge(bytes, what)?;
        let mut handle = 0;
        let prop = properties(context);
        // SAFETY: the caller has made the context current; the place is valid.
        let code = unsafe { sys::cuMemCreate(&mut handle, bytes, &prop, 0) };
        context.allocated(code, wanted, what)?;
        Ok(Page {
            context: context.clone(),
            handle,
            bytes,
            _charge: charge,
        })
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if let Some(_current) = self.context.enter_to_free() {
            // SAFETY: created in `new` and released once. The memory goes when no range maps it any
            // more, and each range unmaps before it lets go of its page.
            unsafe { sys::cuMemRelease(self.handle) };
        }
    }
}

/// A reserved range whose start is backed by memory; growing it moves nothing.
pub struct Range {
    context: Arc<Context>,
    address: u64,
    reserved: usize,
    /// Bytes of the smallest page. Others are multiples.
    unit: usize,
    pages: Vec<Arc<Page>>,
    backed: usize,
}

/// Units of a page of a range that grows by at least as many.
const PAGE_UNITS: usize = 8;
/// A page has at most this part of what the range has already, unless there is need for more.
const GROWTH: usize = 16;

/// The smallest unit of a range's memory.
pub fn granularity(context: &Context) -> Result<usize> {
    let _current = context.enter()?;
    let prop = properties(context);
    let mut bytes = 0;
    let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: the context is current; `prop` and the place are valid.
    let code = unsafe { sys::cuMemGetAllocationGranularity(&mut bytes, &prop, minimum) };
    context.check(code, "cuMemGetAllocationGranularity")?;
    Ok(bytes)
}

impl Range {
    /// Reserves addresses for `bytes` bytes, in pages of `unit` bytes or a multiple of that; nothing
    /// is backed yet.
    pub fn reserve(context: &Arc<Context>, bytes: usize, unit: usize) -> Result<Range> {
        let _current = context.enter()?;
        let unit = unit.max(1).next_multiple_of(granularity(context)?);
        let mut address = 0;
        let reserved = bytes.max(1).next_multiple_of(unit);
        // SAFETY: the context is current and the place valid; `reserved` is a multiple of the
        // granularity.
        let code = unsafe { sys::cuMemAddressReserve(&mut address, reserved, 0, 0, 0) };
        context.allocated(code, reserved, "address range on the device")?;
        Ok(Range {
            context: context.clone(),
            address,
            reserved,
            unit,
            pages: Vec::new(),
            backed: 0,
        })
    }

    /// The first address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes that are backed by memory.
    pub fn backed(&self) -> usize {
        self.backed
    }

    /// The next page of a range that grows to `bytes` bytes.
    fn next_page(&self, bytes: usize, what: &str) -> Result<Page> {
        let wanted = bytes - self.backed;
        let needed = wanted.div_ceil(self.unit).min(PAGE_UNITS) * self.unit;
        let usual = self.backed / self.unit / GROWTH * self.unit;
        let usual = usual.min(self.reserved - self.backed);
        match usual > needed {
            true => Page::new(&self.context, usual, wanted, what)
                .or_else(|_| Page::new(&self.context, needed, wanted, what)),
            false => Page::new(&self.context, needed, wanted, what),
        }
    }

    /// Backs at least the first `bytes` bytes. On failure what was backed before still is, and
    /// nothing more.
    pub fn grow(&mut self, bytes: usize, what: &str) -> Result<()> {
        assert!(bytes <= self.reserved, "growth within the reserved range");
        if bytes <= self.backed() {
            return Ok(());
        }
        let (before, backed) = (self.pages.len(), self.backed);
        let context = self.context.clone();
        let _current = context.enter()?;
        let wanted = bytes - backed;
        let mut grow = || {
            while self.backed < bytes {
                let page = self.next_page(bytes, what)?;
                self.map(Arc::new(page), wanted, what)?;
            }
            self.allow(backed, wanted, what)
        };
        let grown = grow();
        if grown.is_err() {
            self.shrink(before);
        }
        grown
    }

    /// Shows the pages of another range that lie within its first `bytes` bytes; both hold them from
    /// now on. Returns how many bytes those are. The range has no memory yet.
    pub fn share(&mut self, other: &Range, bytes: usize) -> Result<usize> {
        assert!(self.pages.is_empty() && self.reserved == other.reserved);
        let context = self.context.clone();
        let _current = context.enter()?;
        let what = "shared pages of the KV cache";
        let mut share = || {
            for page in &other.pages {
                if self.backed + page.bytes > bytes {
                    break;
                }
                self.map(page.clone(), bytes, what)?;
            }
            self.allow(0, bytes, what)
        };
        let shared = share();
        if shared.is_err() {
            self.shrink(0);
        }
        shared.map(|()| self.backed)
    }

    /// Gives the backed pages that hold the bytes `from..to` memory of their own with the same
    /// content, where another range has them, too. Waits for `stream`, whose work may use them.
    pub fn own(&mut self, from: usize, to: usize, stream: &Stream) -> Result<()> {
        let mut at = 0;
        for index in 0..self.pages.len() {
            let end = at + self.pages[index].bytes;
            if end > from && at < to && Arc::get_mut(&mut self.pages[index]).is_none() {
                self.replace(index, at, stream)?;
            }
            at = end;
        }
        Ok(())
    }

    /// Maps a copy in place of the page at byte `at`.
    fn replace(&mut self, index: usize, at: usize, stream: &Stream) -> Result<()> {
        let what = "a shared page of the KV cache";
        let bytes = self.pages[index].bytes;
        // The copy is made in a range of its own, then changes place.
        let mut copy = Range::reserve(&self.context, bytes, bytes)?;
        copy.grow(bytes, what)?;
        let address = self.address + at as u64;
        // SAFETY: both pages are mapped and different; the copy is awaited.
        let copied = unsafe { stream.copy(copy.address(), address, bytes) };
        copied.and(stream.synchronize())?;
        let context = self.context.clone();
        let _current = context.enter()?;
        let new = copy.pages[0].clone();
        drop(copy);
        // SAFETY: mapped by `map` and unmapped once; the stream is idle, and nobody else uses this
        // range. The new page is mapped at once, so that the addresses stay good.
        unsafe {
            sys::cuMemUnmap(address, bytes);
            let code = sys::cuMemMap(address, bytes, 0, new.handle, 0);
            if let Err(e) = context.allocated(code, bytes, what) {
                // As before.
                sys::cuMemMap(address, bytes, 0, self.pages[index].handle, 0);
                let _ = self.allow_bytes(at, bytes);
                return Err(e);
            }
        }
        self.pages[index] = new;
        let code = self.allow_bytes(at, bytes);
        context.check(code, "cuMemSetAccess")
    }

    /// Maps a page behind the others. `allow` has to follow.
    fn map(&mut self, page: Arc<Page>, wanted: usize, what: &str) -> Result<()> {
        let at = self.address + self.backed as u64;
        // SAFETY: the caller has made the context current; the page is mapped once in this range, in
        // a place of it that is free, and kept until it is unmapped.
        let code = unsafe { sys::cuMemMap(at, page.bytes, 0, page.handle, 0) };
        self.context.allocated(code, wanted, what)?;
        self.backed += page.bytes;
        self.pages.push(page);
        Ok(())
    }

    /// Lets the device use the pages from byte `at` on.
    fn allow(&self, at: usize, wanted: usize, what: &str) -> Result<()> {
        if at == self.backed {
            return Ok(());
        }
        let code = self.allow_bytes(at, self.backed - at);
        self.context.allocated(code, wanted, what)
    }

    /// Lets the device use the `bytes` bytes from `at` on, which are mapped.
    fn allow_bytes(&self, at: usize, bytes: usize) -> sys::CUresult {
        let access = access(&self.context);
        // SAFETY: the callers have made the context current, and these pages are mapped.
        unsafe { sys::cuMemSetAccess(self.address + at as u64, bytes, &access, 1) }
    }

    /// Gives the memory behind the first `keep` pages back.
    fn shrink(&mut self, keep: usize) {
        if self.pages.len() <= keep {
            return;
        }
        let at: usize = self.pages[..keep].iter().map(|page| page.bytes).sum();
        // SAFETY: the caller has made the context current; mapped by `map`, and whoever used the
        // range has waited for its work.
        unsafe { sys::cuMemUnmap(self.address + at as u64, self.backed - at) };
        self.pages.truncate(keep);
        self.backed = at;
    }

    /// Copies `data` to byte `at` and waits for it.
    pub fn write<T: Copy>(&self, at: usize, data: &[T]) -> Result<()> {
        assert!(
            at + size_of_val(data) <= self.backed(),
            "write within the memory"
        );
        super::write(&self.context, self.address + at as u64, data)
    }

    /// Gives all memory back; the addresses stay reserved. Nothing may use the range.
    pub fn clear(&mut self) -> Result<()> {
        let context = self.context.clone();
        let _current = context.enter()?;
        self.shrink(0);
        Ok(())
    }
}

fn properties(context: &Context) -> sys::CUmemAllocationProp {
    // SAFETY: plain data of which all zeros is a value.
    let mut prop: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    prop.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = context.device;
    prop
}

fn access(context: &Context) -> sys::CUmemAccessDesc {
    sys::CUmemAccessDesc {
        location: properties(context).location,
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        let context = self.context.clone();
        if let Some(_current) = context.enter_to_free() {
            self.shrink(0);
            // SAFETY: reserved in `reserve`, and nothing is mapped any more.
            unsafe { sys::cuMemAddressFree(self.address, self.reserved) };
        }
    }
}
