//! Drafts that are verified: sessions with and without them give the same tokens, the same log-probabilities and the same
//! logits, whatever the source guesses.

use crate::common::drafts::*;
use crate::common::families::WINDOWED;
use crate::common::states::{random_life_of, restored, saved, session, session_with};
use crate::common::tiny::Random;
use crate::common::{TempDir, repository_file};
use emberlm::Status;
use emberlm::backend::{DeviceKind, LoadOptions};
use emberlm::engine::sampling::Sampling;
use emberlm::engine::speculate::DraftOptions;
use emberlm::engine::state::{Kind, RestoreOptions};
use emberlm::engine::{Model, Session, device};
use std::path::Path;
use std::sync::Arc;

fn load(path: &Path) -> Arc<Model> {
    let is_cpu = |i: &usize| device::info(*i).unwrap().kind == DeviceKind::Cpu;
    let cpu = (0..device::count().unwrap()).find(is_cpu).unwrap();
    let options = LoadOptions {
        threads: 2,
        ..Default::default()
    };
    Arc::new(Model::load(path, cpu, &options, &mut |_| Ok(())).unwrap())
}

fn hamlet() -> Arc<Model> {
    load(&repository_file("models/hamlet-7m-Q4_K_M.gguf"))
}

fn family(name: &str) -> Arc<Model> {
    load(&repository_file(&format!(
        "tests/data/families/{name}/model.gguf"
    )))
}

#[test]
fn random_lives_are_the_same_with_drafts() {
    let model = hamlet();
    for (seed, wrong) in [(0, 0), (1, 20), (2, 50), (3, 100), (4, 20), (5, 20)] {
        lives(&model, seed, wrong, true);
    }
}

#[test]
fn windows_experts_and_latents_are_the_same_with_drafts() {
    let names = WINDOWED
        .iter()
        .chain(&["deepseek_v2", "glm4_moe_lite", "gemma4", "gemma4_e"])
        .chain(&["mixtral", "qwen3moe", "cohere2"]);
    for (seed, name) in names.enumerate() {
        let model = family(name);
        random_life_of(&model, seed as u64, 60, false, &mut |session| {
            let source = Spoiled::source(session, 30);
            session.set_draft_source(source, &ALWAYS).unwrap();
        });
        random_life_of(&model, seed as u64, 60, false, &mut |session| {
            session.set_ngram_drafts(1, &ALWAYS).unwrap();
        });
    }
}

#[test]
fn rings_that_went_round_are_the_same_with_drafts() {
    for &name in WINDOWED {
        let dir = TempDir::new(&format!("draft-rings-{name}"));
        let bytes = crate::common::families::with_context(name, 4096).bytes();
        let model = load(&dir.file("model.gguf", &bytes));
        random_life_of(&model, 9, 80, false, &mut |session| {
            let source = Spoiled::source(session, 30);
            session.set_draft_source(source, &ALWAYS).unwrap();
        });
    }
}

#[test]
fn long_texts_are_the_same_greedy_and_sampled() {
    let model = hamlet();
    long_texts(&|| session(&model), long_count(1_000));
}

/// Decodes `count` tokens with and without drafts, and returns how many drafts were right. Rewinds, forks, saves and
/// restores interrupt the text.
fn interrupted_text(
    model: &Arc<Model>,
    sampling: Sampling,
    count: usize,
    prepare: &dyn Fn(&mut Session),
) -> u64 {
    let mut random = Random::new(count as u64, "interrupted text");
    let (mut plain, mut drafting) = (session(model), session(model));
    for session in [&mut plain, &mut drafting] {
        session.set_sampling(sampling, None).unwrap();
        session.prefill(&[1, 20, 30, 40]).unwrap();
    }
    prepare(&mut drafting);
    let (mut done, mut accepted) = (0, 0);
    while done < count {
        if plain.position() == plain.context() {
            plain.rewind(1).unwrap();
            drafting.rewind(1).unwrap();
        }
        let room = plain.context() - plain.position();
        let now = (20 + random.bits() as usize % 60).min(room);
        let before = drafting.speculation().unwrap().stats.accepted;
        let all = [&mut plain, &mut drafting].map(|session| decoded(session, now));
        assert!(all[0] == all[1], "{sampling:?}, after {done} tokens");
        accepted += drafting.speculation().unwrap().stats.accepted - before;
        done += now;
        match random.bits() % 4 {
            0 => {
                let back = 1 + random.bits() as usize % 30;
                let position = plain.position().saturating_sub(back).max(1);
                plain.rewind(position).unwrap();
                drafting.rewind(position).unwrap();
            }
            1 => drafting = drafting.fork().unwrap(),
            2 => {
                let bytes = saved(&mut drafting, Kind::Everything);
                drafting = restored(model, &bytes, &RestoreOptions::default()).unwrap();
                prepare(&mut drafting);
            }
            _ => {}
        }
    }
    assert_eq!(plain.tokens(), drafting.tokens());
    accepted
}

#[test]
fn interrupted_texts_are_the_same_with_every_source() {
    let names = ["qwen3", "gemma3", "mixtral", "deepseek_v2", "phi3"];
    let (hamlet, models) = (hamlet(), names.map(family));
    let trained = load(&repository_file("models/hamlet-draft-0.5m-Q8_0.gguf"));
    let sampled = Sampling {
        temperature: 0.9,
        top_p: 0.95,
        seed: 11,
        logprobs: 2,
        ..Sampling::GREEDY
    };
    let ngrams = |session: &mut Session| session.set_ngram_drafts(1, &ALWAYS).unwrap();
    let spoiled = |session: &mut Session| {
        let source = Spoiled::source(session, 20);
        session.set_draft_source(source, &ALWAYS).unwrap();
    };
    let of_model = |session: &mut Session| session.set_model_drafts(&trained, &ALWAYS).unwrap();
    let own = |session: &mut Session| {
        let model = session.model().clone();
        session.set_model_drafts(&model, &ALWAYS).unwrap();
    };
    let count = long_count(250);
    for sampling in [Sampling::GREEDY, sampled] {
        for source in [&ngrams as &dyn Fn(&mut Session), &spoiled, &of_model] {
            assert!(interrupted_text(&hamlet, sampling, count, source) > 0);
        }
        for model in &models {
            // A sampled text of random weights hardly repeats itself, so n-grams may be wrong throughout.
            interrupted_text(model, sampling, count, &ngrams);
            for source in [&spoiled as &dyn Fn(&mut Session), &own] {
                assert!(interrupted_text(model, sampling, count, source) > 0);
            }
        }
    }
}

#[test]
fn started_decodes_that_are_dropped_change_nothing() {
    let model = hamlet();
    dropped(&|| session(&model));
}

#[test]
fn a_trained_draft_model_is_mostly_right() {
    let (model, drafts) = (
        hamlet(),
        load(&repository_file("models/hamlet-draft-0.5m-Q8_0.gguf")),
    );
    of_a_trained_model(&|| session(&model), &drafts);
}

#[test]
fn drafts_evaluate_several_tokens_together() {
    let model = hamlet();
    let mut s = session(&model);
    let source = Spoiled::source(&s, 0);
    s.set_draft_source(source, &ALWAYS).unwrap();
    s.prefill(&[1, 20, 30]).unwrap();
    for _ in 0..70 {
        s.decode().unwrap();
    }
    let stats = s.speculation().unwrap().stats;
    // Steps of seven tokens each: the drafts are those of the model itself.
    assert_eq!((stats.steps, stats.drafted, stats.accepted), (10, 60, 60));
    // At the end of the context there is room for fewer.
    let rest = s.context() - s.position();
    for _ in 0..rest {
        s.decode().unwrap();
    }
    assert_eq!(s.decode().unwrap_err().status, Status::ContextFull);
    s.clear_drafts().unwrap();
    assert!(s.speculation().is_none());
}

#[test]
fn what_cannot_be_drafted_for_is_said() {
    let model = hamlet();
    let mut s = session(&model);
    let more = DraftOptions {
        most: 32,
        ..Default::default()
    };
    let e = s.set_ngram_drafts(0, &more).unwrap_err();
    assert_eq!(e.status, Status::InvalidArgument);
    assert!(e.message.contains("max_drafts is 32"), "{e}");
    let e = s.set_ngram_drafts(33, &ALWAYS).unwrap_err();
    assert_eq!(e.status, Status::InvalidArgument);
    let e = s.set_model_drafts(&family("qwen3"), &ALWAYS).unwrap_err();
    assert_eq!(e.status, Status::InvalidArgument);
    assert!(e.message.contains("draft_model has"), "{e}");
    assert!(s.speculation().is_none());
    let recurrent = family("lfm2");
    let e = session(&recurrent)
        .set_ngram_drafts(0, &ALWAYS)
        .unwrap_err();
    assert_eq!(e.status, Status::Unsupported);
    assert!(e.message.contains("recurrent"), "{e}");
}

#[test]
fn an_interrupt_ends_drafting_and_nothing_is_lost() {
    let model = hamlet();
    interrupted(session(&model), session_with(&model, Default::default()));
}
