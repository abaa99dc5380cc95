//! Folders as Hugging Face has them, in the terms of GGUF: `config.json`, safetensors files,
//! `tokenizer.json` and the chat template become metadata and tensors by the names that a converter
//! would give them, so that nothing behind this module knows of folders.
//!
//! | file | holds |
//! |---|---|
//! | `files` | which files there are, and what may be read |
//! | `families`, `further`, `later` | the families: names, layout, defaults |
//! | `encoders`, `sentences` | encoders; what sentence-transformers has beside a model |
//! | `json`, `keys`, `rope` | `config.json`, and the metadata that it becomes |
//! | `tensors`, `experts`, `lists` | the tensors by their new names |
//! | `vocabulary`, `presplit` | `tokenizer.json` as metadata, for files that are written |
//! | `template` | chat templates |
//! | `eagle3` | heads of EAGLE-3, which draft for a model in another folder |
//! | `adapter` | LoRA adapters as the PEFT library writes them |
//! | `stored`, `rows`, `fp8`, `mxfp4` | their bytes: as they are, in another order, from other types |

mod adapter;
mod delta_net;
mod eagle3;
mod encoders;
mod experts;
mod falcon_h1;
mod families;
mod files;
mod fp8;
mod further;
mod gemma3n;
mod gemma4;
mod json;
mod keys;
mod latent;
mod later;
mod lists;
mod mamba1;
mod mamba2;
mod mxfp4;
mod nemotron_h;
mod opt;
mod packed;
mod pieces;
mod predictors;
mod presplit;
mod relatives;
mod rope;
mod rows;
mod sentences;
mod stored;
mod template;
mod tensors;
mod vocabulary;
mod windowed;

pub(super) use adapter::open_peft;
pub(super) use files::Folder;
pub(crate) use latent::keys_and_values;

use super::input::{Access, Input};
use super::{ModelFile, Value};
use crate::error::{Result, fail};
use families::Family;
use files::{CONFIG, TOKENIZER, within};
use json::Config;
use keys::{Keys, check_layers};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use stored::Stored;

/// The files of a folder that describe its text layer, as they are.
#[derive(Clone, Debug)]
pub struct TextFiles {
    /// `tokenizer.json`.
    pub tokenizer: Vec<u8>,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<Vec<u8>>,
    /// `generation_config.json`.
    pub generation_config: Option<Vec<u8>>,
    /// `config.json`.
    pub config: Vec<u8>,
}

/// What a folder holds.
enum Kind {
    Encoder(&'static encoders::Encoder),
    /// A head of EAGLE-3.
    Head,
    Decoder(&'static Family),
}

impl Kind {
    fn of(config: &mut Config) -> Result<Kind> {
        if eagle3::is_head(config)? {
            return Ok(Kind::Head);
        }
        Ok(match encoders::Encoder::of(config)? {
            Some(encoder) => Kind::Encoder(encoder),
            None => Kind::Decoder(Family::of(config)?),
        })
    }

    fn describe(&self, config: &Config, stored: HashMap<String, Stored>) -> Result<ModelFile> {
        match self {
            Kind::Encoder(encoder) => encoder.describe(config, stored),
            Kind::Head => eagle3::describe(config, &stored),
            Kind::Decoder(family) => describe(family, config, stored),
        }
    }
}

/// See [`ModelFile::open_with`].
pub(super) fn open(folder: &Folder, access: Access) -> Result<ModelFile> {
    if !folder.has(CONFIG) {
        fail!(
            UnknownFormat,
            "{}: is a directory without {CONFIG}, or a file beside none",
            folder.display("")
        );
    }
    let text = folder.read(CONFIG)?;
    let mut config = Config::parse(&text).map_err(|e| within(&folder.display(CONFIG), e))?;
    let in_folder = |e| within(&folder.display(""), e);
    let kind = Kind::of(&mut config).map_err(in_folder)?;
    let (stored, file_bytes) = folder.tensors(access)?;
    let file = kind.describe(&config, stored).map_err(in_folder)?;
    let mut file = ModelFile { file_bytes, ..file };
    sentences::add(folder, access, &mut file)?;
    let name = Value::String(folder.name());
    file.metadata.insert("general.name".to_owned(), name);
    file.metadata.extend(template::find(folder)?);
    if let Some(tokenizer) = folder.find(TOKENIZER)? {
        file.text_files = Some(TextFiles {
            tokenizer,
            tokenizer_config: folder.find("tokenizer_config.json")?,
            generation_config: folder.find("generation_config.json")?,
            config: text,
        });
    }
    file.files = folder.opened();
    Ok(file)
}

/// See [`ModelFile::from_folder`].
pub(super) fn from_parts(config: &[u8], weights: Input) -> Result<ModelFile> {
    let mut config = Config::parse(config).map_err(|e| within(CONFIG, e))?;
    let kind = Kind::of(&mut config)?;
    let file_bytes = weights.len() as u64;
    let tensors = files::open_input(&Arc::new(weights), Path::new(files::WEIGHTS));
    let stored = tensors.map_err(|e| within(files::WEIGHTS, e))?;
    let file = kind.describe(&config, stored)?;
    Ok(ModelFile { file_bytes, ..file })
}

fn describe(
    family: &'static Family,
    config: &Config,
    mut stored: HashMap<String, Stored>,
) -> Result<ModelFile> {
    let n_layers = config.size(keys::LAYERS)?;
    check_layers(n_layers, stored.len())?;
    packed::join(config, &mut stored)?;
    let mut keys = Keys::common(config, family.architecture)?;
    let rope = match family.rope {
        true => rope::describe(&mut keys)?,
        false => Vec::new(),
    };
    (family.keys)(&mut keys)?;
    relatives::activation(family, &mut keys, &stored)?;
    let (mut tensors, heads) = tensors::Folder::new(family, &keys, &stored)?.tensors()?;
    if heads > 0 {
        keys.set("block_count", n_layers + heads);
        keys.set("nextn_predict_layers", heads);
    }
    for tensor in rope.into_iter().chain(later::made(&keys)?) {
        tensors.insert(Arc::clone(&tensor.name), tensor);
    }
    Ok(keys.file(tensors))
}
