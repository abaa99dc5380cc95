//! `smollm3`: SmolLM 3, whose every fourth layer has no rotary embedding.

use super::decoder::{Decoder, Windows};
use super::{Activation, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "smollm3", NormKind::Rms)?;
    let rope = d.rope(RopePairing::Interleaved)?;
    let windows = d.windows(Windows::Everywhere)?;
    let usual = || (1..=d.n_layers).map(|n| !n.is_multiple_of(4)).collect();
    let rotated = d.rope_pattern()?.unwrap_or_else(usual);
    d.network(|i| {
        let mut attention = d.attention(i, rotated[i].then_some(&rope))?;
        attention.window = windows[i];
        d.pre_norm_block(i, attention, d.gated(i, Activation::Silu)?)
    })
}
