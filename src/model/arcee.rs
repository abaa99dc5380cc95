//! `arcee`: AFM, as `llama` with a feed-forward part without a gate, whose activation is a square.

use super::decoder::Decoder;
use super::{Activation, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "arcee", NormKind::Rms)?;
    d.refuse_experts()?;
    let rope = d.rope(RopePairing::Interleaved)?;
    d.network(|i| {
        let attention = d.attention(i, Some(&rope))?;
        d.pre_norm_block(i, attention, d.plain(i, Activation::ReluSquared)?)
    })
}
