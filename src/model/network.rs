//! A network as data: what a backend needs to run it, whatever the family's name.

use crate::format::Tensor;
use std::sync::Arc;

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
    /// Factor on the rows of `embedding`, finite and positive.
    pub embedding_scale: f32,
    /// Learned position embedding, added to the scaled token embedding: at least `context_length`
    /// rows of `hidden`.
    pub positions: Option<Tensor>,
    /// What each layer gets of the token itself, beside the residual stream.
    pub per_layer: Option<PerLayerInputs>,
    /// The layers, first to last.
    pub blocks: Vec<Block>,
    /// Norm before the head.
    pub final_norm: Norm,
    /// Output head, `n_vocab` x `hidden`; shares the embedding's tensor if the model ties them.
    pub head: Linear,
    /// Factor on the head's outputs, before the soft cap. Finite and positive.
    pub logit_scale: f32,
    /// Soft cap `c` of the logits: `c * tanh(logit / c)`. Finite and positive.
    pub logit_cap: Option<f32>,
}

/// One layer.
///
/// With `m(y) = post(mixer(y))`, `f(y) = post(feed_forward(y))` and `r` the residual scale, a
/// sequential block does `x += r * m(norm(x)); x += r * f(norm(x))`, a parallel one
/// `x += r * (m(norm(x)) + f(norm(x)))`. A norm that is `None` changes nothing, except that a
/// parallel block without a `feed_forward_norm` feeds the mixer's normed input to both.
#[derive(Clone, Debug)]
pub struct Block {
    /// Norm before the mixer.
    pub mixer_norm: Option<Norm>,
    /// What mixes positions.
    pub mixer: Mixer,
    /// Norm of the mixer's output, before it is added.
    pub mixer_post_norm: Option<Norm>,
    /// Norm before the feed-forward part.
    pub feed_forward_norm: Option<Norm>,
    /// Feed-forward part.
    pub feed_forward: FeedForward,
    /// Norm of the feed-forward's output, before it is added.
    pub feed_forward_post_norm: Option<Norm>,
    /// Whether mixer and feed-forward read the same residual stream.
    pub parallel: bool,
    /// Factor on what is added to the residual stream. Finite and positive.
    pub residual_scale: f32,
    /// What it makes of an input of its own, if the network has those.
    pub per_layer: Option<Box<LayerInput>>,
    /// Factor on the residual stream after the block. Finite.
    pub output_scale: f32,
}

/// Inputs of the layers beside the residual stream. With `x` the scaled embedding of a token, those of
/// all layers are, one behind the other, `scale * (norm(projection_scale * projection(x)) +
/// embedding_scale * embedding[token])`, the norm being over the part of each layer.
#[derive(Clone, Debug)]
pub struct PerLayerInputs {
    /// `n_vocab` rows of `n_layers * len`, `len` being the elements of the norm.
    pub embedding: Tensor,
    /// Finite and positive, as the others.
    pub embedding_scale: f32,
    /// `n_layers * len` x `hidden`.
    pub projection: Linear,
    /// Factor on its outputs.
    pub projection_scale: f32,
    /// Over the part of a layer.
    pub norm: Norm,
    /// Factor on the sum.
    pub scale: f32,
}

/// What a layer makes of its own input `v`: `x += post_norm(projection(activation(gate(x)) * v))`,
/// after its feed-forward part.
#[derive(Clone, Debug)]
pub struct LayerInput {
    /// `len` x `hidden`.
    pub gate: Linear,
    /// Applied to the gate.
    pub activation: Activation,
    /// `hidden` x `len`.
    pub projection: Linear,
    /// Over the residual stream's width.
    pub post_norm: Option<Norm>,
}

/// Which norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps) * weight + bias`.
    Rms,
    /// `(x - mean(x)) / sqrt(variance(x) + eps) * weight + bias`.
    Layer,
}

/// A norm over rows of `weight`'s length.
#[derive(Clone, Debug)]
pub struct Norm {
    /// The formula.
    pub kind: NormKind,
    /// F32, F16 or BF16.
    pub weight: Tensor,
    /// F32, F16 or BF16, as long as `weight`.
    pub bias: Option<Tensor>,
    /// Added to the mean square or variance.
    pub eps: f32,
}

/// `y = W x + b`; `weight` has one row per output.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[out][in]`, of any type. May be some rows of a tensor of the file that fuses several.
    pub weight: Tensor,
    /// F32, F16 or BF16; `out` elements.
    pub bias: Option<Tensor>,
}

/// The part of a block that mixes positions.
#[derive(Clone, Debug)]
pub enum Mixer {
    /// Self-attention.
    Attention(Box<Attention>),
    /// Self-attention whose keys and values are products of one short vector per position.
    Latent(Box<LatentAttention>),
}

/// What a mixer keeps of the positions that it has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MixerState {
    /// A key and a value per position.
    Kv(KvShape),
}

/// Keys and values of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Elements of a head's key, and of its value.
    pub head_dim: usize,
    /// Position `p` needs the positions from `p - window + 1` on; all if `None`.
    pub window: Option<usize>,
}

impl Mixer {
    /// What it keeps in a session of a model that was trained for `context_length` positions. A
    /// window that no context exceeds counts as none.
    pub fn state(&self, context_length: usize) -> MixerState {
        match self {
            Mixer::Attention(a) => MixerState::Kv(KvShape {
                // Of its own.
                n_kv_heads: match a.shares {
                    None => a.n_kv_heads,
                    Some(_) => 0,
                },
                head_dim: a.head_dim,
                window: a.window.filter(|w| *w < context_length),
            }),
            // The latent vector and the rotated part are a key.
            Mixer::Latent(a) => MixerState::Kv(KvShape {
                n_kv_heads: 1,
                head_dim: a.rank + a.rotated(),
                window: None,
            }),
        }
    }

    /// Its matrices.
    pub fn linears(&self) -> Vec<&Linear> {
        match self {
            Mixer::Attention(a) if a.shares.is_some() => vec![&a.q, &a.output],
            Mixer::Attention(a) => vec![&a.q, &a.k, &a.v, &a.output],
            Mixer::Latent(a) => {
                let mut all = vec![&a.q, &a.kv, &a.to_latent, &a.from_latent, &a.output];
                all.extend(&a.q_a);
                all
            }
        }
    }

    /// Its norms.
    pub fn norms(&self) -> impl Iterator<Item = &Norm> {
        match self {
            Mixer::Attention(a) => [&a.q_norm, &a.k_norm].into_iter().flatten(),
            Mixer::Latent(a) => [&a.q_a_norm, &a.kv_norm].into_iter().flatten(),
        }
    }

    /// Its vectors that are neither norms nor biases.
    pub fn vectors(&self) -> impl Iterator<Item = &Tensor> {
        match self {
            Mixer::Attention(a) => a.sinks.as_ref().into_iter(),
            Mixer::Latent(_) => None.into_iter(),
        }
    }

    /// Its rotary embedding.
    pub fn rope(&self) -> Option<&Rope> {
        match self {
            Mixer::Attention(a) => a.rope.as_ref(),
            Mixer::Latent(a) => Some(&a.rope),
        }
    }

    /// Self-attention, where that is what it is.
    pub fn as_attention(&self) -> Option<&Attention> {
        match self {
            Mixer::Attention(a) => Some(a),
            Mixer::Latent(_) => None,
        }
    }
}

/// Self-attention with latent keys and values (MLA, arXiv:2405.04434). Of a position, `c`, the normed
/// first part of `kv(x)`, and `r`, the rotated rest, are kept. A query head consists of a plain part
/// `q` and a rotated part `s`; its score with a position is `scale * (q . K c + s . r)`, and its value
/// of a position is `V c`, with matrices K and V of the head.
#[derive(Clone, Debug)]
pub struct LatentAttention {
    /// Query heads.
    pub n_heads: usize,
    /// Elements of `c`.
    pub rank: usize,
    /// Elements of `q`, which come first in a head's queries.
    pub plain_dim: usize,
    /// Elements of a head's values.
    pub value_dim: usize,
    /// Where queries come by way of a shorter vector: its product with the input,
    pub q_a: Option<Linear>,
    /// and its norm.
    pub q_a_norm: Option<Norm>,
    /// Queries of that vector, or of the input: `n_heads * (plain_dim + rotated)` rows.
    pub q: Linear,
    /// `rank + rotated` x `hidden`.
    pub kv: Linear,
    /// Of the first `rank` of them.
    pub kv_norm: Option<Norm>,
    /// `[n_heads][rank][plain_dim]`: K of each head, transposed.
    pub to_latent: Linear,
    /// `[n_heads][value_dim][rank]`: V of each head.
    pub from_latent: Linear,
    /// `hidden` x `n_heads * value_dim`.
    pub output: Linear,
    /// Rotary embedding of all of `s` and `r`.
    pub rope: Rope,
    /// Factor on the scores. Finite and positive.
    pub scale: f32,
}

impl LatentAttention {
    /// Elements of `s` and of `r`.
    pub fn rotated(&self) -> usize {
        2 * self.rope.inv_freq.len()
    }
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
    /// Norm of the queries before rope: over each head if its weight has `head_dim` elements, over
    /// all heads together if it has `n_heads * head_dim`.
    pub q_norm: Option<Norm>,
    /// Norm of the keys before rope, likewise.
    pub k_norm: Option<Norm>,
    /// Whether these norms, which are then over each head, come after rope instead.
    pub norm_after_rope: bool,
    /// Root-mean-square norm of each head's values, without weights: its epsilon.
    pub value_norm: Option<f32>,
    /// The earlier layer of the same shape and window whose keys and values this one reads, in place
    /// of its own: `k` and `v` are that layer's.
    pub shares: Option<usize>,
    /// Rotary embedding of q and k, if this layer has one.
    pub rope: Option<Rope>,
    /// Factor on q.k before softmax, normally `1 / sqrt(head_dim)`. Finite and positive.
    pub scale: f32,
    /// Factor on the queries that grows with their position.
    pub temperature: Option<Temperature>,
    /// Position p sees positions `p - window + 1` to p. At least 1.
    pub window: Option<usize>,
    /// Soft cap `c` of the scaled scores: `c * tanh(score / c)`. Finite and positive.
    pub score_cap: Option<f32>,
    /// A logit per query head that joins its softmax and takes its share without a value.
    pub sinks: Option<Tensor>,
}

/// A factor on the queries of position `p`: `1 + scale * ln(1 + floor(p / length))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// How fast it grows. Finite and positive.
    pub scale: f32,
    /// Positions of a step, at least 1. It is 1 in the first one.
    pub length: f32,
}

impl Temperature {
    /// The factor on the queries of a position.
    pub fn factor(&self, position: usize) -> f32 {
        let steps = (position as f32 / self.length).floor();
        self.scale.mul_add((1.0 + steps).ln(), 1.0)
    }
}

/// Rotary position embedding with all scaling folded in: at position `p`, pair `i` of a head is
/// rotated by `p * inv_freq[i]` and multiplied by `magnitude`. Elements from `2 * inv_freq.len()`
/// on are left alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Radians per position of each pair; 1 to `head_dim / 2` of them, finite.
    pub inv_freq: Arc<[f32]>,
    /// Factor on the rotated elements (YaRN's attention factor, else 1).
    pub magnitude: f32,
    /// Which elements form a pair.
    pub pairing: RopePairing,
    /// Other frequencies for sessions with a long context.
    pub long: Option<LongRope>,
}

impl Rope {
    /// The frequencies of sessions with that context.
    pub fn frequencies(&self, context: usize) -> &[f32] {
        match &self.long {
            Some(long) if context > long.above => &long.inv_freq,
            _ => &self.inv_freq,
        }
    }
}

/// Frequencies of sessions whose context is longer than `above` (LongRoPE).
#[derive(Clone, Debug, PartialEq)]
pub struct LongRope {
    /// The longest context that does with the others.
    pub above: usize,
    /// As many as the others.
    pub inv_freq: Arc<[f32]>,
}

/// Which elements of a head form pair `i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairing {
    /// `2i` and `2i + 1` (GGUF's llama layout).
    Interleaved,
    /// `i` and `i + n/2`, n the number of rotated elements (GPT-NeoX).
    Halves,
}

/// The part of a block after the mixer.
#[derive(Clone, Debug)]
pub enum FeedForward {
    /// One for all tokens.
    Dense(Box<Mlp>),
    /// A mixture of experts.
    Experts(Box<Experts>),
}

/// `down(activation(gate(x)) * up(x))`, or `down(activation(up(x)))` without a gate.
#[derive(Clone, Debug)]
pub struct Mlp {
    /// `n_ff` x `hidden`.
    pub gate: Option<Linear>,
    /// `n_ff` x `hidden`.
    pub up: Linear,
    /// `hidden` x `n_ff`.
    pub down: Linear,
    /// Applied to the gate, or to `up` where there is none.
    pub activation: Activation,
}

/// A mixture of experts: each token goes through `n_used` of `n_experts` gated feed-forwards,
/// whose outputs are summed by weight.
#[derive(Clone, Debug)]
pub struct Experts {
    /// Number of experts, at least `n_used`.
    pub n_experts: usize,
    /// Experts that each token goes through, at least 1.
    pub n_used: usize,
    /// `n_experts` x `hidden`; scores of the experts.
    pub router: Linear,
    /// How scores become weights.
    pub scoring: Scoring,
    /// Added to the weights while choosing the experts only; `n_experts` elements.
    pub selection_bias: Option<Tensor>,
    /// Groups of experts, of which some are chosen first.
    pub groups: Option<ExpertGroups>,
    /// Divides the weights of the chosen experts by their sum.
    pub normalize: bool,
    /// Factor on the weights. Finite and positive.
    pub weight_scale: f32,
    /// `[n_experts][n_ff][hidden]`: the experts' rows one below the other (a matrix of
    /// `n_experts * n_ff` rows); the bias, if there is one, likewise.
    pub gate: Linear,
    /// As `gate`.
    pub up: Linear,
    /// `[n_experts][hidden][n_ff]`, likewise.
    pub down: Linear,
    /// Applied to the gate.
    pub activation: Activation,
    /// An expert that every token goes through as well.
    pub shared: Option<SharedExpert>,
}

/// Experts in groups of consecutive ones. A group counts as much as its best experts together, by the
/// numbers that experts are chosen by, and experts of other groups than the best are not chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Groups, at least 2; divides the number of experts.
    pub n_groups: usize,
    /// Groups that a token's experts are in, at least 1. They have as many experts as a token uses.
    pub n_used: usize,
    /// Experts whose numbers count for a group: 1 or 2, at most as many as it has.
    pub n_best: usize,
}

/// How an expert's weight comes from the router's scores. Of equal weights, the smaller index wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// Softmax over all experts, then the best are chosen.
    Softmax,
    /// Sigmoid of each score, then the best are chosen.
    Sigmoid,
    /// The best are chosen by score; softmax over those.
    SoftmaxOfChosen,
}

/// An expert for all tokens.
#[derive(Clone, Debug)]
pub struct SharedExpert {
    /// Its products.
    pub mlp: Mlp,
    /// `1` x `hidden`; the sigmoid of it weighs the expert's output. 1 without.
    pub gate: Option<Linear>,
}

/// Activation functions of a feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2`.
    GeluTanh,
    /// `x * (1 + erf(x / sqrt(2))) / 2`.
    Gelu,
    /// With a gate g and an up value u, both capped: `min(g, limit) / (1 + exp(-alpha * g)) *
    /// (clamp(u, -limit, limit) + 1)` in place of the product.
    ClampedSwiglu {
        /// Steepness of the sigmoid.
        alpha: f32,
        /// Cap of both.
        limit: f32,
    },
    /// `max(x, 0)^2`.
    ReluSquared,
    /// xIELU (arXiv:2411.13010) with its usual beta: `alpha_p * x^2 + x / 2` above 0, and
    /// `alpha_n * (exp(x) - 1 - x) + x / 2` below. Both finite.
    Xielu {
        /// Of the part above 0.
        alpha_p: f32,
        /// Of the part below.
        alpha_n: f32,
    },
}

impl Block {
    /// Every matrix of the block.
    pub fn linears(&self) -> Vec<&Linear> {
        let mut all = self.mixer.linears();
        match &self.feed_forward {
            FeedForward::Dense(m) => all.extend(m.linears()),
            FeedForward::Experts(e) => {
                all.extend([&e.router, &e.gate, &e.up, &e.down]);
                if let Some(shared) = &e.shared {
                    all.extend(shared.mlp.linears());
                    all.extend(&shared.gate);
                }
            }
        }
        if let Some(input) = &self.per_layer {
            all.extend([&input.gate, &input.projection]);
        }
        all
    }

    /// Every norm of the block.
    pub fn norms(&self) -> impl Iterator<Item = &Norm> {
        let own = [
            &self.mixer_norm,
            &self.mixer_post_norm,
            &self.feed_forward_norm,
            &self.feed_forward_post_norm,
        ];
        let input = self.per_layer.iter().filter_map(|i| i.post_norm.as_ref());
        let own = own.into_iter().flatten();
        own.chain(self.mixer.norms()).chain(input)
    }
}

impl Mlp {
    /// Its matrices.
    pub fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.gate.iter().chain([&self.up, &self.down])
    }
}

impl Network {
    /// Every tensor that the network uses when it runs; some appear twice.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let blocks = || self.blocks.iter();
        let norms = blocks().flat_map(Block::norms).chain([&self.final_norm]);
        let linears = blocks().flat_map(Block::linears).chain([&self.head]);
        let norms = norms.flat_map(|norm| [Some(&norm.weight), norm.bias.as_ref()]);
        let linears = linears.flat_map(|linear| [Some(&linear.weight), linear.bias.as_ref()]);
        let others = blocks().flat_map(|block| {
            let selection = match &block.feed_forward {
                FeedForward::Experts(experts) => experts.selection_bias.as_ref(),
                FeedForward::Dense(_) => None,
            };
            block.mixer.vectors().map(Some).chain([selection])
        });
        let top = [Some(&self.embedding), self.positions.as_ref()];
        let inputs = self.per_layer.iter().flat_map(|inputs| {
            [
                Some(&inputs.embedding),
                Some(&inputs.projection.weight),
                inputs.projection.bias.as_ref(),
                Some(&inputs.norm.weight),
                inputs.norm.bias.as_ref(),
            ]
        });
        let top = top.into_iter().chain(inputs);
        norms.chain(linears).chain(others).chain(top).flatten()
    }
}
