//! Keys of families that are much like others: their experts, windows, factors and activations.

use super::families::Family;
use super::json::wrong;
use super::keys::{Keys, experts, window_everywhere};
use super::stored::Stored;
use super::tensors::{layer_and_part, without_prefixes};
use crate::error::{Error, Result, Status, fail};
use crate::format::{Array, Value};
use std::collections::HashMap;

impl Keys<'_> {
    /// Sets a key to a size of the config, which must be there.
    pub(super) fn copy_size(&mut self, from: &str, to: &str) -> Result<u64> {
        let size = self.config.size(&[from])?;
        self.set(to, size);
        Ok(size)
    }

    /// A number of layers, experts or groups, which may be 0.
    pub(super) fn count(&self, key: &str) -> Result<u64> {
        match self.config.find(key) {
            None => Ok(0),
            Some(value) if value.as_u64() == Some(0) => Ok(0),
            Some(_) => self.config.size(&[key]),
        }
    }
}

pub(super) fn ernie4_5_moe(k: &mut Keys) -> Result<()> {
    let n_experts = k.config.size(&["moe_num_experts"])?;
    let used = k.config.size(&["moe_k"])?;
    if used > n_experts {
        let problem = format!("config.json: moe_k is {used}, but there are {n_experts} experts");
        return Err(Error::new(Status::InvalidModel, problem));
    }
    k.set("expert_count", n_experts);
    k.set("expert_used_count", used);
    k.copy_size("moe_intermediate_size", "expert_feed_forward_length")?;
    k.set("expert_shared_count", k.count("moe_num_shared_experts")?);
    k.set(
        "leading_dense_block_count",
        k.count("moe_layer_start_index")?,
    );
    let step = k.config.find_size("moe_layer_interval")?.unwrap_or(1);
    k.set("interleave_moe_layer_step", step);
    if let Some(last) = k.config.find("moe_layer_end_index")
        && last.as_i64() != Some(-1)
        && last
            .as_u64()
            .is_none_or(|last| last.saturating_add(1) < k.n_layers)
    {
        fail!(
            Unsupported,
            "config.json: moe_layer_end_index is {last}; experts must go on to the last layer"
        );
    }
    Ok(())
}

pub(super) fn exaone4(k: &mut Keys) -> Result<()> {
    let Some(window) = k.config.find_size("sliding_window")? else {
        return Ok(());
    };
    if k.config.find("layer_types").is_none()
        && let Some(pattern) = k.config.find("sliding_window_pattern")
        && pattern.as_u64() != Some(4)
        && pattern.as_str() != Some("LLLG")
    {
        fail!(
            Unsupported,
            "config.json: sliding_window_pattern is {pattern}; only 4 is supported"
        );
    }
    let windowed = k.windowed(|layer| !(layer + 1).is_multiple_of(4))?;
    if windowed.contains(&true) {
        k.set_windows(window, windowed);
    }
    Ok(())
}

/// Experts that are chosen by sigmoids, perhaps in groups, with shared ones beside them.
pub(super) fn glm4moe(k: &mut Keys) -> Result<()> {
    sigmoid_experts(k)?;
    k.set(
        "leading_dense_block_count",
        k.count("first_k_dense_replace")?,
    );
    Ok(())
}

/// Experts in groups, chosen by sigmoids.
pub(super) fn sigmoid_experts(k: &mut Keys) -> Result<()> {
    k.copy_size("n_routed_experts", "expert_count")?;
    k.copy_size("num_experts_per_tok", "expert_used_count")?;
    grouped_sigmoids(k)
}

/// The same, whose numbers are set by other keys.
pub(super) fn grouped_sigmoids(k: &mut Keys) -> Result<()> {
    k.copy_size("moe_intermediate_size", "expert_feed_forward_length")?;
    k.set("expert_shared_count", k.count("n_shared_experts")?);
    k.copy_size("n_group", "expert_group_count")?;
    k.copy_size("topk_group", "expert_group_used_count")?;
    k.set(
        "expert_weights_scale",
        k.config.f32("routed_scaling_factor")?,
    );
    k.set("expert_weights_norm", k.config.flag("norm_topk_prob")?);
    k.set("expert_gating_func", 2u32);
    Ok(())
}

/// Experts that are chosen by sigmoids. Returns the inner width of one.
fn scaled_sigmoids(k: &mut Keys, scale: &str) -> Result<u64> {
    experts(k)?;
    let width = k.copy_size("moe_intermediate_size", "expert_feed_forward_length")?;
    k.set("expert_weights_scale", k.config.f32(scale)?);
    k.set("expert_gating_func", 2u32);
    Ok(width)
}

/// The same beside shared ones.
fn sigmoid_and_shared(k: &mut Keys, scale: &str) -> Result<()> {
    scaled_sigmoids(k, scale)?;
    k.set("expert_shared_count", k.count("num_shared_experts")?);
    Ok(())
}

pub(super) fn afmoe(k: &mut Keys) -> Result<()> {
    sigmoid_and_shared(k, "route_scale")?;
    if k.config.find("route_norm") == Some(&false.into()) {
        fail!(
            Unsupported,
            "config.json: route_norm is false, which is not supported"
        );
    }
    for key in ["n_group", "num_expert_groups"] {
        if k.count(key)? > 1 {
            fail!(
                Unsupported,
                "config.json: {key} is above 1; groups of experts are not supported in models of this family"
            );
        }
    }
    k.set("expert_weights_norm", true);
    k.set("leading_dense_block_count", k.count("num_dense_layers")?);
    let hidden = k.config.size(&["hidden_size"])?;
    let scale = match k.config.flag("mup_enabled")? {
        true => (hidden as f64).sqrt() as f32,
        false => 1.0,
    };
    k.set("embedding_scale", scale);
    let every = k
        .config
        .find_size("global_attn_every_n_layers")?
        .unwrap_or(4);
    let windowed = k.windowed(|layer| !(layer + 1).is_multiple_of(every))?;
    k.set_windows(k.config.size(&["sliding_window"])?, windowed);
    Ok(())
}

pub(super) fn exaone_moe(k: &mut Keys) -> Result<()> {
    sigmoid_and_shared(k, "routed_scaling_factor")?;
    k.copy_size("n_group", "expert_group_count")?;
    k.copy_size("topk_group", "expert_group_used_count")?;
    k.set("expert_weights_norm", k.config.flag("norm_topk_prob")?);
    dense_and_sparse(k)?;
    exaone4(k)
}

/// Ling 2: as GLM 4.5, with other names.
pub(super) fn bailing_moe2(k: &mut Keys) -> Result<()> {
    const SCORES: &str = "score_function";
    sigmoid_and_shared(k, "routed_scaling_factor")?;
    if let Some(scores) = k.config.find_str(SCORES)?
        && scores != "sigmoid"
    {
        fail!(
            Unsupported,
            "config.json: {SCORES} is {scores:?}; only \"sigmoid\" is supported"
        );
    }
    for bias in ["use_bias", "use_qkv_bias"] {
        k.refuse(bias)?;
    }
    k.copy_size("n_group", "expert_group_count")?;
    k.copy_size("topk_group", "expert_group_used_count")?;
    k.set("expert_weights_norm", k.config.flag("norm_topk_prob")?);
    k.set(
        "leading_dense_block_count",
        k.count("first_k_dense_replace")?,
    );
    Ok(())
}

/// Factors that follow from the number of layers and the width.
pub(super) fn minicpm(k: &mut Keys) -> Result<()> {
    let number = |key: &str, usual: f32| Ok::<_, Error>(k.config.find_f32(key)?.unwrap_or(usual));
    let depth = number("scale_depth", 1.4)?;
    let embedding = number("scale_emb", 12.0)?;
    let base = k.config.find_size("dim_model_base")?.unwrap_or(256);
    let hidden = k.config.size(&["hidden_size"])?;
    k.set("residual_scale", depth / (k.n_layers as f32).sqrt());
    k.set("embedding_scale", embedding);
    k.set("logit_scale", hidden as f32 / base as f32);
    if k.count("num_experts")? > 0 {
        fail!(
            Unsupported,
            "config.json: num_experts is set; experts are not supported in models of this family"
        );
    }
    Ok(())
}

/// Which layers rotate and see chunks, and which have experts.
pub(super) fn llama4(k: &mut Keys) -> Result<()> {
    experts(k)?;
    let n_ff = k.config.size(&["intermediate_size"])?;
    k.set("expert_feed_forward_length", n_ff);
    let n_ff = k.config.size(&["intermediate_size_mlp"])?;
    k.set("feed_forward_length", n_ff);
    let step = k.config.size(&["interleave_moe_layer_step"])?;
    k.set("interleave_moe_layer_step", step);
    let numbers = |key: &str| -> Result<Option<Vec<u64>>> {
        let Some(values) = k.config.find_array(key)? else {
            return Ok(None);
        };
        let number = |v: &serde_json::Value| v.as_u64().ok_or_else(|| wrong(key, v, "a number"));
        values.iter().map(number).collect::<Result<_>>().map(Some)
    };
    if let Some(layers) = numbers("moe_layers")?
        && !(0..k.n_layers)
            .filter(|i| (i + 1).is_multiple_of(step))
            .eq(layers)
    {
        fail!(
            Unsupported,
            "config.json: moe_layers are others than every {step}th layer, which is not supported"
        );
    }
    let interval = k.config.size(&["no_rope_layer_interval"])?;
    let rotates: Vec<bool> = match numbers("no_rope_layers")? {
        Some(layers) if !layers.is_empty() => layers.iter().map(|rotates| *rotates != 0).collect(),
        _ => (0..k.n_layers)
            .map(|i| !(i + 1).is_multiple_of(interval))
            .collect(),
    };
    if let Some(types) = k.config.find_array("layer_types")?
        && let Some(layer) = (0..types.len().min(rotates.len()))
            .find(|i| (types[*i] == "chunked_attention") != rotates[*i])
    {
        fail!(
            Unsupported,
            "config.json: layer_types has {} for layer {layer}, but no_rope_layers has {}; layers with chunks rotate, and the others don't",
            types[layer],
            u8::from(rotates[layer])
        );
    }
    // Layers that rotate see chunks, if there are such.
    let context = k.config.size(&["max_position_embeddings"])?;
    let chunk = k.config.find_size("attention_chunk_size")?;
    k.set_windows(chunk.unwrap_or(context), rotates);
    k.set("attention.qk_norm", k.config.flag("use_qk_norm")?);
    let scale = match k.config.flag("attn_temperature_tuning")? {
        true => k.config.f32("attn_scale")?,
        false => 0.0,
    };
    k.set("attention.temperature_scale", scale);
    k.set(
        "attention.temperature_length",
        k.config.size(&["floor_scale"])?,
    );
    Ok(())
}

pub(super) fn cohere2_moe(k: &mut Keys) -> Result<()> {
    const COMBINATION: &str = "shared_expert_combination_strategy";
    const CHOICE: &str = "expert_selection_fn";
    const PREFIX: &str = "prefix_dense_sliding_window_pattern";
    experts(k)?;
    k.set("logit_scale", k.config.f32("logit_scale")?);
    k.say_unscaled();
    let n_ff = k.copy_size("intermediate_size", "expert_feed_forward_length")?;
    let dense_ff = k.config.find_size("prefix_dense_intermediate_size")?;
    k.set("feed_forward_length", dense_ff.unwrap_or(n_ff));
    let shared = k.count("num_shared_experts")?;
    if shared > 0 {
        if let Some(how) = k.config.find_str(COMBINATION)?
            && how != "average"
        {
            fail!(
                Unsupported,
                "config.json: {COMBINATION} is {how:?}; only \"average\" is supported"
            );
        }
        k.set("expert_shared_count", shared);
        k.set(
            "expert_shared_feed_forward_length",
            n_ff.saturating_mul(shared),
        );
    }
    let sigmoid = match k.config.find_str(CHOICE)?.unwrap_or("softmax") {
        "sigmoid" => true,
        // Over the chosen ones, whose sum is 1 so.
        "softmax" => false,
        other => fail!(
            Unsupported,
            "config.json: {CHOICE} is {other:?}; supported: sigmoid, softmax"
        ),
    };
    k.set("expert_gating_func", if sigmoid { 2u32 } else { 3 });
    let normalize = sigmoid && k.config.flag("norm_topk_prob")?;
    k.set("expert_weights_norm", normalize);
    let sparse = sparse_layers(k)?;
    let dense = leading(&sparse) as u64;
    let prefix = k.config.find_size(PREFIX)?.unwrap_or(1);
    let every = k.config.find_size("sliding_window_pattern")?.unwrap_or(4);
    let windowed = k.windowed(|layer| match layer.checked_sub(dense) {
        None => !(layer + 1).is_multiple_of(prefix),
        Some(layer) => !(layer + 1).is_multiple_of(every),
    })?;
    let has_neither = |(sparse, windowed): (&bool, &bool)| !sparse && !windowed;
    if prefix != 1 && sparse.iter().zip(&windowed).any(has_neither) {
        fail!(
            Unsupported,
            "config.json: {PREFIX} is {prefix}; layers with neither experts nor a window are supported only where it is 1"
        );
    }
    k.set_windows(k.config.size(&["sliding_window"])?, windowed);
    set_sparse_layers(k, sparse);
    Ok(())
}

/// Which layers have experts, by a list or by how many at the beginning have none.
pub(super) fn sparse_layers(k: &Keys) -> Result<Vec<bool>> {
    const TYPES: &str = "mlp_layer_types";
    const FIRST: &str = "first_k_dense_replace";
    let Some(types) = k.config.find_array(TYPES)? else {
        let dense = k.count(FIRST)?;
        if dense > k.n_layers {
            let problem = format!(
                "config.json: {FIRST} is {dense}, but there are {} layers",
                k.n_layers
            );
            return Err(Error::new(Status::InvalidModel, problem));
        }
        return Ok((0..k.n_layers).map(|layer| layer >= dense).collect());
    };
    if types.len() as u64 != k.n_layers {
        let problem = format!(
            "config.json: {TYPES} has {} values, but num_hidden_layers is {}",
            types.len(),
            k.n_layers
        );
        return Err(Error::new(Status::InvalidModel, problem));
    }
    let sparse = types.iter().map(|ty| match ty.as_str() {
        Some("sparse") => Ok(true),
        Some("dense") => Ok(false),
        _ => Err(wrong(TYPES, ty, "dense or sparse")),
    });
    sparse.collect()
}

/// How many of the first layers have no experts.
fn leading(sparse: &[bool]) -> usize {
    sparse.iter().take_while(|sparse| !**sparse).count()
}

/// Says which layers have experts: by the number of the first ones without, and by a key of our own where others have none, either.
pub(super) fn set_sparse_layers(k: &mut Keys, sparse: Vec<bool>) {
    let dense = leading(&sparse);
    k.set("leading_dense_block_count", dense as u64);
    if sparse[dense..].contains(&false) {
        k.set("expert_layers", Value::Array(Array::Bool(sparse)));
    }
}

/// The same of [`sparse_layers`].
pub(super) fn dense_and_sparse(k: &mut Keys) -> Result<()> {
    let sparse = sparse_layers(k)?;
    set_sparse_layers(k, sparse);
    Ok(())
}

/// Mellum 2: experts, and windows where the list of layers has them.
pub(super) fn mellum(k: &mut Keys) -> Result<()> {
    experts(k)?;
    k.copy_size("moe_intermediate_size", "expert_feed_forward_length")?;
    k.set("expert_weights_norm", k.config.flag("norm_topk_prob")?);
    dense_and_sparse(k)?;
    let windowed = k.windowed(|_| false)?;
    if windowed.contains(&true) {
        k.set_windows(k.config.size(&["sliding_window"])?, windowed);
    }
    Ok(())
}

/// Hy3: experts that are chosen by sigmoids and a bias, beside a shared one.
pub(super) fn hy_v3(k: &mut Keys) -> Result<()> {
    let width = scaled_sigmoids(k, "router_scaling_factor")?;
    let shared = k.count("num_shared_experts")?;
    let Some(shared) = width.checked_mul(shared) else {
        let problem = format!("config.json: num_shared_experts is {shared}, which is too many");
        return Err(Error::new(Status::InvalidModel, problem));
    };
    k.set("expert_shared_feed_forward_length", shared);
    k.set("expert_weights_norm", k.config.flag("route_norm")?);
    dense_and_sparse(k)?;
    Ok(())
}

pub(super) fn hunyuan_moe(k: &mut Keys) -> Result<()> {
    for key in ["num_experts", "moe_topk"] {
        if let Some(list) = k.config.find(key).and_then(|v| v.as_array())
            && list.iter().any(|v| *v != list[0])
        {
            fail!(
                Unsupported,
                "config.json: {key} differs between layers, which is not supported"
            );
        }
    }
    k.copy_size("num_experts", "expert_count")?;
    k.copy_size("moe_topk", "expert_used_count")?;
    k.copy_size("intermediate_size", "expert_feed_forward_length")?;
    k.copy_size("intermediate_size", "expert_shared_feed_forward_length")?;
    Ok(())
}

pub(super) fn minimax_m2(k: &mut Keys) -> Result<()> {
    experts(k)?;
    k.copy_size("intermediate_size", "expert_feed_forward_length")?;
    k.set("expert_gating_func", 2u32);
    Ok(())
}

pub(super) fn mistral3(k: &mut Keys) -> Result<()> {
    let rope = match k.config.nested("rope_parameters")? {
        None => k.config.nested("rope_scaling")?,
        found => found,
    };
    if let Some(rope) = rope
        && let Some(beta) = rope.find_f32("llama_4_scaling_beta")?
    {
        k.set("attention.temperature_scale", beta);
        if let (Some(own), Some(all)) = (rope.find_f32("mscale")?, rope.find_f32("mscale_all_dim")?)
            && own == 1.0
        {
            k.set("rope.scaling.yarn_log_multiplier", all);
        }
    }
    window_everywhere(k)
}

pub(super) fn stablelm(k: &mut Keys) -> Result<()> {
    let parallel = k.config.flag("use_parallel_residual")?;
    k.set("use_parallel_residual", parallel);
    Ok(())
}

/// The numbers of xIELU, which folders have as tensors and GGUF as keys, with the value of those that
/// may be left out.
const XIELU: [(&str, Option<f32>); 4] = [
    ("alpha_p", None),
    ("alpha_n", None),
    ("beta", Some(0.5)),
    ("eps", Some(-1e-6)),
];

/// Whether a tensor is a number of the activation.
pub(super) fn is_activation(family: &Family, name: &str) -> bool {
    family.architecture == "apertus"
        && XIELU
            .iter()
            .any(|(number, _)| name.ends_with(&format!(".mlp.act_fn.{number}")))
}

/// Sets the keys of an activation whose numbers are tensors.
pub(super) fn activation(
    family: &Family,
    keys: &mut Keys,
    stored: &HashMap<String, Stored>,
) -> Result<()> {
    if family.architecture != "apertus" {
        return Ok(());
    }
    for (number, default) in XIELU {
        let wanted = format!("mlp.act_fn.{number}");
        let mut by_layer: HashMap<u64, &Stored> = HashMap::new();
        for (name, tensor) in stored {
            if let Some((layer, part)) = layer_and_part(without_prefixes(name))
                && part == wanted
            {
                by_layer.insert(layer, tensor);
            }
        }
        let mut values = Vec::new();
        for layer in 0..keys.n_layers {
            let value = match (by_layer.get(&layer), default) {
                (Some(tensor), _) => {
                    let values = tensor.values()?;
                    let [value] = values[..] else {
                        fail!(
                            ShapeMismatch,
                            "tensor {} has shape {:?}; the model needs one number",
                            tensor.name,
                            tensor.shape
                        );
                    };
                    value
                }
                (None, Some(default)) => default,
                (None, None) => fail!(
                    MissingTensor,
                    "tensor model.layers.{layer}.{wanted} is missing"
                ),
            };
            values.push(value);
        }
        let values = Value::Array(Array::F32(values));
        keys.values.insert(format!("xielu.{number}"), values);
    }
    Ok(())
}
