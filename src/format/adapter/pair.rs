//! Pairs of thin matrices, as they come out of a file.

use super::super::Tensor;
use crate::error::{Error, Result, Status, fail, try_vec};
use crate::quant::{TensorType, dequantize_row};

/// The most elements of a thin matrix: far beyond those of real models.
const MAX_ELEMENTS: usize = 1 << 30;
/// The largest rank.
pub const MAX_RANK: usize = 4096;

/// A pair of thin matrices, or one for each of some matrices of a shape.
#[derive(Clone, Debug)]
pub struct AdapterPair {
    /// The tensor of the model that it is added to, by its name in GGUF.
    pub target: String,
    /// What the file calls `A` and `B`.
    pub names: [String; 2],
    /// Matrices that the tensor has, of experts or heads, each with a pair of its own: at least 1.
    pub stack: usize,
    /// Rows of `A`, columns of `B`; at least 1.
    pub rank: usize,
    /// Columns of `A`: inputs.
    pub inputs: usize,
    /// Rows of `B`: outputs.
    pub outputs: usize,
    /// Factor on `B A`. Finite.
    pub scale: f32,
    /// Types that `a` and `b` had in the file, single precision for quantized ones: their elements have exact
    /// values of these.
    pub types: [TensorType; 2],
    /// `[stack][rank][inputs]`, finite.
    pub a: Vec<f32>,
    /// `[stack][outputs][rank]`, finite, in GGUF's order of rows.
    pub b: Vec<f32>,
}

impl AdapterPair {
    /// The pair of some rows of each matrix, for another tensor: row `source(i)` becomes row `i`.
    pub(in super::super) fn of_rows(
        &self,
        target: String,
        rows: usize,
        source: impl Fn(usize) -> usize,
    ) -> Result<AdapterPair> {
        let mut b = try_vec(self.stack * rows * self.rank, 0.0, "an adapter")?;
        let matrices = self.b.chunks_exact(self.outputs * self.rank);
        for (to, from) in b.chunks_exact_mut(rows * self.rank).zip(matrices) {
            for (i, row) in to.chunks_exact_mut(self.rank).enumerate() {
                row.copy_from_slice(&from[source(i) * self.rank..][..self.rank]);
            }
        }
        Ok(AdapterPair {
            target,
            names: self.names.clone(),
            outputs: rows,
            a: repeated(&self.a, 1)?,
            b,
            ..*self
        })
    }

    /// The pairs of gate and up in one matrix, whose rows are those of one and then those of the other, or take turns.
    pub(in super::super) fn halves(
        self,
        upper: String,
        lower: String,
        take_turns: bool,
    ) -> Result<[AdapterPair; 2]> {
        if !self.outputs.is_multiple_of(2) {
            fail!(
                ShapeMismatch,
                "tensor {} has {} rows; it must have as many for {upper} as for {lower}",
                self.names[1],
                self.outputs,
            );
        }
        let rows = self.outputs / 2;
        Ok(match take_turns {
            true => [
                self.of_rows(upper, rows, |i| 2 * i)?,
                self.of_rows(lower, rows, |i| 2 * i + 1)?,
            ],
            false => [
                self.of_rows(upper, rows, |i| i)?,
                self.of_rows(lower, rows, |i| rows + i)?,
            ],
        })
    }

    /// The pair of the matrices' transposes.
    pub(in super::super) fn transposed(self) -> Result<AdapterPair> {
        Ok(AdapterPair {
            a: swapped(&self.b, self.stack, self.rank)?,
            b: swapped(&self.a, self.stack, self.inputs)?,
            inputs: self.outputs,
            outputs: self.inputs,
            types: [self.types[1], self.types[0]],
            ..self
        })
    }

    /// Takes the rows of one matrix for those of as many as `stack` says, which read the same.
    pub(in super::super) fn stacked(mut self, stack: usize) -> Result<AdapterPair> {
        if self.stack != 1 || stack == 0 || !self.outputs.is_multiple_of(stack) {
            fail!(
                ShapeMismatch,
                "tensor {} has {} rows; the model has {stack} heads",
                self.names[1],
                self.outputs,
            );
        }
        self.check_len(self.a.len().saturating_mul(stack))?;
        self.a = repeated(&self.a, stack)?;
        self.stack = stack;
        self.outputs /= stack;
        Ok(self)
    }

    /// Fails where one of its sides would have too many elements.
    pub(in super::super) fn check_len(&self, len: usize) -> Result<()> {
        check_len(&self.names, len)
    }

    /// The error about a matrix of the model that has another shape.
    pub fn misfit(&self, inputs: usize, outputs: usize) -> Error {
        let message = format!(
            "tensors {} and {} take {} elements and make {}, but the model's {} takes {inputs} and makes {outputs}",
            self.names[0], self.names[1], self.inputs, self.outputs, self.target
        );
        Error::new(Status::ShapeMismatch, message)
    }

    /// The same of a tensor that has another number of matrices.
    pub fn other_stack(&self, stack: usize) -> Error {
        let message = format!(
            "tensors {} and {} are pairs for {} matrices, but the model's {} has {stack}",
            self.names[0], self.names[1], self.stack, self.target
        );
        Error::new(Status::ShapeMismatch, message)
    }
}

/// So many copies of numbers, one behind the other.
fn repeated(all: &[f32], count: usize) -> Result<Vec<f32>> {
    let mut copies = try_vec(all.len().saturating_mul(count), 0.0, "an adapter")?;
    for copy in copies.chunks_exact_mut(all.len()) {
        copy.copy_from_slice(all);
    }
    Ok(copies)
}

/// Fails where one side of pairs would have too many elements.
fn check_len(names: &[String; 2], len: usize) -> Result<()> {
    if len > MAX_ELEMENTS {
        fail!(
            Unsupported,
            "tensors {} and {}: pairs for all matrices have {len} elements; at most {MAX_ELEMENTS} are supported",
            names[0],
            names[1]
        );
    }
    Ok(())
}

/// Half of a pair, or both, while a file is read.
#[derive(Default)]
pub(in super::super) struct Halves {
    halves: [Option<(String, Tensor)>; 2],
}

impl Halves {
    /// Puts half 0 (`A`) or 1 (`B`) in.
    pub(in super::super) fn set(&mut self, half: usize, name: &str, tensor: Tensor) -> Result<()> {
        if let Some((other, _)) = &self.halves[half] {
            fail!(FileCorrupt, "tensors {other} and {name} are the same");
        }
        self.halves[half] = Some((name.to_owned(), tensor));
        Ok(())
    }

    /// Rows and name of `B`, if it is there.
    pub(in super::super) fn outputs(&self) -> Option<(usize, &str)> {
        let (name, tensor) = self.halves[1].as_ref()?;
        Some((tensor.rows(), name))
    }

    /// Both, with their names. `other` is what a missing one would be called.
    fn both(self, other: impl Fn(usize) -> String) -> Result<[(String, Tensor); 2]> {
        match self.halves {
            [Some(a), Some(b)] => Ok([a, b]),
            [a, _] => fail!(
                MissingTensor,
                "tensor {} is missing: there is only the other half of the pair",
                other(usize::from(a.is_some()))
            ),
        }
    }

    /// The pair for the rows of the token embedding: GGUF has both halves with a row of `rank` numbers, `A` for each token and `B` for
    /// each column.
    pub(super) fn of_columns(
        self,
        target: String,
        other: impl Fn(usize) -> String,
        scale: impl FnOnce(usize) -> Result<f32>,
    ) -> Result<AdapterPair> {
        let [(a_name, a), (b_name, b)] = self.both(other)?;
        let rank = a.row_len();
        if a.dims.len() != 2 || b.dims.len() != 2 || rank != b.row_len() {
            return Err(no_pair([(&a_name, &a), (&b_name, &b)], ""));
        }
        let pair = AdapterPair {
            target,
            stack: 1,
            rank,
            inputs: a.rows(),
            outputs: b.rows(),
            scale: checked_scale(&a_name, rank, scale)?,
            types: [a.ty, b.ty].map(float_type),
            a: swapped(&elements(&a, &a_name)?, 1, rank)?,
            b: elements(&b, &b_name)?,
            names: [a_name, b_name],
        };
        // It chooses a column of A by the token, and a row of what it is added to is a token's.
        pair.transposed()
    }

    /// The pair for `target`: `scale` says the factor of a rank, `source` which row of the file's `B`
    /// becomes which row of the pair's. `other` is what a missing half would be called. The ranks of a pair of plain matrices
    /// are those of `stack` pairs: rows of `A` of one after the other, columns of `B` in turns.
    pub(in super::super) fn pair(
        self,
        target: String,
        stack: usize,
        other: impl Fn(usize) -> String,
        scale: impl FnOnce(usize) -> Result<f32>,
        source: impl Fn(usize) -> usize,
    ) -> Result<AdapterPair> {
        let [(a_name, a), (b_name, b)] = self.both(other)?;
        // Matrices of experts or heads lie below each other, or one is for all.
        let in_turns = stack > 1;
        let of_file = |tensor: &Tensor| match tensor.dims[..] {
            [_, rows] => Some((1, rows)),
            [_, rows, stack] if !in_turns => Some((stack, rows)),
            _ => None,
        };
        let shapes = of_file(&a).zip(of_file(&b));
        let fits = shapes.filter(|((a_stack, rank), (b_stack, _))| {
            let alike = a_stack == b_stack || *a_stack == 1 || *b_stack == 1;
            alike && *rank == b.row_len() && rank.is_multiple_of(stack)
        });
        let Some(((a_stack, rank), (b_stack, outputs))) = fits else {
            let what = match in_turns {
                true => format!(" for {stack} experts"),
                false => String::new(),
            };
            return Err(no_pair([(&a_name, &a), (&b_name, &b)], &what));
        };
        let rank = rank / stack;
        let stack = stack.max(a_stack).max(b_stack);
        let inputs = a.row_len();
        let scale = checked_scale(&a_name, rank, scale)?;
        let types = [a.ty, b.ty].map(float_type);
        let names = [a_name, b_name];
        let lengths = [rank * inputs, outputs * rank].map(|len| len.saturating_mul(stack));
        let [mut a, mut unordered] = [elements(&a, &names[0])?, elements(&b, &names[1])?];
        for (all, len) in [&mut a, &mut unordered].into_iter().zip(lengths) {
            check_len(&names, len)?;
            if all.len() < len {
                *all = repeated(all, stack)?;
            }
        }
        let mut b = try_vec(lengths[1], 0.0, "an adapter")?;
        for (i, to) in b.chunks_exact_mut(outputs * rank).enumerate() {
            for (row, to) in to.chunks_exact_mut(rank).enumerate() {
                let (first, step) = match in_turns {
                    true => (source(row) * rank * stack + i, stack),
                    false => ((i * outputs + source(row)) * rank, 1),
                };
                let from = unordered[first..].iter().step_by(step);
                to.iter_mut().zip(from).for_each(|(to, x)| *to = *x);
            }
        }
        Ok(AdapterPair {
            target,
            names,
            stack,
            rank,
            inputs,
            outputs,
            scale,
            types,
            a,
            b,
        })
    }
}

/// The error about halves of other shapes.
fn no_pair([(a_name, a), (b_name, b)]: [(&str, &Tensor); 2], what: &str) -> Error {
    let message = format!(
        "tensors {a_name} and {b_name} have shapes {:?} and {:?}, which are no pair of one rank{what}",
        a.dims, b.dims
    );
    Error::new(Status::ShapeMismatch, message)
}

/// The factor of a pair of a rank, if both can be.
fn checked_scale(name: &str, rank: usize, scale: impl FnOnce(usize) -> Result<f32>) -> Result<f32> {
    if rank > MAX_RANK {
        fail!(
            Unsupported,
            "tensor {name} has rank {rank}; at most {MAX_RANK} are supported"
        );
    }
    let scale = scale(rank)?;
    if !scale.is_finite() {
        fail!(
            InvalidModel,
            "tensor {name}: its factor is {scale}, which is not finite"
        );
    }
    Ok(scale)
}

/// What elements of a tensor of a type are kept in.
fn float_type(ty: TensorType) -> TensorType {
    match ty {
        TensorType::F16 | TensorType::BF16 => ty,
        _ => TensorType::F32,
    }
}

/// The transposes of matrices of so many columns, one below the other.
pub(crate) fn swapped(from: &[f32], stack: usize, columns: usize) -> Result<Vec<f32>> {
    let mut to = try_vec(from.len(), 0.0, "an adapter")?;
    let each = from.len() / stack;
    for (to, from) in to.chunks_exact_mut(each).zip(from.chunks_exact(each)) {
        for (i, x) in from.iter().enumerate() {
            to[i % columns * (each / columns) + i / columns] = *x;
        }
    }
    Ok(to)
}

/// The elements of a tensor, none of which is infinite or not a number.
fn elements(tensor: &Tensor, name: &str) -> Result<Vec<f32>> {
    let count = tensor.row_len().saturating_mul(tensor.rows());
    if count > MAX_ELEMENTS {
        fail!(Unsupported, "tensor {name} has {count} elements");
    }
    let elements = match tensor.to_f32()? {
        Some(elements) => elements,
        None => {
            let mut row = try_vec(tensor.row_bytes(), 0u8, name)?;
            let mut elements = try_vec(count, 0.0, name)?;
            for (i, out) in elements.chunks_exact_mut(tensor.row_len()).enumerate() {
                tensor.read_rows(i, &mut row)?;
                dequantize_row(tensor.ty, &row, out);
            }
            elements
        }
    };
    if let Some(i) = elements.iter().position(|x| !x.is_finite()) {
        fail!(
            InvalidModel,
            "tensor {name}: element {i} is {}, which is not finite",
            elements[i]
        );
    }
    Ok(elements)
}
