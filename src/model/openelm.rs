//! `openelm`: OpenELM, with norms of queries and keys per head, and numbers of heads and widths of feed-forward parts by layer.

use super::decoder::Decoder;
use super::{Activation, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

const HEADS: &str = "attention.head_count";
const KV_HEADS: &str = "attention.head_count_kv";

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read_uneven(file, "openelm", NormKind::Rms)?;
    d.refuse_experts()?;
    let rope = d.rope(RopePairing::Halves)?;
    let sizes = |key| d.source.sizes(key, d.n_layers);
    let (n_heads, n_kv_heads) = (sizes(HEADS)?, sizes(KV_HEADS)?);
    let widths = sizes("feed_forward_length")?;
    for (heads, kv) in n_heads.iter().zip(&n_kv_heads) {
        if !heads.is_multiple_of(*kv) {
            let problem = format!("has {heads}, which the {kv} KV heads do not divide");
            return Err(d.source.invalid(HEADS, &problem));
        }
    }
    d.network(|i| {
        let (n_heads, n_kv_heads) = (n_heads[i], n_kv_heads[i]);
        let lens = [n_heads, n_kv_heads, n_kv_heads].map(|heads| heads * d.head_dim);
        let matrices = d.qkv(i, lens)?;
        let mut attention = d.attention_of(i, (n_heads, n_kv_heads), matrices, Some(&rope))?;
        attention.q_norm = d.norm_of(i, "attn_q_norm", d.head_dim)?;
        attention.k_norm = d.norm_of(i, "attn_k_norm", d.head_dim)?;
        let feed_forward = d.gated_of(i, widths[i], Activation::Silu)?;
        d.pre_norm_block(i, attention, feed_forward)
    })
}
