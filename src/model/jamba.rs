//! `jamba`: Jamba. Its layers are Mamba, with norms inside, or attention without positions, and some have
//! experts in place of a feed-forward part.

use super::decoder::Decoder;
use super::experts::{Defaults, Mixture, softmax};
use super::hybrid::{attending, kv_heads};
use super::mamba1::{Norms, Sizes};
use super::{Activation, Mixer, Network, NormKind};
use crate::error::Result;
use crate::format::ModelFile;

/// Tensors of a layer that has experts.
const OF_EXPERTS: [&str; 4] = [
    "ffn_gate_inp",
    "ffn_gate_exps",
    "ffn_up_exps",
    "ffn_down_exps",
];

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read_with(file, "jamba", NormKind::Rms, kv_heads)?;
    let attends = attending(&d.source, d.n_layers, "ssm_in")?;
    let sizes = match attends.contains(&false) {
        true => Some(Sizes::read(&d)?),
        false => None,
    };
    let has = |layer: usize, part: &str| d.source.has(&format!("blk.{layer}.{part}"));
    let routed = |layer: usize| OF_EXPERTS.iter().any(|part| has(layer, part));
    let experts = match (0..d.n_layers).any(routed) {
        true => Some(Mixture::new(
            &d,
            Defaults {
                normalize: false,
                ..softmax(&d)?
            },
        )?),
        false => None,
    };
    d.network(|i| {
        let mixer: Mixer = match &sizes {
            Some(sizes) if !attends[i] => sizes.layer(&d, i, Norms::Weighted)?.into(),
            _ => d.attention(i, None)?.into(),
        };
        let feed_forward = match &experts {
            Some(experts) if routed(i) => experts.layer(&d, i)?,
            _ => d.gated(i, Activation::Silu)?,
        };
        d.pre_norm_block(i, mixer, feed_forward)
    })
}
