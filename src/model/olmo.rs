//! `olmo`: OLMo 1, as `llama` with norms that have no weights, and limits of queries, keys and values.

use super::decoder::{Decoder, bare_block};
use super::{Activation, Block, Network, Norm, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "olmo", NormKind::Layer)?;
    d.refuse_experts()?;
    let rope = d.rope(RopePairing::Interleaved)?;
    let norm = Norm::plain(NormKind::Layer, "a norm without weights", d.hidden, d.eps)?;
    let block = |i| {
        let attention = d.attention(i, Some(&rope))?;
        Ok(Block {
            mixer_norm: Some(norm.clone()),
            feed_forward_norm: Some(norm.clone()),
            ..bare_block(attention, d.gated(i, Activation::Silu)?)
        })
    };
    d.network_with(d.n_layers, || Ok(norm.clone()), block)
}
