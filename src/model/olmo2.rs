//! `olmo2` and `flex_olmo`: OLMo 2 and 3, and FlexOlmo, which has experts. Norms come after both parts and over all heads of q and of k. OLMo 3 has
//! windows in three of four layers, whose frequencies are not scaled.

use super::decoder::{Decoder, Windows, bare_block};
use super::experts::{Defaults, Mixture, softmax};
use super::{Activation, Block, FeedForward, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "olmo2", NormKind::Rms)?;
    network(&d, |i| d.gated(i, Activation::Silu))
}

/// The one with experts.
pub(super) fn experts(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "flex_olmo", NormKind::Rms)?;
    let defaults = Defaults {
        normalize: false,
        ..softmax(&d)?
    };
    let experts = Mixture::new(&d, defaults)?;
    network(&d, |i| experts.layer(&d, i))
}

fn network(d: &Decoder, feed_forward: impl Fn(usize) -> Result<FeedForward>) -> Result<Network> {
    let rope = d.rope(RopePairing::Halves)?;
    let local = d.local_rope(RopePairing::Halves, d.rope_base()?)?;
    let windows = d.windows(Windows::ButEvery(4))?;
    d.network(|i| {
        let rope = if windows[i].is_some() { &local } else { &rope };
        let mut attention = d.attention(i, Some(rope))?;
        attention.q_norm = d.norm_of(i, "attn_q_norm", d.n_heads * d.head_dim)?;
        attention.k_norm = d.norm_of(i, "attn_k_norm", d.n_kv_heads * d.head_dim)?;
        attention.window = windows[i];
        Ok(Block {
            mixer_post_norm: d.norm(i, "post_attention_norm")?,
            feed_forward_post_norm: d.norm(i, "post_ffw_norm")?,
            ..bare_block(attention, feed_forward(i)?)
        })
    })
}
