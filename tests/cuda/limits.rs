//! Limits of memory, on a GPU.

use crate::common::repository_file;
use crate::gpu::*;
use emberlm::backend::{DeviceKind, LoadOptions, MAX_BATCH};
use emberlm::engine::{Model, Session, SessionOptions, device};
use emberlm::{Result, Status};
use std::sync::Arc;

pub fn tests(tests: &mut Tests) {
    tests.push(("limits::model".into(), Box::new(of_the_model)));
    tests.push(("limits::sessions".into(), Box::new(of_sessions)));
}

fn gpu_index() -> usize {
    let is_gpu = |i: &usize| device::info(*i).unwrap().kind == DeviceKind::Cuda;
    (0..device::count().unwrap()).find(is_gpu).unwrap()
}

fn load(memory_limit: u64, session_memory_limit: u64) -> Result<Arc<Model>> {
    let gpu = gpu_index();
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
        context: 2048,
        ..Default::default()
    };
    Session::create(model.clone(), &options)
}

fn batch(sessions: &mut [Session]) -> Result<Vec<u32>> {
    let mut all: Vec<&mut Session> = sessions.iter_mut().collect();
    Session::decode_batch(&mut all)?.into_iter().collect()
}

/// A limit of what the estimate says has room for all, and is kept in whatever is done.
fn of_the_model() {
    let path = repository_file("models/hamlet-7m-Q4_K_M.gguf");
    let gpu = gpu_index();
    let options = LoadOptions::default();
    let (estimate, _) = Model::estimate(&path, gpu, &options, &Default::default()).unwrap();
    let limit = estimate.device.weights_bytes + estimate.device.model_workspace_bytes;
    let make = |model: &Arc<Model>| {
        let mut sessions: Vec<_> = (0..2).map(|_| session(model).unwrap()).collect();
        for (session, first) in sessions.iter_mut().zip([1, 2]) {
            session.prefill(&[first, 3, 4]).unwrap();
        }
        // The first one chooses from logits that are at hand.
        batch(&mut sessions).unwrap();
        sessions
    };
    let unlimited = load(0, 0).unwrap();
    let tokens = batch(&mut make(&unlimited)).unwrap();

    let limited = load(limit, 0).unwrap();
    let details = limited.details();
    assert_eq!(details.device_layers, details.n_layers);
    let loaded = limited.weights().taken().model;
    let mut sessions = make(&limited);
    assert_eq!(batch(&mut sessions).unwrap(), tokens);
    let with_batch = limited.weights().taken().model;
    assert!(
        loaded < with_batch && with_batch <= limit,
        "{loaded} {with_batch} {limit}"
    );
    // The largest batch has memory in place of that of smaller ones, which it serves from then on.
    let mut many: Vec<_> = (0..MAX_BATCH).map(|_| session(&limited).unwrap()).collect();
    for (first, session) in many.iter_mut().enumerate() {
        session.prefill(&[first as u32, 3, 4]).unwrap();
    }
    let mut together = || (0..2).map(|_| batch(&mut many).unwrap()).last();
    let chosen = together().unwrap();
    assert_eq!(chosen[1..3], tokens);
    let with_largest = limited.weights().taken().model;
    assert!(
        with_batch < with_largest && with_largest <= limit,
        "{with_batch} {with_largest} {limit}"
    );
    batch(&mut sessions).unwrap();
    assert_eq!(limited.weights().taken().model, with_largest);
    drop(many);
    // What went and comes back counts as before.
    limited.evict().unwrap();
    assert!(limited.weights().taken().model < loaded);
    limited.resume().unwrap();
    assert_eq!(limited.weights().taken().model, loaded);
    drop((sessions, limited));

    let less = load(limit - 1, 0).unwrap();
    assert!(less.details().device_layers < less.details().n_layers);
    assert!(less.weights().taken().model < limit);
}

/// Sessions, and the growth of their caches; forks.
fn of_sessions() {
    let model = load(0, 0).unwrap();
    let first = session(&model).unwrap();
    let each = model.weights().taken().sessions;
    assert!(each > 0);
    drop(first);
    assert_eq!(model.weights().taken().sessions, 0);
    let prompt: Vec<u32> = (0..2000).map(|i| i * 7 % 1000).collect();
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
