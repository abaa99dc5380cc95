//! The tokenizer on hamlet's vocabulary.

use emberlm::Status;
use emberlm::backend::{DeviceKind, LoadOptions};
use emberlm::engine::{Model, device};
use emberlm::format::{ModelFile, Value};
use emberlm::text::{DecodeOptions, EncodeOptions, TokenKind, Tokenizer};
use std::collections::HashMap;
use std::path::Path;

const PLAIN: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: false,
};
const SPECIAL: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: true,
};

fn model() -> ModelFile {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/hamlet-7m-Q4_K_M.gguf");
    ModelFile::open(&path).unwrap()
}

fn hamlet() -> Tokenizer {
    Tokenizer::from_file(&model()).unwrap()
}

fn encode(tokenizer: &Tokenizer, text: &str, options: EncodeOptions) -> Vec<u32> {
    let mut ids = Vec::new();
    tokenizer.encode(text, options, &mut ids).unwrap();
    ids
}

fn decode(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let options = DecodeOptions::default();
    tokenizer.decode(ids, options, &mut bytes).unwrap();
    bytes
}

#[test]
fn ids_of_the_reference() {
    let tokenizer = hamlet();
    let mut count = 0;
    let lines = crate::xz::text(include_bytes!("../data/hamlet_tokens.tsv.xz"));
    for line in lines.lines().skip(1) {
        let (hex, ids) = line.split_once('\t').unwrap();
        let byte = |i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        let text = String::from_utf8(bytes).unwrap();
        let want: Vec<u32> = ids
            .split_whitespace()
            .map(|id| id.parse().unwrap())
            .collect();
        // The reference recognizes control tokens in any text.
        assert_eq!(encode(&tokenizer, &text, SPECIAL), want, "{text:?}");
        assert_eq!(decode(&tokenizer, &want), text.as_bytes(), "{text:?}");
        count += 1;
    }
    assert!(count > 300);
}

#[test]
fn random_text_comes_back() {
    let tokenizer = hamlet();
    let mut state = 7u64;
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    for _ in 0..3000 {
        let mut text = String::new();
        for _ in 0..random(100) {
            let top = [0x80, 0x300, 0x1_0000, 0x11_0000][random(4) as usize];
            text.extend(char::from_u32(random(top) as u32));
        }
        let ids = encode(&tokenizer, &text, PLAIN);
        assert_eq!(decode(&tokenizer, &ids), text.as_bytes(), "{text:?}");
        assert!(
            ids.iter()
                .all(|id| tokenizer.kind(*id).unwrap() == TokenKind::Normal)
        );
    }
}

#[test]
fn control_tokens() {
    let tokenizer = hamlet();
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(0), Some(1)));
    assert_eq!(tokenizer.n_vocab(), 1424);
    let ends: Vec<u32> = (0..2000).filter(|id| tokenizer.is_end(*id)).collect();
    assert_eq!(ends, [1, 5]);
    let chat = "<|user|>\nHi<|end|>\n<|assistant|>\n";
    let ids = encode(&tokenizer, chat, SPECIAL);
    assert_eq!(
        ids.iter().filter(|id| **id < 6).collect::<Vec<_>>(),
        [&3, &5, &4]
    );
    let forged = encode(&tokenizer, chat, PLAIN);
    assert!(forged.iter().all(|id| *id >= 6));
    assert_eq!(decode(&tokenizer, &forged), chat.as_bytes());

    let both = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    assert_eq!(encode(&tokenizer, "", both), [0]);
    assert_eq!(encode(&tokenizer, chat, both)[1..], ids);
    assert_eq!(tokenizer.token_bytes(5).unwrap(), b"<|end|>");
    assert_eq!(tokenizer.kind(5).unwrap(), TokenKind::Control);
    let mut text = Vec::new();
    let skip = DecodeOptions {
        skip_special: true,
        continued: false,
    };
    tokenizer.decode(&ids, skip, &mut text).unwrap();
    assert_eq!(text, b"\nHi\n\n");
}

#[test]
fn unknown_ids_change_nothing() {
    let tokenizer = hamlet();
    let mut out = b"kept".to_vec();
    for id in [1424, u32::MAX] {
        let error = tokenizer.decode(&[20, id], DecodeOptions::default(), &mut out);
        assert_eq!(error.unwrap_err().status, Status::InvalidToken);
        assert_eq!(out, b"kept");
        let error = tokenizer.token_bytes(id).unwrap_err();
        assert!(error.message.contains(&id.to_string()), "{error}");
        assert!(tokenizer.kind(id).is_err() && !tokenizer.is_end(id));
    }
}

#[test]
fn a_megabyte_without_a_cut() {
    let tokenizer = hamlet();
    for unit in ["a", "the", "zq", "é", "!", " "] {
        let text = unit.repeat((1 << 20) / unit.len());
        let ids = encode(&tokenizer, &text, PLAIN);
        assert_eq!(decode(&tokenizer, &ids), text.as_bytes());
    }
}

#[test]
fn threads_share_a_tokenizer() {
    let tokenizer = hamlet();
    let text = "The miller's daughter walked to the village well. ".repeat(20);
    let want = encode(&hamlet(), &text, PLAIN);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(encode(&tokenizer, &text, PLAIN), want));
        }
    });
}

#[test]
fn every_known_pre_tokenizer_compiles_and_keeps_the_text() {
    let names = "default gpt-2 mpt olmo smollm starcoder refact command-r falcon llama-bpe dbrx glm4 jais-2 \
        minicpm5 qwen2 stablelm2 hunyuan qwen35 gpt-4o llama4 tekken kimi-k2 deepseek-llm deepseek-coder \
        deepseek-v3 bloom viking bailingmoe seed-coder exaone-moe spark2_5 ufakzeka granite-embed-multi-97m roberta-bpe";
    let text = "Don't 'ſ  a\u{3000}\r\n\n12345 ½м中文 Grüße!!/\n XYz नमस्ते 🦙 (end.)  ";
    for name in names.split_whitespace() {
        let mut metadata = model().metadata;
        let key = "tokenizer.ggml.pre".to_string();
        metadata.insert(key, Value::String(name.to_string()));
        let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
        let ids = encode(&tokenizer, text, PLAIN);
        assert_eq!(decode(&tokenizer, &ids), text.as_bytes(), "{name}");
    }
}

/// Expected: Hugging Face's tokenizers 0.23 with these merges, `byte_fallback` and spaces spelled.
#[test]
fn vocabularies_of_characters_are_known_by_their_pre_tokenizers() {
    let mut tokens: Vec<String> = ["<unk>", "<bos>", "<eos>"].map(String::from).into();
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    let words = ["▁", "a", "b", "n", "\n", "ab", "▁a", "▁ab", "\n\n", "na"];
    tokens.extend(words.map(String::from));
    let mut kinds = vec![6i64; tokens.len()];
    kinds[0] = 2;
    kinds[1..3].fill(3);
    kinds[259..].fill(1);
    let merges = ["a b", "▁ a", "▁ ab", "\n \n", "n a"].map(String::from);
    for (model, pre, bos) in [
        ("gpt2", "granite-embed-multi-311m", false),
        ("gpt2", "sarvam-moe", false),
        ("gemma4", "gemma4", true),
    ] {
        let metadata = HashMap::from([
            ("tokenizer.ggml.model", model.to_owned().into()),
            ("tokenizer.ggml.pre", pre.to_owned().into()),
            ("tokenizer.ggml.tokens", tokens.clone().into()),
            ("tokenizer.ggml.token_type", kinds.clone().into()),
            ("tokenizer.ggml.merges", merges.to_vec().into()),
            ("tokenizer.ggml.unknown_token_id", 0u32.into()),
            ("tokenizer.ggml.bos_token_id", 1u32.into()),
            ("tokenizer.ggml.eos_token_id", 2u32.into()),
        ]);
        let metadata: HashMap<String, Value> = metadata
            .into_iter()
            .map(|(key, value): (&str, Value)| (key.to_owned(), value))
            .collect();
        let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
        assert_eq!(tokenizer.adds_bos(), bos, "{pre}");
        let (first, second) = ("ab ab  na\n\n\nbéa", "  \n a\r\nab");
        for (text, expected) in [
            (
                first,
                &[264, 266, 259, 259, 268, 267, 263, 261, 198, 172, 260][..],
            ),
            (second, &[259, 259, 263, 265, 16, 263, 264]),
        ] {
            let ids = encode(&tokenizer, text, PLAIN);
            assert_eq!(ids, expected, "{pre}");
            assert_eq!(decode(&tokenizer, &ids), text.as_bytes(), "{pre}");
        }
    }
}

/// llama.cpp has these tokens (release 0.3.36 of its Python package).
#[test]
fn plamo_cuts_from_the_end() {
    let mut tokens: Vec<String> = ["unk", "bos", "eos", "pad", "op"]
        .map(|name| format!("<|plamo:{name}|>"))
        .into();
    let mut kinds = vec![3i64; 5];
    kinds[0] = 2;
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    kinds.resize(tokens.len(), 6);
    let mut scores = vec![0f32; tokens.len()];
    for (token, score) in [
        ("a", -2.0),
        ("b", -2.0),
        ("ab", -4.0),
        ("bc", -1.0),
        ("日本", -3.0),
        ("本", -9.0),
        ("[PAD1]", -1000.0),
    ] {
        tokens.push(token.into());
        scores.push(score);
        kinds.push(if token.starts_with('[') { 5 } else { 1 });
    }
    let file = |tokens: &[String]| -> HashMap<String, Value> {
        HashMap::from([
            (
                "tokenizer.ggml.model".to_owned(),
                "plamo2".to_owned().into(),
            ),
            ("tokenizer.ggml.tokens".to_owned(), tokens.to_vec().into()),
            ("tokenizer.ggml.token_type".to_owned(), kinds.clone().into()),
            ("tokenizer.ggml.scores".to_owned(), scores.clone().into()),
            ("tokenizer.ggml.eot_token_id".to_owned(), 4u32.into()),
        ])
    };
    let tokenizer = Tokenizer::from_metadata(&file(&tokens)).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)));
    assert!(!tokenizer.adds_bos());
    // "ab" is as likely as "a" and "b", but "a" and "bc" are likelier than "ab" and a byte.
    for (text, expected) in [
        ("ab", &[263][..]),
        ("abc", &[261, 264]),
        ("日本a é", &[265, 261, 37, 200, 174]),
        ("\u{feff}ab", &[263]),
        ("", &[]),
    ] {
        let ids = encode(&tokenizer, text, PLAIN);
        assert_eq!(ids, expected, "{text:?}");
        let text = text.trim_start_matches('\u{feff}');
        assert_eq!(decode(&tokenizer, &ids), text.as_bytes());
    }
    // Text alone makes no control tokens, and none that files are filled up with.
    for text in ["<|plamo:op|>", "[PAD1]"] {
        let ids = encode(&tokenizer, text, PLAIN);
        assert!(ids.len() > 1 && !ids.contains(&4), "{ids:?}");
        assert_eq!(decode(&tokenizer, &ids), text.as_bytes());
    }
    tokens[5 + 0x41] = "<0x42>".into();
    let e = Tokenizer::from_metadata(&file(&tokens)).err().unwrap();
    assert_eq!(e.status, Status::FileCorrupt, "{e}");
    assert!(e.message.contains("<0x41>"), "{e}");
}

/// Expected: Hugging Face's tokenizers, with the tokenizer that the keys of a file say here.
#[test]
fn words_of_characters_are_those_of_their_own_tokenizer() {
    let lines = crate::xz::text(include_bytes!("../data/tokenizers.jsonl.xz"));
    let lines = lines.split('\n').filter(|line| !line.is_empty());
    let mut lines = lines.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let line = lines.find(|line| line["name"] == "whitespace").unwrap();
    let model = &line["tokenizer"]["model"];
    let mut tokens: Vec<(u64, String)> = model["vocab"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(token, id)| (id.as_u64().unwrap(), token.clone()))
        .collect();
    tokens.sort();
    let tokens: Vec<String> = tokens.into_iter().map(|(_, token)| token).collect();
    let merge = |pair: &serde_json::Value| {
        let [left, right] = [0, 1].map(|i| pair[i].as_str().unwrap().to_owned());
        format!("{left} {right}")
    };
    let merges: Vec<String> = model["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(merge)
        .collect();
    let mut kinds = vec![1i64; tokens.len()];
    kinds[0] = 2;
    let metadata: HashMap<String, Value> = [
        ("tokenizer.ggml.model", "gpt2".to_owned().into()),
        ("tokenizer.ggml.pre", "whitespace".to_owned().into()),
        ("tokenizer.ggml.tokens", tokens.into()),
        ("tokenizer.ggml.token_type", kinds.into()),
        ("tokenizer.ggml.merges", merges.into()),
        ("tokenizer.ggml.unknown_token_id", 0u32.into()),
        ("tokenizer.ggml.normalizer.lowercase", true.into()),
    ]
    .into_iter()
    .map(|(key, value): (&str, Value)| (key.to_owned(), value))
    .collect();
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    let mut compared = 0;
    for case in line["cases"].as_array().unwrap() {
        let text = case[0].as_str().unwrap();
        let expected = case[1].as_array().unwrap();
        let expected: Vec<u32> = expected
            .iter()
            .map(|id| id.as_u64().unwrap() as u32)
            .collect();
        // Tokens that were added behind the trained ones.
        if expected
            .iter()
            .any(|id| *id as usize >= tokenizer.n_vocab())
        {
            continue;
        }
        assert_eq!(encode(&tokenizer, text, PLAIN), expected, "{text:?}");
        compared += 1;
    }
    assert!(compared > 10);
    // Without the key, capitals stay what they are: none is a token here.
    let mut cased = metadata;
    cased.remove("tokenizer.ggml.normalizer.lowercase");
    let cased = Tokenizer::from_metadata(&cased).unwrap();
    let (large, small) = ("WELL", "well");
    assert_eq!(
        encode(&cased, small, PLAIN),
        encode(&tokenizer, large, PLAIN)
    );
    assert_eq!(encode(&cased, large, PLAIN), [0; 4]);
}

#[test]
fn a_model_without_a_tokenizer_says_that_it_is_unsupported() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("tests/data/families/llama_plain.gguf");
    let is_cpu = |i: &usize| device::info(*i).unwrap().kind == DeviceKind::Cpu;
    let cpu = (0..device::count().unwrap()).find(is_cpu).unwrap();
    let model = Model::load(&path, cpu, &LoadOptions::default(), &mut |_| Ok(())).unwrap();
    let error = model.tokenizer().err().unwrap();
    assert_eq!(error.status, Status::Unsupported);
    assert!(error.message.contains("tokenizer.ggml"), "{error}");
}
