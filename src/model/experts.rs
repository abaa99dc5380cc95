//! Mixtures of experts: their hyperparameters and tensors, whose names all families share.

use super::decoder::Decoder;
use super::{
    Activation, ExpertGroups, Experts, FeedForward, LatentExperts, Linear, Mlp, Scoring,
    SharedExpert,
};
use crate::error::{Result, fail};

/// What a family's experts are unless the file says otherwise.
pub(super) struct Defaults {
    pub scoring: Scoring,
    pub normalize: bool,
    pub activation: Activation,
    /// Whether experts have a gate beside up.
    pub gated: bool,
    /// Inner width of an expert.
    pub n_ff: usize,
    /// Inner width of the shared expert, if there is one.
    pub shared_ff: Option<usize>,
}

/// Experts whose weights are shares of 1, as most have.
pub(super) fn softmax(d: &Decoder) -> Result<Defaults> {
    Ok(Defaults {
        scoring: Scoring::Softmax,
        normalize: true,
        activation: Activation::Silu,
        gated: true,
        n_ff: match d.source.find_size(WIDTH)? {
            Some(n_ff) => n_ff,
            None => d.n_ff()?,
        },
        shared_ff: None,
    })
}

/// Inner width of the shared expert, if the file says that there is one.
pub(super) fn shared_ff(d: &Decoder) -> Result<Option<usize>> {
    match d.source.find::<u64>(SHARED_WIDTH)? {
        None | Some(0) => Ok(None),
        Some(_) => d.source.find_size(SHARED_WIDTH),
    }
}

/// Inner width of `expert_shared_count` shared experts that are one, each as wide as the others.
pub(super) fn shared_count_ff(d: &Decoder) -> Result<Option<usize>> {
    match d.source.find::<u64>(SHARED_COUNT)? {
        None | Some(0) => Ok(None),
        Some(_) => {
            let count = d.source.size(SHARED_COUNT)?;
            let width = d.source.size(WIDTH)?;
            d.source.product(SHARED_COUNT, count, width).map(Some)
        }
    }
}

/// Sizes and constants of the experts of all layers.
pub(super) struct Mixture {
    /// Layers at the beginning that have none.
    first: usize,
    /// Of the others, only every so many-th has them, counted from the beginning.
    step: usize,
    /// Which layers have them, where neither says so.
    listed: Option<Vec<bool>>,
    groups: Option<ExpertGroups>,
    selection_bias: Option<&'static str>,
    n_experts: usize,
    n_used: usize,
    n_ff: usize,
    scoring: Scoring,
    normalize: bool,
    weight_scale: f32,
    activation: Activation,
    gated: bool,
    /// Whether gate and up of an expert are in one matrix.
    fused: bool,
    shared_ff: Option<usize>,
}

const COUNT: &str = "expert_count";
const USED: &str = "expert_used_count";
const WIDTH: &str = "expert_feed_forward_length";
const SHARED_WIDTH: &str = "expert_shared_feed_forward_length";
const SCORING: &str = "expert_gating_func";
const SCALE: &str = "expert_weights_scale";
const GROUPS: &str = "expert_group_count";
const USED_GROUPS: &str = "expert_group_used_count";
const SHARED_COUNT: &str = "expert_shared_count";
const DENSE: &str = "leading_dense_block_count";
const LAYERS: &str = "expert_layers";
const STEP: &str = "interleave_moe_layer_step";

/// Of a layer's experts.
pub(super) const SCALES: &str = "ffn_down_exps.scale";
/// Gate and up in one.
const FUSED: &str = "ffn_gate_up_exps";
/// In the layers of a model that has it in any: by the name that most converters' families have, or without an end.
const SELECTION_BIAS: [&str; 2] = ["exp_probs_b.bias", "exp_probs_b"];

/// The groups that the experts are in, if there are several.
fn groups(
    d: &Decoder,
    n_experts: usize,
    n_used: usize,
    scoring: Scoring,
) -> Result<Option<ExpertGroups>> {
    let source = &d.source;
    if source.find::<u64>(GROUPS)?.unwrap_or(0) <= 1 {
        return Ok(None);
    }
    let (n_groups, n_used_groups) = (source.size(GROUPS)?, source.size(USED_GROUPS)?);
    if !n_experts.is_multiple_of(n_groups) {
        let problem = format!("is {n_groups}, which does not divide the {n_experts} experts");
        return Err(source.invalid(GROUPS, &problem));
    }
    if n_used_groups > n_groups {
        let problem = format!("is {n_used_groups}, but there are only {n_groups} groups");
        return Err(source.invalid(USED_GROUPS, &problem));
    }
    let of_a_group = n_experts / n_groups;
    if n_used_groups * of_a_group < n_used {
        let problem = format!(
            "is {n_used_groups}, which is too few groups of {of_a_group} for {n_used} experts"
        );
        return Err(source.invalid(USED_GROUPS, &problem));
    }
    Ok((n_used_groups < n_groups).then_some(ExpertGroups {
        n_groups,
        n_used: n_used_groups,
        n_best: match scoring {
            Scoring::Sigmoid => 2.min(of_a_group),
            _ => 1,
        },
    }))
}

impl Mixture {
    /// What the keys `expert_*` say; `None` if there are no experts.
    pub(super) fn find(d: &Decoder, defaults: Defaults) -> Result<Option<Mixture>> {
        match d.source.find::<u64>(COUNT)? {
            None | Some(0) => Ok(None),
            Some(_) => Mixture::new(d, defaults).map(Some),
        }
    }

    /// The same where there must be experts.
    pub(super) fn new(d: &Decoder, defaults: Defaults) -> Result<Mixture> {
        let source = &d.source;
        let n_experts = source.size(COUNT)?;
        let n_used = source.size(USED)?;
        if n_used > n_experts {
            let problem = format!("is {n_used}, but there are only {n_experts} experts");
            return Err(source.invalid(USED, &problem));
        }
        let scoring = match source.find::<u64>(SCORING)? {
            None | Some(0) => defaults.scoring,
            Some(1) => Scoring::Softmax,
            Some(2) => Scoring::Sigmoid,
            Some(3) => Scoring::SoftmaxOfChosen,
            Some(other) => fail!(
                Unsupported,
                "{} is {other}; supported: 1 (softmax), 2 (sigmoid), 3 (softmax of the chosen)",
                source.key_name(SCORING)
            ),
        };
        // A factor of 0 stands for none.
        let weight_scale = match source.find::<f32>(SCALE)? {
            None | Some(0.0) => 1.0,
            Some(_) => source.positive(SCALE)?,
        };
        let normalize = source.find("expert_weights_norm")?;
        source.product(COUNT, n_experts, 2 * defaults.n_ff)?;
        let first = source.find::<u64>(DENSE)?.unwrap_or(0);
        if first > d.n_layers as u64 {
            let problem = format!("is {first}, but there are {} layers", d.n_layers);
            return Err(source.invalid(DENSE, &problem));
        }
        let listed = source.find_flags(LAYERS)?;
        if let Some(len) = listed
            .as_ref()
            .map(Vec::len)
            .filter(|len| *len < d.n_layers)
        {
            let problem = format!("has {len} values, but there are {} layers", d.n_layers);
            return Err(source.invalid(LAYERS, &problem));
        }
        Ok(Mixture {
            first: first as usize,
            step: source.find_size(STEP)?.unwrap_or(1),
            listed,
            groups: groups(d, n_experts, n_used, scoring)?,
            selection_bias: SELECTION_BIAS.into_iter().find(|part| d.has_part(part)),
            n_experts,
            n_used,
            n_ff: defaults.n_ff,
            scoring,
            normalize: normalize.unwrap_or(defaults.normalize),
            weight_scale,
            activation: defaults.activation,
            gated: defaults.gated,
            fused: defaults.gated && d.has_part(&format!("{FUSED}.weight")),
            shared_ff: defaults.shared_ff,
        })
    }

    /// Where no key says which layers have none: the first ones without a router and experts.
    pub(super) fn set_first_by_router(&mut self, d: &Decoder) {
        let without = |layer: &usize| {
            let mut parts = ["ffn_gate_inp", "ffn_down_exps"].into_iter();
            parts.all(|part| !d.source.has(&d.source.part(*layer, part)))
        };
        if d.source.find::<u64>(DENSE).ok().flatten().is_none() {
            self.first = (0..d.n_layers).take_while(without).count();
        }
    }

    /// Whether a layer has experts, and not one feed-forward part for all tokens.
    pub(super) fn has_layer(&self, layer: usize) -> bool {
        match &self.listed {
            // A head that guesses further tokens is one more.
            Some(listed) => listed.get(layer).copied().unwrap_or(true),
            None => layer >= self.first && (layer + 1).is_multiple_of(self.step),
        }
    }

    /// The experts of a layer, or gate, up and down of one that has none.
    pub(super) fn or_gated(&self, d: &Decoder, layer: usize) -> Result<FeedForward> {
        match self.has_layer(layer) {
            true => self.layer(d, layer),
            false => d.gated(layer, self.activation),
        }
    }

    /// The experts of a layer as its feed-forward part.
    pub(super) fn layer(&self, d: &Decoder, layer: usize) -> Result<FeedForward> {
        let experts = self.experts(d, layer)?;
        Ok(FeedForward::Experts(Box::new(experts)))
    }

    /// The experts of a layer that work in a space of `latent` elements, beside the shared one.
    pub(super) fn latent_layer(
        &self,
        d: &Decoder,
        layer: usize,
        latent: usize,
    ) -> Result<FeedForward> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let mut experts = self.experts_of(d, layer, latent)?;
        let Some(SharedExpert { mlp, gate: None }) = experts.shared.take() else {
            fail!(
                Unsupported,
                "layer {layer}: experts of another width than the network's without a shared expert ({}), or with a gate of it, are not supported",
                d.source.key_name(SHARED_WIDTH)
            );
        };
        let enter = d
            .source
            .linear(&name("ffn_latent_down"), d.hidden, latent)?;
        if let Some(bias) = &enter.bias {
            fail!(
                Unsupported,
                "tensor {}: a bias in front of experts is not supported",
                bias.name
            );
        }
        Ok(FeedForward::Latent(Box::new(LatentExperts {
            enter,
            experts,
            leave: d.source.linear(&name("ffn_latent_up"), latent, d.hidden)?,
            mlp,
        })))
    }

    /// The experts of a layer.
    pub(super) fn experts(&self, d: &Decoder, layer: usize) -> Result<Experts> {
        self.experts_of(d, layer, d.hidden)
    }

    /// The same of experts whose inputs and outputs have so many elements.
    fn experts_of(&self, d: &Decoder, layer: usize, width: usize) -> Result<Experts> {
        let (source, hidden) = (&d.source, d.hidden);
        let (n_experts, n_ff) = (self.n_experts, self.n_ff);
        let name = |part: &str| format!("blk.{layer}.{part}");
        let apart = name("ffn_gate.0");
        if source.has(&apart) {
            fail!(
                Unsupported,
                "tensor {apart}.weight: each expert has tensors of its own; supported is one for all, {}",
                name("ffn_gate_exps.weight")
            );
        }
        let stack = |part: &str, inputs, outputs| {
            source.stacked_linear(&name(part), inputs, outputs, n_experts)
        };
        let if_gated = |gate: &dyn Fn() -> Result<Linear>| self.gated.then(gate).transpose();
        // Gate and up may be in one matrix.
        let (gate, up) = (name("ffn_gate_shexp"), name("ffn_up_shexp"));
        let both = |shared_ff: usize| -> Result<Option<[Linear; 2]>> {
            let rows = source.file.tensor(&format!("{up}.weight"))?.rows();
            let fused = self.gated && !source.has(&gate) && Some(rows) == shared_ff.checked_mul(2);
            let both = || source.fused(&up, hidden, [shared_ff; 2], None);
            fused.then(both).transpose()
        };
        let shared_gate = |shared_ff: usize| match both(shared_ff)? {
            Some([gate, _]) => Ok(gate),
            None => source.linear(&gate, hidden, shared_ff),
        };
        let shared_up = |shared_ff: usize| match both(shared_ff)? {
            Some([_, up]) => Ok(up),
            None => source.linear(&up, hidden, shared_ff),
        };
        let shared = match self.shared_ff {
            None => None,
            Some(shared_ff) => Some(SharedExpert {
                mlp: Mlp {
                    gate: if_gated(&|| shared_gate(shared_ff))?,
                    up: shared_up(shared_ff)?,
                    down: source.linear(&name("ffn_down_shexp"), shared_ff, hidden)?,
                    inner_norm: None,
                    activation: self.activation,
                },
                gate: match d.has_part("ffn_gate_inp_shexp.weight") {
                    true => Some(source.linear(&name("ffn_gate_inp_shexp"), hidden, 1)?),
                    false => None,
                },
            }),
        };
        let router = source.linear(&name("ffn_gate_inp"), hidden, n_experts)?;
        let (gate, up) = match self.fused {
            true => {
                let both = stack(FUSED, width, 2 * n_ff)?;
                if let Some(bias) = &both.bias {
                    fail!(
                        Unsupported,
                        "tensor {}: biases of fused experts are not supported",
                        bias.name
                    );
                }
                (Some(both.clone()), both)
            }
            false => (
                if_gated(&|| stack("ffn_gate_exps", width, n_ff))?,
                stack("ffn_up_exps", width, n_ff)?,
            ),
        };
        Ok(Experts {
            n_experts,
            n_used: self.n_used,
            router,
            scoring: self.scoring,
            selection_bias: match self.selection_bias {
                Some(part) => Some(source.vector(&name(part), n_experts)?),
                None => None,
            },
            groups: self.groups,
            normalize: self.normalize,
            weight_scale: self.weight_scale,
            expert_scales: source.find_vector(&name(SCALES), n_experts)?,
            weighs_inputs: false,
            n_ff,
            gate,
            up,
            fused: self.fused,
            down: stack("ffn_down_exps", n_ff, width)?,
            activation: self.activation,
            shared,
            sum_bias: None,
        })
    }
}
