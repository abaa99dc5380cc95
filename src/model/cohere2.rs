//! `command-r` and `cohere2`: Command R, Aya, Command R7B and Command A. Attention and feed-forward read
//! the same normed input. In `cohere2`, layers with a window have a rotary embedding, those without have
//! none.

use super::decoder::{Decoder, Windows, bare_block};
use super::{Activation, Block, Network, NormKind, RopePairing};
use crate::error::{Result, fail};
use crate::format::ModelFile;

pub(super) fn command_r(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "command-r", NormKind::Layer)?;
    for part in ["attn_q_norm", "attn_k_norm"] {
        if d.source.has(&format!("blk.0.{part}")) {
            fail!(
                Unsupported,
                "tensor blk.0.{part}.weight: norms with weights of their own for each head are not supported"
            );
        }
    }
    let rope = d.rope(RopePairing::Interleaved)?;
    let network = d.network(|i| {
        Ok(Block {
            mixer_norm: d.norm(i, "attn_norm")?,
            parallel: true,
            ..bare_block(d.attention(i, Some(&rope))?, d.gated(i, Activation::Silu)?)
        })
    })?;
    Ok(Network {
        logit_scale: d.source.positive("logit_scale")?,
        ..network
    })
}

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "cohere2", NormKind::Layer)?;
    d.source.size("attention.sliding_window")?;
    let rope = d.rope(RopePairing::Interleaved)?;
    let windows = d.windows(Windows::ButEvery(4))?;
    let network = d.network(|i| {
        let mut attention = d.attention(i, windows[i].map(|_| &rope))?;
        attention.window = windows[i];
        Ok(Block {
            mixer_norm: d.norm(i, "attn_norm")?,
            parallel: true,
            ..bare_block(attention, d.gated(i, Activation::Silu)?)
        })
    })?;
    Ok(Network {
        logit_scale: d.source.positive("logit_scale")?,
        ..network
    })
}
