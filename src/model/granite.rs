//! `granite`, `granitemoe` and `granitehybrid`: Granite 3 and 4, with factors on embedding, scores,
//! residual stream and logits. Layers of the last one are Mamba 2 or attention.

use super::decoder::Decoder;
use super::experts::{Defaults, Mixture, shared_ff, softmax};
use super::hybrid::{attending, kv_heads};
use super::mamba2;
use super::{Activation, Block, FeedForward, Mixer, Network, NormKind, Rope, RopePairing, Scoring};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "granite", NormKind::Rms)?;
    d.refuse_experts()?;
    let rope = rope(&d)?;
    let mixer = |i| Ok(d.attention(i, rope.as_ref())?.into());
    network(&d, mixer, |i| d.gated(i, Activation::Silu))
}

/// The ones with experts, and perhaps a shared one.
pub(super) fn experts(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "granitemoe", NormKind::Rms)?;
    let experts = Mixture::new(&d, defaults(&d)?)?;
    let rope = rope(&d)?;
    let mixer = |i| Ok(d.attention(i, rope.as_ref())?.into());
    network(&d, mixer, |i| experts.layer(&d, i))
}

/// The ones with recurrent layers, and perhaps experts.
pub(super) fn hybrid(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read_with(file, "granitehybrid", NormKind::Rms, kv_heads)?;
    let experts = Mixture::find(&d, defaults(&d)?)?;
    let rope = rope(&d)?;
    let attends = attending(&d.source, d.n_layers, "ssm_in")?;
    let sizes = match attends.contains(&false) {
        true => Some(mamba2::Sizes::read(&d)?),
        false => None,
    };
    let mixer = |i: usize| match &sizes {
        Some(sizes) if !attends[i] => Ok(sizes.layer(&d, i)?.into()),
        _ => Ok(d.attention(i, rope.as_ref())?.into()),
    };
    network(&d, mixer, |i| match &experts {
        Some(experts) => experts.layer(&d, i),
        None => d.gated(i, Activation::Silu),
    })
}

fn defaults(d: &Decoder) -> Result<Defaults> {
    Ok(Defaults {
        scoring: Scoring::SoftmaxOfChosen,
        shared_ff: shared_ff(d)?,
        ..softmax(d)?
    })
}

/// The key that says whether rope was trained with scaling says here whether there is rope.
fn rope(d: &Decoder) -> Result<Option<Rope>> {
    match d.source.find::<bool>("rope.scaling.finetuned")? {
        Some(false) => Ok(None),
        _ => d.rope(RopePairing::Interleaved).map(Some),
    }
}

fn network(
    d: &Decoder,
    mixer: impl Fn(usize) -> Result<Mixer>,
    feed_forward: impl Fn(usize) -> Result<FeedForward>,
) -> Result<Network> {
    let scale = |key: &str| Ok(d.source.find_positive(key)?.unwrap_or(1.0));
    let residual_scale = scale("residual_scale")?;
    let network = d.network(|i| {
        Ok(Block {
            residual_scale,
            ..d.pre_norm_block(i, mixer(i)?, feed_forward(i)?)?
        })
    })?;
    Ok(Network {
        embedding_scale: scale("embedding_scale")?,
        logit_scale: 1.0 / d.source.positive("logit_scale")?,
        ..network
    })
}
