//! Tensors of a file that its network does not use.
//!
//! A weight that is silently left out makes a model that answers worse than it should, and nobody
//! sees why: a variant with a norm more, adapters, biases of a layer that has none here. So a tensor
//! that no part of the network reads is refused by its name, in GGUF files and in folders alike,
//! unless it is known to be no weight of the text model:
//!
//! - constants that are computed here, such as the inverse frequencies that old exporters wrote;
//! - the parts of a model for images and sound, which some GGUF files have beside the text part;
//! - layers that guess further tokens ahead, which the others do without.
//!
//! (What folders have of these stands with the reader of folders, which knows their names.)

use super::Network;
use crate::error::{Result, fail};
use crate::format::ModelFile;
use std::collections::HashSet;

/// Factors on rope's frequencies and on layers, which are in the network, and the frequencies themselves.
const CONSTANTS: [&str; 6] = [
    ".layer_output_scale.weight",
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
    ".attn_rot_embd",
    ".rope_freqs.weight",
];
/// Convolutions that the network has as one.
const JOINED: [&str; 3] = [
    ".ssm_conv1d_q.weight",
    ".ssm_conv1d_k.weight",
    ".ssm_conv1d_v.weight",
];
/// What the names of parts for images and sound start with.
const OTHER_PARTS: [&str; 3] = ["v.", "mm.", "a."];

/// `Unsupported` naming the first tensor that the network does not use, and may not leave out.
pub(super) fn refuse(file: &ModelFile, network: &Network) -> Result<()> {
    let all = [Some(network), network.predictor.as_deref()];
    let all = all.into_iter().flatten().flat_map(Network::tensors);
    let used: HashSet<&str> = all.map(|t| &*t.name).collect();
    let count = |key: &str| -> Result<usize> {
        let key = format!("{}.{key}", network.architecture);
        Ok(file.find::<usize>(&key)?.unwrap_or(0))
    };
    let all_layers = count("block_count")?;
    let heads = all_layers.saturating_sub(count("nextn_predict_layers")?)..all_layers;
    // The first one is in use where it was asked for.
    let further = heads.start + usize::from(network.predictor.is_some())..heads.end;
    let ignored = |name: &str| {
        let joined = ["kimi-linear", "bailingmoe3"].contains(&&*network.architecture);
        CONSTANTS.iter().any(|end| name.ends_with(end))
            || joined && JOINED.iter().any(|end| name.ends_with(end))
            || OTHER_PARTS.iter().any(|start| name.starts_with(start))
            || layer(name).is_some_and(|layer| further.contains(&layer))
            || of_shared(network, name)
    };
    let unused = file
        .tensors
        .iter()
        .filter(|(name, tensor)| !used.contains(&*tensor.name) && !ignored(name));
    if let Some((_, tensor)) = unused.min_by_key(|(name, _)| *name) {
        fail!(
            Unsupported,
            "tensor {} is not used by the architecture {}: the model is a variant that is not supported",
            tensor.name,
            network.architecture
        );
    }
    Ok(())
}

/// Whether a tensor would make keys or values of a layer that reads those of another.
fn of_shared(network: &Network, name: &str) -> bool {
    let block = layer(name).and_then(|layer| network.blocks.get(layer));
    let attention = block.and_then(|block| block.mixer.as_attention());
    let part = name.splitn(3, '.').nth(2).unwrap_or("");
    attention.is_some_and(|a| a.shares.is_some())
        && ["attn_k.", "attn_v.", "attn_k_norm."]
            .iter()
            .any(|start| part.starts_with(start))
}

/// The number in `blk.{layer}.`.
fn layer(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}
