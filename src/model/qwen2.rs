//! `qwen2`: Qwen 2 and 2.5, with biases on q, k and v. `pangu-embedded`: openPangu, with one more on the output.

use super::decoder::{Decoder, Windows};
use super::{Activation, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    network(file, "qwen2")
}

/// The text part of one that sees: `qwen2vl`. The positions of text are the same in all dimensions, so
/// that rope is the usual one.
pub(super) fn vision(file: &ModelFile) -> Result<Network> {
    network(file, "qwen2vl")
}

pub(super) fn pangu(file: &ModelFile) -> Result<Network> {
    network(file, "pangu-embedded")
}

fn network(file: &ModelFile, architecture: &'static str) -> Result<Network> {
    let d = Decoder::read(file, architecture, NormKind::Rms)?;
    let rope = d.rope(RopePairing::Halves)?;
    let windows = d.windows(Windows::Everywhere)?;
    d.network(|i| {
        let mut attention = d.attention(i, Some(&rope))?;
        attention.window = windows[i];
        d.pre_norm_block(i, attention, d.gated(i, Activation::Silu)?)
    })
}
