//! `step35`: Step 3.5 and 3.7 Flash (text). Layers with a window have heads of queries and a rotary embedding of their own. Heads
//! have gates, experts are chosen by sigmoids and a bias, and feed-forward parts of some layers have limits behind their activation.

use super::decoder::Decoder;
use super::experts::{Defaults, Mixture, shared_ff, softmax};
use super::{Activation, FeedForward, Network, NormKind, RopePairing, Scoring};
use crate::error::{Result, fail};
use crate::format::ModelFile;

const EVERY: &str = "moe_every_n_layers";

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let mut d = Decoder::read_uneven(file, "step35", NormKind::Rms)?;
    let heads = d.heads_by_layer()?;
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
    let windows = d.listed_windows()?;
    let rope = d.rope(RopePairing::Halves)?;
    let local = d.own_local_rope(RopePairing::Halves)?;
    let experts = Defaults {
        scoring: Scoring::Sigmoid,
        shared_ff: shared_ff(&d)?,
        ..softmax(&d)?
    };
    let experts = Mixture::new(&d, experts)?;
    d.network(|i| {
        let rope = if windows[i].is_some() { &local } else { &rope };
        let mut attention = d.attention_by_heads(i, heads[i], Some(rope))?;
        attention.q_norm = d.norm_of(i, "attn_q_norm", d.head_dim)?;
        attention.k_norm = d.norm_of(i, "attn_k_norm", d.head_dim)?;
        attention.window = windows[i];
        let gate = format!("blk.{i}.attn_gate");
        attention.gate = Some(source.linear(&gate, d.hidden, heads[i].0)?);
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
