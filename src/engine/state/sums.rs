//! Checksums of several parts at once.

use super::format::{PART_BYTES, PART_HEADER_BYTES, Section, checksum};
use crate::error::{Result, fail};
use crate::threads;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The most parts at once.
pub(super) const GROUP: usize = 16;
/// Most threads.
const THREADS: usize = 4;

/// The checksums of parts of full length, [`GROUP`] at most, of which the first has index `first`.
pub(super) fn sums(section: Section, first: u32, bytes: &[u8]) -> [u64; GROUP] {
    let count = bytes.len() / PART_BYTES;
    let sums = [const { AtomicU64::new(0) }; GROUP];
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let part = bytes.chunks_exact(PART_BYTES).nth(i);
            let (Some(part), Some(sum)) = (part, sums.get(i)) else {
                return;
            };
            let value = checksum(section, first + i as u32, part);
            sum.store(value, Ordering::Relaxed);
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    // A thread is worth its start for two parts or more.
    let others = cores.min(THREADS).min(count / 2).saturating_sub(1);
    // Fewer threads take longer.
    threads::beside("ember-checksum", others, &work, |_| work());
    sums.map(AtomicU64::into_inner)
}

/// What stands before a part.
pub(super) fn part_header(section: Section, index: u32, sum: u64) -> [u8; PART_HEADER_BYTES] {
    let mut header = [0; PART_HEADER_BYTES];
    header[..4].copy_from_slice(&(section as u32).to_le_bytes());
    header[4..8].copy_from_slice(&index.to_le_bytes());
    header[8..].copy_from_slice(&sum.to_le_bytes());
    header
}

/// Compares what stands before a part with what should.
pub(super) fn check(
    section: Section,
    index: u32,
    sum: u64,
    header: &[u8; PART_HEADER_BYTES],
) -> Result<()> {
    if *header != part_header(section, index, sum) {
        fail!(
            StateChecksum,
            "part {index} of the saved session's {section:?} has changed since it was written"
        );
    }
    Ok(())
}
