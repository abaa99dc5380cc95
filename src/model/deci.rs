//! `deci`: DeciLM and the Nemotrons that were made of Llama by leaving out (Super 49B, Ultra 253B): layers differ in numbers of heads and widths,
//! and some have no attention, or no feed-forward part.

use super::decoder::{Decoder, bare_block};
use super::{Activation, Block, FeedForward, Mixer, Network, NormKind, RopePairing};
use crate::error::{Result, fail};
use crate::format::ModelFile;

const KV_HEADS: &str = "attention.head_count_kv";

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read_uneven(file, "deci", NormKind::Rms)?;
    d.refuse_experts()?;
    let rope = d.rope(RopePairing::Interleaved)?;
    let of_layers = |key: &str| d.source.sizes_or_none(key, d.n_layers);
    let (heads, kv_heads) = (of_layers("attention.head_count")?, of_layers(KV_HEADS)?);
    let widths = of_layers("feed_forward_length")?;
    d.network(|i| {
        let (mixer, mixer_norm) = match (heads[i], kv_heads[i]) {
            (0, _) => (Mixer::Absent, None),
            (_, 0) => fail!(
                Unsupported,
                "{} is 0 in layer {i}, which has heads: a matrix in place of attention is not supported",
                d.source.key_name(KV_HEADS)
            ),
            own => {
                d.check_heads(own)?;
                let attention = d.attention_by_heads(i, own, Some(&rope))?;
                (attention.into(), d.norm(i, "attn_norm")?)
            }
        };
        let (feed_forward, feed_forward_norm) = match widths[i] {
            0 => (FeedForward::None, None),
            width => {
                let part = d.gated_of(i, width, Activation::Silu)?;
                (part, d.norm(i, "ffn_norm")?)
            }
        };
        Ok(Block {
            mixer_norm,
            feed_forward_norm,
            ..bare_block(mixer, feed_forward)
        })
    })
}
