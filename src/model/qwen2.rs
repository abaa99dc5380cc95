//! `qwen2`: Qwen 2 and 2.5, with biases on q, k and v, and MiMo, which has a head for further tokens. `pangu-embedded`: openPangu, with one more on the output.

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
    let mut d = Decoder::read(file, architecture, NormKind::Rms)?;
    if architecture == "qwen2" {
        d.set_predictors_apart()?;
    }
    let rope = d.rope(RopePairing::Halves)?;
    let windows = d.windows(Windows::Everywhere)?;
    d.network(|i| {
        let mut attention = d.attention(i, Some(&rope))?;
        // The head behind the layers sees all.
        attention.window = windows.get(i).copied().flatten();
        d.pre_norm_block(i, attention, d.gated(i, Activation::Silu)?)
    })
}
