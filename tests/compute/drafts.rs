//! Drafts that are verified: sessions with and without them give the same tokens, the same log-probabilities and the same
//! logits, whatever the source guesses.

use crate::common::drafts::*;
use crate::common::families::{RECURRENT, WINDOWED};
use crate::common::states::{CONTEXT, random_life_of, restored, saved, session, session_with};
use crate::common::tiny::Random;
use crate::common::{TempDir, cpu, repository_file};
use emberlm::Status;
use emberlm::backend::{KvType, LoadOptions, Residual, Row, RunnerOptions, Want, When};
use emberlm::engine::sampling::Sampling;
use emberlm::engine::session::MIN_MARK_INTERVAL;
use emberlm::engine::speculate::DraftOptions;
use emberlm::engine::state::{Kind, RestoreOptions};
use emberlm::engine::{Model, Session};
use emberlm::grammar::{GrammarKind, GrammarOptions};
use std::path::Path;
use std::sync::Arc;

fn load(path: &Path) -> Arc<Model> {
    let options = LoadOptions {
        threads: 2,
        ..Default::default()
    };
    Arc::new(Model::load(path, cpu(), &options, &mut |_| Ok(())).unwrap())
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
fn recurrent_layers_are_the_same_with_drafts() {
    for (seed, name) in RECURRENT.iter().enumerate() {
        let model = family(name);
        for (wrong, seed) in [(30, seed as u64), (60, 50 + seed as u64)] {
            random_life_of(&model, seed, 60, false, &mut |session| {
                let source = Spoiled::source(session, wrong);
                session.set_draft_source(source, &ALWAYS).unwrap();
            });
        }
        random_life_of(&model, 100 + seed as u64, 60, false, &mut |session| {
            session.set_ngram_drafts(1, &ALWAYS).unwrap();
        });
    }
}

/// A session that asks for marks of recurrent layers has them within drafts that were right, too.
#[test]
fn marks_are_as_close_with_drafts() {
    let dir = TempDir::new("draft-marks");
    let bytes = crate::common::families::with_context("qwen3_5", 200).bytes();
    let model = load(&dir.file("model.gguf", &bytes));
    let mut plain = session(&model);
    plain.prefill(&[1, 20, 30, 40]).unwrap();
    decoded(&mut plain, 150);
    let text = plain.tokens().to_vec();
    let options = RunnerOptions {
        context: 200,
        kv_type: KvType::F16,
        stream_priority: 0,
        mark_interval: MIN_MARK_INTERVAL,
    };
    let mut runner = model.weights().clone().create_runner(&options).unwrap();
    let interrupt = Default::default();
    let mut submit = |tokens: &[u32], want: Want| {
        let row = Row {
            runner: &mut *runner,
            tokens,
            want,
            mask: None,
            interrupt: &interrupt,
            residual: Residual::default(),
        };
        model.weights().submit(&mut [row], When::Now).unwrap();
        while let Ok(Some(_)) = runner.poll(true) {}
        let marks = (0..runner.len()).map(|p| p - runner.mark_before(p).position());
        let farthest = marks.max().unwrap();
        assert!(
            farthest <= MIN_MARK_INTERVAL,
            "{farthest} of {}",
            runner.len()
        );
        runner.len()
    };
    let (mut len, drafts) = (submit(&text[..4], Want::Logits), 6);
    while len + drafts < text.len() {
        let sampling = Sampling::GREEDY;
        let want = Want::Verified { drafts, sampling };
        let before = len;
        len = submit(&text[before..=before + drafts], want);
        assert_eq!(len, before + drafts + 1);
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

#[test]
fn interrupted_texts_are_the_same_with_every_source() {
    let names = ["qwen3", "gemma3", "mixtral", "deepseek_v2", "phi3"];
    let recurrent = ["qwen3_5", "lfm2", "granite_hybrid", "mamba"];
    let models: Vec<_> = names.into_iter().chain(recurrent).map(family).collect();
    let hamlet = hamlet();
    let trained = load(&repository_file("models/hamlet-draft-0.5m-Q8_0.gguf"));
    let of_model = |session: &mut Session| session.set_model_drafts(&trained, &ALWAYS).unwrap();
    let count = long_count(250);
    for sampling in [Sampling::GREEDY, SAMPLED] {
        for source in [
            &with_ngrams as &dyn Fn(&mut Session),
            &with_spoiled,
            &of_model,
        ] {
            assert!(interrupted_text(&hamlet, sampling, count, source) > 0);
        }
        interrupted_by_every_source(&models, sampling, count);
    }
}

#[test]
fn started_decodes_that_are_dropped_change_nothing() {
    let model = hamlet();
    assert!(dropped(&|| session(&model), &Spoiled::source) > 100);
    assert!(dropped(&|| session(&model), &Spoiled::slow) > 100);
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
    let mut text: Vec<u32> = (0..70).map(|_| s.decode().unwrap()).collect();
    let stats = s.speculation().unwrap().stats;
    text.extend((0..6).map(|_| s.decode().unwrap()));
    // Steps of seven tokens each, or up to the one behind the end of an answer: the drafts are those of the model itself.
    let ends = model.tokenizer().unwrap().end_tokens();
    let (mut steps, mut drafted, mut at) = (0, 0, 0);
    while at < 70 {
        let ahead = &text[at..at + 6];
        let end = ahead.iter().position(|token| ends.contains(token));
        let drafts = end.map_or(6, |end| end + 1);
        (steps, drafted, at) = (steps + 1, drafted + drafts as u64, at + drafts + 1);
    }
    assert!(steps > 10, "the text has ends");
    // Of the last step, there may be more to come.
    let accepted = 70 - steps + u64::from(at > 70);
    assert_eq!(
        (stats.steps, stats.drafted, stats.accepted),
        (steps, drafted, accepted)
    );
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
}

#[test]
fn an_interrupt_ends_drafting_and_nothing_is_lost() {
    let model = hamlet();
    interrupted(session(&model), session_with(&model, Default::default()));
}

/// A token of each session, with the log-probabilities, of a batch that is done at once or started.
/// Errors: those of the start, with nothing started.
fn batch_step(
    sessions: &mut [Session],
    started: bool,
) -> emberlm::Result<Vec<Result<Decoded, Status>>> {
    let mut all: Vec<&mut Session> = sessions.iter_mut().collect();
    let results: Vec<_> = match started {
        false => Session::decode_batch(&mut all)
            .unwrap()
            .into_iter()
            .collect(),
        true => {
            Session::decode_batch_start(&mut all)?;
            let poll = |session: &mut &mut Session| {
                loop {
                    match session.decode_poll() {
                        Ok(None) => std::thread::yield_now(),
                        Ok(Some(token)) => return Ok(token),
                        Err(e) => return Err(e),
                    }
                }
            };
            all.iter_mut().map(poll).collect()
        }
    };
    let told = |(session, result): (&Session, emberlm::Result<u32>)| {
        let token = result.map_err(|e| e.status)?;
        let logprobs = session.logprobs().map(|l| {
            let all = std::iter::once((token, l.chosen)).chain(l.top.iter().copied());
            all.map(|(token, p)| (token, p.to_bits())).collect()
        });
        Ok((token, logprobs))
    };
    Ok(sessions.iter().zip(results).map(told).collect())
}

/// Sources of drafts and settings, by a session's place in its batch.
fn draft_in_batch(i: usize, session: &mut Session) {
    match i % 4 {
        0 => {
            let source = Spoiled::source(session, 10 * i as u64 % 100);
            session.set_draft_source(source, &ALWAYS).unwrap();
        }
        1 => session.set_ngram_drafts(1, &ALWAYS).unwrap(),
        2 => {
            let model = session.model().clone();
            session.set_model_drafts(&model, &ALWAYS).unwrap();
        }
        // Of models that have them.
        _ => drop(session.set_head_drafts(&ALWAYS)),
    }
}

fn sampling_in_batch(i: usize) -> Sampling {
    match i % 4 {
        0 => Sampling::GREEDY,
        1 => Sampling {
            seed: SAMPLED.seed + i as u64,
            ..SAMPLED
        },
        2 => Sampling {
            temperature: 0.8,
            repeat_penalty: 1.1,
            presence_penalty: 0.2,
            seed: 5,
            ..Sampling::GREEDY
        },
        _ => Sampling {
            temperature: 0.3,
            seed: 6,
            logprobs: 3,
            ..Sampling::GREEDY
        },
    }
}

/// Sessions of a batch, each beside one alone that drafts nothing.
struct Pairs<'a> {
    model: &'a Arc<Model>,
    plain: Vec<Session>,
    drafting: Vec<Session>,
    prepare: &'a dyn Fn(usize, &mut Session),
    random: Random,
    /// Results that were errors.
    failed: usize,
}

impl Pairs<'_> {
    fn pick(&mut self, below: usize) -> usize {
        self.random.bits() as usize % below
    }

    fn both(&mut self, at: usize, each: impl Fn(&mut Session)) {
        each(&mut self.plain[at]);
        each(&mut self.drafting[at]);
    }

    /// One batch, of which a session may have been interrupted, and be no further than before then.
    fn step(&mut self, started: bool, interrupted: Option<usize>, what: &str) {
        let results = match batch_step(&mut self.drafting, started) {
            Ok(results) => results,
            Err(e) => {
                assert_eq!(
                    (e.status, e.index),
                    (Status::Interrupted, interrupted),
                    "{what}"
                );
                self.failed += 1;
                return;
            }
        };
        for (i, result) in results.into_iter().enumerate() {
            match result {
                Err(status) if interrupted == Some(i) => {
                    assert_eq!(status, Status::Interrupted, "{what}, session {i}");
                    self.failed += 1;
                }
                result => {
                    let alone = decoded(&mut self.plain[i], 1);
                    assert_eq!(result.unwrap(), alone[0], "{what}, session {i}");
                }
            }
            assert_eq!(self.plain[i].tokens(), self.drafting[i].tokens(), "{what}");
        }
    }

    /// Something that is done to one of the sessions between two batches.
    fn act(&mut self, has_grammar: bool, what: &str) {
        let at = self.pick(self.plain.len());
        match self.pick(11) {
            0 => {
                let back = self.pick(12);
                let position = self.plain[at].position().saturating_sub(back).max(1);
                self.both(at, |session| session.rewind(position).unwrap());
            }
            1 => self.drafting[at] = self.drafting[at].fork().unwrap(),
            2 => {
                // Its call fails, and those of the others do not.
                self.drafting[at].interrupts().ask();
                let failed = self.failed;
                self.step(false, Some(at), what);
                assert_eq!(self.failed, failed + 1, "{what}");
            }
            3 => {
                // At some time of the pass, or behind it.
                let interrupts = self.drafting[at].interrupts().clone();
                let wait = std::time::Duration::from_micros(self.pick(2000) as u64);
                let interrupter = std::thread::spawn(move || {
                    std::thread::sleep(wait);
                    interrupts.ask();
                });
                let started = self.pick(2) == 0;
                self.step(started, Some(at), what);
                interrupter.join().unwrap();
                self.drafting[at].interrupts().clear();
            }
            4 => {
                let bytes = saved(&mut self.drafting[at], Kind::Everything);
                let options = RestoreOptions::default();
                self.drafting[at] = restored(self.model, &bytes, &options).unwrap();
                (self.prepare)(at, &mut self.drafting[at]);
            }
            5 => {
                let count = 1 + self.pick(4);
                let all = [&mut self.plain[at], &mut self.drafting[at]].map(|s| decoded(s, count));
                assert_eq!(all[0], all[1], "{what}");
            }
            6 => {
                let seed = self.pick(1000) as u64;
                let sampling = Sampling {
                    seed,
                    ..sampling_in_batch(seed as usize)
                };
                self.both(at, |session| session.set_sampling(sampling, None).unwrap());
            }
            7 => {
                // One takes back what has begun, before or behind its end.
                let mut all: Vec<&mut Session> = self.drafting.iter_mut().collect();
                Session::decode_batch_start(&mut all).unwrap();
                for (i, (plain, session)) in self.plain.iter_mut().zip(all).enumerate() {
                    if i == at {
                        session.rewind(plain.position()).unwrap();
                        continue;
                    }
                    let token = loop {
                        match session.decode_poll().unwrap() {
                            Some(token) => break token,
                            None => std::thread::yield_now(),
                        }
                    };
                    assert_eq!(token, plain.decode().unwrap(), "{what}, session {i}");
                }
            }
            8 => self.both(at, |session| session.prefill(&[7, 8, 9]).unwrap()),
            9 if has_grammar => {
                self.both(at, |session| {
                    let schema = r#"{"type":"object","properties":{"name":{"type":"string","maxLength":20},"role":{"enum":["baker","king"]}},"required":["name","role"]}"#;
                    let options = GrammarOptions::default();
                    let set = session.set_grammar(GrammarKind::JsonSchema, schema, &options);
                    set.unwrap();
                });
            }
            10 if has_grammar => self.both(at, |session| session.clear_grammar().unwrap()),
            _ => {}
        }
    }
}

/// Batches of sessions with different sources and settings. Returns how many drafts were verified, and how many were right.
pub fn batches(
    model: &Arc<Model>,
    counts: (usize, usize),
    seed: u64,
    has_grammar: bool,
) -> (u64, u64) {
    batches_with(model, counts, seed, has_grammar, &draft_in_batch)
}

/// The same with sources of drafts that `prepare` gives the sessions, by their number.
pub fn batches_with(
    model: &Arc<Model>,
    (rounds, members): (usize, usize),
    seed: u64,
    has_grammar: bool,
    prepare: &dyn Fn(usize, &mut Session),
) -> (u64, u64) {
    let created = || (0..members).map(|_| session(model)).collect();
    let mut pairs = Pairs {
        model,
        plain: created(),
        drafting: created(),
        prepare,
        random: Random::new(seed, "batches"),
        failed: 0,
    };
    for i in 0..members {
        pairs.both(i, |session| {
            session.set_sampling(sampling_in_batch(i), None).unwrap();
            session.prefill(&[1, 20 + i as u32, 30, 40]).unwrap();
        });
        prepare(i, &mut pairs.drafting[i]);
    }
    let (mut drafted, mut accepted) = (0, 0);
    for round in 0..rounds {
        let what = format!("seed {seed}, round {round}");
        pairs.act(has_grammar, &what);
        for i in 0..members {
            if pairs.plain[i].context() - pairs.plain[i].position() < 10 {
                pairs.both(i, |session| session.rewind(2).unwrap());
            }
        }
        let before = counts(&pairs.drafting);
        let started = pairs.pick(2) == 0;
        pairs.step(started, None, &what);
        let after = counts(&pairs.drafting);
        drafted += after.0 - before.0;
        accepted += after.1 - before.1;
        if round % 16 == 15 || round + 1 == rounds {
            let n_vocab = model.details().n_vocab;
            for i in 0..members {
                let of = |session: &mut Session| {
                    let mut out = vec![0.0f32; n_vocab];
                    session.logits(&mut out).unwrap();
                    out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                };
                let all = [&mut pairs.plain[i], &mut pairs.drafting[i]].map(of);
                assert!(all[0] == all[1], "{what}, session {i}: logits");
            }
        }
    }
    (drafted, accepted)
}

/// Drafts of sessions that were verified, and that were right.
fn counts(sessions: &[Session]) -> (u64, u64) {
    let stats = sessions.iter().filter_map(|s| s.speculation());
    let stats = stats.map(|s| (s.stats.drafted, s.stats.accepted));
    stats.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

#[test]
fn batches_are_the_same_with_every_source() {
    let hamlet = hamlet();
    for (members, rounds) in [(2, 150), (5, 100), (9, 60), (32, 30)] {
        let (drafted, accepted) = batches(&hamlet, (rounds, members), members as u64, true);
        println!("{members} sessions: {accepted} of {drafted}");
        // A full batch has rows for drafts where other sessions are ahead.
        assert!(accepted > 0 && drafted > accepted || members == 32);
    }
}

#[test]
fn batches_of_windows_experts_and_latents_are_the_same_with_drafts() {
    let names = WINDOWED
        .iter()
        .chain(&["deepseek_v2", "glm4_moe_lite", "gemma4", "gemma4_e"])
        .chain(&["qwen3", "phi3", "mixtral", "qwen3moe", "cohere2"])
        .chain(RECURRENT);
    for (seed, name) in names.enumerate() {
        let (drafted, accepted) = batches(&family(name), (60, 4), 50 + seed as u64, false);
        assert!(accepted > 0 && drafted > accepted, "{name}");
    }
}

#[test]
fn batches_whose_rings_went_round_are_the_same_with_drafts() {
    for &name in WINDOWED {
        let dir = TempDir::new(&format!("batch-rings-{name}"));
        let bytes = crate::common::families::with_context(name, 4096).bytes();
        let model = load(&dir.file("model.gguf", &bytes));
        let prompt: Vec<u32> = (0..CONTEXT as u32 - 60).map(|i| i % 50).collect();
        let mut pairs: Vec<[Session; 2]> =
            (0..3).map(|_| [session(&model), session(&model)]).collect();
        for (i, [plain, drafting]) in pairs.iter_mut().enumerate() {
            for session in [&mut *plain, &mut *drafting] {
                session.set_sampling(sampling_in_batch(i), None).unwrap();
                session.prefill(&prompt[i..]).unwrap();
            }
            draft_in_batch(2 * i, drafting);
        }
        for round in 0..45 {
            let mut all: Vec<&mut Session> = pairs.iter_mut().map(|[_, s]| s).collect();
            let chosen = Session::decode_batch(&mut all).unwrap();
            for (i, ([plain, _], token)) in pairs.iter_mut().zip(chosen).enumerate() {
                let expected = plain.decode().unwrap();
                assert_eq!(
                    token.unwrap(),
                    expected,
                    "{name}, round {round}, session {i}"
                );
            }
        }
    }
}
