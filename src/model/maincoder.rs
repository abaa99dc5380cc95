//! `maincoder`: Maincoder, as `llama` with norms of queries and keys per head behind the rotary embedding.

use super::decoder::Decoder;
use super::{Activation, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "maincoder", NormKind::Rms)?;
    d.refuse_experts()?;
    let rope = d.rope(RopePairing::Interleaved)?;
    d.network(|i| {
        let mut attention = d.normed_attention(i, Some(&rope), true)?;
        attention.norm_after_rope = true;
        d.pre_norm_block(i, attention, d.gated(i, Activation::Silu)?)
    })
}
