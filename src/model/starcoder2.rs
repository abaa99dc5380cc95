//! `starcoder2`: StarCoder 2 and Granite Code, with Layer norms, biases and no gate. `codeshell`: the same by another name.

use super::decoder::{Decoder, Windows};
use super::{Activation, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    network(file, "starcoder2")
}

pub(super) fn codeshell(file: &ModelFile) -> Result<Network> {
    network(file, "codeshell")
}

fn network(file: &ModelFile, architecture: &'static str) -> Result<Network> {
    let d = Decoder::read(file, architecture, NormKind::Layer)?;
    d.require(&["attn_norm.bias", "ffn_norm.bias"])?;
    file.tensor("output_norm.bias")?;
    let rope = d.rope(RopePairing::Halves)?;
    let windows = d.windows(Windows::Everywhere)?;
    d.network(|i| {
        let mut attention = d.attention(i, Some(&rope))?;
        attention.window = windows[i];
        d.pre_norm_block(i, attention, d.plain(i, Activation::GeluTanh)?)
    })
}
