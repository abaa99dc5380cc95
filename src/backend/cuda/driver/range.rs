//! An address range on the device that gets its memory page by page.

use super::{Context, sys};
use crate::error::Result;
use std::sync::Arc;

/// A reserved range whose start is backed by memory; growing it moves nothing.
pub struct Range {
    context: Arc<Context>,
    address: u64,
    reserved: usize,
    page: usize,
    pages: Vec<sys::CUmemGenericAllocationHandle>,
}

impl Range {
    /// Reserves addresses for `bytes` bytes; nothing is backed yet.
    pub fn reserve(context: &Arc<Context>, bytes: usize) -> Result<Range> {
        let _current = context.enter()?;
        let prop = properties(context);
        let mut page = 0;
        let mut address = 0;
        let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: the context is current; `prop` and the place are valid.
        let code = unsafe { sys::cuMemGetAllocationGranularity(&mut page, &prop, minimum) };
        context.check(code, "cuMemGetAllocationGranularity")?;
        let reserved = bytes.max(1).next_multiple_of(page);
        // SAFETY: as above; `reserved` is a multiple of the granularity.
        let code = unsafe { sys::cuMemAddressReserve(&mut address, reserved, 0, 0, 0) };
        context.allocated(code, reserved, "address range of the KV cache")?;
        Ok(Range {
            context: context.clone(),
            address,
            reserved,
            page,
            pages: Vec::new(),
        })
    }

    /// The first address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes that are backed by memory.
    pub fn backed(&self) -> usize {
        self.pages.len() * self.page
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
        while self.backed() < bytes {
            if let Err(e) = self.add_page(&context, bytes - before * self.page, what) {
                self.shrink(before);
                return Err(e);
            }
        }
        Ok(())
    }

    fn add_page(&mut self, context: &Context, wanted: usize, what: &str) -> Result<()> {
        if context.fails_now() {
            return Err(context.out_of_memory(wanted, what));
        }
        let prop = properties(context);
        let at = self.address + self.backed() as u64;
        let mut handle = 0;
        // SAFETY: the context is current; the page is mapped once, within the reserved range, and
        // its handle kept until it is unmapped.
        unsafe {
            context.allocated(
                sys::cuMemCreate(&mut handle, self.page, &prop, 0),
                wanted,
                what,
            )?;
            let mapped =
                context.allocated(sys::cuMemMap(at, self.page, 0, handle, 0), wanted, what);
            if let Err(e) = mapped {
                sys::cuMemRelease(handle);
                return Err(e);
            }
            let access = sys::CUmemAccessDesc {
                location: prop.location,
                flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            };
            let code = sys::cuMemSetAccess(at, self.page, &access, 1);
            if let Err(e) = context.allocated(code, wanted, what) {
                sys::cuMemUnmap(at, self.page);
                sys::cuMemRelease(handle);
                return Err(e);
            }
        }
        self.pages.push(handle);
        Ok(())
    }

    fn shrink(&mut self, keep: usize) {
        while self.pages.len() > keep {
            let handle = self.pages.pop().expect("longer than `keep`");
            let at = self.address + self.backed() as u64;
            // SAFETY: mapped by `add_page`; the owner has waited for all work that uses it.
            unsafe {
                sys::cuMemUnmap(at, self.page);
                sys::cuMemRelease(handle);
            }
        }
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
