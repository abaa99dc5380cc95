//! `falcon`: Falcon 7B, 11B, 40B and 180B. Attention and feed-forward part read the same residual stream,
//! through one Layer norm or, in the larger ones, through one each.

use super::decoder::{Decoder, bare_block};
use super::{Activation, Block, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "falcon", NormKind::Layer)?;
    d.require(&["attn_norm.bias"])?;
    file.tensor("output_norm.bias")?;
    let apart = d.has_part("attn_norm_2.weight");
    if apart {
        d.require(&["attn_norm_2.bias"])?;
    }
    let rope = d.rope(RopePairing::Halves)?;
    d.network(|i| {
        let attention = d.attention(i, Some(&rope))?;
        // Where there are two, the first is the feed-forward part's.
        let (mixer_norm, feed_forward_norm) = match apart {
            true => (d.norm(i, "attn_norm_2")?, d.norm(i, "attn_norm")?),
            false => (d.norm(i, "attn_norm")?, None),
        };
        Ok(Block {
            mixer_norm,
            feed_forward_norm,
            parallel: true,
            ..bare_block(attention, d.plain(i, Activation::Gelu)?)
        })
    })
}
