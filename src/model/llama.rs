//! `llama`: Llama 2 to 3.2, Mistral, Mixtral, TinyLlama, SmolLM2 and others of their shape.

use super::decoder::{Decoder, Windows};
use super::experts::{Mixture, softmax};
use super::{Activation, Network, NormKind, RopePairing};
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
