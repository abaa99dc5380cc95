//! NVFP4 weights with a scale of the whole tensor, or of each expert, in a tensor of its own: read as Q8_0,
//! whose blocks have room for it. That differs from the product of all three factors by at most 1/254
//! of the largest element of each 32.

use super::Tensor;
use super::convert::multiplied;
use crate::error::{Result, fail};
use crate::quant::TensorType;
use std::collections::HashMap;
use std::sync::Arc;

/// Multiplies the NVFP4 tensors that have scales with these, which are no tensors any more: `{name}.weight` with
/// `{name}.scale`.
///
/// Errors: `ShapeMismatch`, `InvalidModel`, and those of reading the scales.
pub(super) fn apply_scales(tensors: &mut HashMap<Arc<str>, Tensor>) -> Result<()> {
    let scale_of = |name: &str| Some(format!("{}.scale", name.strip_suffix(".weight")?));
    let mut done = Vec::new();
    for tensor in tensors.values().filter(|t| t.ty == TensorType::NVFP4) {
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

/// `weights`, an NVFP4 tensor, times the numbers of `scale`: one, or one for each matrix of a stack.
fn scaled(weights: &Tensor, scale: &Tensor) -> Result<Tensor> {
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
    if scales.iter().all(|s| *s == 1.0) {
        return Ok(weights.clone());
    }
    multiplied(weights, scales, TensorType::Q8_0)
}
