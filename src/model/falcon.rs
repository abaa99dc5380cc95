//! `falcon`: Falcon 7B, 11B, 40B and 180B. Attention and feed-forward part read the same residual stream,
//! through one Layer norm or, in the larger ones, through one each. In Falcon RW, the feed-forward part reads what attention leaves, and
//! scores fall with the distance instead of rotary positions.

use super::decoder::{Decoder, bare_block};
use super::{Activation, Block, Network, NormKind, RopePairing, slopes};
use crate::error::Result;
use crate::format::ModelFile;
use std::sync::Arc;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "falcon", NormKind::Layer)?;
    d.require(&["attn_norm.bias"])?;
    file.tensor("output_norm.bias")?;
    let apart = d.has_part("attn_norm_2.weight");
    if apart {
        d.require(&["attn_norm_2.bias"])?;
    }
    let parallel = d.source.find::<bool>("use_parallel_residual")?;
    let sequential = !parallel.unwrap_or(!d.has_part("ffn_norm.weight"));
    if sequential {
        d.require(&["ffn_norm.bias"])?;
    }
    // Files of parallel layers that do not name slopes have none. Sequential ones must, because most of them have.
    let slopes = match sequential || d.source.find::<f32>(slopes::MOST)?.is_some() {
        true => slopes::read(&d)?,
        false => None,
    };
    let rope = match slopes {
        Some(_) => None,
        None => Some(d.rope(RopePairing::Halves)?),
    };
    d.network(|i| {
        let mut attention = d.attention(i, rope.as_ref())?;
        // The scale is a factor on what is added to scores, too.
        let scaled = |slopes: &Arc<[f32]>| slopes.iter().map(|s| s * attention.scale).collect();
        attention.slopes = slopes.as_ref().map(scaled);
        if sequential {
            return d.pre_norm_block(i, attention, d.plain(i, Activation::Gelu)?);
        }
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
