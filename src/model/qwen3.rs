//! `qwen3`: Qwen 3, with norms of q and k per head.

use super::decoder::{Decoder, Windows};
use super::{Activation, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "qwen3", NormKind::Rms)?;
    let rope = d.rope(RopePairing::Halves)?;
    let windows = d.windows(Windows::Everywhere)?;
    d.network(|i| {
        let mut attention = d.attention(i, Some(&rope))?;
        attention.q_norm = d.norm_of(i, "attn_q_norm", d.head_dim)?;
        attention.k_norm = d.norm_of(i, "attn_k_norm", d.head_dim)?;
        attention.window = windows[i];
        d.pre_norm_block(i, attention, d.gated(i, Activation::Silu)?)
    })
}
