//! Sessions of a fake model behind the exported functions: what takes a slow or broken backend.

use super::*;
use crate::engine::Model;
use crate::engine::fake::{FakeWeights, Knobs, N_VOCAB};
use std::ffi::CStr;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A token to be written, which is this one before.
fn token(id: u32) -> ember_token {
    ember_token {
        struct_size: size_of::<ember_token>() as u32,
        id,
        flags: 0,
        status: 0,
        logprob: 0.0,
        reserved: 0,
    }
}

struct Fixture {
    knobs: Arc<Knobs>,
    model: *mut ember_model,
    session: *mut ember_session,
    err: ember_error,
}

impl Fixture {
    fn new() -> Fixture {
        let knobs = Arc::<Knobs>::default();
        let weights = Arc::new(FakeWeights(knobs.clone()));
        let model = super::model::insert(Arc::new(Model::from_weights(weights, N_VOCAB, 32)));
        let model = model.unwrap();
        let mut f = Fixture {
            knobs,
            model,
            session: null_mut(),
            err: ember_error {
                code: -1,
                index: 0,
                message: [0; 1016],
            },
        };
        // SAFETY: all pointers are to locals.
        let status = unsafe { ember_session_create(model, null(), &mut f.session, &mut f.err) };
        assert_eq!(status, 0);
        f
    }

    fn prefill(&mut self, tokens: &[u32]) -> i32 {
        // SAFETY: all pointers are to living objects.
        unsafe { ember_prefill(self.session, tokens.as_ptr(), tokens.len(), &mut self.err) }
    }

    fn decode(&mut self) -> i32 {
        let mut token = token(0);
        // SAFETY: all pointers are to locals.
        unsafe { ember_decode(self.session, &mut token, &mut self.err) }
    }

    fn position(&self) -> usize {
        let mut position = usize::MAX;
        // SAFETY: all pointers are to locals.
        let status = unsafe { ember_session_position(self.session, &mut position, null_mut()) };
        assert_eq!(status, 0);
        position
    }

    fn message(&self) -> &str {
        // SAFETY: the library has ended the message with a NUL.
        unsafe { CStr::from_ptr(self.err.message.as_ptr()) }
            .to_str()
            .unwrap()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // SAFETY: handles may be freed at any time.
        unsafe {
            ember_session_free(self.session);
            ember_model_free(self.model);
        }
    }
}

#[test]
fn a_bug_in_the_backend_costs_one_session() {
    let mut f = Fixture::new();
    assert_eq!(f.prefill(&[1, 2]), 0);
    f.knobs.panic.store(true, Ordering::Relaxed);
    assert_eq!(f.prefill(&[3]), Status::Internal as i32);
    assert!(f.message().contains("a bug"), "{}", f.message());
    // The session says so from now on, and can be freed; others go on.
    assert_eq!(f.decode(), Status::Internal as i32);
    assert!(f.message().contains("free it"), "{}", f.message());
    let broken = f.session;
    // SAFETY: all pointers are to locals.
    unsafe {
        assert_eq!(ember_session_free(broken), 0);
        assert_eq!(ember_session_free(broken), Status::InvalidHandle as i32);
        let status = ember_session_create(f.model, null(), &mut f.session, &mut f.err);
        assert_eq!(status, 0);
    }
    assert_eq!(f.prefill(&[1, 2]), 0);
    assert_eq!(f.decode(), 0);
}

#[test]
fn a_session_in_use_is_busy_everywhere_else() {
    let mut f = Fixture::new();
    assert_eq!(f.prefill(&[1, 2]), 0);
    f.knobs.hold.store(true, Ordering::Relaxed);
    let handle = f.session.addr();
    let session = || std::ptr::without_provenance_mut::<ember_session>(handle);
    let slow = std::thread::spawn(move || {
        let session = std::ptr::without_provenance_mut(handle);
        // SAFETY: the array is a constant.
        unsafe { ember_prefill(session, [3u32].as_ptr(), 1, null_mut()) }
    });
    // Until the other thread is in: an empty prefill does nothing but ask.
    // SAFETY: NULL is allowed with a length of 0.
    while unsafe { ember_prefill(session(), null(), 0, null_mut()) } != Status::Busy as i32 {
        std::thread::yield_now();
    }
    let busy = Status::Busy as i32;
    let mut token = self::token(77);
    let mut logits = [5.0f32; N_VOCAB];
    // SAFETY: all pointers are to locals.
    unsafe {
        assert_eq!(ember_decode(session(), &mut token, &mut f.err), busy);
        assert_eq!(ember_decode_start(session(), &mut f.err), busy);
        assert_eq!(ember_decode_poll(session(), &mut token, &mut f.err), busy);
        assert_eq!(ember_session_rewind(session(), 0, &mut f.err), busy);
        assert_eq!(ember_decode_start_n(session(), 3, &mut f.err), busy);
        let mut fork = null_mut();
        assert_eq!(ember_session_fork(session(), &mut fork, &mut f.err), busy);
        assert!(fork.is_null());
        // One of a batch.
        let mut other = null_mut();
        let status = ember_session_create(f.model, null(), &mut other, &mut f.err);
        assert_eq!(status, 0);
        let batch = [other, session()];
        let mut tokens = [self::token(77); 2];
        let status = ember_decode_batch(batch.as_ptr(), 2, tokens.as_mut_ptr(), &mut f.err);
        assert_eq!(status, busy);
        assert_eq!(tokens.map(|t| t.id), [77; 2]);
        assert!(f.message().contains("index 1"), "{}", f.message());
        assert_eq!(ember_session_free(other), 0);
        let status = ember_session_logits(session(), logits.as_mut_ptr(), N_VOCAB, &mut f.err);
        assert_eq!(status, busy);
    }
    assert!(f.message().contains("another thread"), "{}", f.message());
    assert_eq!((token.id, logits), (77, [5.0; N_VOCAB]));
    // Reading the position needs no turn.
    assert_eq!(f.position(), 2);
    // SAFETY: a handle may be used from any thread.
    assert_eq!(unsafe { ember_session_interrupt(session()) }, 0);
    assert_eq!(slow.join().unwrap(), Status::Interrupted as i32);
    f.knobs.hold.store(false, Ordering::Relaxed);
    assert_eq!(f.position(), 2);
    assert_eq!(f.decode(), 0);
}

#[test]
fn poll_never_blocks_and_free_ends_a_started_decode() {
    let mut f = Fixture::new();
    assert_eq!(f.prefill(&[1, 2]), 0);
    assert_eq!(f.decode(), 0);
    f.knobs.hold.store(true, Ordering::Relaxed);
    let mut token = self::token(77);
    // SAFETY: all pointers are to locals.
    unsafe {
        assert_eq!(ember_decode_start(f.session, &mut f.err), 0);
        for _ in 0..100 {
            let status = ember_decode_poll(f.session, &mut token, &mut f.err);
            assert_eq!(status, Status::Pending as i32);
        }
        assert_eq!((token.id, f.message()), (77, ""));
        assert_eq!(f.prefill(&[1]), Status::DecodePending as i32);
        // The model's handle goes first, which the session survives.
        assert_eq!(ember_model_free(f.model), 0);
        assert_eq!(f.knobs.running.load(Ordering::SeqCst), 1);
        assert_eq!(ember_session_free(f.session), 0);
    }
    assert_eq!(f.knobs.running.load(Ordering::SeqCst), 0);
    // Nothing holds the weights any more but the fixture's own part of them.
    assert_eq!(Arc::strong_count(&f.knobs), 1);
}

#[test]
fn a_session_that_is_freed_in_a_call_goes_with_it() {
    let mut f = Fixture::new();
    assert_eq!(f.prefill(&[1, 2]), 0);
    f.knobs.hold.store(true, Ordering::Relaxed);
    let handle = f.session.addr();
    let slow = std::thread::spawn(move || {
        let session = std::ptr::without_provenance_mut(handle);
        // SAFETY: the array is a constant.
        unsafe { ember_prefill(session, [3u32].as_ptr(), 1, null_mut()) }
    });
    // SAFETY: NULL is allowed with a length of 0.
    while unsafe { ember_prefill(f.session, null(), 0, null_mut()) } != Status::Busy as i32 {
        std::thread::yield_now();
    }
    // SAFETY: a handle may be freed at any time.
    unsafe {
        assert_eq!(ember_session_free(f.session), 0);
        assert_eq!(ember_session_free(f.session), Status::InvalidHandle as i32);
        assert_eq!(ember_model_free(f.model), 0);
    }
    assert_eq!(slow.join().unwrap(), Status::Interrupted as i32);
    f.session = null_mut();
    f.model = null_mut();
    assert_eq!(Arc::strong_count(&f.knobs), 1);
}

#[test]
fn of_two_threads_that_free_one_succeeds() {
    for _ in 0..200 {
        let mut f = Fixture::new();
        let handle = f.session.addr();
        let free = move || {
            // SAFETY: a handle may be freed at any time.
            unsafe { ember_session_free(std::ptr::without_provenance_mut(handle)) }
        };
        let other = std::thread::spawn(free);
        let statuses = [free(), other.join().unwrap()];
        let freed = statuses.iter().filter(|&&s| s == 0).count();
        assert_eq!(freed, 1, "{statuses:?}");
        f.session = null_mut();
    }
}
