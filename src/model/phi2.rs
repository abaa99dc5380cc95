//! `phi2`: Phi 1, 1.5 and 2. Attention and a feed-forward part without a gate read the same normed
//! input; biases everywhere, on the head, too; rope on a part of each head.

use super::decoder::{Decoder, bare_block};
use super::{Activation, Block, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "phi2", NormKind::Layer)?;
    d.require(&["attn_norm.bias", "attn_output.bias"])?;
    d.require(&["ffn_up.bias", "ffn_down.bias"])?;
    file.tensor("output_norm.bias")?;
    file.tensor("output.bias")?;
    let rope = d.rope(RopePairing::Halves)?;
    // Of each head, if there are any.
    let normed = d.has_part("attn_q_norm.weight") || d.has_part("attn_k_norm.weight");
    d.network(|i| {
        let attention = d.normed_attention(i, Some(&rope), normed)?;
        let feed_forward = d.plain(i, Activation::GeluTanh)?;
        Ok(Block {
            mixer_norm: d.norm(i, "attn_norm")?,
            parallel: true,
            ..bare_block(attention, feed_forward)
        })
    })
}
