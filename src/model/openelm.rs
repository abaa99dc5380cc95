//! `openelm`: OpenELM, with norms of queries and keys per head, and numbers of heads and widths of feed-forward parts by layer.

use super::decoder::Decoder;
use super::{Activation, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read_uneven(file, "openelm", NormKind::Rms)?;
    d.refuse_experts()?;
    let rope = d.rope(RopePairing::Halves)?;
    let heads = d.heads_by_layer()?;
    let widths = d.source.sizes("feed_forward_length", d.n_layers)?;
    d.network(|i| {
        let mut attention = d.attention_by_heads(i, heads[i], Some(&rope))?;
        attention.q_norm = d.norm_of(i, "attn_q_norm", d.head_dim)?;
        attention.k_norm = d.norm_of(i, "attn_k_norm", d.head_dim)?;
        let feed_forward = d.gated_of(i, widths[i], Activation::Silu)?;
        d.pre_norm_block(i, attention, feed_forward)
    })
}
