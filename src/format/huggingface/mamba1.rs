//! Folders of Mamba, Falcon Mamba and Jamba, whose recurrent layers are those of the first Mamba.

use super::keys::{Keys, experts};
use super::stored::{Stored, small};
use crate::error::{Error, Result, Status, fail};
use crate::format::Tensor;

/// What a part of a layer is: its name in GGUF behind that of the layer.
type Part = (&'static str, Tensor);

/// Sets the keys of Mamba.
pub(super) fn mamba(k: &mut Keys) -> Result<()> {
    let hidden = k.config.size(&["hidden_size"])?;
    let inner = match k.config.find_size("intermediate_size")? {
        Some(inner) => inner,
        None => hidden.saturating_mul(k.config.size(&["expand"])?),
    };
    let rank = rank(k, "time_step_rank", hidden)?;
    let eps = k.config.f32("layer_norm_epsilon")?;
    let pairs = [
        ("ssm.conv_kernel", k.config.size(&["conv_kernel"])?),
        ("ssm.inner_size", inner),
        ("ssm.state_size", k.config.size(&["state_size"])?),
        ("ssm.time_step_rank", rank),
        // As GGUF files have them.
        ("attention.head_count", 0),
        ("feed_forward_length", 0),
    ];
    for (key, value) in pairs {
        k.set(key, value);
    }
    k.set("attention.layer_norm_rms_epsilon", eps);
    Ok(())
}

/// Sets the keys of Falcon Mamba, in which time steps, `B` and `C` have norms without weights.
pub(super) fn falcon_mamba(k: &mut Keys) -> Result<()> {
    mamba(k)?;
    k.set("ssm.dt_b_c_rms", true);
    let eps = k.config.find_f32("mixer_rms_eps")?.unwrap_or(1e-6);
    if eps != k.config.f32("layer_norm_epsilon")? {
        k.set("ssm.dt_b_c_rms_epsilon", eps);
    }
    Ok(())
}

/// Sets the keys of Jamba.
pub(super) fn jamba(k: &mut Keys) -> Result<()> {
    if let Some(window) = k.config.find("sliding_window") {
        fail!(
            Unsupported,
            "config.json: sliding_window is {window}, which is not supported"
        );
    }
    let hidden = k.config.size(&["hidden_size"])?;
    let rank = rank(k, "mamba_dt_rank", hidden)?;
    let inner = hidden.saturating_mul(k.config.size(&["mamba_expand"])?);
    let attends = every(k, "attn_layer_offset", "attn_layer_period")?;
    every(k, "expert_layer_offset", "expert_layer_period")?;
    let pairs = [
        ("ssm.conv_kernel", k.config.size(&["mamba_d_conv"])?),
        ("ssm.inner_size", inner),
        ("ssm.state_size", k.config.size(&["mamba_d_state"])?),
        ("ssm.time_step_rank", rank),
    ];
    k.set_kv_heads(&attends)?;
    for (key, value) in pairs {
        k.set(key, value);
    }
    match k.count("num_experts")? {
        // One expert is a feed-forward part.
        0 | 1 => Ok(()),
        _ => experts(k),
    }
}

/// Elements of a time step's short form: a sixteenth of the width unless the config says more.
fn rank(k: &Keys, key: &str, hidden: u64) -> Result<u64> {
    match k.config.find(key) {
        None => Ok(hidden.div_ceil(16)),
        Some(auto) if auto.as_str() == Some("auto") => Ok(hidden.div_ceil(16)),
        Some(_) => k.config.size(&[key]),
    }
}

/// Whether each layer is one of those that come every `period` layers, from `offset` on.
fn every(k: &Keys, offset: &str, period: &str) -> Result<Vec<bool>> {
    let (first, each) = (k.count(offset)?, k.config.size(&[period])?);
    if first >= each {
        let problem =
            format!("config.json: {offset} is {first}, but {period} is {each}, which must be more");
        return Err(Error::new(Status::InvalidModel, problem));
    }
    Ok((0..k.n_layers).map(|layer| layer % each == first).collect())
}

/// The tensor in GGUF that the part `{part}` of a layer is, if that needs more than another name.
pub(super) fn tensor(part: &str, stored: &Stored) -> Result<Option<Part>> {
    let own = ["mamba.", "mixer."]
        .iter()
        .find_map(|mixer| part.strip_prefix(mixer));
    let dims = stored.dims()?;
    Ok(Some(match own {
        Some("A_log") => {
            let values = stored.values()?.into_iter();
            let values: Vec<f32> = values.map(|x| -f64::from(x).exp() as f32).collect();
            ("ssm_a", small(&stored.name, dims, &values)?)
        }
        Some("D") => ("ssm_d", small(&stored.name, dims, &stored.values()?)?),
        Some("conv1d.weight") => {
            let taps = match dims[..] {
                [width, 1, channels] | [width, channels] => vec![width, channels],
                _ => fail!(
                    ShapeMismatch,
                    "tensor {} has shape {:?}; the model needs some taps of each channel",
                    stored.name,
                    stored.shape
                ),
            };
            let tensor = small(&stored.name, taps, &stored.values()?)?;
            ("ssm_conv1d.weight", tensor)
        }
        _ => return Ok(None),
    }))
}
