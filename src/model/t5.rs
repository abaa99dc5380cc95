//! `t5encoder`: the encoders of T5 models, also FLAN-T5's and UMT5's. Blocks have their norms before the parts, scores are not
//! scaled, and positions are numbers that scores get by the distance: those of the first layer in all layers, or each layer has its own.

use super::decoder::Decoder;
use super::{Activation, Attention, Network, NormKind, distances};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn encoder(file: &ModelFile) -> Result<Network> {
    let mut d = Decoder::read(file, "t5encoder", NormKind::Rms)?;
    d.causal = false;
    d.scale = 1.0;
    d.refuse_experts()?;
    let buckets = distances::buckets(&d.source)?;
    let name = |layer| d.source.part(layer, "attn_rel_b");
    let own = (1..d.n_layers).any(|layer| d.source.has(&name(layer)));
    let gated = d.has_part("ffn_gate.weight");
    let final_norm = || {
        let norm = "enc.output_norm";
        d.source.norm(norm, d.hidden, NormKind::Rms, d.eps)
    };
    d.network_with(d.n_layers, final_norm, |i| {
        let numbers = format!("{}.weight", name(if own { i } else { 0 }));
        let attention = Attention {
            distances: Some(distances::read(&d, &numbers, &buckets)?),
            ..d.attention(i, None)?
        };
        let feed_forward = match gated {
            true => d.gated(i, Activation::GeluTanh)?,
            false => d.plain(i, Activation::Relu)?,
        };
        d.pre_norm_block(i, attention, feed_forward)
    })
}
