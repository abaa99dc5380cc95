//! The keys of a model file that describe a tokenizer, checked.

use super::vocabulary::TokenKind;
use crate::error::{Result, fail, try_vec};
use crate::format::{Array, Strings, Value};
use std::collections::HashMap;

/// The metadata of a model file, by key.
pub type Metadata = HashMap<String, Value>;

pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(super) const MERGES: &str = "tokenizer.ggml.merges";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

/// A string; None if the key is absent.
pub(super) fn string<'a>(metadata: &'a Metadata, key: &str) -> Result<Option<&'a str>> {
    match metadata.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => fail!(MissingKey, "metadata key {key} is not a string"),
    }
}

/// A boolean; None if the key is absent.
pub(super) fn boolean(metadata: &Metadata, key: &str) -> Result<Option<bool>> {
    match metadata.get(key) {
        None => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(*value)),
        Some(_) => fail!(MissingKey, "metadata key {key} is not a boolean"),
    }
}

/// A token id below `n_vocab`; None if the key is absent or says so (-1 as a signed or an unsigned
/// 32-bit number).
pub(super) fn token_id(metadata: &Metadata, key: &str, n_vocab: usize) -> Result<Option<u32>> {
    let id = match metadata.get(key) {
        None | Some(Value::I64(-1)) => return Ok(None),
        Some(Value::U64(id)) if *id == u64::from(u32::MAX) => return Ok(None),
        Some(Value::U64(id)) => i128::from(*id),
        Some(Value::I64(id)) => i128::from(*id),
        Some(_) => fail!(MissingKey, "metadata key {key} is not an integer"),
    };
    match u32::try_from(id) {
        Ok(token) if (token as usize) < n_vocab => Ok(Some(token)),
        _ => fail!(
            FileCorrupt,
            "metadata key {key}: token {id} is not in the vocabulary of {n_vocab}"
        ),
    }
}

/// An array of texts.
pub(super) fn strings<'a>(metadata: &'a Metadata, key: &str) -> Result<&'a Strings> {
    static NONE: Strings = Strings::new();
    match metadata.get(key) {
        None => fail!(MissingKey, "metadata key {key} is missing"),
        Some(Value::Array(Array::String(list))) => Ok(list),
        // An empty array may have lost the type of its elements.
        Some(Value::Array(list)) if list.is_empty() => Ok(&NONE),
        Some(_) => fail!(MissingKey, "metadata key {key} is not an array of strings"),
    }
}

/// The kind of each token; all are normal if the file does not say.
pub(super) fn kinds(metadata: &Metadata, n_vocab: usize) -> Result<Vec<TokenKind>> {
    let mut kinds = try_vec(n_vocab, TokenKind::Normal, TYPES)?;
    let array = match metadata.get(TYPES) {
        None => return Ok(kinds),
        Some(Value::Array(array @ (Array::I64(_) | Array::U64(_)))) => array,
        Some(_) => fail!(
            MissingKey,
            "metadata key {TYPES} is not an array of integers"
        ),
    };
    if array.len() != n_vocab {
        fail!(
            FileCorrupt,
            "metadata key {TYPES} has {} entries for {n_vocab} tokens",
            array.len()
        );
    }
    for (index, kind) in kinds.iter_mut().enumerate() {
        let number = match array {
            Array::I64(list) => list[index],
            Array::U64(list) => i64::try_from(list[index]).unwrap_or(i64::MAX),
            _ => 1,
        };
        *kind = match TokenKind::from_number(number) {
            Some(kind) => kind,
            None => fail!(
                FileCorrupt,
                "metadata key {TYPES}, entry {index}: there is no token type {number}"
            ),
        };
    }
    Ok(kinds)
}

/// The score of each token, none of them NaN.
pub(super) fn scores(metadata: &Metadata, n_vocab: usize) -> Result<Vec<f32>> {
    let mut scores = try_vec(n_vocab, 0f32, SCORES)?;
    let array = match metadata.get(SCORES) {
        None => fail!(MissingKey, "metadata key {SCORES} is missing"),
        Some(Value::Array(array @ (Array::F32(_) | Array::F64(_) | Array::I64(_)))) => array,
        Some(_) => fail!(
            MissingKey,
            "metadata key {SCORES} is not an array of numbers"
        ),
    };
    if array.len() != n_vocab {
        fail!(
            FileCorrupt,
            "metadata key {SCORES} has {} entries for {n_vocab} tokens",
            array.len()
        );
    }
    for (index, score) in scores.iter_mut().enumerate() {
        *score = match array {
            Array::F32(list) => list[index],
            Array::F64(list) => list[index] as f32,
            Array::I64(list) => list[index] as f32,
            _ => 0.0,
        };
        if !score.is_finite() {
            fail!(
                FileCorrupt,
                "metadata key {SCORES}, entry {index}: {score} is not a finite number"
            );
        }
    }
    Ok(scores)
}

/// The precompiled normalization as bytes; None if there is none.
pub(super) fn charsmap(metadata: &Metadata) -> Result<Option<Vec<u8>>> {
    let bytes = match metadata.get(CHARSMAP) {
        None => return Ok(None),
        Some(Value::Array(array)) if array.is_empty() => return Ok(None),
        Some(Value::Array(Array::U64(list))) => list.iter().map(|n| u8::try_from(*n)).collect(),
        // Bytes that a converter wrote as signed.
        Some(Value::Array(Array::I64(list))) => {
            let signed = |n: &i64| i8::try_from(*n).map(|byte| byte as u8);
            list.iter().map(signed).collect()
        }
        Some(_) => fail!(
            MissingKey,
            "metadata key {CHARSMAP} is not an array of bytes"
        ),
    };
    match bytes {
        Ok(bytes) => Ok(Some(bytes)),
        Err(_) => fail!(
            FileCorrupt,
            "metadata key {CHARSMAP} has entries that are no bytes"
        ),
    }
}
