//! What a network is: hyperparameters and blocks described as data.
//!
//! One small file per family maps the names in a file to this description. Backends read it and
//! never ask for a family's name. All shapes are checked here, so a backend may rely on them.

mod llama;
mod rope;
mod source;

use crate::error::{Result, fail};
use crate::format::{ModelFile, Tensor};

/// Describes the network in a file, checking every key, shape and type that it uses.
type Describe = fn(&ModelFile) -> Result<Network>;

/// The families, by `general.architecture`. A new one is a file here and a line in this table.
const ARCHITECTURES: &[(&str, Describe)] = &[("llama", llama::describe)];

/// A whole decoder-only network.
#[derive(Clone, Debug)]
pub struct Network {
    /// `general.architecture` of the file, for information only.
    pub architecture: String,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of token ids; rows of `embedding` and of `head.weight`.
    pub n_vocab: usize,
    /// Positions that the model was trained for (after rope scaling).
    pub context_length: usize,
    /// Token embedding, `n_vocab` rows of `hidden`.
    pub embedding: Tensor,
    /// The layers, first to last.
    pub blocks: Vec<Block>,
    /// Norm before the head.
    pub final_norm: Norm,
    /// Output head, `n_vocab` x `hidden`; shares the embedding's tensor if the model ties them.
    pub head: Linear,
}

/// One layer: `x += attention(norm(x)); x += feed_forward(norm(x))`.
#[derive(Clone, Debug)]
pub struct Block {
    /// Norm before attention.
    pub attention_norm: Norm,
    /// Self-attention.
    pub attention: Attention,
    /// Norm before the feed-forward part.
    pub feed_forward_norm: Norm,
    /// Feed-forward part.
    pub feed_forward: FeedForward,
}

/// Root-mean-square norm: `x / sqrt(mean(x^2) + eps) * weight`.
#[derive(Clone, Debug)]
pub struct Norm {
    /// F32, F16 or BF16; `hidden` elements.
    pub weight: Tensor,
    /// Added to the mean square.
    pub eps: f32,
}

/// `y = W x + b`; `weight` has one row per output.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[out][in]`, of any type.
    pub weight: Tensor,
    /// F32, F16 or BF16; `out` elements.
    pub bias: Option<Tensor>,
}

/// Grouped-query self-attention. Query head `h` reads KV head `h / (n_heads / n_kv_heads)`.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Elements per head of q, k and v. `n_heads * head_dim` need not be `hidden`.
    pub head_dim: usize,
    /// `n_heads * head_dim` x `hidden`.
    pub q: Linear,
    /// `n_kv_heads * head_dim` x `hidden`.
    pub k: Linear,
    /// `n_kv_heads * head_dim` x `hidden`.
    pub v: Linear,
    /// `hidden` x `n_heads * head_dim`.
    pub output: Linear,
    /// Rotary embedding of q and k.
    pub rope: Rope,
    /// Factor on q.k before softmax, normally `1 / sqrt(head_dim)`. Finite and positive.
    pub scale: f32,
}

/// Rotary position embedding with all scaling folded in: at position `p`, pair `i` of a head is
/// rotated by `p * inv_freq[i]` and multiplied by `magnitude`. Elements from `2 * inv_freq.len()`
/// on are left alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Radians per position of each pair; 1 to `head_dim / 2` of them, finite.
    pub inv_freq: std::sync::Arc<[f32]>,
    /// Factor on the rotated elements (YaRN's attention factor, else 1).
    pub magnitude: f32,
    /// Which elements form a pair.
    pub pairing: RopePairing,
}

/// Which elements of a head form pair `i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairing {
    /// `2i` and `2i + 1` (GGUF's llama layout).
    Interleaved,
    /// `i` and `i + n/2`, n the number of rotated elements (GPT-NeoX).
    Halves,
}

/// `down(activation(gate(x)) * up(x))`.
#[derive(Clone, Debug)]
pub struct FeedForward {
    /// `n_ff` x `hidden`.
    pub gate: Linear,
    /// `n_ff` x `hidden`.
    pub up: Linear,
    /// `hidden` x `n_ff`.
    pub down: Linear,
    /// Applied to the gate.
    pub activation: Activation,
}

/// Activation functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + exp(-x))`.
    Silu,
}

impl Network {
    /// Describes the network in `file`, checking every key, shape and type that it uses. Reads no
    /// tensor but the small `rope_freqs.weight`.
    ///
    /// Errors: `Unsupported` names an unknown architecture or feature; `MissingKey`,
    /// `MissingTensor`, `ShapeMismatch` and `InvalidModel` name the key or tensor.
    pub fn from_file(file: &ModelFile) -> Result<Network> {
        let architecture = file.str("general.architecture")?;
        match ARCHITECTURES.iter().find(|(name, _)| *name == architecture) {
            Some((_, describe)) => describe(file),
            None => {
                let known: Vec<_> = ARCHITECTURES.iter().map(|(name, _)| *name).collect();
                fail!(
                    Unsupported,
                    "general.architecture is {architecture:?}; supported: {}",
                    known.join(", ")
                )
            }
        }
    }
}
