//! `falcon-h1`: Falcon-H1. In every layer, attention and Mamba 2 read the same input and are added. All
//! factors of the architecture are in the weights.

use super::decoder::Decoder;
use super::{Activation, Mixer, Network, NormKind, RopePairing, SideBySide, mamba2};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "falcon-h1", NormKind::Rms)?;
    let rope = d.rope(RopePairing::Halves)?;
    let sizes = mamba2::Sizes::read(&d)?;
    let normed = d.has_part("ssm_norm.weight");
    d.network(|i| {
        let mixer = SideBySide {
            attention: d.attention(i, Some(&rope))?,
            mamba: sizes.layer_with(&d, i, normed)?,
        };
        let mixer = Mixer::SideBySide(Box::new(mixer));
        d.pre_norm_block(i, mixer, d.gated(i, Activation::Silu)?)
    })
}
