//! `phimoe`: Phi-3.5-MoE and its smaller relatives, with two experts for each token, each of which counts as much as it stands out
//! (SparseMixer, arXiv:2409.12136).

use super::decoder::{Decoder, Windows};
use super::experts::{Defaults, Mixture, softmax};
use super::{Network, NormKind, Rope, RopePairing, Scoring};
use crate::error::{Result, fail};
use crate::format::ModelFile;

const USED: &str = "expert_used_count";
/// How near to the largest score others are that count, as a share of it. GGUF has no key of this name; all models have the
/// same share.
const JITTER: &str = "router_jitter_noise";
const USUAL_JITTER: f32 = 0.01;
/// The factor on q and k that Phi-3.5-MoE was trained with. Converters write that of Phi 3.
const MAGNITUDE: f32 = 1.243_163_1;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "phimoe", NormKind::Layer)?;
    if d.has_part("attn_norm.bias") {
        file.tensor("output_norm.bias")?;
    }
    let jitter = d.source.find_positive(JITTER)?.unwrap_or(USUAL_JITTER);
    let experts = Defaults {
        scoring: Scoring::SparseMixer { jitter },
        normalize: false,
        ..softmax(&d)?
    };
    let experts = Mixture::new(&d, experts)?;
    let used = d.source.size(USED)?;
    if used != 2 {
        fail!(
            Unsupported,
            "{} is {used}; only 2 is supported in this architecture",
            d.source.key_name(USED)
        );
    }
    let rope = rope(&d)?;
    // Files of models without a window say 0.
    let windows = match d.source.find::<u64>("attention.sliding_window")? {
        Some(0) => vec![None; d.n_layers],
        _ => d.windows(Windows::Everywhere)?,
    };
    d.network(|i| {
        let mut attention = d.attention(i, Some(&rope))?;
        attention.window = windows[i];
        d.pre_norm_block(i, attention, experts.layer(&d, i)?)
    })
}

fn rope(d: &Decoder) -> Result<Rope> {
    let mut rope = d.rope(RopePairing::Halves)?;
    // Phi 3's for a context that is 32 times as long as the original one of 4096.
    let of_phi3 = (1.0 + 32f64.ln() / 4096f64.ln()).sqrt() as f32;
    let above = rope.long.as_ref().map(|long| long.above);
    if above == Some(4096) && (rope.magnitude - of_phi3).abs() < 1e-4 {
        rope.magnitude = MAGNITUDE;
    }
    Ok(rope)
}
