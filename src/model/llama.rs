//! `llama`: Llama 2 to 3.2, Mistral, Mixtral, TinyLlama, SmolLM2 and others of their shape. `internlm2`, `xverse` and
//! `baichuan` are the same without experts and windows. `llama-embed` is an encoder of that shape, and `nanbeige` goes through its
//! layers several times.

use super::decoder::{Decoder, Windows};
use super::experts::{Mixture, softmax};
use super::{Activation, Network, NormKind, RopePairing, slopes};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    network(&Decoder::read(file, "llama", NormKind::Rms)?)
}

/// Llama whose positions see those behind them. Files need not say that.
pub(super) fn embed(file: &ModelFile) -> Result<Network> {
    let mut d = Decoder::read(file, "llama-embed", NormKind::Rms)?;
    d.causal = d.source.find("attention.causal")?.unwrap_or(false);
    network(&d)
}

/// All layers follow each other as many times as the file says, each time with keys and values of their own, and with the final norm
/// between two times.
pub(super) fn nanbeige(file: &ModelFile) -> Result<Network> {
    const LOOPS: &str = "num_loops";
    let d = Decoder::read(file, "nanbeige", NormKind::Rms)?;
    d.refuse_experts()?;
    let loops = d.source.find_size(LOOPS)?.unwrap_or(1);
    let blocks = d.source.product(LOOPS, loops, d.n_layers)?;
    if blocks > MOST_BLOCKS {
        let problem =
            format!("is {loops}, which makes {blocks} layers; at most {MOST_BLOCKS} work");
        return Err(d.source.invalid(LOOPS, &problem));
    }
    let normed = !d.source.find("skip_loop_final_norm")?.unwrap_or(false);
    let rope = d.rope(RopePairing::Interleaved)?;
    d.network_of(blocks, |i| {
        let layer = i % d.n_layers;
        let attention = d.attention(layer, Some(&rope))?;
        let mut block = d.pre_norm_block(layer, attention, d.gated(layer, Activation::Silu)?)?;
        if normed && layer + 1 == d.n_layers && i + 1 < blocks {
            let norm = d
                .source
                .norm("output_norm", d.hidden, NormKind::Rms, d.eps)?;
            block.feed_forward_sum_norm = Some(norm);
        }
        Ok(block)
    })
}

/// Of a model that goes through its layers several times.
const MOST_BLOCKS: usize = 4096;

fn network(d: &Decoder) -> Result<Network> {
    let experts = Mixture::find(d, softmax(d)?)?;
    let rope = d.rope(RopePairing::Interleaved)?;
    let windows = d.windows(Windows::Everywhere)?;
    d.network(|i| {
        let mut attention = d.attention(i, Some(&rope))?;
        attention.window = windows[i];
        let feed_forward = match &experts {
            Some(experts) => experts.layer(d, i)?,
            None => d.gated(i, Activation::Silu)?,
        };
        d.pre_norm_block(i, attention, feed_forward)
    })
}

pub(super) fn internlm2(file: &ModelFile) -> Result<Network> {
    dense(&Decoder::read(file, "internlm2", NormKind::Rms)?)
}

pub(super) fn xverse(file: &ModelFile) -> Result<Network> {
    dense(&Decoder::read(file, "xverse", NormKind::Rms)?)
}

/// Those of 13B parameters have no rope, but scores that fall with the distance. Only the number of layers
/// tells them from the others.
pub(super) fn baichuan(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "baichuan", NormKind::Rms)?;
    if d.n_layers != 40 {
        return dense(&d);
    }
    falling(&d)
}

/// Refact, whose scores fall with the distance.
pub(super) fn refact(file: &ModelFile) -> Result<Network> {
    falling(&Decoder::read(file, "refact", NormKind::Rms)?)
}

/// Without a rotary embedding: scores fall with the distance, as steeply as in ALiBi's paper.
fn falling(d: &Decoder) -> Result<Network> {
    d.refuse_experts()?;
    let slopes = slopes::slopes(d.n_heads, 8.0);
    d.network(|i| {
        let mut attention = d.attention(i, None)?;
        attention.slopes = Some(slopes.clone());
        d.pre_norm_block(i, attention, d.gated(i, Activation::Silu)?)
    })
}

fn dense(d: &Decoder) -> Result<Network> {
    d.refuse_experts()?;
    let rope = d.rope(RopePairing::Interleaved)?;
    d.network(|i| {
        let attention = d.attention(i, Some(&rope))?;
        d.pre_norm_block(i, attention, d.gated(i, Activation::Silu)?)
    })
}
