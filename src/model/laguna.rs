//! `laguna`: Laguna, with gates of the heads' results, or of each element of them, norms of queries and keys, heads of queries and
//! a rotary embedding by kind of layer, and experts that are chosen by sigmoids and a bias in all layers but the first ones.

use super::decoder::{Decoder, Windows};
use super::experts::{Defaults, Mixture, shared_ff, softmax};
use super::{Network, NormKind, RopePairing, Scoring};
use crate::error::{Result, fail};
use crate::format::ModelFile;

const HEADS: &str = "attention.head_count";
const LOCAL_DIMENSIONS: &str = "rope.dimension_count_swa";

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "laguna", NormKind::Rms)?;
    let source = &d.source;
    let n_heads = source.sizes(HEADS, d.n_layers)?;
    if let Some(odd) = n_heads.iter().find(|n| !n.is_multiple_of(d.n_kv_heads)) {
        let problem = format!(
            "has {odd}, which the {} KV heads do not divide",
            d.n_kv_heads
        );
        return Err(source.invalid(HEADS, &problem));
    }
    let windows = match source.find::<u64>("attention.sliding_window")? {
        None | Some(0) => vec![None; d.n_layers],
        Some(_) => d.windows(Windows::ButFirstOf(4))?,
    };
    let rope = d.rope(RopePairing::Halves)?;
    let sizes = (d.head_dim, LOCAL_DIMENSIONS, "attention.key_length");
    let local = d.sized_local_rope(RopePairing::Halves, sizes, d.rope_base()?)?;
    let experts = Defaults {
        scoring: Scoring::Sigmoid,
        shared_ff: shared_ff(&d)?,
        ..softmax(&d)?
    };
    let experts = Mixture::new(&d, experts)?;
    d.network(|i| {
        let windowed = windows[i].is_some();
        let rope = if windowed { &local } else { &rope };
        let (n_heads, kv) = (n_heads[i], d.n_kv_heads * d.head_dim);
        let values = n_heads * d.head_dim;
        let matrices = d.qkv(i, [values, kv, kv])?;
        let mut attention = d.attention_of(i, (n_heads, d.n_kv_heads), matrices, Some(rope))?;
        attention.q_norm = d.norm_of(i, "attn_q_norm", d.head_dim)?;
        attention.k_norm = d.norm_of(i, "attn_k_norm", d.head_dim)?;
        attention.window = windows[i];
        attention.softplus_gate = true;
        let gate = format!("blk.{i}.attn_gate");
        let rows = source.file.tensor(&format!("{gate}.weight"))?.rows();
        if ![n_heads, values].contains(&rows) {
            fail!(
                ShapeMismatch,
                "tensor {gate}.weight has {rows} rows; it must have {n_heads}, one for each head, or {values}"
            );
        }
        attention.gate = Some(source.linear(&gate, d.hidden, rows)?);
        d.pre_norm_block(i, attention, experts.or_gated(&d, i)?)
    })
}
