//! `afmoe`: Trinity, with a gate for each element of the heads' results, norms before and behind both parts, and
//! experts that are chosen by sigmoids and a bias in all layers but the first ones. Layers without a window have no
//! rotary embedding.

use super::decoder::{Decoder, Windows, bare_block};
use super::experts::{Defaults, Mixture, shared_count_ff, softmax};
use super::{Block, Network, NormKind, RopePairing, Scoring};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "afmoe", NormKind::Rms)?;
    let rope = d.rope(RopePairing::Halves)?;
    let windows = d.windows(Windows::ButEvery(4))?;
    let experts = Defaults {
        scoring: Scoring::Sigmoid,
        shared_ff: shared_count_ff(&d)?,
        ..softmax(&d)?
    };
    let experts = Mixture::new(&d, experts)?;
    let (hidden, q_len) = (d.hidden, d.n_heads * d.head_dim);
    let network = d.network(|i| {
        let rotated = windows[i].is_some();
        let mut attention = d.normed_attention(i, rotated.then_some(&rope), true)?;
        let gate = format!("blk.{i}.attn_gate");
        attention.gate = Some(d.source.linear(&gate, hidden, q_len)?);
        attention.window = windows[i];
        Ok(Block {
            mixer_norm: d.norm(i, "attn_norm")?,
            mixer_post_norm: d.norm(i, "post_attention_norm")?,
            feed_forward_norm: d.norm(i, "ffn_norm")?,
            feed_forward_post_norm: d.norm(i, "post_ffw_norm")?,
            ..bare_block(attention, experts.or_gated(&d, i)?)
        })
    })?;
    let scale = d.source.find_positive("embedding_scale")?;
    Ok(Network {
        embedding_scale: scale.unwrap_or((hidden as f64).sqrt() as f32),
        ..network
    })
}
