//! `phi3`: Phi 3, 3.5 and 4, with q, k and v in one matrix, gate and up in another, and other
//! frequencies for long contexts.

use super::decoder::{Decoder, Windows};
use super::{Activation, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "phi3", NormKind::Rms)?;
    d.refuse_experts()?;
    let rope = d.rope(RopePairing::Halves)?;
    // Files of models without a window say 0.
    let windows = match d.source.find::<u64>("attention.sliding_window")? {
        Some(0) => vec![None; d.n_layers],
        _ => d.windows(Windows::Everywhere)?,
    };
    d.network(|i| {
        let mut attention = d.attention(i, Some(&rope))?;
        attention.window = windows[i];
        d.pre_norm_block(i, attention, d.gated_fused(i, Activation::Silu)?)
    })
}
