//! What sentence-transformers has beside a model: `modules.json`, which lists what follows the layers, and a
//! folder for each of these.

use super::files::{Folder, WEIGHTS, check_name, within};
use super::json;
use super::tensors::insert;
use crate::error::{Error, Result, Status, fail};
use crate::format::input::Access;
use crate::format::{ModelFile, Value};
use serde_json::{Map, Value as Json};

const MODULES: &str = "modules.json";
const LIMITS: &str = "sentence_bert_config.json";
/// Layers behind the pooling by their names in GGUF.
const DENSE: [&str; 2] = ["dense_2", "dense_3"];

/// Adds it to what the folder is.
pub(super) fn add(folder: &Folder, access: Access, file: &mut ModelFile) -> Result<()> {
    let architecture = file.str("general.architecture")?.to_owned();
    let mut set = |key: &str, value: Value| {
        file.metadata.insert(format!("{architecture}.{key}"), value);
    };
    if let Some(text) = folder.find(LIMITS)? {
        let in_file = |e| within(&folder.display(LIMITS), e);
        let limits = json::object(&text).map_err(in_file)?;
        if let Some(most) = limits.get("max_seq_length").and_then(Json::as_u64)
            && most > 0
        {
            set("max_text_length", most.into());
        }
    }
    let Some(text) = folder.find(MODULES)? else {
        return Ok(());
    };
    let in_file = |e| within(&folder.display(MODULES), e);
    let modules = modules(&text).map_err(in_file)?;
    let (mut n_dense, mut normalized) = (0, false);
    let mut dense = Vec::new();
    for (kind, path) in &modules {
        match kind.as_str() {
            "Transformer" => {}
            "Normalize" => normalized = true,
            "Pooling" => {
                check_name(path).map_err(in_file)?;
                let inner = folder.inner(path);
                let text = inner.read("config.json")?;
                let within_it = |e| within(&inner.display("config.json"), e);
                let config = json::object(&text).map_err(within_it)?;
                set("pooling_type", pooling(&config).map_err(within_it)?.into());
            }
            "Dense" => {
                check_name(path).map_err(in_file)?;
                if n_dense == DENSE.len() {
                    return Err(in_file(unsupported("more than two Dense modules")));
                }
                dense.push((DENSE[n_dense], folder.inner(path)));
                n_dense += 1;
            }
            other => {
                let shown: String = other.chars().take(60).collect();
                return Err(in_file(unsupported(&format!("the module {shown:?}"))));
            }
        }
    }
    set("normalize_embeddings", normalized.into());
    for (name, inner) in dense {
        let text = inner.read("config.json")?;
        let in_config = |e| within(&inner.display("config.json"), e);
        let config = json::object(&text).map_err(in_config)?;
        let activation = config.get("activation_function").and_then(Json::as_str);
        let activation = activation.map_or("Tanh", |name| name.rsplit('.').next().unwrap_or(""));
        match activation {
            "Identity" => {}
            "Tanh" => set(&format!("{name}_activation"), "tanh".into()),
            "GELU" => set(&format!("{name}_activation"), "gelu".into()),
            other => {
                let shown: String = other.chars().take(60).collect();
                let what = format!("the activation_function {shown:?}");
                return Err(in_config(unsupported(&what)));
            }
        }
        let (tensors, bytes) = inner.tensors(access)?;
        folder.adopt(&inner);
        file.file_bytes += bytes;
        for (own, stored) in &tensors {
            let end = match own.as_str() {
                "linear.weight" => "weight",
                "linear.bias" => "bias",
                _ => {
                    let what = format!("tensor {own}");
                    return Err(within(&inner.display(WEIGHTS), unsupported(&what)));
                }
            };
            let mut tensor = stored.tensor()?;
            tensor.name = inner.display(own).into();
            insert(&mut file.tensors, format!("{name}.{end}"), tensor)?;
        }
    }
    Ok(())
}

fn unsupported(what: &str) -> Error {
    Error::new(Status::Unsupported, format!("{what} is not supported"))
}

/// The modules: the last word of their types, and their folders.
fn modules(text: &[u8]) -> Result<Vec<(String, String)>> {
    let wrong = || {
        Error::new(
            Status::FileCorrupt,
            "is no list of modules with type and path",
        )
    };
    let list: Vec<Map<String, Json>> = serde_json::from_slice(text).map_err(|_| wrong())?;
    let module = |module: &Map<String, Json>| -> Result<(String, String)> {
        let field = |key: &str| module.get(key).and_then(Json::as_str).ok_or_else(wrong);
        let kind = field("type")?.rsplit('.').next().unwrap_or("");
        let path = field("path")?.trim_end_matches('/');
        Ok((kind.to_owned(), path.to_owned()))
    };
    list.iter().map(module).collect()
}

/// The number of GGUF for a pooling.
fn pooling(config: &Map<String, Json>) -> Result<u32> {
    let known = [
        ("mean", "pooling_mode_mean_tokens", 1),
        ("cls", "pooling_mode_cls_token", 2),
        ("lasttoken", "pooling_mode_lasttoken", 3),
    ];
    if let Some(mode) = config.get("pooling_mode").and_then(Json::as_str) {
        return match known.iter().find(|(name, ..)| *name == mode) {
            Some((.., number)) => Ok(*number),
            None => {
                let shown: String = mode.chars().take(60).collect();
                Err(unsupported(&format!("pooling_mode {shown:?}")))
            }
        };
    }
    let is_set = |key: &str| config.get(key).and_then(Json::as_bool) == Some(true);
    let set: Vec<_> = config
        .keys()
        .filter(|key| key.starts_with("pooling_mode_") && is_set(key))
        .collect();
    match set[..] {
        [one] => match known.iter().find(|(_, key, _)| key == one) {
            Some((.., number)) => Ok(*number),
            None => Err(unsupported(one)),
        },
        [] => fail!(FileCorrupt, "no pooling_mode is set"),
        _ => Err(unsupported("a concatenation of several poolings")),
    }
}
