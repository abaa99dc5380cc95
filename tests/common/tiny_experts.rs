//! Small networks with mixtures of experts of every kind, with random weights.

use super::convert::converted;
use super::tiny::Tiny;
use emberlm::format::{ModelFile, Tensor};
use emberlm::model::{
    Activation, Experts, FeedForward, Linear, Mlp, Network, Scoring, SharedExpert,
};
use emberlm::quant::TensorType;
use std::collections::HashMap;

/// A mixture and what is special about it.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    pub n_experts: usize,
    pub n_used: usize,
    pub ff: usize,
    pub scoring: Scoring,
    pub normalize: bool,
    pub weight_scale: f32,
    pub selection_bias: bool,
    pub biases: bool,
    /// With a gate of its own, or without.
    pub shared: Option<bool>,
    pub activation: Activation,
    /// Type of all matrices.
    pub ty: TensorType,
}

pub const PLAIN: Variant = Variant {
    n_experts: 4,
    n_used: 2,
    ff: 32,
    scoring: Scoring::Softmax,
    normalize: true,
    weight_scale: 1.0,
    selection_bias: false,
    biases: false,
    shared: None,
    activation: Activation::Silu,
    ty: TensorType::F32,
};

/// Odd numbers of experts, one alone, all of them, more than there are tokens; every scoring; every
/// extra.
pub fn variants() -> Vec<Variant> {
    let clamped = Activation::ClampedSwiglu {
        alpha: 1.702,
        limit: 0.7,
    };
    vec![
        PLAIN,
        Variant {
            n_experts: 1,
            n_used: 1,
            ff: 33,
            ..PLAIN
        },
        Variant {
            n_experts: 5,
            n_used: 5,
            ff: 31,
            normalize: false,
            ..PLAIN
        },
        Variant {
            n_experts: 37,
            n_used: 1,
            ff: 8,
            scoring: Scoring::Sigmoid,
            ..PLAIN
        },
        Variant {
            n_experts: 129,
            n_used: 7,
            ff: 20,
            normalize: false,
            weight_scale: 2.5,
            ..PLAIN
        },
        Variant {
            n_experts: 6,
            n_used: 3,
            scoring: Scoring::Sigmoid,
            selection_bias: true,
            shared: Some(false),
            ..PLAIN
        },
        Variant {
            n_experts: 7,
            n_used: 3,
            ff: 40,
            normalize: false,
            shared: Some(true),
            ty: TensorType::BF16,
            ..PLAIN
        },
        Variant {
            scoring: Scoring::SoftmaxOfChosen,
            normalize: false,
            biases: true,
            shared: Some(true),
            activation: clamped,
            ..PLAIN
        },
        Variant {
            n_experts: 9,
            n_used: 4,
            ff: 64,
            scoring: Scoring::SoftmaxOfChosen,
            biases: true,
            activation: clamped,
            ty: TensorType::MXFP4,
            ..PLAIN
        },
        Variant {
            n_experts: 11,
            ff: 24,
            scoring: Scoring::SparseMixer { jitter: 0.4 },
            normalize: false,
            ..PLAIN
        },
        Variant {
            n_experts: 3,
            n_used: 2,
            ff: 96,
            ty: TensorType::Q8_0,
            ..PLAIN
        },
        Variant {
            n_experts: 8,
            n_used: 2,
            ff: 64,
            selection_bias: true,
            ty: TensorType::Q5_1,
            ..PLAIN
        },
        Variant {
            n_experts: 10,
            n_used: 3,
            ff: 64,
            shared: Some(true),
            ty: TensorType::Q8_0,
            ..PLAIN
        },
    ]
}

/// The network of a variant, of two layers.
pub fn network(v: &Variant) -> Network {
    network_of(v, 2)
}

/// The network of a variant, of so many layers.
pub fn network_of(v: &Variant, layers: usize) -> Network {
    network_with(v, layers, Tiny::default().hidden)
}

/// The same, so wide.
pub fn network_with(v: &Variant, layers: usize, hidden: usize) -> Network {
    let tiny = Tiny {
        layers,
        hidden,
        // Whole blocks of all types.
        head_dim: if hidden.is_multiple_of(256) { 64 } else { 8 },
        experts: Some((v.n_experts, v.n_used)),
        ff: v.ff,
        biases: v.biases,
        seed: v.n_experts as u64,
        shared_expert: true,
        ..Tiny::default()
    };
    let mut file = ModelFile::from_bytes(&tiny.bytes()).unwrap();
    if v.ty != TensorType::F32 {
        file = converted(&file, v.ty);
    }
    let (shared, rest): (HashMap<_, _>, _) = file
        .tensors
        .drain()
        .partition(|(name, _)| name.contains("_shexp."));
    file.tensors = rest;
    let mut network = Network::from_file(&file).unwrap();
    file.tensors.extend(shared);
    for (layer, block) in network.blocks.iter_mut().enumerate() {
        let tensor = |part: &str| -> Tensor {
            let name = format!("blk.{layer}.{part}");
            file.tensor(&name).unwrap().clone()
        };
        let FeedForward::Experts(e) = &mut block.feed_forward else {
            panic!("no experts")
        };
        **e = Experts {
            scoring: v.scoring,
            normalize: v.normalize,
            weight_scale: v.weight_scale,
            selection_bias: v.selection_bias.then(|| tensor("exp_probs_b.bias")),
            activation: v.activation,
            shared: v.shared.map(|gated| {
                let linear = |part: &str| Linear {
                    weight: tensor(&format!("{part}.weight")),
                    bias: v.biases.then(|| tensor(&format!("{part}.bias"))),
                };
                SharedExpert {
                    mlp: Mlp {
                        inner_norm: None,
                        gate: Some(linear("ffn_gate_shexp")),
                        up: linear("ffn_up_shexp"),
                        down: linear("ffn_down_shexp"),
                        activation: v.activation,
                    },
                    gate: gated.then(|| linear("ffn_gate_inp_shexp")),
                }
            }),
            ..(**e).clone()
        };
    }
    network
}

/// The same with a router that sends every token to one expert first.
pub fn one_for_all(v: &Variant, expert: usize, layers: usize) -> Network {
    let mut network = network_of(v, layers);
    for block in &mut network.blocks {
        let FeedForward::Experts(e) = &mut block.feed_forward else {
            panic!("no experts")
        };
        let mut bias = vec![0.0f32; v.n_experts];
        bias[expert] = 50.0;
        e.router.bias = Some(vector(&bias));
    }
    network
}

/// A tensor of numbers of its own.
fn vector(values: &[f32]) -> Tensor {
    let mut writer = emberlm::format::writer::Writer::new();
    writer.set("general.architecture", "none");
    writer
        .tensor("vector", TensorType::F32, &[values.len()])
        .unwrap();
    let mut bytes = Vec::new();
    writer
        .write(&mut bytes, |_, out| {
            values
                .iter()
                .try_for_each(|v| out.write_all(&v.to_le_bytes()))
        })
        .unwrap();
    let file = ModelFile::from_bytes(&bytes).unwrap();
    file.tensor("vector").unwrap().clone()
}
