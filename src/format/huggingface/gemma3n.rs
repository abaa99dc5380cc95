//! Keys and tensors of Gemma 3n: several residual streams, and gates that are mostly 0.

use super::json::wrong;
use super::keys::Keys;
use super::rows::Order;
use super::tensors::reordered;
use crate::error::{Error, Result, Status, fail};
use crate::format::{Array, Tensor, Value};
use std::f64::consts::PI;

pub(super) fn keys(k: &mut Keys) -> Result<()> {
    k.config.size(&["hidden_size_per_layer_input"])?;
    let every_fifth = |layer: u64| !(layer + 1).is_multiple_of(5);
    let windowed = k.windowed(every_fifth)?;
    k.set_windows(k.config.size(&["sliding_window"])?, windowed);
    k.set(
        "attention.shared_kv_layers",
        k.count("num_kv_shared_layers")?,
    );
    let width = k.config.size(&["hidden_size_per_layer_input"])?;
    k.set("embedding_length_per_layer_input", width);
    k.set("altup.num_inputs", k.config.size(&["altup_num_inputs"])?);
    k.set("altup.active_idx", k.count("altup_active_idx")?);
    // Files without the key have a limit nevertheless.
    let Some(cap) = k.config.find_f32("final_logit_softcapping")? else {
        fail!(
            Unsupported,
            "config.json: final_logit_softcapping is null, which is not supported in models of gemma3n"
        );
    };
    k.set("final_logit_softcapping", cap);
    sparsity(k)
}

/// Sets from where gates count, in standard deviations above the mean.
fn sparsity(k: &mut Keys) -> Result<()> {
    const KEY: &str = "activation_sparsity_pattern";
    let Some(shares) = k.config.find_array(KEY)? else {
        return Ok(());
    };
    if shares.len() as u64 != k.n_layers {
        let problem = format!(
            "config.json: {KEY} has {} values, but num_hidden_layers is {}",
            shares.len(),
            k.n_layers
        );
        return Err(Error::new(Status::InvalidModel, problem));
    }
    let cutoff = |share: &serde_json::Value| match share.as_f64() {
        Some(0.0) => Ok(f32::NEG_INFINITY),
        Some(share) if share > 0.0 && share < 1.0 => Ok(quantile(share) as f32),
        _ => Err(wrong(KEY, share, "a list of shares below 1")),
    };
    let cutoffs = shares.iter().map(cutoff).collect::<Result<Vec<f32>>>()?;
    k.set(
        "activation_sparsity_scale",
        Value::Array(Array::F32(cutoffs)),
    );
    Ok(())
}

/// The share of a normal distribution below `x` standard deviations above its mean, by the power series of
/// the error function, which a few hundred terms suffice for up to 8 of them.
fn share_below(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for i in 1..400 {
        term *= x * x / f64::from(2 * i + 1);
        sum += term;
    }
    0.5 + sum * (-x * x / 2.0).exp() / (2.0 * PI).sqrt()
}

/// Where that share is below.
fn quantile(share: f64) -> f64 {
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        match share_below(middle) < share {
            true => low = middle,
            false => high = middle,
        }
    }
    (low + high) / 2.0
}

/// Whether a vector is one of factors that the folder has and that its config turns off.
pub(super) fn is_turned_off(k: &Keys, name: &str) -> bool {
    name.ends_with(".altup_correct_scale.weight")
        && k.config.find("altup_correct_scale") == Some(&false.into())
}

/// The embeddings of layers: those of tokens that have none, behind `vocab_size_per_layer_input`, are the first token's.
pub(super) fn layer_embeddings(k: &Keys, tensor: Tensor) -> Result<Tensor> {
    let n_vocab = k.config.size(&["vocab_size"])?;
    let known = k.config.find_size("vocab_size_per_layer_input")?;
    match (known, &tensor.dims[..]) {
        (Some(known), &[width, rows]) if rows as u64 == known && known < n_vocab => {
            let dims = vec![width, n_vocab as usize];
            reordered(tensor, Order::Known(rows), Some(dims))
        }
        _ => Ok(tensor),
    }
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn quantiles_are_those_of_tables() {
        for (share, expected) in [
            (0.5, 0.0),
            (0.95, 1.644_853_626_951),
            (0.2, -0.841_621_233_573),
        ] {
            assert!((quantile(share) - expected).abs() < 1e-9, "{share}");
        }
    }
}
