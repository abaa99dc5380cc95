//! `llama`: Llama 2 to 3.2, Mistral, TinyLlama, SmolLM2 and others of their shape.

use super::decoder::{Decoder, Windows};
use super::{Activation, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "llama", NormKind::Rms)?;
    d.refuse_experts()?;
    let rope = d.rope(RopePairing::Interleaved)?;
    let windows = d.windows(Windows::Everywhere)?;
    d.network(|i| {
        let mut attention = d.attention(i, Some(&rope))?;
        attention.window = windows[i];
        d.pre_norm_block(i, attention, d.gated(i, Activation::Silu)?)
    })
}
