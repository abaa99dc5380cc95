//! `olmoe`: OLMoE, with experts in all layers and norms over all heads of q and of k.

use super::decoder::Decoder;
use super::experts::{Defaults, Mixture, softmax};
use super::{Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "olmoe", NormKind::Rms)?;
    let rope = d.rope(RopePairing::Halves)?;
    let experts = Defaults {
        // Their weights are shares of what all experts have.
        normalize: false,
        ..softmax(&d)?
    };
    let experts = Mixture::new(&d, experts)?;
    d.network(|i| {
        let mut attention = d.attention(i, Some(&rope))?;
        attention.q_norm = d.norm_of(i, "attn_q_norm", d.n_heads * d.head_dim)?;
        attention.k_norm = d.norm_of(i, "attn_k_norm", d.n_kv_heads * d.head_dim)?;
        d.pre_norm_block(i, attention, experts.layer(&d, i)?)
    })
}
