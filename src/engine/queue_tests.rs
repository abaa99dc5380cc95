//! Queues, batches, forks and profiles of a backend that does one step at a time.

use super::*;
use crate::backend::MAX_BATCH;
use crate::engine::fake::{Knobs, N_VOCAB};
use crate::engine::speculate::{DraftContext, DraftOptions, DraftSource};
use crate::panics::catch;
use crate::threads::event::Event;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

fn prompted(knobs: &Arc<Knobs>, sampling: Sampling, prompt: &[u32]) -> Session {
    let mut s = session_with(knobs, sampling);
    s.prefill(prompt).unwrap();
    s
}

#[test]
fn queued_decodes_give_the_same_tokens() {
    for sampling in [Sampling::default(), drawing()] {
        let mut plain = prompted(&Arc::default(), sampling, &[1, 2]);
        let mut queued = prompted(&Arc::default(), sampling, &[1, 2]);
        for count in [1, 2, 5, 9] {
            queued.decode_start(count).unwrap();
            for _ in 0..count {
                assert_eq!(status(queued.decode()), Status::DecodePending);
                assert_eq!(wait(&mut queued).unwrap(), plain.decode().unwrap());
                assert_eq!(queued.position(), plain.position());
            }
            assert_eq!(status(queued.decode_poll()), Status::NothingPending);
        }
    }
}

#[test]
fn queues_that_cannot_be_are_refused_before_anything_is_done() {
    let mut s = prompted(&Arc::default(), Sampling::default(), &[1; CONTEXT - 3]);
    assert_eq!(status(s.decode_start(0)), Status::InvalidArgument);
    assert_eq!(status(s.decode_start(4)), Status::ContextFull);
    assert_eq!(status(s.decode_start(usize::MAX)), Status::ContextFull);
    assert_eq!(status(s.decode_poll()), Status::NothingPending);
    s.decode_start(3).unwrap();
    for _ in 0..3 {
        wait(&mut s).unwrap();
    }
    assert_eq!(status(s.decode_start(1)), Status::ContextFull);
}

#[test]
fn rewinding_drops_what_was_not_collected() {
    let mut expected = prompted(&Arc::default(), drawing(), &[1, 2]);
    let tokens = decode_all(&mut expected, 8);
    for collected in 0..4 {
        for back in 0..collected + 2 {
            let mut s = prompted(&Arc::default(), drawing(), &[1, 2]);
            s.decode_start(4).unwrap();
            for _ in 0..collected {
                wait(&mut s).unwrap();
            }
            assert_eq!(status(s.rewind(collected + 3)), Status::InvalidArgument);
            s.rewind(collected + 2 - back).unwrap();
            assert_eq!(status(s.decode_poll()), Status::NothingPending);
            if back > collected {
                s.prefill(&[1, 2][2 - (back - collected)..]).unwrap();
            }
            let kept = s.position() - 2;
            assert_eq!(decode_all(&mut s, 8 - kept), tokens[kept..]);
        }
    }
}

#[test]
fn interrupts_and_failures_end_a_queue() {
    let knobs = Arc::<Knobs>::default();
    let mut s = prompted(&knobs, drawing(), &[1, 2]);
    let mut expected = prompted(&Arc::default(), drawing(), &[1, 2]);
    s.decode_start(4).unwrap();
    assert_eq!(wait(&mut s).unwrap(), expected.decode().unwrap());
    s.interrupts().ask();
    assert_eq!(status(wait(&mut s)), Status::Interrupted);
    assert_eq!(status(s.decode_poll()), Status::NothingPending);
    assert_eq!(s.position(), 3);
    s.decode_start(4).unwrap();
    assert_eq!(wait(&mut s).unwrap(), expected.decode().unwrap());
    knobs.nan.store(true, Ordering::Relaxed);
    assert_eq!(status(wait(&mut s)), Status::Numeric);
    assert_eq!(status(s.decode_poll()), Status::NothingPending);
    knobs.nan.store(false, Ordering::Relaxed);
    assert_eq!(decode_all(&mut s, 5), decode_all(&mut expected, 5));
}

/// Sessions of one model with different lengths and samplings.
fn several(knobs: &Arc<Knobs>, n: usize) -> Vec<Session> {
    let m = model(knobs);
    let create = |i: usize| {
        let sampling = if i.is_multiple_of(3) {
            Sampling::default()
        } else {
            Sampling {
                seed: i as u64,
                ..drawing()
            }
        };
        let options = SessionOptions {
            sampling,
            ..Default::default()
        };
        let mut s = Session::create(m.clone(), &options).unwrap();
        s.prefill(&vec![(i % N_VOCAB) as u32; 1 + i % 5]).unwrap();
        s
    };
    (0..n).map(create).collect()
}

/// The results of all, none of which has failed.
fn batch(sessions: &mut [Session]) -> Result<Vec<u32>> {
    results(sessions)?.into_iter().collect()
}

fn results(sessions: &mut [Session]) -> Result<Vec<Result<u32>>> {
    let mut sessions: Vec<&mut Session> = sessions.iter_mut().collect();
    Ok(Session::decode_batch(&mut sessions)?.into_iter().collect())
}

/// The same in the background.
fn started(sessions: &mut [Session]) -> Result<Vec<Result<u32>>> {
    let mut all: Vec<&mut Session> = sessions.iter_mut().collect();
    Session::decode_batch_start(&mut all)?;
    let collect = |s: &mut Session| loop {
        assert_eq!(status(s.decode()), Status::DecodePending);
        match s.decode_poll() {
            Ok(Some(token)) => break Ok(token),
            Ok(None) => std::thread::yield_now(),
            Err(e) => break Err(e),
        }
    };
    Ok(sessions.iter_mut().map(collect).collect())
}

#[test]
fn a_batch_gives_what_each_session_gives_alone() {
    for n in [1, 2, MAX_BATCH] {
        let mut alone = several(&Arc::default(), n);
        let mut together = several(&Arc::default(), n);
        for _ in 0..6 {
            let expected: Vec<u32> = alone.iter_mut().map(|s| s.decode().unwrap()).collect();
            assert_eq!(batch(&mut together).unwrap(), expected);
            let expected: Vec<_> = alone.iter_mut().map(|s| s.decode()).collect();
            assert_eq!(started(&mut together).unwrap(), expected);
        }
    }
}

#[test]
fn of_a_batch_each_session_fails_for_itself() {
    for work in [results, started] {
        let knobs = Arc::<Knobs>::default();
        let mut s = several(&knobs, 4);
        let mut expected = several(&Arc::default(), 4);
        batch(&mut s).unwrap();
        batch(&mut expected).unwrap();
        // What is known before any work ends a start; of a batch that is waited for it is a session's own.
        s[2].decode_start(1).unwrap();
        let mut all: Vec<&mut Session> = s.iter_mut().collect();
        let e = Session::decode_batch_start(&mut all).unwrap_err();
        assert_eq!((e.status, e.index), (Status::DecodePending, Some(2)));
        let found = results(&mut s).unwrap();
        for i in [0, 1, 3] {
            assert_eq!(found[i], Ok(expected[i].decode().unwrap()), "{i}");
        }
        assert_eq!(status(found[2].clone()), Status::DecodePending);
        let len = s[2].position();
        s[2].rewind(len).unwrap();

        knobs.nan.store(true, Ordering::Relaxed);
        for result in work(&mut s).unwrap() {
            assert_eq!(status(result), Status::Numeric);
        }
        knobs.nan.store(false, Ordering::Relaxed);
        for _ in 0..4 {
            let wanted = batch(&mut expected).unwrap();
            let found: Result<Vec<u32>> = work(&mut s).unwrap().into_iter().collect();
            assert_eq!(found.unwrap(), wanted);
        }
    }
}

#[test]
fn what_is_no_batch_is_refused() {
    let mut s = several(&Arc::default(), 3);
    s.extend(several(&Arc::default(), 1));
    for work in [results, started] {
        let e = work(&mut s).unwrap_err();
        assert_eq!((e.status, e.index), (Status::InvalidArgument, Some(3)));
        for n in [0, MAX_BATCH + 1] {
            let mut many = several(&Arc::default(), n);
            assert_eq!(status(work(&mut many)), Status::InvalidArgument);
        }
    }
    assert!(s.iter().enumerate().all(|(i, s)| s.position() == 1 + i % 3));
}

#[test]
fn a_late_failure_ends_one_session_alone() {
    for work in [results, started] {
        let knobs = Arc::<Knobs>::default();
        let mut s = several(&knobs, 3);
        let mut expected = several(&Arc::default(), 3);
        batch(&mut s).unwrap();
        batch(&mut expected).unwrap();
        // The first two are evaluated, the third is interrupted while it waits.
        knobs.hold_after.store(2, Ordering::Relaxed);
        let flag = s[2].interrupts().clone();
        let waiter = knobs.clone();
        let interrupter = std::thread::spawn(move || {
            while !waiter.waiting.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            waiter.hold_after.store(0, Ordering::Relaxed);
            flag.ask();
            while waiter.hold.load(Ordering::Relaxed) {
                // Whoever tries again is not held up.
                waiter.hold.store(false, Ordering::Relaxed);
            }
        });
        let found = work(&mut s).unwrap();
        interrupter.join().unwrap();
        for i in 0..2 {
            assert_eq!(found[i], Ok(expected[i].decode().unwrap()), "{i}");
        }
        match &found[2] {
            // It was let go before it looked at its flag.
            Ok(token) => {
                assert_eq!(*token, expected[2].decode().unwrap());
                s[2].interrupts().clear();
            }
            Err(e) => assert_eq!(e.status, Status::Interrupted),
        }
        for _ in 0..4 {
            assert_eq!(batch(&mut s).unwrap(), batch(&mut expected).unwrap());
        }
    }
}

#[test]
fn a_rewind_and_a_free_end_a_batch_in_the_background() {
    let knobs = Arc::<Knobs>::default();
    let mut s = several(&knobs, 3);
    let mut expected = several(&Arc::default(), 3);
    let mut all: Vec<&mut Session> = s.iter_mut().collect();
    Session::decode_batch_start(&mut all).unwrap();
    let len = s[0].position();
    s[0].rewind(len).unwrap();
    assert_eq!(status(s[0].decode_poll()), Status::NothingPending);
    drop(s.pop());
    expected.pop();
    while s[1].decode_poll().unwrap().is_none() {}
    expected[1].decode().unwrap();
    for _ in 0..4 {
        assert_eq!(batch(&mut s).unwrap(), batch(&mut expected).unwrap());
    }
}

/// Knows what comes, and spoils each token at a fourth position.
struct Known {
    tokens: Vec<u32>,
    is_quick: bool,
}

impl DraftSource for Known {
    fn is_quick(&self) -> bool {
        self.is_quick
    }

    fn look(&mut self, context: &DraftContext<'_>) -> Result<Option<usize>> {
        Ok(self.tokens.starts_with(context.tokens).then_some(0))
    }

    fn draft(&mut self, context: &DraftContext<'_>, drafts: &mut [u32]) -> Result<usize> {
        let from = context.tokens.len();
        let count = drafts.len().min(self.tokens.len() - from);
        for (i, draft) in drafts[..count].iter_mut().enumerate() {
            let is_wrong = (from + i).is_multiple_of(4);
            *draft = (self.tokens[from + i] + u32::from(is_wrong)) % N_VOCAB as u32;
        }
        Ok(count)
    }

    fn fork(&mut self, _: &Session) -> Result<Box<dyn DraftSource>> {
        Ok(Box::new(Known {
            tokens: self.tokens.clone(),
            is_quick: self.is_quick,
        }))
    }
}

/// Gives all but the last of these sessions, which `several` has made, such a source.
fn let_draft(sessions: &mut [Session], is_quick: bool) {
    let mut ahead = several(&Arc::default(), sessions.len());
    for (session, ahead) in sessions.iter_mut().zip(&mut ahead).rev().skip(1) {
        decode_all(ahead, 20);
        let options = DraftOptions {
            most: 3,
            always: true,
        };
        let source = Box::new(Known {
            tokens: ahead.tokens().to_vec(),
            is_quick,
        });
        session.set_draft_source(source, &options).unwrap();
    }
}

#[test]
fn drafts_of_a_batch_change_neither_tokens_nor_errors() {
    for work in [results, started] {
        for (n, is_quick) in [(1, true), (2, false), (5, true), (5, false), (12, true)] {
            let knobs = Arc::<Knobs>::default();
            let mut s = several(&knobs, n);
            let mut expected = several(&Arc::default(), n);
            let_draft(&mut s, is_quick);
            let goes_on = |s: &mut [Session], expected: &mut [Session]| {
                for _ in 0..6 {
                    let wanted: Vec<_> = expected.iter_mut().map(|s| s.decode()).collect();
                    assert_eq!(work(s).unwrap(), wanted);
                }
            };
            goes_on(&mut s, &mut expected);
            knobs.nan.store(true, Ordering::Relaxed);
            let mut failed = 0;
            for (result, expected) in work(&mut s).unwrap().into_iter().zip(&mut expected) {
                match result {
                    // It was ahead.
                    Ok(token) => assert_eq!(token, expected.decode().unwrap()),
                    Err(e) => {
                        assert_eq!(e.status, Status::Numeric);
                        failed += 1;
                    }
                }
            }
            assert!(failed > 0);
            knobs.nan.store(false, Ordering::Relaxed);
            goes_on(&mut s, &mut expected);
            for (s, expected) in s.iter().zip(&expected) {
                assert_eq!(s.tokens(), expected.tokens());
            }
            for session in &s[..n - 1] {
                let stats = session.speculation().unwrap().stats;
                assert!(stats.accepted > 0 && stats.drafted > stats.accepted);
            }
        }
    }
}

#[test]
fn a_late_failure_beside_drafts_ends_one_session_alone() {
    for work in [results, started] {
        let knobs = Arc::<Knobs>::default();
        let mut s = several(&knobs, 4);
        let mut expected = several(&Arc::default(), 4);
        batch(&mut s).unwrap();
        batch(&mut expected).unwrap();
        let_draft(&mut s, true);
        // The first one has verified drafts when the third is interrupted.
        knobs.hold_after.store(2, Ordering::Relaxed);
        let flag = s[2].interrupts().clone();
        let waiter = knobs.clone();
        let interrupter = std::thread::spawn(move || {
            while !waiter.waiting.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            flag.ask();
            waiter.hold.store(false, Ordering::Relaxed);
        });
        let found = work(&mut s).unwrap();
        interrupter.join().unwrap();
        for (i, found) in found.into_iter().enumerate() {
            match i {
                2 => assert_eq!(status(found), Status::Interrupted),
                _ => assert_eq!(found, Ok(expected[i].decode().unwrap()), "{i}"),
            }
        }
        for _ in 0..6 {
            assert_eq!(batch(&mut s).unwrap(), batch(&mut expected).unwrap());
        }
    }
}

#[test]
fn a_panic_in_front_of_drafts_leaves_the_context_as_it_was() {
    let alone: fn(&mut [Session]) -> Result<u32> = |s| s[0].decode();
    let together: fn(&mut [Session]) -> Result<u32> = |s| Ok(batch(s)?[0]);
    for work in [alone, together] {
        let knobs = Arc::<Knobs>::default();
        let mut s = several(&knobs, 2);
        let mut expected = several(&Arc::default(), 2);
        let_draft(&mut s, true);
        let before = s[0].tokens().to_vec();
        knobs.panic.store(true, Ordering::Relaxed);
        assert_eq!(status(catch(|| work(&mut s))), Status::Internal);
        assert!(!knobs.panic.load(Ordering::Relaxed));
        assert_eq!(s[0].tokens(), before);
        for _ in 0..6 {
            assert_eq!(batch(&mut s).unwrap(), batch(&mut expected).unwrap());
        }
        // Its source is still there.
        assert!(s[0].speculation().unwrap().stats.accepted > 0);
    }
}

#[test]
fn started_decodes_ask_a_source_that_takes_its_time() {
    let knobs = Arc::<Knobs>::default();
    let mut s = several(&knobs, 2);
    let mut expected = several(&Arc::default(), 2);
    let_draft(&mut s, false);
    let event = Arc::new(Event::new().unwrap());
    s[0].set_event(Some(event)).unwrap();
    for count in [1, 3, 1, 4, 2] {
        s[0].decode_start(count).unwrap();
        for _ in 0..count {
            assert_eq!(status(s[0].decode()), Status::DecodePending);
            let wanted = expected[0].decode().unwrap();
            assert_eq!(wait(&mut s[0]).unwrap(), wanted);
        }
        assert_eq!(status(s[0].decode_poll()), Status::NothingPending);
    }
    let stats = s[0].speculation().unwrap().stats;
    assert!(
        stats.accepted > 0 && stats.drafted > stats.accepted,
        "{stats:?}"
    );
    // Those that fail, and those that are taken back.
    knobs.nan.store(true, Ordering::Relaxed);
    s[0].decode_start(4).unwrap();
    let mut result = wait(&mut s[0]);
    while let Ok(token) = result {
        // It was ahead.
        assert_eq!(token, expected[0].decode().unwrap());
        result = wait(&mut s[0]);
    }
    assert_eq!(status(result), Status::Numeric);
    assert_eq!(status(s[0].decode_poll()), Status::NothingPending);
    knobs.nan.store(false, Ordering::Relaxed);
    s[0].decode_start(3).unwrap();
    let len = s[0].position();
    s[0].rewind(len).unwrap();
    s[0].decode_start(3).unwrap();
    s[0].interrupts().ask();
    let mut result = wait(&mut s[0]);
    while let Ok(token) = result {
        assert_eq!(token, expected[0].decode().unwrap());
        result = wait(&mut s[0]);
    }
    assert_eq!(status(result), Status::Interrupted);
    assert_eq!(decode_all(&mut s[0], 3), decode_all(&mut expected[0], 3));
    assert_eq!(s[0].tokens(), expected[0].tokens());
}

/// Guesses until its session is stopped. Says which thread it ends on.
struct Endless {
    _model: Arc<Model>,
    interrupts: Arc<Interrupts>,
    begun: Arc<AtomicBool>,
    ended: Arc<Mutex<Option<ThreadId>>>,
}

impl DraftSource for Endless {
    fn look(&mut self, _: &DraftContext<'_>) -> Result<Option<usize>> {
        Ok(Some(0))
    }

    fn draft(&mut self, _: &DraftContext<'_>, _: &mut [u32]) -> Result<usize> {
        self.begun.store(true, Ordering::SeqCst);
        while !self.interrupts.work().load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        fail!(Interrupted, "stopped")
    }

    fn fork(&mut self, _: &Session) -> Result<Box<dyn DraftSource>> {
        fail!(Unsupported, "no forks")
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        *self.ended.lock().unwrap() = Some(std::thread::current().id());
    }
}

#[test]
fn a_source_that_is_asked_ends_with_its_session_and_on_no_thread_of_the_model() {
    for _ in 0..20 {
        let mut s = several(&Arc::default(), 1).pop().unwrap();
        s.decode().unwrap();
        let (begun, ended) = (Arc::<AtomicBool>::default(), Arc::<Mutex<_>>::default());
        let source = Endless {
            _model: s.model().clone(),
            interrupts: s.interrupts().clone(),
            begun: begun.clone(),
            ended: ended.clone(),
        };
        let options = DraftOptions {
            most: 3,
            always: true,
        };
        s.set_draft_source(Box::new(source), &options).unwrap();
        s.decode_start(2).unwrap();
        while !begun.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        // With it goes the last reference to the model, whose thread is waited for.
        drop(s);
        assert_eq!(*ended.lock().unwrap(), Some(std::thread::current().id()));
    }
}

#[test]
fn an_event_is_set_when_there_is_something_to_collect() {
    let mut s = several(&Arc::default(), 2);
    let event = Arc::new(Event::new().unwrap());
    for s in &mut s {
        s.set_event(Some(event.clone())).unwrap();
    }
    let mut all: Vec<&mut Session> = s.iter_mut().collect();
    Session::decode_batch_start(&mut all).unwrap();
    for s in &mut s {
        while s.decode_poll().unwrap().is_none() {}
    }
    // One of the test's own and one of each session; work in the background lets go of its soon after it has set it.
    let mut waits = 0..10_000;
    while Arc::strong_count(&event) != 3 && waits.next().is_some() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(Arc::strong_count(&event), 3);
    for s in &mut s {
        s.set_event(None).unwrap();
    }
    assert_eq!(Arc::strong_count(&event), 1);
}

#[test]
fn a_fork_goes_its_own_way_from_the_same_place() {
    for decoded in [0, 1, 5] {
        let knobs = Arc::<Knobs>::default();
        let mut s = prompted(&knobs, drawing(), &[3, 4]);
        decode_all(&mut s, decoded);
        let mut fork = s.fork().unwrap();
        let mut rewound = s.fork().unwrap();
        assert_eq!((fork.position(), fork.context()), (2 + decoded, CONTEXT));
        let tokens = decode_all(&mut s, 6);
        assert_eq!(decode_all(&mut fork, 6), tokens);
        rewound.rewind(1).unwrap();
        rewound.prefill(&[9]).unwrap();
        rewound.decode().unwrap();
        let next = fork.decode().unwrap();
        assert_eq!(s.decode().unwrap(), next);
        knobs.refuse.store(true, Ordering::Relaxed);
        assert_eq!(status(s.fork().map(|_| ())), Status::OutOfMemory);
        assert_eq!(s.decode().unwrap(), fork.decode().unwrap());
    }
    let mut empty = session().fork().unwrap();
    assert_eq!(status(empty.decode()), Status::NoInput);
}

#[test]
fn a_profile_changes_nothing() {
    let mut s = session_with(&Arc::default(), drawing());
    let mut expected = session_with(&Arc::default(), drawing());
    assert_eq!(status(s.profile()), Status::NoInput);
    for s in [&mut s, &mut expected] {
        s.prefill(&[1, 2]).unwrap();
    }
    for _ in 0..4 {
        let profile = s.profile().unwrap();
        assert_eq!(profile.done().count(), 1);
        assert_eq!(s.position(), expected.position());
        assert_eq!(s.decode().unwrap(), expected.decode().unwrap());
        let (mut a, mut b) = ([0.0; N_VOCAB], [0.0; N_VOCAB]);
        s.profile().unwrap();
        s.logits(&mut a).unwrap();
        expected.logits(&mut b).unwrap();
        assert_eq!(a, b);
    }
}
