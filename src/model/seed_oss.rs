//! `seed_oss`: Seed OSS, with biases on q, k and v.

use super::decoder::{Decoder, bare_block};
use super::{Activation, Block, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "seed_oss", NormKind::Rms)?;
    let rope = d.rope(RopePairing::Halves)?;
    d.network(|i| {
        let attention = d.attention(i, Some(&rope))?;
        Ok(Block {
            mixer_norm: d.norm(i, "attn_norm")?,
            feed_forward_norm: d.norm(i, "post_attention_norm")?,
            ..bare_block(attention, d.gated(i, Activation::Silu)?)
        })
    })
}
