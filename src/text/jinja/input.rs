//! The caller's JSON document as variables.

use super::text::{Origin, Text};
use super::value::{Map, Object, Seq, SeqKind, Value};
use crate::budget::Budget;
use crate::error::{Result, fail};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;

/// Longest role that counts as a name.
const MAX_ROLE: usize = 32;

/// Digits that fit into any integer of the JSON reader.
const SAFE_DIGITS: usize = 18;

/// Integers of many digits, which the JSON reader would round. It gets them as strings that begin
/// with a word that no document knows.
struct Integers {
    mark: String,
}

impl Integers {
    /// The document with long integers as marked strings.
    fn mark(document: &str) -> (Cow<'_, str>, Integers) {
        let key = RandomState::new().hash_one(document.len());
        let integers = Integers {
            mark: format!("\u{F8FF}{key:x}:"),
        };
        let mut marked = String::new();
        let (mut done, mut at) = (0, 0);
        let bytes = document.as_bytes();
        while at < bytes.len() {
            match bytes[at] {
                b'"' => {
                    at += 1;
                    while at < bytes.len() && bytes[at] != b'"' {
                        at += if bytes[at] == b'\\' { 2 } else { 1 };
                    }
                    at += 1;
                }
                b'-' | b'0'..=b'9' => {
                    let start = at;
                    at += 1;
                    let is_part = |b: &u8| b.is_ascii_alphanumeric() || b".+-".contains(b);
                    while bytes.get(at).is_some_and(is_part) {
                        at += 1;
                    }
                    let number = &document[start..at];
                    let digits = number.strip_prefix('-').unwrap_or(number);
                    let is_long = digits.len() > SAFE_DIGITS
                        && !digits.starts_with('0')
                        && digits.bytes().all(|b| b.is_ascii_digit());
                    if is_long {
                        marked.push_str(&document[done..start]);
                        marked.push('"');
                        marked.push_str(&integers.mark);
                        marked.push_str(number);
                        marked.push('"');
                        done = at;
                    }
                }
                _ => at += 1,
            }
        }
        if done == 0 {
            return (Cow::Borrowed(document), integers);
        }
        marked.push_str(&document[done..]);
        (Cow::Owned(marked), integers)
    }

    /// The number that a string stands for.
    fn read(&self, budget: &Rc<Budget>, text: &str) -> Result<Option<Value>> {
        let Some(digits) = text.strip_prefix(&self.mark) else {
            return Ok(None);
        };
        Ok(Some(match digits.parse() {
            Ok(number) => Value::Int(number),
            Err(_) => Value::object(budget, Object::Integer(digits.into()))?,
        }))
    }
}

/// The keys of the document, and those that templates rely on.
pub(super) fn variables(budget: &Rc<Budget>, document: &str) -> Result<Vec<(String, Value)>> {
    let (document, integers) = Integers::mark(document);
    let object = match serde_json::from_str(&document) {
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
                let messages: Result<Vec<_>> = messages
                    .iter()
                    .map(|json| message(budget, &integers, json))
                    .collect();
                Seq::value(budget, SeqKind::List, messages?)?
            }
            _ => value(budget, &integers, json, Origin::Caller)?,
        };
        variables.push((key.clone(), value));
    }
    Ok(variables)
}

/// A message: its role decides whose words they are. The role itself may be a part of the template's
/// tokens if it is a plain word; templates write `<|{role}|>`. A word with `_` is none, for it could
/// spell `<|im_start|>`.
fn message(budget: &Rc<Budget>, integers: &Integers, json: &Json) -> Result<Value> {
    let Json::Object(object) = json else {
        return value(budget, integers, json, Origin::Caller);
    };
    let role = object.get("role").and_then(Json::as_str);
    let origin = match role {
        Some("assistant") => Origin::Assistant,
        _ => Origin::Caller,
    };
    let is_word = |role: &str| {
        role.len() <= MAX_ROLE && role.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    let entries = object.iter().map(|(key, json)| {
        let origin = match key.as_str() {
            "role" if role.is_some_and(is_word) => Origin::Role,
            _ => origin,
        };
        Ok((
            key_text(budget, key)?,
            value(budget, integers, json, origin)?,
        ))
    });
    Map::distinct(budget, entries.collect::<Result<_>>()?)
}

/// Keys are written by whoever wrote the rest.
fn key_text(budget: &Rc<Budget>, key: &str) -> Result<Value> {
    Ok(Value::Str(Text::of(budget, key, Origin::Caller)?))
}

fn value(budget: &Rc<Budget>, integers: &Integers, json: &Json, origin: Origin) -> Result<Value> {
    Ok(match json {
        Json::Null => Value::None,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(int), ..) => Value::Int(int.into()),
            (_, Some(int), _) => Value::Int(int.into()),
            (.., float) => Value::Float(float.unwrap_or(f64::NAN)),
        },
        Json::String(text) => match integers.read(budget, text)? {
            Some(number) => number,
            None => Value::Str(Text::of(budget, text, origin)?),
        },
        Json::Array(items) => {
            let items = items
                .iter()
                .map(|json| value(budget, integers, json, origin));
            Seq::value(budget, SeqKind::List, items.collect::<Result<_>>()?)?
        }
        Json::Object(object) => {
            let entries = object.iter().map(|(key, json)| {
                Ok((
                    key_text(budget, key)?,
                    value(budget, integers, json, origin)?,
                ))
            });
            Map::distinct(budget, entries.collect::<Result<_>>()?)?
        }
    })
}
