//! Tensors in another type than the file's, and which type each is to have.

use super::adapter::AdapterPair;
use super::made::MakeRows;
use super::{ModelFile, Tensor};
use crate::error::{Error, Result, Status, fail, try_vec};
use crate::quant::{Encode, TensorType, dequantize_row, encoder};
use std::sync::Arc;

/// The largest magnitude that every type can hold: that of half precision, in which the quantized
/// types keep their scales.
const LARGEST: f32 = 65_504.0;

/// Which types the matrices of a model are to have. Norms, biases, routers and learned positions
/// always stay as they are, and so does a matrix that takes no more bytes as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightType {
    /// As in the file.
    #[default]
    Keep,
    /// Q8_0.
    Q8_0,
    /// Q4_K, and Q6_K for the head (the embedding, where that is the head, too).
    Q4K,
    /// Q6_K.
    Q6K,
    /// As Q4_K, but with Q6_K for half of the matrices of values and of the feed-forward's outputs,
    /// and Q5_K for fused ones of queries, keys and values: what model cards call Q4_K_M.
    Q4KM,
    /// Half precision, also for what takes fewer bytes.
    F16,
    /// BF16, likewise.
    BF16,
    /// Single precision, likewise.
    F32,
}

impl WeightType {
    /// Every choice, with the name that it has on command lines.
    pub const NAMES: [(&'static str, WeightType); 8] = [
        ("keep", WeightType::Keep),
        ("q8_0", WeightType::Q8_0),
        ("q4_k", WeightType::Q4K),
        ("q6_k", WeightType::Q6K),
        ("q4_k_m", WeightType::Q4KM),
        ("f16", WeightType::F16),
        ("bf16", WeightType::BF16),
        ("f32", WeightType::F32),
    ];

    /// The type of most matrices, or `None` to keep them.
    fn main_type(self) -> Option<TensorType> {
        Some(match self {
            WeightType::Keep => return None,
            WeightType::Q8_0 => TensorType::Q8_0,
            WeightType::Q4K | WeightType::Q4KM => TensorType::Q4K,
            WeightType::Q6K => TensorType::Q6K,
            WeightType::F16 => TensorType::F16,
            WeightType::BF16 => TensorType::BF16,
            WeightType::F32 => TensorType::F32,
        })
    }

    /// The number of the mix in `general.file_type`.
    pub fn file_type(self) -> Option<u32> {
        Some(match self {
            WeightType::Keep => return None,
            WeightType::F32 => 0,
            WeightType::F16 => 1,
            WeightType::Q8_0 => 7,
            WeightType::Q4K => 14,
            WeightType::Q4KM => 15,
            WeightType::Q6K => 18,
            WeightType::BF16 => 32,
        })
    }

    /// The type for the matrix `tensor`, which is called `name`.
    fn type_of(self, name: &str, tensor: &Tensor, shape: &Shape) -> Option<TensorType> {
        let main = self.main_type()?;
        if main.block_len() == 1 {
            return Some(main);
        }
        let q4 = matches!(self, WeightType::Q4K | WeightType::Q4KM);
        let is_head = name == "output.weight" || (name == "token_embd.weight" && shape.tied);
        let wanted = match layer_and_part(name) {
            _ if is_head && q4 => TensorType::Q6K,
            Some((layer, part)) if self == WeightType::Q4KM => match part {
                // Of so many experts, attention is a small share.
                "attn_v" | "attn_qkv" | "attn_k" if shape.n_experts == 8 => TensorType::Q8_0,
                "attn_output" if shape.n_experts == 8 => TensorType::Q5K,
                "attn_v" | "attn_qkv" | "ffn_down" | "ffn_down_exps" | "ffn_down_shexp"
                    if shape.wants_more_bits(layer) =>
                {
                    TensorType::Q6K
                }
                _ => main,
            },
            _ => main,
        };
        let fitting = fitting(wanted, tensor.row_len());
        let smaller = fitting.row_bytes(tensor.row_len())? < tensor.row_bytes();
        (smaller || tensor.ty.block_len() == 1).then_some(fitting)
    }
}

/// What decides, beside its name, which type a matrix gets.
struct Shape {
    n_layers: u64,
    n_experts: u64,
    /// Whether the embedding is the head.
    tied: bool,
}

impl Shape {
    fn of(file: &ModelFile) -> Result<Shape> {
        let architecture: &str = file.get("general.architecture")?;
        let number = |key| file.find::<u64>(&format!("{architecture}.{key}"));
        Ok(Shape {
            n_layers: number("block_count")?.unwrap_or(0),
            n_experts: number("expert_count")?.unwrap_or(0),
            tied: !file.tensors.contains_key("output.weight"),
        })
    }

    /// The first and last eighth of the layers, and every third between.
    fn wants_more_bits(&self, layer: u64) -> bool {
        let eighth = self.n_layers / 8;
        layer < eighth || layer >= self.n_layers * 7 / 8 || (layer - eighth) % 3 == 2
    }
}

/// `blk.{layer}.{part}.weight` taken apart.
fn layer_and_part(name: &str) -> Option<(u64, &str)> {
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, part.strip_suffix(".weight")?))
}

/// Whether a tensor is a matrix that is multiplied with, and not small.
fn is_matrix(name: &str, tensor: &Tensor) -> bool {
    let precise = [
        "norm",
        "ffn_gate_inp",
        "position_embd",
        "rope_f",
        "attn_rel_b",
    ];
    name.ends_with(".weight")
        && tensor.dims.len() > 1
        && !precise.iter().any(|part| name.contains(part))
}

/// The type itself or, for rows that are no whole blocks of it, the next one up that fits.
fn fitting(ty: TensorType, row_len: usize) -> TensorType {
    if ty.row_bytes(row_len).is_some() {
        return ty;
    }
    match ty {
        TensorType::Q4K => fitting(TensorType::Q5_0, row_len),
        TensorType::Q5K => fitting(TensorType::Q5_1, row_len),
        TensorType::Q6K => fitting(TensorType::Q8_0, row_len),
        _ => TensorType::F16,
    }
}

impl ModelFile {
    /// The same model with its matrices in other types. They are converted when they are
    /// [made](ModelFile::make); an element that is not finite, or too large for the new type, is
    /// an error then.
    pub fn with_weights(mut self, weights: WeightType) -> Result<ModelFile> {
        if weights == WeightType::Keep {
            return Ok(self);
        }
        let shape = Shape::of(&self)?;
        for (name, tensor) in &mut self.tensors {
            if !is_matrix(name, tensor) {
                continue;
            }
            if let Some(ty) = weights.type_of(name, tensor, &shape)
                && ty != tensor.ty
            {
                *tensor = converted(tensor, ty)?;
            }
        }
        Ok(self)
    }
}

/// The tensor in another type. `Unsupported` if nothing can be converted to it.
pub(super) fn converted(source: &Tensor, ty: TensorType) -> Result<Tensor> {
    multiplied(source, vec![1.0], ty)
}

impl Tensor {
    /// The tensor times a number, in F32.
    pub fn scaled(&self, factor: f32) -> Result<Tensor> {
        multiplied(self, vec![factor], TensorType::F32)
    }
}

/// The same times numbers, each for the same number of rows.
pub(super) fn multiplied(source: &Tensor, factors: Vec<f32>, ty: TensorType) -> Result<Tensor> {
    let Some(encode) = encoder(ty) else {
        fail!(Unsupported, "tensors cannot be converted to {}", ty.name());
    };
    let limit = match ty {
        TensorType::F32 | TensorType::BF16 => f32::MAX,
        _ => LARGEST,
    };
    let rows = Converted {
        factor_rows: source.rows() / factors.len(),
        source: source.clone(),
        factors,
        ty,
        encode,
        limit,
    };
    Tensor::made(Arc::clone(&source.name), ty, source.dims.clone(), rows)
}

/// Rows of matrices with a pair of an adapter added, in single precision.
pub(super) struct Sum {
    pub base: Tensor,
    pub pair: AdapterPair,
    /// On what the pair says itself.
    pub factor: f32,
}

impl MakeRows for Sum {
    fn make(&self, first: usize, out: &mut [u8]) -> Result<()> {
        let (base, pair) = (&self.base, &self.pair);
        let row_len = base.row_len();
        let mut raw = try_vec(base.row_bytes(), 0u8, &base.name)?;
        let mut row = try_vec(row_len, 0f32, &base.name)?;
        let mut sum = try_vec(row_len, 0f64, &base.name)?;
        for (r, out) in out.chunks_exact_mut(4 * row_len).enumerate() {
            base.read_rows(first + r, &mut raw)?;
            dequantize_row(base.ty, &raw, &mut row);
            let b = &pair.b[(first + r) * pair.rank..][..pair.rank];
            // Of the matrix that the row is in.
            let a = (first + r) / pair.outputs * pair.rank * row_len;
            sum.fill(0.0);
            for (a, b) in pair.a[a..].chunks_exact(row_len).zip(b) {
                for (sum, a) in sum.iter_mut().zip(a) {
                    *sum += f64::from(*a) * f64::from(*b);
                }
            }
            let scale = f64::from(self.factor) * f64::from(pair.scale);
            for ((out, x), sum) in out.as_chunks_mut().0.iter_mut().zip(&row).zip(&sum) {
                *out = ((f64::from(*x) + scale * sum) as f32).to_le_bytes();
            }
        }
        Ok(())
    }
}

/// Rows of a tensor in another type.
struct Converted {
    source: Tensor,
    /// Of so many rows each.
    factors: Vec<f32>,
    factor_rows: usize,
    ty: TensorType,
    encode: Encode,
    /// The largest magnitude that the type holds.
    limit: f32,
}

impl MakeRows for Converted {
    fn make(&self, first: usize, out: &mut [u8]) -> Result<()> {
        let row_len = self.source.row_len();
        let row_bytes = self.ty.row_bytes(row_len).unwrap_or(out.len());
        let name = &self.source.name;
        let raw_bytes = self.source.row_bytes();
        // All at once, which is what some sources are good at.
        let mut raw = try_vec(out.len() / row_bytes * raw_bytes, 0u8, name)?;
        self.source.read_rows(first, &mut raw)?;
        let mut elements = try_vec(row_len, 0.0f32, name)?;
        let rows = raw
            .chunks_exact(raw_bytes)
            .zip(out.chunks_exact_mut(row_bytes));
        for (i, (raw, out)) in rows.enumerate() {
            dequantize_row(self.source.ty, raw, &mut elements);
            let factor = self.factors[(first + i) / self.factor_rows];
            if factor != 1.0 {
                elements.iter_mut().for_each(|x| *x *= factor);
            }
            let bad = |x: &f32| x.is_nan() || x.abs() > self.limit;
            if let Some(at) = elements.iter().position(bad) {
                return Err(Error::new(
                    Status::InvalidModel,
                    format!(
                        "tensor {name} has {} at element {at} of row {}; {} cannot hold it",
                        elements[at],
                        first + i,
                        self.ty.name()
                    ),
                ));
            }
            (self.encode)(&elements, out);
        }
        Ok(())
    }
}
