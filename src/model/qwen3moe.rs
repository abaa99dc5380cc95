//! `qwen3moe`: Qwen 3 with experts.

use super::decoder::Decoder;
use super::experts::{Mixture, softmax};
use super::{Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "qwen3moe", NormKind::Rms)?;
    let rope = d.rope(RopePairing::Halves)?;
    let experts = Mixture::new(&d, softmax(&d)?)?;
    d.network(|i| {
        let mut attention = d.attention(i, Some(&rope))?;
        attention.q_norm = d.norm_of(i, "attn_q_norm", d.head_dim)?;
        attention.k_norm = d.norm_of(i, "attn_k_norm", d.head_dim)?;
        d.pre_norm_block(i, attention, experts.layer(&d, i)?)
    })
}
