//! `gpt2`: GPT-2, with learned positions, Layer norms and biases everywhere.

use super::decoder::Decoder;
use super::{Activation, Network, NormKind};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "gpt2", NormKind::Layer)?;
    d.require(&["attn_norm.bias", "attn_output.bias"])?;
    d.require(&["ffn_norm.bias", "ffn_up.bias", "ffn_down.bias"])?;
    file.tensor("output_norm.bias")?;
    let positions = d
        .source
        .matrix("position_embd.weight", d.hidden, d.context_length)?;
    let network = d.network(|i| {
        let attention = d.attention(i, None)?;
        d.pre_norm_block(i, attention, d.plain(i, Activation::GeluTanh)?)
    })?;
    Ok(Network {
        positions: Some(positions),
        ..network
    })
}
