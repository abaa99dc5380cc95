//! Encoders: their tensors by GGUF's names, and what their configs say.

use super::json::{Config, wrong};
use super::keys::{Keys, LAYERS, check_layers};
use super::rope;
use super::rows::transposed;
use super::stored::{Stored, small};
use super::tensors::insert;
use crate::error::{Error, Result, Status, fail};
use crate::format::{ModelFile, Tensor};
use std::collections::HashMap;
use std::sync::Arc;

/// A family of encoders.
pub(super) struct Encoder {
    /// `model_type` in the config.
    model_types: &'static [&'static str],
    /// What the names of its classes begin with.
    classes: &'static [&'static str],
    /// `general.architecture` in GGUF.
    architecture: &'static str,
    /// Which of the models with that type are of it, if not all that no other family has.
    variant: Option<Variant>,
    /// What stands before the number of a layer.
    layers: &'static str,
    /// Parts of a layer: those of the folder, and those of GGUF.
    parts: &'static [(&'static str, &'static str)],
    activations: &'static [&'static str],
    rope: bool,
    /// Whether positions are counted from the one behind `pad_token_id` on.
    shifted: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Variant {
    /// Positions as slopes of attention's scores.
    Slopes,
    /// Layers with experts.
    Experts,
}

impl Variant {
    fn is(self, config: &Config) -> Result<bool> {
        Ok(match self {
            Variant::Slopes => config.find_str("position_embedding_type")? == Some("alibi"),
            Variant::Experts => match config.find("moe_every_n_layers") {
                None => false,
                Some(every) => every.as_u64() != Some(0),
            },
        })
    }
}

const NOMIC_PARTS: &[(&str, &str)] = &[
    ("attn.Wqkv", "attn_qkv"),
    ("attn.out_proj", "attn_output"),
    ("norm1", "attn_output_norm"),
    ("mlp.fc11", "ffn_up"),
    ("mlp.fc12", "ffn_gate"),
    ("mlp.fc1", "ffn_up"),
    ("mlp.fc2", "ffn_down"),
    ("mlp.router.layer", "ffn_gate_inp"),
    ("norm2", "layer_output_norm"),
];
/// Of all experts of a layer: matrices one below the other, and what is added to their sum.
const EXPERTS: [(&str, &str); 3] = [
    ("mlp.experts.mlp.w1", "ffn_up_exps.weight"),
    ("mlp.experts.mlp.w2", "ffn_down_exps.weight"),
    ("mlp.experts.bias", "ffn_exps_sum.bias"),
];

const BERT_PARTS: &[(&str, &str)] = &[
    ("attention.self.query", "attn_q"),
    ("attention.self.key", "attn_k"),
    ("attention.self.value", "attn_v"),
    ("attention.output.dense", "attn_output"),
    ("attention.output.LayerNorm", "attn_output_norm"),
    ("intermediate.dense", "ffn_up"),
    ("output.dense", "ffn_down"),
    ("output.LayerNorm", "layer_output_norm"),
];

const DISTILBERT_PARTS: &[(&str, &str)] = &[
    ("attention.q_lin", "attn_q"),
    ("attention.k_lin", "attn_k"),
    ("attention.v_lin", "attn_v"),
    ("attention.out_lin", "attn_output"),
    ("sa_layer_norm", "attn_output_norm"),
    ("ffn.lin1", "ffn_up"),
    ("ffn.lin2", "ffn_down"),
    ("output_layer_norm", "layer_output_norm"),
];

/// Those with a variant before those of the same type without.
const FAMILIES: &[Encoder] = &[
    Encoder {
        model_types: &["bert"],
        classes: &["JinaBert"],
        architecture: "jina-bert-v2",
        variant: Some(Variant::Slopes),
        layers: "encoder.layer.",
        parts: &[
            ("attention.self.query", "attn_q"),
            ("attention.self.key", "attn_k"),
            ("attention.self.value", "attn_v"),
            ("attention.output.dense", "attn_output"),
            ("attention.output.LayerNorm", "attn_output_norm"),
            ("mlp.gated_layers", "ffn_up"),
            ("mlp.wo", "ffn_down"),
            ("mlp.layernorm", "layer_output_norm"),
        ],
        activations: &["gelu"],
        rope: false,
        shifted: false,
    },
    Encoder {
        model_types: &["nomic_bert"],
        classes: &["NomicBert"],
        architecture: "nomic-bert-moe",
        variant: Some(Variant::Experts),
        layers: "encoder.layers.",
        parts: NOMIC_PARTS,
        activations: &["gelu"],
        rope: true,
        shifted: false,
    },
    Encoder {
        model_types: &["eurobert"],
        classes: &["EuroBert"],
        architecture: "eurobert",
        variant: None,
        layers: "layers.",
        parts: &[
            ("input_layernorm", "attn_norm"),
            ("self_attn.q_proj", "attn_q"),
            ("self_attn.k_proj", "attn_k"),
            ("self_attn.v_proj", "attn_v"),
            ("self_attn.o_proj", "attn_output"),
            ("post_attention_layernorm", "ffn_norm"),
            ("mlp.gate_proj", "ffn_gate"),
            ("mlp.up_proj", "ffn_up"),
            ("mlp.down_proj", "ffn_down"),
        ],
        activations: &["silu"],
        rope: true,
        shifted: false,
    },
    Encoder {
        model_types: &["bert"],
        classes: &["Bert"],
        architecture: "bert",
        variant: None,
        layers: "encoder.layer.",
        parts: BERT_PARTS,
        activations: &["gelu"],
        rope: false,
        shifted: false,
    },
    Encoder {
        model_types: &["mpnet"],
        classes: &["MPNet"],
        architecture: "mpnet",
        variant: None,
        layers: "encoder.layer.",
        parts: &[
            ("attention.attn.q", "attn_q"),
            ("attention.attn.k", "attn_k"),
            ("attention.attn.v", "attn_v"),
            ("attention.attn.o", "attn_output"),
            ("attention.LayerNorm", "attn_output_norm"),
            ("intermediate.dense", "ffn_up"),
            ("output.dense", "ffn_down"),
            ("output.LayerNorm", "layer_output_norm"),
        ],
        activations: &["gelu"],
        rope: false,
        shifted: true,
    },
    Encoder {
        model_types: &["t5", "mt5", "umt5"],
        classes: &["T5EncoderModel", "MT5EncoderModel", "UMT5EncoderModel"],
        architecture: "t5encoder",
        variant: None,
        layers: "encoder.block.",
        parts: &[
            ("layer.0.layer_norm", "attn_norm"),
            ("layer.0.SelfAttention.q", "attn_q"),
            ("layer.0.SelfAttention.k", "attn_k"),
            ("layer.0.SelfAttention.v", "attn_v"),
            ("layer.0.SelfAttention.o", "attn_output"),
            (
                "layer.0.SelfAttention.relative_attention_bias",
                "attn_rel_b",
            ),
            ("layer.1.layer_norm", "ffn_norm"),
            ("layer.1.DenseReluDense.wi", "ffn_up"),
            ("layer.1.DenseReluDense.wi_0", "ffn_gate"),
            ("layer.1.DenseReluDense.wi_1", "ffn_up"),
            ("layer.1.DenseReluDense.wo", "ffn_down"),
        ],
        activations: &["relu", "gated-gelu"],
        rope: false,
        shifted: false,
    },
    Encoder {
        model_types: &["distilbert"],
        classes: &["DistilBert"],
        architecture: "bert",
        variant: None,
        layers: "transformer.layer.",
        parts: DISTILBERT_PARTS,
        activations: &["gelu"],
        rope: false,
        shifted: false,
    },
    Encoder {
        model_types: &["roberta", "xlm-roberta", "camembert"],
        classes: &["Roberta", "XLMRoberta", "Camembert"],
        architecture: "bert",
        variant: None,
        layers: "encoder.layer.",
        parts: BERT_PARTS,
        activations: &["gelu"],
        rope: false,
        shifted: true,
    },
    Encoder {
        model_types: &["nomic_bert"],
        classes: &["NomicBert"],
        architecture: "nomic-bert",
        variant: None,
        layers: "encoder.layers.",
        parts: NOMIC_PARTS,
        activations: &["silu", "swiglu"],
        rope: true,
        shifted: false,
    },
    Encoder {
        model_types: &["jina_embeddings_v3"],
        classes: &["JinaEmbeddingsV3"],
        architecture: "jina-bert-v3",
        variant: None,
        layers: "encoder.layers.",
        parts: &[
            ("mixer.Wqkv", "attn_qkv"),
            ("mixer.out_proj", "attn_output"),
            ("norm1", "attn_output_norm"),
            ("mlp.fc1", "ffn_up"),
            ("mlp.fc2", "ffn_down"),
            ("norm2", "layer_output_norm"),
        ],
        activations: &["gelu"],
        rope: true,
        shifted: false,
    },
    Encoder {
        model_types: &["modernbert"],
        classes: &["ModernBert"],
        architecture: "modern-bert",
        variant: None,
        layers: "layers.",
        parts: &[
            ("attn_norm", "attn_norm"),
            ("attn.Wqkv", "attn_qkv"),
            ("attn.Wo", "attn_output"),
            ("mlp_norm", "ffn_norm"),
            ("mlp.Wi", "ffn_up"),
            ("mlp.Wo", "ffn_down"),
        ],
        activations: &["gelu", "silu"],
        rope: true,
        shifted: false,
    },
];

/// Names outside of layers.
const TOP: &[(&str, &str)] = &[
    ("embeddings.word_embeddings", "token_embd"),
    ("encoder.relative_attention_bias", "attn_rel_b"),
    ("shared", "token_embd"),
    ("encoder.final_layer_norm", "enc.output_norm"),
    ("embeddings.tok_embeddings", "token_embd"),
    ("embeddings.position_embeddings", "position_embd"),
    ("embeddings.token_type_embeddings", "token_types"),
    ("embeddings.LayerNorm", "token_embd_norm"),
    ("embeddings.norm", "token_embd_norm"),
    ("emb_ln", "token_embd_norm"),
    ("final_norm", "output_norm"),
    ("embed_tokens", "token_embd"),
    ("norm", "output_norm"),
];
/// Those of classification heads.
const HEAD: &[(&str, &str)] = &[
    ("pooler.dense", "cls"),
    ("classifier.dense", "cls"),
    ("head.dense", "cls"),
    ("head.norm", "cls.norm"),
    ("classifier.out_proj", "cls.output"),
    ("classifier", "cls.output"),
];
const PREFIXES: [&str; 6] = [
    "bert.",
    "distilbert.",
    "roberta.",
    "mpnet.",
    "model.",
    "new.",
];
/// What vectors and scores do without: heads that guess words, and constants.
const UNUSED: [&str; 6] = ["cls.", "lm_head.", "head.", "decoder.", "pooler.", "vocab_"];

impl Encoder {
    /// The family of a config, if it is one of encoders.
    pub(super) fn of(config: &Config) -> Result<Option<&'static Encoder>> {
        let Some(model_type) = config.find_str("model_type")? else {
            return Ok(None);
        };
        let mut found = None;
        for family in FAMILIES {
            let variant = match family.variant {
                _ if !family.model_types.contains(&model_type) => false,
                Some(variant) => variant.is(config)?,
                None => true,
            };
            if variant {
                found = Some(family);
                break;
            }
        }
        let Some(family) = found else {
            return Ok(None);
        };
        if let Some(class) = config
            .find_array("architectures")?
            .and_then(|all| all.first())
        {
            let known = |class: &str| family.classes.iter().any(|start| class.starts_with(start));
            if !class.as_str().is_some_and(known) {
                return Err(wrong("architectures", class, "a class of that model_type"));
            }
        }
        Ok(Some(family))
    }

    /// The families of an architecture in GGUF.
    pub(super) fn of_architecture(name: &str) -> impl Iterator<Item = &'static Encoder> {
        FAMILIES
            .iter()
            .filter(move |family| family.architecture == name)
    }

    /// The name in GGUF of a module: a stem of tensors' names.
    pub(super) fn module(&self, name: &str) -> Option<String> {
        let name = without_prefixes(name);
        let top = TOP.iter().chain(HEAD).find(|(known, _)| *known == name);
        match top {
            Some((_, gguf)) => Some((*gguf).to_owned()),
            None => {
                let (layer, part) = self.layer_part(name)?;
                Some(self.part_name(layer, part))
            }
        }
    }

    /// What a GGUF file of the same model would hold.
    pub(super) fn describe(
        &self,
        config: &Config,
        stored: HashMap<String, Stored>,
    ) -> Result<ModelFile> {
        let n_layers = config.size(LAYERS)?;
        check_layers(n_layers, stored.len())?;
        let mut keys = Keys::common(config, self.architecture)?;
        self.keys(&mut keys, config)?;
        let shift = self.shift(config)?;
        if let Some(shift) = shift {
            let all = config.size(&["max_position_embeddings"])?;
            let left = all.saturating_sub(shift as u64);
            if left == 0 {
                let problem = "a number above that of pad_token_id";
                return Err(wrong("max_position_embeddings", &all.into(), problem));
            }
            keys.set("context_length", left);
        }
        let tensors = self.tensors(config, &stored, n_layers, shift)?;
        Ok(keys.file(tensors))
    }

    /// Rows of the position embedding that no position has.
    fn shift(&self, config: &Config) -> Result<Option<usize>> {
        if !self.shifted {
            return Ok(None);
        }
        if self.architecture == "mpnet" {
            // Whatever the config says.
            return Ok(Some(2));
        }
        let padding = match config.find("pad_token_id") {
            None => 1,
            Some(id) => match id.as_u64().filter(|id| *id < 1 << 20) {
                Some(id) => id,
                None => return Err(wrong("pad_token_id", id, "a token id")),
            },
        };
        Ok(Some(padding as usize + 1))
    }

    fn keys(&self, keys: &mut Keys, config: &Config) -> Result<()> {
        for key in [
            "hidden_act",
            "hidden_activation",
            "activation_function",
            "activation",
            "feed_forward_proj",
        ] {
            if let Some(name) = config.find_str(key)?
                && !self.activations.contains(&name)
            {
                fail!(
                    Unsupported,
                    "config.json: {key} is {name:?}; models of this family run with {}",
                    self.activations.join(", ")
                );
            }
        }
        if let Some(kind) = config.find_str("position_embedding_type")?
            && kind != "absolute"
            && kind != "rotary"
            && self.variant != Some(Variant::Slopes)
        {
            fail!(
                Unsupported,
                "config.json: position_embedding_type is {kind:?}; only absolute positions and rotations are supported"
            );
        }
        if let Some(kind) = config.find_str("feed_forward_type")?
            && kind != "geglu"
            && self.variant == Some(Variant::Slopes)
        {
            fail!(
                Unsupported,
                "config.json: feed_forward_type is {kind:?}; models of this family run with geglu"
            );
        }
        if self.variant == Some(Variant::Experts) {
            keys.refuse("prenorm")?;
            keys.refuse("rotary_emb_interleaved")?;
            keys.refuse("use_rms_norm")?;
            keys.set("moe_every_n_layers", config.size(&["moe_every_n_layers"])?);
            keys.set("expert_count", config.size(&["num_experts"])?);
            keys.set("expert_used_count", config.size(&["moe_top_k"])?);
        }
        keys.refuse("is_decoder")?;
        keys.refuse("add_cross_attention")?;
        keys.set("attention.causal", false);
        match config.find_f32("norm_eps")? {
            Some(eps) => keys.set("attention.layer_norm_epsilon", eps),
            None if !keys.has("attention.layer_norm_epsilon") => {
                keys.set("attention.layer_norm_epsilon", 1e-12f32);
            }
            None => {}
        }
        if self.rope {
            rope::describe(keys)?;
            for (own, key) in [
                ("rotary_emb_base", "rope.freq_base"),
                ("global_rope_theta", "rope.freq_base"),
                ("local_rope_theta", "rope.freq_base_swa"),
            ] {
                if config.find("rope_parameters").is_none()
                    && let Some(base) = config.find_f32(own)?
                {
                    keys.set(key, base);
                }
            }
        }
        if self.architecture == "mpnet" {
            const BUCKETS: &str = "relative_attention_num_buckets";
            // As many as the reference takes, whatever the config says.
            if let Some(buckets) = config.find_size(BUCKETS)?
                && buckets != 32
            {
                return Err(wrong(BUCKETS, &buckets.into(), "32"));
            }
            keys.set("attention.relative_buckets_count", 32u32);
        }
        if self.architecture == "t5encoder" {
            for (key, gguf, usual) in [
                (
                    "relative_attention_num_buckets",
                    "attention.relative_buckets_count",
                    32,
                ),
                (
                    "relative_attention_max_distance",
                    "attention.relative_max_distance",
                    128,
                ),
            ] {
                keys.set(gguf, config.find_size(key)?.unwrap_or(usual));
            }
            let eps = config.find_f32("layer_norm_epsilon")?.unwrap_or(1e-6);
            keys.set("attention.layer_norm_rms_epsilon", eps);
        }
        if self.architecture == "modern-bert" {
            let every = config.find_size("global_attn_every_n_layers")?.unwrap_or(3);
            let windowed = keys.windowed(|layer| !layer.is_multiple_of(every))?;
            keys.set_windows(config.size(&["local_attention"])?, windowed);
            let mean = config.find_str("classifier_pooling")? == Some("mean");
            keys.set("classifier.pooling_type", if mean { 1u32 } else { 2 });
            if let Some(activation) = config.find_str("hidden_activation")? {
                keys.set("hidden_activation", activation);
            }
        }
        Ok(())
    }

    /// All tensors by their names in GGUF.
    fn tensors(
        &self,
        config: &Config,
        stored: &HashMap<String, Stored>,
        n_layers: u64,
        shift: Option<usize>,
    ) -> Result<HashMap<Arc<str>, Tensor>> {
        let classes = config.find_array("architectures")?;
        let class = classes.and_then(|all| all.first()).and_then(|c| c.as_str());
        let scores = class.is_some_and(|class| class.ends_with("ForSequenceClassification"));
        let mut tensors = HashMap::new();
        let mut names: Vec<&String> = stored.keys().collect();
        names.sort_unstable();
        for full in names {
            let name = without_prefixes(full);
            if name.ends_with("position_ids") || name.ends_with("rotary_emb.inv_freq") {
                continue;
            }
            // The same as `shared`.
            if self.architecture == "t5encoder" && name == "encoder.embed_tokens.weight" {
                continue;
            }
            // Names of old files.
            let name = name.replace("LayerNorm.gamma", "LayerNorm.weight");
            let name = name.replace("LayerNorm.beta", "LayerNorm.bias");
            let (stem, end) = name.rsplit_once('.').unwrap_or((&name, ""));
            let find = |list: &[(&str, &'static str)]| {
                let found = list.iter().find(|(known, _)| *known == stem);
                found.map(|(_, gguf)| *gguf)
            };
            if self.variant == Some(Variant::Experts)
                && let Some((layer, part)) = self.part_of(&name, &EXPERTS)
                && layer < n_layers
            {
                let count = config.size(&["num_experts"])?;
                let tensor = experts(&stored[full], part, count)?;
                insert(&mut tensors, format!("blk.{layer}.{part}"), tensor)?;
                continue;
            }
            let gguf = match find(TOP) {
                Some(top) => top.to_owned(),
                None => match self.layer_part(stem) {
                    Some((layer, part)) if layer < n_layers => self.part_name(layer, part),
                    Some((layer, _)) => fail!(
                        InvalidModel,
                        "tensor {full} is of layer {layer}, but num_hidden_layers is {n_layers}"
                    ),
                    None => match find(HEAD) {
                        Some(head) if scores => head.to_owned(),
                        _ if UNUSED.iter().any(|start| name.starts_with(start)) => continue,
                        _ => fail!(
                            Unsupported,
                            "tensor {full} is not known in models of {}",
                            self.model_types[0]
                        ),
                    },
                },
            };
            let tensor = tensor(&stored[full], shift.filter(|_| gguf == "position_embd"))?;
            insert(&mut tensors, format!("{gguf}.{end}"), tensor)?;
        }
        Ok(tensors)
    }

    /// The name in GGUF of a part of a layer.
    fn part_name(&self, layer: u64, part: &str) -> String {
        let before = match self.architecture {
            "t5encoder" => "enc.",
            _ => "",
        };
        format!("{before}blk.{layer}.{part}")
    }

    /// Layer and part, by its name in GGUF.
    fn layer_part(&self, stem: &str) -> Option<(u64, &'static str)> {
        self.part_of(stem, self.parts)
    }

    fn part_of(&self, stem: &str, parts: &[(&str, &'static str)]) -> Option<(u64, &'static str)> {
        let (layer, part) = stem.strip_prefix(self.layers)?.split_once('.')?;
        let number = layer.parse().ok();
        let layer = number.filter(|n: &u64| n.to_string() == layer)?;
        let part = parts.iter().find(|(known, _)| *known == part)?.1;
        Some((layer, part))
    }
}

fn without_prefixes(mut name: &str) -> &str {
    for prefix in PREFIXES {
        name = name.strip_prefix(prefix).unwrap_or(name);
    }
    name
}

/// What all experts of a layer have together. Both matrices have a row per inner element of each.
fn experts(stored: &Stored, part: &str, count: u64) -> Result<Tensor> {
    if part == "ffn_exps_sum.bias" {
        return small(&stored.name, stored.dims()?, &stored.values()?);
    }
    let [rows, columns] = stored.shape[..] else {
        return Err(stored.misshapen("a matrix"));
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if !rows.is_multiple_of(count) {
        return Err(stored.misshapen(&format!(
            "a number of rows that num_experts, {count}, divides"
        )));
    }
    let apart = stored.reshaped(vec![count, rows / count, columns]);
    match part {
        "ffn_down_exps.weight" => transposed(&apart),
        _ => apart.tensor(),
    }
}

/// A tensor, without its first rows if that is asked for.
fn tensor(stored: &Stored, shift: Option<usize>) -> Result<Tensor> {
    let dims = stored.dims()?;
    if dims.len() == 1 {
        return small(&stored.name, dims, &stored.values()?);
    }
    let tensor = stored.tensor()?;
    let Some(shift) = shift else {
        return Ok(tensor);
    };
    if shift >= tensor.rows() {
        return Err(Error::new(
            Status::ShapeMismatch,
            format!(
                "tensor {} has {} rows; the model needs more than {shift}",
                stored.name,
                tensor.rows()
            ),
        ));
    }
    Ok(tensor.row_range(shift..tensor.rows()))
}
