//! Tensors as safetensors files have them.

use crate::error::{Result, fail};
use crate::format::safetensors::Entry;
use crate::format::tensor::Data;
use crate::format::{Tensor, map};
use crate::quant::TensorType;
use memmap2::Mmap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A tensor of a safetensors file.
#[derive(Clone)]
pub(super) struct Stored {
    pub name: Arc<str>,
    /// Element type, as the format spells it.
    pub ty: &'static str,
    /// Elements per dimension, the fastest-varying last.
    pub shape: Vec<usize>,
    /// The file that it is in.
    pub file: Arc<Path>,
    map: Arc<Mmap>,
    range: Range<usize>,
}

impl Stored {
    pub(super) fn new(entry: &Entry, map: &Arc<Mmap>, file: &Arc<Path>) -> Stored {
        Stored {
            name: entry.name.as_str().into(),
            ty: entry.ty,
            shape: entry.shape.clone(),
            file: Arc::clone(file),
            map: Arc::clone(map),
            range: entry.range.clone(),
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.map[self.range.clone()]
    }

    /// The element type as the library's, if it has no scales elsewhere.
    pub(super) fn plain_type(&self) -> Option<TensorType> {
        Some(match self.ty {
            "F32" => TensorType::F32,
            "F16" => TensorType::F16,
            "BF16" => TensorType::BF16,
            _ => return None,
        })
    }

    /// The sizes with the fastest-varying first, as tensors have them; 1 for a single element.
    /// `ShapeMismatch` if they are too many or one is 0.
    pub(super) fn dims(&self) -> Result<Vec<usize>> {
        let dims: Vec<usize> = match *self.shape {
            [] => vec![1],
            ref shape => shape.iter().rev().copied().collect(),
        };
        if dims.len() > 4 || dims.contains(&0) {
            fail!(
                ShapeMismatch,
                "tensor {} has shape {:?}; the model needs 1 to 4 dimensions, none of them 0",
                self.name,
                self.shape
            );
        }
        Ok(dims)
    }

    /// The tensor with these very bytes. `Unsupported` for types that need more than those.
    pub(super) fn tensor(&self) -> Result<Tensor> {
        let Some(ty) = self.plain_type() else {
            fail!(
                Unsupported,
                "tensor {} has type {}; it must be F32, F16, BF16 or F8_E4M3",
                self.name,
                self.ty
            );
        };
        Ok(Tensor {
            name: Arc::clone(&self.name),
            ty,
            dims: self.dims()?,
            data: Data::Mapped(Arc::clone(&self.map)),
            range: self.range.clone(),
        })
    }

    /// The elements, of a tensor that is not quantized.
    pub(super) fn values(&self) -> Result<Vec<f32>> {
        // A plain type has elements.
        Ok(self.tensor()?.to_f32().unwrap_or_default())
    }
}

/// A tensor of these elements, F32.
pub(super) fn small(name: &str, dims: Vec<usize>, values: &[f32]) -> Result<Tensor> {
    debug_assert_eq!(dims.iter().product::<usize>(), values.len());
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let map = map::copy(&bytes)?;
    Ok(Tensor {
        name: name.into(),
        ty: TensorType::F32,
        dims,
        range: 0..map.len(),
        data: Data::Mapped(Arc::new(map)),
    })
}
