//! What is uploaded, and where to: numbers and matrices that are laid out one after the other in one allocation.

#![expect(missing_docs, reason = "fields are named as those of the network")]

use super::fixed_plan::FixedPlan;
use super::linears::{Linears, Piece};
use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::feed_forward::{MlpPlan, activation};
use crate::backend::cuda::launch::matrix::{self, Matrix, MatrixSegment};
use crate::backend::cuda::launch::record::RecordType;
use crate::error::{Result, fail};
use crate::format::Tensor;
use crate::model::{Linear, Mlp, Norm, NormKind, Rope, RopePairing, Temperature};

/// Where things begin in the allocation, in bytes. 16-byte loads and bulk copies need 16; whole
/// lines are kinder to the cache.
const ALIGNMENT: u64 = 256;

/// Rows of a tensor that go to a segment.
pub struct MatrixJob {
    pub tensor: Tensor,
    pub segment: MatrixSegment,
    pub groups: u32,
    /// Row of the segment that takes the tensor's first row.
    pub first_row: u32,
}

/// Numbers that go to an offset of the allocation.
pub struct VectorJob {
    pub offset: u64,
    pub values: Vec<f32>,
}

/// Rows of a tensor that go to an offset of the allocation as f32.
pub struct RowsJob {
    pub offset: u64,
    pub tensor: Tensor,
    /// Elements of a row there; those that the tensor lacks are zeros.
    pub width: usize,
}

/// What is to be uploaded.
#[derive(Default)]
pub struct Jobs {
    pub matrices: Vec<MatrixJob>,
    pub vectors: Vec<VectorJob>,
    pub rows: Vec<RowsJob>,
    /// What the layers so far keep of fixed size.
    pub(super) fixed: FixedPlan,
    pub(super) linears: Linears,
    /// Whether matrices have a bound of their weights, for products in f16. Guests need none.
    pub(super) bounds: bool,
    /// Those of the guests.
    pub guests: Vec<Jobs>,
    pub(super) base: u64,
    pub(super) bytes: u64,
}

impl Jobs {
    /// An offset for `bytes` bytes. Never 0, so that address 0 can stand for "none".
    pub(super) fn reserve(&mut self, bytes: u64) -> u64 {
        let at = self.bytes.next_multiple_of(ALIGNMENT).max(ALIGNMENT);
        self.bytes = at + bytes;
        at
    }

    /// The address of a copy of `values`.
    pub fn vector(&mut self, values: Vec<f32>) -> u64 {
        let offset = self.reserve(values.len() as u64 * 4);
        self.vectors.push(VectorJob { offset, values });
        self.base + offset
    }

    /// The address of copies of tensors' rows in f32, `width` elements each, one below the other.
    pub(super) fn rows<'t>(
        &mut self,
        tensors: impl Iterator<Item = &'t Tensor>,
        width: usize,
    ) -> u64 {
        let tensors: Vec<&Tensor> = tensors.collect();
        let row_bytes = width as u64 * 4;
        let all: usize = tensors.iter().map(|t| t.rows()).sum();
        let first = self.reserve(all as u64 * row_bytes);
        let mut offset = first;
        for tensor in tensors {
            self.rows.push(RowsJob {
                offset,
                tensor: tensor.clone(),
                width,
            });
            offset += tensor.rows() as u64 * row_bytes;
        }
        self.base + first
    }

    /// The address of a copy of a vector; 0 if there is none.
    pub fn tensor(&mut self, tensor: Option<&Tensor>) -> Result<u64> {
        match tensor {
            Some(tensor) => Ok(self.vector(floats(tensor)?)),
            None => Ok(0),
        }
    }

    pub(super) fn norm(&mut self, norm: &Norm) -> Result<args::Norm> {
        Ok(args::Norm {
            weight: self.tensor(Some(&norm.weight))?,
            bias: self.tensor(norm.bias.as_ref())?,
            eps: norm.eps,
            layer: u32::from(norm.kind == NormKind::Layer),
        })
    }

    pub(super) fn find_norm(&mut self, norm: &Option<Norm>) -> Result<Option<args::Norm>> {
        norm.as_ref().map(|norm| self.norm(norm)).transpose()
    }

    pub(super) fn rotation(
        &mut self,
        rope: Option<&Rope>,
        temperature: Option<Temperature>,
    ) -> args::Rotation {
        let rotation = args::Rotation {
            temperature: temperature.map_or(0.0, |t| t.scale),
            temperature_length: temperature.map_or(0.0, |t| match t.offset {
                0 => t.length,
                _ => -t.length,
            }),
            ..Default::default()
        };
        let Some(rope) = rope else {
            return rotation;
        };
        let long = rope.long.as_ref();
        args::Rotation {
            inv_freq: self.vector(rope.inv_freq.to_vec()),
            long_inv_freq: long.map_or(0, |long| self.vector(long.inv_freq.to_vec())),
            magnitude: rope.magnitude,
            n_pairs: rope.inv_freq.len() as u32,
            interleaved: u32::from(rope.pairing == RopePairing::Interleaved),
            long_above: long.map_or(0, |long| u32::try_from(long.above).unwrap_or(u32::MAX)),
            ..rotation
        }
    }

    /// The first address of what it lays out.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// A dense feed-forward part.
    pub fn mlp(&mut self, mlp: &Mlp) -> Result<MlpPlan> {
        let parts: Vec<&Linear> = mlp.gate.iter().chain([&mlp.up]).collect();
        Ok(MlpPlan {
            up: self.fuse(&parts)?,
            gated: mlp.gate.is_some(),
            n_ff: mlp.up.weight.rows() as u32,
            activation: activation(mlp.activation)?,
            cutoff: None,
            inner_norm: self.find_norm(&mlp.inner_norm)?,
            down: self.fuse(&[&mlp.down])?,
        })
    }

    /// Matrices with the same input, one above the other; neighbours of one type share a segment.
    pub fn fuse(&mut self, parts: &[&Linear]) -> Result<Matrix> {
        let pieces: Vec<Piece<'_>> = parts.iter().map(|linear| Piece::whole(linear)).collect();
        self.fuse_pieces(parts, &pieces)
    }

    /// The same of parts that are these pieces of linear layers.
    pub(super) fn fuse_pieces(
        &mut self,
        parts: &[&Linear],
        pieces: &[Piece<'_>],
    ) -> Result<Matrix> {
        let row_len = parts[0].weight.row_len();
        let mut fused = Matrix {
            groups: matrix::groups(row_len),
            ..Matrix::default()
        };
        let mut rest = parts;
        while let Some(first) = rest.first() {
            let ty = RecordType::of(first.weight.ty);
            let mine = |p: &&&Linear| RecordType::of(p.weight.ty) == ty;
            let n = rest.iter().take_while(mine).count();
            let (same, after) = rest.split_at(n);
            let rows: usize = same.iter().map(|p| p.weight.rows()).sum();
            let Some(rows) = u32::try_from(rows).ok().filter(|r| *r < 1 << 30) else {
                fail!(Unsupported, "tensor {}: {rows} rows", first.weight.name);
            };
            let bytes = matrix::matrix_bytes(ty, fused.groups, rows);
            let segment = MatrixSegment {
                address: self.base + self.reserve(bytes),
                ty,
                rows,
                out_offset: fused.rows,
                bytes,
                largest: match self.bounds {
                    true => self.vector(vec![0.0]),
                    false => 0,
                },
            };
            let mut first_row = 0;
            for part in same {
                self.matrices.push(MatrixJob {
                    tensor: part.weight.clone(),
                    segment: segment.clone(),
                    groups: fused.groups,
                    first_row,
                });
                first_row += part.weight.rows() as u32;
            }
            fused.rows += rows;
            fused.segments.push(segment);
            rest = after;
        }
        fused.bias = self.biases(parts)?;
        fused.adapted = self.linears.find(pieces);
        Ok(fused)
    }

    /// The address of the parts' biases, zeros where one has none; 0 if none has.
    pub(super) fn biases(&mut self, parts: &[&Linear]) -> Result<u64> {
        if parts.iter().all(|p| p.bias.is_none()) {
            return Ok(0);
        }
        let mut bias = Vec::new();
        for part in parts {
            match &part.bias {
                Some(b) => bias.extend(floats(b)?),
                None => bias.resize(bias.len() + part.weight.rows(), 0.0),
            }
        }
        Ok(self.vector(bias))
    }
}

pub(super) fn floats(tensor: &Tensor) -> Result<Vec<f32>> {
    match tensor.to_f32()? {
        Some(values) => Ok(values),
        None => fail!(
            Unsupported,
            "tensor {}: type {} for a vector",
            tensor.name,
            tensor.ty.name()
        ),
    }
}
