//! Anonymous memory for the bytes of tensors.

use crate::error::{Error, Result, Status, fail};
use memmap2::{MmapMut, MmapOptions};
use std::io;
use std::ops::Range;

/// What the processor maps with one entry of its tables, where the system has huge pages.
const HUGE_PAGE: usize = 2 << 20;

/// Memory straight from the system, all 0 at first. No page of it is taken before it is written.
/// What could fill huge pages lies on their borders and asks for them.
pub(super) struct Memory {
    map: MmapMut,
    range: Range<usize>,
}

impl Memory {
    /// `len` bytes, at least 1.
    pub(super) fn new(len: usize) -> Result<Memory> {
        // Address space only.
        let spare = if len < HUGE_PAGE { 0 } else { HUGE_PAGE };
        let mapped = len.saturating_add(spare);
        let map = MmapOptions::new()
            .len(mapped)
            .map_anon()
            .map_err(|e| out_of_memory(len, &e))?;
        let start = match spare {
            0 => 0,
            _ => map.as_ptr().addr().next_multiple_of(HUGE_PAGE) - map.as_ptr().addr(),
        };
        #[cfg(target_os = "linux")]
        if spare > 0 {
            // Where there are none, small pages do.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(Memory {
            map,
            range: start..start + len,
        })
    }

    /// A copy of `bytes`.
    pub(super) fn copy(bytes: &[u8]) -> Result<Memory> {
        if bytes.is_empty() {
            fail!(FileEmpty, "the file has no bytes");
        }
        let mut memory = Memory::new(bytes.len())?;
        memory.bytes_mut().copy_from_slice(bytes);
        Ok(memory)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.map[self.range.clone()]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map[self.range.clone()]
    }
}

fn out_of_memory(len: usize, error: &io::Error) -> Error {
    Error::new(
        Status::OutOfMemory,
        format!("model: {len} bytes could not be allocated: {error}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_memory_starts_where_a_huge_page_can() {
        for (len, aligned) in [(1, false), (HUGE_PAGE, true), (3 * HUGE_PAGE + 5, true)] {
            let mut memory = Memory::new(len).unwrap();
            assert_eq!(memory.bytes().len(), len);
            assert!(!aligned || memory.bytes().as_ptr().addr().is_multiple_of(HUGE_PAGE));
            memory.bytes_mut().fill(7);
            assert!(memory.bytes().iter().all(|b| *b == 7));
        }
        assert!(Memory::new(usize::MAX).is_err());
    }
}
