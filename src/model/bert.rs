//! Encoders: `bert` (also DistilBERT, RoBERTa, XLM-RoBERTa), `mpnet`, `nomic-bert`, `nomic-bert-moe`, `jina-bert-v2` and
//! `jina-bert-v3`, whose blocks norm the residual stream itself, and `modern-bert` and `eurobert`, whose
//! blocks have their norms before the parts.

use super::decoder::{Decoder, bare_block};
use super::experts::{Defaults, Mixture};
use super::{
    Activation, Attention, Block, Encoder, FeedForward, Network, NormKind, RopePairing, Scoring,
    distances, slopes,
};
use crate::error::{Result, fail};
use crate::format::{ModelFile, Value};
use std::sync::Arc;

/// How far a position sees in a layer with a window of so many positions around it: itself and those
/// before it.
pub(super) fn half_window(window: usize) -> usize {
    window / 2 + 1
}

pub(super) fn bert(file: &ModelFile) -> Result<Network> {
    let d = read(file, "bert")?;
    learned_positions(&d, |i| d.attention(i, None))
}

/// Learned positions, and numbers that the scores of all layers get by the distance.
pub(super) fn mpnet(file: &ModelFile) -> Result<Network> {
    let d = read(file, "mpnet")?;
    let buckets = distances::buckets(&d.source)?;
    let distances = distances::read(&d, "attn_rel_b.weight", &buckets)?;
    learned_positions(&d, |i| {
        Ok(Attention {
            distances: Some(distances.clone()),
            ..d.attention(i, None)?
        })
    })
}

pub(super) fn nomic_bert(file: &ModelFile) -> Result<Network> {
    let d = read(file, "nomic-bert")?;
    d.refuse_experts()?;
    let rope = d.rope(RopePairing::Halves)?;
    post_normed(
        &d,
        |i| d.attention(i, Some(&rope)),
        |i| d.gated(i, Activation::Silu),
    )
}

/// Every n-th layer from the second on has experts without gates, whose weights are shares of all experts.
pub(super) fn nomic_bert_experts(file: &ModelFile) -> Result<Network> {
    const EVERY: &str = "moe_every_n_layers";
    let d = read(file, "nomic-bert-moe")?;
    let rope = d.rope(RopePairing::Halves)?;
    let every = d.source.size(EVERY)?;
    let defaults = Defaults {
        scoring: Scoring::Softmax,
        normalize: false,
        activation: Activation::Gelu,
        gated: false,
        n_ff: d.n_ff()?,
        shared_ff: None,
    };
    let mixture = Mixture::new(&d, defaults)?;
    post_normed(
        &d,
        |i| d.attention(i, Some(&rope)),
        |i| {
            if i % every != 1 {
                return d.plain(i, Activation::Gelu);
            }
            let mut experts = mixture.experts(&d, i)?;
            // GGUF files of other converters are without it.
            let bias = format!("blk.{i}.ffn_exps_sum.bias");
            experts.sum_bias = d.source.find_vector(&bias, d.hidden)?;
            Ok(FeedForward::Experts(Box::new(experts)))
        },
    )
}

pub(super) fn jina_bert_v2(file: &ModelFile) -> Result<Network> {
    let d = read(file, "jina-bert-v2")?;
    let slopes = slopes::slopes(d.n_heads, 8.0);
    let attention = |i| {
        Ok(Attention {
            slopes: Some(Arc::clone(&slopes)),
            ..d.attention(i, None)?
        })
    };
    // Older files have the gate apart.
    let apart = d.has_part("ffn_gate.weight");
    post_normed(&d, attention, |i| match apart {
        true => d.gated(i, Activation::Gelu),
        false => d.gated_fused(i, Activation::Gelu),
    })
}

pub(super) fn jina_bert_v3(file: &ModelFile) -> Result<Network> {
    let d = read(file, "jina-bert-v3")?;
    let rope = d.rope(RopePairing::Halves)?;
    post_normed(
        &d,
        |i| d.attention(i, Some(&rope)),
        |i| d.plain(i, Activation::Gelu),
    )
}

/// A Llama that sees everything.
pub(super) fn eurobert(file: &ModelFile) -> Result<Network> {
    let mut d = Decoder::read(file, "eurobert", NormKind::Rms)?;
    d.causal = false;
    d.refuse_experts()?;
    let rope = d.rope(RopePairing::Halves)?;
    d.network(|i| {
        let attention = d.attention(i, Some(&rope))?;
        d.pre_norm_block(i, attention, d.gated(i, Activation::Silu)?)
    })
}

pub(super) fn modern_bert(file: &ModelFile) -> Result<Network> {
    let d = read(file, "modern-bert")?;
    let rope = d.rope(RopePairing::Halves)?;
    let local = d.local_rope(RopePairing::Halves, 10_000.0)?;
    let windows = modern_windows(&d)?;
    let activation = modern_activation(&d)?;
    let norm = |name: &str| d.source.norm(name, d.hidden, NormKind::Layer, d.eps);
    let final_norm = norm("output_norm")?;
    let network = d.network_with(
        d.n_layers,
        || Ok(final_norm),
        |i| {
            let rope = if windows[i].is_some() { &local } else { &rope };
            let mut attention = d.attention(i, Some(rope))?;
            attention.window = windows[i];
            Ok(Block {
                // The embedding's norm is the first one's.
                mixer_norm: match i {
                    0 if !d.source.has("blk.0.attn_norm") => None,
                    _ => d.norm(i, "attn_norm")?,
                },
                feed_forward_norm: d.norm(i, "ffn_norm")?,
                ..bare_block(attention, d.gated_fused(i, activation)?)
            })
        },
    )?;
    encoder(&d, network)
}

/// The activation of the gates. Some relatives (Granite Embedding R2) have another one.
fn modern_activation(d: &Decoder) -> Result<Activation> {
    const KEY: &str = "hidden_activation";
    match d.source.find::<&str>(KEY)? {
        None | Some("gelu" | "geglu") => Ok(Activation::Gelu),
        Some("silu" | "swish" | "swiglu") => Ok(Activation::Silu),
        Some(other) => fail!(
            Unsupported,
            "{} is {other:?}; supported: gelu, silu",
            d.source.key_name(KEY)
        ),
    }
}

/// Every n-th layer sees everything, the first among them, unless the file says it for each.
fn modern_windows(d: &Decoder) -> Result<Vec<Option<usize>>> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    let Some(window) = d.source.find_size("attention.sliding_window")? else {
        return Ok(vec![None; d.n_layers]);
    };
    let window = half_window(window);
    let key = d.source.key(PATTERN);
    if matches!(d.source.file.metadata.get(&key), Some(Value::Array(_))) {
        let windows = d.windows(super::decoder::Windows::Everywhere)?;
        return Ok(windows.into_iter().map(|w| w.map(|_| window)).collect());
    }
    let n = d.source.find_size(PATTERN)?.unwrap_or(3);
    let local = |layer: usize| !layer.is_multiple_of(n);
    Ok((0..d.n_layers)
        .map(|i| local(i).then_some(window))
        .collect())
}

fn read<'a>(file: &'a ModelFile, architecture: &'static str) -> Result<Decoder<'a>> {
    let mut d = Decoder::read(file, architecture, NormKind::Layer)?;
    // Whatever the file says.
    d.causal = false;
    Ok(d)
}

/// BERT's blocks, with positions that are learned.
fn learned_positions(
    d: &Decoder,
    attention: impl Fn(usize) -> Result<Attention>,
) -> Result<Network> {
    let positions = d
        .source
        .matrix("position_embd.weight", d.hidden, d.context_length)?;
    let network = post_normed(d, attention, |i| d.plain(i, Activation::Gelu))?;
    Ok(Network {
        positions: Some(positions),
        ..network
    })
}

/// Blocks without norms before their parts. The last norm of the last one is the network's final norm.
fn post_normed(
    d: &Decoder,
    attention: impl Fn(usize) -> Result<Attention>,
    feed_forward: impl Fn(usize) -> Result<FeedForward>,
) -> Result<Network> {
    let last = d.n_layers - 1;
    let final_norm = d.source.norm(
        &format!("blk.{last}.layer_output_norm"),
        d.hidden,
        NormKind::Layer,
        d.eps,
    )?;
    let network = d.network_with(
        d.n_layers,
        || Ok(final_norm),
        |i| {
            Ok(Block {
                mixer_sum_norm: d.norm(i, "attn_output_norm")?,
                feed_forward_sum_norm: match i < last {
                    true => d.norm(i, "layer_output_norm")?,
                    false => None,
                },
                ..bare_block(attention(i)?, feed_forward(i)?)
            })
        },
    )?;
    encoder(d, network)
}

/// The network with what encoders have before the first block.
fn encoder(d: &Decoder, network: Network) -> Result<Network> {
    let types = "token_types.weight";
    let token_types = match d.source.file.tensors.get(types) {
        Some(tensor) => Some(d.source.matrix(types, d.hidden, tensor.rows())?),
        None => None,
    };
    let embedding_norm = d
        .source
        .norm("token_embd_norm", d.hidden, NormKind::Layer, d.eps)?;
    Ok(Network {
        encoder: Some(Box::new(Encoder {
            token_types,
            embedding_norm: Some(embedding_norm),
        })),
        ..network
    })
}
