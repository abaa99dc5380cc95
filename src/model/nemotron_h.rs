//! `nemotron_h` and `nemotron_h_moe`: Nemotron-H, also with experts. Each of its layers is one of Mamba 2,
//! attention without positions, and a feed-forward part, with a norm before it. A block is a layer of the
//! first two kinds and, if one follows, the feed-forward part behind it.

use super::decoder::{Decoder, bare_block};
use super::experts::{Defaults, Mixture, shared_ff, softmax};
use super::hybrid::{kv_heads, per_layer};
use super::mamba2::Sizes;
use super::{Activation, Block, FeedForward, Mixer, Network, NormKind, Scoring};
use crate::error::{Result, fail};
use crate::format::ModelFile;

const KV_HEADS: &str = "attention.head_count_kv";
const N_FF: &str = "feed_forward_length";
const LATENT: &str = "moe_latent_size";

/// What a layer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Recurrent,
    Attention,
    FeedForward,
}

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read_with(file, "nemotron_h", NormKind::Rms, kv_heads)?;
    d.refuse_experts()?;
    network(d, None)
}

/// The one whose feed-forward parts, or some of them, are experts without gates.
pub(super) fn experts(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read_with(file, "nemotron_h_moe", NormKind::Rms, kv_heads)?;
    let defaults = Defaults {
        scoring: Scoring::Sigmoid,
        activation: Activation::ReluSquared,
        gated: false,
        shared_ff: shared_ff(&d)?,
        ..softmax(&d)?
    };
    let experts = Mixture::new(&d, defaults)?;
    let latent = match d.source.find::<u64>(LATENT)? {
        None | Some(0) => None,
        Some(_) => Some(d.source.size(LATENT)?),
    };
    if let Some(latent) = latent
        && latent > d.hidden
    {
        let problem = format!(
            "is {latent}, more than the width of the network, {}",
            d.hidden
        );
        return Err(d.source.invalid(LATENT, &problem));
    }
    network(d, Some((experts, latent)))
}

/// With experts, there may be another width than the network's for their inputs and outputs.
fn network(mut d: Decoder, experts: Option<(Mixture, Option<usize>)>) -> Result<Network> {
    let all = d.n_layers;
    d.leave_out_predictors()?;
    let kinds = kinds(&d, all)?;
    let widths = per_layer(&d.source, N_FF, all)?;
    let sizes = match kinds.contains(&Kind::Recurrent) {
        true => Some(Sizes::read(&d)?),
        false => None,
    };
    let mixers = mixers(&kinds)?;
    d.network_of(mixers.len(), |i| {
        let layer = mixers[i];
        let mixer: Mixer = match &sizes {
            Some(sizes) if kinds[layer] == Kind::Recurrent => sizes.layer(&d, layer)?.into(),
            _ => d.attention(layer, None)?.into(),
        };
        let next = layer + 1;
        let behind = kinds.get(next) == Some(&Kind::FeedForward);
        let block = Block {
            mixer_norm: d.norm(layer, "attn_norm")?,
            ..bare_block(mixer, FeedForward::None)
        };
        if !behind {
            return Ok(block);
        }
        let has = |part| d.source.has(&format!("blk.{next}.{part}"));
        let routed = ["ffn_gate_inp", "ffn_up_exps", "ffn_down_exps"]
            .iter()
            .any(has);
        Ok(Block {
            feed_forward_norm: d.norm(next, "attn_norm")?,
            feed_forward: match (&experts, &widths) {
                (Some((experts, None)), _) if routed => experts.layer(&d, next)?,
                (Some((experts, Some(latent))), _) if routed => {
                    experts.latent_layer(&d, next, *latent)?
                }
                (_, None) => d.plain(next, Activation::ReluSquared)?,
                (_, Some(widths)) => {
                    let n_ff = d.source.check_size(N_FF, widths[next])?;
                    d.plain_of(next, n_ff, Activation::ReluSquared)?
                }
            },
            ..block
        })
    })
}

/// What each layer is: attention where it has KV heads, a feed-forward part where it has an inner width,
/// Mamba 2 else. Where one number stands for all layers, their tensors say it. The file has numbers of `all` layers, also
/// of those behind that guess further tokens, which are of two kinds at once.
fn kinds(d: &Decoder, all: usize) -> Result<Vec<Kind>> {
    let heads = per_layer(&d.source, KV_HEADS, all)?;
    let widths = per_layer(&d.source, N_FF, all)?;
    let has = |layer: usize, part: &str| d.source.has(&format!("blk.{layer}.{part}"));
    let kind = |layer: usize| {
        let attends = match &heads {
            Some(heads) => heads[layer] > 0,
            None => has(layer, "attn_q"),
        };
        let feeds = match &widths {
            Some(widths) => widths[layer] > 0,
            None => has(layer, "ffn_up") || has(layer, "ffn_up_exps"),
        };
        Ok(match (attends, feeds) {
            (true, false) => Kind::Attention,
            (false, true) => Kind::FeedForward,
            (false, false) => Kind::Recurrent,
            (true, true) => {
                let problem = format!("gives layer {layer} an inner width, but it attends");
                return Err(d.source.invalid(N_FF, &problem));
            }
        })
    };
    (0..d.n_layers).map(kind).collect()
}

/// The layers that mix positions.
fn mixers(kinds: &[Kind]) -> Result<Vec<usize>> {
    let mut mixers = Vec::new();
    for (layer, kind) in kinds.iter().enumerate() {
        let behind_mixer = layer > 0 && kinds[layer - 1] != Kind::FeedForward;
        match kind {
            Kind::FeedForward if !behind_mixer => fail!(
                Unsupported,
                "layer {layer} is a feed-forward part that follows neither Mamba 2 nor attention"
            ),
            Kind::FeedForward => {}
            Kind::Recurrent | Kind::Attention => mixers.push(layer),
        }
    }
    Ok(mixers)
}
