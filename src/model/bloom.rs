//! `bloom`, `mpt` and `jais`: decoders whose scores fall with the distance, with Layer norms. BLOOM has biases everywhere, and a norm of
//! the embedding. MPT has neither, and may have learned positions instead. Jais has gates, and divides scores by the size of heads. The
//! others have feed-forward parts without a gate.

use super::decoder::Decoder;
use super::{Activation, Network, NormKind, slopes};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn bloom(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "bloom", NormKind::Layer)?;
    d.require(&["attn_norm.bias", "attn_output.bias", "ffn_norm.bias"])?;
    d.require(&["ffn_up.bias", "ffn_down.bias"])?;
    for name in ["output_norm.bias", "token_embd_norm.bias"] {
        file.tensor(name)?;
    }
    let slopes = slopes::slopes(d.n_heads, 8.0);
    let norm = d
        .source
        .norm("token_embd_norm", d.hidden, NormKind::Layer, d.eps)?;
    let network = d.network(|i| {
        let mut attention = d.attention(i, None)?;
        attention.slopes = Some(slopes.clone());
        d.pre_norm_block(i, attention, d.plain(i, Activation::GeluTanh)?)
    })?;
    Ok(Network {
        embedding_norm: Some(norm),
        ..network
    })
}

pub(super) fn mpt(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "mpt", NormKind::Layer)?;
    // Without slopes, positions are learned.
    let slopes = slopes::read(&d)?;
    let network = d.network(|i| {
        let mut attention = d.attention(i, None)?;
        attention.slopes = slopes.clone();
        d.pre_norm_block(i, attention, d.plain(i, Activation::Gelu)?)
    })?;
    let positions = match slopes {
        Some(_) => None,
        None => {
            let name = "position_embd.weight";
            Some(d.source.matrix(name, d.hidden, d.context_length)?)
        }
    };
    Ok(Network {
        positions,
        ..network
    })
}

pub(super) fn jais(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "jais", NormKind::Layer)?;
    d.refuse_experts()?;
    d.require(&["attn_norm.bias", "attn_output.bias", "ffn_norm.bias"])?;
    d.require(&["ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"])?;
    file.tensor("output_norm.bias")?;
    let slopes = slopes::read(&d)?;
    d.network(|i| {
        let mut attention = d.attention(i, None)?;
        attention.slopes = slopes.clone();
        attention.scale = 1.0 / d.head_dim as f32;
        d.pre_norm_block(i, attention, d.gated(i, Activation::Silu)?)
    })
}
