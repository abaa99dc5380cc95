//! `exaone4`: EXAONE 4, with norms after both parts and of q and k per head. Where some layers have a
//! window, the others have no rotary embedding.

use super::decoder::{Decoder, Windows, bare_block};
use super::{Activation, Block, Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "exaone4", NormKind::Rms)?;
    let rope = d.rope(RopePairing::Halves)?;
    // Files of models without a window may say 0.
    let windows = match d.source.find::<u64>("attention.sliding_window")? {
        Some(0) => vec![None; d.n_layers],
        _ => d.windows(Windows::ButEvery(4))?,
    };
    let hybrid = windows.iter().any(Option::is_some);
    d.network(|i| {
        let rotated = !hybrid || windows[i].is_some();
        let mut attention = d.normed_attention(i, rotated.then_some(&rope), true)?;
        attention.window = windows[i];
        Ok(Block {
            mixer_post_norm: d.norm(i, "post_attention_norm")?,
            feed_forward_post_norm: d.norm(i, "post_ffw_norm")?,
            ..bare_block(attention, d.gated(i, Activation::Silu)?)
        })
    })
}
