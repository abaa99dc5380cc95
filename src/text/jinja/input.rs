//! The caller's JSON document as variables.

use super::budget::Budget;
use super::text::{Origin, Text};
use super::value::{Map, Seq, SeqKind, Value};
use crate::error::{Result, fail};
use serde_json::Value as Json;
use std::rc::Rc;

/// Longest role that counts as a name.
const MAX_ROLE: usize = 32;

/// The keys of the document, and those that templates rely on.
pub(super) fn variables(budget: &Rc<Budget>, document: &str) -> Result<Vec<(String, Value)>> {
    let object = match serde_json::from_str(document) {
        Ok(Json::Object(object)) => object,
        Ok(_) => fail!(InvalidArgument, "the document is not a JSON object"),
        Err(error) => fail!(InvalidArgument, "the document is not JSON: {error}"),
    };
    let mut variables = vec![
        ("tools".to_owned(), Value::None),
        ("documents".to_owned(), Value::None),
        ("add_generation_prompt".to_owned(), Value::Bool(false)),
    ];
    for (key, json) in &object {
        let value = match (key.as_str(), json) {
            ("messages", Json::Array(messages)) => {
                let messages: Result<Vec<_>> =
                    messages.iter().map(|json| message(budget, json)).collect();
                Seq::value(budget, SeqKind::List, messages?)?
            }
            _ => value(budget, json, Origin::Caller)?,
        };
        variables.push((key.clone(), value));
    }
    Ok(variables)
}

/// A message: its role decides whose words they are. The role itself names a part of the template
/// if it is a plain word; templates write `<|{role}|>`.
fn message(budget: &Rc<Budget>, json: &Json) -> Result<Value> {
    let Json::Object(object) = json else {
        return value(budget, json, Origin::Caller);
    };
    let role = object.get("role").and_then(Json::as_str);
    let origin = match role {
        Some("assistant") => Origin::Assistant,
        _ => Origin::Caller,
    };
    let is_word = |role: &str| {
        role.len() <= MAX_ROLE
            && role
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
    };
    let entries = object.iter().map(|(key, json)| {
        let origin = match key.as_str() {
            "role" if role.is_some_and(is_word) => Origin::Template,
            _ => origin,
        };
        Ok((key_text(budget, key)?, value(budget, json, origin)?))
    });
    Map::distinct(budget, entries.collect::<Result<_>>()?)
}

/// Keys are written by whoever wrote the rest.
fn key_text(budget: &Rc<Budget>, key: &str) -> Result<Value> {
    Ok(Value::Str(Text::of(budget, key, Origin::Caller)?))
}

fn value(budget: &Rc<Budget>, json: &Json, origin: Origin) -> Result<Value> {
    Ok(match json {
        Json::Null => Value::None,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(int), ..) => Value::Int(int.into()),
            (_, Some(int), _) => Value::Int(int.into()),
            (.., float) => Value::Float(float.unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::Str(Text::of(budget, text, origin)?),
        Json::Array(items) => {
            let items = items.iter().map(|json| value(budget, json, origin));
            Seq::value(budget, SeqKind::List, items.collect::<Result<_>>()?)?
        }
        Json::Object(object) => {
            let entries = object
                .iter()
                .map(|(key, json)| Ok((key_text(budget, key)?, value(budget, json, origin)?)));
            Map::distinct(budget, entries.collect::<Result<_>>()?)?
        }
    })
}
