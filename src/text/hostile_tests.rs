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
fn qwen_composes_letters_first() {
    for pre in ["qwen2", "qwen35"] {
        let mut metadata = small();
        set(&mut metadata, "pre", Value::String(pre.into()));
        set(&mut metadata, "unknown_token_id", Value::U64(4));
        // An accent of its own has two bytes, as the letter with it.
        assert_eq!(encode(&metadata, "ae\u{301}b"), [0, 4, 4, 1], "{pre}");
    }
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

/// A SentencePiece vocabulary: unknown, BOS, EOS, the bytes of `é`, and a few pieces.
fn pieces(model: &str) -> Metadata {
    let mut metadata = Metadata::new();
    set(&mut metadata, "model", Value::String(model.into()));
    let tokens = [
        "<unk>",
        "<s>",
        "</s>",
        "<0xC3>",
        "<0xA9>",
        "\u{2581}",
        "a",
        "b",
        "ab",
        "\u{2581}ab",
        "<x>",
    ];
    set(&mut metadata, "tokens", strings(&tokens));
    let kinds = Array::I64(vec![2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 4]);
    set(&mut metadata, "token_type", Value::Array(kinds));
    let scores = vec![0.0, 0.0, 0.0, 0.0, 0.0, -9.0, -8.0, -7.0, -2.0, -1.0, 0.0];
    set(&mut metadata, "scores", Value::Array(Array::F32(scores)));
    metadata
}

fn decode(metadata: &Metadata, ids: &[u32]) -> String {
    let tokenizer = Tokenizer::from_metadata(metadata).unwrap();
    let mut bytes = Vec::new();
    let options = super::DecodeOptions::default();
    tokenizer.decode(ids, options, &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn sentencepiece_spaces_bytes_and_tokens() {
    let metadata = pieces("llama");
    assert_eq!(encode(&metadata, "ab ab"), [9, 9]);
    assert_eq!(encode(&metadata, "aé  b"), [5, 6, 3, 4, 5, 5, 7]);
    assert_eq!(encode(&metadata, "a<x>b</s>")[..5], [5, 6, 10, 5, 7]);
    assert!(!encode(&metadata, "</s><s>").contains(&2));
    assert_eq!(decode(&metadata, &[9, 9, 3, 4]), "ab abé");
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)));
    assert!(tokenizer.adds_bos() && !tokenizer.adds_eos());
    assert_eq!(tokenizer.token_bytes(9).unwrap(), b" ab");
    assert_eq!(tokenizer.token_bytes(4).unwrap(), [0xA9]);
}

#[test]
fn a_piece_may_have_characters_that_are_none() {
    let mut metadata = pieces("llama");
    let tokens = ["<unk>", "<s>", "</s>", "xy", "xyz", "\u{2581}"];
    set(&mut metadata, "tokens", strings(&tokens));
    let kinds = Array::I64(vec![2, 3, 3, 5, 1, 1]);
    set(&mut metadata, "token_type", Value::Array(kinds));
    let scores = vec![0.0, 0.0, 0.0, -1.0, -2.0, -3.0];
    set(&mut metadata, "scores", Value::Array(Array::F32(scores)));
    // An unused token serves for merging, and is taken apart if nothing comes of it.
    assert_eq!(encode(&metadata, "xyz"), [5, 4]);
    assert_eq!(encode(&metadata, "xy"), [5, 0]);
}

#[test]
fn unigram_takes_the_likeliest_way() {
    let mut metadata = pieces("t5");
    set(&mut metadata, "remove_extra_whitespaces", Value::Bool(true));
    set(&mut metadata, "eos_token_id", Value::U64(2));
    let mut kinds = vec![1; 11];
    kinds[..3].copy_from_slice(&[2, 3, 3]);
    set(&mut metadata, "token_type", Value::Array(Array::I64(kinds)));
    assert_eq!(encode(&metadata, "  ab   abb "), [9, 9, 7]);
    assert_eq!(encode(&metadata, "ab\u{3b1}\u{3b2}b"), [9, 0, 7]);
    assert_eq!(decode(&metadata, &[9, 9, 7]), "ab abb");
    assert!(Tokenizer::from_metadata(&metadata).unwrap().adds_eos());
}

#[test]
fn wordpiece_takes_the_longest() {
    let mut metadata = Metadata::new();
    set(&mut metadata, "model", Value::String("bert".into()));
    let tokens = [
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "\u{2581}un",
        "able",
        "\u{2581}una",
        "\u{2581}!",
    ];
    set(&mut metadata, "tokens", strings(&tokens));
    let kinds = Array::I64(vec![2, 3, 3, 1, 1, 1, 1]);
    set(&mut metadata, "token_type", Value::Array(kinds));
    for (name, id) in [("unknown", 0), ("cls", 1), ("seperator", 2)] {
        set(&mut metadata, &format!("{name}_token_id"), Value::U64(id));
    }
    assert_eq!(encode(&metadata, "UNable! un [SEP]"), [0, 6, 3, 0, 0, 0]);
    assert_eq!(encode(&metadata, "\u{fc}n"), [3]);
    assert_eq!(decode(&metadata, &[1, 3, 4, 6]), "[CLS] unable!");
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    let mut ids = Vec::new();
    let options = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    tokenizer.encode("un[SEP]", options, &mut ids).unwrap();
    assert_eq!(ids, [1, 3, 2, 2]);
}

#[test]
fn gemma4_merges_characters() {
    let mut metadata = pieces("gemma4");
    set(&mut metadata, "merges", strings(&["a b", "\u{2581} ab"]));
    set(&mut metadata, "bos_token_id", Value::U64(1));
    assert_eq!(encode(&metadata, "ab ab"), [8, 9]);
    assert_eq!(encode(&metadata, "é<x>"), [3, 4, 10]);
    assert_eq!(decode(&metadata, &[9, 8]), " abab");
    assert!(Tokenizer::from_metadata(&metadata).unwrap().adds_bos());
}

#[test]
fn turns_of_gemma4_end_answers() {
    for kind in [3, 4] {
        let mut metadata = pieces("gemma4");
        let names = ["<turn|>", "<|turn>", "<|tool_response>", "<tool_response|>"];
        let tokens: Vec<&str> = ["<unk>", "a"].into_iter().chain(names).collect();
        set(&mut metadata, "tokens", strings(&tokens));
        let kinds = vec![2, 1, kind, kind, kind, kind];
        set(&mut metadata, "token_type", Value::Array(Array::I64(kinds)));
        set(&mut metadata, "merges", strings(&[]));
        let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
        let ends: Vec<u32> = (0..6).filter(|id| tokenizer.is_end(*id)).collect();
        assert_eq!(ends, [2, 4]);
    }
}

#[test]
fn errors_in_the_other_kinds() {
    let numbers = |list: Vec<f32>| Value::Array(Array::F32(list));
    let bytes = |list: Vec<u64>| Value::Array(Array::U64(list));
    let mut nan = vec![0.0; 11];
    nan[3] = f32::NAN;
    let charsmap = "precompiled_charsmap";
    let cases = vec![
        (
            "llama",
            "scores",
            numbers(vec![0.0; 10]),
            Status::FileCorrupt,
            "10 entries",
        ),
        (
            "llama",
            "scores",
            numbers(nan),
            Status::FileCorrupt,
            "entry 3",
        ),
        (
            "llama",
            "scores",
            Value::U64(1),
            Status::MissingKey,
            "ggml.scores",
        ),
        (
            "t5",
            "scores",
            strings(&["x"; 11]),
            Status::MissingKey,
            "ggml.scores",
        ),
        ("t5", charsmap, Value::U64(1), Status::MissingKey, charsmap),
        (
            "t5",
            charsmap,
            bytes(vec![256; 9]),
            Status::FileCorrupt,
            charsmap,
        ),
        (
            "t5",
            charsmap,
            bytes(vec![255; 9]),
            Status::FileCorrupt,
            "cut off",
        ),
        (
            "t5",
            charsmap,
            bytes(vec![0, 0, 0, 0, 65]),
            Status::FileCorrupt,
            "cut off",
        ),
        (
            "t5",
            "add_space_prefix",
            Value::U64(1),
            Status::MissingKey,
            "add_space_prefix",
        ),
        (
            "gemma4",
            "merges",
            strings(&["a c"]),
            Status::FileCorrupt,
            "right part",
        ),
        (
            "bert",
            "model",
            Value::String("bert".into()),
            Status::MissingKey,
            "unknown_token_id",
        ),
    ];
    for (model, key, value, status, part) in cases {
        let mut metadata = pieces(model);
        set(&mut metadata, key, value);
        let error = Tokenizer::from_metadata(&metadata).err().expect(key);
        assert_eq!(error.status, status, "{key}: {error}");
        assert!(error.message.contains(part), "{key}: {error}");
    }
    // A double array that leads nowhere is followed nowhere.
    let mut metadata = pieces("t5");
    set(
        &mut metadata,
        "token_type",
        Value::Array(Array::I64(vec![1; 11])),
    );
    set(&mut metadata, "unknown_token_id", Value::U64(0));
    let map = [8, 0, 0, 0].into_iter().chain([255; 8]).chain([65, 0]);
    set(&mut metadata, charsmap, bytes(map.collect()));
    assert_eq!(encode(&metadata, "ab"), [9]);
}
