//! `step35`: Step 3.5 and 3.7 Flash (text). Layers with a window have heads of queries and a rotary embedding of their own. Heads
//! have gates, experts are chosen by sigmoids and a bias, and feed-forward parts of some layers have limits behind their activation.

use super::decoder::{Decoder, Windows};
use super::experts::{Defaults, Mixture, shared_ff, softmax};
use super::{Activation, FeedForward, Network, NormKind, RopePairing, Scoring};
use crate::error::{Result, fail};
use crate::format::ModelFile;

const HEADS: &str = "attention.head_count";
const KV_HEADS: &str = "attention.head_count_kv";
const EVERY: &str = "moe_every_n_layers";
const LOCAL_DIMENSIONS: &str = "rope.dimension_count_swa";

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let mut d = Decoder::read_uneven(file, "step35", NormKind::Rms)?;
    let n_heads = d.source.sizes(HEADS, d.n_layers)?;
    let n_kv_heads = d.source.sizes(KV_HEADS, d.n_layers)?;
    for (heads, kv) in n_heads.iter().zip(&n_kv_heads) {
        if !heads.is_multiple_of(*kv) {
            let problem = format!("has {heads}, which the {kv} KV heads do not divide");
            return Err(d.source.invalid(HEADS, &problem));
        }
    }
    let limits = Limits::read(&d)?;
    d.leave_out_predictors()?;
    let source = &d.source;
    if let Some(every) = source.find_size(EVERY)?.filter(|every| *every != 1) {
        fail!(
            Unsupported,
            "{} is {every}; only 1 is supported",
            source.key_name(EVERY)
        );
    }
    source.size("attention.sliding_window")?;
    // No pattern goes without saying.
    source.flags("attention.sliding_window_pattern")?;
    let windows = d.windows(Windows::Everywhere)?;
    let rope = d.rope(RopePairing::Halves)?;
    let local = match source.find_size(LOCAL_DIMENSIONS)? {
        None => d.local_rope(RopePairing::Halves, d.rope_base()?)?,
        Some(_) => {
            let sizes = (d.head_dim, LOCAL_DIMENSIONS, "attention.key_length");
            d.sized_local_rope(RopePairing::Halves, sizes, d.rope_base()?)?
        }
    };
    let experts = Defaults {
        scoring: Scoring::Sigmoid,
        shared_ff: shared_ff(&d)?,
        ..softmax(&d)?
    };
    let experts = Mixture::new(&d, experts)?;
    d.network(|i| {
        let rope = if windows[i].is_some() { &local } else { &rope };
        let (n_heads, n_kv_heads) = (n_heads[i], n_kv_heads[i]);
        let lens = [n_heads, n_kv_heads, n_kv_heads].map(|heads| heads * d.head_dim);
        let matrices = d.qkv(i, lens)?;
        let mut attention = d.attention_of(i, (n_heads, n_kv_heads), matrices, Some(rope))?;
        attention.q_norm = d.norm_of(i, "attn_q_norm", d.head_dim)?;
        attention.k_norm = d.norm_of(i, "attn_k_norm", d.head_dim)?;
        attention.window = windows[i];
        let gate = format!("blk.{i}.attn_gate");
        attention.gate = Some(source.linear(&gate, d.hidden, n_heads)?);
        let mut feed_forward = experts.or_gated(&d, i)?;
        limits.apply(i, &mut feed_forward);
        d.pre_norm_block(i, attention, feed_forward)
    })
}

/// Limits behind the activations of feed-forward parts, by layer: of experts, and of the others.
pub(super) struct Limits([Vec<Option<f32>>; 2]);

impl Limits {
    /// Those of all layers that the file has.
    pub(super) fn read(d: &Decoder) -> Result<Limits> {
        let of_experts = limits(d, "swiglu_clamp_exp")?;
        Ok(Limits([of_experts, limits(d, "swiglu_clamp_shexp")?]))
    }

    /// Sets them in a layer's part.
    pub(super) fn apply(&self, layer: usize, part: &mut FeedForward) {
        let limited = |limit: Option<f32>| match limit {
            None => Activation::Silu,
            Some(limit) => Activation::LimitedSilu { limit },
        };
        let [of_experts, of_others] = self.0.each_ref().map(|limits| limited(limits[layer]));
        match part {
            FeedForward::Dense(mlp) => mlp.activation = of_others,
            FeedForward::Experts(experts) => {
                experts.activation = of_experts;
                if let Some(shared) = &mut experts.shared {
                    shared.mlp.activation = of_others;
                }
            }
            _ => {}
        }
    }
}

/// A limit for each layer, if the file has them. 0 stands for none.
fn limits(d: &Decoder, key: &str) -> Result<Vec<Option<f32>>> {
    let n_layers = d.n_layers;
    let Some(limits) = d.source.find::<Vec<f32>>(key)? else {
        return Ok(vec![None; n_layers]);
    };
    if limits.len() != n_layers {
        let found = limits.len();
        let problem = format!("has {found} values, but there are {n_layers} layers");
        return Err(d.source.invalid(key, &problem));
    }
    if let Some(odd) = limits
        .iter()
        .find(|limit| !(limit.is_finite() && **limit >= 0.0))
    {
        let problem = format!("has {odd}; it must have finite numbers, 0 or above");
        return Err(d.source.invalid(key, &problem));
    }
    let limit = |limit: f32| (limit > 0.0).then_some(limit);
    Ok(limits.into_iter().map(limit).collect())
}
