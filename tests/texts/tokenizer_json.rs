//! Tokenizers from `tokenizer.json`, against the ids and texts of the tokenizers library (see
//! `data/make_tokenizers.py`), and files that are wrong.

use crate::xz;
use emberlm::Status;
use emberlm::text::{DecodeOptions, EncodeOptions, TokenKind, Tokenizer};
use serde_json::{Value, json};

const ALL: EncodeOptions = EncodeOptions {
    add_special: true,
    parse_special: true,
};

fn cases() -> Vec<Value> {
    xz::text(include_bytes!("../data/tokenizers.jsonl.xz"))
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn tokenizer(json: &Value) -> emberlm::Result<Tokenizer> {
    Tokenizer::from_json(json.to_string().as_bytes(), None)
}

fn encode(tokenizer: &Tokenizer, text: &str, options: EncodeOptions) -> Vec<u32> {
    let mut ids = Vec::new();
    tokenizer.encode(text, options, &mut ids).unwrap();
    ids
}

fn decode(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut bytes = Vec::new();
    tokenizer
        .decode(ids, DecodeOptions::default(), &mut bytes)
        .unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn ids_and_texts_of_the_library() {
    let mut n_texts = 0;
    let mut wrong = Vec::new();
    for case in cases() {
        let name = case["name"].as_str().unwrap();
        let tokenizer = tokenizer(&case["tokenizer"]).unwrap();
        for triple in case["cases"].as_array().unwrap() {
            let text = triple[0].as_str().unwrap();
            let want: Vec<u32> = serde_json::from_value(triple[1].clone()).unwrap();
            let ids = encode(&tokenizer, text, ALL);
            if ids != want {
                wrong.push(format!("{name}: {text:?}\n  got  {ids:?}\n  want {want:?}"));
            }
            let (text, want) = (decode(&tokenizer, &want), triple[2].as_str().unwrap());
            if text != want {
                wrong.push(format!("{name}: decoded {text:?}\n  want {want:?}"));
            }
            n_texts += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(n_texts > 250, "{n_texts}");
}

fn case(name: &str) -> Value {
    let cases = cases();
    let case = cases.iter().find(|case| case["name"] == name).unwrap();
    case["tokenizer"].clone()
}

#[test]
fn control_tokens_only_where_asked() {
    for case in cases() {
        let tokenizer = tokenizer(&case["tokenizer"]).unwrap();
        let ids = encode(&tokenizer, "a<s></s>b<|end|> c", EncodeOptions::default());
        let control = |id: &u32| tokenizer.kind(*id).unwrap() == TokenKind::Control;
        assert!(!ids.iter().any(control), "{}: {ids:?}", case["name"]);
    }
}

#[test]
fn config_names_special_tokens() {
    let file = case("llama3").to_string();
    let config = json!({
        "bos_token": "<s>",
        "eos_token": {"content": "<|end|>", "lstrip": false},
        "add_bos_token": false,
        "add_eos_token": true,
    });
    let config = config.to_string();
    let tokenizer = Tokenizer::from_json(file.as_bytes(), Some(config.as_bytes())).unwrap();
    let id = |text| encode(&tokenizer, text, ALL)[0];
    let (bos, eos) = (id("<s>"), id("<|end|>"));
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(bos), Some(eos)));
    assert!(!tokenizer.adds_bos() && tokenizer.adds_eos());
    assert!(tokenizer.is_end(eos) && !tokenizer.is_end(bos));
    assert_eq!(tokenizer.kind(bos).unwrap(), TokenKind::Control);
    let error = Tokenizer::from_json(file.as_bytes(), Some(b"{"))
        .err()
        .unwrap();
    assert!(error.message.contains("tokenizer_config.json"), "{error}");
}

#[test]
fn a_megabyte_of_one_character() {
    for case in cases() {
        let tokenizer = tokenizer(&case["tokenizer"]).unwrap();
        for unit in ["a", " ", "🦙", "\n", "</s>"] {
            let text = unit.repeat((1 << 20) / unit.len());
            encode(&tokenizer, &text, ALL);
        }
    }
}

#[test]
fn errors_name_the_place() {
    let bpe = case("llama2");
    let unigram = case("unigram");
    let cases: Vec<(&Value, &str, Value, Status, &str)> = vec![
        (
            &bpe,
            "/model/type",
            json!("Neural"),
            Status::Unsupported,
            "\"Neural\"",
        ),
        (
            &bpe,
            "/normalizer",
            json!({"type": "Magic"}),
            Status::Unsupported,
            "normalizer: \"Magic\"",
        ),
        (
            &bpe,
            "/normalizer",
            json!([]),
            Status::FileCorrupt,
            "normalizer",
        ),
        (
            &bpe,
            "/pre_tokenizer",
            json!({"type": "Sequence", "pretokenizers": [{"type": "X"}]}),
            Status::Unsupported,
            "pretokenizers[0]",
        ),
        (
            &bpe,
            "/pre_tokenizer",
            json!({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}),
            Status::Unsupported,
            "pre_tokenizer.pattern",
        ),
        (
            &bpe,
            "/pre_tokenizer",
            json!({"type": "Split", "pattern": {"String": "a"}, "behavior": "Odd"}),
            Status::Unsupported,
            "\"Odd\"",
        ),
        (
            &bpe,
            "/decoder",
            json!({"type": "CTC"}),
            Status::Unsupported,
            "decoder: \"CTC\"",
        ),
        (
            &bpe,
            "/post_processor",
            json!({"type": "Odd"}),
            Status::Unsupported,
            "post_processor",
        ),
        (
            &bpe,
            "/post_processor/special_tokens/<s>/ids",
            json!([70000]),
            Status::FileCorrupt,
            "70000",
        ),
        (
            &bpe,
            "/model/merges",
            json!(["a b c"]),
            Status::FileCorrupt,
            "model.merges[0]",
        ),
        (
            &bpe,
            "/model/merges",
            json!([["a", "no-such"]]),
            Status::FileCorrupt,
            "\"no-such\"",
        ),
        (
            &bpe,
            "/model/merges",
            json!([["a"]]),
            Status::FileCorrupt,
            "model.merges[0]",
        ),
        (
            &bpe,
            "/model/merges",
            json!("a b"),
            Status::FileCorrupt,
            "merges",
        ),
        (
            &bpe,
            "/model/vocab",
            json!({"a": -1}),
            Status::FileCorrupt,
            "line",
        ),
        (
            &bpe,
            "/model/vocab",
            json!({"a": 4294967295u64}),
            Status::FileCorrupt,
            "4294967295",
        ),
        (
            &bpe,
            "/model/vocab",
            json!({"a": 0, "b": 0}),
            Status::FileCorrupt,
            "same id 0",
        ),
        (
            &bpe,
            "/model/vocab",
            json!({"x".repeat(1 << 20): 0}),
            Status::FileCorrupt,
            "1048576 bytes",
        ),
        (
            &bpe,
            "/model/vocab",
            json!([["a", 0.0]]),
            Status::FileCorrupt,
            "entry 0",
        ),
        (
            &bpe,
            "/model/unk_token",
            json!("gone"),
            Status::FileCorrupt,
            "\"gone\"",
        ),
        (
            &bpe,
            "/model/dropout",
            json!(0.1),
            Status::Unsupported,
            "dropout",
        ),
        (
            &bpe,
            "/added_tokens",
            json!([{"id": 99999999, "content": "a"}]),
            Status::FileCorrupt,
            "added_tokens[0].id",
        ),
        (
            &bpe,
            "/added_tokens",
            json!([{"id": 3}]),
            Status::FileCorrupt,
            "added_tokens[0].content",
        ),
        (
            &bpe,
            "/added_tokens",
            json!([{"id": 3, "content": "other"}]),
            Status::FileCorrupt,
            "\"other\"",
        ),
        (
            &unigram,
            "/model/unk_id",
            json!(100000),
            Status::FileCorrupt,
            "unk_id",
        ),
        (
            &unigram,
            "/model/vocab",
            json!([["a"]]),
            Status::FileCorrupt,
            "model.vocab",
        ),
        (
            &unigram,
            "/normalizer",
            json!({"type": "Precompiled", "precompiled_charsmap": "A"}),
            Status::FileCorrupt,
            "base64",
        ),
        (
            &unigram,
            "/normalizer",
            json!({"type": "Precompiled", "precompiled_charsmap": "/////w=="}),
            Status::FileCorrupt,
            "precompiled_charsmap",
        ),
    ];
    for (file, place, value, status, part) in cases {
        let mut file = file.clone();
        *file.pointer_mut(place).expect(place) = value;
        let error = tokenizer(&file).err().expect(place);
        assert_eq!(error.status, status, "{place}: {error}");
        assert!(error.message.contains(part), "{place}: {error}");
        assert!(
            error.message.len() < 500,
            "{place}: {} bytes",
            error.message.len()
        );
    }
    let deep = format!("{{\"normalizer\":{}", "[".repeat(1 << 20));
    for text in ["", "[]", "{", "{}", "nul", "\u{FEFF}{}", deep.as_str()] {
        let error = Tokenizer::from_json(text.as_bytes(), None).err().unwrap();
        assert_eq!(error.status, Status::FileCorrupt, "{error}");
    }
}
