//! `apertus`: Apertus, with norms of q and k per head, and a feed-forward part without a gate whose
//! activation has two numbers of its own in each layer.

use super::decoder::Decoder;
use super::{Activation, Network, NormKind, RopePairing};
use crate::error::{Result, fail};
use crate::format::{ModelFile, Value};

/// The same in all models.
const BETA: f32 = 0.5;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    const BETA_KEY: &str = "xielu.beta";
    let d = Decoder::read(file, "apertus", NormKind::Rms)?;
    d.refuse_experts()?;
    for beta in numbers(&d, BETA_KEY)? {
        if beta != BETA {
            fail!(
                Unsupported,
                "{BETA_KEY} is {beta}; only {BETA} is supported"
            );
        }
    }
    // `xielu.eps` only keeps other implementations from a difference of nearly equal numbers.
    let alpha_p = numbers(&d, "xielu.alpha_p")?;
    let alpha_n = numbers(&d, "xielu.alpha_n")?;
    let rope = d.rope(RopePairing::Halves)?;
    d.network(|i| {
        let attention = d.normed_attention(i, Some(&rope), true)?;
        let activation = Activation::Xielu {
            alpha_p: softplus(alpha_p[i]),
            alpha_n: BETA + softplus(alpha_n[i]),
        };
        d.pre_norm_block(i, attention, d.plain(i, activation)?)
    })
}

/// A number per layer, or one for all. These keys are without the name of the architecture.
fn numbers(d: &Decoder, key: &str) -> Result<Vec<f32>> {
    let file = d.source.file;
    let values: Vec<f32> = match file.metadata.get(key) {
        Some(Value::Array(_)) => file.get(key)?,
        _ => vec![file.f32(key)?; d.n_layers],
    };
    if values.len() != d.n_layers {
        fail!(
            InvalidModel,
            "{key} has {} values, but {} is {}",
            values.len(),
            d.source.key_name("block_count"),
            d.n_layers
        );
    }
    if let Some(wrong) = values.iter().find(|v| v.is_nan() || v.abs() >= 1e6) {
        fail!(InvalidModel, "{key} has the value {wrong}");
    }
    Ok(values)
}

fn softplus(x: f32) -> f32 {
    let x = f64::from(x);
    (x.max(0.0) + (-x.abs()).exp().ln_1p()) as f32
}
