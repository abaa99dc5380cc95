//! `gpt2` and `starcoder`: GPT-2, and StarCoder, whose heads share one key and value. Learned positions,
//! Layer norms and biases everywhere. Some divide the scores of each layer by its number, from 1 on.

use super::decoder::Decoder;
use super::{Activation, Network, NormKind};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    network(file, "gpt2")
}

pub(super) fn starcoder(file: &ModelFile) -> Result<Network> {
    network(file, "starcoder")
}

fn network(file: &ModelFile, architecture: &'static str) -> Result<Network> {
    let d = Decoder::read(file, architecture, NormKind::Layer)?;
    d.require(&["attn_norm.bias", "attn_output.bias"])?;
    d.require(&["ffn_norm.bias", "ffn_up.bias", "ffn_down.bias"])?;
    file.tensor("output_norm.bias")?;
    let positions = d
        .source
        .matrix("position_embd.weight", d.hidden, d.context_length)?;
    let by_layer = d.source.find::<bool>("attention.scale_by_inverse_layer")?;
    let network = d.network(|i| {
        let mut attention = d.attention(i, None)?;
        if by_layer == Some(true) {
            attention.scale /= (i + 1) as f32;
        }
        d.pre_norm_block(i, attention, d.plain(i, Activation::GeluTanh)?)
    })?;
    Ok(Network {
        positions: Some(positions),
        ..network
    })
}
