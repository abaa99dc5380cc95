//! Layers of Mamba 2, as folders of Granite 4 and Bamba have them beside layers that attend, and those of Mamba 2 alone.

use super::json::wrong;
use super::keys::{Keys, experts, granite};
use super::rows::Order;
use super::stored::{Stored, small};
use super::tensors::{Folder, reordered};
use crate::error::{Error, Result, Status, fail};
use crate::format::Tensor;

/// What a part of a layer is or holds: names in GGUF behind that of the layer.
type Parts = Vec<(&'static str, Tensor)>;

/// Sets the keys of Granite 4.
pub(super) fn granite_hybrid(k: &mut Keys) -> Result<()> {
    granite(k)?;
    let embedding = k.config.find_str("position_embedding_type")?;
    k.set("rope.scaling.finetuned", embedding == Some("rope"));
    let shared = k.config.size(&["shared_intermediate_size"])?;
    match k.count("num_local_experts")? {
        0 => k.set("feed_forward_length", shared),
        _ => {
            experts(k)?;
            k.set("expert_shared_feed_forward_length", shared);
        }
    }
    let recurrent = recurrent(k)?;
    hybrid(k, &recurrent)
}

/// Sets the keys of Bamba.
pub(super) fn bamba(k: &mut Keys) -> Result<()> {
    const ATTENDING: &str = "attn_layer_indices";
    k.set("rope.scaling.finetuned", true);
    let mut recurrent = vec![true; k.n_layers as usize];
    for layer in k.config.find_array(ATTENDING)?.into_iter().flatten() {
        let index = layer.as_u64().and_then(|i| usize::try_from(i).ok());
        match index.and_then(|i| recurrent.get_mut(i)) {
            Some(recurrent) => *recurrent = false,
            None => return Err(wrong(ATTENDING, layer, "the number of a layer")),
        }
    }
    hybrid(k, &recurrent)
}

/// Sets the keys of Mamba 2 alone.
pub(super) fn mamba2(k: &mut Keys) -> Result<()> {
    refuse_limits(k)?;
    let size = |key: &str| k.config.size(&[key]);
    let inner = size("num_heads")?.saturating_mul(size("head_dim")?);
    let of_config = size("expand")?.saturating_mul(size("hidden_size")?);
    if inner != of_config {
        let problem = format!(
            "config.json: num_heads times head_dim is {inner}, but expand times hidden_size is {of_config}"
        );
        return Err(Error::new(Status::InvalidModel, problem));
    }
    let pairs = [
        ("ssm.conv_kernel", size("conv_kernel")?),
        ("ssm.state_size", size("state_size")?),
        ("ssm.group_count", size("n_groups")?),
        ("ssm.time_step_rank", size("num_heads")?),
        ("ssm.inner_size", inner),
        // As GGUF files have them.
        ("attention.head_count", 0),
        ("feed_forward_length", 0),
    ];
    let eps = k.config.f32("layer_norm_epsilon")?;
    for (key, value) in pairs {
        k.set(key, value);
    }
    k.set("attention.layer_norm_rms_epsilon", eps);
    Ok(())
}

/// Sets the keys of layers that attend, and of those that don't.
fn hybrid(k: &mut Keys, recurrent: &[bool]) -> Result<()> {
    let attends: Vec<bool> = recurrent.iter().map(|recurrent| !recurrent).collect();
    k.set_kv_heads(&attends)?;
    match recurrent.contains(&true) {
        true => sizes(k),
        false => Ok(()),
    }
}

/// Which layers are recurrent: all, unless the config says otherwise.
fn recurrent(k: &Keys) -> Result<Vec<bool>> {
    const KEYS: [&str; 2] = ["layer_types", "layers_block_type"];
    for key in KEYS {
        let Some(types) = k.config.find_array(key)? else {
            continue;
        };
        if types.len() as u64 != k.n_layers {
            let problem = format!(
                "config.json: {key} has {} values, but num_hidden_layers is {}",
                types.len(),
                k.n_layers
            );
            return Err(Error::new(Status::InvalidModel, problem));
        }
        let recurrent = types.iter().map(|ty| match ty.as_str() {
            Some("linear_attention" | "mamba") => Ok(true),
            Some("full_attention" | "attention") => Ok(false),
            _ => Err(wrong(key, ty, "linear_attention or full_attention")),
        });
        return recurrent.collect();
    }
    Ok(vec![true; k.n_layers as usize])
}

/// Sets the sizes of the recurrent layers.
fn sizes(k: &mut Keys) -> Result<()> {
    const HEADS: &str = "mamba_n_heads";
    const HEAD_DIM: &str = "mamba_d_head";
    refuse_limits(k)?;
    let size = |key: &str| k.config.size(&[key]);
    let inner = size("mamba_expand")?.saturating_mul(size("hidden_size")?);
    let heads = size(HEADS)?;
    if !inner.is_multiple_of(heads) {
        let problem =
            format!("config.json: {HEADS} is {heads}, which does not divide the width {inner}");
        return Err(Error::new(Status::InvalidModel, problem));
    }
    if let Some(dim) = k.config.find(HEAD_DIM)
        && dim.as_str() != Some("auto")
        && dim.as_u64() != Some(inner / heads)
    {
        let expected = format!("{}, as mamba_expand and {HEADS} say", inner / heads);
        return Err(wrong(HEAD_DIM, dim, &expected));
    }
    let pairs = [
        ("ssm.conv_kernel", size("mamba_d_conv")?),
        ("ssm.state_size", size("mamba_d_state")?),
        ("ssm.group_count", size("mamba_n_groups")?),
        ("ssm.time_step_rank", heads),
        ("ssm.inner_size", inner),
    ];
    for (key, value) in pairs {
        k.set(key, value);
    }
    Ok(())
}

/// Refuses what no backend does.
pub(super) fn refuse_limits(k: &Keys) -> Result<()> {
    const LIMIT: &str = "time_step_limit";
    match k.config.find(LIMIT) {
        Some(limit) if !is_no_limit(limit) => fail!(
            Unsupported,
            "config.json: {LIMIT} is {limit}; only [0, Infinity] is supported"
        ),
        _ => Ok(()),
    }
}

/// Whether these are limits that no time step reaches, however infinity is spelled.
fn is_no_limit(limit: &serde_json::Value) -> bool {
    let Some([from, to]) = limit.as_array().map(|pair| &pair[..]) else {
        return false;
    };
    let infinity = to.get("__float__").unwrap_or(to);
    from.as_f64() == Some(0.0) && infinity.as_str() == Some("Infinity")
}

/// The tensors in GGUF that the part `{part}` of a layer is or holds. None if it is not one of those
/// that need more than another name.
pub(super) fn tensors(
    folder: &Folder,
    keys: &Keys,
    part: &str,
    stored: &Stored,
) -> Result<Option<Parts>> {
    let dims = stored.dims()?;
    let column = |name: &'static str, f: fn(f32) -> f32| -> Result<Parts> {
        let values: Vec<f32> = stored.values()?.into_iter().map(f).collect();
        let dims = vec![1, values.len()];
        Ok(vec![(name, small(&stored.name, dims, &values)?)])
    };
    let halves = |names: [&'static str; 2]| -> Result<Parts> {
        let Some((&of, _)) = dims
            .get(1)
            .zip(dims.first())
            .filter(|(of, _)| **of % 2 == 0)
        else {
            return Err(misshapen(stored, "two matrices of the same size"));
        };
        let rows = of / 2;
        let matrix = folder.matrix(stored)?;
        let half = |from| {
            let order = Order::Part {
                of,
                from,
                rows,
                step: 1,
            };
            let mut dims = dims.clone();
            dims[1] = rows;
            reordered(matrix.clone(), order, Some(dims))
        };
        Ok(vec![(names[0], half(0)?), (names[1], half(rows)?)])
    };
    let n_experts = keys.count("num_local_experts")?;
    // Nemotron-H calls what a layer does its mixer.
    let mixer = ["mamba.", "mixer."];
    let own = mixer.iter().find_map(|mixer| part.strip_prefix(mixer));
    let shared = |own: &'static str, beside: &'static str| match n_experts {
        0 => own,
        _ => beside,
    };
    Ok(Some(match own.unwrap_or(part) {
        "A_log" => column("ssm_a", |x| -f64::from(x).exp() as f32)?,
        "D" => column("ssm_d", |x| x)?,
        "dt_bias" => vec![("ssm_dt.bias", small(&stored.name, dims, &stored.values()?)?)],
        "conv1d.weight" => {
            let taps = match dims[..] {
                [width, 1, channels] | [width, channels] => vec![width, channels],
                _ => return Err(misshapen(stored, "some taps of each channel")),
            };
            vec![(
                "ssm_conv1d.weight",
                small(&stored.name, taps, &stored.values()?)?,
            )]
        }
        "norm.weight" if own.is_some() => {
            let groups = keys.config.size(&["mamba_n_groups", "n_groups"])? as usize;
            let values = stored.values()?;
            if !values.len().is_multiple_of(groups) {
                let needed = format!("{groups} groups of the same size");
                return Err(misshapen(stored, &needed));
            }
            let dims = vec![values.len() / groups, groups];
            vec![("ssm_norm.weight", small(&stored.name, dims, &values)?)]
        }
        "shared_mlp.input_linear.weight" => halves([
            shared("ffn_gate.weight", "ffn_gate_shexp.weight"),
            shared("ffn_up.weight", "ffn_up_shexp.weight"),
        ])?,
        "shared_mlp.output_linear.weight" => vec![(
            shared("ffn_down.weight", "ffn_down_shexp.weight"),
            folder.matrix(stored)?,
        )],
        "block_sparse_moe.input_linear.weight" => {
            halves(["ffn_gate_exps.weight", "ffn_up_exps.weight"])?
        }
        "block_sparse_moe.output_linear.weight" => {
            vec![("ffn_down_exps.weight", folder.matrix(stored)?)]
        }
        _ => return Ok(None),
    }))
}

fn misshapen(stored: &Stored, needed: &str) -> Error {
    let problem = format!(
        "tensor {} has shape {:?}; the model needs {needed}",
        stored.name, stored.shape
    );
    Error::new(Status::ShapeMismatch, problem)
}
