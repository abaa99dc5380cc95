//! Keys of families whose layers with a window have sinks, and more that others don't: MiMo V2 and Granite with windows.

use super::json::{Config, wrong};
use super::keys::{Keys, experts, granite};
use super::relatives::{dense_and_sparse, set_sparse_layers, sigmoid_experts};
use crate::error::{Error, Result, Status, fail};
use crate::format::{Array, Value};

/// A list of the config with a number for each layer, if it is there.
fn per_layer<'a, T>(
    k: &Keys<'a>,
    key: &str,
    expected: &str,
    read: impl Fn(&'a serde_json::Value) -> Option<T>,
) -> Result<Option<Vec<T>>> {
    let Some(list) = k.config.find_array(key)? else {
        return Ok(None);
    };
    if list.len() as u64 != k.n_layers {
        let problem = format!(
            "config.json: {key} has {} values, but num_hidden_layers is {}",
            list.len(),
            k.n_layers
        );
        return Err(Error::new(Status::InvalidModel, problem));
    }
    let value = |value| read(value).ok_or_else(|| wrong(key, value, expected));
    list.iter().map(value).collect::<Result<_>>().map(Some)
}

/// 0 or 1 of each layer.
fn flags(k: &Keys, key: &str) -> Result<Option<Vec<bool>>> {
    per_layer(k, key, "a list of 0 and 1", |flag| match flag.as_u64() {
        Some(0) => Some(false),
        Some(1) => Some(true),
        _ => None,
    })
}

fn set_pattern(k: &mut Keys, key: &str, pattern: Vec<bool>) {
    k.set(key, Value::Array(Array::Bool(pattern)));
}

/// Granite with windows, in all layers but every fourth, unless the config says otherwise.
pub(super) fn granite_swa(k: &mut Keys) -> Result<()> {
    granite(k)?;
    k.copy_size("sliding_window", "attention.sliding_window")?;
    let windowed = k.windowed(|layer| !layer.is_multiple_of(4))?;
    set_pattern(k, "attention.sliding_window_pattern", windowed);
    if k.count("num_local_experts")? > 0 {
        experts(k)?;
        granite_shared(k)?;
    }
    let rotated = match rotated_by_base(k)? {
        None => flags(k, "no_rope_layers")?,
        found => found,
    };
    if let Some(rotated) = rotated.filter(|rotated| rotated.contains(&false)) {
        set_pattern(k, "attention.rope_pattern", rotated);
    }
    Ok(())
}

/// The shared expert that Granite may have.
pub(super) fn granite_shared(k: &mut Keys) -> Result<()> {
    let shared = k.count("shared_intermediate_size")?;
    if shared > 0 {
        k.set("expert_shared_feed_forward_length", shared);
    }
    Ok(())
}

/// Which layers rotate by the base of each, which is 0 in those that don't. Sets that of the others.
pub(super) fn rotated_by_base(k: &mut Keys) -> Result<Option<Vec<bool>>> {
    const KEY: &str = "layer_rope_theta";
    let bases = per_layer(k, KEY, "a list of numbers, 0 or above", |base| {
        base.as_f64().filter(|base| (0.0..1e30).contains(base))
    })?;
    let Some(bases) = bases else {
        return Ok(None);
    };
    let rotated: Vec<bool> = bases.iter().map(|base| *base > 0.0).collect();
    let mut positive = bases.into_iter().filter(|base| *base > 0.0);
    if let Some(base) = positive.next() {
        if let Some(other) = positive.find(|other| *other != base) {
            fail!(
                Unsupported,
                "config.json: {KEY} has {base} and {other}; layers that rotate must have the same"
            );
        }
        let parameters = k.config.nested("rope_parameters")?;
        let usual = Config::from(serde_json::Map::new());
        let parameters = parameters.unwrap_or(usual);
        let kind = parameters.find_str("rope_type")?.unwrap_or("default");
        let theta = parameters
            .find("rope_theta")
            .or(k.config.find("rope_theta"));
        let theta = theta.and_then(serde_json::Value::as_f64);
        if kind != "default" && theta != Some(base) {
            fail!(
                Unsupported,
                "config.json: {KEY} has {base}, which is not rope_theta, beside a rope_type of {kind:?}"
            );
        }
        k.set("rope.freq_base", base as f32);
    }
    Ok(Some(rotated))
}

/// MiMo V2, as it is published, and as transformers writes it.
pub(super) fn mimo_v2(k: &mut Keys) -> Result<()> {
    const KV_HEADS: &str = "num_key_value_heads";
    sigmoid_experts(k)?;
    let windowed = match flags(k, "hybrid_layer_pattern")? {
        Some(windowed) => windowed,
        None => k.windowed(|layer| layer > 0 && !(layer + 1).is_multiple_of(6))?,
    };
    let heads = k.config.size(&[KV_HEADS])?;
    let of_windowed = match k.config.find_size("swa_num_key_value_heads")? {
        Some(heads) => heads,
        None => 2 * heads,
    };
    let heads = windowed.iter().map(|windowed| match *windowed {
        true => of_windowed as i64,
        false => heads as i64,
    });
    let heads = Value::Array(Array::I64(heads.collect()));
    k.set("attention.head_count_kv", heads);
    // What its reference sees is so many positions and that of the query.
    let window = match k.config.find_size("sliding_window_size")? {
        Some(size) => size + 1,
        None => k.config.size(&["sliding_window"])?,
    };
    k.set("attention.sliding_window", window);
    set_pattern(k, "attention.sliding_window_pattern", windowed);
    k.copy_size("v_head_dim", "attention.value_length")?;
    for (key, usual) in [
        ("swa_num_attention_heads", "num_attention_heads"),
        ("swa_head_dim", "head_dim"),
        ("swa_v_head_dim", "v_head_dim"),
    ] {
        if let Some(own) = k.config.find_size(key)?
            && own != k.config.size(&[usual])?
        {
            fail!(
                Unsupported,
                "config.json: {key} is {own}, which is not {usual}"
            );
        }
    }
    if let Some(eps) = k.config.find_f32("layernorm_epsilon")? {
        k.set("attention.layer_norm_rms_epsilon", eps);
    }
    if let Some(scale) = k.config.find_f32("attention_value_scale")? {
        k.set("attention.value_scale", scale);
    }
    if let Some(base) = k.config.find_f32("swa_rope_theta")? {
        k.set("rope.freq_base_swa", base);
    }
    rotated_share(k)?;
    match k.config.find("moe_layer_freq") {
        Some(list) if list.is_array() => {
            let sparse = flags(k, "moe_layer_freq")?.unwrap_or_default();
            set_sparse_layers(k, sparse);
        }
        _ => dense_and_sparse(k)?,
    }
    Ok(())
}

/// Laguna: windows where the list of layers has them, and as many heads in each layer as that has.
pub(super) fn laguna(k: &mut Keys) -> Result<()> {
    const HEADS: &str = "num_attention_heads_per_layer";
    experts(k)?;
    k.copy_size("moe_intermediate_size", "expert_feed_forward_length")?;
    let shared = "shared_expert_intermediate_size";
    k.copy_size(shared, "expert_shared_feed_forward_length")?;
    let scale = k.config.f32("moe_routed_scaling_factor")?;
    k.set("expert_weights_scale", scale);
    k.set("expert_weights_norm", true);
    k.set("expert_gating_func", 2u32);
    dense_and_sparse(k)?;
    k.refuse("moe_apply_router_weight_on_input")?;
    let cap = k.config.find_f32("moe_router_logit_softcapping")?;
    if let Some(cap) = cap.filter(|cap| *cap > 0.0) {
        fail!(
            Unsupported,
            "config.json: moe_router_logit_softcapping is {cap}; only 0 is supported"
        );
    }
    let size = |value: &serde_json::Value| value.as_i64().filter(|n| (1..1 << 31).contains(n));
    if let Some(heads) = per_layer(k, HEADS, "a list of numbers of heads", size)? {
        k.set("attention.head_count", Value::Array(Array::I64(heads)));
    }
    let windowed = k.windowed(|_| false)?;
    if windowed.contains(&true) {
        k.copy_size("sliding_window", "attention.sliding_window")?;
        set_pattern(k, "attention.sliding_window_pattern", windowed);
    }
    let parameters = k.config.nested("rope_parameters")?;
    let local = match &parameters {
        Some(parameters) => parameters.nested("sliding_attention")?,
        None => None,
    };
    if let Some(local) = local {
        let share = local.find_f32("partial_rotary_factor")?.unwrap_or(1.0);
        let rotated = (k.head_dim as f32 * share) as u64;
        k.set("rope.dimension_count_swa", rotated);
    }
    Ok(())
}

/// `Unsupported` if layers with a window rotate another share of a head than those without.
fn rotated_share(k: &Keys) -> Result<()> {
    const KEY: &str = "partial_rotary_factor";
    let Some(parameters) = k.config.nested("rope_parameters")? else {
        return Ok(());
    };
    let share = |kind: &str| -> Result<Option<f32>> {
        match parameters.nested(kind)? {
            Some(own) => own.find_f32(KEY),
            None => Ok(None),
        }
    };
    let (full, windowed) = (share("full_attention")?, share("sliding_attention")?);
    if full != windowed {
        fail!(
            Unsupported,
            "config.json: {KEY} of layers with a window differs from that of the others"
        );
    }
    Ok(())
}
