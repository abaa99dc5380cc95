//! A block of a network as the CPU runs it: matrices in the bytes of the file, small vectors as
//! `f32`.

use super::attention_layer::AttentionLayer;
use super::both::BothLayer;
use super::delta_net::DeltaNetLayer;
use super::elementwise::{
    add_bias, gelu_mul, gelu_tanh_mul, layer_norm, relu_mul, relu_squared_mul,
};
use super::elementwise::{rms_norm, silu_alone, silu_limited, silu_mul, swiglu_clamped, xielu};
use super::experts::ExpertLayer;
use super::latent_experts::LatentExpertLayer;
use super::latent_layer::LatentLayer;
use super::mamba1::Mamba1Layer;
use super::mamba2::Mamba2Layer;
use super::matmul::{Encodings, Isa, Matrix};
use super::short_conv::ShortConvLayer;
use super::streams::StreamLayer;
use crate::error::{Result, fail, try_vec};
use crate::format::Tensor;
use crate::model::{
    Activation, Block, FeedForward, LayerInput, Linear, Mixer, Mlp, Norm, NormKind, PerLayerInputs,
    Rope,
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

pub(super) fn find_floats(tensor: &Option<Tensor>, what: &str) -> Result<Option<Vec<f32>>> {
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

    /// A root-mean-square norm without weights.
    pub fn plain(len: usize, eps: f32) -> Result<NormWeights> {
        Ok(NormWeights {
            kind: NormKind::Rms,
            weight: try_vec(len, 1.0, "norm weights")?,
            bias: None,
            eps,
        })
    }

    pub fn find(norm: &Option<Norm>) -> Result<Option<NormWeights>> {
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
        // SAFETY: by contract, the processor has `isa`.
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
        // SAFETY: by contract, the processor has `isa`.
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

impl Product {
    /// Bytes of its matrix.
    pub fn bytes(&self) -> usize {
        self.tensor.bytes().len()
    }

    /// Elements of its bias.
    pub fn bias_len(&self) -> usize {
        self.bias.as_ref().map_or(0, Vec::len)
    }
}

/// What the products read.
pub(super) fn union<'p>(products: impl IntoIterator<Item = &'p Product>) -> Encodings {
    let none = Encodings::default();
    let products = products.into_iter();
    products.fold(none, |e, p| e.union(p.matrix.encodings()))
}

/// A block of the network.
pub(super) struct Layer {
    pub mixer_norm: Option<NormWeights>,
    pub mixer: MixerLayer,
    pub mixer_post_norm: Option<NormWeights>,
    pub feed_forward_norm: Option<NormWeights>,
    pub feed_forward: FeedForwardLayer,
    pub feed_forward_post_norm: Option<NormWeights>,
    pub parallel: bool,
    pub residual_scale: f32,
    pub input: Option<Box<InputLayer>>,
    pub streams: Option<Box<StreamLayer>>,
    pub output_scale: f32,
    pub mixer_sum_norm: Option<NormWeights>,
    pub feed_forward_sum_norm: Option<NormWeights>,
}

/// What a block makes of an input of its own.
pub(super) struct InputLayer {
    /// The block's place.
    pub index: usize,
    /// Followed by GELU.
    pub gate: Product,
    pub projection: Product,
    pub post_norm: Option<NormWeights>,
}

impl InputLayer {
    fn new(index: usize, input: &LayerInput, isa: Isa) -> Result<InputLayer> {
        if input.activation != Activation::GeluTanh {
            fail!(
                Unsupported,
                "layer {index}: an input with the activation {:?}",
                input.activation
            );
        }
        Ok(InputLayer {
            index,
            gate: product(&input.gate, isa)?,
            projection: product(&input.projection, isa)?,
            post_norm: NormWeights::find(&input.post_norm)?,
        })
    }

    fn floats(&self) -> usize {
        let products = self.gate.bias_len() + self.projection.bias_len();
        products + self.post_norm.as_ref().map_or(0, NormWeights::floats)
    }
}

/// Inputs of all blocks beside the residual stream.
pub(super) struct InputWeights {
    pub embedding: Matrix,
    pub embedding_scale: f32,
    pub projection: Product,
    pub projection_scale: f32,
    pub norm: NormWeights,
    pub scale: f32,
}

impl InputWeights {
    pub fn new(inputs: &PerLayerInputs, isa: Isa) -> Result<InputWeights> {
        Ok(InputWeights {
            embedding: Matrix::new(inputs.embedding.clone(), isa),
            embedding_scale: inputs.embedding_scale,
            projection: product(&inputs.projection, isa)?,
            projection_scale: inputs.projection_scale,
            norm: NormWeights::new(&inputs.norm)?,
            scale: inputs.scale,
        })
    }
}

/// The part that lets positions see each other.
pub(super) enum MixerLayer {
    Attention(Box<AttentionLayer>),
    Latent(Box<LatentLayer>),
    ShortConv(Box<ShortConvLayer>),
    DeltaNet(Box<DeltaNetLayer>),
    Mamba1(Box<Mamba1Layer>),
    Mamba2(Box<Mamba2Layer>),
    /// Both read what the residual stream is before the layer.
    SideBySide(Box<(AttentionLayer, Mamba2Layer)>),
    /// Another device has it, or the layer has none.
    Absent,
}

impl MixerLayer {
    // Its own frame, as that of `FeedForwardLayer::new`: a host's thread may have a small stack.
    #[inline(never)]
    fn new(
        (index, block): (usize, &Block),
        context_length: usize,
        ropes: &mut Vec<Rope>,
        isa: Isa,
    ) -> Result<MixerLayer> {
        let window = block.mixer.state(context_length).kv().window;
        Ok(match &block.mixer {
            Mixer::Attention(attention) => MixerLayer::Attention(boxed(|| {
                AttentionLayer::new((index, attention), window, ropes, isa)
            })?),
            Mixer::Latent(latent) => {
                MixerLayer::Latent(boxed(|| LatentLayer::new((index, latent), ropes, isa))?)
            }
            Mixer::ShortConv(conv) => {
                MixerLayer::ShortConv(boxed(|| ShortConvLayer::new((index, conv), isa))?)
            }
            Mixer::DeltaNet(net) => {
                MixerLayer::DeltaNet(boxed(|| DeltaNetLayer::new((index, net), isa))?)
            }
            Mixer::Mamba1(mamba) => {
                MixerLayer::Mamba1(boxed(|| Mamba1Layer::new((index, mamba), isa))?)
            }
            Mixer::Mamba2(mamba) => {
                MixerLayer::Mamba2(boxed(|| Mamba2Layer::new((index, mamba), isa))?)
            }
            Mixer::SideBySide(both) => MixerLayer::SideBySide(boxed(|| {
                let attention = (index, &both.attention);
                Ok((
                    AttentionLayer::new(attention, window, ropes, isa)?,
                    Mamba2Layer::new((index, &both.mamba), isa)?,
                ))
            })?),
            Mixer::Absent => MixerLayer::Absent,
        })
    }
}

impl FeedForwardLayer {
    #[inline(never)]
    fn new((index, block): (usize, &Block), isa: Isa) -> Result<FeedForwardLayer> {
        Ok(match &block.feed_forward {
            FeedForward::Dense(mlp) => {
                FeedForwardLayer::Dense(boxed(|| DenseLayer::new(mlp, isa))?)
            }
            FeedForward::Experts(experts) => {
                FeedForwardLayer::Experts(boxed(|| ExpertLayer::new(experts, isa))?)
            }
            FeedForward::Both(both) => FeedForwardLayer::Both(boxed(|| BothLayer::new(both, isa))?),
            FeedForward::Latent(latent) => {
                FeedForwardLayer::Latent(boxed(|| LatentExpertLayer::new(latent, isa))?)
            }
            FeedForward::OnHost(_) => {
                fail!(
                    Internal,
                    "layer {index}: a part for the host within its own network"
                )
            }
            FeedForward::None => FeedForwardLayer::None,
        })
    }
}

/// A part of a layer in memory of its own. One frame holds one part, so that the kinds of parts do not add up on a small stack.
#[inline(never)]
fn boxed<T>(make: impl FnOnce() -> Result<T>) -> Result<Box<T>> {
    Ok(Box::new(make()?))
}

impl Layer {
    /// Takes a block over; reads only the small tensors. New ropes go to `ropes`.
    #[inline(never)]
    pub fn new(
        (index, block): (usize, &Block),
        context_length: usize,
        ropes: &mut Vec<Rope>,
        isa: Isa,
    ) -> Result<Layer> {
        Ok(Layer {
            mixer_norm: NormWeights::find(&block.mixer_norm)?,
            mixer: MixerLayer::new((index, block), context_length, ropes, isa)?,
            mixer_post_norm: NormWeights::find(&block.mixer_post_norm)?,
            feed_forward_norm: NormWeights::find(&block.feed_forward_norm)?,
            feed_forward: FeedForwardLayer::new((index, block), isa)?,
            feed_forward_post_norm: NormWeights::find(&block.feed_forward_post_norm)?,
            parallel: block.parallel,
            residual_scale: block.residual_scale,
            input: match &block.per_layer {
                Some(input) => Some(boxed(|| InputLayer::new(index, input, isa))?),
                None => None,
            },
            streams: match &block.streams {
                Some(streams) => Some(boxed(|| StreamLayer::new(streams, isa))?),
                None => None,
            },
            output_scale: block.output_scale,
            mixer_sum_norm: NormWeights::find(&block.mixer_sum_norm)?,
            feed_forward_sum_norm: NormWeights::find(&block.feed_forward_sum_norm)?,
        })
    }

    /// Floats of its small vectors.
    pub fn floats(&self) -> usize {
        let norms = [
            &self.mixer_norm,
            &self.mixer_post_norm,
            &self.feed_forward_norm,
            &self.feed_forward_post_norm,
            &self.mixer_sum_norm,
            &self.feed_forward_sum_norm,
        ];
        let norms = norms.into_iter().flatten().map(NormWeights::floats);
        let mixer = match &self.mixer {
            MixerLayer::Attention(attention) => attention.floats(),
            MixerLayer::Latent(latent) => latent.floats(),
            MixerLayer::ShortConv(conv) => conv.floats(),
            MixerLayer::DeltaNet(net) => net.floats(),
            MixerLayer::Mamba1(mamba) => mamba.floats(),
            MixerLayer::Mamba2(mamba) => mamba.floats(),
            MixerLayer::SideBySide(both) => both.0.floats() + both.1.floats(),
            MixerLayer::Absent => 0,
        };
        let feed_forward = match &self.feed_forward {
            FeedForwardLayer::Dense(dense) => dense.floats(),
            FeedForwardLayer::Experts(experts) => experts.vector_len(),
            FeedForwardLayer::Both(both) => both.floats(),
            FeedForwardLayer::Latent(latent) => latent.floats(),
            FeedForwardLayer::None => 0,
        };
        let input = self.input.as_ref().map_or(0, |input| input.floats());
        let streams = self.streams.as_ref().map_or(0, |streams| streams.floats());
        norms.sum::<usize>() + mixer + feed_forward + input + streams
    }
}

/// Floats of a rope's table for a position.
pub(super) fn table_len(rope: &Rope) -> usize {
    2 * rope.inv_freq.len()
}

/// The part after attention.
pub(super) enum FeedForwardLayer {
    Dense(Box<DenseLayer>),
    Experts(Box<ExpertLayer>),
    Both(Box<BothLayer>),
    Latent(Box<LatentExpertLayer>),
    None,
}

/// One feed-forward for all tokens.
pub(super) struct DenseLayer {
    pub gate: Option<Product>,
    pub up: Product,
    pub down: Product,
    /// Of what `down` reads.
    pub inner_norm: Option<NormWeights>,
    pub activation: Activation,
}

impl DenseLayer {
    pub fn new(mlp: &Mlp, isa: Isa) -> Result<DenseLayer> {
        check_activation(mlp.activation, mlp.gate.is_some())?;
        let gate = mlp.gate.as_ref().map(|gate| product(gate, isa));
        Ok(DenseLayer {
            gate: gate.transpose()?,
            up: product(&mlp.up, isa)?,
            down: product(&mlp.down, isa)?,
            inner_norm: NormWeights::find(&mlp.inner_norm)?,
            activation: mlp.activation,
        })
    }

    /// The products of the normed input: gate and up, or up alone.
    pub fn inner(&self) -> impl Iterator<Item = &Product> {
        self.gate.iter().chain([&self.up])
    }

    /// What the first products read.
    pub fn input_encodings(&self) -> Encodings {
        union(self.inner())
    }

    /// Floats of its biases and its norm.
    pub fn floats(&self) -> usize {
        let products = self.inner().chain([&self.down]);
        let biases = products.map(Product::bias_len).sum::<usize>();
        biases + self.inner_norm.as_ref().map_or(0, NormWeights::floats)
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
        // SAFETY: by contract, the processor has `isa`; `new` has checked the activation.
        unsafe { activate(self.activation, isa, first, up) }
    }
}

/// Refuses an activation that is not there with a gate, or without one.
pub(super) fn check_activation(activation: Activation, gated: bool) -> Result<()> {
    match (activation, gated) {
        (Activation::ClampedSwiglu { .. } | Activation::LimitedSilu { .. }, false) => {
            fail!(Unsupported, "{activation:?} without a gate")
        }
        (Activation::Xielu { .. }, true) => fail!(Unsupported, "{activation:?} with a gate"),
        _ => Ok(()),
    }
}

/// `x = activation(x) * up`, or without `up` the activation alone.
///
/// # Safety
/// The processor has `isa`; [`check_activation`] has let the activation through.
pub(super) unsafe fn activate(activation: Activation, isa: Isa, x: &mut [f32], up: Option<&[f32]>) {
    // SAFETY: by contract, the processor has `isa`, and `check_activation` has let the activation through.
    unsafe {
        match (activation, up) {
            (Activation::Silu, Some(up)) => silu_mul(isa, x, up),
            (Activation::Silu, None) => silu_alone(isa, x),
            (Activation::GeluTanh, up) => gelu_tanh_mul(isa, x, up),
            (Activation::Gelu, up) => gelu_mul(isa, x, up),
            (Activation::ClampedSwiglu { alpha, limit }, Some(up)) => {
                swiglu_clamped(isa, x, up, alpha, limit)
            }
            (Activation::LimitedSilu { limit }, Some(up)) => silu_limited(isa, x, up, limit),
            (Activation::Relu, up) => relu_mul(isa, x, up),
            (Activation::ReluSquared, up) => relu_squared_mul(isa, x, up),
            (Activation::Xielu { alpha_p, alpha_n }, None) => xielu(isa, x, alpha_p, alpha_n),
            (Activation::ClampedSwiglu { .. } | Activation::LimitedSilu { .. }, None)
            | (Activation::Xielu { .. }, Some(_)) => unreachable!("refused at load"),
        }
    }
}
