//! `granite` and `granitemoe`: Granite 3 and those of 4 with attention alone, with factors on
//! embedding, scores, residual stream and logits.

use super::decoder::Decoder;
use super::experts::{Defaults, Mixture, shared_ff, softmax};
use super::{Activation, Block, FeedForward, Network, NormKind, RopePairing, Scoring};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "granite", NormKind::Rms)?;
    d.refuse_experts()?;
    network(&d, |i| d.gated(i, Activation::Silu))
}

/// The ones with experts, and perhaps a shared one.
pub(super) fn experts(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "granitemoe", NormKind::Rms)?;
    let experts = Defaults {
        scoring: Scoring::SoftmaxOfChosen,
        shared_ff: shared_ff(&d)?,
        ..softmax(&d)?
    };
    let experts = Mixture::new(&d, experts)?;
    network(&d, |i| experts.layer(&d, i))
}

fn network(d: &Decoder, feed_forward: impl Fn(usize) -> Result<FeedForward>) -> Result<Network> {
    // The key that says whether rope was trained with scaling says here whether there is rope.
    let rope = match d.source.find::<bool>("rope.scaling.finetuned")? {
        Some(false) => None,
        _ => Some(d.rope(RopePairing::Interleaved)?),
    };
    let scale = |key: &str| Ok(d.source.find_positive(key)?.unwrap_or(1.0));
    let residual_scale = scale("residual_scale")?;
    let network = d.network(|i| {
        let attention = d.attention(i, rope.as_ref())?;
        Ok(Block {
            residual_scale,
            ..d.pre_norm_block(i, attention, feed_forward(i)?)?
        })
    })?;
    Ok(Network {
        embedding_scale: scale("embedding_scale")?,
        logit_scale: 1.0 / d.source.positive("logit_scale")?,
        ..network
    })
}
