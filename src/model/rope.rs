//! Rotary position embedding: from the keys of a file to one frequency per pair.
//!
//! The plain frequencies are `base^(-2i/n)` for the pairs `i` of `n` rotated elements (RoFormer,
//! arXiv:2104.09864). `rope_freqs.weight` divides them, pair by pair; that is how files carry the
//! scaling of Llama 3.1. Linear scaling divides all by one factor. YaRN (arXiv:2309.00071) divides
//! only those that turn less than `beta_slow` times within the original context, leaves alone those
//! that turn more than `beta_fast` times, and blends between.

use super::source::Source;
use super::{Rope, RopePairing};
use crate::error::{Error, Result, Status, fail, try_vec};
use crate::format::Tensor;
use std::f64::consts::PI;

/// How positions beyond the original context are reached.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scaling {
    None,
    Linear {
        factor: f64,
    },
    Yarn {
        factor: f64,
        original_context: f64,
        /// Share of the unscaled frequencies in the blend, normally 1.
        extrapolation: f64,
        beta_fast: f64,
        beta_slow: f64,
    },
}

/// The rotary embedding that the keys `rope.*` describe, for heads of `head_dim` elements.
pub(super) fn from_source(
    source: &Source,
    head_dim: usize,
    context_length: usize,
    pairing: RopePairing,
) -> Result<Rope> {
    const DIMENSIONS: &str = "rope.dimension_count";
    const BASE: &str = "rope.freq_base";
    let n_rotated = source.find_size(DIMENSIONS)?.unwrap_or(head_dim);
    if n_rotated % 2 != 0 || n_rotated > head_dim {
        return Err(source.invalid(
            DIMENSIONS,
            &format!("is {n_rotated}; it must be even and at most the head size {head_dim}"),
        ));
    }
    let base = f64::from(source.find_positive(BASE)?.unwrap_or(10_000.0));
    if base <= 1.0 {
        return Err(source.invalid(BASE, &format!("is {base}; it must be above 1")));
    }

    let mut frequencies = try_vec(n_rotated / 2, 0.0, "rope frequencies")?;
    for (i, frequency) in frequencies.iter_mut().enumerate() {
        *frequency = base.powf(-((2 * i) as f64) / n_rotated as f64);
    }
    if let Some(factors) = source.find_vector("rope_freqs.weight", n_rotated / 2)? {
        divide(&mut frequencies, &factors)?;
    }
    let scaling = scaling(source, context_length)?;
    scale(&mut frequencies, base, &scaling);

    let attention_factor = |key: &str| Ok(f64::from(source.find_positive(key)?.unwrap_or(1.0)));
    let mut magnitude = magnitude(&scaling) * attention_factor("rope.scaling.attn_factor")?;
    if matches!(scaling, Scaling::Yarn { .. }) {
        magnitude *= attention_factor("rope.scaling.yarn_attn_factor")?;
    }
    let inv_freq = frequencies.iter().map(|&f| f as f32).collect();
    let rope = Rope {
        inv_freq,
        magnitude: magnitude as f32,
        pairing,
        long: None,
    };
    if !rope.magnitude.is_finite() || rope.inv_freq.iter().any(|f| !f.is_finite()) {
        let problem = format!("and its scaling give no finite frequencies: {scaling:?}");
        return Err(source.invalid(BASE, &problem));
    }
    Ok(rope)
}

fn divide(frequencies: &mut [f64], factors: &Tensor) -> Result<()> {
    let Some(factors) = factors.to_f32() else {
        fail!(
            ShapeMismatch,
            "tensor {} has type {}; it must be F32, F16 or BF16",
            factors.name,
            factors.ty.name()
        );
    };
    for (i, (frequency, factor)) in frequencies.iter_mut().zip(factors).enumerate() {
        if !(factor.is_finite() && factor > 0.0) {
            fail!(
                InvalidModel,
                "element {i} of tensor rope_freqs.weight is {factor}; it must be finite and above 0"
            );
        }
        *frequency /= f64::from(factor);
    }
    Ok(())
}

fn scaling(source: &Source, context_length: usize) -> Result<Scaling> {
    const TYPE: &str = "rope.scaling.type";
    const FACTOR: &str = "rope.scaling.factor";
    const LEGACY_FACTOR: &str = "rope.scale_linear";
    const LOG_MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";
    // A factor of 0 stands for none.
    let factor = |key: &str| -> Result<Option<f64>> {
        match source.find::<f32>(key)? {
            None | Some(0.0) => Ok(None),
            Some(_) => Ok(source.find_positive(key)?.map(f64::from)),
        }
    };
    let factor = match factor(FACTOR)? {
        Some(factor) => Some(factor),
        None => factor(LEGACY_FACTOR)?,
    };
    // Files older than the type's key scale linearly, if at all.
    match (source.find(TYPE)?.unwrap_or("linear"), factor) {
        ("none", _) => Ok(Scaling::None),
        ("linear", Some(factor)) => Ok(Scaling::Linear { factor }),
        ("linear", None) => Ok(Scaling::None),
        ("yarn", Some(factor)) => {
            if let Some(multiplier) = source.find::<f32>(LOG_MULTIPLIER)?
                && multiplier != 0.0
            {
                // Converters disagree on what the number means.
                fail!(
                    Unsupported,
                    "{} is {multiplier}; only 0 is supported",
                    source.key(LOG_MULTIPLIER)
                );
            }
            let extrapolation = source.find::<f32>("rope.scaling.yarn_ext_factor")?;
            let beta =
                |key, default: f32| Ok(f64::from(source.find_positive(key)?.unwrap_or(default)));
            let original_context = source.find_size("rope.scaling.original_context_length")?;
            Ok(Scaling::Yarn {
                factor,
                original_context: original_context.unwrap_or(context_length) as f64,
                extrapolation: f64::from(extrapolation.unwrap_or(1.0)),
                beta_fast: beta("rope.scaling.yarn_beta_fast", 32.0)?,
                beta_slow: beta("rope.scaling.yarn_beta_slow", 1.0)?,
            })
        }
        ("yarn", None) => Err(Error::new(
            Status::MissingKey,
            format!(
                "metadata key {} is missing, but {} is yarn",
                source.key(FACTOR),
                source.key(TYPE)
            ),
        )),
        (other, _) => fail!(
            Unsupported,
            "{} is {other:?}; supported: none, linear, yarn",
            source.key(TYPE)
        ),
    }
}

fn scale(frequencies: &mut [f64], base: f64, scaling: &Scaling) {
    match *scaling {
        Scaling::None => {}
        Scaling::Linear { factor } => {
            for frequency in frequencies {
                *frequency /= factor;
            }
        }
        Scaling::Yarn {
            factor,
            original_context,
            extrapolation,
            beta_fast,
            beta_slow,
        } => {
            let n_rotated = (2 * frequencies.len()) as f64;
            // The pair, as a real number, that turns so many times within the original context.
            let pair = |turns: f64| {
                n_rotated * (original_context / (turns * 2.0 * PI)).ln() / (2.0 * base.ln())
            };
            let low = pair(beta_fast).floor().max(0.0);
            let high = pair(beta_slow).ceil().min(n_rotated - 1.0);
            for (i, frequency) in frequencies.iter_mut().enumerate() {
                let ramp = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                let unscaled = (1.0 - ramp) * extrapolation;
                *frequency = *frequency / factor * (1.0 - unscaled) + *frequency * unscaled;
            }
        }
    }
}

/// YaRN's factor on q and k, which takes the place of a temperature in the softmax.
fn magnitude(scaling: &Scaling) -> f64 {
    match *scaling {
        Scaling::Yarn {
            factor,
            extrapolation,
            ..
        } if extrapolation != 0.0 && factor > 1.0 => 0.1 * factor.ln() + 1.0,
        _ => 1.0,
    }
}
