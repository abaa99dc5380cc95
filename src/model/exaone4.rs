//! `exaone4`: EXAONE 4, with norms after both parts and of q and k per head. Where the model has a
//! window, layers without it have no rotary embedding. `exaone-moe`: K-EXAONE, with norms before both parts instead, and experts
//! that are chosen by sigmoids and a bias in all layers but the first ones.

use super::decoder::{Decoder, Windows, bare_block};
use super::experts::{Defaults, Mixture, shared_count_ff, softmax};
use super::{Activation, Block, Network, NormKind, RopePairing, Scoring};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "exaone4", NormKind::Rms)?;
    let rope = d.rope(RopePairing::Halves)?;
    let windows = windows(&d)?;
    d.network(|i| {
        let rotated = windows.as_ref().is_none_or(|w| w[i].is_some());
        let mut attention = d.normed_attention(i, rotated.then_some(&rope), true)?;
        attention.window = windows.as_ref().and_then(|w| w[i]);
        Ok(Block {
            mixer_post_norm: d.norm(i, "post_attention_norm")?,
            feed_forward_post_norm: d.norm(i, "post_ffw_norm")?,
            ..bare_block(attention, d.gated(i, Activation::Silu)?)
        })
    })
}

pub(super) fn experts(file: &ModelFile) -> Result<Network> {
    let mut d = Decoder::read(file, "exaone-moe", NormKind::Rms)?;
    d.leave_out_predictors()?;
    let rope = d.rope(RopePairing::Halves)?;
    let windows = windows(&d)?;
    let experts = Defaults {
        scoring: Scoring::Sigmoid,
        shared_ff: shared_count_ff(&d)?,
        ..softmax(&d)?
    };
    let experts = Mixture::new(&d, experts)?;
    d.network(|i| {
        let rotated = windows.as_ref().is_none_or(|w| w[i].is_some());
        let mut attention = d.normed_attention(i, rotated.then_some(&rope), true)?;
        attention.window = windows.as_ref().and_then(|w| w[i]);
        d.pre_norm_block(i, attention, experts.or_gated(&d, i)?)
    })
}

/// The window of each layer, if the model has one. Files of models without may say 0.
fn windows(d: &Decoder) -> Result<Option<Vec<Option<usize>>>> {
    match d.source.find::<u64>("attention.sliding_window")? {
        None | Some(0) => Ok(None),
        Some(_) => d.windows(Windows::ButEvery(4)).map(Some),
    }
}
