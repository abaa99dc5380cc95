//! Drafts that are verified on a GPU: sessions with and without them give the same tokens and log-probabilities.

use crate::common::drafts::*;
use crate::common::families::{RECURRENT, WINDOWED, with_context};
use crate::common::repository_file;
use crate::common::states::{bits, random_life_of, session, session_with};
use crate::gpu::*;
use emberlm::Status;
use emberlm::backend::{DeviceKind, KvType, LoadOptions};
use emberlm::engine::sampling::Sampling;
use emberlm::engine::speculate::DraftOptions;
use emberlm::engine::{Model, Session, SessionOptions};
use std::path::Path;
use std::sync::Arc;

pub fn tests(tests: &mut Tests) {
    tests.push(("drafts::random_lives".into(), Box::new(random_lives)));
    tests.push(("drafts::families".into(), Box::new(families)));
    tests.push(("drafts::rings".into(), Box::new(rings)));
    tests.push(("drafts::recurrent".into(), Box::new(recurrent)));
    tests.push((
        "drafts::recurrent_dropped".into(),
        Box::new(recurrent_dropped),
    ));
    tests.push(("drafts::marks".into(), Box::new(marks)));
    tests.push(("drafts::long_texts".into(), Box::new(all_long_texts)));
    tests.push((
        "drafts::interrupted_texts".into(),
        Box::new(all_interrupted_texts),
    ));
    tests.push(("drafts::trained".into(), Box::new(trained)));
    tests.push(("drafts::options".into(), Box::new(options)));
    tests.push(("drafts::dropped".into(), Box::new(dropped_decodes)));
    tests.push(("drafts::evict".into(), Box::new(evicted)));
    tests.push(("drafts::interrupts".into(), Box::new(interrupts)));
}

fn load(path: &Path) -> Arc<Model> {
    load_on(path, DeviceKind::Cuda, &LoadOptions::default())
}

fn hamlet() -> Arc<Model> {
    load(&repository_file("models/hamlet-7m-Q4_K_M.gguf"))
}

fn family(name: &str) -> Arc<Model> {
    load(&repository_file(&format!(
        "tests/data/families/{name}/model.gguf"
    )))
}

fn random_lives() {
    let model = hamlet();
    for (seed, wrong) in [(0, 0), (1, 20), (2, 50), (3, 100)] {
        lives(&model, seed, wrong, true);
    }
}

fn families() {
    let others = [
        "deepseek_v2",
        "gemma4",
        "gemma4_e",
        "mixtral",
        "qwen3moe",
        "gpt_oss",
        "phi2",
    ];
    let names = WINDOWED.iter().chain(&others);
    let mut seen = 0;
    for (seed, name) in names.enumerate() {
        let model = family(name);
        random_life_of(&model, seed as u64, 40, false, &mut |session| {
            let source = Spoiled::source(session, 30);
            session.set_draft_source(source, &ALWAYS).unwrap();
        });
        random_life_of(&model, seed as u64, 40, false, &mut |session| {
            session.set_ngram_drafts(1, &ALWAYS).unwrap();
        });
        seen += 1;
    }
    assert!(seen >= 8, "{seen} families");
}

fn rings() {
    let dir = crate::common::TempDir::new("gpu-draft-rings");
    for &name in WINDOWED {
        let path = dir.file("model.gguf", &with_context(name, 4096).bytes());
        let model = load(&path);
        random_life_of(&model, 9, 60, false, &mut |session| {
            let source = Spoiled::source(session, 30);
            session.set_draft_source(source, &ALWAYS).unwrap();
        });
    }
}

/// Layers that keep a state of fixed size: a row has one of its own.
fn recurrent() {
    let dir = crate::common::TempDir::new("gpu-draft-recurrent");
    for &name in RECURRENT {
        let path = dir.file("model.gguf", &with_context(name, 4096).bytes());
        let model = load(&path);
        for sampling in [Sampling::GREEDY, SAMPLED] {
            let accepted = interrupted_texts(&model, sampling, 200, &with_spoiled, true);
            println!(
                "{name}, temperature {}: {accepted} accepted",
                sampling.temperature
            );
            assert!(accepted > 50, "{name}, {sampling:?}: {accepted}");
        }
        interrupted_texts(&model, Sampling::GREEDY, 200, &with_ngrams, true);
        if is_stand_in() {
            // Where what is evaluated again has the bits that it had.
            lives(&model, 5, 30, false);
        }
    }
}

/// What is started and dropped.
fn recurrent_dropped() {
    let dir = crate::common::TempDir::new("gpu-draft-dropped");
    for name in ["qwen3_5", "lfm2", "mamba"] {
        let path = dir.file("model.gguf", &with_context(name, 4096).bytes());
        dropped_by(name, &load(&path));
    }
}

/// The same of a model.
pub fn dropped_by(name: &str, model: &Arc<Model>) {
    let (mut plain, mut drafting) = (session(model), session(model));
    let source = Spoiled::source(&drafting, 15);
    drafting.set_draft_source(source, &ALWAYS).unwrap();
    for session in [&mut plain, &mut drafting] {
        session.prefill(&[1, 20, 30, 40]).unwrap();
    }
    for round in 0..40 {
        assert!(
            decoded(&mut drafting, 1 + round % 7) == decoded(&mut plain, 1 + round % 7),
            "{name}, round {round}"
        );
        // Calls that drop what is ahead, and have no answer in common with it.
        for session in [&mut plain, &mut drafting] {
            match round % 3 {
                0 => session.set_sampling(SAMPLED, None).unwrap(),
                1 => session.prefill(&[3 + round as u32]).unwrap(),
                _ => session.set_sampling(Sampling::GREEDY, None).unwrap(),
            }
        }
    }
    let stats = drafting.speculation().unwrap().stats;
    assert!(stats.accepted > 40, "{name}: {stats:?}");
}

/// Marks are where they are without drafts, so that a rewind evaluates the same again.
fn marks() {
    let dir = crate::common::TempDir::new("gpu-draft-marks");
    for name in ["qwen3_5", "falcon_h1", "mamba"] {
        let path = dir.file("model.gguf", &with_context(name, 4096).bytes());
        marked_by(name, &load(&path));
    }
}

/// The same of a model.
pub fn marked_by(name: &str, model: &Arc<Model>) {
    for interval in [0, 16] {
        let options = SessionOptions {
            context: 1024,
            mark_interval: interval,
            ..Default::default()
        };
        let create = || Session::create(model.clone(), &options).unwrap();
        let (mut plain, mut drafting) = (create(), create());
        let source = Spoiled::source(&drafting, 15);
        drafting.set_draft_source(source, &ALWAYS).unwrap();
        for session in [&mut plain, &mut drafting] {
            session.prefill(&[1, 20, 30, 40]).unwrap();
        }
        for (count, back) in [(300, 20), (5, 2), (290, 100), (11, 1), (40, 33), (9, 0)] {
            assert!(
                decoded(&mut drafting, count) == decoded(&mut plain, count),
                "{name}, every {interval}: {count}"
            );
            for session in [&mut plain, &mut drafting] {
                session.rewind(session.position() - back).unwrap();
            }
            assert!(
                bits(&mut plain) == bits(&mut drafting),
                "{name}, every {interval}: logits behind {count} and {back}"
            );
        }
    }
}

fn all_long_texts() {
    let model = hamlet();
    for kv_type in [KvType::F16, KvType::Q8_0] {
        long_texts(&|| session_with(&model, kv_type), long_count(1_000));
    }
}

/// Texts with every source, through rewinds, forks, saves and restores.
fn all_interrupted_texts() {
    let count = long_count(250);
    let hamlet = hamlet();
    let names = ["qwen3", "gemma3", "mixtral", "deepseek_v2", "phi3"];
    let models = names.map(family);
    for sampling in [Sampling::GREEDY, SAMPLED] {
        interrupted_text(&hamlet, sampling, count, &with_ngrams);
        assert!(interrupted_text(&hamlet, sampling, count, &with_spoiled) > 0);
        interrupted_by_every_source(&models, sampling, count);
    }
}

fn dropped_decodes() {
    let model = hamlet();
    assert!(dropped(&|| session(&model), &Spoiled::source) > 100);
}

/// Weights may go while tokens wait that were chosen already.
fn evicted() {
    let model = hamlet();
    let (mut plain, mut drafting) = (session(&model), session(&model));
    let source = Spoiled::source(&drafting, 0);
    drafting.set_draft_source(source, &ALWAYS).unwrap();
    for session in [&mut plain, &mut drafting] {
        session.prefill(&[1, 20, 30, 40]).unwrap();
    }
    for round in 0..8 {
        assert!(
            decoded(&mut drafting, 10) == decoded(&mut plain, 10),
            "round {round}"
        );
        model.evict().unwrap();
    }
    let stats = drafting.speculation().unwrap().stats;
    assert!(stats.accepted > 40, "{stats:?}");
}

fn trained() {
    let model = hamlet();
    let drafts = load(&repository_file("models/hamlet-draft-0.5m-Q8_0.gguf"));
    of_a_trained_model(&|| session(&model), &drafts);
}

fn options() {
    let model = hamlet();
    let mut s = session(&model);
    let more = DraftOptions {
        most: 16,
        ..Default::default()
    };
    let e = s.set_ngram_drafts(0, &more).unwrap_err();
    assert_eq!(e.status, Status::InvalidArgument);
    assert!(e.message.contains("up to 15"), "{e}");
    let most = DraftOptions {
        most: 15,
        always: true,
    };
    // As many rows as there can be, up to the end of the context.
    let mut plain = session(&model);
    let source = Spoiled::source(&s, 3);
    s.set_draft_source(source, &most).unwrap();
    for session in [&mut plain, &mut s] {
        session.prefill(&[1, 20, 30]).unwrap();
    }
    let rest = s.context() - s.position();
    assert!(decoded(&mut s, rest) == decoded(&mut plain, rest));
    assert_eq!(s.decode().unwrap_err().status, Status::ContextFull);
    let stats = s.speculation().unwrap().stats;
    // The text has ends of answers, up to which a step drafts.
    assert!(stats.drafted > 6 * stats.steps, "{stats:?}");
}

fn interrupts() {
    let model = hamlet();
    interrupted(session(&model), session(&model));
}
