//! Vectors of texts.

use crate::measure::random_tokens;
use crate::stats::Samples;
use emberlm::Result;
use emberlm::engine::{Embedder, EmbedderOptions, Model};
use std::sync::Arc;
use std::time::Instant;

/// Tokens of the texts of a call, if one is not longer.
const CALL: usize = 1 << 17;

/// Texts of one length.
pub struct Embedded {
    /// Tokens of each.
    pub tokens: usize,
    /// Texts of a call.
    pub texts: usize,
    /// Tokens that are evaluated together.
    pub batch_tokens: usize,
    /// Bytes of the embedder.
    pub bytes: u64,
    /// Rate.
    pub tokens_per_s: Samples,
}

/// Measures calls with texts of so many tokens, evaluated so many together, 0 for the library's choice.
pub fn measure(
    model: &Arc<Model>,
    tokens: usize,
    batch_tokens: usize,
    reps: usize,
) -> Result<Embedded> {
    let options = EmbedderOptions {
        max_tokens: tokens,
        batch_tokens: match batch_tokens {
            0 => 0,
            n => n.max(tokens),
        },
        ..EmbedderOptions::default()
    };
    let mut embedder = Embedder::create(model.clone(), options)?;
    let count = (CALL / tokens).max(1);
    let ids = random_tokens(count * tokens, model.details().n_vocab);
    let texts = embedder.given(&ids, &vec![tokens; count])?;
    let mut rates = Vec::new();
    for rep in 0..=reps {
        let start = Instant::now();
        embedder.run(&texts)?;
        // The first one brings everything where it is needed.
        if rep > 0 {
            rates.push(ids.len() as f64 / start.elapsed().as_secs_f64());
        }
    }
    let details = embedder.details();
    Ok(Embedded {
        tokens,
        texts: count,
        batch_tokens: details.batch_tokens,
        bytes: details.bytes,
        tokens_per_s: Samples::new(rates),
    })
}
