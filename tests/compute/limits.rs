//! Limits of memory, on the CPU. tests/cuda/limits.rs has those of a GPU.

use crate::common::{cpu, repository_file};
use emberlm::Status;
use emberlm::backend::LoadOptions;
use emberlm::engine::{Model, Session, SessionOptions};
use std::sync::Arc;

fn options(session_memory_limit: u64) -> LoadOptions {
    LoadOptions {
        threads: 2,
        // Nothing to a CPU.
        memory_limit: 1,
        session_memory_limit,
        ..Default::default()
    }
}

fn load(name: &str, session_memory_limit: u64) -> Arc<Model> {
    let options = options(session_memory_limit);
    let path = repository_file(name);
    Arc::new(Model::load(&path, cpu(), &options, &mut |_| Ok(())).unwrap())
}

fn taken(model: &Model) -> u64 {
    let taken = model.weights().taken();
    assert_eq!(taken.model, 0, "memory of a GPU");
    taken.sessions
}

const HAMLET: &str = "models/hamlet-7m-Q4_K_M.gguf";

#[test]
fn as_many_sessions_as_the_limit_has_room_for() {
    for (name, context) in [(HAMLET, 700), ("tests/data/families/lfm2/model.gguf", 60)] {
        let session = SessionOptions {
            context,
            ..Default::default()
        };
        let path = repository_file(name);
        let (estimate, _) = Model::estimate(&path, cpu(), &options(0), &session).unwrap();
        let estimate = estimate.device;
        let each = estimate.kv_bytes + estimate.session_workspace_bytes;
        for (limit, room) in [(3 * each, 3), (3 * each + each - 1, 3), (3 * each - 1, 2)] {
            let model = load(name, limit);
            let create = || Session::create(model.clone(), &session);
            let mut sessions: Vec<_> = (0..room).map(|_| create().unwrap()).collect();
            assert_eq!(taken(&model), room * each, "{name}");
            let error = create().map(drop).unwrap_err();
            assert_eq!(error.status, Status::OutOfMemory);
            assert!(error.message.contains("session_memory_limit"), "{error:?}");
            assert_eq!(taken(&model), room * each, "{name}");
            // Who leaves makes room.
            sessions.pop();
            assert_eq!(taken(&model), (room - 1) * each);
            sessions.push(create().unwrap());
            for session in &mut sessions {
                session.prefill(&[1, 2, 3]).unwrap();
                session.decode().unwrap();
            }
            drop(sessions);
            assert_eq!(taken(&model), 0, "{name}");
        }
    }
}

/// A life of three sessions: creates, forks, copies of what forks share, a batch, an eviction. What does not
/// fit fails with `OutOfMemory`; the tokens are the same whatever has failed.
fn life(model: &Arc<Model>) -> (Vec<u32>, usize) {
    let mut failed = 0;
    let mut tokens = Vec::new();
    let options = SessionOptions {
        context: 600,
        ..Default::default()
    };
    let Ok(mut first) = Session::create(model.clone(), &options) else {
        return (tokens, 1);
    };
    let prompt: Vec<u32> = (0..300).map(|i| i * 7 % 1000).collect();
    first.prefill(&prompt).unwrap();
    let mut others = Vec::new();
    for _ in 0..2 {
        match first.fork() {
            Ok(other) => others.push(other),
            Err(e) => {
                assert_eq!(e.status, Status::OutOfMemory, "{e:?}");
                failed += 1;
            }
        }
    }
    for round in 0..4 {
        // Writes into what forks share, so it may need a copy.
        for other in &mut others {
            let before = other.tokens().to_vec();
            let back = before.len().min(200 + round);
            match other.rewind(back).and_then(|()| other.prefill(&[5, 6, 7])) {
                Ok(()) => {}
                Err(e) => {
                    assert_eq!(e.status, Status::OutOfMemory, "{e:?}");
                    failed += 1;
                    assert_eq!(other.tokens(), &before[..back], "nothing else is lost");
                }
            }
        }
        tokens.push(first.decode().unwrap());
    }
    let evicted = first.evict();
    evicted.unwrap();
    // What another has taken meanwhile is missing now.
    let taker = Session::create(model.clone(), &options);
    match first.resume() {
        Ok(()) => {}
        Err(e) => {
            assert_eq!(e.status, Status::OutOfMemory, "{e:?}");
            failed += 1;
        }
    }
    failed += usize::from(taker.is_err());
    drop(taker);
    drop(others);
    for _ in 0..4 {
        tokens.push(first.decode().unwrap());
    }
    (tokens, failed)
}

#[test]
fn a_limit_that_is_met_anywhere_loses_nothing() {
    let model = load(HAMLET, 0);
    let (tokens, failed) = life(&model);
    assert_eq!((tokens.len(), failed), (8, 0));
    let most = {
        let options = SessionOptions {
            context: 600,
            ..Default::default()
        };
        let _session = Session::create(model.clone(), &options).unwrap();
        5 * taken(&model)
    };
    let mut kinds = [0; 3];
    for step in 0..=48 {
        let model = load(HAMLET, (most * step / 48).max(1));
        let (got, failed) = life(&model);
        assert_eq!(got, tokens[..got.len()], "{step} of 48");
        assert_eq!(taken(&model), 0, "{step} of 48");
        let kind = match (got.is_empty(), failed) {
            (true, _) => 0,
            (false, 0) => 2,
            _ => 1,
        };
        kinds[kind] += 1;
    }
    // None fits, some of it does, all of it.
    assert!(kinds.iter().all(|n| *n > 2), "{kinds:?}");
}
