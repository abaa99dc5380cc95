//! `llama`: Llama 2 to 3.2, Mistral, Mixtral, TinyLlama, SmolLM2 and others of their shape.

use super::decoder::{Decoder, Windows};
use super::experts::{Defaults, Mixture};
use super::{Activation, Network, NormKind, RopePairing, Scoring};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "llama", NormKind::Rms)?;
    let defaults = Defaults {
        scoring: Scoring::Softmax,
        normalize: true,
        activation: Activation::Silu,
        n_ff: Some(d.n_ff()?),
        shared: None,
    };
    let experts = Mixture::find(&d.source, &defaults)?;
    let rope = d.rope(RopePairing::Interleaved)?;
    let windows = d.windows(Windows::Everywhere)?;
    d.network(|i| {
        let mut attention = d.attention(i, Some(&rope))?;
        attention.window = windows[i];
        let feed_forward = match &experts {
            Some(experts) => experts.layer(&d.source, i, d.hidden)?,
            None => d.gated(i, Activation::Silu)?,
        };
        d.pre_norm_block(i, attention, feed_forward)
    })
}
