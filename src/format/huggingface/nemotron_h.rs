//! What folders of Nemotron-H say: a kind for each layer, under several names.

use super::json::{Config, wrong};
use super::keys::Keys;
use super::mamba2::refuse_others;
use crate::error::{Error, Result, Status, fail};
use crate::format::{Array, Value};

/// A string with a character for each layer.
const PATTERN: &str = "hybrid_override_pattern";
/// Lists with a name for each layer.
const LISTS: [&str; 2] = ["layers_block_type", "layer_types"];
const N_LAYERS: &str = "num_hidden_layers";

/// What a layer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Recurrent,
    Attention,
    FeedForward,
}

/// The kinds of all layers.
fn kinds(config: &Config) -> Result<Vec<Kind>> {
    for key in LISTS {
        let Some(types) = config.find_array(key)? else {
            continue;
        };
        let kinds = types.iter().map(|ty| match ty.as_str() {
            Some("linear_attention" | "mamba") => Ok(Kind::Recurrent),
            Some("full_attention" | "attention") => Ok(Kind::Attention),
            Some("mlp") => Ok(Kind::FeedForward),
            Some("moe") => Err(experts(key)),
            _ => Err(wrong(key, ty, "linear_attention, full_attention or mlp")),
        });
        return kinds.collect();
    }
    let Some(pattern) = config.find_str(PATTERN)? else {
        fail!(MissingKey, "config.json: key {} is missing", LISTS[0])
    };
    let kinds = pattern.chars().map(|c| match c {
        'M' => Ok(Kind::Recurrent),
        '*' => Ok(Kind::Attention),
        '-' => Ok(Kind::FeedForward),
        'E' => Err(experts(PATTERN)),
        _ => Err(wrong(PATTERN, &pattern.into(), "a string of M, * and -")),
    });
    kinds.collect()
}

fn experts(key: &str) -> Error {
    let problem = format!("config.json: {key} has layers with experts, which are not supported");
    Error::new(Status::Unsupported, problem)
}

/// Sets the number of layers where the config has their kinds alone.
pub(super) fn count_layers(config: &mut Config) -> Result<()> {
    let n_layers = kinds(config)?.len();
    config.set_default(N_LAYERS, n_layers.into());
    Ok(())
}

/// Sets the keys of Nemotron-H.
pub(super) fn keys(k: &mut Keys) -> Result<()> {
    for flag in ["use_bias", "attention_bias"] {
        k.refuse(flag)?;
    }
    refuse_others(k)?;
    if let Some(activation) = k.config.find_str("mamba_hidden_act")?
        && !["silu", "swish"].contains(&activation)
    {
        fail!(
            Unsupported,
            "config.json: mamba_hidden_act is {activation:?}; models of this family run with silu"
        );
    }
    let kinds = kinds(k.config)?;
    if kinds.len() as u64 != k.n_layers {
        let problem = format!(
            "config.json: {N_LAYERS} is {}, but {} kinds of layers are listed",
            k.n_layers,
            kinds.len()
        );
        return Err(Error::new(Status::InvalidModel, problem));
    }
    let size = |key: &str| k.config.size(&[key]);
    let n_kv_heads = k
        .config
        .size(&["num_key_value_heads", "num_attention_heads"])?;
    let of_kind = |kind: Kind, size: u64| {
        let sizes = kinds
            .iter()
            .map(|k| if *k == kind { size as i64 } else { 0 });
        Value::Array(Array::I64(sizes.collect()))
    };
    let heads = of_kind(Kind::Attention, n_kv_heads);
    let widths = match kinds.contains(&Kind::FeedForward) {
        true => of_kind(Kind::FeedForward, size("intermediate_size")?),
        false => of_kind(Kind::FeedForward, 0),
    };
    let n_heads = size("mamba_num_heads")?;
    let pairs = [
        ("ssm.conv_kernel", size("conv_kernel")?),
        ("ssm.state_size", size("ssm_state_size")?),
        ("ssm.group_count", size("n_groups")?),
        ("ssm.time_step_rank", n_heads),
        (
            "ssm.inner_size",
            n_heads.saturating_mul(size("mamba_head_dim")?),
        ),
    ];
    let eps = k.config.find_f32("layer_norm_epsilon")?;
    k.set("attention.head_count_kv", heads);
    k.set("feed_forward_length", widths);
    for (key, value) in pairs {
        k.set(key, value);
    }
    if let Some(eps) = eps {
        k.set("attention.layer_norm_rms_epsilon", eps);
    }
    Ok(())
}
