//! `spark2_5`: Spark X2.5. Heads have gates, and layers with a window a rotary embedding of their own, perhaps of fewer elements.

use super::decoder::{Decoder, Windows};
use super::{Activation, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

const LOCAL_DIMENSIONS: &str = "rope.dimension_count_swa";

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "spark2_5", NormKind::Rms)?;
    d.refuse_experts()?;
    let source = &d.source;
    source.size("attention.sliding_window")?;
    // No pattern goes without saying.
    source.flags("attention.sliding_window_pattern")?;
    let windows = d.windows(Windows::Everywhere)?;
    let rope = d.rope(RopePairing::Halves)?;
    let local = match source.find_size(LOCAL_DIMENSIONS)? {
        None => d.local_rope(RopePairing::Halves, d.rope_base()?)?,
        Some(_) => {
            let sizes = (d.head_dim, LOCAL_DIMENSIONS, "attention.key_length");
            d.sized_local_rope(RopePairing::Halves, sizes, d.rope_base()?)?
        }
    };
    d.network(|i| {
        let rope = if windows[i].is_some() { &local } else { &rope };
        let mut attention = d.attention(i, Some(rope))?;
        attention.window = windows[i];
        let gate = format!("blk.{i}.attn_gate");
        attention.gate = Some(source.linear(&gate, d.hidden, d.n_heads)?);
        d.pre_norm_block(i, attention, d.gated(i, Activation::Gelu)?)
    })
}
