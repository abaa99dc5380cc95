//! `gpt2`, `starcoder`, `gptneo` and `opt`: GPT-2, StarCoder, whose heads may share one key and value, GPT-Neo, some of whose layers have a
//! window, and whose scores are not scaled, and OPT with ReLU. Learned positions, Layer norms, biases nearly everywhere. Some divide the
//! scores of each layer by its number, from 1 on.

use super::decoder::{Decoder, Windows};
use super::{Activation, Network, NormKind};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    network(file, "gpt2")
}

pub(super) fn starcoder(file: &ModelFile) -> Result<Network> {
    network(file, "starcoder")
}

pub(super) fn neo(file: &ModelFile) -> Result<Network> {
    network(file, "gptneo")
}

pub(super) fn opt(file: &ModelFile) -> Result<Network> {
    network(file, "opt")
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
    let activation = match architecture {
        "opt" => Activation::Relu,
        _ => Activation::GeluTanh,
    };
    let windows = d.windows(Windows::Everywhere)?;
    let network = d.network(|i| {
        let mut attention = d.attention(i, None)?;
        attention.window = windows[i];
        if by_layer == Some(true) {
            attention.scale /= (i + 1) as f32;
        }
        d.pre_norm_block(i, attention, d.plain(i, activation)?)
    })?;
    Ok(Network {
        positions: Some(positions),
        ..network
    })
}
