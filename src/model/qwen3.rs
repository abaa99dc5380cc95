//! `qwen3`: Qwen 3, with norms of q and k per head.

use super::decoder::{Decoder, Windows};
use super::{Activation, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    network(file, "qwen3")
}

/// The text part of one that sees: `qwen3vl`. The positions of text are the same in all dimensions, so
/// that rope is the usual one.
pub(super) fn vision(file: &ModelFile) -> Result<Network> {
    network(file, "qwen3vl")
}

fn network(file: &ModelFile, architecture: &'static str) -> Result<Network> {
    let d = Decoder::read(file, architecture, NormKind::Rms)?;
    let rope = d.rope(RopePairing::Halves)?;
    let windows = d.windows(Windows::Everywhere)?;
    d.network(|i| {
        let mut attention = d.attention(i, Some(&rope))?;
        attention.q_norm = d.norm_of(i, "attn_q_norm", d.head_dim)?;
        attention.k_norm = d.norm_of(i, "attn_k_norm", d.head_dim)?;
        attention.window = windows[i];
        d.pre_norm_block(i, attention, d.gated(i, Activation::Silu)?)
    })
}
