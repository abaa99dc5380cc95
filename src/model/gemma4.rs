//! `gemma4` (text): layers with a window, and layers without one that have heads of another size,
//! perhaps values that are their keys, and a rotary embedding of a part of each head. Values are
//! normed, layers are scaled. In the small ones the last layers read keys and values of earlier ones,
//! and each layer adds something of the token itself.

use super::decoder::{Decoder, Windows, bare_block};
use super::experts::{self, Defaults, Mixture};
use super::{
    Activation, Attention, Block, DenseAndExperts, Experts, FeedForward, LayerInput, Linear, Mlp,
    Network, Norm, NormKind, PerLayerInputs, Rope, RopePairing,
};
use crate::error::{Result, fail};
use crate::format::{ModelFile, Tensor};
use crate::quant::TensorType;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read_uneven(file, "gemma4", NormKind::Rms)?;
    let mixture = match d.source.find::<u64>("expert_count")? {
        None | Some(0) => None,
        Some(_) => {
            let softmax = experts::softmax(&d)?;
            let defaults = Defaults {
                activation: Activation::GeluTanh,
                ..softmax
            };
            Some(Mixture::new(&d, defaults)?)
        }
    };
    let layers = Layers::read(&d)?;
    let per_layer = per_layer(&d)?;
    let n_pl = per_layer
        .as_ref()
        .map(|inputs| inputs.norm.weight.row_len());
    let scaled = d.has_part(OUTPUT_SCALE);
    let mut network = d.network(|i| {
        let name = |part: &str| format!("blk.{i}.{part}");
        let attention = layers.attention(&d, i)?;
        let (n_ff, hidden) = (layers.n_ff[i], d.hidden);
        let mlp = Mlp {
            gate: Some(d.source.linear(&name("ffn_gate"), hidden, n_ff)?),
            up: d.source.linear(&name("ffn_up"), hidden, n_ff)?,
            down: d.source.linear(&name("ffn_down"), n_ff, hidden)?,
            inner_norm: None,
            activation: Activation::GeluTanh,
        };
        let feed_forward = match &mixture {
            Some(mixture) => FeedForward::Both(Box::new(DenseAndExperts {
                mlp,
                mlp_post_norm: norm_of(&d, &name("post_ffw_norm_1.weight"))?,
                router_norm: router_norm(&d, &name("ffn_gate_inp.scale"))?,
                experts_norm: norm_of(&d, &name("pre_ffw_norm_2.weight"))?,
                experts: experts_of(&d, mixture, i)?,
                experts_post_norm: norm_of(&d, &name("post_ffw_norm_2.weight"))?,
            })),
            None => FeedForward::Dense(Box::new(mlp)),
        };
        Ok(Block {
            mixer_norm: d.norm(i, "attn_norm")?,
            mixer_post_norm: d.norm(i, "post_attention_norm")?,
            feed_forward_norm: d.norm(i, "ffn_norm")?,
            feed_forward_post_norm: d.norm(i, "post_ffw_norm")?,
            per_layer: match n_pl {
                None => None,
                Some(n_pl) => Some(Box::new(LayerInput {
                    gate: d.source.linear(&name("inp_gate"), hidden, n_pl)?,
                    activation: Activation::GeluTanh,
                    projection: d.source.linear(&name("proj"), n_pl, hidden)?,
                    post_norm: d.norm(i, "post_norm")?,
                })),
            },
            output_scale: match scaled {
                true => number(&d.source.vector(&name(OUTPUT_SCALE), 1)?)?,
                false => 1.0,
            },
            ..bare_block(attention, feed_forward)
        })
    })?;
    network.embedding_scale = (d.hidden as f64).sqrt() as f32;
    network.per_layer = per_layer;
    Ok(network)
}

/// The experts of a layer, each of which has a factor.
fn experts_of(d: &Decoder, mixture: &Mixture, layer: usize) -> Result<Experts> {
    let experts = mixture.experts(d, layer)?;
    // NVFP4 files have the factors in the scales of the weights, which may have become Q8_0 by that.
    let scaled = matches!(experts.down.weight.ty, TensorType::NVFP4 | TensorType::Q8_0);
    if experts.expert_scales.is_none() && !scaled {
        let name = format!("blk.{layer}.{}", experts::SCALES);
        d.source.vector(&name, experts.n_experts)?;
    }
    Ok(experts)
}

/// Of what a router reads, which is divided by the root of its width.
fn router_norm(d: &Decoder, name: &str) -> Result<Norm> {
    let norm = norm_of(d, name)?;
    let factor = 1.0 / (d.hidden as f64).sqrt();
    Ok(Norm {
        weight: norm.weight.scaled(factor as f32)?,
        ..norm
    })
}

/// A norm of the residual stream whose weight is the tensor `name`.
fn norm_of(d: &Decoder, name: &str) -> Result<Norm> {
    Ok(Norm {
        kind: NormKind::Rms,
        weight: d.source.vector(name, d.hidden)?,
        bias: None,
        eps: d.eps,
    })
}

const OUTPUT_SCALE: &str = "layer_output_scale.weight";

/// The one element of a tensor, a finite number.
fn number(tensor: &Tensor) -> Result<f32> {
    match tensor.to_f32()?.as_deref() {
        Some([number]) if number.is_finite() => Ok(*number),
        other => fail!(
            InvalidModel,
            "tensor {} has the elements {other:?}; it must have a finite number",
            tensor.name
        ),
    }
}

/// What differs between layers.
struct Layers {
    windows: Vec<Option<usize>>,
    n_kv_heads: Vec<usize>,
    n_ff: Vec<usize>,
    /// Head size and rotary embedding of layers with a window, and of those without.
    local: (usize, Rope),
    global: (usize, Rope),
    /// Layers from this one on have no keys and values of their own.
    first_shared: usize,
    /// Whether layers without a window have values that are not their keys.
    has_values: bool,
}

impl Layers {
    fn read(d: &Decoder) -> Result<Layers> {
        const HEADS: &str = "attention.head_count";
        const KV_HEADS: &str = "attention.head_count_kv";
        const SHARED: &str = "attention.shared_kv_layers";
        const LOCAL_KEYS: &str = "attention.key_length_swa";
        const LOCAL_VALUES: &str = "attention.value_length_swa";
        let source = &d.source;
        let windows = d.windows(Windows::ButEvery(6))?;
        let n_kv_heads = source.sizes(KV_HEADS, d.n_layers)?;
        if let Some(odd) = n_kv_heads.iter().find(|n| !d.n_heads.is_multiple_of(**n)) {
            let problem = format!("has {odd}, which does not divide the {} heads", d.n_heads);
            return Err(source.invalid(KV_HEADS, &problem));
        }
        let head_dim = source.find_size(LOCAL_KEYS)?.unwrap_or(d.head_dim);
        if head_dim > super::decoder::MAX_HEAD_DIM {
            let problem = format!("is {head_dim}, which is beyond all heads");
            return Err(source.invalid(LOCAL_KEYS, &problem));
        }
        if let Some(values) = source.find_size(LOCAL_VALUES)?
            && values != head_dim
        {
            fail!(
                Unsupported,
                "{} is {values}, but keys have {head_dim} elements; they must be the same",
                source.key_name(LOCAL_VALUES)
            );
        }
        source.product(HEADS, d.n_heads, head_dim)?;
        let shared = source.find::<u64>(SHARED)?.unwrap_or(0);
        if shared >= d.n_layers as u64 {
            let problem = format!("is {shared}, but there are {} layers", d.n_layers);
            return Err(source.invalid(SHARED, &problem));
        }
        let first_shared = d.n_layers - shared as usize;
        let is_local = |layer: &usize| windows[*layer].is_some();
        let lonely = (first_shared..d.n_layers)
            .find(|layer| !(0..first_shared).any(|l| is_local(&l) == is_local(layer)));
        if let Some(layer) = lonely {
            let problem = format!(
                "is {shared}: layer {layer} would share keys and values with a layer of its kind, and none has any"
            );
            return Err(source.invalid(SHARED, &problem));
        }
        let mut own_global = (0..first_shared).filter(|layer| !is_local(layer));
        let has_values = own_global.any(|layer| source.has(&format!("blk.{layer}.attn_v")));
        // Which pairs of whole heads turn.
        source.vector("rope_freqs.weight", d.head_dim / 2)?;
        let local = d.sized_local_rope(
            RopePairing::Halves,
            (head_dim, "rope.dimension_count_swa", LOCAL_KEYS),
            10_000.0,
        )?;
        Ok(Layers {
            n_ff: source.sizes("feed_forward_length", d.n_layers)?,
            local: (head_dim, local),
            global: (d.head_dim, d.rope(RopePairing::Halves)?),
            windows,
            n_kv_heads,
            first_shared,
            has_values,
        })
    }

    /// The layer whose keys and values a layer reads.
    fn source_of(&self, layer: usize) -> Option<usize> {
        let is_local = |layer: usize| self.windows[layer].is_some();
        match layer >= self.first_shared {
            true => (0..self.first_shared)
                .rev()
                .find(|l| is_local(*l) == is_local(layer)),
            false => None,
        }
    }

    fn attention(&self, d: &Decoder, layer: usize) -> Result<Attention> {
        let shares = self.source_of(layer);
        let of = shares.unwrap_or(layer);
        let (head_dim, rope) = match self.windows[layer] {
            Some(_) => &self.local,
            None => &self.global,
        };
        let (source, hidden, n_kv_heads) = (&d.source, d.hidden, self.n_kv_heads[of]);
        let name = |layer: usize, part: &str| format!("blk.{layer}.{part}");
        let (q_len, kv_len) = (d.n_heads * head_dim, n_kv_heads * head_dim);
        let k = source.linear(&name(of, "attn_k"), hidden, kv_len)?;
        let v: Linear = match self.has_values || self.windows[of].is_some() {
            true => source.linear(&name(of, "attn_v"), hidden, kv_len)?,
            false => k.clone(),
        };
        Ok(Attention {
            q: source.linear(&name(layer, "attn_q"), hidden, q_len)?,
            k,
            v,
            gated: false,
            gate: None,
            softplus_gate: false,
            output: source.linear(&name(layer, "attn_output"), q_len, hidden)?,
            output_norm: None,
            q_norm: d.norm_of(layer, "attn_q_norm", *head_dim)?,
            k_norm: match shares {
                None => d.norm_of(layer, "attn_k_norm", *head_dim)?,
                Some(_) => None,
            },
            value_norm: Some(d.eps),
            value_scale: 1.0,
            shares,
            n_heads: d.n_heads,
            n_kv_heads,
            head_dim: *head_dim,
            value_dim: *head_dim,
            own_head_norms: false,
            norm_after_rope: false,
            chunk: None,
            clip: None,
            rope: Some(rope.clone()),
            scale: source.find_positive("attention.scale")?.unwrap_or(1.0),
            temperature: None,
            window: self.windows[layer],
            score_cap: source.find_positive("attn_logit_softcapping")?,
            sinks: None,
            causal: true,
            slopes: None,
            distances: None,
        })
    }
}

/// What layers add of the token itself, if the model has that.
pub(super) fn per_layer(d: &Decoder) -> Result<Option<PerLayerInputs>> {
    const LENGTH: &str = "embedding_length_per_layer_input";
    let (source, hidden) = (&d.source, d.hidden);
    if source.find::<u64>(LENGTH)?.unwrap_or(0) == 0 {
        return Ok(None);
    }
    let len = source.size(LENGTH)?;
    let all = source.product(LENGTH, d.n_layers, len)?;
    let n_vocab = source.file.tensor("token_embd.weight")?.rows();
    let root = |x: usize| (x as f64).sqrt() as f32;
    Ok(Some(PerLayerInputs {
        embedding: source.matrix("per_layer_token_embd.weight", all, n_vocab)?,
        embedding_scale: root(len),
        projection: source.linear("per_layer_model_proj", hidden, all)?,
        projection_scale: 1.0 / root(hidden),
        norm: source.norm("per_layer_proj_norm", len, NormKind::Rms, d.eps)?,
        scale: std::f32::consts::FRAC_1_SQRT_2,
    }))
}
