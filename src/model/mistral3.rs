//! `mistral3`: Ministral 3 and Mistral Small 3.1 (text), as `llama` with queries that grow with their
//! position beyond the original context.

use super::decoder::{Decoder, Windows};
use super::experts::{Mixture, softmax};
use super::{Activation, Network, NormKind, RopePairing, Temperature};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "mistral3", NormKind::Rms)?;
    let experts = Mixture::find(&d, softmax(&d)?)?;
    let rope = d.rope(RopePairing::Interleaved)?;
    let windows = d.windows(Windows::Everywhere)?;
    let temperature = temperature(&d)?;
    d.network(|i| {
        let mut attention = d.attention(i, Some(&rope))?;
        attention.window = windows[i];
        attention.temperature = temperature;
        let feed_forward = match &experts {
            Some(experts) => experts.layer(&d, i)?,
            None => d.gated(i, Activation::Silu)?,
        };
        d.pre_norm_block(i, attention, feed_forward)
    })
}

/// The factor on the queries, if the file has one. Its steps are as long as the original context,
/// unless it says otherwise.
pub(super) fn temperature(d: &Decoder) -> Result<Option<Temperature>> {
    const SCALE: &str = "attention.temperature_scale";
    let source = &d.source;
    if matches!(source.find::<f32>(SCALE)?, None | Some(0.0)) {
        return Ok(None);
    }
    let length = match source.find_size("attention.temperature_length")? {
        None => source.find_size("rope.scaling.original_context_length")?,
        found => found,
    };
    Ok(Some(Temperature {
        scale: source.positive(SCALE)?,
        length: length.unwrap_or(d.context_length) as f32,
        offset: 0,
    }))
}
