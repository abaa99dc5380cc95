//! Matrices of BitNet, whose elements are -1, 0 or 1 times one scale: four rows in a row of bytes, or numbers
//! of which they are made when the model is loaded. They become TQ2_0, or Q8_0 where rows are no multiple of 256, or
//! F16 where they are no multiple of 32: the same numbers but for the rounding of the scale to F16. Where F16
//! does not have it, they become F32.

use super::Parts;
use super::integers::F16_SCALES;
use crate::error::{Result, fail, try_vec};
use crate::format::Tensor;
use crate::format::convert::multiplied;
use crate::format::huggingface::json::Config;
use crate::format::huggingface::stored::Stored;
use crate::format::huggingface::tensors::{layer_and_part, without_prefixes};
use crate::format::made::{CHUNK_BYTES, MakeRows};
use crate::quant::TensorType;
use half::f16;
use std::sync::{Arc, Mutex, PoisonError};

/// Rows of elements in a row of bytes.
const PER_BYTE: usize = 4;

/// What a `quantization_config` says of such matrices.
pub(super) struct Ternary {
    /// Whether the outputs are divided by the scale and not multiplied.
    divides: bool,
    /// Whether numbers become ternary when the model is loaded.
    online: bool,
    /// Modules that stay as they are.
    kept: Vec<String>,
}

impl Ternary {
    /// `None` for other methods.
    pub fn find(quantization: Option<&Config>) -> Result<Option<Ternary>> {
        let Some(config) = quantization else {
            return Ok(None);
        };
        if config.find_str("quant_method")? != Some("bitnet") {
            return Ok(None);
        }
        let choice = |key: &str, known: [&str; 2]| match config.find_str(key)? {
            None => Ok(false),
            Some(value) if known.contains(&value) => Ok(value == known[1]),
            Some(value) => fail!(
                Unsupported,
                "config.json: quantization_config has {key} {value:?}; supported: {}",
                known.join(", ")
            ),
        };
        let automatic = choice("linear_class", ["bitlinear", "autobitlinear"])?;
        let online = choice("quantization_mode", ["offline", "online"])?;
        if config.flag("use_rms_norm")? {
            fail!(
                Unsupported,
                "config.json: quantization_config has use_rms_norm, which is not supported"
            );
        }
        let kept = config.find_array("modules_to_not_convert")?;
        let kept = kept.into_iter().flatten().filter_map(|name| name.as_str());
        Ok(Some(Ternary {
            divides: !automatic,
            online: automatic && online,
            kept: kept.map(str::to_owned).collect(),
        }))
    }

    /// What `{stem}.weight` becomes, if it is one of these matrices.
    pub fn join(&self, parts: &Parts, stem: &str) -> Result<Option<Stored>> {
        let own = parts.own();
        let in_layer = layer_and_part(without_prefixes(stem)).is_some();
        if own.ty == "U8" {
            return self.unpacked(parts, stem).map(Some);
        }
        if own.plain_type().is_none() || own.shape.len() != 2 || !in_layer {
            return Ok(None);
        }
        if self.online {
            let kept = self.kept.iter().any(|name| stem.contains(name.as_str()));
            return if kept {
                Ok(None)
            } else {
                rounded(own).map(Some)
            };
        }
        // Not packed, but with a scale.
        match parts.find(stem, "weight_scale") {
            None => Ok(None),
            Some(scale) => {
                let scaled = multiplied(&own.tensor()?, vec![self.factor(scale)?], TensorType::F32);
                Ok(Some(Stored::together(own, own.shape.clone(), scaled?)))
            }
        }
    }

    /// What elements are multiplied with.
    fn factor(&self, scale: &Stored) -> Result<f32> {
        if scale.shape.iter().product::<usize>() != 1 {
            return Err(scale.misshapen("one number"));
        }
        let &[number] = &scale.values()?[..] else {
            return Err(scale.misshapen("one number"));
        };
        let factor = if self.divides { 1.0 / number } else { number };
        if !factor.is_finite() || factor == 0.0 {
            fail!(
                InvalidModel,
                "tensor {} has the element {number}",
                scale.name
            );
        }
        Ok(factor)
    }

    fn unpacked(&self, parts: &Parts, stem: &str) -> Result<Stored> {
        let (codes, scale) = (parts.own(), parts.of(stem, "weight_scale")?);
        let &[quarter, inputs] = &codes.shape[..] else {
            return Err(codes.misshapen("a matrix"));
        };
        let Some(outputs) = quarter.checked_mul(PER_BYTE).filter(|n| n * inputs > 0) else {
            return Err(codes.misshapen("a matrix with elements"));
        };
        let factor = self.factor(scale)?;
        let source = Source::Packed {
            codes: codes.clone(),
            quarter,
            factor,
        };
        made(codes, [outputs, inputs], source)
    }
}

/// The matrix of rounded numbers.
fn rounded(numbers: &Stored) -> Result<Stored> {
    let &[outputs, inputs] = &numbers.shape[..] else {
        return Err(numbers.misshapen("a matrix"));
    };
    let source = Source::Numbers {
        tensor: numbers.tensor()?,
        scale: Mutex::new(None),
    };
    made(numbers, [outputs, inputs], source)
}

/// The mean magnitude of a tensor's elements, at least 1e-5.
fn mean_magnitude(tensor: &Tensor) -> Result<f32> {
    let (n, inputs) = (tensor.rows(), tensor.row_len());
    let rows = (CHUNK_BYTES / 4 / inputs).max(1);
    let mut sum = 0.0f64;
    for first in (0..n).step_by(rows) {
        let some = tensor.row_range(first..n.min(first + rows)).to_f32()?;
        let magnitudes = some.iter().flatten().map(|x| f64::from(x.abs()));
        sum += magnitudes.sum::<f64>();
    }
    let mean = (sum / (n as f64 * inputs as f64)) as f32;
    if !mean.is_finite() || mean > f16::MAX.to_f32() {
        fail!(
            InvalidModel,
            "tensor {} has elements whose mean magnitude is {mean}",
            tensor.name
        );
    }
    Ok(mean.max(1e-5))
}

/// The tensor of a source.
fn made(part: &Stored, shape: [usize; 2], source: Source) -> Result<Stored> {
    let [outputs, inputs] = shape;
    let single = match &source {
        Source::Packed { factor, .. } => !F16_SCALES.contains(&factor.abs()),
        Source::Numbers { .. } => false,
    };
    let ty = match inputs {
        _ if single => TensorType::F32,
        n if n.is_multiple_of(256) => TensorType::TQ2_0,
        n if n.is_multiple_of(32) => TensorType::Q8_0,
        _ => TensorType::F16,
    };
    let rows = Rows { source, inputs, ty };
    let tensor = Tensor::made(Arc::clone(&part.name), ty, vec![inputs, outputs], rows)?;
    Ok(Stored::together(part, shape.to_vec(), tensor))
}

/// Where elements come from.
enum Source {
    /// Row `i + n * quarter` is in bits `2 * n` of row `i`, as the element plus one.
    Packed {
        codes: Stored,
        quarter: usize,
        factor: f32,
    },
    /// They are these numbers, rounded to multiples of the mean magnitude, which is worked out when a row is first
    /// wanted.
    Numbers {
        tensor: Tensor,
        scale: Mutex<Option<f32>>,
    },
}

impl Source {
    /// What the elements are multiples of.
    fn scale(&self) -> Result<f32> {
        match self {
            Source::Packed { factor, .. } => Ok(*factor),
            Source::Numbers { tensor, scale } => {
                let mut scale = scale.lock().unwrap_or_else(PoisonError::into_inner);
                match *scale {
                    Some(scale) => Ok(scale),
                    None => Ok(*scale.insert(mean_magnitude(tensor)?)),
                }
            }
        }
    }

    /// The elements of a row, as multiples of `scale`.
    fn read(&self, row: usize, scale: f32, out: &mut [i8]) -> Result<()> {
        match self {
            Source::Packed { codes, quarter, .. } => {
                let (row, shift) = (row % quarter, 2 * (row / quarter));
                let mut bytes = try_vec(out.len(), 0u8, &codes.name)?;
                codes.read(row * out.len(), &mut bytes)?;
                for (out, byte) in out.iter_mut().zip(bytes) {
                    let code = byte >> shift & 3;
                    if code == 3 {
                        fail!(InvalidModel, "tensor {} has a code of 3", codes.name);
                    }
                    *out = code as i8 - 1;
                }
            }
            Source::Numbers { tensor, .. } => {
                let row = tensor.row_range(row..row + 1).to_f32()?;
                for (out, x) in out.iter_mut().zip(row.unwrap_or_default()) {
                    *out = (x * (1.0 / scale)).round_ties_even().clamp(-1.0, 1.0) as i8;
                }
            }
        }
        Ok(())
    }
}

/// The rows of the tensor.
struct Rows {
    source: Source,
    inputs: usize,
    ty: TensorType,
}

impl MakeRows for Rows {
    fn make(&self, first: usize, out: &mut [u8]) -> Result<()> {
        let row_bytes = self.ty.row_bytes(self.inputs).unwrap_or(out.len());
        let mut row = try_vec(self.inputs, 0i8, "a row of ternary elements")?;
        let scale = self.source.scale()?;
        let half = f16::from_f32(scale).to_le_bytes();
        for (i, out) in out.chunks_exact_mut(row_bytes).enumerate() {
            self.source.read(first + i, scale, &mut row)?;
            match self.ty {
                TensorType::TQ2_0 => {
                    let blocks = out.as_chunks_mut::<66>().0.iter_mut();
                    for (block, row) in blocks.zip(row.as_chunks::<256>().0) {
                        ternary_block(row, block);
                        block[64..].copy_from_slice(&half);
                    }
                }
                TensorType::Q8_0 => {
                    let blocks = out.as_chunks_mut::<34>().0.iter_mut();
                    for (block, row) in blocks.zip(row.as_chunks::<32>().0) {
                        block[..2].copy_from_slice(&half);
                        let codes = block[2..].iter_mut().zip(row);
                        codes.for_each(|(out, x)| *out = *x as u8);
                    }
                }
                TensorType::F16 => {
                    for (out, x) in out.as_chunks_mut::<2>().0.iter_mut().zip(&row) {
                        *out = f16::from_f32(f32::from(*x) * scale).to_le_bytes();
                    }
                }
                _ => {
                    for (out, x) in out.as_chunks_mut::<4>().0.iter_mut().zip(&row) {
                        *out = (f32::from(*x) * scale).to_le_bytes();
                    }
                }
            }
        }
        Ok(())
    }
}

/// The numbers of a block of TQ2_0: byte `32 * k + j` has those of the elements `128 * k + j + 32 * n`, the
/// lowest first, each plus one.
fn ternary_block(row: &[i8; 256], block: &mut [u8; 66]) {
    for (i, out) in block[..64].iter_mut().enumerate() {
        let at = 128 * (i / 32) + i % 32;
        *out = (0..4).fold(0, |byte, n| {
            byte | ((row[at + 32 * n] + 1) as u8) << (2 * n)
        });
    }
}
