//! Files of LoRA adapters: pairs of thin matrices `A` and `B`, which add `scale * B A` to a matrix of a
//! model.
//!
//! [`AdapterFile::open`] reads the folders that the PEFT library writes, and GGUF files of adapters. Both
//! come out in the terms of GGUF: which tensor of a model a pair belongs to, with the rows of `B` in the
//! order of that tensor's. Whether a model has such tensors is for `model::adapter` to say.

mod pair;

pub(super) use pair::Halves;
pub(crate) use pair::swapped;
pub use pair::{AdapterPair, MAX_RANK};

use super::{Access, ModelFile, Tensor, huggingface};
use crate::error::{Error, Result, Status, fail};
use crate::quant::TensorType;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The token embedding. Its rows are those of tokens, so that it is no product's matrix, and files have pairs of what is added to its
/// columns.
pub const EMBEDDING: &str = "token_embd.weight";
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
    /// Its experts, if it has any.
    pub experts: Option<ExpertShape>,
    /// Of each head of latent attention, the elements of a key that are not rotated; 0 where there are none.
    pub plain_dim: usize,
    /// Whether weights are multiplied by factors that the folder's are not, or other parts of the order
    /// of rows differ that adapters from folders would have to follow.
    pub folds: bool,
}

/// The experts of a model.
#[derive(Clone, Copy, Debug)]
pub struct ExpertShape {
    /// How many a layer has.
    pub count: usize,
    /// Elements that each reads and makes.
    pub width: usize,
    /// Elements between its products.
    pub inner: usize,
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
        let experts = match size("expert_count") {
            0 => None,
            count => Some(ExpertShape {
                count,
                width: match size("moe_latent_size") {
                    0 => size("embedding_length"),
                    width => width,
                },
                inner: match size("expert_feed_forward_length") {
                    0 => size("feed_forward_length"),
                    inner => inner,
                },
            }),
        };
        Ok(BaseShape {
            folds: architecture == "falcon-h1",
            experts,
            plain_dim: match size("attention.key_length_mla") {
                0 => 0,
                length => length.saturating_sub(size("rope.dimension_count")),
            },
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

/// An adapter, read and checked as far as that is possible without the model's tensors.
#[derive(Clone, Debug)]
pub struct AdapterFile {
    /// `general.name` of a GGUF file, or the name of the folder.
    pub name: String,
    /// The pairs, by the names of their targets.
    pub pairs: Vec<AdapterPair>,
    /// Tensors in its file.
    pub n_tensors: usize,
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
        pairs.push(match &*target {
            EMBEDDING => halves.of_columns(target.clone(), other, scale)?,
            _ => halves.pair(target.clone(), 1, other, scale, |row| row)?,
        });
    }
    Ok(AdapterFile {
        name: file.find("general.name")?.unwrap_or("").to_owned(),
        pairs,
        n_tensors: file.tensors.len(),
        file_bytes: file.file_bytes,
    })
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
            if [EMBEDDING, "output.weight"].contains(&&*pair.target)
                && !self.tensors.contains_key("output.weight")
            {
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
            let [inputs, outputs, ref stack @ ..] = tensor.dims[..] else {
                return Err(pair.misfit(tensor.row_len(), 1));
            };
            if [inputs, outputs] != [pair.inputs, pair.outputs] {
                return Err(pair.misfit(inputs, outputs));
            }
            let stack: usize = stack.iter().product();
            if stack != pair.stack {
                return Err(pair.other_stack(stack));
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
