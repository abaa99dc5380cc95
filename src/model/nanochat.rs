//! `nanochat`: nanochat, whose norms have no weights, with one of the embedding, and those of queries and keys behind their rotation, which
//! goes the other way round.

use super::decoder::{Decoder, bare_block};
use super::{Activation, Block, Network, Norm, NormKind, RopePairing};
use crate::error::Result;
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "nanochat", NormKind::Rms)?;
    d.refuse_experts()?;
    let mut rope = d.rope(RopePairing::Halves)?;
    rope.inv_freq = rope.inv_freq.iter().map(|f| -f).collect();
    if let Some(long) = &mut rope.long {
        long.inv_freq = long.inv_freq.iter().map(|f| -f).collect();
    }
    let plain = |len| Norm::plain(NormKind::Rms, "a norm without weights", len, d.eps);
    let (norm, of_heads) = (plain(d.hidden)?, plain(d.head_dim)?);
    let block = |i| {
        let mut attention = d.attention(i, Some(&rope))?;
        attention.norm_after_rope = true;
        attention.q_norm = Some(of_heads.clone());
        attention.k_norm = Some(of_heads.clone());
        Ok(Block {
            mixer_norm: Some(norm.clone()),
            feed_forward_norm: Some(norm.clone()),
            ..bare_block(attention, d.plain(i, Activation::ReluSquared)?)
        })
    };
    let network = d.network_with(d.n_layers, || Ok(norm.clone()), block)?;
    Ok(Network {
        embedding_norm: Some(norm),
        ..network
    })
}
