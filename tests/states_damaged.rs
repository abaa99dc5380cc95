//! Damaged files of saved sessions: the right error for every flipped bit and every truncation, and
//! no allocation that is out of proportion to the file.

// It has an allocator of its own, which the C library has, too.
#![cfg(not(feature = "c-library"))]

mod common;

use common::states::*;
use common::tiny::Random;
use common::{cpu, repository_file};
use emberlm::backend::LoadOptions;
use emberlm::engine::Model;
use emberlm::engine::state::{Kind, RestoreOptions};
use emberlm::{Result, Status};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

/// The system's allocator, which remembers the largest request of each thread.
struct Watching;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: both functions hand their arguments on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: the caller's promises are those of `System.alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System.alloc` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

fn load(path: &Path) -> Arc<Model> {
    let options = LoadOptions {
        threads: 1,
        ..Default::default()
    };
    Arc::new(Model::load(path, cpu(), &options, &mut |_| Ok(())).unwrap())
}

/// Restores `bytes`. Gives the error, if there is one, and the largest allocation.
fn restore(model: &Arc<Model>, bytes: &[u8]) -> (Result<()>, usize) {
    LARGEST.set(0);
    let result = restored(model, bytes, &RestoreOptions::default());
    (result.map(drop), LARGEST.get())
}

/// Flips `flips` bits at random places, and cuts the file at `cuts` places.
fn damaged(model: &Arc<Model>, bytes: &[u8], flips: usize, cuts: usize) {
    let (result, whole) = restore(model, bytes);
    result.unwrap();
    // A session of its own size is made when all but the keys and values has been checked.
    let limit = whole.max(bytes.len()) + 1024;
    let mut random = Random::new(3, "flips");
    let mut other = bytes.to_vec();
    for _ in 0..flips {
        let at = (random.bits() % bytes.len() as u64) as usize;
        let bit = 1 << (random.bits() % 8);
        other[at] ^= bit;
        let (result, largest) = restore(model, &other);
        other[at] ^= bit;
        let expected = match at {
            0..8 => Status::NotState,
            8..12 => Status::StateVersion,
            _ => Status::StateChecksum,
        };
        assert_eq!(result.map_err(|e| e.status), Err(expected), "byte {at}");
        assert!(largest <= limit, "byte {at}: {largest} bytes allocated");
    }
    let cuts = cuts.min(bytes.len());
    for at in (0..cuts).map(|i| i * bytes.len() / cuts) {
        let (result, largest) = restore(model, &bytes[..at]);
        let expected = match at {
            0 => Status::NotState,
            _ => Status::FileTruncated,
        };
        assert_eq!(result.map_err(|e| e.status), Err(expected), "cut at {at}");
        assert!(largest <= limit, "cut at {at}: {largest} bytes allocated");
    }
    println!("{} bytes: {flips} flips, {cuts} cuts", bytes.len());
}

#[test]
fn every_flip_and_every_truncation_is_an_error() {
    let hamlet = load(&repository_file("models/hamlet-7m-Q4_K_M.gguf"));
    let tiny = load(&repository_file("tests/data/families/qwen2/model.gguf"));
    for (model, kind, flips, cuts) in [
        (&hamlet, Kind::Tokens, 100_000, usize::MAX),
        (&tiny, Kind::Everything, 100_000, usize::MAX),
        (&hamlet, Kind::Everything, 2000, 1500),
    ] {
        let mut s = session(model);
        s.prefill(&[1, 2, 3]).unwrap();
        s.decode().unwrap();
        let bytes = saved(&mut s, kind);
        damaged(model, &bytes, flips, cuts);
    }
}
