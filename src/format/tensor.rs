//! A tensor of a model file.

use super::made::{Made, MakeRows};
use crate::error::{Result, fail};
use crate::quant::TensorType;
use memmap2::Mmap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A tensor of a model file: its description and its bytes, which stay in memory as long as any
/// clone lives. Mostly they are a part of the mapped file, and the range was checked against it
/// when the tensor was made. Where the file has another type or order, they are made by
/// [`ModelFile::make`](super::ModelFile::make).
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
    pub(super) data: Data,
    /// The tensor's bytes among those of `data`.
    pub(super) range: Range<usize>,
}

/// Where the bytes of a tensor are.
#[derive(Clone)]
pub(super) enum Data {
    /// In a file.
    Mapped(Arc<Mmap>),
    /// In memory of their own, as soon as they are made.
    Made(Arc<Made>),
}

impl Tensor {
    /// A tensor whose rows `source` makes. `InvalidModel` if the dimensions do not fit the type.
    pub(super) fn made(
        name: Arc<str>,
        ty: TensorType,
        dims: Vec<usize>,
        source: impl MakeRows + 'static,
    ) -> Result<Tensor> {
        let len = match *dims {
            [row, ref rest @ ..] if rest.len() < 4 && !dims.contains(&0) => rest
                .iter()
                .try_fold(ty.row_bytes(row).unwrap_or(0), |n, &d| n.checked_mul(d)),
            _ => None,
        };
        match len {
            Some(len) if len > 0 => Ok(Tensor {
                name,
                ty,
                dims,
                data: Data::Made(Arc::new(Made::new(len, Box::new(source)))),
                range: 0..len,
            }),
            _ => fail!(
                InvalidModel,
                "tensor {name} of type {} cannot have shape {dims:?}",
                ty.name()
            ),
        }
    }

    /// The raw blocks, `rows() * row_bytes()` of them.
    ///
    /// Panics for a tensor that is yet to be made.
    pub fn bytes(&self) -> &[u8] {
        let all = match &self.data {
            Data::Mapped(map) => &map[..],
            Data::Made(made) => made.bytes().expect("made before it is used"),
        };
        &all[self.range.clone()]
    }

    /// Number of raw bytes, also of a tensor that is yet to be made.
    pub fn byte_len(&self) -> usize {
        self.range.len()
    }

    /// Writes whole rows to `out`, from row `first` on: a copy, or made for this call alone.
    ///
    /// Panics unless `out` is a whole number of rows that the tensor has.
    pub fn read_rows(&self, first: usize, out: &mut [u8]) -> Result<()> {
        let row_bytes = self.row_bytes();
        assert!(out.len().is_multiple_of(row_bytes), "whole rows");
        assert!(first + out.len() / row_bytes <= self.rows(), "rows there");
        let start = self.range.start + first * row_bytes;
        let ready = match &self.data {
            Data::Mapped(map) => Some(&map[..]),
            Data::Made(made) => made.bytes(),
        };
        match (ready, &self.data) {
            (None, Data::Made(made)) => made.rows.make(start / row_bytes, out),
            (bytes, _) => {
                let bytes = bytes.unwrap_or_default();
                out.copy_from_slice(&bytes[start..start + out.len()]);
                Ok(())
            }
        }
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
        let same = match (&self.data, &other.data) {
            (Data::Mapped(a), Data::Mapped(b)) => Arc::ptr_eq(a, b),
            (Data::Made(a), Data::Made(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        same && self.range == other.range
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {:?}", self.name, self.ty.name(), self.dims)
    }
}
