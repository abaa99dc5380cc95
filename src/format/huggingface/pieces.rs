//! Vocabularies of Unigram and WordPiece as GGUF metadata (`t5` and `bert`).

use super::presplit::{self, short};
use super::vocabulary::{Metadata, SPACE, Tokenizer, Tokens, key, kind};
use crate::error::{Result, fail};
use crate::format::{Array, Value};
use crate::text::base64;
use serde_json::Value as Json;

/// What WordPiece has before what goes on within a word.
const INSIDE: &str = "##";
/// The longest word that readers of GGUF files cut.
const MAX_WORD: u64 = 100;

/// Unigram: every token has the logarithm of a likelihood.
pub(super) fn unigram(tokenizer: &Tokenizer, tokens: &Tokens) -> Result<Metadata> {
    let mut scores = vec![0f32; tokens.texts.len()];
    for (score, own) in scores.iter_mut().zip(tokenizer.model.vocab.scores()) {
        *score = own as f32;
    }
    let spaces = Spaces::of(tokenizer)?;
    let mut metadata = vec![
        key("model", "t5"),
        key("pre", "default"),
        key("scores", scores),
        key("add_space_prefix", spaces.adds_prefix),
        key("remove_extra_whitespaces", spaces.removes_extra),
    ];
    if let Some(map) = spaces.charsmap {
        let bytes = map.into_iter().map(i64::from).collect();
        let bytes = Value::Array(Array::I64(bytes));
        metadata.push(key("precompiled_charsmap", bytes));
    }
    Ok(metadata)
}

/// What happens to spaces before Unigram cuts a text.
#[derive(Default)]
struct Spaces {
    charsmap: Option<Vec<u8>>,
    removes_extra: bool,
    adds_prefix: bool,
}

impl Spaces {
    fn of(tokenizer: &Tokenizer) -> Result<Spaces> {
        let mut spaces = Spaces::default();
        for (i, step) in presplit::parts(&tokenizer.normalizer, "normalizers").enumerate() {
            match step["type"].as_str() {
                Some("Precompiled") if i == 0 => {
                    let map = step["precompiled_charsmap"].as_str();
                    let Some(map) = map.and_then(base64) else {
                        fail!(
                            FileCorrupt,
                            "normalizer.precompiled_charsmap is no text in base64"
                        );
                    };
                    spaces.charsmap = Some(map).filter(|map| !map.is_empty());
                }
                Some("Replace") if is_run_of_spaces(step) => spaces.removes_extra = true,
                // White space at the ends is removed with what is too much.
                Some("Strip") => spaces.removes_extra = true,
                _ => return Err(no_name("normalizer", step)),
            }
        }
        for step in presplit::steps(&tokenizer.pre_tokenizer) {
            match (step["type"].as_str(), step["prepend_scheme"].as_str()) {
                // Other white space than spaces has become spaces.
                (Some("WhitespaceSplit"), _) if spaces.charsmap.is_some() => {
                    spaces.removes_extra = true;
                }
                (Some("Metaspace"), Some("always" | "first")) => spaces.adds_prefix = true,
                (Some("Metaspace"), Some("never")) => {}
                (Some("Metaspace"), _) => spaces.adds_prefix = step["add_prefix_space"] != false,
                _ => return Err(no_name("pre-tokenizer", step)),
            }
        }
        Ok(spaces)
    }
}

/// Whether a step makes one space of several.
fn is_run_of_spaces(step: &Json) -> bool {
    let one = step["content"] == " " || step["content"] == SPACE.to_string();
    step["pattern"]["Regex"] == " {2,}" && one
}

/// WordPiece: words are known from what goes on within one by the space before them.
pub(super) fn wordpiece(tokenizer: &Tokenizer, tokens: &mut Tokens) -> Result<Metadata> {
    let model = &tokenizer.model;
    let inside = model.continuing_subword_prefix.as_deref();
    if inside.is_some_and(|prefix| prefix != INSIDE) {
        fail!(
            Unsupported,
            "model.continuing_subword_prefix is {inside:?}; GGUF files mean {INSIDE:?}"
        );
    }
    if let Some(most) = model.max_input_chars_per_word
        && most != MAX_WORD
    {
        fail!(
            Unsupported,
            "model.max_input_chars_per_word is {most}; GGUF files mean {MAX_WORD}"
        );
    }
    let mut lowercase = false;
    let mut strips_accents = false;
    let mut found = false;
    for step in presplit::parts(&tokenizer.normalizer, "normalizers") {
        let is = |flag: &str| step[flag] != false;
        if step["type"] != "BertNormalizer" || !is("clean_text") || !is("handle_chinese_chars") {
            return Err(no_name("normalizer", step));
        }
        lowercase = is("lowercase");
        strips_accents = step["strip_accents"].as_bool().unwrap_or(lowercase);
        found = true;
    }
    for step in presplit::steps(&tokenizer.pre_tokenizer) {
        if step["type"] != "BertPreTokenizer" {
            return Err(no_name("pre-tokenizer", step));
        }
    }
    if !found || presplit::steps(&tokenizer.pre_tokenizer).next().is_none() {
        fail!(
            Unsupported,
            "a WordPiece model without BertNormalizer and BertPreTokenizer has no name in GGUF"
        );
    }
    for (text, kind) in tokens.texts.iter_mut().zip(&tokens.kinds) {
        if *kind == kind::NORMAL {
            *text = match text.strip_prefix(INSIDE) {
                Some(inside) => inside.to_owned(),
                None => format!("{SPACE}{text}"),
            };
        }
    }
    Ok(vec![
        key("model", "bert"),
        key("pre", "default"),
        key("normalizer.lowercase", lowercase),
        key("normalizer.strip_accents", strips_accents),
    ])
}

fn no_name(what: &str, step: &Json) -> crate::error::Error {
    crate::error::Error::new(
        crate::error::Status::Unsupported,
        format!("the {what} has no name in GGUF: {}", short(step)),
    )
}
