//! `hunyuan-dense` and `hunyuan-moe`: Hunyuan V1, with norms of q and k per head after the rotary
//! embedding, and those with experts, one of which all tokens share. `hunyuan_vl`: the text part of those that see. `maincoder`: the
//! first of these, whose rotary embedding pairs neighbours.

use super::decoder::Decoder;
use super::experts::{Defaults, Mixture, shared_ff, softmax};
use super::{Activation, FeedForward, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    dense(file, "hunyuan-dense", RopePairing::Halves)
}

/// Of text, all three numbers of a position are the same.
pub(super) fn vision(file: &ModelFile) -> Result<Network> {
    dense(file, "hunyuan_vl", RopePairing::Halves)
}

pub(super) fn maincoder(file: &ModelFile) -> Result<Network> {
    dense(file, "maincoder", RopePairing::Interleaved)
}

fn dense(file: &ModelFile, architecture: &'static str, pairing: RopePairing) -> Result<Network> {
    let d = Decoder::read(file, architecture, NormKind::Rms)?;
    d.refuse_experts()?;
    network(&d, pairing, |i| d.gated(i, Activation::Silu))
}

/// The ones with experts.
pub(super) fn experts(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "hunyuan-moe", NormKind::Rms)?;
    let experts = Defaults {
        shared_ff: match shared_ff(&d)? {
            None => Some(d.n_ff()?),
            found => found,
        },
        ..softmax(&d)?
    };
    let experts = Mixture::new(&d, experts)?;
    network(&d, RopePairing::Halves, |i| experts.layer(&d, i))
}

fn network(
    d: &Decoder,
    pairing: RopePairing,
    feed_forward: impl Fn(usize) -> Result<FeedForward>,
) -> Result<Network> {
    let rope = d.rope(pairing)?;
    d.network(|i| {
        let mut attention = d.normed_attention(i, Some(&rope), true)?;
        attention.norm_after_rope = true;
        d.pre_norm_block(i, attention, feed_forward(i)?)
    })
}
