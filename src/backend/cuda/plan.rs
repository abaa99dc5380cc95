//! What is uploaded and where: a network turned into matrices and vectors in one allocation.

#![expect(missing_docs, reason = "fields are named as those of the network")]

use super::args::KvLayout;
use super::kernels::{KV_TILE, MAX_HEAD_DIM};
use super::matrix::{self, Matrix, MatrixSegment};
use crate::backend::KvType;
use crate::error::{Result, Status, fail};
use crate::format::Tensor;
use crate::model::{Linear, Network, Norm, RopePairing};

/// Where things begin in the allocation, in bytes. 16-byte loads and bulk copies need 16; whole
/// lines are kinder to the cache.
const ALIGNMENT: u64 = 256;

/// A norm's weight on the device.
#[derive(Clone, Copy, Debug, Default)]
pub struct NormPlan {
    /// f32.
    pub weight: u64,
    /// Added to the mean square.
    pub eps: f32,
}

/// A layer on the device.
#[derive(Clone, Debug)]
pub struct LayerPlan {
    pub attention_norm: NormPlan,
    /// Queries, keys, values.
    pub qkv: Matrix,
    pub n_heads: u32,
    /// f32, one per pair.
    pub inv_freq: u64,
    pub n_pairs: u32,
    pub interleaved: bool,
    pub magnitude: f32,
    /// Factor on q.k.
    pub scale: f32,
    pub output: Matrix,
    pub feed_forward_norm: NormPlan,
    /// Gate, then up.
    pub gate_up: Matrix,
    pub n_ff: u32,
    pub down: Matrix,
}

/// A network on the device. Addresses are offsets until [`Plan::place`].
#[derive(Clone, Debug)]
pub struct Plan {
    pub hidden: u32,
    pub n_vocab: u32,
    pub n_kv_heads: u32,
    pub head_dim: u32,
    pub embedding: Matrix,
    pub layers: Vec<LayerPlan>,
    pub final_norm: NormPlan,
    pub head: Matrix,
    /// Bytes of the whole allocation.
    pub bytes: u64,
}

/// Rows of a tensor that go to a segment.
pub struct MatrixJob {
    pub tensor: Tensor,
    /// The segment, its address being an offset until placed.
    pub segment: MatrixSegment,
    pub groups: u32,
    /// Row of the segment that takes the tensor's first row.
    pub first_row: u32,
}

/// Numbers that go to an offset.
pub struct VectorJob {
    pub offset: u64,
    pub values: Vec<f32>,
}

/// What is to be uploaded.
#[derive(Default)]
pub struct Jobs {
    pub matrices: Vec<MatrixJob>,
    pub vectors: Vec<VectorJob>,
    bytes: u64,
}

impl Jobs {
    fn reserve(&mut self, bytes: u64) -> u64 {
        let at = self.bytes.next_multiple_of(ALIGNMENT);
        self.bytes = at + bytes;
        at
    }

    fn vector(&mut self, values: Vec<f32>) -> u64 {
        let offset = self.reserve(values.len() as u64 * 4);
        self.vectors.push(VectorJob { offset, values });
        offset
    }

    fn norm(&mut self, norm: &Norm) -> Result<NormPlan> {
        let weight = self.vector(floats(&norm.weight)?);
        Ok(NormPlan {
            weight,
            eps: norm.eps,
        })
    }

    /// Matrices with the same input, one above the other; neighbours of one type share a segment.
    fn fuse(&mut self, parts: &[&Linear]) -> Result<Matrix> {
        let row_len = parts[0].weight.row_len();
        let mut fused = Matrix {
            groups: matrix::groups(row_len),
            ..Matrix::default()
        };
        let mut rest = parts;
        while let Some(first) = rest.first() {
            let ty = first.weight.ty;
            let n = rest.iter().take_while(|p| p.weight.ty == ty).count();
            let (same, after) = rest.split_at(n);
            let rows: usize = same.iter().map(|p| p.weight.rows()).sum();
            let Some(rows) = u32::try_from(rows).ok().filter(|r| *r < 1 << 30) else {
                fail!(Unsupported, "tensor {}: {rows} rows", first.weight.name);
            };
            let bytes = matrix::matrix_bytes(ty, fused.groups, rows);
            let segment = MatrixSegment {
                address: self.reserve(bytes),
                ty,
                rows,
                out_offset: fused.rows,
                bytes,
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
        if parts.iter().any(|p| p.bias.is_some()) {
            let mut bias = Vec::new();
            for part in parts {
                match &part.bias {
                    Some(b) => bias.extend(floats(b)?),
                    None => bias.resize(bias.len() + part.weight.rows(), 0.0),
                }
            }
            fused.bias = self.vector(bias);
        }
        Ok(fused)
    }
}

fn floats(tensor: &Tensor) -> Result<Vec<f32>> {
    match tensor.to_f32() {
        Some(values) => Ok(values),
        None => fail!(
            Unsupported,
            "tensor {}: type {} for a vector",
            tensor.name,
            tensor.ty.name()
        ),
    }
}

impl Plan {
    /// Lays a network out. `Unsupported` names what the kernels cannot do.
    pub fn new(network: &Network) -> Result<(Plan, Jobs)> {
        let mut jobs = Jobs::default();
        // Offset 0 is never used, so that 0 can stand for "none".
        jobs.reserve(ALIGNMENT);
        let Some(first) = network.blocks.first() else {
            fail!(InvalidModel, "the network has no layers");
        };
        let (n_kv_heads, head_dim) = (first.attention.n_kv_heads, first.attention.head_dim);
        if head_dim > MAX_HEAD_DIM {
            fail!(
                Unsupported,
                "heads of {head_dim} elements; the GPU's attention takes {MAX_HEAD_DIM}"
            );
        }
        let embedding = Linear {
            weight: network.embedding.clone(),
            bias: None,
        };
        let embedding_matrix = jobs.fuse(&[&embedding])?;
        let mut layers = Vec::new();
        for (i, block) in network.blocks.iter().enumerate() {
            let a = &block.attention;
            let plain = block.plain()?;
            let [gate, up, down] = block.feed_forward.plain()?;
            if (a.n_kv_heads, a.head_dim) != (n_kv_heads, head_dim) {
                fail!(
                    Unsupported,
                    "layer {i} has KV heads of another shape than layer 0"
                );
            }
            layers.push(LayerPlan {
                attention_norm: jobs.norm(plain.attention_norm)?,
                qkv: jobs.fuse(&[&a.q, &a.k, &a.v])?,
                n_heads: a.n_heads as u32,
                inv_freq: jobs.vector(plain.rope.inv_freq.to_vec()),
                n_pairs: plain.rope.inv_freq.len() as u32,
                interleaved: plain.rope.pairing == RopePairing::Interleaved,
                magnitude: plain.rope.magnitude,
                scale: a.scale,
                output: jobs.fuse(&[&a.output])?,
                feed_forward_norm: jobs.norm(plain.feed_forward_norm)?,
                gate_up: jobs.fuse(&[gate, up])?,
                n_ff: gate.weight.rows() as u32,
                down: jobs.fuse(&[down])?,
            });
        }
        let final_norm = jobs.norm(&network.final_norm)?;
        let head =
            if network.head.weight.same_data(&network.embedding) && network.head.bias.is_none() {
                embedding_matrix.clone()
            } else {
                jobs.fuse(&[&network.head])?
            };
        let plan = Plan {
            hidden: network.hidden as u32,
            n_vocab: network.n_vocab as u32,
            n_kv_heads: n_kv_heads as u32,
            head_dim: head_dim as u32,
            embedding: embedding_matrix,
            layers,
            final_norm,
            head,
            bytes: jobs.bytes,
        };
        Ok((plan, jobs))
    }

    /// Turns offsets into addresses.
    pub fn place(&mut self, jobs: &mut Jobs, base: u64) {
        let matrix = |m: &mut Matrix| {
            m.segments.iter_mut().for_each(|s| s.address += base);
            if m.bias != 0 {
                m.bias += base;
            }
        };
        matrix(&mut self.embedding);
        matrix(&mut self.head);
        self.final_norm.weight += base;
        for layer in &mut self.layers {
            for m in [
                &mut layer.qkv,
                &mut layer.output,
                &mut layer.gate_up,
                &mut layer.down,
            ] {
                matrix(m);
            }
            layer.attention_norm.weight += base;
            layer.feed_forward_norm.weight += base;
            layer.inv_freq += base;
        }
        jobs.matrices
            .iter_mut()
            .for_each(|j| j.segment.address += base);
    }

    /// Every matrix of the layers.
    pub fn layer_matrices(&self) -> impl Iterator<Item = &Matrix> {
        self.layers
            .iter()
            .flat_map(|l| [&l.qkv, &l.output, &l.gate_up, &l.down])
    }

    /// Most groups of 32 that an input row of a product has.
    pub fn widest_input(&self) -> u32 {
        self.layer_matrices()
            .chain([&self.head])
            .map(|m| m.groups)
            .max()
            .unwrap_or(1)
    }

    /// Elements of the widest f32 row between two kernels.
    pub fn widest_row(&self) -> u32 {
        let rows = self.layer_matrices().map(|m| m.rows).max().unwrap_or(1);
        rows.max(self.n_heads_max() * self.head_dim)
    }

    /// Most query heads of a layer.
    pub fn n_heads_max(&self) -> u32 {
        self.layers.iter().map(|l| l.n_heads).max().unwrap_or(1)
    }

    /// The KV cache's layout for this element type.
    pub fn kv_layout(&self, kv_type: KvType) -> Result<KvLayout> {
        let dim = u64::from(self.head_dim);
        let (row, q8) = match kv_type {
            KvType::F16 => (dim * 2, 0),
            KvType::Q8_0 => (dim.next_multiple_of(32) + dim.div_ceil(32) * 2, 1),
            KvType::F32 => {
                return Err(crate::Error::new(
                    Status::Unsupported,
                    "a KV cache in f32 is not supported on a GPU; f16 and q8_0 are",
                ));
            }
        };
        let row_bytes = row.next_multiple_of(16);
        let layer_bytes = 2 * u64::from(self.n_kv_heads) * KV_TILE as u64 * row_bytes;
        Ok(KvLayout {
            tile_bytes: layer_bytes * self.layers.len() as u64,
            layer_bytes,
            tile: KV_TILE as u32,
            row_bytes: row_bytes as u32,
            n_kv_heads: self.n_kv_heads,
            head_dim: self.head_dim,
            q8,
            padding: 0,
        })
    }
}
