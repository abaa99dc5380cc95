//! `lfm2` and `lfm2moe`: LFM 2, whose layers are short convolutions or attention, also with experts.

use super::decoder::Decoder;
use super::experts::{Defaults, Mixture, softmax};
use super::hybrid::{attending, conv_width, kv_heads};
use super::{Activation, FeedForward, Linear, Network, NormKind, RopePairing, Scoring, ShortConv};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read_with(file, "lfm2", NormKind::Rms, kv_heads)?;
    d.refuse_experts()?;
    network(&d, |i| d.gated(i, Activation::Silu))
}

/// The ones with experts in all layers but the first ones.
pub(super) fn experts(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read_with(file, "lfm2moe", NormKind::Rms, kv_heads)?;
    let defaults = Defaults {
        scoring: Scoring::Sigmoid,
        ..softmax(&d)?
    };
    let experts = Mixture::new(&d, defaults)?;
    network(&d, |i| experts.or_gated(&d, i))
}

fn network(d: &Decoder, feed_forward: impl Fn(usize) -> Result<FeedForward>) -> Result<Network> {
    let rope = d.rope(RopePairing::Halves)?;
    let attends = attending(&d.source, d.n_layers, "shortconv.in_proj")?;
    d.network(|i| {
        let feed_forward = feed_forward(i)?;
        if !attends[i] {
            return d.pre_norm_block(i, short_conv(d, i)?, feed_forward);
        }
        let mut attention = d.attention(i, Some(&rope))?;
        attention.q_norm = d.norm_of(i, "attn_q_norm", d.head_dim)?;
        attention.k_norm = d.norm_of(i, "attn_k_norm", d.head_dim)?;
        d.pre_norm_block(i, attention, feed_forward)
    })
}

fn short_conv(d: &Decoder, layer: usize) -> Result<ShortConv> {
    let (source, hidden) = (&d.source, d.hidden);
    let width = conv_width(source, "shortconv.l_cache")?;
    source.product("embedding_length", hidden, 3)?;
    let name = |part: &str| format!("blk.{layer}.shortconv.{part}");
    let [b, c, x]: [Linear; 3] = source.fused(&name("in_proj"), hidden, [hidden; 3], None)?;
    Ok(ShortConv {
        b,
        c,
        x,
        conv: source.conv(&name("conv"), hidden, width)?,
        output: source.linear(&name("out_proj"), hidden, hidden)?,
    })
}
