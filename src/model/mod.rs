//! What a network is: hyperparameters and blocks described as data.
//!
//! One small file per family maps the names in a file to this description. Backends read it and
//! never ask for a family's name. All shapes are checked here, so a backend may rely on them.

mod llama;

use crate::error::Result;
use crate::format::{ModelFile, Tensor};

/// A whole decoder-only network.
#[derive(Clone)]
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
#[derive(Clone)]
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
#[derive(Clone)]
pub struct Norm {
    /// F32 or F16, `hidden` elements.
    pub weight: Tensor,
    /// Added to the mean square.
    pub eps: f32,
}

/// `y = W x + b`; `weight` has one row per output.
#[derive(Clone)]
pub struct Linear {
    /// `[out][in]`.
    pub weight: Tensor,
    /// `out` elements, F32 or F16.
    pub bias: Option<Tensor>,
}

/// Grouped-query self-attention. Query head `h` reads KV head `h / (n_heads / n_kv_heads)`.
#[derive(Clone)]
pub struct Attention {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Elements per head of q, k and v.
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
    /// Factor on q.k before softmax, normally `1 / sqrt(head_dim)`.
    pub scale: f32,
}

/// Rotary position embedding with all scaling folded in: at position `p`, pair `i` of a head is
/// rotated by `p * inv_freq[i]` and multiplied by `magnitude`. Elements from `2 * inv_freq.len()`
/// on are left alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Radians per position of each pair.
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
#[derive(Clone)]
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
    /// Describes the network in `file`, checking every key, shape and type that it uses.
    ///
    /// Errors: `Unsupported` names an unknown architecture or feature, `MissingKey`,
    /// `MissingTensor`, `ShapeMismatch` and `InvalidModel` name the key or tensor.
    pub fn from_file(file: &ModelFile) -> Result<Network> {
        let _ = file;
        todo!()
    }
}
