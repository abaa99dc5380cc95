//! What folders of Nemotron-H say: a kind for each layer, under several names.

use super::json::{Config, wrong};
use super::keys::Keys;
use super::mamba2::refuse_limits;
use super::relatives::sigmoid_experts;
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
    Experts,
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
            Some("moe") => Ok(Kind::Experts),
            _ => Err(wrong(
                key,
                ty,
                "linear_attention, full_attention, mlp or moe",
            )),
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
        'E' => Ok(Kind::Experts),
        _ => Err(wrong(PATTERN, &pattern.into(), "a string of M, *, - and E")),
    });
    kinds.collect()
}

/// Sets the number of layers where the config has their kinds alone. Returns the architecture in GGUF.
pub(super) fn count_layers(config: &mut Config) -> Result<&'static str> {
    let kinds = kinds(config)?;
    config.set_default(N_LAYERS, kinds.len().into());
    Ok(match kinds.contains(&Kind::Experts) {
        true => "nemotron_h_moe",
        false => "nemotron_h",
    })
}

/// Sets the keys of Nemotron-H with experts.
pub(super) fn experts(k: &mut Keys) -> Result<()> {
    keys(k)?;
    if let Some(latent) = k.config.find_size("moe_latent_size")? {
        k.set("moe_latent_size", latent);
    }
    k.copy_size(
        "moe_shared_expert_intermediate_size",
        "expert_shared_feed_forward_length",
    )?;
    sigmoid_experts(k)
}

/// Sets the keys of Nemotron-H.
pub(super) fn keys(k: &mut Keys) -> Result<()> {
    refuse_limits(k)?;
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
    let of_kinds = |sizes: &[(Kind, &str)]| -> Result<Value> {
        let of = |kind: &Kind| match sizes.iter().find(|(of, _)| of == kind) {
            Some((_, key)) => Ok(size(key)? as i64),
            None => Ok(0),
        };
        let sizes: Result<_> = kinds.iter().map(of).collect();
        Ok(Value::Array(Array::I64(sizes?)))
    };
    let widths = of_kinds(&[
        (Kind::FeedForward, "intermediate_size"),
        (Kind::Experts, "moe_intermediate_size"),
    ])?;
    let attends: Vec<bool> = kinds.iter().map(|kind| *kind == Kind::Attention).collect();
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
    k.set_kv_heads(&attends)?;
    k.set("feed_forward_length", widths);
    for (key, value) in pairs {
        k.set(key, value);
    }
    if let Some(eps) = eps {
        k.set("attention.layer_norm_rms_epsilon", eps);
    }
    Ok(())
}
