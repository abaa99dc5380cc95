//! Sessions with drafts beside sessions without: the same tokens, log-probabilities and logits, whatever a source guesses. On any
//! device.

use super::states::{random_life_of, restored, saved, session};
use super::tiny::Random;
use emberlm::engine::sampling::Sampling;
use emberlm::engine::speculate::{DraftContext, DraftOptions, DraftSource, ModelDrafts};
use emberlm::engine::state::{Kind, RestoreOptions};
use emberlm::engine::{Model, Session};
use emberlm::{Result, Status};
use std::sync::Arc;

/// As many drafts as the source has, up to six.
pub const ALWAYS: DraftOptions = DraftOptions {
    most: 6,
    always: true,
};

/// Texts that are not greedy.
pub const SAMPLED: Sampling = Sampling {
    temperature: 0.9,
    top_p: 0.95,
    seed: 11,
    logprobs: 2,
    ..Sampling::GREEDY
};

/// What the model itself would choose, each token spoiled with a probability.
pub struct Spoiled {
    drafts: ModelDrafts,
    /// Of 100.
    wrong: u64,
    random: Random,
    n_vocab: u32,
    is_quick: bool,
}

impl Spoiled {
    /// One that started decodes ask at once.
    pub fn source(target: &Session, wrong: u64) -> Box<dyn DraftSource> {
        Spoiled::boxed(target, wrong, true)
    }

    /// One that started decodes ask in the background.
    pub fn slow(target: &Session, wrong: u64) -> Box<dyn DraftSource> {
        Spoiled::boxed(target, wrong, false)
    }

    fn boxed(target: &Session, wrong: u64, is_quick: bool) -> Box<dyn DraftSource> {
        Box::new(Spoiled {
            is_quick,
            drafts: ModelDrafts::new(target, target.model()).unwrap(),
            wrong,
            random: Random::new(wrong, "spoiled"),
            n_vocab: target.model().details().n_vocab as u32,
        })
    }
}

impl DraftSource for Spoiled {
    fn is_quick(&self) -> bool {
        self.is_quick
    }

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
        Ok(Spoiled::boxed(fork, self.wrong, self.is_quick))
    }
}

/// Random lives with drafts, right and wrong ones, and of the context.
pub fn lives(model: &Arc<Model>, seed: u64, wrong: u64, has_grammar: bool) {
    random_life_of(model, seed, 60, has_grammar, &mut |session| {
        let source = Spoiled::source(session, wrong);
        session.set_draft_source(source, &ALWAYS).unwrap();
    });
    random_life_of(model, 300 + seed, 60, has_grammar, &mut |session| {
        let source = Spoiled::slow(session, wrong);
        session.set_draft_source(source, &ALWAYS).unwrap();
    });
    random_life_of(model, 100 + seed, 60, has_grammar, &mut |session| {
        session.set_ngram_drafts(1, &ALWAYS).unwrap();
    });
    random_life_of(model, 200 + seed, 60, has_grammar, &mut |session| {
        session
            .set_ngram_drafts(0, &DraftOptions::default())
            .unwrap();
    });
}

/// Sets drafts of the context.
pub fn with_ngrams(session: &mut Session) {
    session.set_ngram_drafts(1, &ALWAYS).unwrap();
}

/// Sets drafts of which a fifth is wrong.
pub fn with_spoiled(session: &mut Session) {
    let source = Spoiled::source(session, 20);
    session.set_draft_source(source, &ALWAYS).unwrap();
}

/// Sets drafts of the session's own model.
pub fn with_own_model(session: &mut Session) {
    let model = session.model().clone();
    session.set_model_drafts(&model, &ALWAYS).unwrap();
}

/// Texts of models with random weights are the same with every source.
pub fn interrupted_by_every_source(models: &[Arc<Model>], sampling: Sampling, count: usize) {
    for model in models {
        // A sampled text of random weights hardly repeats itself, so n-grams may be wrong throughout.
        interrupted_text(model, sampling, count, &with_ngrams);
        for source in [&with_spoiled as &dyn Fn(&mut Session), &with_own_model] {
            assert!(interrupted_text(model, sampling, count, source) > 0);
        }
    }
}

/// Started decodes that are dropped on the way, by a session with drafts of a source and one without. Returns how many drafts were
/// right.
pub fn dropped(
    create: &dyn Fn() -> Session,
    source: &dyn Fn(&Session, u64) -> Box<dyn DraftSource>,
) -> u64 {
    let (mut plain, mut drafting) = (create(), create());
    let source = source(&drafting, 15);
    drafting.set_draft_source(source, &ALWAYS).unwrap();
    let mut random = Random::new(5, "dropped");
    for session in [&mut plain, &mut drafting] {
        session.prefill(&[1, 20, 30, 40]).unwrap();
    }
    for round in 0..60 {
        let position = plain.position();
        let (started, polled) = (1 + random.bits() as usize % 12, random.bits() as usize % 12);
        let back = random.bits() as usize % 3;
        let all = [&mut plain, &mut drafting].map(|session| {
            let mut tokens = Vec::new();
            session.decode_start(started).unwrap();
            while tokens.len() < polled.min(started) {
                tokens.extend(session.decode_poll().unwrap());
            }
            session
                .rewind(session.position() - back.min(tokens.len()))
                .unwrap();
            tokens.push(session.decode().unwrap());
            tokens
        });
        assert_eq!(all[0], all[1], "round {round} from {position} on");
        if position > 900 {
            plain.rewind(40).unwrap();
            drafting.rewind(40).unwrap();
        }
    }
    let stats = drafting.speculation().unwrap().stats;
    assert!(stats.drafted > stats.accepted, "{stats:?}");
    stats.accepted
}

/// Stories with the drafts of a smaller model that was trained on the same text, greedy and sampled.
pub fn of_a_trained_model(create: &dyn Fn() -> Session, drafts: &Arc<Model>) {
    for temperature in [0.0, 0.7] {
        let (mut plain, mut drafting) = (create(), create());
        drafting.set_model_drafts(drafts, &ALWAYS).unwrap();
        let all = [&mut plain, &mut drafting].map(|session| {
            let sampling = Sampling {
                temperature,
                seed: 3,
                ..Sampling::GREEDY
            };
            session.set_sampling(sampling, None).unwrap();
            let mut tokens = vec![0];
            let text = "Once upon a time, Mira the baker lived in Oakvale.";
            let tokenizer = session.model().tokenizer().unwrap();
            tokenizer
                .encode(text, Default::default(), &mut tokens)
                .unwrap();
            session.prefill(&tokens).unwrap();
            decoded(session, 400)
        });
        assert!(all[0] == all[1], "temperature {temperature}");
        let stats = drafting.speculation().unwrap().stats;
        println!("temperature {temperature}: {stats:?}");
        assert!(10 * stats.accepted > 4 * stats.drafted, "{stats:?}");
    }
}

/// A token, and the bits of the log-probabilities of it and of the most probable ones.
pub type Decoded = (u32, Option<Vec<(u32, u32)>>);

/// Tokens and log-probabilities of `count` decodes.
pub fn decoded(session: &mut Session, count: usize) -> Vec<Decoded> {
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

/// Texts of `count` tokens, greedy and sampled, by a model that was trained on text, in sessions that `create` makes.
pub fn long_texts(create: &dyn Fn() -> Session, count: usize) {
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
        let (mut plain, mut ngrams, mut spoiled) = (create(), create(), create());
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

/// Tokens of such texts: `quick` of them unless slow tests were asked for, perhaps with a number.
pub fn long_count(quick: usize) -> usize {
    match std::env::var("EMBERLM_SLOW_TESTS") {
        Ok(asked) => match asked.parse() {
            Ok(count) if count > 1 => count,
            _ => 10_000,
        },
        Err(_) => quick,
    }
}

/// Decodes `count` tokens with and without drafts, and returns how many drafts were right. Rewinds, forks, saves and
/// restores interrupt the text.
pub fn interrupted_text(
    model: &Arc<Model>,
    sampling: Sampling,
    count: usize,
    prepare: &dyn Fn(&mut Session),
) -> u64 {
    interrupted_texts(model, sampling, count, prepare, false)
}

/// The same. With `alike`, the session without drafts is forked, saved and restored as well: a restored one has no marks, so where
/// layers are recurrent, others of its positions are evaluated again as parts of a prompt.
pub fn interrupted_texts(
    model: &Arc<Model>,
    sampling: Sampling,
    count: usize,
    prepare: &dyn Fn(&mut Session),
    alike: bool,
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
            1 => {
                drafting = drafting.fork().unwrap();
                if alike {
                    plain = plain.fork().unwrap();
                }
            }
            2 => {
                let again = |session: &mut Session| {
                    let bytes = saved(session, Kind::Everything);
                    restored(model, &bytes, &RestoreOptions::default()).unwrap()
                };
                drafting = again(&mut drafting);
                prepare(&mut drafting);
                if alike {
                    plain = again(&mut plain);
                }
            }
            _ => {}
        }
    }
    assert_eq!(plain.tokens(), drafting.tokens());
    accepted
}

/// Interrupts decodes of `s`, which drafts by its own model: nothing is lost beside `plain`, which does not.
pub fn interrupted(mut plain: Session, mut s: Session) {
    let model = s.model().clone();
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
