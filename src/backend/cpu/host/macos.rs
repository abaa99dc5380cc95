//! macOS: sysctl.

use super::Memory;
use std::ffi::{CStr, c_char, c_int, c_void};

unsafe extern "C" {
    fn sysctlbyname(
        name: *const c_char,
        value: *mut c_void,
        size: *mut usize,
        new: *mut c_void,
        new_size: usize,
    ) -> c_int;
}

/// Reads a value into `out` and returns its size.
fn sysctl(name: &CStr, out: &mut [u8]) -> Option<usize> {
    let mut size = out.len();
    // SAFETY: `out` has `size` bytes, and nothing is set.
    let failed = unsafe {
        sysctlbyname(
            name.as_ptr(),
            out.as_mut_ptr().cast(),
            &mut size,
            std::ptr::null_mut(),
            0,
        )
    };
    (failed == 0 && size <= out.len()).then_some(size)
}

/// An integer of 4 or 8 bytes.
fn number(name: &CStr) -> Option<u64> {
    let mut bytes = [0u8; 8];
    match sysctl(name, &mut bytes)? {
        4 => Some(u64::from(u32::from_ne_bytes(bytes[..4].try_into().ok()?))),
        8 => Some(u64::from_ne_bytes(bytes)),
        _ => None,
    }
}

pub(super) fn memory() -> Option<Memory> {
    let pages = number(c"vm.page_free_count")?
        .saturating_add(number(c"vm.page_purgeable_count").unwrap_or(0))
        .saturating_add(number(c"vm.page_pageable_external_count").unwrap_or(0));
    let total = number(c"hw.memsize")?;
    let free = pages.saturating_mul(number(c"hw.pagesize")?).min(total);
    Some(Memory { total, free })
}

pub(super) fn physical_cores() -> Option<usize> {
    // Efficiency cores would slow the others down at every barrier.
    let cores = number(c"hw.perflevel0.physicalcpu").or_else(|| number(c"hw.physicalcpu"))?;
    usize::try_from(cores).ok()
}

pub(super) fn cpu_name() -> Option<String> {
    let mut bytes = [0u8; 256];
    let size = sysctl(c"machdep.cpu.brand_string", &mut bytes)?;
    let text = CStr::from_bytes_until_nul(&bytes[..size]).ok()?;
    Some(text.to_str().ok()?.trim().to_owned())
}
