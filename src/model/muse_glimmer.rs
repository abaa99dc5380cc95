//! `muse-glimmer`: Muse Glimmer (text), with a norm of the embedding, norms before and behind both parts, gates of all elements of heads, and
//! windows in most layers, which alone rotate.

use super::decoder::{Decoder, Windows, bare_block};
use super::{Activation, Block, Network, Norm, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

/// Of the norms behind both parts. No key says it.
const POST_EPS: f32 = 1e-8;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "muse-glimmer", NormKind::Rms)?;
    d.refuse_experts()?;
    d.source.size("attention.sliding_window")?;
    let windows = d.windows(Windows::ButEvery(4))?;
    let rope = d.rope(RopePairing::Interleaved)?;
    let local = d.local_rope(RopePairing::Interleaved, d.rope_base()?)?;
    // A base of its own is that of the layers that rotate.
    let rope = match d.source.find_positive("rope.freq_base_swa")? {
        Some(_) => local,
        None => rope,
    };
    let behind = |layer: usize, part: &str| -> Result<Option<Norm>> {
        let norm = d.norm(layer, part)?;
        Ok(norm.map(|norm| Norm {
            eps: POST_EPS,
            ..norm
        }))
    };
    let network = d.network(|i| {
        let mut attention = d.normed_attention(i, windows[i].map(|_| &rope), true)?;
        attention.window = windows[i];
        let gate = format!("blk.{i}.attn_gate");
        let gates = d.n_heads * d.head_dim;
        attention.gate = Some(d.source.linear(&gate, d.hidden, gates)?);
        Ok(Block {
            mixer_norm: d.norm(i, "attn_norm")?,
            mixer_post_norm: behind(i, "post_attention_norm")?,
            feed_forward_norm: d.norm(i, "ffn_norm")?,
            feed_forward_post_norm: behind(i, "post_ffw_norm")?,
            ..bare_block(attention, d.gated(i, Activation::Silu)?)
        })
    })?;
    let name = "a norm of the embedding without weights";
    Ok(Network {
        embedding_norm: Some(Norm::plain(NormKind::Rms, name, d.hidden, d.eps)?),
        logit_scale: d.source.positive("logit_scale")?,
        ..network
    })
}
