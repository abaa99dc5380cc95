//! `qwen3moe`: Qwen 3 with experts.

use super::decoder::{Decoder, Windows};
use super::experts::{Mixture, softmax};
use super::{Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    network(file, "qwen3moe")
}

/// The text part of one that sees: `qwen3vlmoe`. The positions of text are the same in all dimensions, so
/// that rope is the usual one.
pub(super) fn vision(file: &ModelFile) -> Result<Network> {
    network(file, "qwen3vlmoe")
}

fn network(file: &ModelFile, architecture: &'static str) -> Result<Network> {
    let d = Decoder::read(file, architecture, NormKind::Rms)?;
    let rope = d.rope(RopePairing::Halves)?;
    let windows = d.windows(Windows::Everywhere)?;
    let experts = Mixture::new(&d, softmax(&d)?)?;
    d.network(|i| {
        let mut attention = d.attention(i, Some(&rope))?;
        attention.window = windows[i];
        attention.q_norm = d.norm_of(i, "attn_q_norm", d.head_dim)?;
        attention.k_norm = d.norm_of(i, "attn_k_norm", d.head_dim)?;
        d.pre_norm_block(i, attention, experts.layer(&d, i)?)
    })
}
