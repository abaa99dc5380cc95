//! `plamo3`: PLaMo 3, with norms before and behind both parts, norms of queries and keys per head, and windows in most layers, whose
//! rotary embedding has a base of its own.

use super::decoder::{Decoder, Windows, bare_block};
use super::{Activation, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "plamo3", NormKind::Rms)?;
    d.refuse_experts()?;
    let rope = d.rope(RopePairing::Halves)?;
    let local = d.local_rope(RopePairing::Halves, 10_000.0)?;
    let windows = d.windows(Windows::ButEvery(8))?;
    d.network(|i| {
        let rope = if windows[i].is_some() { &local } else { &rope };
        let mut attention = d.normed_attention(i, Some(rope), true)?;
        attention.window = windows[i];
        Ok(super::Block {
            mixer_norm: d.norm(i, "attn_norm")?,
            mixer_post_norm: d.norm(i, "post_attention_norm")?,
            feed_forward_norm: d.norm(i, "ffn_norm")?,
            feed_forward_post_norm: d.norm(i, "post_ffw_norm")?,
            ..bare_block(attention, d.gated_fused(i, Activation::Silu)?)
        })
    })
}
