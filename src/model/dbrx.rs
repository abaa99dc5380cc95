//! `dbrx`: DBRX, with Layer norms, limits of queries, keys and values, and experts in all layers.

use super::decoder::{Decoder, bare_block};
use super::experts::{Mixture, softmax};
use super::{Block, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "dbrx", NormKind::Layer)?;
    let rope = d.rope(RopePairing::Halves)?;
    let experts = Mixture::new(&d, softmax(&d)?)?;
    d.network(|i| {
        let attention = d.attention(i, Some(&rope))?;
        Ok(Block {
            mixer_norm: d.norm(i, "attn_norm")?,
            // Converters call it so, though it comes behind the sum.
            feed_forward_norm: d.norm(i, "attn_output_norm")?,
            ..bare_block(attention, experts.layer(&d, i)?)
        })
    })
}
