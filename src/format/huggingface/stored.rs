//! Tensors as safetensors files have them.

use crate::error::{Result, fail};
use crate::format::Tensor;
use crate::format::input::Input;
use crate::format::safetensors::Entry;
use crate::quant::TensorType;
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
    input: Arc<Input>,
    range: Range<usize>,
}

impl Stored {
    pub(super) fn new(entry: &Entry, input: &Arc<Input>, file: &Arc<Path>) -> Stored {
        Stored {
            name: entry.name.as_str().into(),
            ty: entry.ty,
            shape: entry.shape.clone(),
            file: Arc::clone(file),
            input: Arc::clone(input),
            range: entry.range.clone(),
        }
    }

    /// Fills `out` with the tensor's bytes from `offset` on.
    pub(super) fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        assert!(offset + out.len() <= self.range.len(), "bytes there");
        self.input
            .read_of(&self.name, self.range.start + offset, out)
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
        Ok(Tensor::stored(
            Arc::clone(&self.name),
            ty,
            self.dims()?,
            &self.input,
            self.range.clone(),
        ))
    }

    /// The elements, of a tensor that is not quantized.
    pub(super) fn values(&self) -> Result<Vec<f32>> {
        // A plain type has elements.
        Ok(self.tensor()?.to_f32()?.unwrap_or_default())
    }
}

/// A tensor of these elements, F32.
pub(super) fn small(name: &str, dims: Vec<usize>, values: &[f32]) -> Result<Tensor> {
    debug_assert_eq!(dims.iter().product::<usize>(), values.len());
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let input = Arc::new(Input::copy(&bytes)?);
    Ok(Tensor::stored(
        name.into(),
        TensorType::F32,
        dims,
        &input,
        0..bytes.len(),
    ))
}
