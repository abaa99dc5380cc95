//! An address range on the device that gets its memory page by page. Ranges can share pages.

use super::{Context, Stream, sys};
use crate::error::Result;
use std::sync::Arc;

/// Physical memory on the device, of which ranges show all at an address of their own.
struct Page {
    context: Arc<Context>,
    handle: sys::CUmemGenericAllocationHandle,
}

impl Page {
    /// `bytes` bytes, a multiple of the granularity. `wanted` and `what` go into the error.
    fn new(context: &Arc<Context>, bytes: usize, wanted: usize, what: &str) -> Result<Page> {
        if context.fails_now() {
            return Err(context.out_of_memory(wanted, what));
        }
        let mut handle = 0;
        let prop = properties(context);
        // SAFETY: the caller has made the context current; the place is valid.
        let code = unsafe { sys::cuMemCreate(&mut handle, bytes, &prop, 0) };
        context.allocated(code, wanted, what)?;
        Ok(Page {
            context: context.clone(),
            handle,
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
    page_bytes: usize,
    pages: Vec<Arc<Page>>,
}

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
    /// Reserves addresses for `bytes` bytes, in pages of at least `page_bytes`; nothing is backed
    /// yet.
    pub fn reserve(context: &Arc<Context>, bytes: usize, page_bytes: usize) -> Result<Range> {
        let _current = context.enter()?;
        let page_bytes = page_bytes.max(1).next_multiple_of(granularity(context)?);
        let mut address = 0;
        let reserved = bytes.max(1).next_multiple_of(page_bytes);
        // SAFETY: the context is current and the place valid; `reserved` is a multiple of the
        // granularity.
        let code = unsafe { sys::cuMemAddressReserve(&mut address, reserved, 0, 0, 0) };
        context.allocated(code, reserved, "address range on the device")?;
        Ok(Range {
            context: context.clone(),
            address,
            reserved,
            page_bytes,
            pages: Vec::new(),
        })
    }

    /// The first address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Bytes that are backed by memory.
    pub fn backed(&self) -> usize {
        self.pages.len() * self.page_bytes
    }

    /// Backs at least the first `bytes` bytes. On failure what was backed before still is, and
    /// nothing more.
    pub fn grow(&mut self, bytes: usize, what: &str) -> Result<()> {
        assert!(bytes <= self.reserved, "growth within the reserved range");
        if bytes <= self.backed() {
            return Ok(());
        }
        let before = self.pages.len();
        let context = self.context.clone();
        let _current = context.enter()?;
        let wanted = bytes - self.backed();
        let grown = (before..bytes.div_ceil(self.page_bytes)).try_for_each(|_| {
            let page = Page::new(&context, self.page_bytes, wanted, what)?;
            self.map(Arc::new(page), wanted, what)
        });
        let grown = grown.and_then(|()| self.allow(before, wanted, what));
        if grown.is_err() {
            self.shrink(before);
        }
        grown
    }

    /// Shows the first `count` pages of another range of the same page size, which both hold from
    /// now on. The range has no memory yet.
    pub fn share(&mut self, other: &Range, count: usize) -> Result<()> {
        assert!(self.pages.is_empty() && self.page_bytes == other.page_bytes);
        assert!(count * self.page_bytes <= self.reserved);
        let context = self.context.clone();
        let _current = context.enter()?;
        let (bytes, what) = (count * self.page_bytes, "shared pages of the KV cache");
        let mut pages = other.pages[..count].iter();
        let shared = pages.try_for_each(|page| self.map(page.clone(), bytes, what));
        let shared = shared.and_then(|()| self.allow(0, bytes, what));
        if shared.is_err() {
            self.shrink(0);
        }
        shared
    }

    /// Gives the backed pages that hold the bytes `from..to` memory of their own with the same
    /// content, where another range has them, too. Waits for `stream`, whose work may use them.
    pub fn own(&mut self, from: usize, to: usize, stream: &Stream) -> Result<()> {
        let last = to.div_ceil(self.page_bytes).min(self.pages.len());
        for index in from / self.page_bytes..last {
            if Arc::get_mut(&mut self.pages[index]).is_none() {
                self.replace(index, stream)?;
            }
        }
        Ok(())
    }

    /// Maps a copy in place of a page.
    fn replace(&mut self, index: usize, stream: &Stream) -> Result<()> {
        let what = "a shared page of the KV cache";
        // The copy is made in a range of its own, then changes place.
        let mut copy = Range::reserve(&self.context, self.page_bytes, self.page_bytes)?;
        copy.grow(self.page_bytes, what)?;
        let at = self.address + (index * self.page_bytes) as u64;
        // SAFETY: both pages are mapped and different; the copy is awaited.
        let copied = unsafe { stream.copy(copy.address(), at, self.page_bytes) };
        copied.and(stream.synchronize())?;
        let context = self.context.clone();
        let _current = context.enter()?;
        let new = copy.pages[0].clone();
        drop(copy);
        // SAFETY: mapped by `map` and unmapped once; the stream is idle, and nobody else uses this
        // range. The new page is mapped at once, so that the addresses stay good.
        unsafe {
            sys::cuMemUnmap(at, self.page_bytes);
            let code = sys::cuMemMap(at, self.page_bytes, 0, new.handle, 0);
            if let Err(e) = context.allocated(code, self.page_bytes, what) {
                // As before.
                sys::cuMemMap(at, self.page_bytes, 0, self.pages[index].handle, 0);
                let _ = self.allow_page(index);
                return Err(e);
            }
        }
        self.pages[index] = new;
        self.allow_page(index)
    }

    /// Maps a page behind the others. `allow` has to follow.
    fn map(&mut self, page: Arc<Page>, wanted: usize, what: &str) -> Result<()> {
        let at = self.address + self.backed() as u64;
        // SAFETY: the caller has made the context current; the page is mapped once in this range, in
        // a place of it that is free, and kept until it is unmapped.
        let code = unsafe { sys::cuMemMap(at, self.page_bytes, 0, page.handle, 0) };
        self.context.allocated(code, wanted, what)?;
        self.pages.push(page);
        Ok(())
    }

    /// Lets the device use the pages from `first` on.
    fn allow(&self, first: usize, wanted: usize, what: &str) -> Result<()> {
        let (at, bytes) = (first * self.page_bytes, self.backed());
        if at == bytes {
            return Ok(());
        }
        let access = access(&self.context);
        // SAFETY: the caller has made the context current; these pages are mapped.
        let code =
            unsafe { sys::cuMemSetAccess(self.address + at as u64, bytes - at, &access, 1) };
        self.context.allocated(code, wanted, what)
    }

    fn allow_page(&self, index: usize) -> Result<()> {
        let access = access(&self.context);
        let at = self.address + (index * self.page_bytes) as u64;
        // SAFETY: the caller has made the context current; the page is mapped.
        let code = unsafe { sys::cuMemSetAccess(at, self.page_bytes, &access, 1) };
        self.context.check(code, "cuMemSetAccess")
    }

    /// Gives the memory behind the first `keep` pages back.
    fn shrink(&mut self, keep: usize) {
        if self.pages.len() <= keep {
            return;
        }
        let (at, bytes) = (keep * self.page_bytes, self.backed());
        // SAFETY: the caller has made the context current; mapped by `map`, and whoever used the
        // range has waited for its work.
        unsafe { sys::cuMemUnmap(self.address + at as u64, bytes - at) };
        self.pages.truncate(keep);
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
