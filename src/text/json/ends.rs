//! The `post_processor` of a `tokenizer.json`, and what its `tokenizer_config.json` adds: the tokens
//! at the beginning and the end of a text.

use super::{kind, list, string, token_id, unknown};
use crate::error::{Result, fail};
use crate::text::tokenizer::Parts;
use serde_json::Value;

/// Sets what goes before and behind a text.
pub(super) fn post_process(component: &Value, place: &str, parts: &mut Parts) -> Result<()> {
    let Some(kind) = kind(component, place)? else {
        return Ok(());
    };
    match kind {
        "Sequence" => {
            for (index, part) in list(component, "processors", place)?.iter().enumerate() {
                post_process(part, &format!("{place}.processors[{index}]"), parts)?;
            }
        }
        // Changes only where tokens are said to lie.
        "ByteLevel" => {}
        "TemplateProcessing" => template(component, place, parts)?,
        "BertProcessing" | "RobertaProcessing" => {
            for (name, list) in [("cls", &mut parts.prefix), ("sep", &mut parts.suffix)] {
                let place = format!("{place}.{name}[1]");
                let id = token_id(component.get(name).and_then(|pair| pair.get(1)), &place)?;
                list.push(check(id, parts.vocabulary.len(), &place)?);
            }
        }
        other => return unknown(other, place),
    }
    Ok(())
}

fn check(id: u32, n_vocab: usize, place: &str) -> Result<u32> {
    if id as usize >= n_vocab {
        fail!(
            FileCorrupt,
            "tokenizer.json: {place}: token {id} is not in the vocabulary of {n_vocab}"
        );
    }
    Ok(id)
}

fn template(component: &Value, place: &str, parts: &mut Parts) -> Result<()> {
    let (mut before, mut behind) = (Vec::new(), Vec::new());
    let mut seen = false;
    for (index, piece) in list(component, "single", place)?.iter().enumerate() {
        let place = format!("{place}.single[{index}]");
        let Some(special) = piece.get("SpecialToken") else {
            if piece.get("Sequence").is_none() || seen {
                fail!(
                    Unsupported,
                    "tokenizer.json: {place} is neither a special token nor the one text"
                );
            }
            seen = true;
            continue;
        };
        let name = string(special, "id", &place)?;
        let Some(token) = component
            .get("special_tokens")
            .and_then(|tokens| tokens.get(name))
        else {
            fail!(
                FileCorrupt,
                "tokenizer.json: {place}: {name:?} is not among the special_tokens"
            );
        };
        for id in list(token, "ids", &place)? {
            let id = check(token_id(Some(id), &place)?, parts.vocabulary.len(), &place)?;
            if seen {
                behind.push(id)
            } else {
                before.push(id)
            }
        }
    }
    if !seen {
        fail!(
            FileCorrupt,
            "tokenizer.json: {place}.single has no place for the text"
        );
    }
    parts.prefix.splice(0..0, before);
    parts.suffix.extend(behind);
    Ok(())
}

/// Applies the `tokenizer_config.json`.
pub(super) fn configure(config: Option<&Value>, parts: &mut Parts) -> Result<()> {
    let Some(config) = config else {
        // One token that goes before each text begins it.
        parts.bos = Some(parts.prefix.as_slice()).and_then(|prefix| prefix.first().copied());
        parts.eos = parts.suffix.last().copied();
        parts.ends.extend(parts.eos);
        return Ok(());
    };
    let special = |name: &str| -> Result<Option<u32>> {
        let text = match config.get(name) {
            Some(Value::String(text)) => text,
            Some(Value::Object(token)) => match token.get("content") {
                Some(Value::String(text)) => text,
                _ => fail!(
                    FileCorrupt,
                    "tokenizer_config.json: {name}.content is not a string"
                ),
            },
            _ => return Ok(None),
        };
        let same = |id: &u32| {
            parts.vocabulary.spelling(*id) == text.as_bytes()
                || parts.vocabulary.token(*id) == text.as_bytes()
        };
        // Special tokens are among the last.
        Ok((0..parts.vocabulary.len() as u32).rev().find(same))
    };
    parts.bos = special("bos_token")?;
    parts.eos = special("eos_token")?;
    parts.padding = special("pad_token")?;
    parts.unknown = special("unk_token")?.or(parts.unknown);
    parts
        .ends
        .extend([parts.eos, special("eot_token")?].into_iter().flatten());
    let flag = |name: &str| match config.get(name) {
        Some(Value::Bool(value)) => Some(*value),
        _ => None,
    };
    if let (Some(add), Some(bos)) = (flag("add_bos_token"), parts.bos) {
        parts.prefix.retain(|id| *id != bos);
        if add {
            parts.prefix.insert(0, bos);
        }
    }
    if let (Some(add), Some(eos)) = (flag("add_eos_token"), parts.eos) {
        parts.suffix.retain(|id| *id != eos);
        if add {
            parts.suffix.push(eos);
        }
    }
    Ok(())
}
