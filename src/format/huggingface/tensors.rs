//! The tensors of a folder as those of a GGUF file: by their names there, in its order of rows.

use super::experts::Experts;
use super::families::{Family, Layout};
use super::further::{falcon_kv_heads, starcoder_kv_heads};
use super::gemma3n;
use super::json::Config;
use super::lists::Lists;
use super::opt;
use super::rows::{Order, Reordered, halves_exchanged, transposed};
use super::stored::{Stored, small};
use super::{
    delta_net, falcon_h1, fp8, keys, keys::Keys, latent, mamba1, mamba2, predictors, relatives,
};
use crate::error::{Result, fail};
use crate::format::Tensor;
use crate::quant::TensorType;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Names outside of layers: those of the folder without what may stand before them, and GGUF's.
pub(super) const TOP: &[(&str, &str)] = &[
    ("embed_tokens_per_layer", "per_layer_token_embd"),
    ("per_layer_model_projection", "per_layer_model_proj"),
    ("per_layer_projection_norm", "per_layer_proj_norm"),
    ("embed_tokens", "token_embd"),
    ("embeddings", "token_embd"),
    ("embed_in", "token_embd"),
    ("word_embeddings", "token_embd"),
    ("word_embeddings_layernorm", "token_embd_norm"),
    ("wte", "token_embd"),
    ("wpe", "position_embd"),
    ("embed_positions", "position_embd"),
    ("norm", "output_norm"),
    ("final_layernorm", "output_norm"),
    ("final_layer_norm", "output_norm"),
    ("embedding_norm", "token_embd_norm"),
    ("ln_f", "output_norm"),
    ("norm_f", "output_norm"),
    ("lm_head", "output"),
    ("embed_out", "output"),
];
/// Flags of the config, and the parts of a layer that have biases where it is set.
const BIASES: &[(&str, &[&str])] = &[
    (
        "use_qkv_bias",
        &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    ),
    (
        "attention_bias",
        &[
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "self_attn.o_proj",
        ],
    ),
    ("conv_bias", &["conv.in_proj", "conv.conv", "conv.out_proj"]),
    ("mamba_conv_bias", &["mamba.conv1d"]),
    ("mamba_proj_bias", &["mamba.in_proj", "mamba.out_proj"]),
    ("use_conv_bias", &["mixer.conv1d"]),
    (
        "mlp_bias",
        &[
            "mlp.gate_proj",
            "mlp.up_proj",
            "mlp.down_proj",
            "mixer.up_proj",
            "mixer.down_proj",
            "feed_forward.gate_proj",
            "feed_forward.up_proj",
            "feed_forward.down_proj",
        ],
    ),
    ("projectors_bias", &["mamba.out_proj"]),
    (
        "use_bias",
        &[
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "self_attn.o_proj",
            "mlp.c_fc",
            "mlp.c_proj",
            "mlp.gate_proj",
            "mlp.up_proj",
            "mlp.down_proj",
            "mixer.in_proj",
            "mixer.out_proj",
        ],
    ),
];
/// What may stand before a name.
const PREFIXES: [&str; 7] = [
    "model.",
    "decoder.",
    "language_model.",
    "text_model.",
    "transformer.",
    "backbone.",
    "gpt_neox.",
];
/// Parts of a model that are none of the text part: it sees or hears.
const OTHER_PARTS: [&str; 13] = [
    "audio_tower.",
    "connector.",
    "embed_audio.",
    "embed_vision.",
    "vision_tower.",
    "vision_model.",
    "vision_adapter.",
    "vision_embedder.",
    "vision_projection.",
    "multi_modal_projector.",
    "mm_projector.",
    "vit_large_projector.",
    "visual.",
];
/// Constants that old files have stored, and scales of what is not quantized here.
const UNUSED: [&str; 10] = [
    "rotary_emb.inv_freq",
    ".attn.bias",
    ".attn.masked_bias",
    ".attention.bias",
    ".attention.masked_bias",
    ".input_scale",
    ".input_global_scale",
    ".activation_scale",
    ".k_scale",
    ".v_scale",
];
/// What the name of a scale has at the end instead of `.weight`, or behind a name without that.
const SCALES: [&str; 2] = ["_scale_inv", "_scale"];

/// The tensors of a folder.
pub(super) struct Folder<'a> {
    family: &'static Family,
    keys: &'a Keys<'a>,
    stored: &'a HashMap<String, Stored>,
    n_layers: u64,
    /// Layers after those, which guess further tokens.
    predictors: u64,
    /// Query heads, and elements of their part that is not rotated in latent attention.
    n_heads: usize,
    plain_dim: usize,
    delta_net: Option<delta_net::Sizes>,
    head_dim: usize,
    /// Whether the head is the embedding.
    tied: bool,
    /// Rows and columns of a block of 8-bit floats that share a scale.
    block: [usize; 2],
    /// Whether 8-bit floats must have scales.
    needs_scales: bool,
    /// What 8-bit floats become.
    wide: TensorType,
    /// Parts of a layer that must have biases, and the flag that says so.
    biases: Vec<(&'static str, &'static str)>,
}

/// The matrix outside of layers that has this name in GGUF.
fn find_top<'a>(stored: &'a HashMap<String, Stored>, gguf: &str) -> Option<&'a Stored> {
    let is = |name: &str| {
        let stem = without_prefixes(name).strip_suffix(".weight");
        let found = TOP.iter().find(|(known, _)| Some(*known) == stem);
        found.is_some_and(|(_, top)| *top == gguf)
    };
    let mut all = stored.iter().filter(|(name, _)| is(name));
    all.next().map(|(_, stored)| stored)
}

/// Whether the head is the embedding. As with transformers, a head that is stored and differs from the embedding is one of its own,
/// whatever the config says.
fn is_tied(family: &Family, config: &Config, stored: &HashMap<String, Stored>) -> Result<bool> {
    let head = find_top(stored, "output");
    let tied = match config.find("tie_word_embeddings") {
        Some(_) => config.flag("tie_word_embeddings")?,
        None => family.tied || head.is_none(),
    };
    match (head, find_top(stored, "token_embd")) {
        (Some(head), Some(embedding)) if tied => head.equals(embedding),
        _ => Ok(tied),
    }
}

impl<'a> Folder<'a> {
    pub(super) fn new(
        family: &'static Family,
        keys: &'a Keys,
        stored: &'a HashMap<String, Stored>,
    ) -> Result<Folder<'a>> {
        let config = keys.config;
        let tied = is_tied(family, config, stored)?;
        let quantization = config.nested("quantization_config")?;
        let scales = stored.values().filter(|s| is_scale(&s.name));
        Ok(Folder {
            family,
            keys,
            stored,
            n_layers: keys.n_layers,
            predictors: match config.find("num_nextn_predict_layers") {
                Some(_) => keys.count("num_nextn_predict_layers")?,
                None => keys.count("num_mtp_layers")?,
            },
            n_heads: config.size(keys::HEADS)? as usize,
            plain_dim: config.find_size("qk_nope_head_dim")?.unwrap_or(0) as usize,
            delta_net: delta_net::Sizes::find(keys)?,
            head_dim: keys.head_dim as usize,
            tied,
            block: block_size(quantization.as_ref())?,
            needs_scales: quantization.is_some(),
            wide: fp8::wide_type(scales.filter(|s| s.plain_type().is_some()))?,
            biases: biases(family, config)?,
        })
    }

    /// All tensors by their names in GGUF, and how many heads there are among them that guess further tokens, behind the layers.
    pub(super) fn tensors(&self) -> Result<(HashMap<Arc<str>, Tensor>, u64)> {
        let mut tensors = HashMap::new();
        let mut experts = Experts::default();
        let mut lists = Lists::default();
        let mut heads = 0;
        let mut names: Vec<&String> = self.stored.keys().collect();
        names.sort_unstable();
        for full in names {
            let stored = &self.stored[full];
            let name = without_prefixes(full);
            let other = OTHER_PARTS.iter().any(|part| name.starts_with(part));
            let activation = relatives::is_activation(self.family, name);
            if other
                || activation
                || UNUSED.iter().any(|end| full.ends_with(end))
                || self.scales(full)
            {
                continue;
            }
            let (stem, end) = match name.rsplit_once('.') {
                Some((stem, end @ ("weight" | "bias"))) => (stem, end),
                _ => (name, ""),
            };
            if let Some((_, top)) = TOP.iter().find(|(known, _)| *known == stem) {
                if !(self.tied && *top == "output" && end == "weight") {
                    let name = format!("{top}.{end}");
                    let tensor = match (self.architecture(), *top) {
                        ("gemma3n", "per_layer_token_embd") => {
                            gemma3n::layer_embeddings(self.keys, self.tensor(stored, &name)?)?
                        }
                        _ => self.tensor(stored, &name)?,
                    };
                    insert(&mut tensors, name, tensor)?;
                }
                continue;
            }
            if end == "weight"
                && lists.add(self.architecture(), stem, || self.tensor(stored, name))?
            {
                continue;
            }
            let place = match predictors::of_qwen(stem, self.n_layers) {
                Some(None) => continue,
                Some(Some(_)) if self.delta_net.is_none() => continue,
                Some(place) => place,
                None if self.is_mimo() && stem.starts_with("mtp_layers.") => {
                    predictors::of_mimo(stem, self.n_layers)
                }
                None => layer_and_part(stem),
            };
            let Some((layer, part)) = place else {
                return Err(self.unknown(full));
            };
            let is_head = layer >= self.n_layers && layer < self.n_layers + self.heads();
            if is_head {
                heads = heads.max(layer + 1 - self.n_layers);
            } else if (self.n_layers..self.n_layers + self.predictors).contains(&layer) {
                // Heads that guess further tokens, of families that are supported without them.
                continue;
            }
            if is_head && let Some(part) = predictors::part(part) {
                let name = format!("blk.{layer}.nextn.{part}.{end}");
                let tensor = match self.tensor(stored, &name)? {
                    // It takes the hidden state first.
                    tensor if self.is_mimo() && part == "eh_proj" => halves_exchanged(tensor)?,
                    tensor => tensor,
                };
                insert(&mut tensors, name, tensor)?;
                continue;
            }
            if layer >= self.n_layers && !is_head {
                fail!(
                    InvalidModel,
                    "tensor {full} is of layer {layer}, but num_hidden_layers is {}",
                    self.n_layers
                );
            }
            if let Some(parts) = self.of_mixer(part, end, stored)? {
                for (part, tensor) in parts {
                    insert(&mut tensors, format!("blk.{layer}.{part}"), tensor)?;
                }
            } else if let Some(part) = of_experts(part)
                && self.family.part(&format!("mlp.experts.{part}")).is_none()
            {
                if !experts.add(self, layer, part, end, stored, &mut tensors)? {
                    return Err(self.unknown(full));
                }
            } else if let Some(parts) =
                latent::parts_of(self.architecture(), self.family.part(part).unwrap_or(""))
                && end == "weight"
            {
                let both =
                    latent::keys_and_values(self.matrix(stored)?, self.n_heads, self.plain_dim)?;
                for (part, tensor) in parts.into_iter().zip(both) {
                    insert(&mut tensors, format!("blk.{layer}.{part}.weight"), tensor)?;
                }
            } else if let Some(part) = self.family.part(part) {
                let of_heads = stored.shape.first() == Some(&self.n_heads);
                let part = match (self.architecture(), part) {
                    // Gates of delta nets have the name that those of heads have.
                    ("bailingmoe3", "attn_gate") if !of_heads => "ssm_g_a",
                    _ => part,
                };
                let name = match end {
                    "" => format!("blk.{layer}.{part}"),
                    // The only norm whose name has no end in GGUF.
                    "weight" if self.family.architecture == "falcon-h1" && part == "ffn_norm" => {
                        format!("blk.{layer}.{part}")
                    }
                    end => format!("blk.{layer}.{part}.{end}"),
                };
                let tensor = self.tensor(stored, &name)?;
                insert(&mut tensors, name, tensor)?;
            } else {
                return Err(self.unknown(full));
            }
        }
        experts.stack(&mut tensors)?;
        lists.stack(&mut tensors)?;
        if self.family.architecture == "falcon-h1" && self.tied {
            // Head and embedding have other factors.
            if let Some(stored) = find_top(self.stored, "token_embd") {
                let name = "output.weight".to_owned();
                let tensor = self.tensor(stored, &name)?;
                insert(&mut tensors, name, tensor)?;
            }
        }
        self.check_complete(&tensors)?;
        Ok((tensors, heads))
    }

    /// Heads behind the layers that the folder may have.
    fn heads(&self) -> u64 {
        match self.family.architecture {
            // By their names alone.
            _ if self.delta_net.is_some() => 1,
            "deepseek2" | "glm4" | "glm4moe" | "hy_v3" => self.predictors,
            _ if self.is_mimo() => self.predictors,
            _ => 0,
        }
    }

    /// The tensors that a part of a layer is or holds, by their names behind that of the layer, in
    /// families with recurrent layers that need more than another name.
    fn of_mixer(
        &self,
        part: &str,
        end: &str,
        stored: &Stored,
    ) -> Result<Option<Vec<(&'static str, Tensor)>>> {
        let full = match end {
            "" => part.to_owned(),
            end => format!("{part}.{end}"),
        };
        match &self.delta_net {
            Some(net) => net.tensors(self, &full, stored),
            None if matches!(self.architecture(), "mamba" | "jamba") => {
                Ok(mamba1::tensor(&full, stored)?.map(|part| vec![part]))
            }
            None if self.architecture().starts_with("granite")
                || self.is_nemotron()
                || matches!(self.architecture(), "falcon-h1" | "mamba2") =>
            {
                mamba2::tensors(self, self.keys, &full, stored)
            }
            None => Ok(None),
        }
    }

    fn unknown(&self, name: &str) -> crate::Error {
        crate::Error::new(
            crate::Status::Unsupported,
            format!(
                "tensor {name} is not known in models of {}",
                self.family.model_types[0]
            ),
        )
    }

    /// Whether a tensor is the scale of another one.
    fn scales(&self, name: &str) -> bool {
        let mut ends = SCALES.iter().filter_map(|end| name.strip_suffix(end));
        ends.any(|of| self.stored.contains_key(of))
    }

    /// A tensor that is called `name` in GGUF.
    fn tensor(&self, stored: &Stored, name: &str) -> Result<Tensor> {
        let q_or_k = [".attn_q.", ".attn_k."].iter().any(|n| name.contains(n));
        let order = match self.family.layout {
            Layout::Halves if q_or_k => Some(Order::Interleaved(self.head_dim)),
            Layout::GroupedHeads if name.contains(".attn_qkv.") => Some(self.grouped(stored)?),
            _ if self.plain_dim > 0 => match name.rsplit('.').nth(1) {
                Some(part) => latent::rotated_last(self.keys, part)?,
                None => None,
            },
            _ => None,
        };
        let of_heads = match order {
            Some(Order::Interleaved(head)) => Some((head, head)),
            Some(Order::LastInterleaved { plain, rotated }) => Some((plain + rotated, rotated)),
            _ => None,
        };
        if let Some((head, rotated)) = of_heads {
            let rows = stored.shape.first().copied().unwrap_or(1);
            if !rotated.is_multiple_of(2) || !rows.is_multiple_of(head) {
                fail!(
                    ShapeMismatch,
                    "tensor {} has shape {:?}; the model needs heads of {head} rows, an even number of which rotates",
                    stored.name,
                    stored.shape
                );
            }
        }
        let dims = stored.dims()?;
        let precise = ["ffn_gate_inp.", "position_embd."].iter();
        // The other one's has its sign with the floor.
        let sign = match self.family.architecture {
            "kimi-linear" => -1.0,
            "bailingmoe3" => 1.0,
            _ => 0.0,
        };
        let decay = sign != 0.0 && name.ends_with(".ssm_a");
        let dims = match decay || name.ends_with("exp_probs_b.bias") {
            // Some have a row of them.
            true => vec![dims.iter().product()],
            false => dims,
        };
        if dims.len() == 1 || precise.clone().any(|part| name.contains(part)) {
            let mut values = stored.values()?;
            if let Some(order) = order {
                values = (0..values.len()).map(|i| values[order.source(i)]).collect();
            }
            let mut dims = dims;
            if self.family.architecture == "opt" && name == "position_embd.weight" {
                (dims, values) = opt::positions(stored, dims, values)?;
            }
            if decay {
                let decay = |x: &mut f32| *x = sign * f64::from(*x).exp() as f32;
                values.iter_mut().for_each(decay);
            }
            let shifted = match self.family.architecture {
                // But for the last one.
                "muse-glimmer" => name.starts_with("blk."),
                _ => self.family.layout == Layout::ShiftedNorms,
            };
            if shifted && name.ends_with("norm.weight") {
                values.iter_mut().for_each(|v| *v += 1.0);
            }
            match self.family.architecture {
                "falcon-h1" => falcon_h1::scale(self.keys, name, &mut values)?,
                "gemma3n" if gemma3n::is_turned_off(self.keys, name) => values.fill(1.0),
                _ => {}
            }
            return small(&stored.name, dims, &values);
        }
        // Embedding and head are as everywhere.
        let in_layer = name.starts_with("blk.");
        let tensor = match self.family.layout {
            Layout::Transposed if in_layer => transposed(stored)?,
            _ => self.matrix(stored)?,
        };
        match order {
            None if self.family.architecture == "falcon-h1" => {
                falcon_h1::scaled(self.keys, tensor, name)
            }
            None => Ok(tensor),
            Some(order) => reordered(tensor, order, None),
        }
    }

    /// The order of rows of heads in groups.
    fn grouped(&self, stored: &Stored) -> Result<Order> {
        let groups = match self.family.architecture {
            "falcon" => falcon_kv_heads(self.keys)? as usize,
            "starcoder" => starcoder_kv_heads(self.keys)? as usize,
            _ => self.n_heads,
        };
        if groups == 0 || !self.n_heads.is_multiple_of(groups) {
            fail!(
                InvalidModel,
                "config.json: num_kv_heads is {groups}, which does not divide the {} heads",
                self.n_heads
            );
        }
        let head = self.head_dim;
        let rows = head.saturating_mul(self.n_heads + 2 * groups);
        if stored.shape.first() != Some(&rows) {
            fail!(
                ShapeMismatch,
                "tensor {} has shape {:?}; the model needs {} heads with {groups} keys and values, {rows} rows",
                stored.name,
                stored.shape,
                self.n_heads
            );
        }
        Ok(Order::Heads {
            groups,
            queries: self.n_heads / groups * head,
            head,
        })
    }

    /// A matrix or several, as they are stored.
    pub(super) fn matrix(&self, stored: &Stored) -> Result<Tensor> {
        if stored.ty != fp8::TYPE {
            return stored.tensor();
        }
        let mut names = SCALES.iter().map(|end| format!("{}{end}", stored.name));
        let scale = names.find_map(|name| self.stored.get(&name));
        if scale.is_none() && self.needs_scales {
            fail!(
                MissingTensor,
                "tensor {}_scale_inv is missing, the scale of {}",
                stored.name,
                stored.name
            );
        }
        fp8::scaled(stored, scale, self.block, self.wide)
    }

    /// Another tensor of the folder, for one that it belongs to.
    pub(super) fn partner(&self, of: &Stored, name: &str) -> Result<&Stored> {
        match self.stored.get(name) {
            Some(stored) => Ok(stored),
            None => fail!(
                MissingTensor,
                "tensor {name} is missing, which belongs to {}",
                of.name
            ),
        }
    }

    /// The architecture in GGUF.
    pub(super) fn architecture(&self) -> &'static str {
        self.family.architecture
    }

    fn is_nemotron(&self) -> bool {
        self.architecture().starts_with("nemotron_h")
    }

    fn is_mimo(&self) -> bool {
        self.family.model_types == ["mimo"]
    }

    /// What stands before the names of the layers, and so before that of the last norm.
    fn prefix(&self) -> &str {
        let before = |name: &'a String| {
            let short = without_prefixes(name);
            layer_and_part(short)?;
            Some(&name[..name.len() - short.len()])
        };
        // The same in all of them.
        self.stored.keys().filter_map(before).min().unwrap_or("")
    }

    /// A missing tensor outside of the layers as this folder would call it.
    fn spelled(&self, gguf: &str) -> String {
        let (stem, end) = gguf.rsplit_once('.').unwrap_or((gguf, ""));
        let own = match (self.family.architecture, stem) {
            ("gpt2" | "starcoder" | "gptneo", "token_embd") => "wte",
            ("gpt2" | "starcoder" | "gptneo" | "falcon" | "bloom", "output_norm") => "ln_f",
            ("falcon" | "bailingmoe2" | "bailingmoe3" | "bloom", "token_embd") => "word_embeddings",
            ("gptneox", "token_embd") => "embed_in",
            ("gptneox", "output_norm") => "final_layer_norm",
            ("gptneox", "output") => "embed_out",
            ("phi2", "output_norm") => "final_layernorm",
            ("opt", "output_norm") => "final_layer_norm",
            ("opt", "position_embd") => "embed_positions",
            ("mamba" | "mamba2", "token_embd") => "embeddings",
            ("mamba" | "mamba2", "output_norm") => "norm_f",
            (_, "output_norm") if self.family.model_types == ["bamba"] => "final_layernorm",
            ("jamba", "output_norm") => "final_layernorm",
            (_, "token_embd") if self.is_nemotron() => "embeddings",
            (_, "output_norm") if self.is_nemotron() => "norm_f",
            _ => TOP
                .iter()
                .find(|(_, top)| *top == stem)
                .map_or(stem, |(name, _)| name),
        };
        let prefix = match stem {
            "output" => "",
            _ => self.prefix(),
        };
        format!("{prefix}{own}.{end}")
    }

    /// All layers must have what the first one has, and a model what all models have.
    fn check_complete(&self, tensors: &HashMap<Arc<str>, Tensor>) -> Result<()> {
        let norm = match self.family.architecture {
            "lfm2" | "lfm2moe" | "lfm3" => Some("token_embd_norm.weight"),
            // Its norms have no weights.
            "olmo" | "nanochat" => None,
            _ => Some("output_norm.weight"),
        };
        let mut top = vec!["token_embd.weight"];
        top.extend(norm);
        if !self.tied {
            top.push("output.weight");
        }
        for name in top {
            if !tensors.contains_key(name) {
                fail!(MissingTensor, "tensor {} is missing", self.spelled(name));
            }
        }
        for (flag, part) in &self.biases {
            let gguf = self.family.part(part).unwrap_or(part);
            for layer in 0..self.n_layers {
                let has =
                    |end: &str| tensors.contains_key(format!("blk.{layer}.{gguf}.{end}").as_str());
                if has("weight") && !has("bias") {
                    fail!(
                        MissingTensor,
                        "tensor {}layers.{layer}.{part}.bias is missing, but {flag} is true in config.json",
                        self.prefix()
                    );
                }
            }
        }
        let mut by_layer: BTreeMap<u64, BTreeMap<&str, &Tensor>> = BTreeMap::new();
        for (name, tensor) in tensors {
            let rest = name.strip_prefix("blk.").and_then(|r| r.split_once('.'));
            if let Some((layer, part)) = rest
                && let Ok(layer) = layer.parse()
            {
                by_layer.entry(layer).or_default().insert(part, tensor);
            }
        }
        let empty = BTreeMap::new();
        let parts = |layer: u64| by_layer.get(&layer).unwrap_or(&empty);
        if parts(0).is_empty() {
            fail!(MissingTensor, "no tensor of the first layer is there");
        }
        // Feed-forward parts of layers with experts are alike, and those of layers without.
        let mut of_kind: [Option<u64>; 2] = [None; 2];
        for layer in 0..self.n_layers {
            let kind = usize::from(has_experts(parts(layer)));
            let example = *of_kind[kind].get_or_insert(layer);
            for from in [0, example] {
                for (part, first) in parts(from) {
                    let alike = from == example || !is_feed_forward(part);
                    let own = match self.family.architecture {
                        // Layers that read another's keys and values, and values that are keys.
                        "gemma3n" | "gemma4" => {
                            ["attn_k", "attn_v"].iter().any(|kv| part.starts_with(kv))
                        }
                        // Layers with and without a window differ in that.
                        "mimo2" => part.starts_with("attn_sinks."),
                        // Layers with different mixers; what each needs is checked with the network.
                        "lfm2" | "lfm2moe" | "lfm3" | "kimi-linear" | "bailingmoe3"
                        | "qwen3next" | "qwen35" | "qwen35moe" | "granitehybrid" | "jamba" => {
                            is_mixer(part)
                        }
                        // Norms of layers that attend come behind parts.
                        "olmo_hybrid" => {
                            is_mixer(part)
                                || part.starts_with("attn_norm.")
                                || part.starts_with("post_ffw_norm.")
                        }
                        // Layers that are one part each.
                        "nemotron_h" | "nemotron_h_moe" => !part.starts_with("attn_norm."),
                        _ => false,
                    };
                    if alike && !own && !parts(layer).contains_key(part) {
                        let (from, to) = (format!(".{from}."), format!(".{layer}."));
                        let name = first.name.replacen(&from, &to, 1);
                        fail!(MissingTensor, "tensor {name} is missing");
                    }
                }
            }
        }
        Ok(())
    }
}

/// Whether these parts of a layer are of one with experts.
fn has_experts(parts: &BTreeMap<&str, &Tensor>) -> bool {
    parts.keys().any(|part| part.contains("_exps."))
}

/// Whether a part of a layer is of its mixer, and no norm before or behind it.
fn is_mixer(part: &str) -> bool {
    ["shortconv.", "ssm_", "attn_"]
        .iter()
        .any(|of| part.starts_with(of))
        && !part.starts_with("attn_norm.")
}

/// Whether a part of a layer is of its feed-forward part, and no norm.
fn is_feed_forward(part: &str) -> bool {
    part.starts_with("ffn_") && !part.starts_with("ffn_norm.") || part.starts_with("exp_probs_b.")
}

/// Rows of a tensor in another order; of `dims`, if they are not those of the tensor.
pub(super) fn reordered(source: Tensor, order: Order, dims: Option<Vec<usize>>) -> Result<Tensor> {
    let dims = dims.unwrap_or_else(|| source.dims.clone());
    let name = Arc::clone(&source.name);
    Tensor::made(name, source.ty, dims, Reordered { source, order })
}

/// Adds a tensor. `FileCorrupt` if the folder has it under two names.
pub(super) fn insert(
    tensors: &mut HashMap<Arc<str>, Tensor>,
    name: String,
    tensor: Tensor,
) -> Result<()> {
    // GGUF leaves out the inputs of a channel of a convolution, of which there is one.
    let tensor = match tensor.dims[..] {
        [_, 1, rows] if name.ends_with("shortconv.conv.weight") => tensor.row_range(0..rows),
        _ => tensor,
    };
    let this = Arc::clone(&tensor.name);
    match tensors.insert(name.into(), tensor) {
        None => Ok(()),
        Some(other) => fail!(
            FileCorrupt,
            "tensors {} and {this} are the same part of the model",
            other.name
        ),
    }
}

/// The parts of a layer that must have biases, with the flag of the config that says so.
fn biases(family: &Family, config: &Config) -> Result<Vec<(&'static str, &'static str)>> {
    let mut all = Vec::new();
    for &(flag, parts) in BIASES {
        if !family.bias_flags.contains(&flag) || !config.flag(flag)? {
            continue;
        }
        let parts = parts.iter().filter(|part| family.part(part).is_some());
        // Families whose output has none, or by a flag of its own.
        let output = match family.architecture {
            "chatglm" | "glm4" | "glm4moe" | "mimo2" => true,
            "seed_oss" => !config.flag("attention_out_bias")?,
            _ => false,
        };
        let parts = parts.filter(|part| !(output && part.ends_with("o_proj")));
        all.extend(parts.map(|part| (flag, *part)));
    }
    Ok(all)
}

fn is_scale(name: &str) -> bool {
    SCALES.iter().any(|end| name.ends_with(end))
}

/// Rows and columns of a block, by the `quantization_config`. `Unsupported` for other kinds.
fn block_size(quantization: Option<&Config>) -> Result<[usize; 2]> {
    const USUAL: [usize; 2] = [128, 128];
    const KEY: &str = "weight_block_size";
    let Some(quantization) = quantization else {
        return Ok(USUAL);
    };
    let method = quantization.find_str("quant_method")?.unwrap_or("none");
    let known = [
        "fp8",
        "fbgemm_fp8",
        "compressed-tensors",
        "mxfp4",
        "gptq",
        "awq",
        "modelopt",
        "bitnet",
    ];
    if !known.contains(&method) {
        fail!(
            Unsupported,
            "config.json: quant_method is {method:?}; supported: {}",
            known.join(", ")
        );
    }
    let Some(size) = quantization.find_array(KEY)? else {
        return Ok(USUAL);
    };
    let number = |i: usize| size.get(i)?.as_u64().filter(|n| (1..1 << 20).contains(n));
    match (size.len(), number(0), number(1)) {
        (2, Some(rows), Some(columns)) => Ok([rows as usize, columns as usize]),
        _ => Err(super::json::wrong(
            KEY,
            &size.clone().into(),
            "a list of two sizes",
        )),
    }
}

pub(super) fn without_prefixes(mut name: &str) -> &str {
    while let Some(rest) = PREFIXES.iter().find_map(|p| name.strip_prefix(p)) {
        name = rest;
    }
    name
}

/// The part of experts that a part of a layer is.
pub(super) fn of_experts(part: &str) -> Option<&str> {
    let inside = || part.split_once(".experts.").map(|(_, part)| part);
    part.strip_prefix("experts.").or_else(inside)
}

/// `layers.{layer}.{part}` taken apart.
pub(super) fn layer_and_part(name: &str) -> Option<(u64, &str)> {
    let rest = name
        .strip_prefix("layers.")
        .or_else(|| name.strip_prefix("h."))?;
    let (layer, part) = rest.split_once('.')?;
    // The one spelling of a number.
    let layer = layer
        .parse()
        .ok()
        .filter(|n: &u64| n.to_string() == layer)?;
    Some((layer, part))
}
