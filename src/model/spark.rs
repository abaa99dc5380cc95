//! `spark2_5`: Spark X2.5. Heads have gates, and layers with a window a rotary embedding of their own, perhaps of fewer elements.

use super::decoder::Decoder;
use super::{Activation, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "spark2_5", NormKind::Rms)?;
    d.refuse_experts()?;
    let source = &d.source;
    let windows = d.listed_windows()?;
    let rope = d.rope(RopePairing::Halves)?;
    let local = d.own_local_rope(RopePairing::Halves)?;
    d.network(|i| {
        let rope = if windows[i].is_some() { &local } else { &rope };
        let mut attention = d.attention(i, Some(rope))?;
        attention.window = windows[i];
        let gate = format!("blk.{i}.attn_gate");
        attention.gate = Some(source.linear(&gate, d.hidden, d.n_heads)?);
        d.pre_norm_block(i, attention, d.gated(i, Activation::Gelu)?)
    })
}
