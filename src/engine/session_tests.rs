#[path = "hybrid_tests.rs"]
mod hybrid;
#[path = "queue_tests.rs"]
mod queue;

use super::*;
use crate::engine::fake::{FakeWeights, Knobs, N_VOCAB};
use crate::engine::sampling::{Breakers, Dry};
use std::sync::atomic::{AtomicBool, Ordering};

const CONTEXT: usize = 32;

fn model(knobs: &Arc<Knobs>) -> Arc<Model> {
    let weights = Arc::new(FakeWeights(knobs.clone()));
    Arc::new(Model::from_weights(weights, N_VOCAB, CONTEXT))
}

fn session_with(knobs: &Arc<Knobs>, sampling: Sampling) -> Session {
    let options = SessionOptions {
        sampling,
        ..Default::default()
    };
    Session::create(model(knobs), &options).unwrap()
}

fn session() -> Session {
    session_with(&Arc::default(), Sampling::default())
}

fn drawing() -> Sampling {
    Sampling {
        temperature: 0.9,
        top_p: 0.9,
        seed: 5,
        ..Default::default()
    }
}

fn decode_all(session: &mut Session, n: usize) -> Vec<u32> {
    (0..n).map(|_| session.decode().unwrap()).collect()
}

fn wait(session: &mut Session) -> Result<u32> {
    loop {
        if let Some(token) = session.decode_poll()? {
            return Ok(token);
        }
        std::thread::yield_now();
    }
}

fn status<T: std::fmt::Debug>(result: Result<T>) -> Status {
    result.unwrap_err().status
}

#[test]
fn prefill_may_be_divided() {
    let prompt = [3, 1, 4, 1, 5, 9];
    let mut whole = session();
    whole.prefill(&prompt).unwrap();
    let tokens = decode_all(&mut whole, 8);
    for size in 1..prompt.len() {
        let mut divided = session();
        for part in prompt.chunks(size) {
            divided.prefill(part).unwrap();
        }
        assert_eq!(decode_all(&mut divided, 8), tokens);
    }
}

#[test]
fn a_stop_wastes_no_evaluation() {
    let knobs = Arc::<Knobs>::default();
    let mut s = session_with(&knobs, Sampling::default());
    s.prefill(&[1, 2, 3]).unwrap();
    let tokens = decode_all(&mut s, 4);
    // n + k - 1.
    assert_eq!(knobs.evaluated.load(Ordering::Relaxed), 6);
    assert_eq!(s.position(), 7);
    s.prefill(&[8]).unwrap();
    assert_eq!(knobs.evaluated.load(Ordering::Relaxed), 8);
    let mut other = session();
    other
        .prefill(&[&[1, 2, 3], &tokens[..], &[8]].concat())
        .unwrap();
    assert_eq!(other.decode().unwrap(), s.decode().unwrap());
}

#[test]
fn rewind_and_repeat_gives_the_same() {
    for sampling in [Sampling::default(), drawing()] {
        let mut s = session_with(&Arc::default(), sampling);
        s.prefill(&[7, 7, 7]).unwrap();
        let tokens = decode_all(&mut s, 10);
        for position in 1..=13 {
            s.rewind(position.min(s.position())).unwrap();
            if position < 3 {
                s.prefill(&[7; 3][position..]).unwrap();
            }
            let n = 13 - s.position();
            let again = decode_all(&mut s, n);
            assert_eq!(again, tokens[10 - again.len()..], "from {position}");
        }
        // Rewinding to where the context ends, with and without a pending token.
        s.rewind(13).unwrap();
        let next = s.decode().unwrap();
        s.rewind(13).unwrap();
        assert_eq!(s.decode().unwrap(), next);
        s.rewind(0).unwrap();
        assert_eq!(s.position(), 0);
        assert_eq!(status(s.decode()), Status::NoInput);
        s.prefill(&[7, 7, 7]).unwrap();
        assert_eq!(decode_all(&mut s, 10), tokens);
        assert_eq!(status(s.rewind(14)), Status::InvalidArgument);
        assert_eq!(s.position(), 13);
    }
}

#[test]
fn logits_are_those_of_the_next_choice() {
    let mut s = session();
    let mut logits = [0.0; N_VOCAB];
    assert_eq!(status(s.logits(&mut logits)), Status::NoInput);
    s.prefill(&[1]).unwrap();
    for _ in 0..5 {
        s.logits(&mut logits).unwrap();
        let best = (0..N_VOCAB).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
        assert_eq!(s.decode().unwrap() as usize, best.unwrap());
    }
    let mut before = [0.0; N_VOCAB];
    s.logits(&mut before).unwrap();
    s.decode().unwrap();
    s.rewind(6).unwrap();
    s.logits(&mut logits).unwrap();
    assert_eq!(logits, before);
}

#[test]
fn started_decodes_give_the_same_tokens() {
    for sampling in [Sampling::default(), drawing()] {
        let mut sync = session_with(&Arc::default(), sampling);
        let mut other = session_with(&Arc::default(), sampling);
        sync.prefill(&[1, 2]).unwrap();
        other.prefill(&[1, 2]).unwrap();
        for _ in 0..10 {
            other.decode_start(1).unwrap();
            assert_eq!(wait(&mut other).unwrap(), sync.decode().unwrap());
        }
        assert_eq!(status(other.decode_poll()), Status::NothingPending);
    }
}

#[test]
fn a_started_decode_keeps_other_calls_out() {
    let knobs = Arc::<Knobs>::default();
    let mut s = session_with(&knobs, Sampling::default());
    s.prefill(&[1, 2]).unwrap();
    s.decode().unwrap();
    knobs.hold.store(true, Ordering::Relaxed);
    s.decode_start(1).unwrap();
    assert_eq!(s.decode_poll(), Ok(None));
    assert_eq!(status(s.decode()), Status::DecodePending);
    assert_eq!(status(s.decode_start(1)), Status::DecodePending);
    assert_eq!(status(s.prefill(&[1])), Status::DecodePending);
    assert_eq!(status(s.rewind(4)), Status::InvalidArgument);
    assert_eq!(status(s.fork().map(|_| ())), Status::DecodePending);
    assert_eq!(status(s.profile()), Status::DecodePending);
    assert_eq!(status(s.logits(&mut [0.0; N_VOCAB])), Status::DecodePending);
    assert_eq!(s.position(), 3);
    knobs.hold.store(false, Ordering::Relaxed);
    wait(&mut s).unwrap();
    assert_eq!(s.position(), 4);
}

#[test]
fn interrupts_leave_the_context_as_it_was() {
    let knobs = Arc::<Knobs>::default();
    let mut s = session_with(&knobs, Sampling::default());
    let mut expected = session();
    for s in [&mut s, &mut expected] {
        s.prefill(&[1, 2]).unwrap();
        s.decode().unwrap();
    }
    knobs.hold.store(true, Ordering::Relaxed);
    let flag = s.interrupts().clone();
    s.decode_start(1).unwrap();
    flag.ask();
    assert_eq!(status(wait(&mut s)), Status::Interrupted);
    assert_eq!(s.position(), 3);

    let done = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                flag.ask();
                std::thread::yield_now();
            }
        });
        assert_eq!(status(s.prefill(&[4, 5, 6])), Status::Interrupted);
        assert_eq!(status(s.decode()), Status::Interrupted);
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(s.position(), 3);
    knobs.hold.store(false, Ordering::Relaxed);
    // One that no call has answered is answered by the next one, once, or taken back.
    s.interrupts().clear();
    s.interrupts().ask();
    assert_eq!(status(s.decode()), Status::Interrupted);
    s.interrupts().ask();
    s.interrupts().clear();
    assert_eq!(decode_all(&mut s, 5), decode_all(&mut expected, 5));
}

#[test]
fn a_full_context_is_told_before_anything_is_done() {
    let mut s = session();
    s.prefill(&[1; CONTEXT - 2]).unwrap();
    assert_eq!(status(s.prefill(&[1; 3])), Status::ContextFull);
    assert_eq!(s.position(), CONTEXT - 2);
    let tokens = decode_all(&mut s, 2);
    assert_eq!(status(s.decode()), Status::ContextFull);
    assert_eq!(status(s.decode_start(1)), Status::ContextFull);
    assert_eq!(status(s.prefill(&[1])), Status::ContextFull);
    assert_eq!(s.position(), CONTEXT);
    s.logits(&mut [0.0; N_VOCAB]).unwrap();
    s.rewind(CONTEXT - 2).unwrap();
    assert_eq!(decode_all(&mut s, 2), tokens);
}

#[test]
fn bad_tokens_change_nothing() {
    let mut s = session();
    assert_eq!(status(s.prefill(&[])), Status::NoInput);
    let e = s.prefill(&[1, N_VOCAB as u32, 2]).unwrap_err();
    assert_eq!(e.status, Status::InvalidToken);
    assert!(e.message.contains("token 50 at index 1"), "{}", e.message);
    assert_eq!(status(s.prefill(&[u32::MAX])), Status::InvalidToken);
    assert_eq!(s.position(), 0);
}

#[test]
fn a_failed_choice_can_be_repeated() {
    let knobs = Arc::<Knobs>::default();
    let mut s = session_with(&knobs, Sampling::default());
    let mut expected = session();
    s.prefill(&[1, 2]).unwrap();
    expected.prefill(&[1, 2]).unwrap();
    for _ in 0..3 {
        knobs.nan.store(true, Ordering::Relaxed);
        assert_eq!(status(s.decode()), Status::Numeric);
        s.decode_start(1).unwrap();
        assert_eq!(status(wait(&mut s)), Status::Numeric);
        knobs.nan.store(false, Ordering::Relaxed);
        assert_eq!(s.decode().unwrap(), expected.decode().unwrap());
    }
}

#[test]
fn dropping_ends_a_started_decode() {
    let knobs = Arc::<Knobs>::default();
    let mut s = session_with(&knobs, Sampling::default());
    s.prefill(&[1]).unwrap();
    s.decode().unwrap();
    knobs.hold.store(true, Ordering::Relaxed);
    s.decode_start(1).unwrap();
    assert_eq!(knobs.running.load(Ordering::SeqCst), 1);
    drop(s);
    assert_eq!(knobs.running.load(Ordering::SeqCst), 0);
}

#[test]
fn options_are_checked() {
    let m = model(&Arc::default());
    let create = |options: &SessionOptions| Session::create(m.clone(), options);
    let e = create(&SessionOptions {
        context: CONTEXT + 1,
        ..Default::default()
    });
    let e = e.err().unwrap();
    assert_eq!(e.status, Status::InvalidArgument);
    assert!(e.message.contains("context is 33"), "{}", e.message);
    let sampling = Sampling {
        temperature: f32::NAN,
        ..Default::default()
    };
    let e = create(&SessionOptions {
        sampling,
        ..Default::default()
    });
    assert_eq!(e.err().unwrap().status, Status::InvalidArgument);
    let s = create(&SessionOptions {
        kv_type: KvType::F32,
        ..Default::default()
    });
    let s = s.unwrap();
    assert_eq!((s.context(), s.kv_bytes()), (CONTEXT, 4 * CONTEXT as u64));
}

/// Settings that look at the context, and rules that favour and ban tokens.
fn with_history() -> (Sampling, Option<Arc<TokenRules>>) {
    let sampling = Sampling {
        repeat_penalty: 1.2,
        frequency_penalty: 0.3,
        dry: Dry {
            multiplier: 2.0,
            allowed_length: 1,
            ..Dry::OFF
        },
        logprobs: 2,
        ..drawing()
    };
    let breakers = Breakers::new(N_VOCAB, [&[4u32][..], &[1, 2]]).unwrap();
    let bias = [(9, 1.5), (10, -1.0)];
    let rules = TokenRules::new(N_VOCAB, bias.into_iter(), &[3], &[], breakers).unwrap();
    (sampling, Some(Arc::new(rules)))
}

#[test]
fn choices_depend_on_the_context_and_not_on_how_it_came_about() {
    let (sampling, rules) = with_history();
    let mut s = session();
    s.set_sampling(sampling, rules.clone()).unwrap();
    s.prefill(&[1, 2, 1, 2]).unwrap();
    let tokens = decode_all(&mut s, 20);
    assert!(!tokens.contains(&3));
    // Another way to the same context: through other tokens, a rewind and a fork.
    let mut other = session();
    other.prefill(&[1, 2, 7, 7, 7]).unwrap();
    decode_all(&mut other, 3);
    other.rewind(2).unwrap();
    other.set_sampling(sampling, rules).unwrap();
    other.prefill(&[1, 2]).unwrap();
    let first = decode_all(&mut other, 6);
    assert_eq!(first, tokens[..6]);
    let mut fork = other.fork().unwrap();
    other.decode_start(14).unwrap();
    for token in &tokens[6..] {
        assert_eq!(wait(&mut other).unwrap(), *token);
        assert_eq!(other.logprobs().unwrap().top.len(), 2);
        assert_eq!(fork.decode().unwrap(), *token);
        assert_eq!(fork.logprobs(), other.logprobs());
    }
}

#[test]
fn settings_change_between_decodes() {
    let (sampling, rules) = with_history();
    let mut s = session();
    s.prefill(&[5, 6]).unwrap();
    assert!(s.logprobs().is_none());
    let greedy = decode_all(&mut s, 4);
    s.rewind(2).unwrap();
    s.set_sampling(sampling, rules).unwrap();
    let drawn = decode_all(&mut s, 4);
    assert!(s.logprobs().is_some());
    let bad = Sampling {
        typical_p: -1.0,
        ..sampling
    };
    assert_eq!(status(s.set_sampling(bad, None)), Status::InvalidArgument);
    s.rewind(2).unwrap();
    assert_eq!(
        decode_all(&mut s, 4),
        drawn,
        "a refused change changes nothing"
    );
    s.decode_start(1).unwrap();
    assert_eq!(
        status(s.set_sampling(Sampling::default(), None)),
        Status::DecodePending
    );
    wait(&mut s).unwrap();
    s.rewind(2).unwrap();
    s.set_sampling(Sampling::default(), None).unwrap();
    assert_eq!(decode_all(&mut s, 4), greedy);
    assert!(s.logprobs().is_none());
}

#[test]
fn an_interrupt_before_a_call_counts_for_every_kind_of_call() {
    type Call = fn(&mut Session) -> Result<()>;
    let calls: [(&str, Call); 9] = [
        ("prefill", |s| s.prefill(&[3])),
        ("prefill_start", |s| s.prefill_start(&[3])),
        ("decode", |s| s.decode().map(|_| ())),
        ("decode_start", |s| s.decode_start(2)),
        ("decode_batch", |s| {
            Session::decode_batch(&mut [s])?.remove(0).map(drop)
        }),
        ("logits", |s| s.logits(&mut [0.0; N_VOCAB])),
        ("erase", |s| s.erase(1, 1)),
        ("profile", |s| s.profile().map(|_| ())),
        ("sync", |s| s.sync(&[1, 3]).map(|_| ())),
    ];
    for (name, call) in calls {
        let mut s = session();
        s.prefill(&[1, 2, 5]).unwrap();
        s.interrupts().ask();
        // Calls that do not compute do not answer it.
        s.rewind(3).unwrap();
        drop(s.fork().unwrap());
        s.set_sampling(Sampling::default(), None).unwrap();
        let e = call(&mut s).unwrap_err();
        assert_eq!(e.status, Status::Interrupted, "{name}");
        assert_eq!(s.tokens(), [1, 2, 5], "{name}");
        // One call answers it, whatever asked how often.
        call(&mut s).unwrap();
    }
}

#[test]
fn of_a_batch_each_session_answers_its_own_interrupt() {
    let knobs = Arc::<Knobs>::default();
    let m = model(&knobs);
    let mut sessions: Vec<Session> = (0..3)
        .map(|_| Session::create(m.clone(), &SessionOptions::default()).unwrap())
        .collect();
    for s in &mut sessions {
        s.prefill(&[1, 2]).unwrap();
    }
    sessions[0].interrupts().ask();
    sessions[2].interrupts().ask();
    for wanted in [[true, false, true], [false; 3]] {
        let mut all: Vec<&mut Session> = sessions.iter_mut().collect();
        let results = Session::decode_batch(&mut all).unwrap();
        let interrupted = results
            .iter()
            .map(|r| matches!(r, Err(e) if e.status == Status::Interrupted));
        assert_eq!(interrupted.collect::<Vec<_>>(), wanted);
    }
    let positions = sessions.iter().map(Session::position);
    assert_eq!(positions.collect::<Vec<_>>(), [3, 4, 3]);
}

#[test]
fn a_rewind_that_stops_work_is_no_interrupt() {
    let mut s = session();
    s.prefill(&[1, 2]).unwrap();
    s.decode_start(5).unwrap();
    s.rewind(2).unwrap();
    s.decode().unwrap();
    // And it leaves one alone that was there.
    s.decode_start(5).unwrap();
    s.interrupts().ask();
    s.rewind(2).unwrap();
    assert_eq!(status(s.decode()), Status::Interrupted);
    s.decode().unwrap();
}

#[test]
fn a_synced_context_is_as_if_it_had_been_prefilled() {
    let contexts: [&[u32]; 7] = [
        &[1, 2, 3, 4],
        &[1, 2, 3, 4],
        &[1, 2, 3, 4, 5, 6],
        &[1, 2, 3],
        &[1, 2, 7, 7, 7],
        &[9],
        &[9, 1, 2, 3],
    ];
    let mut s = session();
    let mut before: Vec<u32> = Vec::new();
    for tokens in contexts {
        let kept = s.sync(tokens).unwrap();
        let common = before
            .iter()
            .zip(tokens)
            .take_while(|(a, b)| a == b)
            .count();
        assert_eq!((s.tokens(), kept), (tokens, common));
        let mut fresh = session();
        fresh.prefill(tokens).unwrap();
        let (mut got, mut wanted) = ([0.0; N_VOCAB], [1.0; N_VOCAB]);
        s.logits(&mut got).unwrap();
        fresh.logits(&mut wanted).unwrap();
        assert_eq!(got, wanted);
        assert_eq!(decode_all(&mut s, 3), decode_all(&mut fresh, 3));
        before = s.tokens().to_vec();
    }
}

#[test]
fn a_sync_takes_back_a_token_that_was_not_evaluated() {
    let mut s = session();
    s.prefill(&[1, 2, 3]).unwrap();
    let first = s.decode().unwrap();
    assert_eq!(s.sync(&[1, 2, 3]).unwrap(), 3);
    assert_eq!(s.tokens(), [1, 2, 3]);
    assert_eq!(s.decode().unwrap(), first);
}

#[test]
fn a_sync_that_fails_changes_nothing() {
    let knobs = Arc::<Knobs>::default();
    let mut s = session_with(&knobs, Sampling::default());
    let mut expected = session();
    for s in [&mut s, &mut expected] {
        s.prefill(&[1, 2, 3]).unwrap();
        s.decode().unwrap();
    }
    let before = s.tokens().to_vec();
    assert_eq!(status(s.sync(&[])), Status::NoInput);
    assert_eq!(status(s.sync(&[1; CONTEXT + 1])), Status::ContextFull);
    let e = s.sync(&[1, 2, N_VOCAB as u32]).unwrap_err();
    assert_eq!((e.status, e.index), (Status::InvalidToken, Some(2)));
    s.decode_start(1).unwrap();
    assert_eq!(status(s.sync(&[1])), Status::DecodePending);
    s.rewind(4).unwrap();
    // While it evaluates.
    knobs.hold.store(true, Ordering::Relaxed);
    let interrupts = s.interrupts().clone();
    let done = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                interrupts.ask();
                std::thread::yield_now();
            }
        });
        for tokens in [&[1, 2, 9, 9, 9][..], &[1, 2], &[5, 6, 7]] {
            assert_eq!(status(s.sync(tokens)), Status::Interrupted);
            assert_eq!(s.tokens(), before);
        }
        done.store(true, Ordering::Relaxed);
    });
    knobs.hold.store(false, Ordering::Relaxed);
    s.interrupts().clear();
    assert_eq!(decode_all(&mut s, 5), decode_all(&mut expected, 5));
}
