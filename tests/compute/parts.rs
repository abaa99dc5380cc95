//! Networks cut into parts of one device: the same as the whole, bit for bit, in whatever a session does.
//! tests/cuda/parts.rs cuts between a GPU and the CPU.

use crate::common::drafts::*;
use crate::common::states::*;
use crate::common::{cpu, repository_file};
use emberlm::backend::{LoadOptions, Share};
use emberlm::engine::sampling::Sampling;
use emberlm::engine::state::{Kind, RestoreOptions};
use emberlm::engine::{Adapter, Model, Session, SessionOptions, WantedAdapter};
use emberlm::{Result, Status};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn try_load(path: &Path, cuts: &[usize]) -> Result<Arc<Model>> {
    let mut first = 0;
    let cut = |end: &usize| {
        let layers = *end - first;
        first = *end;
        layers
    };
    // The last part has all layers that are left.
    let layers: Vec<usize> = cuts.iter().map(cut).chain([0]).collect();
    let share = |layers| Share {
        device: cpu(),
        layers,
    };
    let options = LoadOptions {
        threads: 2,
        split: layers.into_iter().map(share).collect(),
        ..Default::default()
    };
    Ok(Arc::new(Model::load(path, cpu(), &options, &mut |_| {
        Ok(())
    })?))
}

fn load(path: &Path, cuts: &[usize]) -> Arc<Model> {
    try_load(path, cuts).unwrap()
}

fn hamlet() -> PathBuf {
    repository_file("models/hamlet-7m-Q4_K_M.gguf")
}

fn family(name: &str) -> PathBuf {
    repository_file(&format!("tests/data/families/{name}/model.gguf"))
}

/// Dense, with windows, parallel, recurrent, hybrid, with experts, with latent attention, and one that shares caches.
const FAMILIES: &[&str] = &[
    "mistral",
    "gemma3",
    "cohere2",
    "cohere2_moe",
    "lfm2",
    "qwen3_5",
    "qwen3_next",
    "mixtral",
    "gpt_oss",
    "falcon_h1",
    "jamba",
    "mamba",
    "mamba2",
    "bamba",
    "nemotron_h_latent",
    "gpt2",
];

/// Every place to cut a model at, and for three parts some.
fn cuts(path: &Path) -> Vec<Vec<usize>> {
    let n = load(path, &[]).details().n_layers;
    let mut all: Vec<Vec<usize>> = (1..n).map(|at| vec![at]).collect();
    if n > 2 {
        all.push(vec![1, n - 1]);
    }
    all
}

/// What a session says: tokens and bits of logits along a life with prompts, choices, rewinds, a fork and a file.
fn life(model: &Arc<Model>) -> Vec<u32> {
    let n_vocab = model.details().n_vocab as u32;
    let context = model.details().context_length.min(1500);
    let options = SessionOptions {
        context,
        sampling: Sampling {
            temperature: 0.9,
            top_p: 0.95,
            repeat_penalty: 1.1,
            seed: 7,
            logprobs: 3,
            ..Sampling::GREEDY
        },
        ..Default::default()
    };
    let mut said = Vec::new();
    let mut session = Session::create(model.clone(), &options).unwrap();
    let long: Vec<u32> = (0..context as u32 * 2 / 3)
        .map(|i| i * 37 % n_vocab)
        .collect();
    session.prefill(&long).unwrap();
    said.extend(bits(&mut session));
    for _ in 0..8 {
        said.push(session.decode().unwrap());
        let top = session.logprobs().unwrap();
        said.push(top.chosen.to_bits());
    }
    session.rewind(long.len() - 3).unwrap();
    session.prefill(&[5, 6]).unwrap();
    said.push(session.decode().unwrap());
    let mut fork = session.fork().unwrap();
    for session in [&mut session, &mut fork] {
        session.prefill(&[1]).unwrap();
        said.extend(bits(session));
        said.push(session.decode().unwrap());
    }
    let saved = saved(&mut session, Kind::Everything);
    let mut other = restored(model, &saved, &RestoreOptions::default()).unwrap();
    session.evict().unwrap();
    for session in [&mut session, &mut other] {
        for _ in 0..4 {
            said.push(session.decode().unwrap());
        }
        said.extend(bits(session));
    }
    let mut all = [session, fork, other];
    for _ in 0..3 {
        let mut batch: Vec<&mut Session> = all.iter_mut().collect();
        let chosen = Session::decode_batch(&mut batch).unwrap();
        said.extend(chosen.into_iter().map(|token| token.unwrap()));
    }
    for session in &mut all {
        session.decode_start(3).unwrap();
        for _ in 0..3 {
            said.push(loop {
                if let Some(token) = session.decode_poll().unwrap() {
                    break token;
                }
                std::thread::yield_now();
            });
        }
    }
    said
}

#[test]
fn every_cut_says_what_the_whole_says() {
    for name in FAMILIES {
        let path = family(name);
        let whole = life(&load(&path, &[]));
        assert!(!cuts(&path).is_empty(), "{name}");
        for cuts in cuts(&path) {
            assert_eq!(life(&load(&path, &cuts)), whole, "{name} cut at {cuts:?}");
        }
    }
}

#[test]
fn every_cut_of_hamlet_says_what_the_whole_says() {
    let whole = life(&load(&hamlet(), &[]));
    for cuts in cuts(&hamlet()) {
        assert_eq!(life(&load(&hamlet(), &cuts)), whole, "cut at {cuts:?}");
    }
}

#[test]
fn sessions_in_parts_have_random_lives() {
    for seed in 0..3 {
        random_life(&load(&hamlet(), &[2]), seed, 60, true);
    }
    for name in ["gemma3", "mixtral", "lfm2", "qwen3_5"] {
        let model = load(&family(name), &[1]);
        for seed in 0..3 {
            random_life(&model, seed, 60, false);
        }
    }
}

/// Adapters are added in each part, alone and in batches.
#[test]
fn adapters_go_through_the_parts() {
    let path = repository_file("tests/data/adapters/hamlet.gguf");
    let prompt: Vec<u32> = (0..70).map(|i| i * 37 % 500).collect();
    let run = |cuts: &[usize]| {
        let model = load(&hamlet(), cuts);
        let adapter = Adapter::load(model.clone(), &path).unwrap();
        let bytes = adapter.data().bytes;
        assert_eq!(model.weights().taken().sessions, bytes, "cut at {cuts:?}");
        let scaled = |scale| WantedAdapter {
            adapter: &adapter,
            scale,
        };
        let mut all = [&[][..], &[scaled(1.0)], &[scaled(-0.5), scaled(0.2)]].map(|list| {
            let mut session = session(&model);
            session.set_adapters(list, false).unwrap();
            session.prefill(&prompt).unwrap();
            session
        });
        let mut said = Vec::new();
        for session in &mut all {
            said.push(bits(session));
        }
        assert_ne!(said[0], said[1]);
        assert_ne!(said[1], said[2]);
        for _ in 0..5 {
            let mut batch: Vec<&mut Session> = all.iter_mut().collect();
            let chosen = Session::decode_batch(&mut batch).unwrap();
            said.push(chosen.into_iter().map(|token| token.unwrap()).collect());
        }
        let mut fork = all[1].fork().unwrap();
        fork.prefill(&[7]).unwrap();
        said.push(bits(&mut fork));
        fork.set_adapters(&[], false).unwrap();
        said.push(bits(&mut fork));
        all[1].evict().unwrap();
        said.push(vec![all[1].decode().unwrap()]);
        said.push(bits(&mut all[1]));
        said
    };
    let whole = run(&[]);
    for cuts in cuts(&hamlet()) {
        assert_eq!(run(&cuts), whole, "cut at {cuts:?}");
    }
}

/// A state goes from any cuts to any others.
#[test]
fn states_are_of_no_cuts() {
    for name in ["gemma3", "qwen3_next", "falcon_h1", "jamba", "mistral"] {
        let path = family(name);
        let mut all = cuts(&path);
        all.push(Vec::new());
        let models: Vec<_> = all.iter().map(|cuts| load(&path, cuts)).collect();
        let mut files = Vec::new();
        for model in &models {
            let mut session = session(model);
            let n = session.context() as u32 * 2 / 3;
            let prompt: Vec<u32> = (0..n).map(|i| i * 11 % 60).collect();
            session.prefill(&prompt).unwrap();
            session.decode().unwrap();
            files.push(saved(&mut session, Kind::Everything));
        }
        let mut answers = Vec::new();
        for file in &files {
            assert_eq!(file.len(), files[0].len(), "{name}");
            for model in &models {
                let mut session = restored(model, file, &RestoreOptions::default()).unwrap();
                let mut answer = vec![session.decode().unwrap(), session.decode().unwrap()];
                answer.extend(bits(&mut session));
                answers.push(answer);
            }
        }
        assert!(answers.iter().all(|a| *a == answers[0]), "{name}");
    }
}

#[test]
fn drafts_go_through_the_parts() {
    use emberlm::engine::speculate::DraftOptions;
    let run = |cuts: &[usize], drafts: bool| {
        let model = load(&hamlet(), cuts);
        let options = SessionOptions {
            context: 600,
            ..Default::default()
        };
        let mut session = Session::create(model.clone(), &options).unwrap();
        if drafts {
            let options = DraftOptions {
                most: 8,
                always: true,
            };
            session.set_ngram_drafts(1, &options).unwrap();
        }
        let prompt: Vec<u32> = (0..60).map(|i| 100 + i % 7).collect();
        session.prefill(&prompt).unwrap();
        (0..120)
            .map(|_| session.decode().unwrap())
            .collect::<Vec<_>>()
    };
    let whole = run(&[], false);
    assert_eq!(run(&[3], false), whole);
    assert_eq!(run(&[3], true), whole);
    assert_eq!(run(&[1, 4], true), whole);
}

/// Sessions in parts are the same with drafts, right and wrong ones, whatever the layers keep.
#[test]
fn sessions_in_parts_are_the_same_with_drafts() {
    lives(&load(&hamlet(), &[2]), 3, 30, true);
    for (seed, name) in ["gemma3", "mixtral", "lfm2", "qwen3_5", "jamba"]
        .iter()
        .enumerate()
    {
        let path = family(name);
        for cuts in cuts(&path) {
            let model = load(&path, &cuts);
            random_life_of(&model, seed as u64, 40, false, &mut |session| {
                let source = Spoiled::source(session, 30);
                session.set_draft_source(source, &ALWAYS).unwrap();
            });
            for sampling in [Sampling::GREEDY, SAMPLED] {
                let accepted = interrupted_text(&model, sampling, 150, &with_spoiled);
                assert!(accepted > 40, "{name} cut at {cuts:?}: {accepted}");
            }
        }
    }
}

#[test]
fn what_cannot_be_cut_says_so() {
    for (name, at) in [("gemma3n", 1), ("gemma4_e", 1)] {
        let error = try_load(&family(name), &[at]).map(drop).unwrap_err();
        assert_eq!(error.status, Status::Unsupported, "{name}");
        assert!(error.message.contains("residual stream"), "{error:?}");
    }
    let model = load(&hamlet(), &[2]);
    let mut session = session(&model);
    session.prefill(&[1, 2]).unwrap();
    let error = session.profile().map(drop).unwrap_err();
    assert_eq!(error.status, Status::Unsupported);
}

/// Interrupts and choices that fail leave every part at the same place.
#[test]
fn failures_leave_all_parts_together() {
    for name in ["mistral", "lfm2", "gemma3"] {
        let path = family(name);
        let models = [load(&path, &[]), load(&path, &[1])];
        let [whole, cut] = models.each_ref().map(|model| {
            let mut session = session(model);
            let n = session.context() as u32 / 2;
            let prompt: Vec<u32> = (0..n).map(|i| i * 5 % 60).collect();
            session.prefill(&prompt[..20]).unwrap();
            let mut said = vec![session.decode().unwrap()];
            for round in 0..6 {
                session.interrupts().ask();
                let failed = match round % 2 {
                    0 => session.prefill(&prompt[20..]).map(|()| 0),
                    _ => session.decode(),
                };
                assert_eq!(failed.unwrap_err().status, Status::Interrupted, "{name}");
                said.push(session.decode().unwrap());
            }
            said.extend(bits(&mut session));
            said
        });
        assert_eq!(whole, cut, "{name}");
    }
}
