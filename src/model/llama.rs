//! `llama`: Llama 2 to 3.2, Mistral, Mixtral, TinyLlama, SmolLM2 and others of their shape. `internlm2`, `xverse` and
//! `baichuan` are the same without experts and windows.

use super::decoder::{Decoder, Windows};
use super::experts::{Mixture, softmax};
use super::{Activation, Network, NormKind, RopePairing, slopes};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "llama", NormKind::Rms)?;
    let experts = Mixture::find(&d, softmax(&d)?)?;
    let rope = d.rope(RopePairing::Interleaved)?;
    let windows = d.windows(Windows::Everywhere)?;
    d.network(|i| {
        let mut attention = d.attention(i, Some(&rope))?;
        attention.window = windows[i];
        let feed_forward = match &experts {
            Some(experts) => experts.layer(&d, i)?,
            None => d.gated(i, Activation::Silu)?,
        };
        d.pre_norm_block(i, attention, feed_forward)
    })
}

pub(super) fn internlm2(file: &ModelFile) -> Result<Network> {
    dense(&Decoder::read(file, "internlm2", NormKind::Rms)?)
}

pub(super) fn xverse(file: &ModelFile) -> Result<Network> {
    dense(&Decoder::read(file, "xverse", NormKind::Rms)?)
}

/// Those of 13B parameters have no rope, but scores that fall with the distance. Only the number of layers
/// tells them from the others.
pub(super) fn baichuan(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "baichuan", NormKind::Rms)?;
    if d.n_layers != 40 {
        return dense(&d);
    }
    falling(&d)
}

/// Refact, whose scores fall with the distance.
pub(super) fn refact(file: &ModelFile) -> Result<Network> {
    falling(&Decoder::read(file, "refact", NormKind::Rms)?)
}

/// Without a rotary embedding: scores fall with the distance, as steeply as in ALiBi's paper.
fn falling(d: &Decoder) -> Result<Network> {
    d.refuse_experts()?;
    let slopes = slopes::slopes(d.n_heads, 8.0);
    d.network(|i| {
        let mut attention = d.attention(i, None)?;
        attention.slopes = Some(slopes.clone());
        d.pre_norm_block(i, attention, d.gated(i, Activation::Silu)?)
    })
}

fn dense(d: &Decoder) -> Result<Network> {
    d.refuse_experts()?;
    let rope = d.rope(RopePairing::Interleaved)?;
    d.network(|i| {
        let attention = d.attention(i, Some(&rope))?;
        d.pre_norm_block(i, attention, d.gated(i, Activation::Silu)?)
    })
}
