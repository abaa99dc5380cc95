//! `deci`: DeciLM and the Nemotrons that were made of Llama by leaving out (Super 49B, Ultra 253B): layers differ in numbers of heads and widths,
//! and some have no attention, or no feed-forward part.

use super::decoder::{Decoder, bare_block};
use super::hybrid::per_layer;
use super::{Activation, Block, FeedForward, Mixer, Network, NormKind, RopePairing};
use crate::error::{Result, fail};
use crate::format::ModelFile;

const HEADS: &str = "attention.head_count";
const KV_HEADS: &str = "attention.head_count_kv";
const WIDTHS: &str = "feed_forward_length";

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read_uneven(file, "deci", NormKind::Rms)?;
    d.refuse_experts()?;
    let rope = d.rope(RopePairing::Interleaved)?;
    let [heads, kv_heads, widths] = [HEADS, KV_HEADS, WIDTHS].map(|key| of_layers(&d, key));
    let (heads, kv_heads, widths) = (heads?, kv_heads?, widths?);
    d.network(|i| {
        let (mixer, mixer_norm) = match (heads[i], kv_heads[i]) {
            (0, _) => (Mixer::Absent, None),
            (_, 0) => fail!(
                Unsupported,
                "{} is 0 in layer {i}, which has heads: a matrix in place of attention is not supported",
                d.source.key_name(KV_HEADS)
            ),
            (n, kv) if !n.is_multiple_of(kv) => {
                let problem = format!("has {n}, which the {kv} KV heads do not divide");
                return Err(d.source.invalid(HEADS, &problem));
            }
            own => {
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

/// A number of each layer, which may be 0.
fn of_layers(d: &Decoder, key: &str) -> Result<Vec<usize>> {
    let Some(all) = per_layer(&d.source, key, d.n_layers)? else {
        return Ok(vec![d.source.size(key)?; d.n_layers]);
    };
    let sizes = all.into_iter().map(|n| match n {
        0 => Ok(0),
        n => d.source.check_size(key, n),
    });
    sizes.collect()
}
