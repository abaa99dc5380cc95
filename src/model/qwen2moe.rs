//! `qwen2moe`: Qwen 1.5 and 2 with experts, one of which all tokens share.

use super::decoder::Decoder;
use super::experts::{Defaults, Mixture, shared_ff, softmax};
use super::{Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "qwen2moe", NormKind::Rms)?;
    let rope = d.rope(RopePairing::Halves)?;
    let experts = Defaults {
        // Their weights are shares of what all experts have.
        normalize: false,
        shared_ff: match shared_ff(&d)? {
            None => Some(d.n_ff()?),
            found => found,
        },
        ..softmax(&d)?
    };
    let experts = Mixture::new(&d, experts)?;
    d.network(|i| {
        let attention = d.attention(i, Some(&rope))?;
        d.pre_norm_block(i, attention, experts.layer(&d, i)?)
    })
}
