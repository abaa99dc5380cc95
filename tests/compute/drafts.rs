//! Drafts that are verified: sessions with and without them give the same tokens, the same log-probabilities and the same
//! logits, whatever the source guesses.

use crate::common::families::WINDOWED;
use crate::common::states::{random_life_of, session, session_with};
use crate::common::tiny::Random;
use crate::common::{TempDir, repository_file};
use emberlm::backend::{DeviceKind, LoadOptions};
use emberlm::engine::sampling::Sampling;
use emberlm::engine::speculate::{DraftContext, DraftOptions, DraftSource, ModelDrafts};
use emberlm::engine::{Model, Session, device};
use emberlm::{Result, Status};
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

const ALWAYS: DraftOptions = DraftOptions {
    most: 6,
    always: true,
};

/// What the model itself would choose, each token spoiled with a probability.
struct Spoiled {
    drafts: ModelDrafts,
    /// Of 100.
    wrong: u64,
    random: Random,
    n_vocab: u32,
}

impl Spoiled {
    fn source(target: &Session, wrong: u64) -> Box<dyn DraftSource> {
        Box::new(Spoiled {
            drafts: ModelDrafts::new(target, target.model()).unwrap(),
            wrong,
            random: Random::new(wrong, "spoiled"),
            n_vocab: target.model().details().n_vocab as u32,
        })
    }
}

impl DraftSource for Spoiled {
    fn look(&mut self, context: &DraftContext<'_>) -> Result<Option<usize>> {
        self.drafts.look(context)
    }

    fn draft(&mut self, context: &DraftContext<'_>, drafts: &mut [u32]) -> Result<usize> {
        let count = self.drafts.draft(context, drafts)?;
        for draft in &mut drafts[..count] {
            if self.random.bits() % 100 < self.wrong {
                *draft = (*draft + 1) % self.n_vocab;
            }
        }
        Ok(count)
    }

    fn fork(&mut self, fork: &Session) -> Result<Box<dyn DraftSource>> {
        Ok(Spoiled::source(fork, self.wrong))
    }
}

#[test]
fn random_lives_are_the_same_with_drafts() {
    let model = hamlet();
    for (seed, wrong) in [(0, 0), (1, 20), (2, 50), (3, 100), (4, 20), (5, 20)] {
        random_life_of(&model, seed, 60, true, &mut |session| {
            let source = Spoiled::source(session, wrong);
            session.set_draft_source(source, &ALWAYS).unwrap();
        });
        random_life_of(&model, 10 + seed, 60, true, &mut |session| {
            session.set_ngram_drafts(1, &ALWAYS).unwrap();
        });
        random_life_of(&model, 20 + seed, 60, true, &mut |session| {
            session
                .set_ngram_drafts(0, &DraftOptions::default())
                .unwrap();
        });
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

/// A token, and the bits of the log-probabilities of it and of the most probable ones.
type Decoded = (u32, Option<Vec<(u32, u32)>>);

/// Tokens and log-probabilities of `count` decodes.
fn decoded(session: &mut Session, count: usize) -> Vec<Decoded> {
    let decode = |_| {
        let token = session.decode().unwrap();
        let logprobs = session.logprobs().map(|l| {
            let all = std::iter::once((token, l.chosen)).chain(l.top.iter().copied());
            all.map(|(token, p)| (token, p.to_bits())).collect()
        });
        (token, logprobs)
    };
    (0..count).map(decode).collect()
}

#[test]
fn long_texts_are_the_same_greedy_and_sampled() {
    let model = hamlet();
    let count = if std::env::var_os("EMBERLM_SLOW_TESTS").is_some() {
        10_000
    } else {
        1_000
    };
    let sampled = Sampling {
        temperature: 0.9,
        top_p: 0.95,
        seed: 7,
        ..Sampling::GREEDY
    };
    let penalized = Sampling {
        repeat_penalty: 1.1,
        logprobs: 3,
        ..sampled
    };
    for sampling in [Sampling::GREEDY, sampled, penalized] {
        let (mut plain, mut ngrams, mut spoiled) =
            (session(&model), session(&model), session(&model));
        ngrams.set_ngram_drafts(0, &ALWAYS).unwrap();
        let source = Spoiled::source(&spoiled, 20);
        spoiled.set_draft_source(source, &ALWAYS).unwrap();
        let mut left = count;
        while left > 0 {
            let now = left.min(900);
            let all = [&mut plain, &mut ngrams, &mut spoiled].map(|s| {
                s.set_sampling(
                    Sampling {
                        seed: left as u64,
                        ..sampling
                    },
                    None,
                )
                .unwrap();
                s.rewind(0).unwrap();
                s.prefill(&[1, 20, 30, 40]).unwrap();
                decoded(s, now)
            });
            assert!(all[0] == all[1] && all[0] == all[2], "{sampling:?}");
            left -= now;
        }
        let stats = spoiled.speculation().unwrap().stats;
        assert!(
            stats.accepted > 0 && stats.accepted < stats.drafted,
            "{stats:?}"
        );
        if sampling.temperature == 0.0 {
            // A greedy text comes round to itself.
            let stats = ngrams.speculation().unwrap().stats;
            assert!(10 * stats.accepted > 5 * stats.drafted, "{stats:?}");
        }
    }
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
    let (mut plain, mut s) = (session(&model), session_with(&model, Default::default()));
    s.set_model_drafts(&model, &ALWAYS).unwrap();
    for session in [&mut plain, &mut s] {
        session.prefill(&[1, 20, 30]).unwrap();
    }
    for round in 0..30 {
        if round % 3 == 1 {
            s.interrupts().ask();
            assert_eq!(s.decode().unwrap_err().status, Status::Interrupted);
        }
        assert_eq!(
            s.decode().unwrap(),
            plain.decode().unwrap(),
            "round {round}"
        );
    }
}
