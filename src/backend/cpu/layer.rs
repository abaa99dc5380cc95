//! A block of a network as the CPU runs it: matrices in the bytes of the file, small vectors as
//! `f32`.

use super::elementwise::{add_bias, gelu_mul, gelu_tanh_mul, layer_norm, rms_norm};
use super::elementwise::{silu_alone, silu_mul, swiglu_clamped};
use super::experts::ExpertLayer;
use super::matmul::{Encodings, Isa, Matrix};
use super::rows::Scores;
use crate::error::{Result, fail};
use crate::format::Tensor;
use crate::model::{
    Activation, Block, FeedForward, Linear, Mixer, MixerState, Mlp, Norm, NormKind, Rope,
    RopePairing,
};
use std::ops::Range;

/// The elements of a small tensor.
pub(super) fn floats(tensor: &Tensor, what: &str) -> Result<Vec<f32>> {
    match tensor.to_f32()? {
        Some(values) => Ok(values),
        None => fail!(
            Unsupported,
            "tensor {}: {what} of type {}",
            tensor.name,
            tensor.ty.name()
        ),
    }
}

fn find_floats(tensor: &Option<Tensor>, what: &str) -> Result<Option<Vec<f32>>> {
    tensor.as_ref().map(|t| floats(t, what)).transpose()
}

/// A norm.
pub(super) struct NormWeights {
    kind: NormKind,
    pub weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    eps: f32,
}

impl NormWeights {
    pub fn new(norm: &Norm) -> Result<NormWeights> {
        Ok(NormWeights {
            kind: norm.kind,
            weight: floats(&norm.weight, "norm weights")?,
            bias: find_floats(&norm.bias, "a norm's bias")?,
            eps: norm.eps,
        })
    }

    fn find(norm: &Option<Norm>) -> Result<Option<NormWeights>> {
        norm.as_ref().map(NormWeights::new).transpose()
    }

    /// Elements that it takes.
    pub fn len(&self) -> usize {
        self.weight.len()
    }

    /// Floats of weight and bias.
    pub fn floats(&self) -> usize {
        self.len() + self.bias.as_ref().map_or(0, Vec::len)
    }

    /// The norm of a row; `out` begins with as many elements.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub unsafe fn apply<'o>(&self, isa: Isa, x: &[f32], out: &'o mut [f32]) -> &'o [f32] {
        let out = &mut out[..self.len()];
        // SAFETY: the caller's promise.
        unsafe {
            match self.kind {
                NormKind::Rms => rms_norm(isa, x, &self.weight, self.eps, out),
                NormKind::Layer => layer_norm(isa, x, &self.weight, self.eps, out),
            }
        }
        add_bias(out, self.bias.as_deref());
        out
    }

    /// The same in place, with `scratch` as long as the row.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub unsafe fn apply_in_place(&self, isa: Isa, x: &mut [f32], scratch: &mut [f32]) {
        // SAFETY: the caller's promise.
        x.copy_from_slice(unsafe { self.apply(isa, x, scratch) });
    }
}

/// A matrix and its bias.
pub(super) struct Product {
    pub tensor: Tensor,
    pub matrix: Matrix,
    pub bias: Option<Vec<f32>>,
}

pub(super) fn product(linear: &Linear, isa: Isa) -> Result<Product> {
    Ok(Product {
        tensor: linear.weight.clone(),
        matrix: Matrix::new(linear.weight.clone(), isa),
        bias: find_floats(&linear.bias, "a bias")?,
    })
}

/// What the products read.
pub(super) fn union<'p>(products: impl IntoIterator<Item = &'p Product>) -> Encodings {
    let none = Encodings::default();
    let products = products.into_iter();
    products.fold(none, |e, p| e.union(p.matrix.encodings()))
}

/// A norm of queries or keys.
pub(super) enum HeadNorm {
    /// Over each head.
    Each(NormWeights),
    /// Over all heads together.
    All(NormWeights),
}

impl HeadNorm {
    fn find(norm: &Option<Norm>, head_dim: usize) -> Result<Option<HeadNorm>> {
        Ok(
            NormWeights::find(norm)?.map(|norm| match norm.len() == head_dim {
                true => HeadNorm::Each(norm),
                false => HeadNorm::All(norm),
            }),
        )
    }

    fn weights(&self) -> &NormWeights {
        match self {
            HeadNorm::Each(norm) | HeadNorm::All(norm) => norm,
        }
    }
}

/// A layer's rotary embedding: where its table is in a position's tables.
pub(super) struct LayerRope {
    pub pairing: RopePairing,
    pub at: Range<usize>,
}

/// A block of the network.
pub(super) struct Layer {
    /// Its place in the network, and in a cache.
    pub index: usize,
    pub mixer_norm: Option<NormWeights>,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub q: Product,
    pub k: Product,
    pub v: Product,
    pub output: Product,
    pub q_norm: Option<HeadNorm>,
    pub k_norm: Option<HeadNorm>,
    pub rope: Option<LayerRope>,
    pub scale: f32,
    /// Shorter than the model's context, if there is one.
    pub window: Option<usize>,
    score_cap: Option<f32>,
    sinks: Option<Vec<f32>>,
    pub mixer_post_norm: Option<NormWeights>,
    pub feed_forward_norm: Option<NormWeights>,
    pub feed_forward: FeedForwardLayer,
    pub feed_forward_post_norm: Option<NormWeights>,
    pub parallel: bool,
    pub residual_scale: f32,
}

impl Layer {
    /// Takes a block over; reads only the small tensors. New ropes go to `ropes`.
    pub fn new(
        (index, block): (usize, &Block),
        context_length: usize,
        ropes: &mut Vec<Rope>,
        isa: Isa,
    ) -> Result<Layer> {
        let Mixer::Attention(a) = &block.mixer;
        let MixerState::Kv(kv) = block.mixer.state(context_length);
        if block.parallel && matches!(block.feed_forward, FeedForward::Experts(_)) {
            fail!(Unsupported, "layer {index}: experts beside attention");
        }
        Ok(Layer {
            index,
            mixer_norm: NormWeights::find(&block.mixer_norm)?,
            n_heads: a.n_heads,
            n_kv_heads: a.n_kv_heads,
            head_dim: a.head_dim,
            q: product(&a.q, isa)?,
            k: product(&a.k, isa)?,
            v: product(&a.v, isa)?,
            output: product(&a.output, isa)?,
            q_norm: HeadNorm::find(&a.q_norm, a.head_dim)?,
            k_norm: HeadNorm::find(&a.k_norm, a.head_dim)?,
            rope: a.rope.as_ref().map(|rope| layer_rope(rope, ropes)),
            scale: a.scale,
            window: kv.window,
            score_cap: a.score_cap,
            sinks: find_floats(&a.sinks, "attention sinks")?,
            mixer_post_norm: NormWeights::find(&block.mixer_post_norm)?,
            feed_forward_norm: NormWeights::find(&block.feed_forward_norm)?,
            feed_forward: match &block.feed_forward {
                FeedForward::Dense(mlp) => {
                    FeedForwardLayer::Dense(Box::new(DenseLayer::new(mlp, isa)?))
                }
                FeedForward::Experts(experts) => {
                    FeedForwardLayer::Experts(Box::new(ExpertLayer::new(experts, isa)?))
                }
            },
            feed_forward_post_norm: NormWeights::find(&block.feed_forward_post_norm)?,
            parallel: block.parallel,
            residual_scale: block.residual_scale,
        })
    }

    /// Query heads per KV head.
    pub fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    /// What q, k and v read.
    pub fn qkv_encodings(&self) -> Encodings {
        union([&self.q, &self.k, &self.v])
    }

    /// What the feed-forward's first products read.
    pub fn feed_forward_encodings(&self) -> Encodings {
        match &self.feed_forward {
            FeedForwardLayer::Dense(dense) => union(dense.inner()),
            FeedForwardLayer::Experts(experts) => experts.input_encodings,
        }
    }

    /// What the scores of a KV head's group are subject to.
    pub fn scores(&self, kv_head: usize) -> Scores<'_> {
        let group = kv_head * self.group()..(kv_head + 1) * self.group();
        Scores {
            window: self.window.unwrap_or(usize::MAX),
            cap: self.score_cap,
            sinks: self.sinks.as_ref().map(|sinks| &sinks[group]),
        }
    }

    /// Whether queries or keys are normed over all heads together.
    pub fn norms_all_heads(&self) -> bool {
        let norms = [&self.q_norm, &self.k_norm];
        norms.iter().any(|n| matches!(n, Some(HeadNorm::All(_))))
    }

    /// Floats of its small vectors.
    pub fn floats(&self) -> usize {
        let norms = [
            &self.mixer_norm,
            &self.mixer_post_norm,
            &self.feed_forward_norm,
            &self.feed_forward_post_norm,
        ];
        let norms = norms.into_iter().flatten();
        let head_norms = [&self.q_norm, &self.k_norm].into_iter().flatten();
        let norms = norms.chain(head_norms.map(HeadNorm::weights));
        let mut floats = norms.map(NormWeights::floats).sum::<usize>();
        floats += self.sinks.as_ref().map_or(0, Vec::len);
        let mut products = vec![&self.q, &self.k, &self.v, &self.output];
        match &self.feed_forward {
            FeedForwardLayer::Dense(dense) => {
                products.extend(dense.inner());
                products.push(&dense.down);
            }
            FeedForwardLayer::Experts(experts) => floats += experts.vector_len(),
        }
        let biases = products.iter().filter_map(|p| p.bias.as_ref());
        floats + biases.map(Vec::len).sum::<usize>()
    }
}

/// Floats of a rope's table for a position.
pub(super) fn table_len(rope: &Rope) -> usize {
    2 * rope.inv_freq.len()
}

fn layer_rope(rope: &Rope, ropes: &mut Vec<Rope>) -> LayerRope {
    let index = ropes.iter().position(|r| r == rope).unwrap_or_else(|| {
        ropes.push(rope.clone());
        ropes.len() - 1
    });
    let start = ropes[..index].iter().map(table_len).sum::<usize>();
    LayerRope {
        pairing: rope.pairing,
        at: start..start + table_len(rope),
    }
}

/// The part after attention.
pub(super) enum FeedForwardLayer {
    Dense(Box<DenseLayer>),
    Experts(Box<ExpertLayer>),
}

/// One feed-forward for all tokens.
pub(super) struct DenseLayer {
    pub gate: Option<Product>,
    pub up: Product,
    pub down: Product,
    activation: Activation,
}

impl DenseLayer {
    fn new(mlp: &Mlp, isa: Isa) -> Result<DenseLayer> {
        if mlp.gate.is_none() && matches!(mlp.activation, Activation::ClampedSwiglu { .. }) {
            fail!(Unsupported, "{:?} without a gate", mlp.activation);
        }
        let gate = mlp.gate.as_ref().map(|gate| product(gate, isa));
        Ok(DenseLayer {
            gate: gate.transpose()?,
            up: product(&mlp.up, isa)?,
            down: product(&mlp.down, isa)?,
            activation: mlp.activation,
        })
    }

    /// The products of the normed input: gate and up, or up alone.
    pub fn inner(&self) -> impl Iterator<Item = &Product> {
        self.gate.iter().chain([&self.up])
    }

    /// The first of them, whose result the activation replaces.
    pub fn first(&self) -> &Product {
        self.gate.as_ref().unwrap_or(&self.up)
    }

    /// Activates rows `rows` of the first product's result, with those of `up` if there are two:
    /// `activation(first + bias) * (up + bias)`.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub unsafe fn activate(
        &self,
        isa: Isa,
        rows: Range<usize>,
        first: &mut [f32],
        up: Option<&mut [f32]>,
    ) {
        let bias = |p: &Product, x: &mut [f32]| {
            add_bias(x, p.bias.as_ref().map(|b| &b[rows.clone()]));
        };
        bias(self.first(), first);
        let up = up.map(|up| {
            bias(&self.up, up);
            &*up
        });
        // SAFETY: the caller's promise.
        unsafe {
            match (self.activation, up) {
                (Activation::Silu, Some(up)) => silu_mul(isa, first, up),
                (Activation::Silu, None) => silu_alone(isa, first),
                (Activation::GeluTanh, up) => gelu_tanh_mul(isa, first, up),
                (Activation::Gelu, up) => gelu_mul(isa, first, up),
                (Activation::ClampedSwiglu { alpha, limit }, Some(up)) => {
                    swiglu_clamped(isa, first, up, alpha, limit)
                }
                (Activation::ClampedSwiglu { .. }, None) => unreachable!("refused at load"),
            }
        }
    }
}
