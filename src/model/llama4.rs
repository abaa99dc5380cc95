//! `llama4`: Llama 4 Scout and Maverick (text). Most layers see chunks of the context and rotate; the others see all of it, do not
//! rotate, and have queries that grow with their position. A token goes to experts by what its sigmoid makes of their input, and to
//! one that is for all.

use super::decoder::{Decoder, Windows};
use super::experts::{Defaults, Mixture, softmax};
use super::{FeedForward, Network, Norm, NormKind, RopePairing, Scoring, Temperature};
use crate::error::Result;
use crate::format::ModelFile;

const CHUNK: &str = "attention.sliding_window";
const NORMED: &str = "attention.qk_norm";
/// What files leave out: positions of a chunk, as of a step of the temperature; every so many-th layer sees all; experts of models
/// without norms of queries and keys.
const USUAL_CHUNK: usize = 8192;
const ALL_EVERY: usize = 4;
const USUAL_SCALE: f32 = 0.1;
const WITHOUT_NORMS: usize = 128;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "llama4", NormKind::Rms)?;
    let source = &d.source;
    let usual = softmax(&d)?;
    let experts = Mixture::new(
        &d,
        Defaults {
            scoring: Scoring::Sigmoid,
            normalize: false,
            shared_ff: Some(usual.n_ff),
            ..usual
        },
    )?;
    let rope = d.rope(RopePairing::Interleaved)?;
    let chunks = chunks(&d)?;
    let normed = match source.find::<bool>(NORMED)? {
        Some(normed) => normed,
        None => source.size("expert_count")? != WITHOUT_NORMS,
    };
    let norm = Norm::plain(NormKind::Rms, "a norm without weights", d.head_dim, d.eps)?;
    let temperature = temperature(&d)?;
    d.network(|i| {
        let mut attention = d.attention(i, chunks[i].is_some().then_some(&rope))?;
        match chunks[i] {
            Some(chunk) => {
                // A chunk that no context exceeds counts as none.
                attention.chunk = (chunk < d.context_length).then_some(chunk);
                if normed {
                    attention.q_norm = Some(norm.clone());
                    attention.k_norm = Some(norm.clone());
                    attention.norm_after_rope = true;
                }
            }
            None => attention.temperature = temperature,
        }
        let mut feed_forward = experts.or_gated(&d, i)?;
        if let FeedForward::Experts(experts) = &mut feed_forward {
            experts.weighs_inputs = true;
        }
        d.pre_norm_block(i, attention, feed_forward)
    })
}

/// Positions of a chunk in each layer that has chunks, and rotates.
fn chunks(d: &Decoder) -> Result<Vec<Option<usize>>> {
    match d.source.find::<u64>(CHUNK)? {
        None => {
            let has = |layer: usize| !(layer + 1).is_multiple_of(ALL_EVERY);
            Ok((0..d.n_layers)
                .map(|i| has(i).then_some(USUAL_CHUNK))
                .collect())
        }
        // All layers rotate, and see everything.
        Some(0) => Ok(vec![Some(usize::MAX); d.n_layers]),
        Some(_) => d.windows(Windows::ButEvery(ALL_EVERY)),
    }
}

/// The factor on queries that are not rotated; a scale of 0 stands for none.
fn temperature(d: &Decoder) -> Result<Option<Temperature>> {
    const SCALE: &str = "attention.temperature_scale";
    let source = &d.source;
    let scale = match source.find::<f32>(SCALE)? {
        None => USUAL_SCALE,
        Some(0.0) => return Ok(None),
        Some(_) => source.positive(SCALE)?,
    };
    let length = source.find_size("attention.temperature_length")?;
    Ok(Some(Temperature {
        scale,
        length: length.unwrap_or(USUAL_CHUNK) as f32,
        offset: 1,
    }))
}
