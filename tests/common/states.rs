//! Sessions that are saved, restored, forked and moved about in the middle of a random life. Runs on
//! any device: a session that went through a file answers with the same bits as one that did not.

use super::tiny::Random;
use emberlm::Result;
use emberlm::engine::sampling::{Dry, Sampling};
use emberlm::engine::state::{Kind, RestoreOptions};
use emberlm::engine::{Model, Session, SessionOptions};
use emberlm::grammar::{GrammarKind, GrammarOptions};
use std::sync::Arc;

/// Positions of the sessions here: enough for rings to go round.
pub const CONTEXT: usize = 1024;

pub fn session(model: &Arc<Model>) -> Session {
    session_with(model, Default::default())
}

pub fn session_with(model: &Arc<Model>, kv_type: emberlm::backend::KvType) -> Session {
    let options = SessionOptions {
        context: CONTEXT.min(model.details().context_length),
        kv_type,
        ..Default::default()
    };
    Session::create(model.clone(), &options).unwrap()
}

pub fn saved(session: &mut Session, kind: Kind) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut write = |part: &[u8]| {
        bytes.extend_from_slice(part);
        Ok(())
    };
    session.save_to(&mut write, kind).unwrap();
    bytes
}

pub fn restored(model: &Arc<Model>, bytes: &[u8], options: &RestoreOptions) -> Result<Session> {
    let mut rest = bytes;
    let mut read = |to: &mut [u8]| {
        // Callbacks may give less than they are asked for.
        let n = to.len().min(rest.len()).min(100_000);
        to[..n].copy_from_slice(&rest[..n]);
        rest = &rest[n..];
        Ok(n)
    };
    Session::restore_from(model.clone(), &mut read, options)
}

pub fn bits(session: &mut Session) -> Vec<u32> {
    let mut logits = vec![0.0; session.model().details().n_vocab];
    session.logits(&mut logits).unwrap();
    logits.iter().map(|x| x.to_bits()).collect()
}

fn pick(random: &mut Random, n: usize) -> usize {
    (random.bits() % n.max(1) as u64) as usize
}

fn sampling(random: &mut Random) -> Sampling {
    let plain = Sampling {
        seed: random.bits(),
        ..Sampling::GREEDY
    };
    match pick(random, 4) {
        0 => plain,
        1 => Sampling {
            temperature: 0.8,
            top_p: 0.9,
            ..plain
        },
        2 => Sampling {
            temperature: 1.0,
            repeat_penalty: 1.2,
            presence_penalty: 0.3,
            logprobs: 2,
            ..plain
        },
        _ => Sampling {
            temperature: 0.9,
            dry: Dry {
                multiplier: 1.0,
                ..Dry::OFF
            },
            ..plain
        },
    }
}

/// One thing that is done to two sessions alike.
fn act(random: &mut Random, sessions: &mut [&mut Session]) {
    let n_vocab = sessions[0].model().details().n_vocab;
    let (position, context) = (sessions[0].position(), sessions[0].context());
    let what = pick(random, 9);
    let longest = [3, 40, 200][pick(random, 3)];
    let prompt: Vec<u32> = (0..1 + pick(random, longest))
        .map(|_| pick(random, n_vocab) as u32)
        .collect();
    let to = pick(random, position + 1);
    let near = position.saturating_sub(pick(random, 5));
    let new = sampling(random);
    let last = sessions.len() - 1;
    for (i, session) in sessions.iter_mut().enumerate() {
        let room = context - session.position();
        match what {
            0 | 1 if room > prompt.len() => session.prefill(&prompt).unwrap(),
            2 if room > prompt.len() => {
                session.prefill_start(&prompt).unwrap();
                while !session.prefill_poll().unwrap().0 {
                    std::thread::yield_now();
                }
            }
            3 => session.rewind(near).unwrap(),
            4 => session.rewind(to).unwrap(),
            5 => session.set_sampling(new, None).unwrap(),
            6 if position > 8 => {
                let _ = session.erase(to.min(position - 4), 3);
            }
            // These change nothing, so that only one of them need do them.
            7 if i == last => session.evict().unwrap(),
            8 if i == last => {
                let fork = session.fork().unwrap();
                **session = fork;
            }
            _ => {}
        }
    }
}

/// Decodes alike in all sessions: alone, started, or together.
fn decode(random: &mut Random, sessions: &mut [&mut Session], what: &str) {
    if sessions[0].position() == 0 {
        return;
    }
    let room = sessions[0].context() - sessions[0].position();
    let count = (1 + pick(random, 6)).min(room);
    let how = pick(random, 3);
    let mut all: Vec<Vec<u32>> = Vec::new();
    for session in sessions.iter_mut() {
        let mut tokens = Vec::new();
        match how {
            0 => (0..count).for_each(|_| tokens.push(session.decode().unwrap())),
            1 if count > 0 => {
                session.decode_start(count).unwrap();
                while tokens.len() < count {
                    match session.decode_poll().unwrap() {
                        Some(token) => tokens.push(token),
                        None => std::thread::yield_now(),
                    }
                }
            }
            _ => {
                // Beside another session of its own.
                let mut other = session.fork().unwrap();
                for _ in 0..count {
                    let chosen = Session::decode_batch(&mut [session, &mut other]).unwrap();
                    tokens.push(chosen[0].clone().unwrap());
                }
            }
        }
        all.push(tokens);
    }
    assert!(
        all.iter().all(|tokens| *tokens == all[0]),
        "{what}: {all:?}"
    );
}

/// A session that is saved and restored at random places between random calls continues as one that
/// is not.
pub fn random_life(model: &Arc<Model>, seed: u64, rounds: usize, has_grammar: bool) {
    random_life_of(model, seed, rounds, has_grammar, &mut |_| {});
}

/// The same, with something that is done to the second session whenever it is new, and changes no answer.
pub fn random_life_of(
    model: &Arc<Model>,
    seed: u64,
    rounds: usize,
    has_grammar: bool,
    prepare: &mut dyn FnMut(&mut Session),
) {
    let mut random = Random::new(seed, "life");
    let (mut a, mut b) = (session(model), session(model));
    prepare(&mut b);
    for round in 0..rounds {
        let what = format!("seed {seed}, round {round}");
        act(&mut random, &mut [&mut a, &mut b]);
        if has_grammar && pick(&mut random, 12) == 0 && a.position() > 0 {
            for session in [&mut a, &mut b] {
                let schema = r#"{"type":"object","properties":{"name":{"type":"string","maxLength":40},"age":{"type":"integer"}},"required":["name","age"]}"#;
                let options = GrammarOptions::default();
                session
                    .set_grammar(GrammarKind::JsonSchema, schema, &options)
                    .unwrap();
            }
        }
        decode(&mut random, &mut [&mut a, &mut b], &what);
        if has_grammar && pick(&mut random, 4) == 0 {
            a.clear_grammar().unwrap();
            b.clear_grammar().unwrap();
        }
        if pick(&mut random, 3) == 0 {
            let bytes = saved(&mut b, Kind::Everything);
            b = restored(model, &bytes, &RestoreOptions::default()).unwrap();
            prepare(&mut b);
            assert_eq!(b.tokens(), a.tokens(), "{what}");
            // What is saved of it now is the same.
            assert!(saved(&mut b, Kind::Everything) == bytes, "{what}");
        }
        if a.position() > 0 && pick(&mut random, 4) == 0 {
            assert!(bits(&mut a) == bits(&mut b), "{what}: logits");
        }
    }
}

/// Many forks and frees in random order, with rewinds into what they share: a fork has the state that
/// it was made from, to the bit, and nobody's work shows in another one.
pub fn forks(model: &Arc<Model>, count: usize) {
    let mut random = Random::new(7, "forks");
    let n_vocab = model.details().n_vocab;
    let prompt: Vec<u32> = (0..600)
        .map(|_| pick(&mut random, n_vocab) as u32)
        .collect();
    let mut first = session(model);
    first.prefill(&prompt).unwrap();
    // Each with what it would save.
    let state = saved(&mut first, Kind::Everything);
    let mut all = vec![(first, state)];
    for i in 0..count {
        let at = pick(&mut random, all.len());
        if all.len() > 1 && pick(&mut random, 3) == 0 || all.len() > 12 {
            all.swap_remove(at);
            continue;
        }
        let (parent, state) = &mut all[at];
        let mut fork = parent.fork().unwrap();
        let mut forked = saved(&mut fork, Kind::Everything);
        assert!(forked == *state, "fork {i}");
        let goes_back = pick(&mut random, 4);
        for (session, state, rewinds) in [
            (&mut fork, &mut forked, goes_back & 1 > 0),
            (parent, state, goes_back & 2 > 0),
        ] {
            if rewinds {
                let to = 1 + pick(&mut random, session.position());
                session.rewind(to).unwrap();
            }
            if session.position() + 3 < session.context() {
                session.prefill(&[i as u32 % 50, 3]).unwrap();
                session.decode().unwrap();
            }
            *state = saved(session, Kind::Everything);
        }
        all.push((fork, forked));
        let other = pick(&mut random, all.len());
        let (other, state) = &mut all[other];
        assert!(saved(other, Kind::Everything) == *state, "after fork {i}");
    }
    for (mut session, state) in all {
        assert!(saved(&mut session, Kind::Everything) == state);
        let mut alone = restored(model, &state, &RestoreOptions::default()).unwrap();
        for _ in 0..3 {
            if session.position() < session.context() {
                assert_eq!(session.decode().unwrap(), alone.decode().unwrap());
            }
        }
        assert!(bits(&mut session) == bits(&mut alone));
    }
}
