//! Weights of GGUF files with a scale in a tensor of its own: `{name}.scale` beside `{name}.weight`.
//!
//! NVFP4 has a scale of the whole tensor, or of each expert. It is read as Q8_0, whose blocks have room for it. That
//! differs from the product of all three factors by at most 1/254 of the largest element of each 32.
//!
//! BitNet has a scale of each matrix. Ternary blocks take it into their own scale, which is rounded to F16; other
//! matrices become F32.

use super::convert::multiplied;
use super::made::MakeRows;
use super::{ModelFile, Tensor};
use crate::error::{Result, fail};
use crate::quant::TensorType;
use half::f16;
use std::collections::HashMap;
use std::sync::Arc;

/// Multiplies the tensors that have scales with these, which are no tensors any more.
///
/// Errors: `ShapeMismatch`, `InvalidModel`, and those of reading the scales.
pub(super) fn apply(file: &mut ModelFile) -> Result<()> {
    let bitnet = matches!(file.find("general.architecture"), Ok(Some("bitnet")));
    let tensors: &mut HashMap<Arc<str>, Tensor> = &mut file.tensors;
    let scale_of = |name: &str| Some(format!("{}.scale", name.strip_suffix(".weight")?));
    let mut done = Vec::new();
    for tensor in tensors.values() {
        let scaled = match tensor.ty {
            TensorType::NVFP4 => of_nvfp4,
            _ if bitnet => of_bitnet,
            _ => continue,
        };
        if let Some(scale) = scale_of(&tensor.name).and_then(|name| tensors.get(&name[..])) {
            done.push((Arc::clone(&scale.name), scaled(tensor, scale)?));
        }
    }
    for (scale, tensor) in done {
        tensors.remove(&scale);
        tensors.insert(Arc::clone(&tensor.name), tensor);
    }
    Ok(())
}

/// The numbers of `scale`, finite ones: one, or one for each matrix of a stack of weights.
fn numbers(weights: &Tensor, scale: &Tensor) -> Result<Vec<f32>> {
    let stack = weights.dims.get(2).copied().unwrap_or(1);
    let elements = scale.row_len() * scale.rows();
    let Some(scales) = scale.to_f32()?.filter(|_| [1, stack].contains(&elements)) else {
        fail!(
            ShapeMismatch,
            "tensor {} has type {} and shape {:?}; tensor {} needs one number{}",
            scale.name,
            scale.ty.name(),
            scale.dims,
            weights.name,
            if stack > 1 { ", or one per expert" } else { "" }
        );
    };
    if let Some(number) = scales.iter().find(|s| !s.is_finite()) {
        fail!(
            InvalidModel,
            "tensor {} has the element {number}",
            scale.name
        );
    }
    Ok(scales)
}

fn of_nvfp4(weights: &Tensor, scale: &Tensor) -> Result<Tensor> {
    let scales = numbers(weights, scale)?;
    if scales.iter().all(|s| *s == 1.0) {
        return Ok(weights.clone());
    }
    multiplied(weights, scales, TensorType::Q8_0)
}

fn of_bitnet(weights: &Tensor, scale: &Tensor) -> Result<Tensor> {
    let scales = numbers(weights, scale)?;
    let &[factor] = &scales[..] else {
        return multiplied(weights, scales, TensorType::F32);
    };
    let (ty, dims) = (weights.ty, weights.dims.clone());
    match ty {
        _ if factor == 1.0 => Ok(weights.clone()),
        TensorType::TQ1_0 | TensorType::TQ2_0 => {
            let rows = TernaryRows {
                source: weights.clone(),
                factor,
            };
            Tensor::made(Arc::clone(&weights.name), ty, dims, rows)
        }
        _ => multiplied(weights, scales, TensorType::F32),
    }
}

/// Rows of ternary blocks, whose scales are the last two bytes, times a number.
struct TernaryRows {
    source: Tensor,
    factor: f32,
}

impl MakeRows for TernaryRows {
    fn make(&self, first: usize, out: &mut [u8]) -> Result<()> {
        self.source.read_rows(first, out)?;
        for block in out.chunks_exact_mut(self.source.ty.block_bytes()) {
            let (_, scale) = block.split_at_mut(block.len() - 2);
            let own = f16::from_le_bytes([scale[0], scale[1]]);
            let product = f16::from_f32(own.to_f32() * self.factor);
            if !product.is_finite() {
                fail!(
                    InvalidModel,
                    "tensor {} has blocks with the scale {own}, times {}",
                    self.source.name,
                    self.factor
                );
            }
            scale.copy_from_slice(&product.to_le_bytes());
        }
        Ok(())
    }
}
