//! Tensors whose rows are those of others in another order.

use super::stored::Stored;
use crate::error::{Result, fail, try_vec};
use crate::format::Tensor;
use crate::format::made::{CHUNK_BYTES, MakeRows};
use std::sync::Arc;

/// Which row of a tensor becomes which row of another.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    /// The same row.
    Same,
    /// Of heads of this many rows, the first and the second half take turns: rope then rotates
    /// neighbours, where it rotated halves.
    Interleaved(usize),
    /// Of heads of `plain + rotated` rows, the last `rotated` of each as `Interleaved` has them.
    LastInterleaved { plain: usize, rotated: usize },
    /// Of every `of` rows, `rows` from `from` on, `step` apart.
    Part {
        of: usize,
        from: usize,
        rows: usize,
        step: usize,
    },
    /// From row `first` on, heads of `rows` rows, `group` of each of `groups` groups in succession:
    /// the groups take turns.
    Tiled {
        first: usize,
        rows: usize,
        groups: usize,
        group: usize,
    },
    /// The first `known` rows, and row 0 in place of those that would follow.
    Known(usize),
    /// Of each group `key` rows of queries, as many of keys, `values` rows of values and as many of
    /// something else: the queries of all groups, then the keys, then the values.
    Apart {
        groups: usize,
        key: usize,
        values: usize,
    },
    /// Of each of `groups` groups `queries` rows of queries, then `head` rows of keys and as many of values:
    /// the queries of all groups, then the keys, then the values.
    Heads {
        groups: usize,
        queries: usize,
        head: usize,
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
            Order::LastInterleaved { plain, rotated } => {
                let (head, i) = (row / (plain + rotated), row % (plain + rotated));
                let first = head * (plain + rotated) + plain;
                match i.checked_sub(plain) {
                    None => row,
                    Some(i) => first + Order::Interleaved(rotated).source(i),
                }
            }
            Order::Part {
                of,
                from,
                rows,
                step,
            } => row / rows * of + from + row % rows * step,
            Order::Same => row,
            Order::Known(known) if row < known => row,
            Order::Known(_) => 0,
            Order::Tiled {
                first,
                rows,
                groups,
                group,
            } => match row.checked_sub(first) {
                None => row,
                Some(row) => {
                    let (head, i) = (row / rows, row % rows);
                    first + (head % groups * group + head / groups) * rows + i
                }
            },
            Order::Apart {
                groups,
                key,
                values,
            } => {
                let of = 2 * key + 2 * values;
                let all = groups * key;
                match row {
                    row if row < all => row / key * of + row % key,
                    row if row < 2 * all => (row - all) / key * of + key + (row - all) % key,
                    row => {
                        let row = row - 2 * all;
                        row / values * of + 2 * key + row % values
                    }
                }
            }
            Order::Heads {
                groups,
                queries,
                head,
            } => {
                let of = queries + 2 * head;
                let (keys, values) = (groups * queries, groups * (queries + head));
                match row {
                    row if row < keys => row / queries * of + row % queries,
                    row => {
                        let (row, from) = match row < values {
                            true => (row - keys, queries),
                            false => (row - values, queries + head),
                        };
                        row / head * of + from + row % head
                    }
                }
            }
        }
    }
}

/// Rows that are read together although this many times fewer are wanted.
const MAX_SPREAD: usize = 4;

/// Rows of one tensor in another order.
pub(super) struct Reordered {
    pub source: Tensor,
    pub order: Order,
}

impl MakeRows for Reordered {
    fn make(&self, first: usize, out: &mut [u8]) -> Result<()> {
        let row_bytes = self.source.row_bytes();
        let rows = first..first + out.len() / row_bytes;
        let from = |row| self.order.source(row);
        let lowest = rows.clone().map(from).min().unwrap_or(0);
        let end = rows.clone().map(from).max().map_or(0, |row| row + 1);
        // Mostly they lie together, or every other one is wanted.
        if end - lowest > MAX_SPREAD * rows.len() {
            for (row, out) in rows.zip(out.chunks_exact_mut(row_bytes)) {
                self.source.read_rows(from(row), out)?;
            }
            return Ok(());
        }
        let mut found = try_vec((end - lowest) * row_bytes, 0u8, &self.source.name)?;
        self.source.read_rows(lowest, &mut found)?;
        for (row, out) in rows.zip(out.chunks_exact_mut(row_bytes)) {
            out.copy_from_slice(&found[(from(row) - lowest) * row_bytes..][..row_bytes]);
        }
        Ok(())
    }
}

/// Rows of one tensor with the second half of each before the first.
struct HalvesExchanged {
    source: Tensor,
}

/// The matrix with the second half of its columns before the first.
pub(super) fn halves_exchanged(source: Tensor) -> Result<Tensor> {
    let columns = source.dims.first().copied().unwrap_or(0);
    if !columns.is_multiple_of(2 * source.ty.block_len()) {
        fail!(
            ShapeMismatch,
            "tensor {} has rows of {columns} elements; the model needs two halves of whole blocks",
            source.name
        );
    }
    let (name, ty, dims) = (Arc::clone(&source.name), source.ty, source.dims.clone());
    Tensor::made(name, ty, dims, HalvesExchanged { source })
}

impl MakeRows for HalvesExchanged {
    fn make(&self, first: usize, out: &mut [u8]) -> Result<()> {
        let row_bytes = self.source.row_bytes();
        self.source.read_rows(first, out)?;
        for row in out.chunks_exact_mut(row_bytes) {
            row.rotate_left(row_bytes / 2);
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
    if source.is_together() {
        fail!(
            Unsupported,
            "tensor {}: weights of four or eight bits are not supported in this architecture",
            source.name
        );
    }
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
        let n = out.len() / (rows * size);
        let mut run = try_vec(columns.min(n) * size, 0u8, &source.name)?;
        // Row by row of the source, whose elements lie together.
        let mut done = 0;
        while done < n {
            let (matrix, column) = ((first + done) / columns, (first + done) % columns);
            let count = (columns - column).min(n - done);
            for row in 0..rows {
                let from = ((matrix * rows + row) * columns + column) * size;
                let run = &mut run[..count * size];
                source.read(from, run)?;
                for (i, element) in run.chunks_exact(size).enumerate() {
                    let to = ((done + i) * rows + row) * size;
                    out[to..to + size].copy_from_slice(element);
                }
            }
            done += count;
        }
        Ok(())
    }

    /// Long runs of elements that lie together.
    fn chunk_bytes(&self) -> usize {
        8 * CHUNK_BYTES
    }
}
