//! Heads that guess further tokens on a GPU: their logits beside a reference in double precision, and sessions with their drafts
//! beside sessions without.

use crate::common::TempDir;
use crate::common::drafts::{
    ALWAYS, SAMPLED, decoded, dropped, interrupted_text, interrupted_texts,
};
use crate::common::heads;
use crate::common::states::{random_life_of, session};
use crate::gpu::*;
use crate::model::gpu;
use emberlm::Status;
use emberlm::backend::{DeviceKind, KvType, LoadOptions, RunnerOptions};
use emberlm::engine::sampling::Sampling;
use emberlm::engine::speculate::{DraftOptions, HeadDrafts, SourceKind};
use emberlm::engine::{Model, Session, SessionOptions};
use std::sync::Arc;

/// Those without recurrent layers, and those with.
const ATTENDING: [&str; 4] = ["glm4", "glm4_moe", "deepseek_v3", "mimo"];
const RECURRENT: [&str; 3] = ["qwen3_next", "qwen3_5", "qwen3_5_moe"];

pub fn tests(tests: &mut Tests) {
    for (name, own) in heads::variants() {
        let of = if own { "_with_ends" } else { "" };
        tests.push((
            format!("heads::{name}{of}"),
            Box::new(move || agrees(name, own)),
        ));
    }
    for name in ATTENDING.into_iter().chain(RECURRENT) {
        tests.push((
            format!("heads::drafts_of_{name}"),
            Box::new(move || heads::drafts_are_right(&model(name, false), name, KvType::F16, 0.05)),
        ));
    }
    tests.push(("heads::lives".into(), Box::new(lives)));
    tests.push(("heads::texts".into(), Box::new(texts)));
    tests.push(("heads::recurrent".into(), Box::new(recurrent)));
    for name in ["glm4_moe", "qwen3_5"] {
        let run = move || batches(&model(name, false), &|_, session| with_heads(session));
        tests.push((format!("heads::batches_of_{name}"), Box::new(run)));
    }
    tests.push(("heads::dropped".into(), Box::new(dropped_decodes)));
    tests.push(("heads::late".into(), Box::new(late)));
    tests.push(("heads::evict".into(), Box::new(evicted)));
    tests.push(("heads::memory".into(), Box::new(memory)));
    tests.push(("heads::evict_session".into(), Box::new(evicted_sessions)));
    tests.push(("heads::placed".into(), Box::new(placed)));
    tests.push(("heads::started".into(), Box::new(started)));
    tests.push(("heads::refused".into(), Box::new(refused)));
}

fn load(name: &str, own: bool, draft_heads: bool) -> Arc<Model> {
    let dir = TempDir::new(&format!("gpu-heads-{name}"));
    heads::folder(name, own).write(&dir);
    let options = LoadOptions {
        draft_heads,
        ..Default::default()
    };
    load_on(dir.path(), DeviceKind::Cuda, &options)
}

/// A model with its head.
fn model(name: &str, own: bool) -> Arc<Model> {
    load(name, own, true)
}

fn with_heads(session: &mut Session) {
    session.set_head_drafts(&ALWAYS).unwrap();
    assert_eq!(session.speculation().unwrap().source, SourceKind::Heads);
}

fn agrees(name: &str, own: bool) {
    let options = RunnerOptions {
        context: 128,
        ..Default::default()
    };
    // Caches, and inputs of the products of pieces, are in half precision.
    heads::agrees(name, own, &options, 0.03, &|network| gpu(network));
}

fn lives() {
    let mut names = ATTENDING.to_vec();
    if is_stand_in() {
        // Where what is evaluated again has the bits that it had.
        names.extend(RECURRENT);
    }
    for (seed, name) in names.into_iter().enumerate() {
        let model = model(name, seed == 1);
        random_life_of(&model, seed as u64, 50, false, &mut with_heads);
        random_life_of(&model, 50 + seed as u64, 50, false, &mut |session| {
            session.set_head_drafts(&DraftOptions::default()).unwrap();
        });
    }
}

fn texts() {
    for name in ATTENDING {
        let model = model(name, true);
        for sampling in [Sampling::GREEDY, SAMPLED] {
            let accepted = interrupted_text(&model, sampling, 300, &with_heads);
            println!(
                "{name}, temperature {}: {accepted} accepted",
                sampling.temperature
            );
            assert!(accepted > 0 || is_stand_in(), "{name}, {sampling:?}");
        }
    }
}

/// Each row of drafts has a state of its own, and the last right one's becomes the session's.
fn recurrent() {
    for name in RECURRENT {
        let model = model(name, false);
        for sampling in [Sampling::GREEDY, SAMPLED] {
            let accepted = interrupted_texts(&model, sampling, 300, &with_heads, true);
            println!(
                "{name}, temperature {}: {accepted} accepted",
                sampling.temperature
            );
            assert!(accepted > 0 || is_stand_in(), "{name}, {sampling:?}");
        }
    }
}

/// Batches of sessions with heads and without.
pub fn batches(model: &Arc<Model>, prepare: &dyn Fn(usize, &mut Session)) {
    let create = |i: usize| {
        let mut s = session(model);
        let sampling = [Sampling::GREEDY, SAMPLED][i % 2];
        s.set_sampling(sampling, None).unwrap();
        s.prefill(&[1, 20, 30 + i as u32]).unwrap();
        s
    };
    let mut plain: Vec<Session> = (0..4).map(create).collect();
    let mut drafting: Vec<Session> = (0..4).map(create).collect();
    for i in [0, 1, 3] {
        prepare(i, &mut drafting[i]);
    }
    for round in 0..40 {
        for (i, s) in plain.iter_mut().enumerate() {
            // One alone now and then.
            if round % 5 == 4 {
                assert_eq!(
                    s.decode().unwrap(),
                    drafting[i].decode().unwrap(),
                    "{round}"
                );
            }
        }
        let all = [&mut plain, &mut drafting].map(|sessions| -> Vec<u32> {
            let mut all: Vec<&mut Session> = sessions.iter_mut().collect();
            let tokens = Session::decode_batch(&mut all).unwrap();
            tokens.into_iter().map(|token| token.unwrap()).collect()
        });
        assert_eq!(all[0], all[1], "round {round}");
    }
    // Each has had drafts verified beside the others'.
    for i in [0, 1, 3] {
        let stats = drafting[i].speculation().unwrap().stats;
        assert!(stats.drafted > 8, "{i}: {stats:?}");
    }
}

fn dropped_decodes() {
    let model = model("glm4_moe", false);
    let accepted = dropped(&|| session(&model), &|target, _| {
        Box::new(HeadDrafts::new(target).unwrap())
    });
    assert!(accepted > 10 || is_stand_in(), "{accepted}");
}

/// A head that has not seen the beginning, because it came later or because the prompt was longer than what is kept.
fn late() {
    late_with(&model("glm4_moe", false), 4500, &with_heads);
}

pub fn late_with(model: &Arc<Model>, prompt_len: u32, prepare: &dyn Fn(&mut Session)) {
    let options = SessionOptions {
        context: 6000,
        ..Default::default()
    };
    let prompt: Vec<u32> = (0..prompt_len).map(|i| i * 7 % 96).collect();
    let mut all: Vec<Session> = (0..3)
        .map(|_| Session::create(model.clone(), &options).unwrap())
        .collect();
    prepare(&mut all[1]);
    for session in &mut all {
        session.prefill(&prompt).unwrap();
    }
    prepare(&mut all[2]);
    let expected = decoded(&mut all[0], 60);
    for session in &mut all[1..] {
        assert!(decoded(session, 60) == expected);
        let stats = session.speculation().unwrap().stats;
        assert!(stats.accepted > 0 || is_stand_in(), "{stats:?}");
        session.clear_drafts().unwrap();
    }
}

/// A head goes with its model and comes back with it.
fn evicted() {
    for (name, own) in [
        ("deepseek_v3", false),
        ("deepseek_v3", true),
        ("qwen3_5", false),
    ] {
        evicted_with(&model(name, own), &with_heads);
    }
}

pub fn evicted_with(model: &Arc<Model>, prepare: &dyn Fn(&mut Session)) {
    let name = &model.details().architecture;
    let (mut plain, mut drafting) = (session(model), session(model));
    prepare(&mut drafting);
    for session in [&mut plain, &mut drafting] {
        session.prefill(&[1, 20, 30, 40]).unwrap();
    }
    for round in 0..6 {
        assert!(
            decoded(&mut drafting, 11) == decoded(&mut plain, 11),
            "{name}, {round}"
        );
        model.evict().unwrap();
        if round % 2 == 1 {
            drafting.evict().unwrap();
        }
    }
}

/// A session that is evicted takes its head along, which goes on where it was.
fn evicted_sessions() {
    for name in ["glm4_moe", "qwen3_5"] {
        evicted_sessions_with(&model(name, false), &with_heads);
    }
}

pub fn evicted_sessions_with(model: &Arc<Model>, prepare: &dyn Fn(&mut Session)) {
    let name = &model.details().architecture;
    // What the first use of anything takes.
    let mut plain = session(model);
    plain.prefill(&[1, 20, 30, 40]).unwrap();
    let before = model.weights().taken().sessions;
    let mut drafting = session(model);
    prepare(&mut drafting);
    drafting.prefill(&[1, 20, 30, 40]).unwrap();
    for round in 0..6 {
        let count = 7 + 5 * round;
        assert!(
            decoded(&mut drafting, count) == decoded(&mut plain, count),
            "{name}, {round}"
        );
        let accepted = drafting.speculation().unwrap().stats.accepted;
        assert!(accepted > 0 || is_stand_in(), "{name}, {round}");
        assert!(model.weights().taken().sessions > before, "{name}");
        drafting.evict().unwrap();
        assert_eq!(model.weights().taken().sessions, before, "{name}, {round}");
        if round % 3 == 2 {
            // What is not wanted any more does not come back.
            let position = plain.position() - 3;
            for session in [&mut plain, &mut drafting] {
                session.rewind(position).unwrap();
            }
        }
    }
    // Nothing is lost of what it has read.
    let stats = drafting.speculation().unwrap().stats;
    println!("{name}: {stats:?}");
}

/// A limit of memory counts the head, too.
fn placed() {
    let dir = TempDir::new("gpu-heads-placed");
    heads::folder("glm4_moe", true).write(&dir);
    let device = model("glm4_moe", true).details().device;
    let estimate = |draft_heads: bool, memory_limit: u64| {
        let options = LoadOptions {
            draft_heads,
            memory_limit,
            ..Default::default()
        };
        let (e, _) = Model::estimate(dir.path(), device, &options, &Default::default()).unwrap();
        (e.device.weights_bytes + e.device.model_workspace_bytes, e)
    };
    let [(without, all), (with, _)] = [false, true].map(|heads| estimate(heads, 0));
    let limit = without + (with - without) / 2;
    let is_whole = |heads: bool| {
        let (_, e) = estimate(heads, limit);
        e.host_experts == 0 && e.device_layers == all.device_layers
    };
    assert!(is_whole(false) && !is_whole(true));
}

/// Started decodes ask the head, in the background.
fn started() {
    for name in ["glm4_moe", "qwen3_5"] {
        started_with(&model(name, false), &with_heads);
    }
}

pub fn started_with(model: &Arc<Model>, prepare: &dyn Fn(&mut Session)) {
    let name = &model.details().architecture;
    let (mut plain, mut drafting) = (session(model), session(model));
    prepare(&mut drafting);
    for session in [&mut plain, &mut drafting] {
        session.prefill(&[1, 20, 30, 40]).unwrap();
    }
    for round in 0..20 {
        let all = [&mut plain, &mut drafting].map(|session| {
            let mut tokens = Vec::new();
            session.decode_start(6).unwrap();
            while tokens.len() < 6 {
                match session.decode_poll().unwrap() {
                    Some(token) => tokens.push(token),
                    None => std::thread::yield_now(),
                }
            }
            tokens
        });
        assert_eq!(all[0], all[1], "{name}, {round}");
    }
    let stats = drafting.speculation().unwrap().stats;
    assert!(stats.steps > 10, "{name}: {stats:?}");
}

/// A head takes what the estimate says, and nothing twice that it shares with its model.
fn memory() {
    for (name, own) in [
        ("glm4_moe", false),
        ("glm4_moe", true),
        ("deepseek_v3", false),
    ] {
        let dir = TempDir::new("gpu-heads-memory");
        heads::folder(name, own).write(&dir);
        let of = |draft_heads: bool| {
            let options = LoadOptions {
                draft_heads,
                ..Default::default()
            };
            let model = load(name, own, draft_heads);
            let (e, _) = Model::estimate(
                dir.path(),
                model.details().device,
                &options,
                &Default::default(),
            )
            .unwrap();
            (model.details().resident_bytes, e.device)
        };
        let (without, with) = (of(false), of(true));
        let resident = with.0 - without.0;
        let estimated = with.1.weights_bytes - without.1.weights_bytes;
        let page = 2 << 20;
        assert_eq!(estimated, resident.next_multiple_of(page), "{name}");
        assert!(with.1.model_workspace_bytes > without.1.model_workspace_bytes);
        assert!(with.1.kv_bytes > without.1.kv_bytes);
        assert!(with.1.session_workspace_bytes > without.1.session_workspace_bytes);
    }
}

fn refused() {
    let mut s = session(&load("glm4_moe", false, false));
    let e = s.set_head_drafts(&ALWAYS).unwrap_err();
    assert_eq!(e.status, Status::Unsupported);
    assert!(e.message.contains("EMBER_MODEL_DRAFT_HEADS"), "{e}");
}
