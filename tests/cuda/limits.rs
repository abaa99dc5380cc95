//! Limits of memory, on a GPU.

use crate::common::repository_file;
use crate::gpu::*;
use emberlm::backend::{DeviceKind, LoadOptions};
use emberlm::engine::{Model, Session, SessionOptions, device};
use emberlm::{Result, Status};
use std::sync::Arc;

pub fn tests(tests: &mut Tests) {
    tests.push(("limits::model".into(), Box::new(of_the_model)));
    tests.push(("limits::sessions".into(), Box::new(of_sessions)));
}

fn load(memory_limit: u64, session_memory_limit: u64) -> Result<Arc<Model>> {
    let is_gpu = |i: &usize| device::info(*i).unwrap().kind == DeviceKind::Cuda;
    let gpu = (0..device::count().unwrap()).find(is_gpu).unwrap();
    let options = LoadOptions {
        memory_limit,
        session_memory_limit,
        ..Default::default()
    };
    let path = repository_file("models/hamlet-7m-Q4_K_M.gguf");
    Ok(Arc::new(Model::load(
        &path,
        gpu,
        &options,
        &mut |_| Ok(()),
    )?))
}

fn session(model: &Arc<Model>) -> Result<Session> {
    let options = SessionOptions {
        context: 4096,
        ..Default::default()
    };
    Session::create(model.clone(), &options)
}

fn batch(sessions: &mut [Session]) -> Result<Vec<u32>> {
    let mut all: Vec<&mut Session> = sessions.iter_mut().collect();
    Session::decode_batch(&mut all)?.into_iter().collect()
}

/// Weights and prefill fit to the byte; a batch that does not fit loses nothing.
fn of_the_model() {
    let model = load(0, 0).unwrap();
    let loaded = model.weights().taken().model;
    let make = |model: &Arc<Model>| {
        let mut sessions: Vec<_> = (0..2).map(|_| session(model).unwrap()).collect();
        for (session, first) in sessions.iter_mut().zip([1, 2]) {
            session.prefill(&[first, 3, 4]).unwrap();
        }
        sessions
    };
    let mut sessions = make(&model);
    let tokens = batch(&mut sessions).unwrap();
    let with_batch = model.weights().taken().model;
    assert!(with_batch > loaded, "{with_batch} {loaded}");
    drop((sessions, model));

    let exact = load(loaded, 0).unwrap();
    assert_eq!(exact.weights().taken().model, loaded);
    let mut sessions = make(&exact);
    let error = batch(&mut sessions).unwrap_err();
    assert_eq!(error.status, Status::OutOfMemory, "{error:?}");
    assert!(error.message.contains("memory_limit"), "{error:?}");
    assert_eq!(exact.weights().taken().model, loaded);
    let alone: Vec<u32> = sessions.iter_mut().map(|s| s.decode().unwrap()).collect();
    assert_eq!(alone, tokens);
    // What went and comes back counts as before.
    exact.evict().unwrap();
    assert!(exact.weights().taken().model < loaded);
    exact.resume().unwrap();
    assert_eq!(exact.weights().taken().model, loaded);
    drop((sessions, exact));

    let error = load(loaded - 1, 0).map(drop).unwrap_err();
    assert_eq!(error.status, Status::OutOfMemory, "{error:?}");
    let enough = load(with_batch, 0).unwrap();
    assert_eq!(batch(&mut make(&enough)).unwrap(), tokens);
}

/// Sessions, and the growth of their caches; forks.
fn of_sessions() {
    let model = load(0, 0).unwrap();
    let first = session(&model).unwrap();
    let each = model.weights().taken().sessions;
    assert!(each > 0);
    drop(first);
    assert_eq!(model.weights().taken().sessions, 0);
    let prompt: Vec<u32> = (0..4000).map(|i| i * 7 % 1000).collect();
    let mut whole = session(&model).unwrap();
    whole.prefill(&prompt).unwrap();
    let expected = whole.decode().unwrap();
    let most = model.weights().taken().sessions;
    assert!(most > each, "{most} {each}");
    drop(whole);

    let limited = load(0, 2 * each).unwrap();
    let mut both = [session(&limited).unwrap(), session(&limited).unwrap()];
    assert_eq!(limited.weights().taken().sessions, 2 * each);
    for error in [session(&limited).map(drop), both[0].fork().map(drop)] {
        let error = error.unwrap_err();
        assert_eq!(error.status, Status::OutOfMemory, "{error:?}");
        assert!(error.message.contains("session_memory_limit"), "{error:?}");
    }
    both[0].prefill(&[1, 2, 3]).unwrap();
    both[0].decode().unwrap();

    // A cache grows until there is no room; what the session has stays.
    let limit = each + (most - each) / 2;
    let limited = load(0, limit).unwrap();
    let mut session = session(&limited).unwrap();
    let mut done = 0;
    let error = loop {
        let piece = &prompt[done..(done + 100).min(prompt.len())];
        match session.prefill(piece) {
            Ok(()) => done += piece.len(),
            Err(e) => break e,
        }
        assert!(done < prompt.len(), "the limit was not met");
    };
    assert_eq!(error.status, Status::OutOfMemory, "{error:?}");
    assert!(limited.weights().taken().sessions <= limit);
    assert_eq!(session.tokens(), &prompt[..done]);
    session.rewind(done - 1).unwrap();
    session.prefill(&prompt[done - 1..done]).unwrap();
    let again = session.decode().unwrap();
    let unlimited = load(0, 0).unwrap();
    let mut whole = self::session(&unlimited).unwrap();
    for piece in prompt[..done].chunks(100) {
        whole.prefill(piece).unwrap();
    }
    assert_eq!(whole.decode().unwrap(), again);
    assert!(expected < 1 << 20);
}
