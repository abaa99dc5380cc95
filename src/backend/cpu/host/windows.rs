//! Windows: kernel32.

use super::Memory;
use std::ffi::c_int;

/// `MEMORYSTATUSEX`.
#[repr(C)]
struct MemoryStatus {
    length: u32,
    memory_load: u32,
    total_physical: u64,
    available_physical: u64,
    rest: [u64; 5],
}

#[link(name = "kernel32")]
unsafe extern "system" {
    fn GlobalMemoryStatusEx(status: *mut MemoryStatus) -> c_int;
    fn GetLogicalProcessorInformationEx(kind: c_int, buffer: *mut u8, length: *mut u32) -> c_int;
}

/// `RelationProcessorCore`.
const PROCESSOR_CORE: c_int = 0;

pub(super) fn memory() -> Option<Memory> {
    let mut status = MemoryStatus {
        length: size_of::<MemoryStatus>() as u32,
        memory_load: 0,
        total_physical: 0,
        available_physical: 0,
        rest: [0; 5],
    };
    // SAFETY: the struct has the layout that the function documents, and says its size.
    let done = unsafe { GlobalMemoryStatusEx(&mut status) };
    (done != 0).then_some(Memory {
        total: status.total_physical,
        free: status.available_physical,
    })
}

/// The records for cores are of varying size: a `u32` relation, a `u32` size, then the rest.
pub(super) fn physical_cores() -> Option<usize> {
    let mut length = 0u32;
    // SAFETY: with a length of 0 nothing is written but the needed length.
    unsafe { GetLogicalProcessorInformationEx(PROCESSOR_CORE, std::ptr::null_mut(), &mut length) };
    // Of u64, for the alignment that the records need.
    let mut buffer = vec![0u64; (length as usize).div_ceil(8)];
    // SAFETY: the buffer has at least `length` bytes.
    let done = unsafe {
        GetLogicalProcessorInformationEx(PROCESSOR_CORE, buffer.as_mut_ptr().cast(), &mut length)
    };
    if done == 0 {
        return None;
    }
    let words = |at: usize| buffer.get(at / 8).map(|w| (w >> 32) as u32 as usize);
    let (mut at, mut cores) = (0, 0);
    while at < length as usize {
        // The size is the upper half of the record's first eight bytes.
        let size = words(at).filter(|&size| size >= 8 && size % 8 == 0)?;
        cores += 1;
        at += size;
    }
    (cores > 0).then_some(cores)
}

pub(super) fn cpu_name() -> Option<String> {
    std::env::var("PROCESSOR_IDENTIFIER").ok()
}
