//! `command-r`, `cohere2` and `cohere2moe`: Command R, Aya, Command R7B, Command A and Command A+. Attention
//! and feed-forward read the same normed input. Command R+ has norms of queries and keys, with weights of each head. In
//! the last two, layers with a window have a rotary embedding, and those without have none.

use super::decoder::{Decoder, Windows, bare_block};
use super::experts::{Defaults, Mixture, shared_count_ff, shared_ff, softmax};
use super::{
    Activation, Block, FeedForward, Linear, Network, NormKind, RopePairing, Scoring, SharedExpert,
};
use crate::error::{Result, fail, try_vec};
use crate::format::{ModelFile, Tensor};

pub(super) fn command_r(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "command-r", NormKind::Layer)?;
    let rope = d.rope(RopePairing::Interleaved)?;
    let normed = d.has_part("attn_q_norm.weight") || d.has_part("attn_k_norm.weight");
    let normed = d.source.find("attention.qk_norm")?.unwrap_or(normed);
    let network = d.network(|i| {
        let mut attention = d.attention(i, Some(&rope))?;
        if normed {
            d.norm_each_head(i, &mut attention)?;
        }
        Ok(Block {
            mixer_norm: d.norm(i, "attn_norm")?,
            parallel: true,
            ..bare_block(attention, d.gated(i, Activation::Silu)?)
        })
    })?;
    Ok(Network {
        logit_scale: d.source.positive("logit_scale")?,
        ..network
    })
}

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "cohere2", NormKind::Layer)?;
    d.source.size("attention.sliding_window")?;
    let rope = d.rope(RopePairing::Interleaved)?;
    let windows = d.windows(Windows::ButEvery(4))?;
    let network = d.network(|i| {
        let mut attention = d.attention(i, windows[i].map(|_| &rope))?;
        attention.window = windows[i];
        Ok(Block {
            mixer_norm: d.norm(i, "attn_norm")?,
            parallel: true,
            ..bare_block(attention, d.gated(i, Activation::Silu)?)
        })
    })?;
    Ok(Network {
        logit_scale: d.source.positive("logit_scale")?,
        ..network
    })
}

/// The one with experts in all layers but the first ones, which all have a rotary embedding.
pub(super) fn experts(file: &ModelFile) -> Result<Network> {
    const ARCHITECTURE: &str = "cohere2moe";
    const SHARED: &str = "expert_shared_count";
    let rms = file.find::<f32>("cohere2moe.attention.layer_norm_rms_epsilon")?;
    let norm = match rms {
        None | Some(0.0) => NormKind::Layer,
        Some(_) => NormKind::Rms,
    };
    let mut d = Decoder::read(file, ARCHITECTURE, norm)?;
    d.leave_out_predictors()?;
    d.source.size("attention.sliding_window")?;
    // No pattern goes without saying.
    let pattern = d.source.key("attention.sliding_window_pattern");
    file.get::<Vec<bool>>(&pattern)?;
    let windows = d.windows(Windows::Everywhere)?;
    let defaults = Defaults {
        scoring: Scoring::Sigmoid,
        normalize: false,
        shared_ff: match d.source.find::<u64>(SHARED)? {
            None | Some(0) => None,
            Some(_) => match shared_ff(&d)? {
                None => shared_count_ff(&d)?,
                found => found,
            },
        },
        ..softmax(&d)?
    };
    let mixture = Mixture::new(&d, defaults)?;
    let rope = d.rope(RopePairing::Interleaved)?;
    let network = d.network(|i| {
        let routed = mixture.has_layer(i);
        let rotated = windows[i].is_some() || !routed;
        let mut attention = d.attention(i, rotated.then_some(&rope))?;
        attention.window = windows[i];
        let feed_forward = match routed {
            true => averaged(&d, &mixture, i)?,
            false => d.gated(i, Activation::Silu)?,
        };
        Ok(Block {
            mixer_norm: d.norm(i, "attn_norm")?,
            parallel: true,
            ..bare_block(attention, feed_forward)
        })
    })?;
    Ok(Network {
        logit_scale: d.source.positive("logit_scale")?,
        ..network
    })
}

/// The experts of a layer; with a shared one, the mean of both outputs: the weights of the others halved,
/// and a gate of zeros, whose sigmoid is a half, for the shared one.
fn averaged(d: &Decoder, mixture: &Mixture, layer: usize) -> Result<FeedForward> {
    let mut experts = mixture.experts(d, layer)?;
    if let Some(SharedExpert { mlp, gate }) = &mut experts.shared {
        if let Some(gate) = gate {
            fail!(
                Unsupported,
                "tensor {}: shared experts with a gate are not supported in this architecture",
                gate.weight.name
            );
        }
        let name = format!("{}.share", mlp.up.weight.name);
        let zeros = try_vec(d.hidden, 0.0, "the weight of a shared expert")?;
        *gate = Some(Linear {
            weight: Tensor::of_numbers(&name, vec![d.hidden, 1], &zeros)?,
            bias: None,
        });
        experts.weight_scale *= 0.5;
    }
    Ok(FeedForward::Experts(Box::new(experts)))
}
