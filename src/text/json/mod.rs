//! The tokenizer that a `tokenizer.json` of Hugging Face's tokenizers library describes.

mod decoder;
mod document;
mod ends;
mod model;
mod normalizer;
mod pretokenizer;

use super::specials::{Special, Specials};
use super::tokenizer::Tokenizer;
use crate::budget::Budget;
use crate::error::{Result, fail};
use crate::format::TextFiles;
use document::Document;
use serde_json::Value;

/// Larger files are refused; those of the largest vocabularies have 40 MB.
const MAX_BYTES: usize = 256 << 20;
/// Most components of one kind, which work on a text one behind the other. Published files have ten
/// at most.
const MAX_COMPONENTS: usize = 64;
/// Ids from here on are refused.
const MAX_ID: u64 = 1 << 24;

/// The tokenizer of the two files; see [`Tokenizer::from_json`].
pub(super) fn tokenizer(tokenizer: &[u8], config: Option<&[u8]>) -> Result<Tokenizer> {
    build(tokenizer, config, &[])
}

/// The tokenizer of a folder: its `generation_config.json` and `config.json` name more tokens.
pub(super) fn folder(files: &TextFiles) -> Result<Tokenizer> {
    let mut others = Vec::new();
    if let Some(bytes) = &files.generation_config {
        others.push(parse(bytes, "generation_config.json")?);
    }
    others.push(parse(&files.config, "config.json")?);
    build(&files.tokenizer, files.tokenizer_config.as_deref(), &others)
}

fn build(tokenizer: &[u8], config: Option<&[u8]>, others: &[Value]) -> Result<Tokenizer> {
    let budget = &Budget::for_vocabulary(tokenizer.len());
    let document = Document::parse(tokenizer)?;
    let config = config
        .map(|bytes| parse(bytes, "tokenizer_config.json"))
        .transpose()?;
    let added = added_tokens(&document.added_tokens)?;
    let mut normal = normalizer::compile(&document.normalizer, "normalizer", budget)?;
    let mut cut = pretokenizer::compile(&document.pre_tokenizer, "pre_tokenizer", budget)?;
    check_count(normal.steps.len(), "normalizer")?;
    check_count(cut.cutters.len(), "pre_tokenizer")?;
    if normal.byte_level {
        cut.spell();
    }
    let rule = decoder::compile(&document.decoder, "decoder", budget)?;
    let mut parts = model::build(document.model, &added, cut.byte_level, &rule, budget)?;
    if parts.cuts_at_spaces && cut.cutters.is_empty() {
        cut.cutters = super::gguf::space_starts(&parts.parts.vocabulary).cutters;
    }
    let parts = &mut parts.parts;
    parts.strips_space = rule.strips_space;
    parts.spaces_specials = rule.spaces_specials;
    parts.strips_end_space = rule.strips_end_space;
    parts.pretokenizer.cutters = cut.cutters;
    parts.normalizer.steps = std::mem::take(&mut normal.steps);
    set_specials(parts, added, budget)?;
    ends::post_process(&document.post_processor, "post_processor", parts)?;
    ends::configure(config.as_ref(), parts)?;
    for other in others {
        ends::name_ids(other, parts);
    }
    std::mem::replace(parts, model::nothing()?).build()
}

/// Refuses more components than anybody needs.
fn check_count(count: usize, name: &str) -> Result<()> {
    if count > MAX_COMPONENTS {
        fail!(
            Unsupported,
            "tokenizer.json: {name} has {count} steps, {MAX_COMPONENTS} are supported"
        );
    }
    Ok(())
}

fn parse(bytes: &[u8], name: &str) -> Result<Value> {
    match serde_json::from_slice(bytes) {
        Ok(value) => Ok(value),
        Err(error) => fail!(FileCorrupt, "{name}: {error}"),
    }
}

/// A token that the file adds to those of the model.
struct Added {
    id: u32,
    content: String,
    /// Recognized after normalization, by its normalized text.
    normalized: bool,
    special: bool,
    takes_left: bool,
    takes_right: bool,
    single_word: bool,
}

fn added_tokens(list: &Value) -> Result<Vec<Added>> {
    let list = match list {
        Value::Null => &Vec::new(),
        Value::Array(list) => list,
        _ => fail!(FileCorrupt, "tokenizer.json: added_tokens is not a list"),
    };
    let mut added = Vec::new();
    for (index, token) in list.iter().enumerate() {
        let place = format!("added_tokens[{index}]");
        let flag = |name: &str| boolean(token, name, false, &place);
        let content = string(token, "content", &place)?.to_string();
        if content.len() > super::vocabulary::MAX_TOKEN_BYTES {
            fail!(
                FileCorrupt,
                "tokenizer.json: {place}.content has {} bytes",
                content.len()
            );
        }
        added.push(Added {
            id: token_id(token.get("id"), &format!("{place}.id"))?,
            content,
            normalized: boolean(token, "normalized", !flag("special")?, &place)?,
            special: flag("special")?,
            takes_left: flag("lstrip")?,
            takes_right: flag("rstrip")?,
            single_word: flag("single_word")?,
        });
    }
    Ok(added)
}

/// Sorts the added tokens by whether they are recognized before or after normalization.
fn set_specials(
    parts: &mut super::tokenizer::Parts,
    added: Vec<Added>,
    budget: &Budget,
) -> Result<()> {
    let (mut raw, mut normalized) = (Vec::new(), Vec::new());
    for token in added {
        let text = match token.normalized {
            true => parts.normalizer.apply(&token.content, budget)?.to_string(),
            false => token.content,
        };
        if text.len() > super::vocabulary::MAX_TOKEN_BYTES {
            fail!(
                Unsupported,
                "tokenizer.json: added_tokens: the normalized text of token {} has {} bytes",
                token.id,
                text.len()
            );
        }
        let list = if token.normalized {
            &mut normalized
        } else {
            &mut raw
        };
        list.push(Special {
            text: text.as_bytes().into(),
            id: token.id,
            control: token.special,
            takes_left: token.takes_left,
            takes_right: token.takes_right,
            single_word: token.single_word,
        });
    }
    parts.specials = Specials::new(raw, budget)?;
    parts.normalized_specials = Specials::new(normalized, budget)?;
    Ok(())
}

/// The type that a component names; None for null.
fn kind<'a>(component: &'a Value, place: &str) -> Result<Option<&'a str>> {
    match component {
        Value::Null => Ok(None),
        Value::Object(_) => string(component, "type", place).map(Some),
        _ => fail!(FileCorrupt, "tokenizer.json: {place} is not an object"),
    }
}

/// The error for a component that is not known.
fn unknown<T>(kind: &str, place: &str) -> Result<T> {
    let kind: String = kind.chars().take(100).collect();
    fail!(
        Unsupported,
        "tokenizer.json: {place}: {kind:?} is not supported"
    )
}

fn string<'a>(object: &'a Value, name: &str, place: &str) -> Result<&'a str> {
    match object.get(name) {
        Some(Value::String(text)) => Ok(text),
        _ => fail!(
            FileCorrupt,
            "tokenizer.json: {place}.{name} is not a string"
        ),
    }
}

fn boolean(object: &Value, name: &str, default: bool, place: &str) -> Result<bool> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(default),
        Some(Value::Bool(value)) => Ok(*value),
        _ => fail!(
            FileCorrupt,
            "tokenizer.json: {place}.{name} is not a boolean"
        ),
    }
}

fn list<'a>(object: &'a Value, name: &str, place: &str) -> Result<&'a [Value]> {
    match object.get(name) {
        Some(Value::Array(list)) => Ok(list),
        _ => fail!(FileCorrupt, "tokenizer.json: {place}.{name} is not a list"),
    }
}

fn token_id(value: Option<&Value>, place: &str) -> Result<u32> {
    match value.and_then(Value::as_u64).filter(|id| *id < MAX_ID) {
        Some(id) => Ok(id as u32),
        None => fail!(FileCorrupt, "tokenizer.json: {place} is not a token id"),
    }
}

/// A pattern: `{"String": ...}` or `{"Regex": ...}`.
fn pattern(object: &Value, place: &str, budget: &Budget) -> Result<super::pattern::Pattern> {
    use super::pattern::Pattern;
    let place = format!("{place}.pattern");
    let pattern = object.get("pattern");
    match pattern.map(|pattern| (pattern.get("String"), pattern.get("Regex"))) {
        Some((Some(Value::String(text)), None)) => Ok(Pattern::Text(text.clone())),
        Some((None, Some(Value::String(regex)))) => {
            let name = format!("tokenizer.json: {place}");
            Pattern::regex(&word_characters(regex), &name, budget)
        }
        _ => fail!(
            FileCorrupt,
            "tokenizer.json: {place} is neither a String nor a Regex"
        ),
    }
}

/// The pattern with `\w` as the library's regular expressions (Oniguruma) understand it, which know
/// nothing of join controls but take some superscripts and fractions along.
fn word_characters(pattern: &str) -> String {
    const WORD: &str = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u{B2}\u{B3}\u{B9}\u{BC}-\u{BE}]";
    let mut out = String::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match (c, chars.clone().next()) {
            ('\\', Some(kind @ ('w' | 'W'))) => {
                out.push_str(if kind == 'w' { "[" } else { "[^" });
                out.push_str(WORD);
                chars.next();
            }
            ('\\', Some(escaped)) => {
                out.extend([c, escaped]);
                chars.next();
            }
            _ => out.push(c),
        }
    }
    out
}
