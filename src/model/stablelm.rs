//! `stablelm`: StableLM 3B and StableLM 2, with Layer norms and rope on a part of each head. In some,
//! attention and feed-forward part read the same normed input; the largest has norms of queries and keys, with weights of each
//! head. `orion`: Orion 14B, the same with rope on whole heads.

use super::decoder::{Decoder, bare_block};
use super::{Activation, Block, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    network(file, "stablelm")
}

pub(super) fn orion(file: &ModelFile) -> Result<Network> {
    network(file, "orion")
}

fn network(file: &ModelFile, architecture: &'static str) -> Result<Network> {
    let d = Decoder::read(file, architecture, NormKind::Layer)?;
    let normed = d.has_part("attn_q_norm.weight") || d.has_part("attn_k_norm.weight");
    d.require(&["attn_norm.bias"])?;
    file.tensor("output_norm.bias")?;
    let rope = d.rope(RopePairing::Halves)?;
    let parallel = match d.source.find::<bool>("use_parallel_residual")? {
        // The largest alone has no norm before the feed-forward part.
        None => !d.has_part("ffn_norm.weight"),
        Some(parallel) => parallel && !d.has_part("ffn_norm.weight"),
    };
    if !parallel {
        d.require(&["ffn_norm.bias"])?;
    }
    d.network(|i| {
        let mut attention = d.attention(i, Some(&rope))?;
        if normed {
            d.norm_each_head(i, &mut attention)?;
        }
        let feed_forward = d.gated(i, Activation::Silu)?;
        Ok(Block {
            mixer_norm: d.norm(i, "attn_norm")?,
            feed_forward_norm: match parallel {
                true => None,
                false => d.norm(i, "ffn_norm")?,
            },
            parallel,
            ..bare_block(attention, feed_forward)
        })
    })
}
