//! `nemotron`: Nemotron 4 and Minitron, with Layer norms, rope on a part of each head, and a feed-forward
//! part without a gate, whose activation is a square. Norm weights have the 1 that the model adds to them. `jais2`: Jais 2,
//! the same with biases.

use super::decoder::Decoder;
use super::{Activation, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    network(file, "nemotron")
}

pub(super) fn jais2(file: &ModelFile) -> Result<Network> {
    network(file, "jais2")
}

fn network(file: &ModelFile, architecture: &'static str) -> Result<Network> {
    let d = Decoder::read(file, architecture, NormKind::Layer)?;
    d.require(&["attn_norm.bias", "ffn_norm.bias"])?;
    file.tensor("output_norm.bias")?;
    let rope = d.rope(RopePairing::Halves)?;
    d.network(|i| {
        let attention = d.attention(i, Some(&rope))?;
        d.pre_norm_block(i, attention, d.plain(i, Activation::ReluSquared)?)
    })
}
