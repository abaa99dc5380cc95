//! `granite`: Granite 3 and the dense ones of 4, with factors on embedding, scores, residual stream
//! and logits.

use super::decoder::Decoder;
use super::{Activation, Block, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "granite", NormKind::Rms)?;
    d.refuse_experts()?;
    // The key that says whether rope was trained with scaling says here whether there is rope.
    let rope = match d.source.find::<bool>("rope.scaling.finetuned")? {
        Some(false) => None,
        _ => Some(d.rope(RopePairing::Interleaved)?),
    };
    let scale = |key: &str| Ok(d.source.find_positive(key)?.unwrap_or(1.0));
    let residual_scale = scale("residual_scale")?;
    let network = d.network(|i| {
        let attention = d.attention(i, rope.as_ref())?;
        Ok(Block {
            residual_scale,
            ..d.pre_norm_block(i, attention, d.gated(i, Activation::Silu)?)?
        })
    })?;
    Ok(Network {
        embedding_scale: scale("embedding_scale")?,
        logit_scale: 1.0 / d.source.positive("logit_scale")?,
        ..network
    })
}
