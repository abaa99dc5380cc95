//! A network as data: what a backend needs to run it, whatever the family's name.

use super::part::Surroundings;
use super::predictor::Entry;
use super::rank::Cuts;
use super::readout::{Encoder, Readout};
use crate::error::{Result, try_vec};
use crate::format::Tensor;
use std::ops::Range;
use std::sync::Arc;

/// A whole network: a decoder, or an encoder of texts.
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
    /// Norm of what the layers begin with, in a decoder.
    pub embedding_norm: Option<Norm>,
    /// What each layer gets of the token itself, beside the residual stream.
    pub per_layer: Option<PerLayerInputs>,
    /// Several residual streams in place of one, if the network has those.
    pub streams: Option<Streams>,
    /// What 1 in the residual stream stands for: models of this kind were trained with a stream that is this factor
    /// times as large. Finite and positive.
    pub residual_unit: f32,
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
    /// What an encoder has beside; `None` for a decoder. Attention that is not causal makes an encoder.
    pub encoder: Option<Box<Encoder>>,
    /// What vectors and scores of texts are made with.
    pub readout: Readout,
    /// Of the layers of a part; all are its own otherwise.
    pub around: Surroundings,
    /// What the host evaluates of its layers ([`Network::experts_apart`]).
    pub host: Option<Arc<Network>>,
    /// Of a rank's share, what its matrices are of those of the whole network ([`Network::rank`]).
    pub cuts: Option<Arc<Cuts>>,
    /// What it begins with in place of embeddings, if it is a head that guesses further tokens.
    pub entry: Option<Box<Entry>>,
    /// Its own head of that kind, if the file has one and was read with it.
    pub predictor: Option<Arc<Network>>,
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
    /// Its part in several residual streams, if the network has those. It is sequential then, has a gate,
    /// scales nothing, and adds what it makes of its own input to all streams but the first.
    pub streams: Option<Box<LayerStreams>>,
    /// Factor on the residual stream after the block. Finite.
    pub output_scale: f32,
    /// Norm of the residual stream after the mixer's output was added; the stream is that norm's result
    /// from there on.
    pub mixer_sum_norm: Option<Norm>,
    /// The same after the feed-forward part.
    pub feed_forward_sum_norm: Option<Norm>,
}

/// Most residual streams.
pub const MAX_STREAMS: usize = 16;

/// Several residual streams in place of one (AltUp, arXiv:2301.13310). The first begins as the scaled
/// embedding `x` of a token, the others as `begin[i](x)`, made as large as `x`. After the last layer, each
/// but the first becomes `end[i](s)`, made as large as the first, and the mean of all is the residual
/// stream. Rows are made as large as another by a factor that gives them the same mean square; their own
/// counts as 1e-5 at least.
#[derive(Clone, Debug)]
pub struct Streams {
    /// How many, from 2 to [`MAX_STREAMS`].
    pub count: usize,
    /// `hidden` x `hidden` each, one less than streams.
    pub begin: Vec<Linear>,
    /// As `begin`.
    pub end: Vec<Linear>,
}

/// A layer's part in several residual streams `s[i]`. With `m(x) = tanh(router(norm(x)) / hidden)`, a number
/// for each stream, and `a` the active one:
/// - `p[i] = s[i] + sum over j of (predict m(s[a]))[i][j] * s[j]`;
/// - `x = p[a]`; with `y` the normed input of attention, `x = (x + post(attention(y)) + y +
///   norm(right(left(y)))) / sqrt(2)`, and then the feed-forward part adds to `x` as ever;
/// - `s[i] = p[i] + (x - p[a]) * (1 + (correct m(x))[i])`;
/// - `output_scale * s[a]` is what the layer's own input is a factor on.
#[derive(Clone, Debug)]
pub struct LayerStreams {
    /// Streams of the network.
    pub count: usize,
    /// The one that is evaluated.
    pub active: usize,
    /// Before the router.
    pub router_norm: Norm,
    /// `[count][hidden]`, F32, F16 or BF16, as the others.
    pub router: Tensor,
    /// `[count][count][count]`, the last one of `m`.
    pub predict: Tensor,
    /// `[count][count]`, likewise.
    pub correct: Tensor,
    /// `hidden` elements.
    pub output_scale: Tensor,
    /// The thin matrices around attention: `rank` x `hidden`,
    pub left: Linear,
    /// and `hidden` x `rank`,
    pub right: Linear,
    /// and the norm behind them.
    pub thin_norm: Norm,
    /// Gates of the feed-forward part count by as much as they are above their mean and so many standard
    /// deviations, and not at all below.
    pub cutoff: Option<f32>,
}

impl LayerStreams {
    /// Its small tensors that are no norms.
    pub fn vectors(&self) -> [&Tensor; 4] {
        [
            &self.router,
            &self.predict,
            &self.correct,
            &self.output_scale,
        ]
    }
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

impl Norm {
    /// A norm without weights, under this name: they are all 1. Errors: `OutOfMemory`.
    pub(crate) fn plain(kind: NormKind, name: &str, len: usize, eps: f32) -> Result<Norm> {
        let ones = try_vec(len, 1.0, "the weights of a norm")?;
        Ok(Norm {
            kind,
            weight: Tensor::of_numbers(name, vec![len], &ones)?,
            bias: None,
            eps,
        })
    }
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
    /// A gated convolution over a few positions.
    ShortConv(Box<ShortConv>),
    /// A gated delta net.
    DeltaNet(Box<DeltaNet>),
    /// Mamba, the first.
    Mamba1(Box<Mamba1>),
    /// Mamba 2.
    Mamba2(Box<Mamba2>),
    /// Self-attention and Mamba 2 side by side: both read the same input, and their outputs are added.
    SideBySide(Box<SideBySide>),
    /// Not here: another device has it ([`Network::experts_apart`]), or the layer has none.
    Absent,
}

/// Two mixers of a layer.
#[derive(Clone, Debug)]
pub struct SideBySide {
    /// Without layers that share its keys and values.
    pub attention: Attention,
    /// The other one.
    pub mamba: Mamba2,
}

/// What a mixer keeps of the positions that it has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MixerState {
    /// A key and a value per position.
    Kv(KvShape),
    /// The same amount, however many they are.
    Fixed(FixedShape),
    /// Both.
    Both(KvShape, FixedShape),
    /// Nothing.
    None,
}

/// Keys and values of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Elements of a head's key, and of its value, which ends with zeros if it is shorter.
    pub head_dim: usize,
    /// Position `p` needs the positions from `p - window + 1` on; all if `None`.
    pub window: Option<usize>,
}

impl KvShape {
    /// Of a layer that keeps nothing of single positions.
    pub(crate) const NONE: KvShape = KvShape {
        n_kv_heads: 0,
        head_dim: 0,
        window: None,
    };
}

/// State of fixed size, of 32-bit floats: the last inputs of a convolution,
/// `[conv_columns][conv_channels]` with the oldest position first, then a matrix per head,
/// `[n_heads][rows][columns]`. All of it is zero before the first position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedShape {
    /// Channels of the convolution.
    pub conv_channels: usize,
    /// Positions of it that are kept: its width less 1.
    pub conv_columns: usize,
    /// Heads of the recurrence.
    pub n_heads: usize,
    /// Rows of a head's matrix.
    pub rows: usize,
    /// Columns of a head's matrix.
    pub columns: usize,
}

impl FixedShape {
    /// Floats of the convolution's part.
    pub fn conv_len(&self) -> usize {
        self.conv_channels.saturating_mul(self.conv_columns)
    }

    /// Floats of the whole.
    pub fn len(&self) -> usize {
        let matrices = self
            .n_heads
            .saturating_mul(self.rows)
            .saturating_mul(self.columns);
        self.conv_len().saturating_add(matrices)
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl MixerState {
    /// Keys and values, [`KvShape::NONE`] without.
    pub fn kv(&self) -> KvShape {
        match self {
            MixerState::Kv(kv) | MixerState::Both(kv, _) => *kv,
            MixerState::Fixed(_) | MixerState::None => KvShape::NONE,
        }
    }

    /// The part of fixed size, if there is one.
    pub fn fixed(&self) -> Option<FixedShape> {
        match self {
            MixerState::Kv(_) | MixerState::None => None,
            MixerState::Fixed(fixed) | MixerState::Both(_, fixed) => Some(*fixed),
        }
    }

    /// Floats of that, 0 without.
    pub fn fixed_len(&self) -> usize {
        self.fixed().map_or(0, |fixed| fixed.len())
    }
}

impl Mixer {
    /// A name for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Mixer::Attention(_) => "attention",
            Mixer::Latent(_) => "latent attention",
            Mixer::ShortConv(_) => "a short convolution",
            Mixer::DeltaNet(_) => "a gated delta net",
            Mixer::Mamba1(_) => "Mamba",
            Mixer::Mamba2(_) => "Mamba 2",
            Mixer::SideBySide(_) => "attention and Mamba 2 side by side",
            Mixer::Absent => "an absent mixer",
        }
    }

    /// What it keeps in a session of a model that was trained for `context_length` positions. A
    /// window that no context exceeds counts as none.
    pub fn state(&self, context_length: usize) -> MixerState {
        match self {
            Mixer::Attention(a) => MixerState::Kv(a.state(context_length)),
            // The latent vector and the rotated part are a key.
            Mixer::Latent(a) => MixerState::Kv(KvShape {
                n_kv_heads: 1,
                head_dim: a.rank + a.rotated(),
                window: None,
            }),
            Mixer::ShortConv(m) => MixerState::Fixed(FixedShape {
                conv_channels: m.conv.channels(),
                conv_columns: m.conv.width() - 1,
                ..FixedShape::default()
            }),
            Mixer::DeltaNet(m) => MixerState::Fixed(FixedShape {
                conv_channels: m.conv.channels(),
                conv_columns: m.conv.width() - 1,
                n_heads: m.n_value_heads,
                rows: m.value_dim,
                columns: m.key_dim,
            }),
            Mixer::Mamba1(m) => MixerState::Fixed(m.state()),
            Mixer::Mamba2(m) => MixerState::Fixed(m.state()),
            Mixer::SideBySide(both) => {
                MixerState::Both(both.attention.state(context_length), both.mamba.state())
            }
            Mixer::Absent => MixerState::None,
        }
    }

    /// Its matrices.
    pub fn linears(&self) -> Vec<&Linear> {
        match self {
            Mixer::Attention(a) => a.linears(),
            Mixer::Latent(a) => {
                let mut all = a.projections();
                all.extend([&a.to_latent, &a.from_latent]);
                all
            }
            Mixer::ShortConv(m) => vec![&m.b, &m.c, &m.x, &m.output],
            Mixer::DeltaNet(m) => {
                let mut all = vec![&m.q, &m.k, &m.v, &m.z, &m.output];
                all.extend(&m.z_short);
                all.extend(m.steps.linears());
                all
            }
            Mixer::Mamba1(m) => vec![&m.x, &m.z, &m.short, &m.dt, &m.output],
            Mixer::Mamba2(m) => m.linears(),
            Mixer::SideBySide(both) => {
                let mut all = both.attention.linears();
                all.extend(both.mamba.linears());
                all
            }
            Mixer::Absent => Vec::new(),
        }
    }

    /// Its norms.
    pub fn norms(&self) -> impl Iterator<Item = &Norm> {
        let (attention, others): (_, [Option<&Norm>; 3]) = match self {
            Mixer::Attention(a) => (Some(&**a), [None; 3]),
            Mixer::Latent(a) => (None, [a.q_a_norm.as_ref(), a.kv_norm.as_ref(), None]),
            Mixer::ShortConv(_) | Mixer::Absent => (None, [None; 3]),
            Mixer::DeltaNet(m) => (None, [Some(&m.norm), None, None]),
            Mixer::Mamba1(m) => (
                None,
                [m.dt_norm.as_ref(), m.b_norm.as_ref(), m.c_norm.as_ref()],
            ),
            Mixer::Mamba2(m) => (None, [m.norm.as_ref(), None, None]),
            Mixer::SideBySide(both) => (
                Some(&both.attention),
                [both.mamba.norm.as_ref(), None, None],
            ),
        };
        let of_attention = attention
            .into_iter()
            .flat_map(|a| [&a.q_norm, &a.k_norm, &a.output_norm])
            .flatten();
        of_attention.chain(others.into_iter().flatten())
    }

    /// Its vectors that are neither norms nor biases of matrices, and its convolution.
    pub fn vectors(&self) -> impl Iterator<Item = &Tensor> {
        let (conv, others) = match self {
            Mixer::Attention(a) => {
                let distances = a.distances.as_ref().map(|d| &d.weight);
                (None, [a.sinks.as_ref(), distances, None, None])
            }
            Mixer::Latent(_) | Mixer::Absent => (None, [None; 4]),
            Mixer::ShortConv(m) => (Some(&m.conv), [None; 4]),
            Mixer::DeltaNet(m) => (
                Some(&m.conv),
                [Some(&m.decay), Some(&m.dt_bias), None, None],
            ),
            Mixer::Mamba1(m) => (Some(&m.conv), [Some(&m.decay), Some(&m.skip), None, None]),
            Mixer::Mamba2(m) => (
                Some(&m.conv),
                [Some(&m.decay), Some(&m.dt_bias), Some(&m.skip), None],
            ),
            Mixer::SideBySide(both) => {
                let m = &both.mamba;
                let sinks = both.attention.sinks.as_ref();
                (
                    Some(&m.conv),
                    [Some(&m.decay), Some(&m.dt_bias), Some(&m.skip), sinks],
                )
            }
        };
        let conv = conv
            .into_iter()
            .flat_map(|c| [Some(&c.weight), c.bias.as_ref()]);
        conv.chain(others).flatten()
    }

    /// Its rotary embedding.
    pub fn rope(&self) -> Option<&Rope> {
        match self {
            Mixer::Attention(a) => a.rope.as_ref(),
            Mixer::Latent(a) => Some(&a.rope),
            Mixer::SideBySide(both) => both.attention.rope.as_ref(),
            Mixer::ShortConv(_)
            | Mixer::DeltaNet(_)
            | Mixer::Mamba1(_)
            | Mixer::Mamba2(_)
            | Mixer::Absent => None,
        }
    }

    /// Self-attention, where it is that or has that.
    pub fn as_attention(&self) -> Option<&Attention> {
        match self {
            Mixer::Attention(a) => Some(a),
            Mixer::SideBySide(both) => Some(&both.attention),
            _ => None,
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
    /// A row for each head, by the sigmoid of which its result is multiplied.
    pub gate: Option<Linear>,
    /// `hidden` x `n_heads * value_dim`.
    pub output: Linear,
    /// Rotary embedding of all of `s` and `r`.
    pub rope: Rope,
    /// Factor on the scores. Finite and positive.
    pub scale: f32,
    /// Factor on the queries that grows with their position.
    pub temperature: Option<Temperature>,
}

impl LatentAttention {
    /// The matrices that are products of whole rows.
    pub fn projections(&self) -> Vec<&Linear> {
        let mut all = vec![&self.q, &self.kv, &self.output];
        all.extend(&self.q_a);
        all.extend(&self.gate);
        all
    }

    /// Elements of `s` and of `r`.
    pub fn rotated(&self) -> usize {
        2 * self.rope.inv_freq.len()
    }
}

/// A causal convolution of each channel by itself. With `w` the width and `x[t]` a channel's value
/// at position `t` (0 before the first one), it gives at position `p`
/// `bias + weight[0] * x[p - w + 1] + ... + weight[w - 1] * x[p]`.
#[derive(Clone, Debug)]
pub struct Conv {
    /// `[channels][width]`, F32, F16 or BF16; a width of at least 2.
    pub weight: Tensor,
    /// Of each channel; F32, F16 or BF16.
    pub bias: Option<Tensor>,
}

impl Conv {
    /// Its channels.
    pub fn channels(&self) -> usize {
        self.weight.rows()
    }

    /// Positions that it sees.
    pub fn width(&self) -> usize {
        self.weight.row_len()
    }
}

/// A gated convolution: of an input `y`, `output(c(y) * conv(b(y) * x(y)))`, products of vectors
/// being by element. The state holds the last values of `b(y) * x(y)`.
#[derive(Clone, Debug)]
pub struct ShortConv {
    /// `hidden` x `hidden`, as the others. Gate before the convolution.
    pub b: Linear,
    /// Gate behind it.
    pub c: Linear,
    /// What is convolved.
    pub x: Linear,
    /// Over `hidden` channels.
    pub conv: Conv,
    /// From its gated result.
    pub output: Linear,
}

/// A gated delta net. A value head uses the query and key of [`key_head`](Self::key_head).
///
/// Of an input `y`: the concatenation of `q(y)`, `k(y)` and `v(y)`, in this order, goes through the
/// convolution and then SiLU. With `q`, `k` and `v` of a head from its result:
/// - `q` and `k` are divided by their lengths, `x / sqrt(sum(x^2) + 1e-6)`, and `q` by
///   `sqrt(key_dim)`;
/// - `g = exp(decay * softplus(a(y) + dt_bias))` and `beta = beta_scale * sigmoid(b(y))`, a number per value head;
/// - its matrix `S`, `[value_dim][key_dim]`, becomes `S = g * S`, then
///   `S = S + beta * (v - S k) k^T`;
/// - `o = S q`, and the head's result is `norm(o) * silu(z)`, `z` being its part of `z(y)`, or `norm(o) * sigmoid(z)`.
///
/// With [`DeltaSteps::Channels`], `g` has a number for each column of `S`, by which that is multiplied. With a floor, it is
/// `exp(decay_floor * sigmoid(decay * (a(y) + dt_bias)))`, and `decay` above 0.
///
/// The output is the product of the concatenated results.
#[derive(Clone, Debug)]
pub struct DeltaNet {
    /// Heads of queries and keys; divides `n_value_heads`.
    pub n_key_heads: usize,
    /// Heads of values and of the recurrence.
    pub n_value_heads: usize,
    /// Elements of a query and of a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Whether value heads take the key heads in turns; else as many in succession use the same.
    pub tiled: bool,
    /// `n_key_heads * key_dim` x `hidden`.
    pub q: Linear,
    /// As `q`.
    pub k: Linear,
    /// `n_value_heads * value_dim` x `hidden`.
    pub v: Linear,
    /// As `v`; the gate.
    pub z: Linear,
    /// Where gates come by way of a shorter vector: its product with the input.
    pub z_short: Option<Linear>,
    /// Whether gates are factors by their sigmoid and not by their SiLU.
    pub sigmoid_gate: bool,
    /// Where `b(y)` and `a(y)` come from.
    pub steps: DeltaSteps,
    /// Factor on `beta`: 1 or 2, with which eigenvalues of a step may be negative.
    pub beta_scale: f32,
    /// Over the channels of q, k and v.
    pub conv: Conv,
    /// A number below 0 per value head, `-exp(A_log)`.
    pub decay: Tensor,
    /// The least logarithm of `g`, if there is one. Finite, and below 0. Only with [`DeltaSteps::Channels`].
    pub decay_floor: Option<f32>,
    /// As many as `a(y)` has.
    pub dt_bias: Tensor,
    /// Over `value_dim` elements of each head.
    pub norm: Norm,
    /// `hidden` x `n_value_heads * value_dim`.
    pub output: Linear,
}

/// Mamba, the first (arXiv:2312.00752). Of an input `y`: `x(y)` goes through the convolution and then SiLU,
/// which makes `x`, and `short(x)` is a short form of time steps, then `B`, then `C`, each of which may have
/// a norm. With `dt = softplus(dt(short form))`, a number per channel, the state of channel `c`, a number
/// `S[n]` for each element of `B`, becomes `S[n] = exp(dt[c] * decay[c][n]) * S[n] + dt[c] * x[c] * B[n]`.
/// The output is the product of `(S . C + skip[c] * x[c]) * silu(z(y)[c])` of all channels.
///
/// States are kept in blocks of [`CHANNELS`](Mamba1::CHANNELS) channels, as the matrix
/// `[state_dim][CHANNELS]` of a head each. What the last block has beyond the channels stays zero.
#[derive(Clone, Debug)]
pub struct Mamba1 {
    /// Elements of `B` and of `C`.
    pub state_dim: usize,
    /// Channels x `hidden`.
    pub x: Linear,
    /// As `x`; the gate.
    pub z: Linear,
    /// Over the channels.
    pub conv: Conv,
    /// `rank + 2 * state_dim` x channels, `rank` being the elements of a short form.
    pub short: Linear,
    /// Of the short form.
    pub dt_norm: Option<Norm>,
    /// Of `B`.
    pub b_norm: Option<Norm>,
    /// Of `C`.
    pub c_norm: Option<Norm>,
    /// Channels x `rank`.
    pub dt: Linear,
    /// `[channels][state_dim]`, numbers below 0, `-exp(A_log)`.
    pub decay: Tensor,
    /// A factor per channel, `D`.
    pub skip: Tensor,
    /// `hidden` x channels.
    pub output: Linear,
}

impl Mamba1 {
    /// Channels whose states lie together.
    pub const CHANNELS: usize = 16;

    /// Channels of the recurrence.
    pub fn channels(&self) -> usize {
        self.x.weight.rows()
    }

    /// Elements of a time step's short form.
    pub fn rank(&self) -> usize {
        self.dt.weight.row_len()
    }

    fn state(&self) -> FixedShape {
        FixedShape {
            conv_channels: self.conv.channels(),
            conv_columns: self.conv.width() - 1,
            n_heads: self.channels().div_ceil(Mamba1::CHANNELS),
            rows: self.state_dim,
            columns: Mamba1::CHANNELS,
        }
    }
}

/// Mamba 2. Head `h` uses `B` and `C` of group `h / (n_heads / n_groups)`.
///
/// Of an input `y`: the concatenation of `x(y)`, `b(y)` and `c(y)`, in this order, goes through the
/// convolution and then SiLU. With `x` of a head, `B` and `C` of its group from its result:
/// - `dt = clamp(softplus(dt(y) + dt_bias), dt_min, dt_max)`, a number per head;
/// - its matrix `S`, `[head_dim][state_dim]`, becomes `S = exp(dt * decay) * S + (dt * x) B^T`;
/// - the head's result is `S C + skip * x`.
///
/// The concatenated results `o` and `z = z(y)` make what the output is the product of:
/// `o * silu(z)` without a norm; `norm(o * silu(z))`, or if `norm_before_gate`
/// `norm(o) * silu(z)`, with one. The norm's mean is over each of `norm_groups` parts of equal
/// length, its weight over the whole.
#[derive(Clone, Debug)]
pub struct Mamba2 {
    /// Heads of the recurrence.
    pub n_heads: usize,
    /// Elements of a head's input.
    pub head_dim: usize,
    /// Groups of heads with the same `B` and `C`; divides `n_heads`.
    pub n_groups: usize,
    /// Elements of `B` and of `C`.
    pub state_dim: usize,
    /// `n_heads * head_dim` x `hidden`; the gate.
    pub z: Linear,
    /// As `z`.
    pub x: Linear,
    /// `n_groups * state_dim` x `hidden`.
    pub b: Linear,
    /// As `b`.
    pub c: Linear,
    /// `n_heads` x `hidden`.
    pub dt: Linear,
    /// Over the channels of x, B and C.
    pub conv: Conv,
    /// A number below 0 per head, `-exp(A_log)`.
    pub decay: Tensor,
    /// Of each head.
    pub dt_bias: Tensor,
    /// Least `dt`.
    pub dt_min: f32,
    /// Largest `dt`; may be infinite.
    pub dt_max: f32,
    /// A factor per head, `D`.
    pub skip: Tensor,
    /// Over `n_heads * head_dim` elements.
    pub norm: Option<Norm>,
    /// Parts that the norm's mean is over; divides `n_heads * head_dim`.
    pub norm_groups: usize,
    /// Whether the gate comes behind the norm.
    pub norm_before_gate: bool,
    /// `hidden` x `n_heads * head_dim`.
    pub output: Linear,
}

impl Attention {
    /// What it keeps in a session of a model that was trained for `context_length` positions.
    fn state(&self, context_length: usize) -> KvShape {
        KvShape {
            // Of its own.
            n_kv_heads: match self.shares {
                None => self.n_kv_heads,
                Some(_) => 0,
            },
            head_dim: self.head_dim,
            window: self.window.filter(|w| *w < context_length),
        }
    }

    fn linears(&self) -> Vec<&Linear> {
        let mut all = match self.shares {
            Some(_) => vec![&self.q, &self.output],
            None => vec![&self.q, &self.k, &self.v, &self.output],
        };
        all.extend(&self.gate);
        all
    }
}

impl Mamba2 {
    fn state(&self) -> FixedShape {
        FixedShape {
            conv_channels: self.conv.channels(),
            conv_columns: self.conv.width() - 1,
            n_heads: self.n_heads,
            rows: self.head_dim,
            columns: self.state_dim,
        }
    }

    fn linears(&self) -> Vec<&Linear> {
        vec![&self.z, &self.x, &self.b, &self.c, &self.dt, &self.output]
    }
}

impl DeltaNet {
    /// The head of the query and key of value head `head`.
    pub fn key_head(&self, head: usize) -> usize {
        match self.tiled {
            true => head % self.n_key_heads,
            false => head / (self.n_value_heads / self.n_key_heads),
        }
    }
}

/// Matrices of `b(y)` and `a(y)`, mostly two numbers per value head.
#[derive(Clone, Debug)]
pub enum DeltaSteps {
    /// A matrix for each, of `n_value_heads` x `hidden`.
    Apart {
        /// Of `b(y)`.
        b: Linear,
        /// Of `a(y)`.
        a: Linear,
    },
    /// One of `2 * n_value_heads` x `hidden`: for each key head the `b(y)` of its value heads, then their
    /// `a(y)`. Value heads are not tiled then.
    Together(Linear),
    /// A number `b(y)` of each value head, and `a(y)` of each of its `key_dim` columns, perhaps by way of a shorter vector.
    Channels {
        /// Of `b(y)`.
        b: Linear,
        /// Of the shorter vector.
        short: Option<Linear>,
        /// From that, or the input, to `a(y)`, `n_value_heads * key_dim` rows.
        a: Linear,
    },
}

impl DeltaSteps {
    /// The matrices.
    pub fn linears(&self) -> impl Iterator<Item = &Linear> {
        let (first, others) = match self {
            DeltaSteps::Apart { b, a } => (b, [Some(a), None]),
            DeltaSteps::Together(both) => (both, [None; 2]),
            DeltaSteps::Channels { b, short, a } => (b, [short.as_ref(), Some(a)]),
        };
        std::iter::once(first).chain(others.into_iter().flatten())
    }
}

impl From<Attention> for Mixer {
    fn from(attention: Attention) -> Mixer {
        Mixer::Attention(Box::new(attention))
    }
}

impl From<DeltaNet> for Mixer {
    fn from(net: DeltaNet) -> Mixer {
        Mixer::DeltaNet(Box::new(net))
    }
}

impl From<Mamba1> for Mixer {
    fn from(mamba: Mamba1) -> Mixer {
        Mixer::Mamba1(Box::new(mamba))
    }
}

impl From<Mamba2> for Mixer {
    fn from(mamba: Mamba2) -> Mixer {
        Mixer::Mamba2(Box::new(mamba))
    }
}

impl From<ShortConv> for Mixer {
    fn from(conv: ShortConv) -> Mixer {
        Mixer::ShortConv(Box::new(conv))
    }
}

/// Grouped-query self-attention. Query head `h` reads KV head `h / (n_heads / n_kv_heads)`.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Elements per head of q and k. `n_heads * head_dim` need not be `hidden`.
    pub head_dim: usize,
    /// Elements per head of v, at most `head_dim`; as many if `gated`.
    pub value_dim: usize,
    /// `n_heads * head_dim` x `hidden`; twice as many rows if `gated`.
    pub q: Linear,
    /// `n_kv_heads * head_dim` x `hidden`.
    pub k: Linear,
    /// `n_kv_heads * value_dim` x `hidden`.
    pub v: Linear,
    /// Whether `q` has, of each head, the rows of the query and then as many of a gate, by whose sigmoid
    /// the head's result is multiplied.
    pub gated: bool,
    /// The gates where they are apart, `n_heads * value_dim` rows, or a row for each head. Not if `gated`.
    pub gate: Option<Linear>,
    /// Whether the gates apart are factors by their softplus and not by their sigmoid.
    pub softplus_gate: bool,
    /// `hidden` x `n_heads * value_dim`.
    pub output: Linear,
    /// Norm of the heads' results, all together, before `output`.
    pub output_norm: Option<Norm>,
    /// Norm of the queries before rope: over each head if its weight has `head_dim` elements, over
    /// all heads together if it has `n_heads * head_dim` (but see `own_head_norms`).
    pub q_norm: Option<Norm>,
    /// Norm of the keys before rope, likewise.
    pub k_norm: Option<Norm>,
    /// Whether these norms are over each head with weights of its own, which are those of all heads, one behind the other.
    pub own_head_norms: bool,
    /// Whether these norms, which are then over each head, come after rope instead.
    pub norm_after_rope: bool,
    /// Root-mean-square norm of each head's values, without weights: its epsilon.
    pub value_norm: Option<f32>,
    /// Factor on the values. Finite and positive.
    pub value_scale: f32,
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
    /// Of those, it sees the ones in its own chunk: positions from the last multiple of this one on. At least 1.
    pub chunk: Option<usize>,
    /// Queries, keys and values beyond this limit, or below its negative, become it: before norms. Finite and positive.
    pub clip: Option<f32>,
    /// Soft cap `c` of the scaled scores: `c * tanh(score / c)`. Finite and positive.
    pub score_cap: Option<f32>,
    /// A logit per query head that joins its softmax and takes its share without a value.
    pub sinks: Option<Tensor>,
    /// Whether a position sees none behind it. If not, it sees all, or those at most `window - 1` away.
    pub causal: bool,
    /// A slope per query head: the score of two positions is less by their distance times that (ALiBi,
    /// arXiv:2108.12409).
    pub slopes: Option<Arc<[f32]>>,
    /// What the scores get by the distance of the two positions. Not with `slopes`.
    pub distances: Option<Distances>,
}

/// What is added to scaled scores by how far a key is from the query (relative position bias of T5, arXiv:1910.10683).
#[derive(Clone, Debug)]
pub struct Distances {
    /// A number per head in each row; a row for each bucket. Not quantized.
    pub weight: Tensor,
    /// The heads in the rows that this layer has.
    pub heads: Range<usize>,
    /// The bucket of each distance: of keys that many positions before the query to as many behind it. Those that are farther away
    /// are as those at the ends.
    pub buckets: Arc<[u16]>,
}

impl Distances {
    /// The largest distance that has a bucket of its own.
    pub fn reach(&self) -> usize {
        self.buckets.len() / 2
    }
}

/// A factor on the queries of position `p`: `1 + scale * ln(1 + floor((p + offset) / length))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// How fast it grows. Finite and positive.
    pub scale: f32,
    /// Positions of a step, at least 1. It is 1 in the first one.
    pub length: f32,
    /// Added to the position.
    pub offset: usize,
}

impl Temperature {
    /// The factor on the queries of a position.
    pub fn factor(&self, position: usize) -> f32 {
        let steps = ((position + self.offset) as f32 / self.length).floor();
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
    /// Both side by side.
    Both(Box<DenseAndExperts>),
    /// Experts of another width than the network's, beside one for all tokens.
    Latent(Box<LatentExperts>),
    /// The host evaluates it, as the layer of this number of another network ([`Network::experts_apart`]): from the residual
    /// stream after the mixer to the one after the block.
    OnHost(usize),
    /// Nothing: the block ends with its mixer. It is sequential, without a norm of this part.
    None,
}

/// A feed-forward for all tokens beside a mixture of experts. With `x` the residual stream, the block's
/// `feed_forward(norm(x))` is `mlp_post_norm(mlp(norm(x))) + experts_post_norm(experts(experts_norm(x)))`, and
/// the router reads `router_norm(x)`. The block is sequential.
#[derive(Clone, Debug)]
pub struct DenseAndExperts {
    /// For all tokens.
    pub mlp: Mlp,
    /// Of its output.
    pub mlp_post_norm: Norm,
    /// Of what the router reads.
    pub router_norm: Norm,
    /// Of what the experts read.
    pub experts_norm: Norm,
    /// Without a shared expert.
    pub experts: Experts,
    /// Of their output.
    pub experts_post_norm: Norm,
}

/// A mixture of experts that work in a space of its own, beside a feed-forward for all tokens: `mlp(x) +
/// leave(experts(enter(x)))`, where the router reads `x`. The block is sequential, without a norm behind this part.
#[derive(Clone, Debug)]
pub struct LatentExperts {
    /// `latent` x `hidden`, without a bias; `latent` is at most `hidden`.
    pub enter: Linear,
    /// Without a shared expert. Inputs and outputs have `latent` elements, but those of the router `hidden`.
    pub experts: Experts,
    /// `hidden` x `latent`.
    pub leave: Linear,
    /// For all tokens.
    pub mlp: Mlp,
}

/// `down(norm(activation(gate(x)) * up(x)))`, or `down(norm(activation(up(x))))` without a gate.
#[derive(Clone, Debug)]
pub struct Mlp {
    /// `n_ff` x `hidden`.
    pub gate: Option<Linear>,
    /// `n_ff` x `hidden`.
    pub up: Linear,
    /// `hidden` x `n_ff`.
    pub down: Linear,
    /// Of what `down` reads. Only of a feed-forward part that is a block's alone.
    pub inner_norm: Option<Norm>,
    /// Applied to the gate, or to `up` where there is none.
    pub activation: Activation,
}

/// A mixture of experts: each token goes through `n_used` of `n_experts` feed-forwards,
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
    /// One more factor on the weight of each expert; `n_experts` elements.
    pub expert_scales: Option<Tensor>,
    /// Whether weights are factors on what experts read, and not on what they make. Their first products have no biases then.
    pub weighs_inputs: bool,
    /// Inner width of an expert.
    pub n_ff: usize,
    /// `[n_experts][n_ff][hidden]`: the experts' rows one below the other (a matrix of
    /// `n_experts * n_ff` rows); the bias, if there is one, likewise.
    pub up: Linear,
    /// As `up`; without one, it is `up` that is activated.
    pub gate: Option<Linear>,
    /// Whether `up` and `gate` are both the whole of one matrix, `[n_experts][2 * n_ff][hidden]`, with the
    /// gate of each expert above its up. There are no biases then.
    pub fused: bool,
    /// `[n_experts][hidden][n_ff]`, likewise.
    pub down: Linear,
    /// Applied to the gate, or to `up` where there is none.
    pub activation: Activation,
    /// An expert that every token goes through as well.
    pub shared: Option<SharedExpert>,
    /// Added to the sum, whatever the weights. `hidden` elements.
    pub sum_bias: Option<Tensor>,
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
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scoring {
    /// Softmax over all experts, then the best are chosen.
    Softmax,
    /// Sigmoid of each score, then the best are chosen.
    Sigmoid,
    /// The best are chosen by score; softmax over those.
    SoftmaxOfChosen,
    /// The best are chosen by score, `n_used` being 2. The weight of each is its softmax over those that are not chosen yet and whose
    /// score `s` is not much less than the largest of them, `m`: `(m - s) / max(|s|, m) <= 2 * jitter`. Without a selection bias,
    /// groups, and normalization.
    SparseMixer {
        /// Finite and positive.
        jitter: f32,
    },
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
    /// With a gate g and an up value u: `min(g / (1 + exp(-g)), limit) * clamp(u, -limit, limit)`.
    LimitedSilu {
        /// Of both factors. Finite and positive.
        limit: f32,
    },
    /// `max(x, 0)`.
    Relu,
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
            FeedForward::Experts(e) => all.extend(e.linears()),
            FeedForward::Both(both) => {
                all.extend(both.mlp.linears());
                all.extend(both.experts.linears());
            }
            FeedForward::Latent(latent) => {
                all.extend([&latent.enter, &latent.leave]);
                all.extend(latent.mlp.linears());
                all.extend(latent.experts.linears());
            }
            FeedForward::OnHost(_) | FeedForward::None => {}
        }
        if let Some(input) = &self.per_layer {
            all.extend([&input.gate, &input.projection]);
        }
        if let Some(streams) = &self.streams {
            all.extend([&streams.left, &streams.right]);
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
            &self.mixer_sum_norm,
            &self.feed_forward_sum_norm,
        ];
        let input = self.per_layer.iter().filter_map(|i| i.post_norm.as_ref());
        let own = own.into_iter().flatten();
        let streams = self.streams.iter();
        let streams = streams.flat_map(|s| [&s.router_norm, &s.thin_norm]);
        let (inner, beside) = match &self.feed_forward {
            FeedForward::Dense(mlp) => (mlp.inner_norm.as_ref(), None),
            FeedForward::Both(both) => (None, Some(both.norms())),
            _ => (None, None),
        };
        let beside = beside.into_iter().flatten();
        own.chain(self.mixer.norms())
            .chain(input)
            .chain(streams)
            .chain(inner)
            .chain(beside)
    }

    /// Its small tensors that are neither norms nor biases of matrices.
    pub fn vectors(&self) -> impl Iterator<Item = &Tensor> {
        let streams = self.streams.iter().flat_map(|s| s.vectors());
        let experts = self.feed_forward.experts();
        let experts = experts.into_iter().flat_map(Experts::vectors);
        self.mixer.vectors().chain(streams).chain(experts)
    }
}

impl FeedForward {
    /// The mixture of experts that it has.
    pub fn experts(&self) -> Option<&Experts> {
        match self {
            FeedForward::Experts(experts) => Some(experts),
            FeedForward::Both(both) => Some(&both.experts),
            FeedForward::Latent(latent) => Some(&latent.experts),
            FeedForward::Dense(_) | FeedForward::OnHost(_) | FeedForward::None => None,
        }
    }
}

impl Experts {
    /// Its matrices.
    pub fn linears(&self) -> impl Iterator<Item = &Linear> {
        let gate = self.gate.iter().filter(|_| !self.fused);
        let shared = self.shared.iter();
        let shared = shared.flat_map(|s| s.mlp.linears().chain(&s.gate));
        let all = [&self.router, &self.up, &self.down].into_iter();
        all.chain(gate).chain(shared)
    }

    /// Its small tensors that are no biases of matrices.
    fn vectors(&self) -> impl Iterator<Item = &Tensor> {
        let choice = self.selection_bias.iter().chain(&self.expert_scales);
        choice.chain(&self.sum_bias)
    }
}

impl DenseAndExperts {
    fn norms(&self) -> [&Norm; 4] {
        [
            &self.mlp_post_norm,
            &self.router_norm,
            &self.experts_norm,
            &self.experts_post_norm,
        ]
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
        let ends = self.ends();
        let norms = blocks().flat_map(Block::norms);
        let norms = norms.chain(ends.then_some(&self.final_norm));
        let linears = blocks().flat_map(Block::linears);
        let linears = linears.chain(ends.then_some(&self.head));
        let norms = norms.flat_map(|norm| [Some(&norm.weight), norm.bias.as_ref()]);
        let linears = linears.flat_map(|linear| [Some(&linear.weight), linear.bias.as_ref()]);
        let others = blocks().flat_map(Block::vectors).map(Some);
        let embeds = self.embeds();
        let top = [Some(&self.embedding), self.positions.as_ref()];
        let top = top.map(|tensor| tensor.filter(|_| embeds));
        let embedding_norm = self.embedding_norm.iter().filter(move |_| embeds);
        let embedding_norm =
            embedding_norm.flat_map(|norm| [Some(&norm.weight), norm.bias.as_ref()]);
        let top = top.into_iter().chain(embedding_norm);
        let entry = self.entry.iter().flat_map(|entry| {
            let [token_norm, state_norm] = entry.norms();
            [
                Some(&token_norm.weight),
                token_norm.bias.as_ref(),
                Some(&state_norm.weight),
                state_norm.bias.as_ref(),
                Some(&entry.projection.weight),
                entry.projection.bias.as_ref(),
            ]
        });
        let inputs = self.per_layer.iter().flat_map(|inputs| {
            [
                Some(&inputs.embedding),
                Some(&inputs.projection.weight),
                inputs.projection.bias.as_ref(),
                Some(&inputs.norm.weight),
                inputs.norm.bias.as_ref(),
            ]
        });
        let of_streams = self
            .streams
            .iter()
            .flat_map(|s| s.begin.iter().chain(&s.end));
        let of_streams = of_streams.map(|linear| Some(&linear.weight));
        let top = top.chain(inputs).chain(of_streams).chain(entry);
        let all = norms.chain(linears).chain(others).chain(top).flatten();
        let encoder = self.encoder.iter().flat_map(|encoder| encoder.tensors());
        all.chain(encoder).chain(self.readout.tensors())
    }
}
