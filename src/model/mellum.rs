//! `mellum`: Mellum 2. Qwen 3 with experts, and with windows in most layers, whose frequencies are not scaled and may have a base of
//! their own.

use super::decoder::{Decoder, Windows};
use super::experts::{Mixture, softmax};
use super::{Network, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "mellum", NormKind::Rms)?;
    let rope = d.rope(RopePairing::Halves)?;
    let local = d.local_rope(RopePairing::Halves, d.rope_base()?)?;
    let windows = d.windows(Windows::ButEvery(4))?;
    let experts = Mixture::new(&d, softmax(&d)?)?;
    d.network(|i| {
        let rope = if windows[i].is_some() { &local } else { &rope };
        let mut attention = d.normed_attention(i, Some(rope), true)?;
        attention.window = windows[i];
        d.pre_norm_block(i, attention, experts.or_gated(&d, i)?)
    })
}
