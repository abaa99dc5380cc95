//! Tensors whose rows are those of others in another order.

use super::stored::Stored;
use crate::error::{Result, fail};
use crate::format::Tensor;
use crate::format::made::MakeRows;

/// Which row of a tensor becomes which row of another.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    /// Of heads of this many rows, the first and the second half take turns: rope then rotates
    /// neighbours, where it rotated halves.
    Interleaved(usize),
    /// Of every `of` rows, `rows` from `from` on, `step` apart.
    Part {
        of: usize,
        from: usize,
        rows: usize,
        step: usize,
    },
}

impl Order {
    /// The row that becomes row `row`.
    pub(super) fn source(self, row: usize) -> usize {
        match self {
            Order::Interleaved(head) => {
                let (first, i) = (row - row % head, row % head);
                first + i % 2 * (head / 2) + i / 2
            }
            Order::Part {
                of,
                from,
                rows,
                step,
            } => row / rows * of + from + row % rows * step,
        }
    }
}

/// Rows of one tensor in another order.
pub(super) struct Reordered {
    pub source: Tensor,
    pub order: Order,
}

impl MakeRows for Reordered {
    fn make(&self, first: usize, out: &mut [u8]) -> Result<()> {
        for (i, row) in out.chunks_exact_mut(self.source.row_bytes()).enumerate() {
            self.source.read_rows(self.order.source(first + i), row)?;
        }
        Ok(())
    }
}

/// The rows of several tensors of the same shape and type, one below the other.
pub(super) struct Stacked {
    pub parts: Vec<Tensor>,
}

impl MakeRows for Stacked {
    fn make(&self, first: usize, mut out: &mut [u8]) -> Result<()> {
        let (rows, row_bytes) = (self.parts[0].rows(), self.parts[0].row_bytes());
        let mut row = first;
        while !out.is_empty() {
            let count = (rows - row % rows).min(out.len() / row_bytes);
            let (now, later) = out.split_at_mut(count * row_bytes);
            self.parts[row / rows].read_rows(row % rows, now)?;
            row += count;
            out = later;
        }
        Ok(())
    }
}

/// The tensors one below the other, as one of the name that `name` gives them together.
pub(super) fn stack(name: String, parts: Vec<Tensor>) -> Result<Tensor> {
    let Some(first) = parts.first() else {
        fail!(MissingTensor, "tensor {name} has no parts");
    };
    if let Some(other) = parts
        .iter()
        .find(|t| t.dims != first.dims || t.ty != first.ty)
    {
        fail!(
            ShapeMismatch,
            "tensor {} is {} {:?}, but tensor {} is {} {:?}; they must be alike",
            first.name,
            first.ty.name(),
            first.dims,
            other.name,
            other.ty.name(),
            other.dims
        );
    }
    let mut dims = first.dims.clone();
    dims.push(parts.len());
    Tensor::made(name.into(), first.ty, dims, Stacked { parts })
}

/// Rows that are the columns of a matrix, or of each of several.
pub(super) struct Transposed {
    source: Stored,
    /// Bytes per element.
    size: usize,
    /// Rows and columns of each matrix of the source.
    rows: usize,
    columns: usize,
}

/// The tensor with the last two dimensions exchanged.
pub(super) fn transposed(source: &Stored) -> Result<Tensor> {
    let plain = source.tensor()?;
    let [columns, rows, ref rest @ ..] = plain.dims[..] else {
        fail!(
            ShapeMismatch,
            "tensor {} has shape {:?}; the model needs a matrix",
            source.name,
            source.shape
        );
    };
    let dims = [&[rows, columns], rest].concat();
    let transposed = Transposed {
        source: source.clone(),
        size: plain.ty.block_bytes(),
        rows,
        columns,
    };
    Tensor::made(plain.name, plain.ty, dims, transposed)
}

impl MakeRows for Transposed {
    fn make(&self, first: usize, out: &mut [u8]) -> Result<()> {
        let &Transposed {
            ref source,
            size,
            rows,
            columns,
        } = self;
        let bytes = source.bytes();
        let n = out.len() / (rows * size);
        // Row by row of the source, whose elements lie together.
        let mut done = 0;
        while done < n {
            let (matrix, column) = ((first + done) / columns, (first + done) % columns);
            let count = (columns - column).min(n - done);
            for row in 0..rows {
                let from = ((matrix * rows + row) * columns + column) * size;
                let elements = bytes[from..from + count * size].chunks_exact(size);
                for (i, element) in elements.enumerate() {
                    let to = ((done + i) * rows + row) * size;
                    out[to..to + size].copy_from_slice(element);
                }
            }
            done += count;
        }
        Ok(())
    }
}
