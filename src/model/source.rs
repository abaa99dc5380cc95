//! Checked access to a model file for the family files: hyperparameters by the part of their key
//! after the architecture's name, tensors by name and the shape that they must have.

use super::{Conv, Linear, Norm, NormKind};
use crate::error::{Error, Result, Status, fail};
use crate::format::{Array, FromValue, ModelFile, Tensor, Value};

/// Largest size of anything that a hyperparameter counts.
const MAX_SIZE: usize = i32::MAX as usize;

/// A model file, read as one architecture.
pub(super) struct Source<'a> {
    pub file: &'a ModelFile,
    architecture: &'static str,
}

impl<'a> Source<'a> {
    pub(super) fn new(file: &'a ModelFile, architecture: &'static str) -> Self {
        Source { file, architecture }
    }

    /// `general.architecture`.
    pub(super) fn architecture(&self) -> &'static str {
        self.architecture
    }

    /// What the number of a layer follows in names of tensors.
    pub(super) fn layers(&self) -> &'static str {
        match self.architecture {
            "t5encoder" => "enc.blk.",
            _ => "blk.",
        }
    }

    /// The name of a part of a layer, without what follows the last dot.
    pub(super) fn part(&self, layer: usize, part: &str) -> String {
        format!("{}{layer}.{part}", self.layers())
    }

    /// The full key, for example `llama.block_count`.
    pub(super) fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.architecture)
    }

    /// The key as messages name it: as the file has it, which may be a folder's `config.json`.
    pub(super) fn key_name(&self, suffix: &str) -> String {
        let key = self.key(suffix);
        self.file.key_name(&key).map_or(key, str::to_owned)
    }

    /// The value of a key, if it is there.
    pub(super) fn find<T: FromValue<'a>>(&self, suffix: &str) -> Result<Option<T>> {
        self.file.find(&self.key(suffix))
    }

    /// A boolean for each of several, if the key is there. Some files have the integers 0 and 1 in their place.
    pub(super) fn find_flags(&self, suffix: &str) -> Result<Option<Vec<bool>>> {
        let key = self.key(suffix);
        let Some(Value::Array(Array::I64(_) | Array::U64(_))) = self.file.metadata.get(&key) else {
            return self.find(suffix);
        };
        let numbers: Vec<i64> = self.file.get(&key)?;
        if let Some(odd) = numbers.iter().find(|number| !(0..2).contains(*number)) {
            let problem = format!("has {odd}; it must have booleans, or 0 and 1");
            return Err(self.invalid(suffix, &problem));
        }
        Ok(Some(
            numbers.into_iter().map(|number| number == 1).collect(),
        ))
    }

    /// The same where the key must be there.
    pub(super) fn flags(&self, suffix: &str) -> Result<Vec<bool>> {
        match self.find_flags(suffix)? {
            Some(flags) => Ok(flags),
            None => self.file.get(&self.key(suffix)),
        }
    }

    /// An `InvalidModel` error that starts with the full key.
    pub(super) fn invalid(&self, suffix: &str, problem: &str) -> Error {
        Error::new(
            Status::InvalidModel,
            format!("{} {problem}", self.key_name(suffix)),
        )
    }

    /// An integer from 1 to 2^31-1, if it is there.
    pub(super) fn find_size(&self, suffix: &str) -> Result<Option<usize>> {
        match self.find::<u64>(suffix)? {
            Some(v) => self.check_size(suffix, v).map(Some),
            None => Ok(None),
        }
    }

    /// An integer from 1 to 2^31-1.
    pub(super) fn size(&self, suffix: &str) -> Result<usize> {
        let v = self.file.get(&self.key(suffix))?;
        self.check_size(suffix, v)
    }

    /// A size that may be given once or for each layer, if it is there. Layers that differ are
    /// `Unsupported`.
    pub(super) fn find_uniform_size(&self, suffix: &str, n_layers: usize) -> Result<Option<usize>> {
        let key = self.key(suffix);
        if !matches!(self.file.metadata.get(&key), Some(Value::Array(_))) {
            return self.find_size(suffix);
        }
        let per_layer: Vec<u64> = self.file.get(&key)?;
        if per_layer.len() != n_layers {
            let found = per_layer.len();
            return Err(self.invalid(
                suffix,
                &format!("has {found} values, but there are {n_layers} layers"),
            ));
        }
        if let Some(layer) = per_layer.iter().position(|v| *v != per_layer[0]) {
            fail!(
                Unsupported,
                "{} differs between layers: {} in layer 0, {} in layer {layer}",
                self.key_name(suffix),
                per_layer[0],
                per_layer[layer]
            );
        }
        self.check_size(suffix, per_layer[0]).map(Some)
    }

    /// A size for each layer, given once or for each.
    pub(super) fn sizes(&self, suffix: &str, n_layers: usize) -> Result<Vec<usize>> {
        let sizes = self.sizes_or_none(suffix, n_layers)?.into_iter();
        sizes.map(|n| self.check_size(suffix, n as u64)).collect()
    }

    /// The same, with 0 for layers that have none.
    pub(super) fn sizes_or_none(&self, suffix: &str, n_layers: usize) -> Result<Vec<usize>> {
        let key = self.key(suffix);
        if !matches!(self.file.metadata.get(&key), Some(Value::Array(_))) {
            return Ok(vec![self.size(suffix)?; n_layers]);
        }
        let per_layer: Vec<u64> = self.file.get(&key)?;
        if per_layer.len() != n_layers {
            let found = per_layer.len();
            return Err(self.invalid(
                suffix,
                &format!("has {found} values, but there are {n_layers} layers"),
            ));
        }
        let sizes = per_layer.into_iter().map(|v| match v {
            0 => Ok(0),
            v => self.check_size(suffix, v),
        });
        sizes.collect()
    }

    /// The same for a size that must be there.
    pub(super) fn uniform_size(&self, suffix: &str, n_layers: usize) -> Result<usize> {
        match self.find_uniform_size(suffix, n_layers)? {
            Some(v) => Ok(v),
            None => self.size(suffix),
        }
    }

    pub(super) fn check_size(&self, suffix: &str, v: u64) -> Result<usize> {
        match usize::try_from(v) {
            Ok(v) if (1..=MAX_SIZE).contains(&v) => Ok(v),
            _ => Err(self.invalid(suffix, &format!("is {v}; it must be from 1 to {MAX_SIZE}"))),
        }
    }

    /// A finite number above 0, if it is there.
    pub(super) fn find_positive(&self, suffix: &str) -> Result<Option<f32>> {
        match self.find::<f32>(suffix)? {
            Some(v) if !(v.is_finite() && v > 0.0) => Err(self.invalid(
                suffix,
                &format!("is {v}; it must be a finite number above 0"),
            )),
            found => Ok(found),
        }
    }

    /// A finite number above 0.
    pub(super) fn positive(&self, suffix: &str) -> Result<f32> {
        match self.find_positive(suffix)? {
            Some(v) => Ok(v),
            None => self.file.f32(&self.key(suffix)),
        }
    }

    /// The product of two sizes, or `InvalidModel` naming the key.
    pub(super) fn product(&self, suffix: &str, a: usize, b: usize) -> Result<usize> {
        match a.checked_mul(b) {
            Some(product) if product <= MAX_SIZE => Ok(product),
            _ => Err(self.invalid(suffix, &format!("is too large: {a} times {b}"))),
        }
    }

    /// The matrix `{name}.weight` of `outputs` rows of `inputs`, and `{name}.bias` if there is one.
    pub(super) fn linear(&self, name: &str, inputs: usize, outputs: usize) -> Result<Linear> {
        Ok(Linear {
            weight: self.matrix(&format!("{name}.weight"), inputs, outputs)?,
            bias: self.find_vector(&format!("{name}.bias"), outputs)?,
        })
    }

    /// `count` matrices of `outputs` rows of `inputs`, one below the other: `{name}.weight`, and
    /// `{name}.bias` if there is one.
    pub(super) fn stacked_linear(
        &self,
        name: &str,
        inputs: usize,
        outputs: usize,
        count: usize,
    ) -> Result<Linear> {
        let weight = self.file.tensor(&format!("{name}.weight"))?;
        check_shape(weight, &[inputs, outputs, count])?;
        let bias = format!("{name}.bias");
        Ok(Linear {
            weight: weight.clone(),
            bias: match self.file.tensors.contains_key(&*bias) {
                true => Some(self.numbers(&bias, &[outputs, count])?),
                false => None,
            },
        })
    }

    /// Whether there is a matrix `{name}.weight`.
    pub(super) fn has(&self, name: &str) -> bool {
        let name = format!("{name}.weight");
        self.file.tensors.contains_key(name.as_str())
    }

    /// Matrices of `lens` rows that lie one below the other in `{name}.weight`. Their biases lie
    /// likewise in `{name}.bias`, or apart in the `{name}.bias` of `parts`, if there are any.
    pub(super) fn fused<const N: usize>(
        &self,
        name: &str,
        inputs: usize,
        lens: [usize; N],
        parts: Option<&[String; N]>,
    ) -> Result<[Linear; N]> {
        let rows = lens.iter().sum();
        let all = self.linear(name, inputs, rows)?;
        let mut first = 0;
        let mut linears = lens.map(|len| {
            let range = first..first + len;
            first += len;
            let bias = all.bias.as_ref().map(|b| b.elements(range.clone()));
            Linear {
                weight: all.weight.row_range(range),
                bias,
            }
        });
        if let (None, Some(parts)) = (&all.bias, parts) {
            for ((linear, part), len) in linears.iter_mut().zip(parts).zip(lens) {
                linear.bias = self.find_vector(&format!("{part}.bias"), len)?;
            }
        }
        Ok(linears)
    }

    /// The convolution of `channels` channels by themselves in `{name}.weight`, and `{name}.bias` if
    /// there is one.
    pub(super) fn conv(&self, name: &str, channels: usize, width: usize) -> Result<Conv> {
        let weight_name = format!("{name}.weight");
        let weight = self.file.tensor(&weight_name)?;
        // Some files have a dimension of 1 between the two.
        let dims = match weight.dims[..] {
            [_, 1, _] => vec![width, 1, channels],
            _ => vec![width, channels],
        };
        let weight = self.numbers(&weight_name, &dims)?;
        Ok(Conv {
            weight: weight.row_range(0..channels),
            bias: self.find_vector(&format!("{name}.bias"), channels)?,
        })
    }

    /// The vector `{name}.weight`, or `name` where there is only this, as the weight of a norm.
    pub(super) fn norm(&self, name: &str, len: usize, kind: NormKind, eps: f32) -> Result<Norm> {
        // Falcon-H1 has its `ffn_norm` so, and nothing else.
        let bare = !self.has(name) && self.file.tensors.contains_key(name);
        Ok(Norm {
            kind,
            weight: match bare {
                true => self.vector(name, len)?,
                false => self.vector(&format!("{name}.weight"), len)?,
            },
            bias: self.find_vector(&format!("{name}.bias"), len)?,
            eps,
        })
    }

    /// A tensor of `rows` rows of `row_len` elements, of any type.
    pub(super) fn matrix(&self, name: &str, row_len: usize, rows: usize) -> Result<Tensor> {
        let tensor = self.file.tensor(name)?;
        check_shape(tensor, &[row_len, rows])?;
        Ok(tensor.clone())
    }

    /// A tensor of `len` elements that are not quantized.
    pub(super) fn vector(&self, name: &str, len: usize) -> Result<Tensor> {
        self.numbers(name, &[len])
    }

    /// A vector that may be stored as so many rows of as many elements.
    pub(super) fn vector_in_rows(&self, name: &str, row_len: usize, rows: usize) -> Result<Tensor> {
        if self.file.tensor(name)?.dims.len() == 1 {
            return self.vector(name, row_len * rows);
        }
        let mut tensor = self.numbers(name, &[row_len, rows])?;
        tensor.dims = vec![row_len * rows];
        Ok(tensor)
    }

    /// A tensor of this shape whose elements are not quantized.
    pub(super) fn numbers(&self, name: &str, dims: &[usize]) -> Result<Tensor> {
        let tensor = self.file.tensor(name)?;
        check_shape(tensor, dims)?;
        if !tensor.ty.is_float() {
            fail!(
                ShapeMismatch,
                "tensor {name} has type {}; it must be F32, F16 or BF16",
                tensor.ty.name()
            );
        }
        Ok(tensor.clone())
    }

    /// The same of a tensor that may be quantized, whose elements are F32 in memory then.
    pub(super) fn widened(&self, name: &str, dims: &[usize]) -> Result<Tensor> {
        let tensor = self.file.tensor(name)?;
        if tensor.ty.is_float() {
            return self.numbers(name, dims);
        }
        check_shape(tensor, dims)?;
        tensor.widened()
    }

    /// The same as `vector`, if the tensor is there.
    pub(super) fn find_vector(&self, name: &str, len: usize) -> Result<Option<Tensor>> {
        if self.file.tensors.contains_key(name) {
            self.vector(name, len).map(Some)
        } else {
            Ok(None)
        }
    }
}

/// Dimensions of 1 at the end make no difference.
fn check_shape(tensor: &Tensor, expected: &[usize]) -> Result<()> {
    let trimmed = |dims: &[usize]| dims.iter().rposition(|&d| d != 1).map_or(0, |i| i + 1);
    let found = &tensor.dims[..trimmed(&tensor.dims)];
    if found != &expected[..trimmed(expected)] {
        fail!(
            ShapeMismatch,
            "tensor {} has shape {:?}; the model needs {expected:?}",
            tensor.name,
            tensor.dims
        );
    }
    Ok(())
}
