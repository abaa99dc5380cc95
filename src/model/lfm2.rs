//! `lfm2`, `lfm2moe` and `lfm3`: LFM 2, whose layers are short convolutions or attention, also with experts, and LFM 3, whose attention
//! may have windows and gates of the heads, and whose parts may have norms behind them.

use super::decoder::{Decoder, Windows};
use super::experts::{Defaults, Mixture, softmax};
use super::hybrid::{attending, conv_width, kv_heads};
use super::{
    Activation, FeedForward, Linear, Mixer, Network, NormKind, RopePairing, Scoring, ShortConv,
};
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

pub(super) fn third(file: &ModelFile) -> Result<Network> {
    const LOCAL_DIMENSIONS: &str = "rope.dimension_count_swa";
    let d = Decoder::read_with(file, "lfm3", NormKind::Rms, kv_heads)?;
    d.refuse_experts()?;
    // Neither goes without saying.
    let [gated, normed] = ["attention.gated", "attention.post_norm"].map(|key| d.source.key(key));
    let (gated, normed) = (file.get::<bool>(&gated)?, file.get::<bool>(&normed)?);
    let rope = d.rope(RopePairing::Halves)?;
    let sizes = (d.head_dim, LOCAL_DIMENSIONS, "attention.key_length");
    let local = d.sized_local_rope(RopePairing::Halves, sizes, d.rope_base()?)?;
    let windows = d.windows(Windows::Everywhere)?;
    let attends = attending(&d.source, d.n_layers, "shortconv.in_proj")?;
    d.network(|i| {
        let mixer: Mixer = if attends[i] {
            let rope = if windows[i].is_some() { &local } else { &rope };
            let mut attention = d.normed_attention(i, Some(rope), true)?;
            attention.window = windows[i];
            if gated {
                let gate = format!("blk.{i}.attn_gate");
                attention.gate = Some(d.source.linear(&gate, d.hidden, d.n_heads)?);
            }
            attention.into()
        } else {
            short_conv(&d, i)?.into()
        };
        let mut block = d.pre_norm_block(i, mixer, d.gated(i, Activation::Silu)?)?;
        if normed {
            block.mixer_post_norm = d.norm(i, "post_attention_norm")?;
            block.feed_forward_post_norm = d.norm(i, "post_ffw_norm")?;
        }
        Ok(block)
    })
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
