//! Tensors as safetensors files have them.

use crate::error::{Error, Result, Status, fail, try_vec};
use crate::format::Tensor;
use crate::format::convert::converted;
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
    /// What it is together with others, of which it was the first.
    together: Option<Tensor>,
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
            together: None,
        }
    }

    /// The tensor, of that shape, that `part` is with others.
    pub(super) fn together(part: &Stored, shape: Vec<usize>, tensor: Tensor) -> Stored {
        Stored {
            name: Arc::clone(&tensor.name),
            shape,
            together: Some(tensor),
            ..part.clone()
        }
    }

    /// The same elements in another shape of as many.
    pub(super) fn reshaped(&self, shape: Vec<usize>) -> Stored {
        Stored {
            shape,
            ..self.clone()
        }
    }

    /// Whether it is several tensors of the file.
    pub(super) fn is_together(&self) -> bool {
        self.together.is_some()
    }

    /// `Unsupported` if the elements have another type.
    pub(super) fn check_type(&self, ty: &str) -> Result<()> {
        if self.ty != ty {
            fail!(
                Unsupported,
                "tensor {} has type {}; it must be {ty}",
                self.name,
                self.ty
            );
        }
        Ok(())
    }

    /// The error that names the shape, and what it must be.
    pub(super) fn misshapen(&self, needed: &str) -> Error {
        let problem = format!(
            "tensor {} has shape {:?}; it must be {needed}",
            self.name, self.shape
        );
        Error::new(Status::ShapeMismatch, problem)
    }

    /// Fills `out` with the tensor's bytes from `offset` on.
    pub(super) fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        assert!(self.together.is_none(), "one tensor of a file");
        assert!(offset + out.len() <= self.range.len(), "bytes there");
        self.input
            .read_of(&self.name, self.range.start + offset, out)
    }

    /// Whether the other has the same elements, stored in the same way.
    pub(super) fn equals(&self, other: &Stored) -> Result<bool> {
        let alike = (self.ty, &self.shape) == (other.ty, &other.shape);
        if !alike || self.is_together() || other.is_together() {
            return Ok(false);
        }
        const AT_ONCE: usize = 1 << 20;
        let len = self.range.len();
        let mut mine = try_vec(len.min(AT_ONCE), 0u8, &self.name)?;
        let mut others = try_vec(len.min(AT_ONCE), 0u8, &other.name)?;
        for offset in (0..len).step_by(AT_ONCE) {
            let count = AT_ONCE.min(len - offset);
            self.read(offset, &mut mine[..count])?;
            other.read(offset, &mut others[..count])?;
            if mine[..count] != others[..count] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Fills `out` with the words from the `first` on, of a tensor of these.
    pub(super) fn read_words(&self, first: usize, out: &mut [u32]) -> Result<()> {
        let mut bytes = try_vec(4 * out.len(), 0u8, &self.name)?;
        self.read(4 * first, &mut bytes)?;
        for (word, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        Ok(())
    }

    /// So many elements from the `first` on, of a tensor that is not quantized.
    pub(super) fn range(&self, first: usize, count: usize) -> Result<Vec<f32>> {
        let mut flat = self.tensor()?;
        flat.dims = vec![1, self.shape.iter().product()];
        // A plain type has elements.
        let some = flat.row_range(first..first + count);
        Ok(some.to_f32()?.unwrap_or_default())
    }

    /// The elements of a tensor of integers, none below 0.
    pub(super) fn sizes(&self) -> Result<Vec<usize>> {
        let size = match self.ty {
            "I32" => 4,
            "I64" => 8,
            other => fail!(
                Unsupported,
                "tensor {} has type {other}; it must be I32 or I64",
                self.name
            ),
        };
        let mut bytes = try_vec(self.range.len(), 0u8, &self.name)?;
        self.read(0, &mut bytes)?;
        let number = |bytes: &[u8]| {
            let mut all = [if bytes[size - 1] < 128 { 0 } else { 255 }; 8];
            all[..size].copy_from_slice(bytes);
            i64::from_le_bytes(all)
        };
        let numbers = bytes.chunks_exact(size).map(number);
        let mut sizes = Vec::new();
        for number in numbers {
            match usize::try_from(number) {
                Ok(number) => sizes.push(number),
                Err(_) => fail!(
                    InvalidModel,
                    "tensor {} has the element {number}",
                    self.name
                ),
            }
        }
        Ok(sizes)
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
        if let Some(tensor) = &self.together {
            return Ok(tensor.clone());
        }
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
        let tensor = match &self.together {
            Some(tensor) => converted(tensor, TensorType::F32)?,
            None => self.tensor()?,
        };
        // A plain type has elements.
        Ok(tensor.to_f32()?.unwrap_or_default())
    }
}

/// A tensor of these elements, F32.
pub(super) fn small(name: &str, dims: Vec<usize>, values: &[f32]) -> Result<Tensor> {
    Tensor::of_numbers(name, dims, values)
}
