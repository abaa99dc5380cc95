//! Keys of Gemma 4, whose layers differ in their heads.

use super::keys::Keys;
use super::stored::small;
use crate::error::{Result, fail, try_vec};
use crate::format::{Array, Tensor, Value};
use serde_json::Value as Json;

/// What a frequency that stands still is divided by, as converters have it.
const STILL: f32 = 1e30;
/// The most elements of a head that are taken seriously.
const MAX_HEAD_DIM: u64 = 1 << 16;

pub(super) fn keys(k: &mut Keys) -> Result<()> {
    if k.config.flag("enable_moe_block")? {
        let count = k.config.size(&["num_experts"])?;
        k.set("expert_count", count);
        k.set("expert_used_count", k.config.size(&["top_k_experts"])?);
        let width = k.config.size(&["moe_intermediate_size"])?;
        k.set("expert_feed_forward_length", width);
    }
    if let Some(kind) = k.config.find_str("use_bidirectional_attention")?
        && kind != "vision"
    {
        fail!(
            Unsupported,
            "config.json: use_bidirectional_attention is {kind:?}; only causal attention is supported"
        );
    }
    let last = k.n_layers - 1;
    let windowed = k.windowed(|layer| layer != last && !(layer + 1).is_multiple_of(6))?;
    let (head_dim, n_kv_heads) = global_heads(k, &windowed)?;
    let local_kv_heads = k.config.size(&["num_key_value_heads"])?;
    let pick = |whole: u64, local: u64| {
        let of_layers = windowed
            .iter()
            .map(|w| if *w { local } else { whole } as i64);
        Value::Array(Array::I64(of_layers.collect()))
    };
    k.set("attention.head_count_kv", pick(n_kv_heads, local_kv_heads));
    for key in ["key_length", "value_length"] {
        k.set(&format!("attention.{key}"), head_dim);
        k.set(&format!("attention.{key}_swa"), k.head_dim);
    }
    k.set("rope.dimension_count", head_dim);
    k.set("rope.dimension_count_swa", k.head_dim);
    let shared = k.count("num_kv_shared_layers")?;
    k.set("attention.shared_kv_layers", shared);
    let width = k.count("hidden_size_per_layer_input")?;
    k.set("embedding_length_per_layer_input", width);
    if k.config.flag("use_double_wide_mlp")? {
        let n_ff = k.config.size(&["intermediate_size"])? as i64;
        let first = k.n_layers.saturating_sub(shared);
        let of_layer = |layer| if layer < first { n_ff } else { 2 * n_ff };
        let widths = (0..k.n_layers).map(of_layer).collect();
        k.set("feed_forward_length", Value::Array(Array::I64(widths)));
    }
    if let Some(cap) = k.config.find_f32("final_logit_softcapping")? {
        k.set("final_logit_softcapping", cap);
    }
    k.set_windows(k.config.size(&["sliding_window"])?, windowed);
    Ok(())
}

/// Head size and KV heads of layers without a window: by keys of their own, or by what is said of the
/// layers one by one.
fn global_heads(k: &Keys, windowed: &[bool]) -> Result<(u64, u64)> {
    let local = k.config.size(&["num_key_value_heads"])?;
    let Some(layers) = k.config.find_object("per_layer_config")? else {
        let own = match k.config.flag("attention_k_eq_v")? {
            true => k.config.find_size("num_global_key_value_heads")?,
            false => None,
        };
        let head_dim = k.config.find_size("global_head_dim")?.unwrap_or(512);
        return Ok((head_dim, own.unwrap_or(local)));
    };
    let mut found: Option<(u64, u64)> = None;
    for (layer, windowed) in windowed.iter().enumerate() {
        let own = layers.get(&layer.to_string());
        let number = |key: &str, default: u64| match own.and_then(|own| own.get(key)) {
            None | Some(Json::Null) => Ok(default),
            Some(value) => match value.as_u64().filter(|v| (1..1 << 31).contains(v)) {
                Some(number) => Ok(number),
                None => Err(super::json::wrong(
                    key,
                    value,
                    "an integer from 1 to 2^31-1",
                )),
            },
        };
        let sizes = (
            number("head_dim", k.head_dim)?,
            number("num_key_value_heads", local)?,
        );
        let expected = match windowed {
            true => (k.head_dim, local),
            false => *found.get_or_insert(sizes),
        };
        if sizes != expected {
            fail!(
                Unsupported,
                "config.json: per_layer_config has other heads in layer {layer} than in others of its kind"
            );
        }
    }
    Ok(found.unwrap_or((k.head_dim, local)))
}

/// The factors of a rotary embedding of which a share of a head's pairs turns, the first ones, with the
/// frequencies of a whole head.
pub(super) fn rope(k: &Keys, share: f64) -> Result<Vec<Tensor>> {
    let head_dim = match k.architecture {
        "gemma4" => {
            let last = k.n_layers - 1;
            let windowed = k.windowed(|layer| layer != last && !(layer + 1).is_multiple_of(6))?;
            global_heads(k, &windowed)?.0
        }
        _ => k.head_dim,
    };
    if head_dim > MAX_HEAD_DIM || !head_dim.is_multiple_of(2) || share > 1.0 {
        fail!(
            InvalidModel,
            "config.json: partial_rotary_factor is {share} of {head_dim} elements; it must be at most 1 \
             of an even number up to {MAX_HEAD_DIM}"
        );
    }
    let pairs = head_dim as usize / 2;
    let turning = (share * head_dim as f64 / 2.0) as usize;
    let mut factors = try_vec(pairs, STILL, "rope factors")?;
    factors[..turning.min(pairs)].fill(1.0);
    Ok(vec![small("rope_freqs.weight", vec![pairs], &factors)?])
}
