//! `minimax-m2`: MiniMax M2, with norms over all heads of q and of k, rope on a part of each head, and
//! experts that are chosen by sigmoids and a bias.

use super::decoder::Decoder;
use super::experts::{Defaults, Mixture, softmax};
use super::{Network, NormKind, RopePairing, Scoring};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "minimax-m2", NormKind::Rms)?;
    let rope = d.rope(RopePairing::Halves)?;
    let experts = Defaults {
        scoring: Scoring::Sigmoid,
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
