//! `gpt-oss`: experts with biases, attention with sinks, windows in every other layer.

use super::decoder::{Decoder, Windows, bare_block};
use super::experts::{Defaults, Mixture, softmax};
use super::{Activation, Block, Network, NormKind, RopePairing, Scoring};
use crate::error::Result;
use crate::format::ModelFile;

/// No file has these two.
const ACTIVATION: Activation = Activation::ClampedSwiglu {
    alpha: 1.702,
    limit: 7.0,
};

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "gpt-oss", NormKind::Rms)?;
    let rope = d.rope(RopePairing::Halves)?;
    let windows = d.windows(Windows::ButEvery(2))?;
    let experts = Defaults {
        scoring: Scoring::SoftmaxOfChosen,
        activation: ACTIVATION,
        ..softmax(&d)?
    };
    let experts = Mixture::new(&d, experts)?;
    d.network(|i| {
        let mut attention = d.attention(i, Some(&rope))?;
        attention.window = windows[i];
        let sinks = format!("blk.{i}.attn_sinks.weight");
        attention.sinks = Some(d.source.vector(&sinks, d.n_heads)?);
        Ok(Block {
            mixer_norm: d.norm(i, "attn_norm")?,
            feed_forward_norm: d.norm(i, "post_attention_norm")?,
            ..bare_block(attention, experts.layer(&d, i)?)
        })
    })
}
