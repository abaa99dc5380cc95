//! The chat templates of a folder: `chat_template.jinja`, `chat_template.json`, or a key of
//! `tokenizer_config.json`, whichever comes first.

use super::files::{Folder, within};
use super::json;
use crate::error::{Error, Result, Status, fail};
use crate::format::Value;
use serde_json::Value as Json;

/// Where GGUF has the template.
const KEY: &str = "tokenizer.chat_template";

/// The metadata of the folder's templates.
pub(super) fn find(folder: &Folder) -> Result<Vec<(String, Value)>> {
    const JINJA: &str = "chat_template.jinja";
    if let Some(text) = folder.find(JINJA)? {
        let Ok(text) = String::from_utf8(text) else {
            fail!(FileCorrupt, "{}: is not UTF-8", folder.display(JINJA));
        };
        return Ok(vec![(KEY.to_owned(), text.into())]);
    }
    for name in ["chat_template.json", "tokenizer_config.json"] {
        let Some(text) = folder.find(name)? else {
            continue;
        };
        let in_file = |e| within(&folder.display(name), e);
        let object = json::object(&text).map_err(in_file)?;
        if let Some(found) = object.get("chat_template").filter(|v| !v.is_null()) {
            return templates(found).map_err(in_file);
        }
    }
    Ok(Vec::new())
}

/// One template, or a list of named ones.
fn templates(found: &Json) -> Result<Vec<(String, Value)>> {
    let wrong = || {
        Error::new(
            Status::FileCorrupt,
            "chat_template is neither a text nor a list of objects with name and template",
        )
    };
    match found {
        Json::String(text) => Ok(vec![(KEY.to_owned(), text.as_str().into())]),
        Json::Array(list) => {
            let mut templates = Vec::new();
            let mut names = Vec::new();
            for named in list {
                let field = |key| named.get(key).and_then(Json::as_str).ok_or_else(wrong);
                let (name, template) = (field("name")?, field("template")?);
                if name == "default" {
                    templates.push((KEY.to_owned(), template.into()));
                } else {
                    templates.push((format!("{KEY}.{name}"), template.into()));
                    names.push(name.to_owned());
                }
            }
            if !names.is_empty() {
                templates.push(("tokenizer.chat_templates".to_owned(), names.into()));
            }
            Ok(templates)
        }
        _ => Err(wrong()),
    }
}
