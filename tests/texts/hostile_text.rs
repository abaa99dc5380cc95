//! Vocabularies, texts and conversations that want to take time and memory. Each is paid for step by
//! step: it takes as much as any other of its length, or ends with an error.

use emberlm::budget::{Budget, Interrupt};
use emberlm::format::{Array, Value};
use emberlm::text::{EncodeOptions, Environment, Metadata, TokenStream, Tokenizer, render};
use emberlm::{Error, Status};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The steps that a text takes, and the number of its tokens.
fn tokenize(tokenizer: &Tokenizer, text: &str) -> Result<(u64, usize), Error> {
    let budget = Budget::for_text(text.len());
    let mut ids = Vec::new();
    let options = EncodeOptions::default();
    tokenizer.encode_within(&budget, text, options, &mut ids)?;
    Ok((budget.spent(), ids.len()))
}

/// As [`tokenize`] for a text that may take so many steps a byte.
fn linear(tokenizer: &Tokenizer, text: &str, per_byte: u64) -> usize {
    let (steps, count) = tokenize(tokenizer, text).unwrap();
    let most = per_byte * text.len() as u64;
    assert!(steps <= most, "{steps} steps for {} bytes", text.len());
    count
}

fn refused(result: Result<impl Sized, Error>, status: Status, word: &str) {
    let error = result.err().expect(word);
    assert_eq!(error.status, status, "{error}");
    assert!(error.message.contains(word), "{error}");
    assert!(error.message.len() < 500);
}

/// A byte-level vocabulary of the letters and these added tokens.
fn with_added(added: impl Iterator<Item = String>) -> serde_json::Value {
    let letters = ('a'..='z').zip(0..);
    let vocab: serde_json::Map<_, _> = letters.map(|(c, id)| (c.to_string(), json!(id))).collect();
    let added = added.zip(26..).map(|(content, id)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false, "special": false})
    });
    json!({
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
        "post_processor": null,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })
}

fn tokenizer(json: &serde_json::Value) -> Result<Tokenizer, Error> {
    Tokenizer::from_json(json.to_string().as_bytes(), None)
}

#[test]
fn long_added_tokens() {
    let long = "a".repeat(16_380) + "b";
    let tokenizer = tokenizer(&with_added([long.clone()].into_iter())).unwrap();
    assert_eq!(linear(&tokenizer, &"a".repeat(40_000), 16), 40_000);
    assert_eq!(linear(&tokenizer, &("a".to_string() + &long), 16), 2);
}

#[test]
fn added_tokens_with_much_in_common() {
    let numbered = (0..50_000).map(|n| format!("{}{n:05}", "a".repeat(60)));
    let many = tokenizer(&with_added(numbered)).unwrap();
    linear(&many, &"a".repeat(80_000), 16);
    let nested = (2..2_000).map(|n| "a".repeat(n));
    let nested = tokenizer(&with_added(nested)).unwrap();
    // Each longest one.
    assert_eq!(linear(&nested, &"a".repeat(199_900), 16), 100);
}

#[test]
fn long_and_nested_tokens_of_unigram() {
    let of = |pieces: Vec<(String, f64)>| {
        tokenizer(&json!({
            "model": {"type": "Unigram", "unk_id": 0, "vocab": pieces},
        }))
        .unwrap()
    };
    let long = of(vec![
        ("<unk>".into(), 0.0),
        ("a".into(), -1.0),
        ("a".repeat(16_384), -2.0),
    ]);
    // The last 16,384 letters are one token, and of the rest as many as fit.
    assert_eq!(linear(&long, &"a".repeat(40_000), 16), 2 + 40_000 - 32_768);
    let pieces = (1..3_000).map(|n| ("a".repeat(n), -(n as f64)));
    let nested = of([("<unk>".into(), 0.0)].into_iter().chain(pieces).collect());
    refused(
        tokenize(&nested, &"a".repeat(100_000)),
        Status::InvalidArgument,
        "steps",
    );
}

#[test]
fn long_tokens_of_sentencepiece_and_wordpiece() {
    let mut metadata = Metadata::new();
    let mut set = |key: &str, value| metadata.insert(format!("tokenizer.ggml.{key}"), value);
    let tokens = ["<unk>", "<s>", "</s>"].map(str::to_owned).into_iter();
    let tokens = tokens.chain((1..3_000).map(|n| "a".repeat(n)));
    let scores = (0..3_002).map(|n| n as f32).collect();
    let kinds = [2, 3, 3].into_iter().chain(std::iter::repeat_n(1, 2_999));
    set("model", Value::String("llama".into()));
    set("tokens", Value::Array(Array::String(tokens.collect())));
    set("scores", Value::Array(Array::F32(scores)));
    set("token_type", Value::Array(Array::I64(kinds.collect())));
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    // Each merge looks up a text that is one letter longer.
    linear(&tokenizer, &"a".repeat(30_000), 300);
    let words = json!({
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "max_input_chars_per_word": 1_000_000,
            "vocab": {"[UNK]": 0, "a": 1, "##a": 2, "a".repeat(16_000): 3},
        },
    });
    refused(
        tokenize(&self::tokenizer(&words).unwrap(), &"a".repeat(15_000)),
        Status::InvalidArgument,
        "steps",
    );
}

fn with(name: &str, value: serde_json::Value) -> Result<Tokenizer, Error> {
    let mut json = with_added(std::iter::empty());
    json[name] = value;
    tokenizer(&json)
}

#[test]
fn normalizers_that_double() {
    let replace =
        |content: &str| json!({"type": "Replace", "pattern": {"String": "a"}, "content": content});
    let sequence = |list: Vec<_>| json!({"type": "Sequence", "normalizers": list});
    let doubling = with("normalizer", sequence(vec![replace("aa"); 60])).unwrap();
    refused(tokenize(&doubling, "a"), Status::InvalidArgument, "MB");
    let huge = with("normalizer", replace(&"b".repeat(100_000))).unwrap();
    assert_eq!(tokenize(&huge, "a").unwrap().1, 100_000);
    refused(
        tokenize(&huge, &"a".repeat(38_000)),
        Status::InvalidArgument,
        "MB",
    );
    let many = with("normalizer", sequence(vec![replace("a"); 10_000]));
    refused(many, Status::Unsupported, "normalizer");
    // What is done to a text is done to added tokens when they are read, too.
    let mut json = with_added(std::iter::once("a".repeat(1_000)));
    json["added_tokens"][0]["normalized"] = json!(true);
    json["normalizer"] = replace(&"b".repeat(1_000));
    refused(tokenizer(&json), Status::Unsupported, "added_tokens");
    json["normalizer"] = sequence(vec![replace("aa"); 60]);
    refused(tokenizer(&json), Status::Unsupported, "tokenizer: it wants");
}

#[test]
fn decoders_that_double() {
    let replace = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    let list = vec![replace; 60];
    let mut json = with_added(std::iter::empty());
    json["pre_tokenizer"] = json!(null);
    json["decoder"] = json!({"type": "Sequence", "decoders": list});
    refused(tokenizer(&json), Status::Unsupported, "tokenizer: it wants");
}

#[test]
fn many_pre_tokenizers() {
    let digits = json!({"type": "Digits", "individual_digits": true});
    let many = json!({"type": "Sequence", "pretokenizers": vec![digits; 10_000]});
    refused(
        with("pre_tokenizer", many),
        Status::Unsupported,
        "pre_tokenizer",
    );
}

#[test]
fn patterns_that_look_at_everything_again() {
    let split = |pattern: String| {
        let pattern = json!({"Regex": pattern});
        let split = json!({"type": "Split", "pattern": pattern, "behavior": "Isolated"});
        with("pre_tokenizer", split)
    };
    // Each letter could begin a match that ends at the end of the text. A table follows the first
    // pattern, trying the others.
    for pattern in ["a*b", "a++b", "(?=a*b)a", "(a|aa)+(?=b)"] {
        let tokenizer = split(pattern.into()).unwrap();
        tokenize(&tokenizer, &"a".repeat(20)).unwrap();
        refused(
            tokenize(&tokenizer, &"a".repeat(60_000)),
            Status::InvalidArgument,
            "steps",
        );
    }
    // A table of many states with many threads each.
    let states = format!("(?:a|b)*a(?:a|b){{40}}{}", "[^x]?".repeat(2_000));
    if let Ok(tokenizer) = split(states) {
        // It is tried instead.
        let _ = tokenize(&tokenizer, &"ab".repeat(1_000));
    }
}

#[test]
fn an_interrupt_ends_a_text_and_a_template() {
    let tokenizer = tokenizer(&with_added(std::iter::empty())).unwrap();
    let asked = Arc::new(AtomicBool::new(true));
    let seen = asked.clone();
    let interrupt = Interrupt::new(move || seen.load(Ordering::Relaxed));
    let text = "a".repeat(1_000_000);
    let budget = Budget::for_text(text.len()).with_interrupt(interrupt.clone());
    let mut ids = vec![7];
    let options = EncodeOptions::default();
    let done = tokenizer.encode_within(&budget, &text, options, &mut ids);
    assert_eq!(done.unwrap_err().status, Status::Interrupted);
    assert_eq!(ids, [7]);
    let environment = Environment {
        interrupt,
        ..Environment::default()
    };
    let template = "{% for a in range(9000) %}{{ a }}{% endfor %}";
    let done = render(template, "{}", &environment);
    assert_eq!(done.unwrap_err().status, Status::Interrupted);
    asked.store(false, Ordering::Relaxed);
    render(template, "{}", &environment).unwrap();
}

#[test]
fn long_integers_keep_their_digits() {
    let document = r#"{"x": [12345678901234567890123, -98765432109876543210, 18446744073709551615],
        "1234567890123456789012": "1234567890123456789012\\", "y": 12345678901234567890.5}"#;
    let template = "{{ x|tojson }} {{ x[0] + 1 }} {{ -x[1] }} {{ [x[0]]|string }} {{ y }}";
    let rendered = render(template, document, &Environment::default()).unwrap();
    // As Python writes it.
    assert_eq!(
        rendered.text,
        "[12345678901234567890123, -98765432109876543210, 18446744073709551615] \
         12345678901234567890124 98765432109876543210 [12345678901234567890123] 1.2345678901234567e+19"
    );
}

#[test]
fn integers_beyond_128_bits_are_passed_on() {
    let number = "123456789".repeat(30);
    let document = format!(r#"{{"x": {{"n": {number}, "m": -{number}}}, "y": {number}}}"#);
    let template =
        "{{ x|tojson }} {{ y }} {{ y is integer }} {{ y == x.n }} {{ y == x.m }} {{ [y] }}";
    let rendered = render(template, &document, &Environment::default()).unwrap();
    let expected =
        format!(r#"{{"n": {number}, "m": -{number}}} {number} True True False [{number}]"#);
    assert_eq!(rendered.text, expected);
    // What would lose digits is an error.
    for template in ["{{ y + 1 }}", "{{ y < 3 }}", "{{ y * 1.0 }}", "{{ y() }}"] {
        let failed = render(template, &document, &Environment::default());
        assert_eq!(
            failed.unwrap_err().status,
            Status::TemplateFailed,
            "{template}"
        );
    }
}

#[test]
fn conversations_with_many_keys() {
    let keys = |n: usize| -> serde_json::Value {
        let entries = (0..n).map(|i| (format!("key_{i}"), json!(i)));
        entries.collect::<serde_json::Map<_, _>>().into()
    };
    let n = 80_000;
    let document = keys(n).to_string();
    let last = format!("{{{{ key_0 }}}} {{{{ key_{} }}}}", n - 1);
    let rendered = render(&last, &document, &Environment::default()).unwrap();
    assert_eq!(rendered.text, format!("0 {}", n - 1));
    // A look-up costs as much whether it is in a long list or a short one.
    let document = json!({ "x": keys(n) }).to_string();
    let template = format!(
        "{{% set ns = namespace(n=0) %}}{{% for i in range(50000) %}}{{% set ns.n = ns.n + x.key_{} + x['key_7'] + x.get('key_5') %}}{{% endfor %}}{{{{ ns.n }}}}",
        n - 1
    );
    let rendered = render(&template, &document, &Environment::default()).unwrap();
    assert_eq!(rendered.text, (50_000 * (n - 1 + 12)).to_string());
    let made = "{{ dict(x)|length }} {{ namespace(**x).key_79999 }}";
    let rendered = render(made, &document, &Environment::default()).unwrap();
    assert_eq!(rendered.text, format!("{n} {}", n - 1));
}

#[test]
fn markers_in_a_long_conversation() {
    let mut json = with_added(["<tool>".to_string(), "<|x|>".to_string()].into_iter());
    json["added_tokens"][1]["special"] = json!(true);
    let tokenizer = tokenizer(&json).unwrap();
    let mut stream = TokenStream::new(&["<tool>"], false).unwrap();
    let mut out = String::new();
    for _ in 0..10 {
        stream.push(&tokenizer, &[0, 1], &mut out).unwrap();
    }
    stream.push(&tokenizer, &[26, 0], &mut out).unwrap();
    assert_eq!((stream.stopped(), out.len()), (Some(0), 20));
}
