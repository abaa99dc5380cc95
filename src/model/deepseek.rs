//! `deepseek` and `bailingmoe`: DeepSeek MoE and Ling 1, as `llama` with a mixture of experts, some of which all tokens share, in all
//! layers but perhaps the first ones.

use super::decoder::Decoder;
use super::experts::{Defaults, Mixture, shared_count_ff, softmax};
use super::{Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    network(Decoder::read(file, "deepseek", NormKind::Rms)?)
}

pub(super) fn bailingmoe(file: &ModelFile) -> Result<Network> {
    network(Decoder::read(file, "bailingmoe", NormKind::Rms)?)
}

fn network(d: Decoder) -> Result<Network> {
    let rope = d.rope(RopePairing::Interleaved)?;
    let experts = Defaults {
        // Their weights are shares of what all experts have.
        normalize: false,
        shared_ff: shared_count_ff(&d)?,
        ..softmax(&d)?
    };
    let experts = Mixture::new(&d, experts)?;
    d.network(|i| {
        let attention = d.attention(i, Some(&rope))?;
        d.pre_norm_block(i, attention, experts.or_gated(&d, i)?)
    })
}
