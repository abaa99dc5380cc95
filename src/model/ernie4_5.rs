//! `ernie4_5` and `ernie4_5-moe`: ERNIE 4.5, and those with experts in most layers, which are chosen
//! with a bias.

use super::decoder::Decoder;
use super::experts::{Defaults, Mixture, shared_count_ff, softmax};
use super::{Activation, FeedForward, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "ernie4_5", NormKind::Rms)?;
    d.refuse_experts()?;
    network(&d, |i| d.gated(i, Activation::Silu))
}

/// The ones with experts. What files say of the shared expert's width follows from other sizes than
/// the model's own, so that it is taken from the number of shared experts.
pub(super) fn experts(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "ernie4_5-moe", NormKind::Rms)?;
    let experts = Defaults {
        shared_ff: shared_count_ff(&d)?,
        ..softmax(&d)?
    };
    let experts = Mixture::new(&d, experts)?;
    network(&d, |i| experts.or_gated(&d, i))
}

fn network(d: &Decoder, feed_forward: impl Fn(usize) -> Result<FeedForward>) -> Result<Network> {
    let rope = d.rope(RopePairing::Interleaved)?;
    d.network(|i| d.pre_norm_block(i, d.attention(i, Some(&rope))?, feed_forward(i)?))
}
