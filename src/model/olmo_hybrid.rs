//! `olmo_hybrid`: OLMo Hybrid. Layers that attend are those of OLMo 2, perhaps without rope; the others are gated delta nets, with norms before
//! both parts, and may have steps of twice the size.

use super::decoder::{Decoder, bare_block};
use super::qwen3next::{Sizes, recurrent};
use super::{Activation, Block, Mixer, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

/// Of the norm behind the recurrence, whatever that of the others is.
const EPS: f32 = 1e-5;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "olmo_hybrid", NormKind::Rms)?;
    d.refuse_experts()?;
    let flag = |key: &str| file.get::<bool>(&d.source.key(key));
    let (rotates, doubled) = (flag("attention.rotates")?, flag("ssm.doubled_steps")?);
    let rope = d.rope(RopePairing::Halves)?;
    let rope = rotates.then_some(&rope);
    let sizes = Sizes::read(&d)?;
    let recurrent = recurrent(&d)?;
    d.network(|i| {
        let feed_forward = d.gated(i, Activation::Silu)?;
        if recurrent[i] {
            let mut net = sizes.delta_net(&d, i)?;
            net.beta_scale = if doubled { 2.0 } else { 1.0 };
            net.norm.eps = EPS;
            return Ok(Block {
                mixer_norm: d.norm(i, "attn_norm")?,
                feed_forward_norm: d.norm(i, "post_attention_norm")?,
                ..bare_block(Mixer::from(net), feed_forward)
            });
        }
        let mut attention = d.attention(i, rope)?;
        attention.q_norm = d.norm_of(i, "attn_q_norm", d.n_heads * d.head_dim)?;
        attention.k_norm = d.norm_of(i, "attn_k_norm", d.n_kv_heads * d.head_dim)?;
        Ok(Block {
            mixer_post_norm: d.norm(i, "post_attention_norm")?,
            feed_forward_post_norm: d.norm(i, "post_ffw_norm")?,
            ..bare_block(attention, feed_forward)
        })
    })
}
