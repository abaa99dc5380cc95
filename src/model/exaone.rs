//! `exaone`: EXAONE 3 and 3.5, as `llama` with rope on halves.

use super::decoder::Decoder;
use super::{Activation, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "exaone", NormKind::Rms)?;
    let rope = d.rope(RopePairing::Halves)?;
    d.network(|i| {
        let attention = d.attention(i, Some(&rope))?;
        d.pre_norm_block(i, attention, d.gated(i, Activation::Silu)?)
    })
}
