//! A tensor of a model file.

use crate::quant::TensorType;
use memmap2::Mmap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A tensor of a model file: its description and its bytes, which stay mapped as long as any clone
/// lives. The range was checked against the file when the tensor was made.
///
/// The bytes start at a multiple of the file's alignment (32 unless the file says otherwise, but a
/// file may say 1), so wide elements must be read with unaligned loads.
#[derive(Clone)]
pub struct Tensor {
    /// The name in the file.
    pub name: Arc<str>,
    /// Element type.
    pub ty: TensorType,
    /// Number of elements per dimension, the fastest-varying (row length) first; 1 to 4 of them,
    /// none of them 0. Their product fits a `usize`.
    pub dims: Vec<usize>,
    pub(super) map: Arc<Mmap>,
    pub(super) range: Range<usize>,
}

impl Tensor {
    /// The raw blocks, `rows() * row_bytes()` of them.
    pub fn bytes(&self) -> &[u8] {
        &self.map[self.range.clone()]
    }

    /// Elements per row (the contiguous dimension).
    pub fn row_len(&self) -> usize {
        self.dims[0]
    }

    /// Product of all dimensions but the first.
    pub fn rows(&self) -> usize {
        self.dims[1..].iter().product()
    }

    /// Bytes per row.
    pub fn row_bytes(&self) -> usize {
        self.ty
            .row_bytes(self.dims[0])
            .expect("checked when the tensor was made")
    }

    /// Some rows, as a tensor of the same name. Panics if they are none or not all there.
    pub fn row_range(&self, rows: Range<usize>) -> Tensor {
        assert!(rows.start < rows.end && rows.end <= self.rows());
        let start = self.range.start + rows.start * self.row_bytes();
        Tensor {
            dims: vec![self.dims[0], rows.len()],
            range: start..start + rows.len() * self.row_bytes(),
            ..self.clone()
        }
    }

    /// Some elements of a tensor of one row that is not quantized, likewise.
    pub fn elements(&self, elements: Range<usize>) -> Tensor {
        assert!(elements.start < elements.end && elements.end <= self.row_len());
        assert!(self.rows() == 1 && self.ty.block_len() == 1);
        let size = self.row_bytes() / self.row_len();
        let start = self.range.start + elements.start * size;
        Tensor {
            dims: vec![elements.len()],
            range: start..start + elements.len() * size,
            ..self.clone()
        }
    }

    /// The elements of a tensor that is not quantized (a norm's weight, a bias), or `None`.
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        let bytes = self.bytes();
        match self.ty {
            TensorType::F32 => {
                let (elements, _) = bytes.as_chunks();
                Some(elements.iter().map(|&b| f32::from_le_bytes(b)).collect())
            }
            TensorType::F16 => {
                let (elements, _) = bytes.as_chunks();
                let wide = |&b| half::f16::from_le_bytes(b).to_f32();
                Some(elements.iter().map(wide).collect())
            }
            TensorType::BF16 => {
                let (elements, _) = bytes.as_chunks();
                let wide = |&b| half::bf16::from_le_bytes(b).to_f32();
                Some(elements.iter().map(wide).collect())
            }
            _ => None,
        }
    }

    /// Whether both are the same bytes of the same file, as an embedding and a head tied to it are.
    pub fn same_data(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.map, &other.map) && self.range == other.range
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {:?}", self.name, self.ty.name(), self.dims)
    }
}
