//! Encoders: `bert` (also RoBERTa, XLM-RoBERTa), `nomic-bert` and `jina-bert-v3`, whose blocks norm the
//! residual stream itself, and `modern-bert`, whose blocks have their norms before the parts.

use super::decoder::{Decoder, bare_block};
use super::{Activation, Block, Encoder, FeedForward, Network, NormKind, Rope, RopePairing};
use crate::error::Result;
use crate::format::{ModelFile, Value};

/// How far a position sees in a layer with a window of so many positions around it: itself and those
/// before it.
pub(super) fn half_window(window: usize) -> usize {
    window / 2 + 1
}

pub(super) fn bert(file: &ModelFile) -> Result<Network> {
    let d = read(file, "bert")?;
    let positions = d
        .source
        .matrix("position_embd.weight", d.hidden, d.context_length)?;
    let network = post_normed(&d, None, |i| d.plain(i, Activation::Gelu))?;
    Ok(Network {
        positions: Some(positions),
        ..network
    })
}

pub(super) fn nomic_bert(file: &ModelFile) -> Result<Network> {
    let d = read(file, "nomic-bert")?;
    d.refuse_experts()?;
    let rope = d.rope(RopePairing::Halves)?;
    post_normed(&d, Some(&rope), |i| d.gated(i, Activation::Silu))
}

pub(super) fn jina_bert_v3(file: &ModelFile) -> Result<Network> {
    let d = read(file, "jina-bert-v3")?;
    let rope = d.rope(RopePairing::Halves)?;
    post_normed(&d, Some(&rope), |i| d.plain(i, Activation::Gelu))
}

pub(super) fn modern_bert(file: &ModelFile) -> Result<Network> {
    let d = read(file, "modern-bert")?;
    let rope = d.rope(RopePairing::Halves)?;
    let local = d.local_rope(RopePairing::Halves, 10_000.0)?;
    let windows = modern_windows(&d)?;
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
                ..bare_block(attention, d.gated_fused(i, Activation::Gelu)?)
            })
        },
    )?;
    encoder(&d, network)
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

/// Blocks without norms before their parts. The last norm of the last one is the network's final norm.
fn post_normed(
    d: &Decoder,
    rope: Option<&Rope>,
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
                ..bare_block(d.attention(i, rope)?, feed_forward(i)?)
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
