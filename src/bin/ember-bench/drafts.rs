//! Decodes with drafts: of a source that is right as often as one likes, of the context, or of a smaller model.

use crate::args::Drafts;
use crate::random::Random;
use crate::stats::Samples;
use emberlm::backend::LoadOptions;
use emberlm::engine::speculate::{DraftContext, DraftOptions, DraftSource, SpeculationStats};
use emberlm::engine::{Model, Session};
use std::sync::Arc;
use std::time::Instant;

/// Decodes with the drafts of one source.
pub struct Drafted {
    /// The source, as it was asked for.
    pub source: String,
    /// Rate without drafts, measured between those with.
    pub plain: Samples,
    /// Rate with drafts.
    pub tokens_per_s: Samples,
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
    let device = session.model().details().device;
    let mut model = None;
    if let Drafts::Model(path) = drafts {
        let options = LoadOptions::default();
        model = Some(Arc::new(Model::load(path, device, &options, &mut |_| {
            Ok(())
        })?));
    }
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
    let options = DraftOptions::default();
    let (mut plain, mut with) = (Vec::new(), Vec::new());
    let mut stats = SpeculationStats::default();
    for rep in 0..reps {
        plain.push(rate(session)?);
        match drafts {
            Drafts::Right(right, count) => {
                let source = Known {
                    tokens: known.clone(),
                    right: *right,
                    random: Random::new(rep as u64),
                };
                let options = DraftOptions {
                    most: count.unwrap_or(0),
                    always: count.is_some(),
                };
                session.set_draft_source(Box::new(source), &options)?;
            }
            Drafts::Ngram => session.set_ngram_drafts(0, &options)?,
            Drafts::Model(_) => {
                if let Some(model) = &model {
                    session.set_model_drafts(model, &options)?;
                }
            }
        }
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
        plain: Samples::new(plain),
        tokens_per_s: Samples::new(with),
        step_ms,
        stats,
    })
}
