//! What a folder says of its special tokens, which is spread over its files.

use super::TextFiles;
use super::files::{CONFIG, within};
use super::json::{Config, object};
use crate::error::{Error, Result, Status};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The part of `tokenizer.json` that names special tokens.
#[derive(Deserialize)]
struct Names {
    #[serde(default)]
    added_tokens: Vec<Added>,
}

#[derive(Deserialize)]
struct Added {
    id: u64,
    content: String,
}

impl TextFiles {
    /// `tokenizer_config.json`, with what it lacks of the special tokens taken from
    /// `generation_config.json` and `config.json`: their texts, and `eos_token_id`, which may be
    /// a list. `None` if no file says anything. Errors: `FileCorrupt` for what is no JSON.
    pub fn special_tokens(&self) -> Result<Option<Vec<u8>>> {
        let parse = |name, text: &Option<Vec<u8>>| match text {
            Some(text) => object(text).map_err(|e| within(name, e)),
            None => Ok(Map::new()),
        };
        let mut own = parse("tokenizer_config.json", &self.tokenizer_config)?;
        let generation = Config::from(parse("generation_config.json", &self.generation_config)?);
        let config = Config::parse(&self.config).map_err(|e| within(CONFIG, e))?;
        let names: Names = serde_json::from_slice(&self.tokenizer).map_err(|e| {
            let problem = format!("tokenizer.json: is no valid tokenizer: {e}");
            Error::new(Status::FileCorrupt, problem)
        })?;
        let id = |key: &str| generation.find(key).or_else(|| config.find(key));
        for role in ["bos", "eos", "pad", "unk"] {
            let key = format!("{role}_token");
            if own.get(&key).is_some_and(|token| !token.is_null()) {
                continue;
            }
            let id = match id(&format!("{key}_id")) {
                Some(Value::Array(several)) => several.first().and_then(Value::as_u64),
                Some(one) => one.as_u64(),
                None => None,
            };
            let named = names.added_tokens.iter().find(|token| Some(token.id) == id);
            if let Some(token) = named {
                own.insert(key, token.content.as_str().into());
            }
        }
        if let Some(ends) = id("eos_token_id") {
            own.insert("eos_token_id".to_owned(), ends.clone());
        }
        if own.is_empty() {
            return Ok(None);
        }
        Ok(Some(Value::Object(own).to_string().into_bytes()))
    }
}
