//! Weights of two to eight bits that a folder has in several tensors: codes in words or bytes, scales
//! beside them, and zero points. GPTQ and AWQ call them `X.qweight`, `X.scales`, `X.qzeros`; compressed-tensors
//! calls them `X.weight_packed`, `X.weight_scale`, `X.weight_zero_point`; ModelOpt has `X.weight_scale` and
//! `X.weight_scale_2` beside `X.weight`, BitNet `X.weight_scale` beside bytes of four elements each. Here they become one tensor `X.weight`, as a file without
//! quantization would have it.
//!
//! Integers become Q4_0 (of two to four bits) or Q8_0 where they are symmetric, and Q4_1 where they have zero points: the same numbers
//! but for the rounding of a scale or an offset to F16. Where the blocks of these types don't fit (a group
//! that is no multiple of 32, groups that are not in order, scales that F16 has not), they become F16 or F32.

mod floats;
mod integers;
mod ternary;

use super::json::{Config, wrong};
use super::stored::Stored;
use crate::error::{Result, fail};
use floats::{MXFP4, NVFP4};
use integers::{Codes, Form, Integers};
use std::collections::HashMap;
use ternary::Ternary;

/// Replaces the tensors that are parts of others by what they are together.
///
/// Errors: `MissingTensor`, `ShapeMismatch`, `InvalidModel` and `Unsupported` name the part at fault.
pub(super) fn join(config: &Config, stored: &mut HashMap<String, Stored>) -> Result<()> {
    let quantization = match config.nested("quantization_config")? {
        Some(quantization) => Some(quantization),
        None => config.nested("compression_config")?,
    };
    let mut names: Vec<String> = stored.keys().cloned().collect();
    names.sort_unstable();
    let ternary = Ternary::find(quantization.as_ref())?;
    let mut integers = Vec::new();
    for name in names {
        let parts = Parts {
            name: &name,
            stored,
        };
        if let Some(stem) = name.strip_suffix(".qweight") {
            let method = Method::of(quantization.as_ref(), &name)?;
            integers.push((stem.to_owned(), method.read(&parts, stem)?));
        } else if let Some(stem) = name.strip_suffix(".weight_packed") {
            let joined = match parts.own().ty {
                "I32" => {
                    integers.push((stem.to_owned(), packed_rows(&parts, stem)?));
                    continue;
                }
                "U8" if parts.of(stem, "weight_scale")?.ty == "U8" => MXFP4.join(&parts, stem)?,
                "U8" => NVFP4.join(&parts, stem)?,
                other => fail!(
                    Unsupported,
                    "tensor {name} has type {other}; it must be I32 or U8"
                ),
            };
            replace(stored, stem, joined);
        } else if let Some(stem) = name.strip_suffix(".weight") {
            if let Some(ternary) = &ternary {
                if let Some(joined) = ternary.join(&parts, stem)? {
                    replace(stored, stem, joined);
                }
                continue;
            }
            match parts.own().ty {
                "I8" => integers.push((stem.to_owned(), bytes(&parts, stem)?)),
                "U8" if parts.find(stem, "weight_scale_2").is_some() => {
                    let joined = NVFP4.join(&parts, stem)?;
                    replace(stored, stem, joined);
                }
                _ => {}
            }
        }
    }
    let forms: Vec<Form> = integers
        .iter()
        .map(|(_, integers)| integers.form())
        .collect::<Result<_>>()?;
    // Those that are alike get the same, so that experts of a layer can stand in one tensor.
    let most = |in_blocks| {
        forms
            .iter()
            .filter(|form| form.is_in_blocks() == in_blocks)
            .max()
    };
    let (blocks, floats) = (most(true), most(false));
    for ((stem, integers), own) in integers.into_iter().zip(&forms) {
        let alike = if own.is_in_blocks() { blocks } else { floats };
        let joined = integers.joined(&stem, *alike.unwrap_or(own))?;
        replace(stored, &stem, joined);
    }
    Ok(())
}

/// Puts `X.weight` in the place of its parts.
fn replace(stored: &mut HashMap<String, Stored>, stem: &str, joined: Stored) {
    for part in PARTS {
        stored.remove(&format!("{stem}.{part}"));
    }
    stored.insert(format!("{stem}.weight"), joined);
}

/// What stands behind the names of parts.
const PARTS: [&str; 12] = [
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "weight_packed",
    "weight_scale",
    "weight_shape",
    "weight_zero_point",
    "weight_g_idx",
    "weight_global_scale",
    "weight_scale_2",
    "input_global_scale",
];

/// The tensors of a folder, while those that belong to `name` are looked for.
struct Parts<'a> {
    name: &'a str,
    stored: &'a HashMap<String, Stored>,
}

impl Parts<'_> {
    fn own(&self) -> &Stored {
        &self.stored[self.name]
    }

    fn find(&self, stem: &str, part: &str) -> Option<&Stored> {
        self.stored.get(&format!("{stem}.{part}"))
    }

    fn of(&self, stem: &str, part: &str) -> Result<&Stored> {
        match self.find(stem, part) {
            Some(stored) => Ok(stored),
            None => fail!(
                MissingTensor,
                "tensor {stem}.{part} is missing, which belongs to {}",
                self.name
            ),
        }
    }
}

/// How the integers of `qweight` are packed.
enum Method {
    /// Along the inputs, so many bits; whether zero points are stored less 1.
    Gptq { bits: u32, less_one: bool },
    /// Along the outputs, in an order of their own, four bits.
    Awq,
    /// Along the inputs, four bits, with groups of so many; all of a row if `None`.
    AwqRows { group: Option<usize> },
}

impl Method {
    fn of(quantization: Option<&Config>, name: &str) -> Result<Method> {
        let Some(quantization) = quantization else {
            fail!(
                MissingKey,
                "config.json: key quantization_config is missing, which tensor {name} needs"
            );
        };
        let bits = match quantization.find("bits") {
            None => 4,
            Some(_) => quantization.size(&["bits"])?,
        };
        let only = |key: &str, known: &[&str]| -> Result<()> {
            match quantization.find_str(key)? {
                Some(value) if !known.contains(&value.to_lowercase().as_str()) => fail!(
                    Unsupported,
                    "config.json: quantization_config has {key} {value:?}; supported: {}",
                    known.join(", ")
                ),
                _ => Ok(()),
            }
        };
        let known: &[u64] = match quantization.find_str("quant_method")? {
            Some("awq") => &[4],
            _ => &[2, 3, 4, 8],
        };
        if !known.contains(&bits) {
            fail!(
                Unsupported,
                "config.json: quantization_config has {bits} bits; supported: {known:?}"
            );
        }
        match quantization.find_str("quant_method")? {
            Some("awq") => {
                const VERSION: &str = "version";
                only(VERSION, &["gemm", "gemv"])?;
                let version = quantization.find_str(VERSION)?.unwrap_or("gemm");
                if version.to_lowercase() == "gemm" {
                    return Ok(Method::Awq);
                }
                let key = ["group_size", "q_group_size"];
                let key = key.into_iter().find(|key| quantization.find(key).is_some());
                let Some(key) = key else {
                    fail!(
                        MissingKey,
                        "config.json: key group_size is missing in quantization_config, which tensor {name} needs"
                    );
                };
                let all = quantization.find(key).and_then(|v| v.as_i64()) == Some(-1);
                Ok(Method::AwqRows {
                    group: match all {
                        true => None,
                        false => Some(quantization.size(&[key])? as usize),
                    },
                })
            }
            Some("gptq") => {
                const FORMAT: &str = "checkpoint_format";
                only(FORMAT, &["gptq", "gptq_v2"])?;
                Ok(Method::Gptq {
                    bits: bits as u32,
                    less_one: quantization.find_str(FORMAT)? != Some("gptq_v2"),
                })
            }
            other => Err(wrong(
                "quant_method",
                &other.unwrap_or_default().into(),
                "gptq or awq where tensors are called qweight",
            )),
        }
    }

    fn read(&self, parts: &Parts, stem: &str) -> Result<Integers> {
        let (codes, scales) = (parts.own(), parts.of(stem, "scales")?);
        let (columns, layout, less_one) = match *self {
            Method::Awq => (false, Codes::AWQ, false),
            Method::Gptq { bits, less_one } => (true, Codes::columns(bits), less_one),
            Method::AwqRows { group } => {
                let row = codes
                    .shape
                    .last()
                    .map_or(0, |width| width.saturating_mul(8));
                let group = group.unwrap_or(row).max(1);
                return Integers::awq_rows(codes, scales, parts.of(stem, "qzeros")?, group);
            }
        };
        let per_unit = layout.per_unit();
        let &[rows, width] = &codes.shape[..] else {
            return Err(codes.misshapen("a matrix"));
        };
        let (inputs, outputs) = match columns {
            true => ((rows / layout.unit()).saturating_mul(per_unit), width),
            false => (rows, width.saturating_mul(per_unit)),
        };
        let zeros = match self {
            Method::Gptq { .. } => Some(parts.of(stem, "qzeros")?),
            _ => parts.find(stem, "qzeros"),
        };
        Integers::new(layout, codes, scales, zeros, [outputs, inputs], less_one)?
            .with_groups(parts.find(stem, "g_idx"))
    }
}

/// Integers that compressed-tensors has packed along the inputs, row by row.
fn packed_rows(parts: &Parts, stem: &str) -> Result<Integers> {
    let (codes, shape) = (parts.own(), parts.of(stem, "weight_shape")?);
    let [outputs, inputs] = shape.sizes()?[..] else {
        return Err(shape.misshapen("two sizes"));
    };
    let words = codes.shape.last().copied().unwrap_or(0);
    let fits = |bits: &u32| inputs.div_ceil(32 / *bits as usize) == words;
    let Some(bits) = [4, 8].into_iter().find(fits) else {
        fail!(
            Unsupported,
            "tensor {} has {words} words for {inputs} inputs; only 4 and 8 bits are supported",
            codes.name
        );
    };
    let scales = parts.of(stem, "weight_scale")?;
    let zeros = parts.find(stem, "weight_zero_point");
    Integers::new(
        Codes::rows(bits),
        codes,
        scales,
        zeros,
        [outputs, inputs],
        false,
    )?
    .with_groups(parts.find(stem, "weight_g_idx"))
}

/// Signed bytes, with a scale for each row or for all.
fn bytes(parts: &Parts, stem: &str) -> Result<Integers> {
    let codes = parts.own();
    let &[outputs, inputs] = &codes.shape[..] else {
        return Err(codes.misshapen("a matrix"));
    };
    if let Some(zeros) = parts.find(stem, "weight_zero_point") {
        fail!(
            Unsupported,
            "tensor {}: bytes with zero points are not supported",
            zeros.name
        );
    }
    let scales = parts.of(stem, "weight_scale")?;
    Integers::new(Codes::BYTES, codes, scales, None, [outputs, inputs], false)
}
