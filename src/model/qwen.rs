//! `qwen`: Qwen, the first. Its width of feed-forward parts is that of gate and up together.

use super::decoder::Decoder;
use super::{Activation, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    const WIDTH: &str = "feed_forward_length";
    let d = Decoder::read(file, "qwen", NormKind::Rms)?;
    d.refuse_experts()?;
    let rope = d.rope(RopePairing::Halves)?;
    let both = d.n_ff()?;
    if !both.is_multiple_of(2) {
        let problem = format!("is {both}; gate and up must have half of it each");
        return Err(d.source.invalid(WIDTH, &problem));
    }
    d.network(|i| {
        let attention = d.attention(i, Some(&rope))?;
        let feed_forward = d.gated_of(i, both / 2, Activation::Silu)?;
        d.pre_norm_block(i, attention, feed_forward)
    })
}
