//! Heads of EAGLE-3 as SpecForge, its authors and vLLM's speculators write them: one layer (`midlayer`), what joins hidden states of
//! the model that they draft for (`fc`), and of tokens fewer than the model has (`d2t`).

use super::json::{Config, wrong};
use super::keys::Keys;
use super::rope;
use super::stored::{Stored, small};
use super::tensors::{insert, without_prefixes};
use crate::error::{Result, fail};
use crate::format::{Array, ModelFile, Value};
use std::collections::HashMap;
use std::sync::Arc;

const ARCHITECTURE: &str = "eagle3";
/// Where speculators have the kind of a head, its layer, and the places that it reads.
const KIND: &str = "speculators_model_type";
const LAYER: &str = "transformer_layer_config";
const PLACES: &str = "eagle_aux_hidden_state_layer_ids";
/// The rows of the output matrix: of each, its token less its number.
const TOKENS: &str = "d2t";
/// What of a head is not there in GGUF: the same the other way round.
const OTHER_WAY: &str = "t2d";

/// Tensors outside of the layer, and in it.
const TOP: [(&str, &str); 4] = [
    ("fc", "fc"),
    ("norm", "output_norm"),
    ("lm_head", "output"),
    ("embed_tokens", "token_embd"),
];
const PARTS: [(&str, &str); 10] = [
    ("input_layernorm", "attn_norm"),
    ("hidden_norm", "hidden_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// Whether a config is that of such a head.
pub(super) fn is_head(config: &Config) -> Result<bool> {
    if let Some(kind) = config.find_str(KIND)? {
        if kind != ARCHITECTURE {
            fail!(
                Unsupported,
                "config.json: {KIND} is {kind:?}; supported: {ARCHITECTURE}"
            );
        }
        return Ok(true);
    }
    let classes = config.find_array("architectures")?;
    let named = |class: &serde_json::Value| class.as_str().is_some_and(|c| c.contains("Eagle3"));
    Ok(config.find("draft_vocab_size").is_some() || classes.is_some_and(|c| c.iter().any(named)))
}

/// The head of a folder.
pub(super) fn describe(config: &Config, stored: &HashMap<String, Stored>) -> Result<ModelFile> {
    let layer = config.nested(LAYER)?;
    let of_layer = layer.as_ref().unwrap_or(config);
    let mut keys = Keys::common(of_layer, ARCHITECTURE)?;
    let rope = rope::describe(&mut keys)?;
    for key in ["norm_before_fc", "fc_norm", "norm_output"] {
        if config.flag(key)? {
            fail!(
                Unsupported,
                "config.json: {key} is true, which is not supported"
            );
        }
    }
    if let Some(activation) = of_layer.find_str("hidden_act")?
        && activation != "silu"
    {
        fail!(
            Unsupported,
            "config.json: hidden_act is {activation:?}; heads of EAGLE-3 run with silu"
        );
    }
    if layer.is_some() && config.find("norm_before_residual").is_none() {
        fail!(
            MissingKey,
            "config.json: key norm_before_residual is missing"
        );
    }
    keys.set("norm_before_residual", config.flag("norm_before_residual")?);
    let target = match config.find_size("target_hidden_size")? {
        Some(target) => target,
        None => of_layer.size(&["hidden_size"])?,
    };
    keys.set("target_hidden_size", target);
    if let Some(places) = places(config)? {
        keys.set("target_places", Value::Array(Array::U64(places)));
    }
    let n_vocab = of_layer.size(&["vocab_size"])?;
    let n_drafted = config.find_size("draft_vocab_size")?.unwrap_or(n_vocab);
    match stored.get(TOKENS) {
        Some(tokens) => {
            let ids = token_ids(tokens, n_drafted, n_vocab)?;
            keys.set("token_ids", Value::Array(Array::U64(ids)));
        }
        None if n_drafted == n_vocab => {}
        None => fail!(
            MissingTensor,
            "tensor {TOKENS} is missing, but draft_vocab_size is {n_drafted}, and vocab_size {n_vocab}"
        ),
    }
    let mut tensors = HashMap::new();
    for (full, tensor) in stored {
        let name = without_prefixes(full);
        if [TOKENS, OTHER_WAY].contains(&name) || name.ends_with("rotary_emb.inv_freq") {
            continue;
        }
        let Some(name) = gguf_name(name) else {
            fail!(
                Unsupported,
                "tensor {full} is not known in heads of EAGLE-3"
            );
        };
        let dims = tensor.dims()?;
        let tensor = match dims.len() {
            1 => small(&tensor.name, dims, &tensor.values()?)?,
            _ => tensor.tensor()?,
        };
        insert(&mut tensors, name, tensor)?;
    }
    for (name, gguf) in TOP.iter().filter(|(name, _)| *name != "embed_tokens") {
        if !tensors.contains_key(format!("{gguf}.weight").as_str()) {
            fail!(MissingTensor, "tensor {name}.weight is missing");
        }
    }
    for (name, gguf) in PARTS {
        if !tensors.contains_key(format!("blk.0.{gguf}.weight").as_str()) {
            fail!(MissingTensor, "tensor midlayer.{name}.weight is missing");
        }
    }
    for tensor in rope {
        tensors.insert(Arc::clone(&tensor.name), tensor);
    }
    Ok(keys.file(tensors))
}

fn gguf_name(name: &str) -> Option<String> {
    let (stem, end) = name.rsplit_once('.')?;
    if !["weight", "bias"].contains(&end) {
        return None;
    }
    let find = |names: &[(&str, &'static str)], stem: &str| {
        let known = names.iter().find(|(name, _)| *name == stem);
        known.map(|(_, gguf)| *gguf)
    };
    let part = stem
        .strip_prefix("midlayer.")
        .or_else(|| stem.strip_prefix("layers.0."));
    Some(match part {
        Some(part) => format!("blk.0.{}.{end}", find(&PARTS, part)?),
        None => format!("{}.{end}", find(&TOP, stem)?),
    })
}

/// The places of the model that it reads, each by the layer that comes next. Speculators write them so; in `eagle_config`, SGLang writes the
/// layer before.
fn places(config: &Config) -> Result<Option<Vec<u64>>> {
    let nested = config.nested("eagle_config")?;
    let (found, more) = match &nested {
        Some(nested) if nested.find(PLACES).is_some() => (nested.find_array(PLACES)?, 1),
        _ => (config.find_array(PLACES)?, 0),
    };
    if let Some(nested) = &nested
        && nested.find("use_aux_hidden_state") == Some(&false.into())
    {
        fail!(
            Unsupported,
            "config.json: use_aux_hidden_state is false, which is not supported"
        );
    }
    let Some(found) = found else {
        return Ok(None);
    };
    let place = |value: &serde_json::Value| match value.as_u64().filter(|v| *v < 1 << 20) {
        Some(place) => Ok(place + more),
        None => Err(wrong(PLACES, value, "a list of numbers of layers")),
    };
    found.iter().map(place).collect::<Result<_>>().map(Some)
}

/// The tokens of the rows of the output matrix.
fn token_ids(stored: &Stored, n_drafted: u64, n_vocab: u64) -> Result<Vec<u64>> {
    if stored.shape[..] != [n_drafted as usize] {
        return Err(stored.misshapen(&format!("[{n_drafted}], draft_vocab_size")));
    }
    let more = stored.sizes()?;
    let mut ids = Vec::new();
    if ids.try_reserve_exact(more.len()).is_err() {
        fail!(OutOfMemory, "{} token ids", more.len());
    }
    for (row, more) in more.into_iter().enumerate() {
        let id = more.checked_add(row).map_or(u64::MAX, |id| id as u64);
        if id >= n_vocab {
            fail!(
                InvalidModel,
                "tensor {}: element {row} is {more}, which makes token {id}; vocab_size is {n_vocab}",
                stored.name
            );
        }
        if ids.last().is_some_and(|last| *last >= id) {
            fail!(
                InvalidModel,
                "tensor {}: element {row} is {more}, which makes token {id}; tokens must ascend",
                stored.name
            );
        }
        ids.push(id);
    }
    Ok(ids)
}
