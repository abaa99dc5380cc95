//! `glm4moe`, `dots1` and `bailingmoe2`: GLM 4.5 to 4.7, with rope on a part of each head, Solar Open, dots.llm1, and
//! Ling 2. Experts are chosen by sigmoids and a bias in all layers but the first ones.

use super::decoder::{Decoder, bare_block};
use super::experts::{Defaults, Mixture, shared_count_ff, softmax};
use super::{Block, Network, NormKind, RopePairing, Scoring};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    network(file, "glm4moe", "post_attention_norm")
}

pub(super) fn dots1(file: &ModelFile) -> Result<Network> {
    network(file, "dots1", "ffn_norm")
}

/// Queries, keys and values are in one matrix.
pub(super) fn bailingmoe2(file: &ModelFile) -> Result<Network> {
    network(file, "bailingmoe2", "ffn_norm")
}

/// `norm` is that before the feed-forward part.
fn network(file: &ModelFile, architecture: &'static str, norm: &str) -> Result<Network> {
    let mut d = Decoder::read(file, architecture, NormKind::Rms)?;
    d.set_predictors_apart()?;
    let rope = d.rope(RopePairing::Halves)?;
    let experts = Defaults {
        scoring: Scoring::Sigmoid,
        shared_ff: shared_count_ff(&d)?,
        ..softmax(&d)?
    };
    let experts = Mixture::new(&d, experts)?;
    let normed = d.has_part("attn_q_norm.weight") || d.has_part("attn_k_norm.weight");
    d.network(|i| {
        let attention = d.normed_attention(i, Some(&rope), normed)?;
        Ok(Block {
            mixer_norm: d.norm(i, "attn_norm")?,
            feed_forward_norm: d.norm(i, norm)?,
            ..bare_block(attention, experts.or_gated(&d, i)?)
        })
    })
}
