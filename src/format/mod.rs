//! Model files: bytes to checked tensors and metadata. The only code that reads untrusted bytes.

mod value;

pub use value::{Array, Value};

use crate::quant::TensorType;
use memmap2::Mmap;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A tensor of a model file: its description and its bytes, which stay mapped as long as any clone
/// lives. The range was checked against the file when the tensor was made.
#[derive(Clone)]
pub struct Tensor {
    /// The name in the file.
    pub name: Arc<str>,
    /// Element type.
    pub ty: TensorType,
    /// Number of elements per dimension, the fastest-varying (row length) first; 1 to 4 of them.
    pub dims: Vec<usize>,
    map: Arc<Mmap>,
    range: Range<usize>,
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
}

/// A model file (or all files of a split one), opened and checked.
pub struct ModelFile {
    /// Metadata by key.
    pub metadata: HashMap<String, Value>,
    /// Tensors by name.
    pub tensors: HashMap<Arc<str>, Tensor>,
    /// Bytes of all files together.
    pub file_bytes: u64,
}
