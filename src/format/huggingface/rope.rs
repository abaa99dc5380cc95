//! The rotary embedding of a config as GGUF metadata and tensors.
//!
//! Newer configs have all of it in `rope_parameters`, for each kind of layer if they differ; older
//! ones have `rope_scaling` beside `rope_theta` and others.

use super::json::{Config, wrong};
use super::keys::Keys;
use super::stored::small;
use crate::error::{Error, Result, Status, fail};
use crate::format::Tensor;
use serde_json::{Map, Value};
use std::f64::consts::PI;

/// The most elements of a head that are taken seriously.
const MAX_HEAD_DIM: u64 = 1 << 16;

/// Sets the keys `rope.*`, and returns the tensors that belong to them.
pub(super) fn describe(keys: &mut Keys) -> Result<Vec<Tensor>> {
    let config = keys.config;
    let parameters = match config.nested("rope_parameters")? {
        None => config.nested("rope_scaling")?,
        found => found,
    };
    let parameters = match parameters {
        Some(parameters) => parameters,
        None => Config::from(Map::new()),
    };
    let full = parameters.nested("full_attention")?;
    let local = parameters.nested("sliding_attention")?;
    if let Some(own) = &local {
        // What layers with a window rotate by is never scaled.
        let rope = Rope { config, own };
        let kind = rope.kind()?;
        if kind != "default" {
            fail!(
                Unsupported,
                "config.json: rope_type of sliding_attention is {kind:?}; supported: default"
            );
        }
    }
    let rope = Rope {
        config,
        own: full.as_ref().unwrap_or(&parameters),
    };
    let mut theta = rope.theta()?;
    if let Some(alpha) = rope.alpha()? {
        let dim = keys.head_dim as f64;
        theta *= alpha.powf(dim / (dim - 2.0));
    }
    keys.set("rope.freq_base", theta as f32);
    let local_theta = match &local {
        Some(local) => local.find_f32("rope_theta")?,
        None => config.find_f32("rope_local_base_freq")?,
    };
    if let Some(theta) = local_theta {
        keys.set("rope.freq_base_swa", theta);
    }
    if rope.kind()? == "proportional" {
        return super::gemma4::rope(keys, rope.find("partial_rotary_factor")?.unwrap_or(1.0));
    }
    let n_rotated = rope.rotated(keys.head_dim)?;
    keys.set("rope.dimension_count", n_rotated);
    scaling(keys, &rope, theta, n_rotated)
}

/// Where the numbers are: in an object of their own, or beside it.
struct Rope<'a> {
    config: &'a Config,
    own: &'a Config,
}

impl Rope<'_> {
    /// A number above 0 from either place.
    fn find(&self, key: &str) -> Result<Option<f64>> {
        let number = |config: &Config| match config.find(key) {
            None => Ok(None),
            Some(value) => match value.as_f64() {
                Some(v) if v > 0.0 && v.is_finite() => Ok(Some(v)),
                _ => Err(wrong(key, value, "a number above 0")),
            },
        };
        match number(self.own)? {
            None => number(self.config),
            found => Ok(found),
        }
    }

    fn get(&self, key: &str) -> Result<f64> {
        match self.find(key)? {
            Some(number) => Ok(number),
            None => fail!(
                MissingKey,
                "config.json: key {key} of rope_parameters is missing"
            ),
        }
    }

    fn theta(&self) -> Result<f64> {
        let theta = match self.find("rope_theta")? {
            None => self.find("default_rope_theta")?,
            found => found,
        };
        Ok(theta.unwrap_or(10_000.0))
    }

    /// What a "dynamic" scaling that is none makes of the base: the same for all contexts.
    fn alpha(&self) -> Result<Option<f64>> {
        match self.kind()? {
            "dynamic" => self.find("alpha"),
            _ => Ok(None),
        }
    }

    /// Elements of a head that are rotated.
    fn rotated(&self, head_dim: u64) -> Result<u64> {
        const KEY: &str = "partial_rotary_factor";
        const OLD_KEY: &str = "rotary_pct";
        if head_dim > MAX_HEAD_DIM {
            fail!(
                InvalidModel,
                "config.json: head_dim is {head_dim}; at most {MAX_HEAD_DIM} work"
            );
        }
        // A head's share of its rotated part, which is all that is asked for.
        if self.config.find("kv_lora_rank").is_some() {
            return Ok(head_dim);
        }
        let (key, share) = match self.find(KEY)? {
            None => (OLD_KEY, self.find(OLD_KEY)?),
            found => (KEY, found),
        };
        let Some(share) = share else {
            if !head_dim.is_multiple_of(2) {
                // An odd `head_dim` was refused.
                fail!(
                    InvalidModel,
                    "config.json: hidden_size and num_attention_heads give heads of {head_dim} elements; \
                     it must be an even number"
                );
            }
            return Ok(head_dim);
        };
        let rotated = (head_dim as f64 * share) as u64;
        if share > 1.0 || rotated == 0 || !rotated.is_multiple_of(2) {
            fail!(
                InvalidModel,
                "config.json: {key} is {share}, which gives {rotated} of {head_dim} elements; it must be an even number of them"
            );
        }
        Ok(rotated)
    }

    /// The kind of scaling.
    fn kind(&self) -> Result<&str> {
        let kind = match self.own.find_str("rope_type")? {
            None => self.own.find_str("type")?,
            found => found,
        };
        Ok(kind.unwrap_or("default"))
    }
}

fn scaling(keys: &mut Keys, rope: &Rope, theta: f64, n_rotated: u64) -> Result<Vec<Tensor>> {
    const TYPE: &str = "rope.scaling.type";
    const ORIGINAL: &str = "original_max_position_embeddings";
    const ORIGINAL_KEY: &str = "rope.scaling.original_context_length";
    match rope.kind()? {
        // The positions of text are the same in all dimensions.
        "default" | "mrope" => {
            // Files of models with and without scaling are told apart by this key.
            if let ("phi3", Some(original)) = (keys.architecture, rope.find(ORIGINAL)?) {
                keys.set(ORIGINAL_KEY, original as u64);
            }
            Ok(Vec::new())
        }
        // The base has it.
        "dynamic" if rope.alpha()?.is_some() => Ok(Vec::new()),
        "linear" => {
            keys.set(TYPE, "linear");
            keys.set("rope.scaling.factor", rope.get("factor")? as f32);
            Ok(Vec::new())
        }
        "yarn" => {
            let original = rope.get(ORIGINAL)?;
            let context = rope.get("max_position_embeddings")?;
            let factor = rope.find("factor")?.unwrap_or(context / original);
            keys.set(TYPE, "yarn");
            keys.set("rope.scaling.factor", factor as f32);
            keys.set(ORIGINAL_KEY, original as u64);
            for name in ["beta_fast", "beta_slow"] {
                if let Some(beta) = rope.find(name)? {
                    keys.set(&format!("rope.scaling.yarn_{name}"), beta as f32);
                }
            }
            match rope.own.find("truncate") {
                None => {}
                Some(&Value::Bool(truncate)) => {
                    keys.set("rope.scaling.yarn_truncate", truncate);
                }
                Some(other) => return Err(wrong("truncate", other, "true or false")),
            }
            let magnitude = |mscale: f64| match factor > 1.0 {
                true => 0.1 * mscale * factor.ln() + 1.0,
                false => 1.0,
            };
            let attention = match (rope.find("mscale")?, rope.find("mscale_all_dim")?) {
                (Some(own), Some(all)) => Some(magnitude(own) / magnitude(all)),
                _ => None,
            };
            if let Some(attention) = rope.find("attention_factor")?.or(attention) {
                keys.set("rope.scaling.yarn_attn_factor", attention as f32);
            }
            Ok(Vec::new())
        }
        "llama3" => {
            let mut factors = llama3(rope, theta, n_rotated)?;
            if keys.architecture == "step35" {
                // As its files have them: of a whole head, of which a half is rotated.
                factors.resize(keys.head_dim as usize / 2, 1.0);
            }
            let dims = vec![factors.len()];
            Ok(vec![small("rope_freqs.weight", dims, &factors)?])
        }
        "longrope" | "su" => {
            let original = rope.get(ORIGINAL)?;
            let context = rope.get("max_position_embeddings")?;
            let factor = rope.find("factor")?.unwrap_or(context / original);
            let own = match (rope.find("short_mscale")?, rope.find("long_mscale")?) {
                (Some(short), Some(long)) if keys.architecture == "phimoe" => {
                    if short != long {
                        fail!(
                            Unsupported,
                            "config.json: short_mscale is {short}, but long_mscale is {long}; they must be the same"
                        );
                    }
                    Some(short)
                }
                _ => rope.find("attention_factor")?,
            };
            let attention = match own {
                Some(factor) => factor,
                None if factor <= 1.0 => 1.0,
                None => (1.0 + factor.ln() / original.ln()).sqrt(),
            };
            keys.set(TYPE, "longrope");
            keys.set(ORIGINAL_KEY, original as u64);
            keys.set("rope.scaling.attn_factor", attention as f32);
            let tensor = |name: &str, key: &str| {
                let factors = list(rope.own, key, n_rotated / 2)?;
                small(name, vec![factors.len()], &factors)
            };
            Ok(vec![
                tensor("rope_factors_long.weight", "long_factor")?,
                tensor("rope_factors_short.weight", "short_factor")?,
            ])
        }
        other => fail!(
            Unsupported,
            "config.json: rope_type is {other:?}; supported: default, linear, yarn, llama3, longrope"
        ),
    }
}

/// What each frequency is divided by: those that turn often within the original context by 1, those
/// that turn seldom by `factor`, with a blend between.
fn llama3(rope: &Rope, theta: f64, n_rotated: u64) -> Result<Vec<f32>> {
    let factor = rope.get("factor")?;
    let (low, high) = (rope.get("low_freq_factor")?, rope.get("high_freq_factor")?);
    let context = rope.get("original_max_position_embeddings")?;
    if high <= low {
        return Err(Error::new(
            Status::InvalidModel,
            format!(
                "config.json: high_freq_factor is {high}; it must be above low_freq_factor, {low}"
            ),
        ));
    }
    let divisor = |i: u64| {
        let turns = context * theta.powf(-((2 * i) as f64) / n_rotated as f64) / (2.0 * PI);
        let share = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        (1.0 / ((1.0 - share) / factor + share)) as f32
    };
    Ok((0..n_rotated / 2).map(divisor).collect())
}

/// A list of so many numbers above 0.
fn list(config: &Config, key: &str, len: u64) -> Result<Vec<f32>> {
    let values = config.find_array(key)?.map_or(&[][..], |values| values);
    if values.len() as u64 != len {
        let problem = format!(
            "config.json: {key} has {} values; it must have {len}",
            values.len()
        );
        return Err(Error::new(Status::InvalidModel, problem));
    }
    let number = |value: &Value| match value.as_f64() {
        Some(v) if v > 0.0 && v.is_finite() => Ok(v as f32),
        _ => Err(wrong(key, value, "a list of numbers above 0")),
    };
    values.iter().map(number).collect()
}
