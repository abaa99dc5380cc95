//! Vocabularies that lie: each gives an error that names key and entry, none a panic.

use super::{EncodeOptions, Metadata, Tokenizer};
use crate::Status;
use crate::format::{Array, Value};

fn strings(list: &[&str]) -> Value {
    Value::Array(Array::String(list.iter().map(|s| s.to_string()).collect()))
}

fn set(metadata: &mut Metadata, key: &str, value: Value) {
    metadata.insert(format!("tokenizer.ggml.{key}"), value);
}

/// `a`, `b`, `ab`, a raw token, a control token and a user-defined one.
fn small() -> Metadata {
    let mut metadata = Metadata::new();
    set(&mut metadata, "model", Value::String("gpt2".into()));
    set(&mut metadata, "pre", Value::String("gpt-2".into()));
    set(
        &mut metadata,
        "tokens",
        strings(&["a", "b", "ab", "x y", "<|end|>", "ba ab"]),
    );
    let kinds = Array::I64(vec![1, 1, 1, 1, 3, 4]);
    set(&mut metadata, "token_type", Value::Array(kinds));
    set(&mut metadata, "merges", strings(&["a b", "a b"]));
    metadata
}

fn encode(metadata: &Metadata, text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    let tokenizer = Tokenizer::from_metadata(metadata).unwrap();
    let options = EncodeOptions::default();
    tokenizer.encode(text, options, &mut ids).unwrap();
    ids
}

#[test]
fn small_vocabulary_works() {
    assert_eq!(encode(&small(), "abba abab"), [2, 5, 2]);
    // Bytes without a token are dropped, or become the unknown token.
    assert_eq!(encode(&small(), "aéb"), [0, 1]);
    let mut metadata = small();
    set(&mut metadata, "unknown_token_id", Value::U64(4));
    assert_eq!(encode(&metadata, "aéb"), [0, 4, 4, 1]);
}

#[test]
fn errors_name_the_culprit() {
    let long = "a".repeat(1 << 20);
    let number = Value::U64(3);
    let cases: Vec<(&str, Value, Status, &str)> = vec![
        (
            "model",
            Value::String("no-such".into()),
            Status::Unsupported,
            "no-such",
        ),
        ("model", number.clone(), Status::MissingKey, "ggml.model"),
        (
            "pre",
            Value::String("no-such".into()),
            Status::Unsupported,
            "no-such",
        ),
        ("pre", number.clone(), Status::MissingKey, "ggml.pre"),
        ("tokens", number.clone(), Status::MissingKey, "ggml.tokens"),
        (
            "tokens",
            Value::Array(Array::U64(vec![1])),
            Status::MissingKey,
            "ggml.tokens",
        ),
        ("tokens", strings(&[]), Status::FileCorrupt, "ggml.tokens"),
        (
            "tokens",
            strings(&["a", "b", "ab", "x", "y", &long]),
            Status::FileCorrupt,
            "entry 5",
        ),
        (
            "tokens",
            strings(&["a", "b", "ab"]),
            Status::FileCorrupt,
            "token_type",
        ),
        (
            "token_type",
            number.clone(),
            Status::MissingKey,
            "token_type",
        ),
        (
            "token_type",
            Value::Array(Array::I64(vec![1; 7])),
            Status::FileCorrupt,
            "7 entries",
        ),
        (
            "token_type",
            Value::Array(Array::I64(vec![1, 1, 9, 1, 1, 1])),
            Status::FileCorrupt,
            "entry 2",
        ),
        (
            "token_type",
            Value::Array(Array::U64(vec![u64::MAX; 6])),
            Status::FileCorrupt,
            "entry 0",
        ),
        (
            "token_type",
            Value::Array(Array::I64(vec![6; 6])),
            Status::FileCorrupt,
            "byte token",
        ),
        ("merges", number.clone(), Status::MissingKey, "merges"),
        (
            "merges",
            strings(&["a b", "ab"]),
            Status::FileCorrupt,
            "entry 1",
        ),
        ("merges", strings(&["a  b"]), Status::FileCorrupt, "entry 0"),
        ("merges", strings(&["a "]), Status::FileCorrupt, "entry 0"),
        ("merges", strings(&[" "]), Status::FileCorrupt, "entry 0"),
        (
            "merges",
            strings(&["a c"]),
            Status::FileCorrupt,
            "right part",
        ),
        (
            "merges",
            strings(&["c a"]),
            Status::FileCorrupt,
            "left part",
        ),
        (
            "merges",
            strings(&["b a"]),
            Status::FileCorrupt,
            "the result",
        ),
        ("merges", strings(&["▁ a"]), Status::FileCorrupt, "entry 0"),
        (
            "bos_token_id",
            Value::U64(6),
            Status::FileCorrupt,
            "bos_token_id",
        ),
        (
            "eos_token_id",
            Value::I64(-2),
            Status::FileCorrupt,
            "eos_token_id",
        ),
        (
            "eot_token_id",
            Value::U64(u64::MAX),
            Status::FileCorrupt,
            "eot_token_id",
        ),
        (
            "eom_token_id",
            Value::Bool(true),
            Status::MissingKey,
            "eom_token_id",
        ),
        (
            "add_bos_token",
            Value::Bool(true),
            Status::MissingKey,
            "bos_token_id",
        ),
        ("add_eos_token", number, Status::MissingKey, "add_eos_token"),
    ];
    for (key, value, status, part) in cases {
        let mut metadata = small();
        set(&mut metadata, key, value);
        let error = Tokenizer::from_metadata(&metadata).err().expect(key);
        assert_eq!(error.status, status, "{error}");
        assert!(error.message.contains(part), "{error}");
        assert!(error.message.len() < 400, "{}", error.message.len());
    }
    for key in ["model", "tokens", "merges"] {
        let mut metadata = small();
        metadata.remove(&format!("tokenizer.ggml.{key}"));
        let error = Tokenizer::from_metadata(&metadata).err().expect(key);
        assert_eq!(error.status, Status::MissingKey);
        assert!(error.message.contains(key), "{error}");
    }
}
