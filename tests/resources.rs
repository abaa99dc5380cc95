//! What a session takes while it runs, and what is left after it: no allocation per decoded token,
//! no thread after free. One test alone in this process, because it counts for the whole process.

// It has an allocator of its own, which the C library has, too.
#![cfg(not(feature = "c-library"))]

#[path = "common/threads.rs"]
mod threads;

use emberlm::ffi::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use threads::{threads, threads_in_the_end};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    work();
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

fn cpu_device() -> u32 {
    let mut count = 0;
    // SAFETY: all pointers are to locals, whose size is in them.
    unsafe {
        assert_eq!(ember_device_count(&mut count, null_mut()), 0);
        (0..count)
            .find(|&index| {
                let mut device: ember_device_details = std::mem::zeroed();
                device.struct_size = size_of::<ember_device_details>() as u32;
                assert_eq!(ember_device_info(index, &mut device, null_mut()), 0);
                device.kind == ember_device_kind::EMBER_DEVICE_CPU as u32
            })
            .unwrap()
    }
}

fn load() -> *mut ember_model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/hamlet-7m-Q4_K_M.gguf");
    let path = path.to_str().unwrap();
    let mut model = null_mut();
    // SAFETY: all pointers are to locals; no callback.
    unsafe {
        let mut options: ember_model_options = std::mem::zeroed();
        options.struct_size = size_of::<ember_model_options>() as u32;
        options.device = cpu_device();
        options.threads = 3;
        let status = ember_model_load(
            path.as_ptr().cast(),
            path.len(),
            &options,
            &mut model,
            null_mut(),
        );
        assert_eq!(status, 0);
    }
    model
}

fn session(model: *mut ember_model, temperature: f32) -> *mut ember_session {
    let mut session = null_mut();
    // SAFETY: all pointers are to locals.
    unsafe {
        let mut options: ember_session_options = std::mem::zeroed();
        options.struct_size = size_of::<ember_session_options>() as u32;
        let mut sampling: ember_sampling_options = std::mem::zeroed();
        sampling.struct_size = size_of::<ember_sampling_options>() as u32;
        sampling.temperature = temperature;
        sampling.top_p = 0.9;
        options.sampling = &sampling;
        options.context = 128;
        assert_eq!(
            ember_session_create(model, &options, &mut session, null_mut()),
            0
        );
        let prompt = [0u32, 260, 300];
        assert_eq!(
            ember_prefill(session, prompt.as_ptr(), prompt.len(), null_mut()),
            0
        );
    }
    session
}

/// A token to be written.
fn token() -> ember_token {
    // SAFETY: numbers only, of which zero is a value.
    let mut token: ember_token = unsafe { std::mem::zeroed() };
    token.struct_size = size_of::<ember_token>() as u32;
    token
}

fn decode(session: *mut ember_session) {
    let mut token = token();
    // SAFETY: `token` is a local.
    assert_eq!(unsafe { ember_decode(session, &mut token, null_mut()) }, 0);
}

fn decode_by_poll(session: *mut ember_session) {
    let mut token = token();
    // SAFETY: `token` is a local.
    unsafe {
        assert_eq!(ember_decode_start(session, null_mut()), 0);
        loop {
            match ember_decode_poll(session, &mut token, null_mut()) {
                1 => std::thread::yield_now(),
                status => break assert_eq!(status, 0),
            }
        }
    }
}

#[test]
fn decoding_allocates_nothing_and_freeing_leaves_nothing() {
    // SAFETY: NULL may be freed.
    assert_eq!(unsafe { ember_model_free(null_mut()) }, 0);
    assert_eq!(
        unsafe { ember_set_log_callback(None, null_mut(), 0, null_mut()) },
        0
    );
    let at_start = threads();
    for temperature in [0.0, 0.8] {
        let model = load();
        let session = session(model, temperature);
        // The first of each kind may make what the later ones use.
        decode(session);
        decode_by_poll(session);
        let count = allocations(|| (0..20).for_each(|_| decode(session)));
        assert_eq!(count, 0, "allocations in 20 decodes");
        let count = allocations(|| (0..20).for_each(|_| decode_by_poll(session)));
        assert_eq!(count, 0, "allocations in 20 started decodes");
        let others = [
            self::session(model, temperature),
            self::session(model, 1.0),
            session,
        ];
        let batch = || {
            let mut tokens = [token(); 3];
            // SAFETY: all pointers are to locals.
            let status =
                unsafe { ember_decode_batch(others.as_ptr(), 3, tokens.as_mut_ptr(), null_mut()) };
            assert_eq!(status, 0);
        };
        batch();
        let count = allocations(|| (0..10).for_each(|_| batch()));
        assert_eq!(count, 0, "allocations in 10 batches");
        let queue = || {
            let mut token = token();
            // SAFETY: `token` is a local.
            unsafe {
                assert_eq!(ember_decode_start_n(session, 5, null_mut()), 0);
                for _ in 0..5 {
                    while ember_decode_poll(session, &mut token, null_mut()) == 1 {
                        std::thread::yield_now();
                    }
                }
                assert_eq!(ember_decode_poll(session, &mut token, null_mut()), 26);
            }
        };
        queue();
        let count = allocations(|| (0..3).for_each(|_| queue()));
        // The message of the last poll.
        assert_eq!(count, 3, "allocations in 3 queues of 5");
        // SAFETY: handles may be freed at any time, the model's first.
        unsafe {
            assert_eq!(ember_session_free(others[0]), 0);
            assert_eq!(ember_session_free(others[1]), 0);
        }
        // SAFETY: handles may be freed at any time, the model's first.
        unsafe {
            assert_eq!(ember_model_free(model), 0);
            decode(session);
            assert_eq!(ember_session_free(session), 0);
            assert_eq!(
                ember_session_create(model, null(), &mut null_mut(), null_mut()),
                4
            );
        }
        assert_eq!(threads_in_the_end(at_start), at_start, "threads after free");
    }
}
