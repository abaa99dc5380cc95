//! `gptneox`: Pythia and GPT-NeoX, with Layer norms, biases, and rope on a part of each head. In most,
//! attention and feed-forward part read the same residual stream, each through a norm of its own.

use super::decoder::Decoder;
use super::{Activation, Block, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "gptneox", NormKind::Layer)?;
    d.require(&["attn_norm.bias", "ffn_norm.bias", "ffn_up.bias"])?;
    d.require(&["ffn_down.bias"])?;
    file.tensor("output_norm.bias")?;
    let rope = d.rope(RopePairing::Halves)?;
    let parallel = d.source.find("use_parallel_residual")?.unwrap_or(true);
    d.network(|i| {
        let attention = d.attention(i, Some(&rope))?;
        Ok(Block {
            parallel,
            ..d.pre_norm_block(i, attention, d.plain(i, Activation::Gelu)?)?
        })
    })
}
