//! The rate at which this machine reads memory: the wall that decoding runs into.

use crate::stats::Samples;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

/// What was measured.
pub struct Bandwidth {
    /// 10^9 bytes per second, one sample per pass over the buffer.
    pub gb_per_s: Samples,
    /// Threads that read.
    pub threads: usize,
    /// Bytes that they read per pass, all together.
    pub bytes: usize,
}

const WORDS_PER_LINE: usize = 8;

/// Reads a buffer of `bytes` with `threads` threads, `passes` times after one that warms up. Each
/// thread writes its part first, so that the pages are real and near it. `None` if there is not
/// enough memory.
pub fn measure(bytes: usize, threads: usize, passes: usize) -> Option<Bandwidth> {
    let threads = threads.max(1);
    let words = (bytes / threads / 8).next_multiple_of(WORDS_PER_LINE);
    let barrier = Barrier::new(threads + 1);
    let mut seconds = Vec::new();
    let complete = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..threads)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || read(words, thread as u64, passes, barrier))
            })
            .collect();
        for pass in 0..=passes {
            barrier.wait();
            let start = Instant::now();
            barrier.wait();
            if pass > 0 {
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
        readers
            .into_iter()
            .all(|reader| reader.join().unwrap_or(false))
    });
    if !complete {
        return None;
    }
    let bytes = words * 8 * threads;
    Some(Bandwidth {
        gb_per_s: Samples::new(seconds.iter().map(|s| bytes as f64 / s / 1e9).collect()),
        threads,
        bytes,
    })
}

/// One thread's part. Meets the barrier the same number of times whether it got its memory or not.
fn read(words: usize, seed: u64, passes: usize, barrier: &Barrier) -> bool {
    let mut part: Vec<u64> = Vec::new();
    let reserved = part.try_reserve_exact(words).is_ok();
    if reserved {
        part.extend((0..words as u64).map(|i| i ^ seed));
    }
    for _ in 0..=passes {
        barrier.wait();
        black_box(sum(black_box(&part)));
        barrier.wait();
    }
    reserved
}

/// Independent sums per lane, so that loads and not additions are the limit.
fn sum(words: &[u64]) -> u64 {
    let mut lanes = [0u64; 2 * WORDS_PER_LINE];
    let mut chunks = words.chunks_exact(lanes.len());
    for chunk in &mut chunks {
        for (lane, word) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(*word);
        }
    }
    let rest = chunks.remainder().iter().copied();
    lanes.into_iter().chain(rest).fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_every_word() {
        for len in [0usize, 1, 15, 16, 17, 100] {
            let words: Vec<u64> = (0..len as u64).collect();
            assert_eq!(sum(&words), words.iter().sum::<u64>());
        }
    }

    #[test]
    fn counts_what_it_reads() {
        let measured = measure(1 << 20, 3, 2).expect("a megabyte");
        assert_eq!(measured.gb_per_s.values().len(), 2);
        assert!(measured.bytes >= (1 << 20) - 3 * 64 && measured.bytes <= (1 << 20) + 3 * 64);
        assert!(measured.gb_per_s.least() > 0.0);
    }

    #[test]
    fn too_much_memory_is_no_panic() {
        assert!(measure(usize::MAX / 16, 1, 1).is_none());
    }
}
