//! `config.json` as GGUF metadata.

use super::json::{Config, wrong};
use crate::error::{Error, Result, Status, fail};
use crate::format::{Array, ModelFile, Tensor, Value};
use std::collections::HashMap;
use std::sync::Arc;

/// The metadata of one model, as it is put together.
pub(super) struct Keys<'a> {
    pub config: &'a Config,
    pub architecture: &'static str,
    pub n_layers: u64,
    /// Elements per head.
    pub head_dim: u64,
    pub values: HashMap<String, Value>,
}

/// The names of the number of layers.
pub(super) const LAYERS: &[&str] = &["num_hidden_layers", "n_layer", "n_layers", "num_layers"];
/// Those of the width of the residual stream, of heads, and of a feed-forward part.
const WIDTH: &[&str] = &["hidden_size", "n_embd", "dim", "d_model"];
pub(super) const HEADS: &[&str] = &["num_attention_heads", "n_head", "n_heads", "num_heads"];
const FEED_FORWARD: &[&str] = &["intermediate_size", "n_inner", "hidden_dim", "d_ff"];

/// Keys of GGUF and those of `config.json` that they come from, under all their names.
const NAMES: &[(&str, &[&str])] = &[
    ("block_count", LAYERS),
    (
        "context_length",
        &["max_position_embeddings", "n_positions", "n_ctx"],
    ),
    ("embedding_length", WIDTH),
    ("vocab_size", &["vocab_size"]),
    (
        "attention.head_count",
        &[
            "num_attention_heads_per_layer",
            "num_attention_heads",
            "n_head",
            "n_heads",
            "num_heads",
        ],
    ),
    (
        "attention.head_count_kv",
        &["num_key_value_heads", "num_kv_heads", "n_head_kv"],
    ),
    ("attention.key_length_swa", &["head_dim"]),
    ("attention.shared_kv_layers", &["num_kv_shared_layers"]),
    (
        "embedding_length_per_layer_input",
        &["hidden_size_per_layer_input"],
    ),
    ("attention.key_length", &["head_dim", "d_kv"]),
    (
        "attention.value_length",
        &["v_head_dim", "head_dim", "d_kv"],
    ),
    (
        "attention.relative_buckets_count",
        &["relative_attention_num_buckets"],
    ),
    (
        "attention.relative_max_distance",
        &["relative_attention_max_distance"],
    ),
    (
        "feed_forward_length",
        &[
            "prefix_dense_intermediate_size",
            "intermediate_size",
            "n_inner",
            "hidden_dim",
            "d_ff",
        ],
    ),
    (
        "attention.layer_norm_rms_epsilon",
        &["rms_norm_eps", "norm_eps", "layer_norm_epsilon"],
    ),
    ("shortconv.l_cache", &["conv_L_cache"]),
    (
        "attention.layer_norm_epsilon",
        &["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"],
    ),
    (
        "attention.scale",
        &["query_pre_attn_scalar", "attention_multiplier"],
    ),
    ("attention.sliding_window", &["sliding_window"]),
    (
        "attention.sliding_window_pattern",
        &[
            "hybrid_layer_pattern",
            "layer_types",
            "sliding_window_pattern",
        ],
    ),
    (
        "attention.rope_pattern",
        &["no_rope_layers", "no_rope_layer_interval"],
    ),
    ("attn_logit_softcapping", &["attn_logit_softcapping"]),
    ("final_logit_softcapping", &["final_logit_softcapping"]),
    ("embedding_scale", &["embedding_multiplier"]),
    ("residual_scale", &["residual_multiplier"]),
    ("logit_scale", &["logit_scale", "logits_scaling"]),
    (
        "expert_count",
        &[
            "num_local_experts",
            "num_experts",
            "n_routed_experts",
            "moe_num_experts",
        ],
    ),
    (
        "expert_used_count",
        &[
            "num_experts_per_tok",
            "experts_per_token",
            "moe_k",
            "moe_topk",
            "top_k_experts",
            "moe_top_k",
        ],
    ),
    (
        "expert_shared_count",
        &[
            "n_shared_experts",
            "moe_num_shared_experts",
            "num_shared_experts",
        ],
    ),
    ("expert_group_count", &["n_group"]),
    ("expert_group_used_count", &["topk_group"]),
    ("expert_weights_scale", &["routed_scaling_factor"]),
    (
        "leading_dense_block_count",
        &[
            "first_k_dense_replace",
            "moe_layer_start_index",
            "num_dense_layers",
        ],
    ),
    ("interleave_moe_layer_step", &["moe_layer_interval"]),
    (
        "expert_feed_forward_length",
        &["moe_intermediate_size", "intermediate_size"],
    ),
    ("expert_weights_norm", &["norm_topk_prob"]),
    ("ssm.dt_b_c_rms_epsilon", &["mixer_rms_eps"]),
    (
        "ssm.conv_kernel",
        &["linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel"],
    ),
    (
        "ssm.inner_size",
        &[
            "linear_value_head_dim",
            "mamba_expand",
            "mamba_head_dim",
            "intermediate_size",
            "expand",
        ],
    ),
    (
        "ssm.state_size",
        &[
            "linear_key_head_dim",
            "mamba_d_state",
            "ssm_state_size",
            "state_size",
        ],
    ),
    (
        "ssm.time_step_rank",
        &[
            "linear_num_value_heads",
            "mamba_n_heads",
            "mamba_num_heads",
            "mamba_dt_rank",
            "time_step_rank",
        ],
    ),
    (
        "ssm.group_count",
        &["linear_num_key_heads", "mamba_n_groups", "n_groups"],
    ),
    ("attention.recurrent_layers", &["layer_types"]),
    (
        "expert_shared_feed_forward_length",
        &[
            "shared_expert_intermediate_size",
            "shared_intermediate_size",
        ],
    ),
    ("rope.freq_base", &["rope_theta", "rope_parameters"]),
    (
        "rope.freq_base_swa",
        &["rope_local_base_freq", "swa_rope_theta", "rope_parameters"],
    ),
    ("rope.dimension_count_swa", &["rope_parameters"]),
    ("attention.value_scale", &["attention_value_scale"]),
    ("router_jitter_noise", &["router_jitter_noise"]),
    (
        "rope.dimension_count",
        &["partial_rotary_factor", "rotary_pct", "head_dim"],
    ),
    ("rope.scaling.type", &["rope_scaling", "rope_parameters"]),
    ("rope.scaling.factor", &["rope_scaling", "rope_parameters"]),
    (
        "rope.scaling.original_context_length",
        &["original_max_position_embeddings", "rope_scaling"],
    ),
];

/// `InvalidModel` if a model has more layers than its folder has tensors.
pub(super) fn check_layers(n_layers: u64, n_tensors: usize) -> Result<()> {
    if n_layers > n_tensors as u64 {
        fail!(
            InvalidModel,
            "config.json: num_hidden_layers is {n_layers}, but there are only {n_tensors} tensors"
        );
    }
    Ok(())
}

impl<'a> Keys<'a> {
    /// What a file with these keys and tensors is.
    pub(super) fn file(self, tensors: HashMap<Arc<str>, Tensor>) -> ModelFile {
        ModelFile {
            key_names: self.names(),
            metadata: self.values,
            tensors,
            file_bytes: 0,
            text_files: None,
            files: Vec::new(),
            has_predictor: false,
        }
    }

    /// What messages call the keys of GGUF: the name that the config has, or the usual one.
    fn names(&self) -> HashMap<String, String> {
        let name = |names: &[&'static str]| {
            let there = names.iter().find(|name| self.config.find(name).is_some());
            *there.unwrap_or(&names[0])
        };
        let pairs = NAMES.iter().map(|(key, names)| {
            let key = format!("{}.{key}", self.architecture);
            (key, format!("config.json: key {}", name(names)))
        });
        pairs.collect()
    }

    /// What most families have.
    pub(super) fn common(config: &'a Config, architecture: &'static str) -> Result<Keys<'a>> {
        let hidden = config.size(WIDTH)?;
        let n_heads = config.size(HEADS)?;
        // Of latent attention the part that is rotated.
        let head_dim = match config.find("kv_lora_rank") {
            Some(_) => Some(config.size(&["qk_rope_head_dim"])?),
            None => match config.find_size("head_dim")? {
                None => config.find_size("d_kv")?,
                found => found,
            },
        };
        if let Some(odd) = head_dim.filter(|dim| !dim.is_multiple_of(2)) {
            return Err(wrong("head_dim", &odd.into(), "an even number"));
        }
        if head_dim.is_none() && !hidden.is_multiple_of(n_heads) {
            return Err(Error::new(
                Status::InvalidModel,
                format!(
                    "config.json: num_attention_heads is {n_heads}, which does not divide the width {hidden}"
                ),
            ));
        }
        let mut keys = Keys {
            config,
            architecture,
            n_layers: config.size(LAYERS)?,
            head_dim: head_dim.unwrap_or(hidden / n_heads),
            values: HashMap::new(),
        };
        let name = |key: &str, value: &str| (key.to_owned(), Value::from(value));
        keys.values
            .extend([name("general.architecture", architecture)]);
        keys.set("block_count", keys.n_layers);
        let context = ["max_position_embeddings", "n_positions", "n_ctx"];
        let context = match architecture == "t5encoder" && config.find("n_positions").is_none() {
            // What these models were trained with; nothing in them ends there.
            true => 512,
            false => config.size(&context)?,
        };
        keys.set("context_length", context);
        keys.set("embedding_length", hidden);
        keys.set("vocab_size", config.size(&["vocab_size"])?);
        keys.set("attention.head_count", n_heads);
        if let Some(n_kv_heads) = config.find_size("num_key_value_heads")? {
            if !n_heads.is_multiple_of(n_kv_heads) {
                return Err(Error::new(
                    Status::InvalidModel,
                    format!(
                        "config.json: num_key_value_heads is {n_kv_heads}, which does not divide the {n_heads} heads"
                    ),
                ));
            }
            keys.set("attention.head_count_kv", n_kv_heads);
        }
        if let Some(head_dim) = head_dim {
            keys.set("attention.key_length", head_dim);
            keys.set("attention.value_length", head_dim);
        }
        match config.find("intermediate_size").and_then(|v| v.as_array()) {
            Some(widths) if architecture == "gemma3n" => {
                let width = |v: &serde_json::Value| match v.as_i64() {
                    Some(v) => Ok(v),
                    None => Err(wrong("intermediate_size", v, "a list of sizes")),
                };
                let widths = widths.iter().map(width).collect::<Result<_>>()?;
                keys.set("feed_forward_length", Value::Array(Array::I64(widths)));
            }
            _ => {
                let given = FEED_FORWARD.iter().any(|name| config.find(name).is_some());
                let n_ff = match given {
                    true => config.size(FEED_FORWARD)?,
                    false => 4 * hidden,
                };
                keys.set("feed_forward_length", n_ff);
            }
        }
        if let Some(eps) = config.find_f32("rms_norm_eps")? {
            keys.set("attention.layer_norm_rms_epsilon", eps);
        }
        for key in ["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"] {
            if let Some(eps) = config.find_f32(key)? {
                keys.set("attention.layer_norm_epsilon", eps);
            }
        }
        keys.layer_types()?;
        if config.find("is_causal") == Some(&false.into()) {
            fail!(
                Unsupported,
                "config.json: is_causal is false; only causal attention is supported"
            );
        }
        Ok(keys)
    }

    /// Sets a key of the architecture.
    pub(super) fn set(&mut self, key: &str, value: impl Into<Value>) {
        let key = format!("{}.{key}", self.architecture);
        self.values.insert(key, value.into());
    }

    /// Says of a rotary embedding that is not scaled that it is not, as files of some families do.
    pub(super) fn say_unscaled(&mut self) {
        const TYPE: &str = "rope.scaling.type";
        if !self.has(TYPE) {
            self.set(TYPE, "none");
        }
    }

    /// Whether a key of the architecture is set.
    pub(super) fn has(&self, key: &str) -> bool {
        let key = format!("{}.{key}", self.architecture);
        self.values.contains_key(&key)
    }

    /// `Unsupported` if a flag is set.
    pub(super) fn refuse(&self, key: &str) -> Result<()> {
        if self.config.flag(key)? {
            fail!(
                Unsupported,
                "config.json: {key} is true, which is not supported"
            );
        }
        Ok(())
    }

    /// Sets the KV heads of layers of which some do not attend, and have none.
    pub(super) fn set_kv_heads(&mut self, attends: &[bool]) -> Result<()> {
        let n_kv_heads = match self.config.find_size("num_key_value_heads")? {
            Some(n) => n,
            None => self.config.size(&["num_attention_heads"])?,
        };
        let heads = attends.iter().map(|attends| match *attends {
            true => n_kv_heads as i64,
            false => 0,
        });
        let heads = Value::Array(Array::I64(heads.collect()));
        self.set("attention.head_count_kv", heads);
        Ok(())
    }

    /// `Unsupported` if there is a number.
    pub(super) fn refuse_number(&self, key: &str) -> Result<()> {
        if let Some(number) = self.config.find_f32(key)? {
            fail!(
                Unsupported,
                "config.json: {key} is {number}, which is not supported"
            );
        }
        Ok(())
    }

    /// Sets a key to a number of the config, if that is there.
    pub(super) fn copy(&mut self, from: &str, to: &str) -> Result<()> {
        if let Some(number) = self.config.find_f32(from)? {
            self.set(to, number);
        }
        Ok(())
    }

    /// Sets the factor on the scores, if it is not the usual one.
    pub(super) fn attention_scale(&mut self) -> Result<()> {
        let scalar = self.config.f32("query_pre_attn_scalar")?;
        if scalar != self.head_dim as f32 {
            self.set("attention.scale", 1.0 / scalar.sqrt());
        }
        Ok(())
    }

    /// Whether each layer has a window, if the config says so.
    fn layer_types(&self) -> Result<Option<Vec<bool>>> {
        const KEY: &str = "layer_types";
        let Some(types) = self.config.find_array(KEY)? else {
            return Ok(None);
        };
        if types.len() as u64 != self.n_layers {
            let problem = format!(
                "config.json: {KEY} has {} values, but num_hidden_layers is {}",
                types.len(),
                self.n_layers
            );
            return Err(Error::new(Status::InvalidModel, problem));
        }
        let windowed = types.iter().map(|ty| match ty.as_str() {
            Some("sliding_attention") => Ok(true),
            Some("full_attention") => Ok(false),
            // Which of the others a layer is, the family says.
            Some("conv") if self.architecture.starts_with("lfm") => Ok(false),
            Some("linear_attention")
                if self.architecture.starts_with("qwen3")
                    || matches!(
                        self.architecture,
                        "olmo_hybrid" | "kimi-linear" | "bailingmoe3"
                    ) =>
            {
                Ok(false)
            }
            Some("linear_attention" | "mamba" | "attention")
                if self.architecture == "granitehybrid" =>
            {
                Ok(false)
            }
            Some(_) if self.architecture.starts_with("nemotron_h") => Ok(false),
            Some("chunked_attention") if self.architecture == "llama4" => Ok(false),
            _ => Err(wrong(KEY, ty, "sliding_attention or full_attention")),
        });
        windowed.collect::<Result<_>>().map(Some)
    }

    /// Which layers have a window by `layer_types`, or by `default` if the config does not say.
    pub(super) fn windowed(&self, default: impl Fn(u64) -> bool) -> Result<Vec<bool>> {
        let found = self.layer_types()?;
        Ok(found.unwrap_or_else(|| (0..self.n_layers).map(default).collect()))
    }

    /// Sets a window, and which layers have it.
    pub(super) fn set_windows(&mut self, window: u64, windowed: Vec<bool>) {
        self.set("attention.sliding_window", window);
        let pattern = Value::Array(Array::Bool(windowed));
        self.set("attention.sliding_window_pattern", pattern);
    }

    /// Sets the window, and which layers have it if that is not what the family has anyway.
    fn windows(&mut self, default: impl Fn(u64) -> bool) -> Result<()> {
        let Some(window) = self.config.find_size("sliding_window")? else {
            return Ok(());
        };
        let windowed = self.windowed(&default)?;
        self.set("attention.sliding_window", window);
        if !(0..self.n_layers).map(default).eq(windowed.iter().copied()) {
            let pattern = Value::Array(Array::Bool(windowed));
            self.set("attention.sliding_window_pattern", pattern);
        }
        Ok(())
    }
}

/// Windows in all layers.
pub(super) fn window_everywhere(k: &mut Keys) -> Result<()> {
    k.windows(|_| true)
}

/// Windows in the upper layers, where `use_sliding_window` asks for them.
pub(super) fn window_where_asked(k: &mut Keys) -> Result<()> {
    if !k.config.flag("use_sliding_window")? {
        return Ok(());
    }
    let first = match k.config.find("max_window_layers") {
        None => 28,
        Some(value) => match value.as_u64() {
            Some(first) => first,
            None => return Err(wrong("max_window_layers", value, "a number of layers")),
        },
    };
    let Some(window) = k.config.find_size("sliding_window")? else {
        return Ok(());
    };
    let windowed = k.windowed(|layer| layer >= first)?;
    if windowed.contains(&true) {
        k.set_windows(window, windowed);
    }
    Ok(())
}

/// How many experts there are, and how many each token uses.
pub(super) fn experts(k: &mut Keys) -> Result<()> {
    let (local, all) = (
        k.config.find_size("num_local_experts")?,
        k.config.find_size("num_experts")?,
    );
    if let (Some(local), Some(all)) = (local, all)
        && local != all
    {
        let problem =
            format!("config.json: num_experts is {all}, but num_local_experts is {local}");
        return Err(Error::new(Status::InvalidModel, problem));
    }
    let n_experts = k.config.size(&["num_local_experts", "num_experts"])?;
    let used = k
        .config
        .size(&["num_experts_per_tok", "experts_per_token"])?;
    if used > n_experts {
        let problem = format!(
            "config.json: num_experts_per_tok is {used}, but there are {n_experts} experts"
        );
        return Err(Error::new(Status::InvalidModel, problem));
    }
    k.set("expert_count", n_experts);
    k.set("expert_used_count", used);
    Ok(())
}

pub(super) fn qwen3moe(k: &mut Keys) -> Result<()> {
    qwen_experts(k)?;
    k.set("expert_weights_norm", k.config.flag("norm_topk_prob")?);
    // In all layers, whatever max_window_layers is.
    match k.config.flag("use_sliding_window")? {
        true => window_everywhere(k),
        false => Ok(()),
    }
}

/// Experts in all layers.
pub(super) fn qwen_experts(k: &mut Keys) -> Result<()> {
    experts(k)?;
    let dense = k.config.find_array("mlp_only_layers")?;
    let step = k.config.find_size("decoder_sparse_step")?;
    if dense.is_some_and(|layers| !layers.is_empty()) || step.is_some_and(|step| step != 1) {
        fail!(
            Unsupported,
            "config.json: mlp_only_layers or decoder_sparse_step asks for layers without experts, which are not supported"
        );
    }
    let width = k.config.size(&["moe_intermediate_size"])?;
    k.set("expert_feed_forward_length", width);
    Ok(())
}

pub(super) fn gemma2(k: &mut Keys) -> Result<()> {
    k.refuse("use_bidirectional_attention")?;
    k.copy("attn_logit_softcapping", "attn_logit_softcapping")?;
    k.copy("final_logit_softcapping", "final_logit_softcapping")?;
    k.attention_scale()?;
    k.windows(|layer| layer.is_multiple_of(2))
}

/// Embedding Gemma, whose attention is not causal.
pub(super) fn gemma_embedding(k: &mut Keys) -> Result<()> {
    if !k.config.flag("use_bidirectional_attention")? {
        fail!(
            Unsupported,
            "config.json: architectures is a model without a head, but use_bidirectional_attention is not true"
        );
    }
    k.set("attention.causal", false);
    gemma3_windows(k)
}

pub(super) fn gemma3(k: &mut Keys) -> Result<()> {
    k.refuse("use_bidirectional_attention")?;
    gemma3_windows(k)
}

fn gemma3_windows(k: &mut Keys) -> Result<()> {
    k.copy("final_logit_softcapping", "final_logit_softcapping")?;
    k.attention_scale()?;
    let every = match k.config.find_size("sliding_window_pattern")? {
        None => k.config.find_size("_sliding_window_pattern")?,
        found => found,
    };
    if let Some(every) = every.filter(|every| *every != 6)
        && k.config.find("layer_types").is_none()
    {
        // The usual pattern is every sixth.
        let windowed = (1..=k.n_layers)
            .map(|layer| !layer.is_multiple_of(every))
            .collect();
        let window = k.config.size(&["sliding_window"])?;
        k.set_windows(window, windowed);
        return Ok(());
    }
    k.windows(|layer| !(layer + 1).is_multiple_of(6))
}

pub(super) fn phi3(k: &mut Keys) -> Result<()> {
    // 0 tells models without a window from those whose files are older than the key.
    let window = k.config.find_size("sliding_window")?.unwrap_or(0);
    k.set("attention.sliding_window", window);
    Ok(())
}

pub(super) fn gpt2(k: &mut Keys) -> Result<()> {
    k.refuse("add_cross_attention")?;
    if k.config.flag("scale_attn_by_inverse_layer_idx")? {
        k.set("attention.scale_by_inverse_layer", true);
    }
    unscaled(k)
}

/// Scores that are products of queries and keys as they are.
pub(super) fn unscaled(k: &mut Keys) -> Result<()> {
    if k.config.find("scale_attn_weights") == Some(&false.into()) {
        k.set("attention.scale", 1f32);
    }
    Ok(())
}

pub(super) fn olmo3(k: &mut Keys) -> Result<()> {
    let every_fourth = |layer: u64| !(layer + 1).is_multiple_of(4);
    let Some(window) = k.config.find_size("sliding_window")? else {
        return Ok(());
    };
    let windowed = k.windowed(every_fourth)?;
    k.set_windows(window, windowed);
    Ok(())
}

pub(super) fn granite(k: &mut Keys) -> Result<()> {
    k.copy("attention_multiplier", "attention.scale")?;
    k.copy("embedding_multiplier", "embedding_scale")?;
    k.copy("residual_multiplier", "residual_scale")?;
    k.set(
        "logit_scale",
        k.config.find_f32("logits_scaling")?.unwrap_or(1.0),
    );
    Ok(())
}

pub(super) fn lfm2(k: &mut Keys) -> Result<()> {
    const TYPES: &str = "layer_types";
    const ATTENDING: &str = "full_attn_idxs";
    k.set(
        "attention.layer_norm_rms_epsilon",
        k.config.f32("norm_eps")?,
    );
    k.set("shortconv.l_cache", k.config.size(&["conv_L_cache"])?);
    let attends: Vec<bool> = match (k.config.find_array(TYPES)?, k.config.find_array(ATTENDING)?) {
        (Some(types), _) => types
            .iter()
            .map(|ty| match ty.as_str() {
                Some("conv") => Ok(false),
                Some("full_attention") => Ok(true),
                _ => Err(wrong(TYPES, ty, "conv or full_attention")),
            })
            .collect::<Result<_>>()?,
        (None, None) => vec![true; k.n_layers as usize],
        (None, Some(indices)) => {
            for index in indices {
                if index.as_u64().is_none_or(|i| i >= k.n_layers) {
                    return Err(wrong(ATTENDING, index, "a list of layers"));
                }
            }
            let attends = |i: u64| indices.iter().any(|index| index.as_u64() == Some(i));
            (0..k.n_layers).map(attends).collect()
        }
    };
    k.set_kv_heads(&attends)?;
    // Older configs name the width before it is adjusted so.
    let width = match k.config.find_size("block_ff_dim")? {
        Some(width) => width,
        None => k.config.size(&["intermediate_size"])?,
    };
    let width = match k.config.flag("block_auto_adjust_ff_dim")? {
        false => width,
        true => {
            let factor = f64::from(k.config.f32("block_ffn_dim_multiplier")?);
            let multiple = k.config.size(&["block_multiple_of"])?;
            let adjusted = (factor * (width.saturating_mul(2) / 3) as f64) as u64;
            adjusted.div_ceil(multiple).saturating_mul(multiple)
        }
    };
    k.set("feed_forward_length", width);
    Ok(())
}

pub(super) fn lfm2_moe(k: &mut Keys) -> Result<()> {
    lfm2(k)?;
    experts(k)?;
    let width = k.config.size(&["moe_intermediate_size"])?;
    k.set("expert_feed_forward_length", width);
    k.set("leading_dense_block_count", k.count("num_dense_layers")?);
    k.set("expert_gating_func", 2u32);
    k.set("expert_weights_norm", k.config.flag("norm_topk_prob")?);
    k.set(
        "expert_weights_scale",
        k.config.f32("routed_scaling_factor")?,
    );
    Ok(())
}

pub(super) fn smollm3(k: &mut Keys) -> Result<()> {
    const LAYERS: &str = "no_rope_layers";
    let usual = |layer: u64| !layer.is_multiple_of(4);
    let interval = k.config.find_size("no_rope_layer_interval")?.unwrap_or(4);
    let rotated: Vec<bool> = match k.config.find_array(LAYERS)? {
        None => (1..=k.n_layers)
            .map(|layer| !layer.is_multiple_of(interval))
            .collect(),
        // An entry is 1 where there is rope, whatever the key says.
        Some(flags) => flags
            .iter()
            .map(|flag| match flag.as_u64() {
                Some(flag) if flag < 2 => Ok(flag == 1),
                _ => Err(wrong(LAYERS, flag, "a list of 0 and 1")),
            })
            .collect::<Result<_>>()?,
    };
    if rotated.len() as u64 != k.n_layers {
        let problem = format!(
            "config.json: {LAYERS} has {} values, but num_hidden_layers is {}",
            rotated.len(),
            k.n_layers
        );
        return Err(Error::new(Status::InvalidModel, problem));
    }
    if !(1..=k.n_layers).map(usual).eq(rotated.iter().copied()) {
        let pattern = Value::Array(Array::Bool(rotated));
        k.set("attention.rope_pattern", pattern);
    }
    window_where_asked(k)
}

pub(super) fn gpt_oss(k: &mut Keys) -> Result<()> {
    experts(k)?;
    for (key, only) in [("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)] {
        if let Some(number) = k.config.find_f32(key)?
            && number != only
        {
            fail!(
                Unsupported,
                "config.json: {key} is {number}; only {only} is supported"
            );
        }
    }
    let width = k.config.size(&["intermediate_size"])?;
    k.set("expert_feed_forward_length", width);
    k.windows(|layer| layer.is_multiple_of(2))
}

pub(super) fn cohere2(k: &mut Keys) -> Result<()> {
    k.set("logit_scale", k.config.f32("logit_scale")?);
    k.say_unscaled();
    let every = k.config.find_size("sliding_window_pattern")?.unwrap_or(4);
    if every != 4 && k.config.find("layer_types").is_none() {
        fail!(
            Unsupported,
            "config.json: sliding_window_pattern is {every}; only 4 is supported"
        );
    }
    k.windows(|layer| !(layer + 1).is_multiple_of(4))
}
