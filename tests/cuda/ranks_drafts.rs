//! Drafts of networks of which each of two GPUs has a share of every layer: sessions with and without them give the same tokens and
//! log-probabilities. They need two GPUs.

use crate::common::drafts::*;
use crate::common::states::{bits, random_life_of, session};
use crate::common::{TempDir, repository_file};
use crate::drafts::{dropped_by, marked_by};
use crate::gpu::*;
use crate::parts_drafts::{failures_of, options_of};
use crate::ranks::{RECURRENT, load};
use emberlm::backend::{DeviceKind, LoadOptions};
use emberlm::engine::sampling::Sampling;
use emberlm::engine::{Model, Session};
use std::path::PathBuf;
use std::sync::Arc;

pub fn tests(tests: &mut Tests) {
    tests.push(("ranks_drafts::lives".into(), Box::new(random_lives)));
    tests.push(("ranks_drafts::families".into(), Box::new(families)));
    tests.push(("ranks_drafts::recurrent".into(), Box::new(recurrent)));
    tests.push((
        "ranks_drafts::recurrent_marks".into(),
        Box::new(recurrent_marks),
    ));
    tests.push((
        "ranks_drafts::recurrent_dropped".into(),
        Box::new(recurrent_dropped),
    ));
    tests.push(("ranks_drafts::rings".into(), Box::new(rings)));
    tests.push(("ranks_drafts::dropped".into(), Box::new(all_dropped)));
    tests.push(("ranks_drafts::texts".into(), Box::new(texts)));
    tests.push(("ranks_drafts::together".into(), Box::new(together)));
    tests.push(("ranks_drafts::trained".into(), Box::new(trained)));
    tests.push(("ranks_drafts::interrupts".into(), Box::new(interrupts)));
    tests.push(("ranks_drafts::failures".into(), Box::new(failures)));
    tests.push(("ranks_drafts::options".into(), Box::new(options)));
}

pub fn path() -> PathBuf {
    repository_file("models/hamlet-draft-0.5m-Q8_0.gguf")
}

/// The smaller hamlet: blocks of the other one's weights are too long to be split.
fn hamlet() -> Arc<Model> {
    load(&path())
}

fn random_lives() {
    let model = hamlet();
    for wrong in [0, 30, 100] {
        lives(&model, wrong, wrong, true);
    }
}

/// Dense, with windows, with experts, with latent attention, with biases.
fn families() {
    let names = ["mistral", "gemma3", "mixtral", "deepseek_v2", "qwen2"];
    for (seed, name) in names.into_iter().enumerate() {
        let model = load(&path_of(name));
        random_life_of(&model, seed as u64, 30, false, &mut |session| {
            let source = Spoiled::source(session, 30);
            session.set_draft_source(source, &ALWAYS).unwrap();
        });
        for sampling in [Sampling::GREEDY, SAMPLED] {
            let accepted = interrupted_text(&model, sampling, 100, &with_spoiled);
            println!("{name}: {accepted} accepted");
            assert!(accepted > 25, "{name}, {sampling:?}: {accepted}");
        }
    }
}

/// Models with layers that keep a state of fixed size.
fn each_recurrent(run: impl Fn(&str, &Arc<Model>)) {
    let dir = TempDir::new("gpu-ranks-draft-recurrent");
    for name in RECURRENT {
        run(name, &load(&long_path_of(name, &dir)));
    }
}

/// Each rank goes back to the state behind the last row that was right.
fn recurrent() {
    each_recurrent(|name, model| {
        for sampling in [Sampling::GREEDY, SAMPLED] {
            let accepted = interrupted_texts(model, sampling, 150, &with_spoiled, true);
            println!("{name}: {accepted} accepted");
            assert!(accepted > 40, "{name}, {sampling:?}: {accepted}");
        }
        interrupted_texts(model, Sampling::GREEDY, 150, &with_ngrams, true);
        if is_stand_in() {
            // Where what is evaluated again has the bits that it had.
            lives(model, 5, 30, false);
        }
    });
}

/// What is started and dropped.
fn recurrent_dropped() {
    each_recurrent(dropped_by);
}

/// Marks are where they are without drafts, on every rank.
fn recurrent_marks() {
    each_recurrent(marked_by);
}

fn rings() {
    let dir = TempDir::new("gpu-ranks-draft-rings");
    let model = load(&long_path_of("gemma3", &dir));
    random_life_of(&model, 9, 50, false, &mut |session| {
        let source = Spoiled::source(session, 30);
        session.set_draft_source(source, &ALWAYS).unwrap();
    });
}

fn all_dropped() {
    let model = hamlet();
    let accepted = dropped(&|| session(&model), &Spoiled::source);
    assert!(accepted > 100, "{accepted}");
}

/// Texts with every source, through rewinds, forks, saves and restores.
fn texts() {
    let (model, count) = (hamlet(), long_count(150));
    for sampling in [Sampling::GREEDY, SAMPLED] {
        interrupted_text(&model, sampling, count, &with_ngrams);
        for source in [&with_spoiled as &dyn Fn(&mut Session), &with_own_model] {
            assert!(interrupted_text(&model, sampling, count, source) > 0);
        }
    }
}

/// Sessions with and without drafts, by turns and as batches.
fn together() {
    let model = hamlet();
    let mut all: Vec<Session> = (0..4).map(|_| session(&model)).collect();
    let mut plain: Vec<Session> = (0..4).map(|_| session(&model)).collect();
    for (i, s) in all.iter_mut().enumerate() {
        let prompt: Vec<u32> = (0..40 + i as u32).map(|j| j * 37 % 500).collect();
        if i % 2 == 0 {
            let source = Spoiled::source(s, 20);
            s.set_draft_source(source, &ALWAYS).unwrap();
        }
        s.prefill(&prompt).unwrap();
        plain[i].prefill(&prompt).unwrap();
    }
    for round in 0..20 {
        for (s, plain) in all.iter_mut().zip(&mut plain) {
            assert_eq!(s.decode().unwrap(), plain.decode().unwrap(), "{round}");
        }
        let mut members: Vec<&mut Session> = all.iter_mut().collect();
        let chosen = Session::decode_batch(&mut members).unwrap();
        for (token, plain) in chosen.into_iter().zip(&mut plain) {
            assert_eq!(token.unwrap(), plain.decode().unwrap(), "{round}");
        }
    }
    for (s, plain) in all.iter_mut().zip(&mut plain) {
        assert!(bits(s) == bits(plain));
    }
    let stats = all[0].speculation().unwrap().stats;
    assert!(stats.accepted > 20, "{stats:?}");
}

/// With a draft model that one of the GPUs has as a whole.
fn trained() {
    let drafts = load_on(&path(), DeviceKind::Cuda, &LoadOptions::default());
    let model = hamlet();
    of_a_trained_model(&|| session(&model), &drafts);
}

fn interrupts() {
    let model = hamlet();
    interrupted(session(&model), session(&model));
}

fn failures() {
    failures_of("two ranks", hamlet());
}

fn options() {
    options_of("two ranks", &hamlet());
}
