//! Mixtures of experts: their hyperparameters and tensors, whose names all families share.

use super::source::Source;
use super::{Activation, Experts, FeedForward, Linear, Mlp, Scoring, SharedExpert};
use crate::error::{Result, fail};

/// What a family's experts are unless the file says otherwise.
pub(super) struct Defaults {
    pub scoring: Scoring,
    pub normalize: bool,
    pub activation: Activation,
    /// Inner width of an expert where the file has none.
    pub n_ff: Option<usize>,
    /// Whether there is a shared expert, and its inner width where the file has none.
    pub shared: Option<Option<usize>>,
}

/// Sizes and constants of the experts of all layers.
pub(super) struct Mixture {
    n_experts: usize,
    n_used: usize,
    n_ff: usize,
    scoring: Scoring,
    normalize: bool,
    weight_scale: f32,
    activation: Activation,
    /// Inner width of the shared expert.
    shared: Option<usize>,
}

const COUNT: &str = "expert_count";
const USED: &str = "expert_used_count";
const WIDTH: &str = "expert_feed_forward_length";
const SHARED_WIDTH: &str = "expert_shared_feed_forward_length";
const SCORING: &str = "expert_gating_func";
const SCALE: &str = "expert_weights_scale";
const GROUPS: &str = "expert_group_count";

impl Mixture {
    /// What the keys `expert_*` say; `None` if there are no experts.
    pub(super) fn find(source: &Source, defaults: &Defaults) -> Result<Option<Mixture>> {
        match source.find::<u64>(COUNT)? {
            None | Some(0) => Ok(None),
            Some(_) => Mixture::new(source, defaults).map(Some),
        }
    }

    /// The same where there must be experts.
    pub(super) fn new(source: &Source, defaults: &Defaults) -> Result<Mixture> {
        let n_experts = source.size(COUNT)?;
        let n_used = source.size(USED)?;
        if n_used > n_experts {
            let problem = format!("is {n_used}, but there are only {n_experts} experts");
            return Err(source.invalid(USED, &problem));
        }
        if let Some(groups) = source.find::<u64>(GROUPS)?
            && groups > 1
        {
            fail!(
                Unsupported,
                "{} is {groups}; experts in groups are not supported",
                source.key(GROUPS)
            );
        }
        let n_ff = match (source.find_size(WIDTH)?, defaults.n_ff) {
            (Some(n_ff), _) | (None, Some(n_ff)) => n_ff,
            (None, None) => source.size(WIDTH)?,
        };
        let shared = match defaults.shared {
            None => None,
            Some(default) => match (source.find_size(SHARED_WIDTH)?, default) {
                (Some(n_ff), _) | (None, Some(n_ff)) => Some(n_ff),
                (None, None) => Some(source.size(SHARED_WIDTH)?),
            },
        };
        let scoring = match source.find::<u64>(SCORING)? {
            None | Some(0) => defaults.scoring,
            Some(1) => Scoring::Softmax,
            Some(2) => Scoring::Sigmoid,
            Some(3) => Scoring::SoftmaxOfChosen,
            Some(other) => fail!(
                Unsupported,
                "{} is {other}; supported: 1 (softmax), 2 (sigmoid), 3 (softmax of the chosen)",
                source.key(SCORING)
            ),
        };
        // A factor of 0 stands for none.
        let weight_scale = match source.find::<f32>(SCALE)? {
            None | Some(0.0) => 1.0,
            Some(_) => source.positive(SCALE)?,
        };
        let normalize = source.find("expert_weights_norm")?;
        source.product(COUNT, n_experts, n_ff)?;
        Ok(Mixture {
            n_experts,
            n_used,
            n_ff,
            scoring,
            normalize: normalize.unwrap_or(defaults.normalize),
            weight_scale,
            activation: defaults.activation,
            shared,
        })
    }

    /// The experts of a layer.
    pub(super) fn layer(
        &self,
        source: &Source,
        layer: usize,
        hidden: usize,
    ) -> Result<FeedForward> {
        let (n_experts, n_ff) = (self.n_experts, self.n_ff);
        let name = |part: &str| format!("blk.{layer}.{part}");
        let apart = name("ffn_gate.0.weight");
        if source.file.tensors.contains_key(&*apart) {
            fail!(
                Unsupported,
                "tensor {apart}: experts in tensors of their own; files made since 2024 have them in \
                 one, {}",
                name("ffn_gate_exps.weight")
            );
        }
        let stack = |part: &str, inputs, outputs| {
            source.stacked_linear(&name(part), inputs, outputs, n_experts)
        };
        let shared = match self.shared {
            None => None,
            Some(shared_ff) => Some(SharedExpert {
                mlp: Mlp {
                    gate: Some(source.linear(&name("ffn_gate_shexp"), hidden, shared_ff)?),
                    up: source.linear(&name("ffn_up_shexp"), hidden, shared_ff)?,
                    down: source.linear(&name("ffn_down_shexp"), shared_ff, hidden)?,
                    activation: self.activation,
                },
                gate: find_linear(source, &name("ffn_gate_inp_shexp"), hidden, 1)?,
            }),
        };
        Ok(FeedForward::Experts(Box::new(Experts {
            n_experts,
            n_used: self.n_used,
            router: source.linear(&name("ffn_gate_inp"), hidden, n_experts)?,
            scoring: self.scoring,
            selection_bias: source.find_vector(&name("exp_probs_b.bias"), n_experts)?,
            normalize: self.normalize,
            weight_scale: self.weight_scale,
            gate: stack("ffn_gate_exps", hidden, n_ff)?,
            up: stack("ffn_up_exps", hidden, n_ff)?,
            down: stack("ffn_down_exps", n_ff, hidden)?,
            activation: self.activation,
            shared,
        })))
    }
}

fn find_linear(
    source: &Source,
    name: &str,
    inputs: usize,
    outputs: usize,
) -> Result<Option<Linear>> {
    if source.file.tensors.contains_key(&*format!("{name}.weight")) {
        source.linear(name, inputs, outputs).map(Some)
    } else {
        Ok(None)
    }
}
