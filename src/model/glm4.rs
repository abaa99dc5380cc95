//! `chatglm` and `glm4`: GLM 4 9B and ChatGLM, and GLM 4 (0414), which has norms before and after both
//! parts. Rope is on a part of each head, and gate and up are in one matrix.

use super::decoder::{Decoder, bare_block};
use super::{Activation, Block, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::{ModelFile, Value};

pub(super) fn chatglm(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "chatglm", NormKind::Rms)?;
    let rope = d.rope(RopePairing::Interleaved)?;
    d.network(|i| {
        let attention = d.attention(i, Some(&rope))?;
        d.pre_norm_block(i, attention, d.gated_fused(i, Activation::Silu)?)
    })
}

/// Files of models with images (GLM 4.1V) have positions of several dimensions, all of which a text's have alike, and for
/// them, rows of queries and keys in another order.
fn pairing(d: &Decoder) -> Result<RopePairing> {
    let key = d.source.key("rope.dimension_sections");
    if !matches!(d.source.file.metadata.get(&key), Some(Value::Array(_))) {
        return Ok(RopePairing::Interleaved);
    }
    let sections: Vec<u64> = d.source.file.get(&key)?;
    Ok(match sections[..] {
        [time, height, ..] if time > 0 && height > 0 => RopePairing::Halves,
        _ => RopePairing::Interleaved,
    })
}

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let mut d = Decoder::read(file, "glm4", NormKind::Rms)?;
    d.set_predictors_apart()?;
    let rope = d.rope(pairing(&d)?)?;
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
