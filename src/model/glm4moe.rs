//! `glm4moe`, `dots1`, `bailingmoe2` and `hy_v3`: GLM 4.5 to 4.7, with rope on a part of each head, Solar Open, dots.llm1,
//! Ling 2, and Hy3. Experts are chosen by sigmoids and a bias in all layers but the first ones.

use super::decoder::{Decoder, bare_block};
use super::experts::{Defaults, Mixture, shared_count_ff, shared_ff, softmax};
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

/// Files name the width of the shared expert, and not how many there were.
pub(super) fn hy_v3(file: &ModelFile) -> Result<Network> {
    network(file, "hy_v3", "ffn_norm")
}

/// `norm` is that before the feed-forward part.
fn network(file: &ModelFile, architecture: &'static str, norm: &str) -> Result<Network> {
    let mut d = Decoder::read(file, architecture, NormKind::Rms)?;
    d.set_predictors_apart()?;
    let rope = d.rope(RopePairing::Halves)?;
    let experts = Defaults {
        scoring: Scoring::Sigmoid,
        shared_ff: match architecture {
            "hy_v3" => shared_ff(&d)?,
            _ => shared_count_ff(&d)?,
        },
        ..softmax(&d)?
    };
    let mut experts = Mixture::new(&d, experts)?;
    if architecture == "hy_v3" {
        experts.set_first_by_router(&d);
    }
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
