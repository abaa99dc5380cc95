//! `mimo2`: MiMo V2 Flash and V2.5. Values are shorter than keys. Layers with a window have sinks, a rotary embedding and perhaps
//! KV heads of their own, and experts are chosen by sigmoids and a bias.

use super::decoder::Decoder;
use super::experts::{Defaults, Mixture, softmax};
use super::{Network, NormKind, RopePairing, Scoring};
use crate::error::Result;
use crate::format::ModelFile;

const KV_HEADS: &str = "attention.head_count_kv";

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let mut d = Decoder::read_uneven(file, "mimo2", NormKind::Rms)?;
    let n_kv_heads = d.source.sizes(KV_HEADS, d.n_layers)?;
    if let Some(odd) = n_kv_heads.iter().find(|n| !d.n_heads.is_multiple_of(**n)) {
        let problem = format!("has {odd}, which does not divide the {} heads", d.n_heads);
        return Err(d.source.invalid(KV_HEADS, &problem));
    }
    d.leave_out_predictors()?;
    let value_scale = d.source.find_positive("attention.value_scale")?;
    let rope = d.rope(RopePairing::Halves)?;
    let local = d.local_rope(RopePairing::Halves, d.rope_base()?)?;
    let windows = d.listed_windows()?;
    let experts = Defaults {
        scoring: Scoring::Sigmoid,
        ..softmax(&d)?
    };
    let mut experts = Mixture::new(&d, experts)?;
    experts.set_first_by_router(&d);
    // Of layers with a window, and of those without.
    let sinks = |layer: usize| format!("blk.{layer}.attn_sinks.weight");
    let has_sinks = [true, false].map(|windowed| {
        let mut alike = (0..d.n_layers).filter(|i| windows[*i].is_some() == windowed);
        alike.any(|i| file.tensors.contains_key(sinks(i).as_str()))
    });
    d.network(|i| {
        let windowed = windows[i].is_some();
        let rope = if windowed { &local } else { &rope };
        let lens = [
            d.n_heads * d.head_dim,
            n_kv_heads[i] * d.head_dim,
            n_kv_heads[i] * d.value_dim,
        ];
        let heads = (d.n_heads, n_kv_heads[i]);
        let mut attention = d.attention_of(i, heads, d.qkv(i, lens)?, Some(rope))?;
        attention.window = windows[i];
        attention.value_scale = value_scale.unwrap_or(1.0);
        if has_sinks[usize::from(!windowed)] {
            attention.sinks = Some(d.source.vector(&sinks(i), d.n_heads)?);
        }
        d.pre_norm_block(i, attention, experts.or_gated(&d, i)?)
    })
}
