//! `granite`, `granitemoe`, `granite_swa` and `granitehybrid`: Granite 3 and 4, with factors on embedding, scores,
//! residual stream and logits. The third one has sinks, windows, and perhaps layers that do not rotate. Layers of the last one
//! are Mamba 2 or attention, as are those of Bamba, whose files are of that architecture and have no factors. `minicpm`: MiniCPM 1 to 4, of the same form as the first, as is `hyperclovax`.

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

pub(super) fn minicpm(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "minicpm", NormKind::Rms)?;
    d.refuse_experts()?;
    let rope = d.rope(RopePairing::Interleaved)?;
    let mixer = |i| Ok(d.attention(i, Some(&rope))?.into());
    network(&d, mixer, |i| d.gated(i, Activation::Silu))
}

/// HyperCLOVA X Think: the same, perhaps with norms behind both parts, and with a factor on logits that does not divide.
pub(super) fn hyperclovax(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "hyperclovax", NormKind::Rms)?;
    d.refuse_experts()?;
    let normed = d
        .source
        .file
        .get::<bool>(&d.source.key("attention.post_norm"))?;
    let rope = d.rope(RopePairing::Interleaved)?;
    let mixer = |i| Ok(d.attention(i, Some(&rope))?.into());
    let mut network = network(&d, mixer, |i| d.gated(i, Activation::Silu))?;
    if normed {
        for (i, block) in network.blocks.iter_mut().enumerate() {
            block.mixer_post_norm = d.norm(i, "post_attention_norm")?;
            block.feed_forward_post_norm = d.norm(i, "post_ffw_norm")?;
        }
    }
    network.logit_scale = d.source.positive("logit_scale")?;
    Ok(network)
}

/// The ones with experts, and perhaps a shared one.
pub(super) fn experts(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "granitemoe", NormKind::Rms)?;
    let experts = Mixture::new(&d, defaults(&d)?)?;
    let rope = rope(&d)?;
    let mixer = |i| Ok(d.attention(i, rope.as_ref())?.into());
    network(&d, mixer, |i| experts.layer(&d, i))
}

/// The ones with windows, and perhaps experts.
pub(super) fn windowed(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "granite_swa", NormKind::Rms)?;
    let experts = Mixture::find(&d, defaults(&d)?)?;
    let windows = d.listed_windows()?;
    let rope = d.rope(RopePairing::Interleaved)?;
    let rotated = d.rope_pattern()?;
    let mixer = |i: usize| {
        let rotates = rotated.as_ref().is_none_or(|rotated| rotated[i]);
        let mut attention = d.attention(i, rotates.then_some(&rope))?;
        attention.window = windows[i];
        let sinks = format!("blk.{i}.attn_sinks.weight");
        attention.sinks = Some(d.source.vector(&sinks, d.n_heads)?);
        Ok(attention.into())
    };
    network(&d, mixer, |i| match &experts {
        Some(experts) => experts.layer(&d, i),
        None => d.gated(i, Activation::Silu),
    })
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
        _ => attention(&d, i, rope.as_ref()),
    };
    network(&d, mixer, |i| match &experts {
        Some(experts) => experts.layer(&d, i),
        None => d.gated(i, Activation::Silu),
    })
}

/// Attention of a hybrid. Files have the elements that rope rotates, if those are all of a head, as neighbours.
/// If it rotates a part, as in Bamba, neighbours in files are still those of whole heads, so that the elements
/// have to take their places first.
fn attention(d: &Decoder, layer: usize, rope: Option<&Rope>) -> Result<Mixer> {
    let mut attention = d.attention(layer, rope)?;
    let head_dim = attention.head_dim;
    if let Some(rope) = &mut attention.rope
        && 2 * rope.inv_freq.len() < head_dim
        && head_dim.is_multiple_of(2)
    {
        rope.pairing = RopePairing::Halves;
        let half = head_dim / 2;
        let place = |row: usize| {
            let (first, i) = (row - row % head_dim, row % head_dim);
            first + i % half * 2 + i / half
        };
        for linear in [&mut attention.q, &mut attention.k] {
            linear.weight = linear.weight.reordered(place)?;
            if let Some(bias) = &linear.bias {
                linear.bias = Some(bias.reordered(place)?);
            }
        }
    }
    Ok(attention.into())
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

/// Factors of MiniCPM where a file has none: on what parts add, on the embedding, and what divides logits.
pub(super) fn of_minicpm(d: &Decoder) -> [f32; 3] {
    let layers = (d.n_layers as f32).sqrt();
    [1.4 / layers, 12.0, d.hidden as f32 / 256.0]
}

fn network(
    d: &Decoder,
    mixer: impl Fn(usize) -> Result<Mixer>,
    feed_forward: impl Fn(usize) -> Result<FeedForward>,
) -> Result<Network> {
    // The first files of MiniCPM have no factors; all of those models have the same.
    let [residual, embedding, logits] = match d.source.architecture() {
        "minicpm" => of_minicpm(d),
        _ => [1.0; 3],
    };
    let scale = |key: &str, usual: f32| {
        let found = d.source.find_positive(key)?;
        Ok::<_, crate::Error>(found.unwrap_or(usual))
    };
    let residual_scale = scale("residual_scale", residual)?;
    let network = d.network(|i| {
        Ok(Block {
            residual_scale,
            ..d.pre_norm_block(i, mixer(i)?, feed_forward(i)?)?
        })
    })?;
    let logit_scale = match d.source.architecture() {
        "granitehybrid" | "minicpm" => scale("logit_scale", logits)?,
        _ => d.source.positive("logit_scale")?,
    };
    Ok(Network {
        embedding_scale: scale("embedding_scale", embedding)?,
        logit_scale: 1.0 / logit_scale,
        ..network
    })
}
