//! `bitnet`: BitNet b1.58, as `llama` with norms of what the products of attention's output and of the
//! feed-forward's output read. Its matrices are ternary in most files; inputs of products are not rounded to
//! eight bits first.

use super::decoder::Decoder;
use super::{Activation, FeedForward, Network, NormKind, RopePairing};
use crate::error::{Result, fail};
use crate::format::ModelFile;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "bitnet", NormKind::Rms)?;
    d.refuse_experts()?;
    let rope = d.rope(RopePairing::Halves)?;
    let (q_len, n_ff) = (d.n_heads * d.head_dim, d.n_ff()?);
    let activation = activation(&d)?;
    d.network(|i| {
        let mut attention = d.attention(i, Some(&rope))?;
        attention.output_norm = d.norm_of(i, "attn_sub_norm", q_len)?;
        let mut feed_forward = d.gated(i, activation)?;
        if let FeedForward::Dense(mlp) = &mut feed_forward {
            mlp.inner_norm = d.norm_of(i, "ffn_sub_norm", n_ff)?;
        }
        d.pre_norm_block(i, attention, feed_forward)
    })
}

/// The activation that a key names. Without it, the file is of a time when there was one alone.
fn activation(d: &Decoder) -> Result<Activation> {
    const KEY: &str = "hidden_activation";
    match d.source.find::<&str>(KEY)? {
        None | Some("silu" | "swish") => Ok(Activation::Silu),
        Some("relu2") => Ok(Activation::ReluSquared),
        Some(other) => fail!(
            Unsupported,
            "{} is {other:?}; supported: silu, relu2",
            d.source.key_name(KEY)
        ),
    }
}
