//! Memory straight from the system: for the bytes of tensors, and for copies of what is on a device.

use crate::error::{Error, Result, Status, fail};
use memmap2::{MmapMut, MmapOptions};
use std::io;
use std::ops::Range;

/// What the processor maps with one entry of its tables, where the system has huge pages.
const HUGE_PAGE: usize = 2 << 20;

/// What the bytes of a file are for.
pub const MODEL: &str = "model";

/// Memory straight from the system, all 0 at first. No page of it is taken before it is written.
/// What could fill huge pages lies on their borders and asks for them.
pub struct Pages {
    map: MmapMut,
    range: Range<usize>,
}

impl Pages {
    /// `len` bytes, at least 1. `what` they are for goes into the error.
    pub fn new(len: usize, what: &str) -> Result<Pages> {
        // Address space only.
        let spare = if len < HUGE_PAGE { 0 } else { HUGE_PAGE };
        let mapped = len.saturating_add(spare);
        let map = MmapOptions::new()
            .len(mapped)
            .map_anon()
            .map_err(|e| out_of_memory(len, what, &e))?;
        let start = match spare {
            0 => 0,
            _ => map.as_ptr().addr().next_multiple_of(HUGE_PAGE) - map.as_ptr().addr(),
        };
        #[cfg(target_os = "linux")]
        if spare > 0 {
            // Where there are none, small pages do.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(Pages {
            map,
            range: start..start + len,
        })
    }

    /// A copy of `bytes`.
    pub fn copy(bytes: &[u8]) -> Result<Pages> {
        if bytes.is_empty() {
            fail!(FileEmpty, "the file has no bytes");
        }
        let mut memory = Pages::new(bytes.len(), MODEL)?;
        memory.bytes_mut().copy_from_slice(bytes);
        Ok(memory)
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        &self.map[self.range.clone()]
    }

    /// All of it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map[self.range.clone()]
    }
}

fn out_of_memory(len: usize, what: &str, error: &io::Error) -> Error {
    Error::new(
        Status::OutOfMemory,
        format!("{what}: {len} bytes could not be allocated: {error}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_memory_starts_where_a_huge_page_can() {
        for (len, aligned) in [(1, false), (HUGE_PAGE, true), (3 * HUGE_PAGE + 5, true)] {
            let mut memory = Pages::new(len, MODEL).unwrap();
            assert_eq!(memory.bytes().len(), len);
            assert!(!aligned || memory.bytes().as_ptr().addr().is_multiple_of(HUGE_PAGE));
            memory.bytes_mut().fill(7);
            assert!(memory.bytes().iter().all(|b| *b == 7));
        }
        assert!(Pages::new(usize::MAX, MODEL).is_err());
    }
}
