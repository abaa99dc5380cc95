//! `chatglm` and `glm4`: GLM 4 9B and ChatGLM, and GLM 4 (0414), which has norms before and after both
//! parts. Rope is on a part of each head, and gate and up are in one matrix.

use super::decoder::{Decoder, bare_block};
use super::{Activation, Block, Network, NormKind, RopePairing};
use crate::error::{Result, fail};
use crate::format::{ModelFile, Value};

pub(super) fn chatglm(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "chatglm", NormKind::Rms)?;
    let rope = d.rope(RopePairing::Interleaved)?;
    d.network(|i| {
        let attention = d.attention(i, Some(&rope))?;
        d.pre_norm_block(i, attention, d.gated_fused(i, Activation::Silu)?)
    })
}

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    const SECTIONS: &str = "rope.dimension_sections";
    let mut d = Decoder::read(file, "glm4", NormKind::Rms)?;
    if let Some(Value::Array(_)) = file.metadata.get(&d.source.key(SECTIONS)) {
        fail!(
            Unsupported,
            "{} is there; positions of more than one dimension are not supported",
            d.source.key(SECTIONS)
        );
    }
    d.set_predictors_apart()?;
    let rope = d.rope(RopePairing::Interleaved)?;
    d.network(|i| {
        let attention = d.attention(i, Some(&rope))?;
        Ok(Block {
            mixer_norm: d.norm(i, "attn_norm")?,
            mixer_post_norm: d.norm(i, "post_attention_norm")?,
            feed_forward_norm: d.norm(i, "ffn_norm")?,
            feed_forward_post_norm: d.norm(i, "post_ffw_norm")?,
            ..bare_block(attention, d.gated_fused(i, Activation::Silu)?)
        })
    })
}
