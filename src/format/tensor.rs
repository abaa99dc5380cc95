//! A tensor of a model file.

use super::file::OpenFile;
use super::input::Input;
use super::made::{CHUNK_BYTES, Made, MakeRows, Source};
use crate::error::{Result, fail, try_vec};
use crate::quant::{TensorType, dequantize_row};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A tensor of a model file: its description, and its bytes wherever they are, which stay reachable
/// as long as any clone lives.
///
/// - Of a mapped file, they are a part of the mapping.
/// - Of a file that is read, they come to memory by [`ModelFile::make`](super::ModelFile::make).
/// - So they do where the file has another type or order of rows than the model needs.
///
/// Whichever it is, [`read_rows`](Tensor::read_rows) gives rows at any time, and does not touch a
/// mapping.
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

/// Makes the rows of some columns of a tensor.
struct Columns {
    whole: Tensor,
    /// Those of a row, in this order; none of them empty.
    pieces: Vec<Range<usize>>,
}

impl MakeRows for Columns {
    fn make(&self, first: usize, out: &mut [u8]) -> Result<()> {
        let row_bytes = self.whole.row_bytes();
        let kept: usize = self.pieces.iter().map(Range::len).sum();
        // Whole rows of the file are read, some at a time.
        let at_once = (CHUNK_BYTES / row_bytes.max(1)).max(1);
        let rows = out.chunks_mut(at_once * kept);
        let mut raw = Vec::new();
        for (i, rows) in rows.enumerate() {
            let n = rows.len() / kept;
            if raw.len() < n * row_bytes {
                raw = try_vec(n * row_bytes, 0u8, &self.whole.name)?;
            }
            let raw = &mut raw[..n * row_bytes];
            self.whole.read_rows(first + i * at_once, raw)?;
            let rows = rows.chunks_exact_mut(kept);
            for (mut to, from) in rows.zip(raw.chunks_exact(row_bytes)) {
                for piece in &self.pieces {
                    let (own, behind) = to.split_at_mut(piece.len());
                    own.copy_from_slice(&from[piece.clone()]);
                    to = behind;
                }
            }
        }
        Ok(())
    }
}

/// Makes some rows of every so many of a tensor.
struct RowsOfEach {
    whole: Tensor,
    /// Rows from one set to the next.
    period: usize,
    /// Rows of a set, in this order; none of them empty.
    pieces: Vec<Range<usize>>,
}

impl MakeRows for RowsOfEach {
    fn make(&self, first: usize, mut out: &mut [u8]) -> Result<()> {
        let row_bytes = self.whole.row_bytes();
        let kept: usize = self.pieces.iter().map(Range::len).sum();
        let (mut set, mut at) = (first / kept, first % kept);
        while !out.is_empty() {
            for piece in &self.pieces {
                if at >= piece.len() {
                    at -= piece.len();
                    continue;
                }
                let n = (piece.len() - at).min(out.len() / row_bytes);
                let (rows, behind) = out.split_at_mut(n * row_bytes);
                if n > 0 {
                    let from = set * self.period + piece.start + at;
                    self.whole.read_rows(from, rows)?;
                }
                out = behind;
                at = 0;
            }
            set += 1;
        }
        Ok(())
    }
}

/// Tells the bytes of a tensor from those of others: see [`Tensor::id`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorId(usize, usize);

/// Where the bytes of a tensor are.
#[derive(Clone)]
pub(super) enum Data {
    /// Among those of a file, in memory or mapped.
    Input(Arc<Input>),
    /// In memory of their own, as soon as they are made.
    Made(Arc<Made>),
}

impl Tensor {
    /// A tensor that the bytes `range` of `input` are. They fit the dimensions.
    pub(super) fn stored(
        name: Arc<str>,
        ty: TensorType,
        dims: Vec<usize>,
        input: &Arc<Input>,
        range: Range<usize>,
    ) -> Tensor {
        let mut tensor = Tensor {
            name,
            ty,
            dims,
            data: Data::Input(Arc::clone(input)),
            range,
        };
        if input.bytes().is_none() {
            let len = tensor.range.len();
            let source = Source::File {
                input: Arc::clone(input),
                tensor: Arc::clone(&tensor.name),
                offset: tensor.range.start,
            };
            tensor.data = Data::Made(Arc::new(Made::new(len, source)));
            tensor.range = 0..len;
        }
        tensor
    }

    /// A tensor in memory of its own, of 32-bit floats that fit the dimensions.
    pub(crate) fn of_numbers(name: &str, dims: Vec<usize>, values: &[f32]) -> Result<Tensor> {
        debug_assert_eq!(dims.iter().product::<usize>(), values.len());
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let input = Arc::new(Input::copy(&bytes)?);
        let len = bytes.len();
        Ok(Tensor::stored(
            name.into(),
            TensorType::F32,
            dims,
            &input,
            0..len,
        ))
    }

    /// The elements of a tensor of any type as a tensor in memory, F32.
    ///
    /// Errors: `OutOfMemory`, and those of [`read_rows`](Self::read_rows).
    pub(crate) fn widened(&self) -> Result<Tensor> {
        let mut bytes = try_vec(self.byte_len(), 0u8, &self.name)?;
        self.read_rows(0, &mut bytes)?;
        let mut values = try_vec(self.row_len() * self.rows(), 0.0, &self.name)?;
        dequantize_row(self.ty, &bytes, &mut values);
        Tensor::of_numbers(&self.name, self.dims.clone(), &values)
    }

    /// The same rows in memory, in another order: row `i` is row `source(i)` of this tensor. Of a tensor of one
    /// dimension, the elements take the rows' place; it is not quantized then.
    ///
    /// Errors: `OutOfMemory`, and those of [`read_rows`](Self::read_rows).
    pub(crate) fn reordered(&self, source: impl Fn(usize) -> usize) -> Result<Tensor> {
        let all = self.byte_len();
        let mut bytes = try_vec(all, 0u8, &self.name)?;
        self.read_rows(0, &mut bytes)?;
        let rows = self.dims.last().copied().unwrap_or(1);
        let mut out = try_vec(all, 0u8, &self.name)?;
        for (row, out) in out.chunks_exact_mut(all / rows).enumerate() {
            out.copy_from_slice(&bytes[source(row) * out.len()..][..out.len()]);
        }
        let input = Arc::new(Input::copy(&out)?);
        let (name, dims) = (Arc::clone(&self.name), self.dims.clone());
        Ok(Tensor::stored(name, self.ty, dims, &input, 0..all))
    }

    /// The same with a copy of its bytes, for what the file's tensors are not made with.
    pub(crate) fn in_memory(&self) -> Result<Tensor> {
        let all = self.byte_len();
        let mut bytes = try_vec(all, 0u8, &self.name)?;
        self.read_rows(0, &mut bytes)?;
        let input = Arc::new(Input::copy(&bytes)?);
        let (name, dims) = (Arc::clone(&self.name), self.dims.clone());
        Ok(Tensor::stored(name, self.ty, dims, &input, 0..all))
    }

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
                data: Data::Made(Arc::new(Made::new(len, Source::Rows(Box::new(source))))),
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
            Data::Input(input) => input.bytes(),
            Data::Made(made) => made.bytes(),
        };
        &all.expect("made before it is used")[self.range.clone()]
    }

    /// Number of raw bytes, also of a tensor that is yet to be made.
    pub fn byte_len(&self) -> usize {
        self.range.len()
    }

    /// Writes whole rows to `out`, from row `first` on: a copy, read from the file, or made for this
    /// call alone.
    ///
    /// Errors: `FileTruncated` and `Io` of the file; those of what makes the rows.
    ///
    /// Panics unless `out` is a whole number of rows that the tensor has.
    pub fn read_rows(&self, first: usize, out: &mut [u8]) -> Result<()> {
        let row_bytes = self.row_bytes();
        assert!(out.len().is_multiple_of(row_bytes), "whole rows");
        assert!(first + out.len() / row_bytes <= self.rows(), "rows there");
        let start = self.range.start + first * row_bytes;
        match &self.data {
            Data::Input(input) => input.read_of(&self.name, start, out),
            Data::Made(made) => made.read(start, row_bytes, out),
        }
    }

    /// The file that the bytes are mapped from.
    pub(super) fn mapped_file(&self) -> Option<&Arc<OpenFile>> {
        match &self.data {
            Data::Input(input) => input.file(),
            Data::Made(_) => None,
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

    /// Some columns, whole blocks of them, side by side, as a tensor of the same name, whose bytes are copied when they are read.
    /// `InvalidModel` where they are none, not all there, or no whole blocks.
    pub fn columns(whole: &Tensor, pieces: &[Range<usize>]) -> Result<Tensor> {
        let block = whole.ty.block_len();
        let is_whole = |at: usize| at.is_multiple_of(block);
        let fits = |piece: &Range<usize>| {
            let inside = piece.start < piece.end && piece.end <= whole.row_len();
            inside && is_whole(piece.start) && is_whole(piece.end)
        };
        if pieces.is_empty() || !pieces.iter().all(fits) {
            fail!(
                InvalidModel,
                "tensor {}: columns {pieces:?} of {} in blocks of {block}",
                whole.name,
                whole.row_len()
            );
        }
        let mut dims = whole.dims.clone();
        dims[0] = pieces.iter().map(Range::len).sum();
        let bytes = |columns: usize| columns / block * whole.ty.block_bytes();
        let of_piece = |piece: &Range<usize>| bytes(piece.start)..bytes(piece.end);
        let source = Columns {
            whole: whole.clone(),
            pieces: pieces.iter().map(of_piece).collect(),
        };
        Tensor::made(whole.name.clone(), whole.ty, dims, source)
    }

    /// Of each of `n` sets of rows of equal length the rows `pieces`, one below the other, as a tensor of the same name, whose bytes are
    /// copied when they are read. `InvalidModel` where they are none or not all there.
    pub fn rows_of_each(whole: &Tensor, n: usize, pieces: &[Range<usize>]) -> Result<Tensor> {
        let period = whole.rows() / n.max(1);
        let fits = |piece: &Range<usize>| piece.start < piece.end && piece.end <= period;
        if n == 0 || period * n != whole.rows() || pieces.is_empty() || !pieces.iter().all(fits) {
            fail!(
                InvalidModel,
                "tensor {}: rows {pieces:?} of each of {n} sets in {} rows",
                whole.name,
                whole.rows()
            );
        }
        let kept: usize = pieces.iter().map(Range::len).sum();
        let source = RowsOfEach {
            whole: whole.clone(),
            period,
            pieces: pieces.to_vec(),
        };
        let dims = vec![whole.row_len(), kept * n];
        Tensor::made(whole.name.clone(), whole.ty, dims, source)
    }

    /// The same elements of a tensor that is not quantized, as rows of `len`. Panics unless these are whole rows.
    pub fn with_rows_of(&self, len: usize) -> Tensor {
        let all = self.row_len() * self.rows();
        assert!(all.is_multiple_of(len) && self.ty.block_len() == 1);
        Tensor {
            dims: vec![len, all / len],
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
    ///
    /// Errors: `OutOfMemory`, and those of [`read_rows`](Self::read_rows).
    pub fn to_f32(&self) -> Result<Option<Vec<f32>>> {
        let widen: fn(&[u8], &mut [f32]) = match self.ty {
            TensorType::F32 => |bytes, out| {
                let (elements, _) = bytes.as_chunks();
                for (out, bytes) in out.iter_mut().zip(elements) {
                    *out = f32::from_le_bytes(*bytes);
                }
            },
            TensorType::F16 => |bytes, out| {
                let (elements, _) = bytes.as_chunks();
                for (out, bytes) in out.iter_mut().zip(elements) {
                    *out = half::f16::from_le_bytes(*bytes).to_f32();
                }
            },
            TensorType::BF16 => |bytes, out| {
                let (elements, _) = bytes.as_chunks();
                for (out, bytes) in out.iter_mut().zip(elements) {
                    *out = half::bf16::from_le_bytes(*bytes).to_f32();
                }
            },
            _ => return Ok(None),
        };
        let mut bytes = try_vec(self.byte_len(), 0u8, &self.name)?;
        self.read_rows(0, &mut bytes)?;
        let mut elements = try_vec(self.row_len() * self.rows(), 0.0, &self.name)?;
        widen(&bytes, &mut elements);
        Ok(Some(elements))
    }

    /// What tells these bytes from those of all other tensors, as long as a clone of this one lives.
    pub fn id(&self) -> TensorId {
        let data = match &self.data {
            Data::Input(input) => Arc::as_ptr(input).addr(),
            Data::Made(made) => Arc::as_ptr(made).addr(),
        };
        TensorId(data, self.range.start)
    }

    /// The row of `whole` that is the first one of this tensor, if this one is rows of that.
    pub fn first_row_in(&self, whole: &Tensor) -> Option<usize> {
        let TensorId(data, start) = self.id();
        let TensorId(whole_data, whole_start) = whole.id();
        let end = self.range.end <= whole.range.end;
        if data != whole_data || start < whole_start || !end {
            return None;
        }
        let alike = self.ty == whole.ty && self.row_len() == whole.row_len();
        let offset = start - whole_start;
        let row_bytes = whole.row_bytes();
        (alike && offset.is_multiple_of(row_bytes)).then(|| offset / row_bytes)
    }

    /// Whether both are the same bytes of the same file, as an embedding and a head tied to it are.
    pub fn same_data(&self, other: &Tensor) -> bool {
        let same = match (&self.data, &other.data) {
            (Data::Input(a), Data::Input(b)) => Arc::ptr_eq(a, b),
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
