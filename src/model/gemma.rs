//! `gemma`, `gemma2`, `vaultgemma` and `gemma3` (text), with a scaled embedding. Gemma 2 and 3 have norms before and
//! after both parts, and windows in most layers. Gemma 2 caps scores and logits; Gemma 3 has norms of q
//! and k, and other frequencies in layers with a window.
//!
//! Norm weights in these files are ready to use: the 1 that the model adds is in them.

use super::bert::half_window;
use super::decoder::{Decoder, Windows, bare_block};
use super::{Activation, Attention, Block, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn gemma(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "gemma", NormKind::Rms)?;
    let rope = d.rope(RopePairing::Halves)?;
    let network = d.network(|i| {
        let attention = d.attention(i, Some(&rope))?;
        d.pre_norm_block(i, attention, d.gated(i, Activation::GeluTanh)?)
    })?;
    Ok(scaled(network))
}

pub(super) fn gemma2(file: &ModelFile) -> Result<Network> {
    let mut d = Decoder::read(file, "gemma2", NormKind::Rms)?;
    default_scale(&mut d, 46)?;
    let rope = d.rope(RopePairing::Halves)?;
    let windows = d.windows(Windows::ButEvery(2))?;
    let network = d.network(|i| {
        let mut attention = d.attention(i, Some(&rope))?;
        attention.window = windows[i];
        block(&d, i, attention)
    })?;
    Ok(scaled(network))
}

/// As Gemma 2 without norms behind both parts.
pub(super) fn vault(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "vaultgemma", NormKind::Rms)?;
    let rope = d.rope(RopePairing::Halves)?;
    let windows = d.windows(Windows::ButEvery(2))?;
    let network = d.network(|i| {
        let mut attention = d.attention(i, Some(&rope))?;
        attention.window = windows[i];
        d.pre_norm_block(i, attention, d.gated(i, Activation::GeluTanh)?)
    })?;
    Ok(scaled(network))
}

pub(super) fn gemma3(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "gemma3", NormKind::Rms)?;
    third(d)
}

/// Embedding Gemma: the same without causal attention, and with windows around a position.
pub(super) fn embedding(file: &ModelFile) -> Result<Network> {
    let mut d = Decoder::read(file, "gemma-embedding", NormKind::Rms)?;
    d.causal = false;
    third(d)
}

fn third(mut d: Decoder) -> Result<Network> {
    default_scale(&mut d, 62)?;
    let rope = d.rope(RopePairing::Halves)?;
    let local = d.local_rope(RopePairing::Halves, 10_000.0)?;
    let windows = d.windows(Windows::ButEvery(6))?;
    let network = d.network(|i| {
        let rope = if windows[i].is_some() { &local } else { &rope };
        let mut attention = d.attention(i, Some(rope))?;
        attention.q_norm = d.norm_of(i, "attn_q_norm", d.head_dim)?;
        attention.k_norm = d.norm_of(i, "attn_k_norm", d.head_dim)?;
        attention.window = match d.causal {
            true => windows[i],
            false => windows[i].map(half_window),
        };
        block(&d, i, attention)
    })?;
    Ok(scaled(network))
}

/// The scale of the scores follows from the head size, except in the largest model, which is known
/// by its layers: no key says it.
fn default_scale(d: &mut Decoder, layers_of_largest: usize) -> Result<()> {
    let given = d.source.find::<f32>("attention.scale")?.is_some();
    if !given && d.n_layers == layers_of_largest {
        d.scale = (1.0 / ((d.hidden / d.n_heads) as f64).sqrt()) as f32;
    }
    Ok(())
}

fn block(d: &Decoder, i: usize, attention: Attention) -> Result<Block> {
    Ok(Block {
        mixer_norm: d.norm(i, "attn_norm")?,
        mixer_post_norm: d.norm(i, "post_attention_norm")?,
        feed_forward_norm: d.norm(i, "ffn_norm")?,
        feed_forward_post_norm: d.norm(i, "post_ffw_norm")?,
        ..bare_block(attention, d.gated(i, Activation::GeluTanh)?)
    })
}

fn scaled(network: Network) -> Network {
    Network {
        embedding_scale: (network.hidden as f64).sqrt() as f32,
        ..network
    }
}
