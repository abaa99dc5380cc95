//! Files of LoRA adapters: pairs of thin matrices `A` and `B`, which add `scale * B A` to a matrix of a
//! model.
//!
//! [`AdapterFile::open`] reads the folders that the PEFT library writes, and GGUF files of adapters. Both
//! come out in the terms of GGUF: which tensor of a model a pair belongs to, with the rows of `B` in the
//! order of that tensor's. Whether a model has such tensors is for `model::adapter` to say.

use super::{Access, ModelFile, Tensor, huggingface};
use crate::error::{Error, Result, Status, fail, try_vec};
use crate::quant::{TensorType, dequantize_row};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The most elements of a thin matrix: far beyond those of real models.
const MAX_ELEMENTS: usize = 1 << 30;
/// The largest rank.
pub const MAX_RANK: usize = 4096;
/// What stands behind the name of a model's tensor in a GGUF file of an adapter.
const HALVES: [&str; 2] = [".lora_a", ".lora_b"];

/// What has to be known of a model to read an adapter of it.
#[derive(Clone, Debug)]
pub struct BaseShape {
    /// `general.architecture`.
    pub architecture: String,
    /// Elements per head; 0 where they differ.
    pub head_dim: usize,
    /// Query heads; 0 where they differ.
    pub n_heads: usize,
    /// Key and value heads, likewise.
    pub n_kv_heads: usize,
    /// Whether it has experts.
    pub has_experts: bool,
    /// Whether weights are multiplied by factors that the folder's are not, or other parts of the order
    /// of rows differ that adapters from folders would have to follow.
    pub folds: bool,
}

impl BaseShape {
    /// Of a model file.
    pub fn of(file: &ModelFile) -> Result<BaseShape> {
        let architecture = file.str("general.architecture")?.to_owned();
        // Sizes for each layer are none for all.
        let size = |suffix: &str| match file.metadata.get(&format!("{architecture}.{suffix}")) {
            Some(value) => u32_of(value) as usize,
            None => 0,
        };
        let n_heads = size("attention.head_count");
        let n_kv_heads = match size("attention.head_count_kv") {
            0 => n_heads,
            n => n,
        };
        let head_dim = match size("attention.key_length") {
            0 => size("embedding_length").checked_div(n_heads).unwrap_or(0),
            n => n,
        };
        Ok(BaseShape {
            folds: architecture == "falcon-h1",
            has_experts: size("expert_count") > 0,
            architecture,
            head_dim,
            n_heads,
            n_kv_heads,
        })
    }
}

fn u32_of(value: &super::Value) -> u32 {
    super::FromValue::from_value(value).unwrap_or(0)
}

/// A pair of thin matrices.
#[derive(Clone, Debug)]
pub struct AdapterPair {
    /// The tensor of the model that it is added to, by its name in GGUF.
    pub target: String,
    /// What the file calls `A` and `B`.
    pub names: [String; 2],
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
    /// `[rank][inputs]`, finite.
    pub a: Vec<f32>,
    /// `[outputs][rank]`, finite, in GGUF's order of rows.
    pub b: Vec<f32>,
}

impl AdapterPair {
    /// The pairs of the upper half of the rows, for the same tensor, and of the lower half, for this one.
    pub(super) fn halves(mut self, lower: String) -> Result<[AdapterPair; 2]> {
        if !self.outputs.is_multiple_of(2) {
            fail!(
                ShapeMismatch,
                "tensor {} has {} rows; it must have as many for {} as for {lower}",
                self.names[1],
                self.outputs,
                self.target
            );
        }
        self.outputs /= 2;
        let len = self.outputs * self.rank;
        let mut a = try_vec(self.a.len(), 0.0, "an adapter")?;
        a.copy_from_slice(&self.a);
        let mut b = try_vec(len, 0.0, "an adapter")?;
        b.copy_from_slice(&self.b[len..]);
        self.b.truncate(len);
        let lower = AdapterPair {
            target: lower,
            names: self.names.clone(),
            a,
            b,
            ..self
        };
        Ok([self, lower])
    }

    /// The error about a matrix of the model that has another shape.
    pub fn misfit(&self, inputs: usize, outputs: usize) -> Error {
        let message = format!(
            "tensors {} and {} take {} elements and make {}, but the model's {} takes {inputs} and makes {outputs}",
            self.names[0], self.names[1], self.inputs, self.outputs, self.target
        );
        Error::new(Status::ShapeMismatch, message)
    }
}

/// An adapter, read and checked as far as that is possible without the model's tensors.
#[derive(Clone, Debug)]
pub struct AdapterFile {
    /// `general.name` of a GGUF file, or the name of the folder.
    pub name: String,
    /// The pairs, by the names of their targets.
    pub pairs: Vec<AdapterPair>,
    /// Bytes of the file with the tensors.
    pub file_bytes: u64,
}

impl AdapterFile {
    /// Reads an adapter for a model: a folder with `adapter_config.json` and `adapter_model.safetensors`,
    /// named by its path or that of one of these, or a GGUF file.
    ///
    /// Errors: those of opening a model; `UnknownFormat` for what is no adapter; `Unsupported` for kinds
    /// that are not LoRA, and for what some adapters have beside the pairs; `InvalidModel` for an adapter
    /// of another architecture, a rank of 0 and elements that are not finite; `MissingTensor` for half
    /// a pair; `ShapeMismatch` for halves that do not fit each other. Messages name the path and the
    /// tensor or key.
    pub fn open(path: &Path, base: &BaseShape) -> Result<AdapterFile> {
        let within = |e: Error| {
            let message = match e.message.starts_with(&*path.to_string_lossy()) {
                true => e.message,
                false => format!("{}: {}", path.display(), e.message),
            };
            Error::new(e.status, message)
        };
        let opened = match huggingface::open_peft(path, base) {
            Some(opened) => opened,
            None => open_gguf(path, base),
        };
        let file = opened.map_err(within)?;
        if file.pairs.is_empty() {
            let e = Error::new(Status::MissingTensor, "the adapter has no tensors");
            return Err(within(e));
        }
        Ok(file)
    }
}

/// Half of a pair, or both, while a file is read.
#[derive(Default)]
pub(super) struct Halves {
    halves: [Option<(String, Tensor)>; 2],
}

impl Halves {
    /// Puts half 0 (`A`) or 1 (`B`) in.
    pub(super) fn set(&mut self, half: usize, name: &str, tensor: Tensor) -> Result<()> {
        if let Some((other, _)) = &self.halves[half] {
            fail!(FileCorrupt, "tensors {other} and {name} are the same");
        }
        self.halves[half] = Some((name.to_owned(), tensor));
        Ok(())
    }

    /// Rows and name of `B`, if it is there.
    pub(super) fn outputs(&self) -> Option<(usize, &str)> {
        let (name, tensor) = self.halves[1].as_ref()?;
        Some((tensor.rows(), name))
    }

    /// The pair for `target`: `scale` says the factor of a rank, `source` which row of the file's `B`
    /// becomes which row of the pair's. `other` is what a missing half would be called.
    pub(super) fn pair(
        self,
        target: String,
        other: impl Fn(usize) -> String,
        scale: impl FnOnce(usize) -> Result<f32>,
        source: impl Fn(usize) -> usize,
    ) -> Result<AdapterPair> {
        let missing = self.halves.iter().position(Option::is_none);
        let [Some((a_name, a)), Some((b_name, b))] = self.halves else {
            let half = missing.unwrap_or(0);
            fail!(
                MissingTensor,
                "tensor {} is missing: there is only the other half of the pair",
                other(half)
            );
        };
        let [rank, b_rank] = [a.rows(), b.row_len()];
        if a.dims.len() != 2 || b.dims.len() != 2 || rank != b_rank {
            fail!(
                ShapeMismatch,
                "tensors {a_name} and {b_name} have shapes {:?} and {:?}, which are no pair of one rank",
                a.dims,
                b.dims
            );
        }
        if rank > MAX_RANK {
            fail!(
                Unsupported,
                "tensor {a_name} has rank {rank}; at most {MAX_RANK} are supported"
            );
        }
        let (inputs, outputs) = (a.row_len(), b.rows());
        let scale = scale(rank)?;
        if !scale.is_finite() {
            fail!(
                InvalidModel,
                "tensor {a_name}: its factor is {scale}, which is not finite"
            );
        }
        let types = [a.ty, b.ty].map(|ty| match ty {
            TensorType::F16 | TensorType::BF16 => ty,
            _ => TensorType::F32,
        });
        let (a, unordered) = (elements(&a, &a_name)?, elements(&b, &b_name)?);
        let mut b = try_vec(unordered.len(), 0.0, "an adapter")?;
        for (row, to) in b.chunks_exact_mut(rank).enumerate() {
            to.copy_from_slice(&unordered[source(row) * rank..][..rank]);
        }
        Ok(AdapterPair {
            target,
            names: [a_name, b_name],
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

/// A GGUF file of an adapter.
fn open_gguf(path: &Path, base: &BaseShape) -> Result<AdapterFile> {
    let file = ModelFile::open_with(path, Access::Read)?;
    match file.find::<&str>("general.type")? {
        Some("adapter") => {}
        Some(other) => fail!(
            UnknownFormat,
            "general.type is {other:?}; that of an adapter is \"adapter\""
        ),
        None => fail!(UnknownFormat, "is no adapter: it has no general.type"),
    }
    let kind = file.str("adapter.type")?;
    if kind != "lora" {
        fail!(
            Unsupported,
            "adapter.type is {kind:?}; \"lora\" is supported"
        );
    }
    if file
        .metadata
        .contains_key("adapter.alora.invocation_tokens")
    {
        fail!(
            Unsupported,
            "adapter.alora.invocation_tokens: adapters that begin at certain tokens are not supported"
        );
    }
    let architecture = file.str("general.architecture")?;
    if architecture != base.architecture {
        fail!(
            InvalidModel,
            "general.architecture is {architecture:?}, but the model's is {:?}",
            base.architecture
        );
    }
    let alpha = file.f32("adapter.lora.alpha")?;
    let mut targets = BTreeMap::<String, Halves>::new();
    for (name, tensor) in &file.tensors {
        let half = HALVES.iter().position(|end| name.ends_with(end));
        let Some((half, target)) = half.map(|h| (h, &name[..name.len() - HALVES[h].len()])) else {
            fail!(
                Unsupported,
                "tensor {name} is no half of a pair: its name ends neither in .lora_a nor in .lora_b"
            );
        };
        if target == "token_embd.weight" {
            return Err(of_embedding(name));
        }
        let halves = targets.entry(target.to_owned()).or_default();
        halves.set(half, name, tensor.clone())?;
    }
    let mut pairs = Vec::new();
    for (target, halves) in targets {
        let other = |half: usize| format!("{target}{}", HALVES[half]);
        // As those who write such files use them.
        let scale = |rank: usize| {
            Ok(match alpha {
                0.0 => 1.0,
                alpha => alpha / rank as f32,
            })
        };
        pairs.push(halves.pair(target.clone(), other, scale, |row| row)?);
    }
    Ok(AdapterFile {
        name: file.find("general.name")?.unwrap_or("").to_owned(),
        pairs,
        file_bytes: file.file_bytes,
    })
}

/// The error about a pair for a model's embedding.
pub(super) fn of_embedding(name: &str) -> Error {
    Error::new(
        Status::Unsupported,
        format!("tensor {name}: adapters of the token embedding are not supported"),
    )
}

impl ModelFile {
    /// The same model with adapters and their factors added to its matrices for good: `W + factor * scale * B A`. With
    /// `keep`, matrices keep their types, and quantized ones are quantized again; else what an adapter was
    /// added to has single precision.
    ///
    /// Errors: `MissingTensor` and `ShapeMismatch` for what does not fit the model; `Unsupported` for types that the
    /// library cannot write.
    pub fn merged(mut self, adapters: &[(AdapterFile, f32)], keep: bool) -> Result<ModelFile> {
        let mut types = BTreeMap::new();
        let pairs = adapters
            .iter()
            .flat_map(|(adapter, factor)| adapter.pairs.iter().map(move |pair| (pair, *factor)));
        for (pair, factor) in pairs {
            // A head that is the embedding gets a matrix of its own.
            if pair.target == "output.weight" && !self.tensors.contains_key("output.weight") {
                let embedding = self.tensor("token_embd.weight")?.clone();
                self.tensors.insert("output.weight".into(), embedding);
            }
            let Some(tensor) = self.tensors.get_mut(pair.target.as_str()) else {
                fail!(
                    MissingTensor,
                    "tensor {} is for {}, which the model does not have",
                    pair.names[0],
                    pair.target
                );
            };
            let (inputs, outputs) = (tensor.row_len(), tensor.rows());
            if [inputs, outputs] != [pair.inputs, pair.outputs] || tensor.dims.len() != 2 {
                return Err(pair.misfit(inputs, outputs));
            }
            types.entry(&pair.target).or_insert(tensor.ty);
            let dims = tensor.dims.clone();
            let sum = super::convert::Sum {
                base: tensor.clone(),
                pair: pair.clone(),
                factor,
            };
            *tensor = Tensor::made(Arc::clone(&tensor.name), TensorType::F32, dims, sum)?;
        }
        for (name, ty) in types.into_iter().filter(|_| keep) {
            if let Some(tensor) = self.tensors.get_mut(name.as_str()) {
                *tensor = super::convert::converted(tensor, ty)?;
            }
        }
        Ok(self)
    }
}
