//! Rotary position embedding: from the keys of a file to one frequency per pair.
//!
//! The plain frequencies are `base^(-2i/n)` for the pairs `i` of `n` rotated elements (RoFormer,
//! arXiv:2104.09864). `rope_freqs.weight` divides them, pair by pair; that is how files carry the
//! scaling of Llama 3.1. Linear scaling divides all by one factor. YaRN (arXiv:2309.00071) divides
//! only those that turn less than `beta_slow` times within the original context, leaves alone those
//! that turn more than `beta_fast` times, and blends between.

use super::source::Source;
use super::{LongRope, Rope, RopePairing};
use crate::error::{Error, Result, Status, fail, try_vec};
use crate::format::Tensor;
use std::f64::consts::PI;
use std::sync::Arc;

const BASE: &str = "rope.freq_base";
const DIMENSIONS: &str = "rope.dimension_count";

/// Where YaRN's blend begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ramp {
    /// At whole pairs, the blend made longer.
    Rounded,
    /// Between pairs.
    Exact,
}

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
        /// What the factor on q and k is divided by.
        compensation: f64,
    },
}

/// The base of the frequencies.
pub(super) fn base(source: &Source) -> Result<f32> {
    checked_base(source, BASE, 10_000.0)
}

fn checked_base(source: &Source, key: &str, default: f32) -> Result<f32> {
    let base = source.find_positive(key)?.unwrap_or(default);
    if base <= 1.0 {
        return Err(source.invalid(key, &format!("is {base}; it must be above 1")));
    }
    Ok(base)
}

/// The rotary embedding that the keys `rope.*` describe, for heads of `head_dim` elements.
pub(super) fn from_source(
    source: &Source,
    head_dim: usize,
    context_length: usize,
    pairing: RopePairing,
    ramp: Ramp,
) -> Result<Rope> {
    let mut base = f64::from(base(source)?);
    // Hunyuan's way to longer contexts.
    if let Some(alpha) = source.find_positive("rope.scaling.alpha")?
        && head_dim > 2
    {
        base *= f64::from(alpha).powf(head_dim as f64 / (head_dim - 2) as f64);
    }
    let mut frequencies = plain(source, head_dim, base)?;
    let pairs = frequencies.len();
    // What files say is of whole heads, of which Step 3.5 rotates a half where it has no window.
    if source.architecture() == "step35" {
        if !pairs.is_multiple_of(2) {
            let problem = format!("is {}; it must be a multiple of 4", 2 * pairs);
            return Err(source.invalid(DIMENSIONS, &problem));
        }
        frequencies = self::frequencies(pairs, base)?;
    }
    if let Some(factors) = source.find_vector("rope_freqs.weight", pairs)? {
        let factors = factors.elements(0..frequencies.len());
        divide(&mut frequencies, &factors)?;
    }
    let scaling = scaling(source, context_length)?;
    // Folders say it; files have it as their family does.
    let ramp = match source.find("rope.scaling.yarn_truncate")? {
        None => ramp,
        Some(true) => Ramp::Rounded,
        Some(false) => Ramp::Exact,
    };
    scale(&mut frequencies, base, &scaling, ramp);
    let long = long_rope(source, &mut frequencies, context_length)?;

    let attention_factor = |key: &str| Ok(source.find_positive(key)?.map(f64::from));
    let yarn = match scaling {
        Scaling::Yarn { .. } => attention_factor("rope.scaling.yarn_attn_factor")?,
        _ => None,
    };
    let factor = attention_factor("rope.scaling.attn_factor")?.unwrap_or(1.0);
    let magnitude = yarn.unwrap_or(magnitude(&scaling)) * factor;
    let rope = Rope {
        inv_freq: singles(&frequencies),
        magnitude: magnitude as f32,
        pairing,
        long,
    };
    let long = rope.long.iter().flat_map(|long| long.inv_freq.iter());
    let mut all = rope.inv_freq.iter().chain(long);
    if !rope.magnitude.is_finite() || all.any(|f| !f.is_finite()) {
        let problem = format!("and its scaling give no finite frequencies: {scaling:?}");
        return Err(source.invalid(BASE, &problem));
    }
    Ok(rope)
}

/// The rotary embedding of layers with a window, by the base `rope.freq_base_swa`. No scaling.
pub(super) fn local(
    source: &Source,
    head_dim: usize,
    pairing: RopePairing,
    default_base: f32,
) -> Result<Rope> {
    let key = match source.find_size("attention.key_length")? {
        Some(_) => "attention.key_length",
        None => "attention.head_count",
    };
    local_sized(source, (head_dim, DIMENSIONS, key), pairing, default_base)
}

/// The same with other keys of how many elements are rotated, and of the head's size.
pub(super) fn local_sized(
    source: &Source,
    sizes: (usize, &str, &str),
    pairing: RopePairing,
    default_base: f32,
) -> Result<Rope> {
    let base = checked_base(source, "rope.freq_base_swa", default_base)?;
    Ok(Rope {
        inv_freq: singles(&plain_sized(source, sizes, f64::from(base))?),
        magnitude: 1.0,
        pairing,
        long: None,
    })
}

/// Frequencies without scaling.
fn plain(source: &Source, head_dim: usize, base: f64) -> Result<Vec<f64>> {
    let key = match source.find_size("attention.key_length")? {
        Some(_) => "attention.key_length",
        None => "attention.head_count",
    };
    plain_sized(source, (head_dim, DIMENSIONS, key), base)
}

fn plain_sized(
    source: &Source,
    (head_dim, dimensions, key): (usize, &str, &str),
    base: f64,
) -> Result<Vec<f64>> {
    let Some(n_rotated) = source.find_size(dimensions)? else {
        if head_dim.is_multiple_of(2) {
            return frequencies(head_dim, base);
        }
        let problem = format!("gives heads of {head_dim} elements; rope needs an even number");
        return Err(source.invalid(key, &problem));
    };
    if !n_rotated.is_multiple_of(2) || n_rotated > head_dim {
        return Err(source.invalid(
            dimensions,
            &format!("is {n_rotated}; it must be even and at most the head size {head_dim}"),
        ));
    }
    frequencies(n_rotated, base)
}

fn frequencies(n_rotated: usize, base: f64) -> Result<Vec<f64>> {
    let mut frequencies = try_vec(n_rotated / 2, 0.0, "rope frequencies")?;
    for (i, frequency) in frequencies.iter_mut().enumerate() {
        *frequency = base.powf(-((2 * i) as f64) / n_rotated as f64);
    }
    Ok(frequencies)
}

fn singles(frequencies: &[f64]) -> Arc<[f32]> {
    frequencies.iter().map(|&f| f as f32).collect()
}

/// Divides the frequencies by the factors for short contexts, and gives those for long ones, if
/// the file has both.
fn long_rope(
    source: &Source,
    frequencies: &mut [f64],
    context_length: usize,
) -> Result<Option<LongRope>> {
    const ORIGINAL: &str = "rope.scaling.original_context_length";
    const LONG: &str = "rope_factors_long.weight";
    const SHORT: &str = "rope_factors_short.weight";
    let wanted = source.find("rope.scaling.type")? == Some("longrope");
    let there = |name: &str| source.file.tensors.contains_key(name);
    if !wanted && !there(LONG) && !there(SHORT) {
        return Ok(None);
    }
    let pairs = frequencies.len();
    let mut long = try_vec(pairs, 0.0, "rope frequencies")?;
    long.copy_from_slice(frequencies);
    divide(&mut long, &source.vector(LONG, pairs)?)?;
    divide(frequencies, &source.vector(SHORT, pairs)?)?;
    Ok(Some(LongRope {
        above: source.find_size(ORIGINAL)?.unwrap_or(context_length),
        inv_freq: singles(&long),
    }))
}

fn divide(frequencies: &mut [f64], factors: &Tensor) -> Result<()> {
    let Some(values) = factors.to_f32()? else {
        fail!(
            ShapeMismatch,
            "tensor {} has type {}; it must be F32, F16 or BF16",
            factors.name,
            factors.ty.name()
        );
    };
    for (i, (frequency, factor)) in frequencies.iter_mut().zip(values).enumerate() {
        if !(factor.is_finite() && factor > 0.0) {
            fail!(
                InvalidModel,
                "element {i} of tensor {} is {factor}; it must be finite and above 0",
                factors.name
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
        // The factors of LongRoPE are tensors.
        ("none" | "longrope", _) => Ok(Scaling::None),
        ("linear", Some(factor)) => Ok(Scaling::Linear { factor }),
        ("linear", None) => Ok(Scaling::None),
        ("yarn", Some(factor)) => {
            let compensation = match source.find::<f32>(LOG_MULTIPLIER)? {
                None | Some(0.0) => 1.0,
                Some(_) if source.architecture() == "mistral3" => {
                    let multiplier = f64::from(source.positive(LOG_MULTIPLIER)?);
                    yarn_factor(factor, multiplier)
                }
                // A tenth of it, and the factor is the scores'.
                Some(_) if matches!(source.architecture(), "deepseek2" | "mistral4") => {
                    yarn_factor(factor, 1.0)
                }
                // Converters disagree on what the number means.
                Some(multiplier) => fail!(
                    Unsupported,
                    "{} is {multiplier}; only 0 is supported",
                    source.key_name(LOG_MULTIPLIER)
                ),
            };
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
                compensation,
            })
        }
        ("yarn", None) => Err(Error::new(
            Status::MissingKey,
            format!(
                "metadata key {} is missing, but {} is yarn",
                source.key_name(FACTOR),
                source.key_name(TYPE)
            ),
        )),
        (other, _) => fail!(
            Unsupported,
            "{} is {other:?}; supported: none, linear, yarn, longrope",
            source.key_name(TYPE)
        ),
    }
}

fn scale(frequencies: &mut [f64], base: f64, scaling: &Scaling, ramp: Ramp) {
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
            ..
        } => {
            let n_rotated = (2 * frequencies.len()) as f64;
            // The pair, as a real number, that turns so many times within the original context.
            let pair = |turns: f64| {
                n_rotated * (original_context / (turns * 2.0 * PI)).ln() / (2.0 * base.ln())
            };
            let (low, high) = match ramp {
                Ramp::Rounded => (pair(beta_fast).floor(), pair(beta_slow).ceil()),
                Ramp::Exact => (pair(beta_fast), pair(beta_slow)),
            };
            let (low, high) = (low.max(0.0), high.min(n_rotated - 1.0));
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
            compensation,
            ..
        } if extrapolation != 0.0 => yarn_factor(factor, 1.0) / compensation,
        _ => 1.0,
    }
}

/// What YaRN asks of q and of k in latent attention, where their plain parts need it as well.
pub(super) fn latent_factor(source: &Source) -> Result<f64> {
    const LOG_MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";
    if source.find("rope.scaling.type")? != Some("yarn")
        || matches!(source.find::<f32>(LOG_MULTIPLIER)?, None | Some(0.0))
    {
        return Ok(1.0);
    }
    let factor = f64::from(source.positive("rope.scaling.factor")?);
    let multiplier = 10.0 * f64::from(source.positive(LOG_MULTIPLIER)?);
    Ok(yarn_factor(factor, multiplier))
}

/// What lengthening the context by `factor` asks of q and k together, with a multiplier.
fn yarn_factor(factor: f64, multiplier: f64) -> f64 {
    match factor > 1.0 {
        true => 0.1 * multiplier * factor.ln() + 1.0,
        false => 1.0,
    }
}
