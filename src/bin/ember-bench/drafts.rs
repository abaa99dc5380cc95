//! Decodes with drafts: of a source that is right as often as one likes, of the context, of the model's own heads, or of a smaller
//! model.

use crate::args::Drafts;
use crate::random::Random;
use crate::stats::Samples;
use emberlm::backend::LoadOptions;
use emberlm::engine::speculate::{DraftContext, DraftOptions, DraftSource, SpeculationStats};
use emberlm::engine::{Model, Session};
use emberlm::text::EncodeOptions;
use emberlm::{Error, Status};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Decodes with the drafts of one source.
pub struct Drafted {
    /// The source, as it was asked for.
    pub source: String,
    /// Sessions that decode together.
    pub sessions: usize,
    /// Rate without drafts, measured between those with.
    pub plain: Samples,
    /// Rate with drafts.
    pub tokens_per_s: Samples,
    /// The middle one of the ratios of both, each of measurements that were made one beside the other.
    pub ratio: f64,
    /// Milliseconds of a step with drafts, of the runs in which every step had some.
    pub step_ms: Option<f64>,
    /// What the drafts came to in the last repetition.
    pub stats: SpeculationStats,
}

/// Knows what comes, and spoils it as often as it was told to.
struct Known {
    tokens: Arc<Vec<u32>>,
    right: f64,
    random: Random,
}

impl DraftSource for Known {
    fn is_quick(&self) -> bool {
        true
    }

    fn look(&mut self, context: &DraftContext<'_>) -> emberlm::Result<Option<usize>> {
        Ok((context.tokens.len() < self.tokens.len()).then_some(0))
    }

    fn draft(&mut self, context: &DraftContext<'_>, drafts: &mut [u32]) -> emberlm::Result<usize> {
        let rest = &self.tokens[context.tokens.len()..];
        let count = rest.len().min(drafts.len());
        for (draft, token) in drafts.iter_mut().zip(rest) {
            let draw = (self.random.bits() >> 11) as f64 / (1u64 << 53) as f64;
            // Another one, whichever: ids of 0 and 1 are in every vocabulary.
            *draft = if draw < self.right {
                *token
            } else {
                u32::from(*token == 0)
            };
        }
        Ok(count)
    }

    fn fork(&mut self, _: &Session) -> emberlm::Result<Box<dyn DraftSource>> {
        Ok(Box::new(Known {
            tokens: self.tokens.clone(),
            right: self.right,
            random: Random::new(0),
        }))
    }
}

/// Rates of `generate` decodes at the end of the session's context, which it is rewound to, with and without drafts in turns.
pub fn measure(
    session: &mut Session,
    drafts: &Drafts,
    generate: usize,
    reps: usize,
) -> emberlm::Result<Drafted> {
    let depth = session.position();
    let model = model(session, drafts)?;
    let mut step_ms = None;
    let rate = |session: &mut Session| -> emberlm::Result<f64> {
        session.rewind(depth)?;
        let start = Instant::now();
        for _ in 0..generate {
            session.decode()?;
        }
        Ok(generate as f64 / start.elapsed().as_secs_f64())
    };
    rate(session)?;
    let known = Arc::new(session.tokens().to_vec());
    let (mut plain, mut with) = (Vec::new(), Vec::new());
    let mut stats = SpeculationStats::default();
    for rep in 0..reps {
        plain.push(rate(session)?);
        set(session, drafts, model.as_ref(), &known, rep)?;
        // The first run finds out what steps cost.
        rate(session)?;
        let before = session.speculation().map_or(stats, |s| s.stats);
        with.push(rate(session)?);
        if let Some(s) = session.speculation() {
            stats = SpeculationStats {
                steps: s.stats.steps - before.steps,
                drafted: s.stats.drafted - before.drafted,
                accepted: s.stats.accepted - before.accepted,
            };
            // Each step has a token that no draft stands for.
            if generate as u64 <= stats.steps + stats.accepted
                && let Some(rate) = with.last()
            {
                step_ms = Some(generate as f64 / rate * 1e3 / stats.steps as f64);
            }
        }
        session.clear_drafts()?;
    }
    Ok(Drafted {
        source: drafts.to_string(),
        sessions: 1,
        ratio: ratio(&with, &plain),
        plain: Samples::new(plain),
        tokens_per_s: Samples::new(with),
        step_ms,
        stats,
    })
}

/// The same of sessions that decode together, and of as many beside them that draft; the rates are those of all.
pub fn measure_batch(
    [plain, drafting]: &mut [Vec<Session>; 2],
    drafts: &Drafts,
    generate: usize,
    reps: usize,
) -> emberlm::Result<Drafted> {
    let rate = |sessions: &mut [Session]| -> emberlm::Result<f64> {
        let mut together: Vec<&mut Session> = sessions.iter_mut().collect();
        let before = together.first().map_or(0, |s| s.position());
        let start = Instant::now();
        for _ in 0..generate {
            let tokens = Session::decode_batch(&mut together)?;
            tokens.into_iter().try_for_each(|token| token.map(drop))?;
        }
        let seconds = start.elapsed().as_secs_f64();
        for session in &mut together {
            session.rewind(before)?;
        }
        Ok((together.len() * generate) as f64 / seconds)
    };
    let model = match drafting.first() {
        Some(session) => model(session, drafts)?,
        None => None,
    };
    for (i, session) in drafting.iter_mut().enumerate() {
        let depth = session.position();
        (0..generate).try_for_each(|_| session.decode().map(drop))?;
        let known = Arc::new(session.tokens().to_vec());
        session.rewind(depth)?;
        set(session, drafts, model.as_ref(), &known, i)?;
    }
    // The first runs find out what passes cost.
    rate(plain)?;
    rate(drafting)?;
    let of_all = |sessions: &[Session]| {
        let mut sum = SpeculationStats::default();
        for info in sessions.iter().filter_map(|s| s.speculation()) {
            sum.steps += info.stats.steps;
            sum.drafted += info.stats.drafted;
            sum.accepted += info.stats.accepted;
        }
        sum
    };
    let before = of_all(drafting);
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for rep in 0..reps {
        // The order changes, so that neither gains by it.
        if rep % 2 == 0 {
            without.push(rate(plain)?);
        }
        with.push(rate(drafting)?);
        if rep % 2 == 1 {
            without.push(rate(plain)?);
        }
    }
    let after = of_all(drafting);
    Ok(Drafted {
        source: drafts.to_string(),
        sessions: drafting.len(),
        ratio: ratio(&with, &without),
        plain: Samples::new(without),
        tokens_per_s: Samples::new(with),
        step_ms: None,
        stats: SpeculationStats {
            steps: after.steps - before.steps,
            drafted: after.drafted - before.drafted,
            accepted: after.accepted - before.accepted,
        },
    })
}

/// The middle one of the ratios of measurements that were made one beside the other.
fn ratio(with: &[f64], without: &[f64]) -> f64 {
    let ratios = with
        .iter()
        .zip(without)
        .map(|(with, without)| with / without);
    Samples::new(ratios.collect()).median()
}

/// The draft model, if that is the source.
fn model(session: &Session, drafts: &Drafts) -> emberlm::Result<Option<Arc<Model>>> {
    let Drafts::Model(path) = drafts else {
        return Ok(None);
    };
    let (device, options) = (session.model().details().device, LoadOptions::default());
    let model = Model::load(path, device, &options, &mut |_| Ok(()))?;
    Ok(Some(Arc::new(model)))
}

/// Lets decodes verify drafts of a source. `known` is what comes, for one that knows it.
fn set(
    session: &mut Session,
    drafts: &Drafts,
    model: Option<&Arc<Model>>,
    known: &Arc<Vec<u32>>,
    rep: usize,
) -> emberlm::Result<()> {
    let options = DraftOptions::default();
    match (drafts, model) {
        (Drafts::Right(right, count), _) => {
            let source = Known {
                tokens: known.clone(),
                right: *right,
                random: Random::new(rep as u64),
            };
            let options = DraftOptions {
                most: count.unwrap_or(0),
                always: count.is_some(),
            };
            session.set_draft_source(Box::new(source), &options)
        }
        (Drafts::Model(_), Some(model)) => session.set_model_drafts(model, &options),
        (Drafts::Heads, _) => session.set_head_drafts(&options),
        _ => session.set_ngram_drafts(0, &options),
    }
}

/// The most tokens of an answer.
const LONGEST_ANSWER: usize = 100;

/// Rates of the decodes that answer the questions of a file, by their kind, with drafts and without. None for a source that would
/// have to know the answers.
pub fn measure_tasks(
    session: &mut Session,
    drafts: &Drafts,
    path: &Path,
    reps: usize,
) -> emberlm::Result<Vec<Drafted>> {
    if matches!(drafts, Drafts::Right(..)) {
        return Ok(Vec::new());
    }
    let mut kinds = BTreeMap::<String, Vec<Vec<u32>>>::new();
    for (kind, prompt) in questions(path)? {
        let mut tokens = Vec::new();
        let options = EncodeOptions {
            add_special: true,
            parse_special: true,
        };
        let tokenizer = session.model().tokenizer()?;
        tokenizer.encode(&prompt, options, &mut tokens)?;
        kinds.entry(kind).or_default().push(tokens);
    }
    let (model, known) = (model(session, drafts)?, Arc::default());
    let mut all = Vec::new();
    for (kind, prompts) in kinds {
        let (mut plain, mut with) = (Vec::new(), Vec::new());
        let mut stats = SpeculationStats::default();
        for rep in 0..reps {
            plain.push(answers(session, &prompts)?);
            set(session, drafts, model.as_ref(), &known, rep)?;
            with.push(answers(session, &prompts)?);
            if let Some(s) = session.speculation() {
                stats = s.stats;
            }
            session.clear_drafts()?;
        }
        all.push(Drafted {
            source: format!("{drafts} {kind}"),
            sessions: 1,
            ratio: ratio(&with, &plain),
            plain: Samples::new(plain),
            tokens_per_s: Samples::new(with),
            step_ms: None,
            stats,
        });
    }
    session.rewind(0)?;
    Ok(all)
}

/// Tokens a second of the decodes that answer.
fn answers(session: &mut Session, prompts: &[Vec<u32>]) -> emberlm::Result<f64> {
    let (mut seconds, mut tokens) = (0.0, 0);
    let model = session.model().clone();
    for prompt in prompts {
        session.rewind(0)?;
        session.prefill(prompt)?;
        let start = Instant::now();
        for _ in 0..LONGEST_ANSWER {
            tokens += 1;
            if model.tokenizer()?.is_end(session.decode()?) {
                break;
            }
        }
        seconds += start.elapsed().as_secs_f64();
    }
    Ok(f64::from(tokens) / seconds)
}

/// The kinds of a file's questions, and their prompts.
fn questions(path: &Path) -> emberlm::Result<Vec<(String, String)>> {
    let wrong = |message: String| {
        Error::new(
            Status::InvalidArgument,
            format!("{}: {message}", path.display()),
        )
    };
    let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
    let question = |line: &str| {
        let fields: Value = serde_json::from_str(line).map_err(|e| wrong(e.to_string()))?;
        let text = |key: &str| {
            let text = fields[key].as_str();
            text.ok_or_else(|| wrong(format!("a line without {key:?}")))
        };
        let system = match text("system")? {
            "" => String::new(),
            facts => format!("<|system|>\n{facts}<|end|>\n"),
        };
        let prompt = format!(
            "{system}<|user|>\n{}<|end|>\n<|assistant|>\n",
            text("user")?
        );
        Ok((text("kind")?.to_owned(), prompt))
    };
    text.lines().map(question).collect()
}
