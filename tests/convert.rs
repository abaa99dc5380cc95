//! `ember-convert`: what it writes is what was loaded, and what it refuses.

mod common;

use common::folder::{Folder, Stored, family_path};
use common::{TempDir, repository_file};
use emberlm::backend::{KvType, LoadOptions};
use emberlm::engine::{Adapter, Model, Session, SessionOptions, WantedAdapter, device};
use emberlm::format::ModelFile;
use emberlm::model::Network;
use emberlm::quant::TensorType;
use emberlm::text::{EncodeOptions, Tokenizer};
use serde_json::{Value as Json, json};
use std::path::Path;
use std::process::{Command, Output};

fn run(args: &[&Path]) -> Output {
    let program = env!("CARGO_BIN_EXE_ember-convert");
    Command::new(program).args(args).output().unwrap()
}

fn convert(input: &Path, output: &Path, options: &[&str]) {
    let options: Vec<&Path> = options.iter().map(Path::new).collect();
    let ran = run(&[&[input, output], &options[..]].concat());
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
}

/// What it says when it refuses to write.
fn refused(input: &Path, output: &Path, options: &[&str]) -> String {
    let options: Vec<&Path> = options.iter().map(Path::new).collect();
    let ran = run(&[&[input, output], &options[..]].concat());
    assert_eq!(ran.status.code(), Some(1));
    String::from_utf8(ran.stderr).unwrap()
}

fn hamlet() -> std::path::PathBuf {
    repository_file("models/hamlet-7m-Q4_K_M.gguf")
}

/// The logits behind some tokens, with an adapter that is added while it runs or was merged.
fn adapted_logits(model: &Path, adapter: Option<(&Path, f32)>) -> Vec<f32> {
    let cpu = (0..device::count().unwrap()).find(|&i| !device::info(i).unwrap().isa.is_empty());
    let options = LoadOptions {
        threads: 2,
        ..Default::default()
    };
    let model = Model::load(model, cpu.unwrap(), &options, &mut |_| Ok(())).unwrap();
    let model = std::sync::Arc::new(model);
    let options = SessionOptions {
        context: 24,
        kv_type: KvType::F32,
        ..Default::default()
    };
    let mut session = Session::create(model.clone(), &options).unwrap();
    if let Some((path, scale)) = adapter {
        let adapter = Adapter::load(model.clone(), path).unwrap();
        let wanted = WantedAdapter {
            adapter: &adapter,
            scale,
        };
        session.set_adapters(&[wanted], false).unwrap();
    }
    session.prefill(&[3, 14, 15, 9, 26, 5, 35, 8]).unwrap();
    let mut logits = vec![0.0; model.details().n_vocab];
    session.logits(&mut logits).unwrap();
    logits
}

#[test]
fn a_merged_model_answers_as_with_the_adapter() {
    let dir = TempDir::new("convert-merge");
    let output = dir.path().join("out.gguf");
    for (family, name, factor) in [
        ("mistral", "mistral", 1.0),
        ("mistral", "mistral_small/adapter.gguf", -0.5),
        ("qwen2", "qwen2", 1.0),
        ("phi3", "phi3", 1.0),
        ("gpt2", "gpt2", 1.0),
        ("gpt_neox", "gpt_neox", 2.0),
        ("falcon_new", "falcon_new", 1.0),
        ("mixtral", "mixtral", 1.0),
        ("deepseek_v3", "deepseek_v3", 1.0),
    ] {
        let adapter = repository_file(&format!("tests/data/adapters/{name}"));
        for input in [family_path(family).join("model.gguf"), family_path(family)] {
            let merge = format!("{}={factor}", adapter.display());
            let options = ["--merge", &merge, "--type", "f32", "--force"];
            convert(&input, &output, &options);
            let beside = adapted_logits(&input, Some((&adapter, factor)));
            let merged = adapted_logits(&output, None);
            let pairs = beside.iter().zip(&merged);
            let largest = pairs.fold(0f32, |most, (a, b)| most.max((a - b).abs()));
            assert!(largest < 1e-3, "{name}: {largest}");
            assert!(beside != adapted_logits(&input, None), "{name}");
        }
    }
    // Quantized matrices stay quantized, and stay close.
    let adapter = repository_file("tests/data/adapters/hamlet.gguf");
    convert(
        &hamlet(),
        &output,
        &["--merge", adapter.to_str().unwrap(), "--force"],
    );
    let (before, after) = (
        ModelFile::open(&hamlet()).unwrap(),
        ModelFile::open(&output).unwrap(),
    );
    let name = "blk.0.attn_q.weight";
    let (before, after) = (before.tensor(name).unwrap(), after.tensor(name).unwrap());
    assert_eq!((before.ty, &before.dims), (after.ty, &after.dims));
    assert!(before.bytes() != after.bytes());
    let beside = adapted_logits(&hamlet(), Some((&adapter, 1.0)));
    let merged = adapted_logits(&output, None);
    let plain = adapted_logits(&hamlet(), None);
    let distance = |a: &[f32], b: &[f32]| {
        let squares = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b));
        squares.sum::<f32>().sqrt()
    };
    let (error, change) = (distance(&beside, &merged), distance(&beside, &plain));
    assert!(error < change / 5.0, "{error} of {change}");
}

#[test]
fn what_cannot_be_merged_is_refused() {
    let dir = TempDir::new("convert-merge-bad");
    let output = dir.path().join("out.gguf");
    let path = |name: &str| repository_file(&format!("tests/data/adapters/{name}"));
    let mistral = family_path("mistral");
    for (adapter, part) in [
        (path("qwen2"), "make"),
        (path("hamlet.gguf"), "blk."),
        (path("none"), "none"),
        (hamlet(), "general.type"),
    ] {
        let message = refused(&mistral, &output, &["--merge", adapter.to_str().unwrap()]);
        assert!(message.contains(part), "{message}");
        assert!(!output.exists());
    }
    let program = env!("CARGO_BIN_EXE_ember-convert");
    let ran = Command::new(program)
        .args(["a", "b.gguf", "--merge", "c=d"])
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(2));
}

#[test]
fn a_file_that_is_kept_is_the_same() {
    let dir = TempDir::new("convert-keep");
    let output = dir.path().join("out.gguf");
    convert(&hamlet(), &output, &[]);
    let (from, to) = (
        ModelFile::open(&hamlet()).unwrap(),
        ModelFile::open(&output).unwrap(),
    );
    assert_eq!(from.metadata, to.metadata);
    assert_eq!(from.tensors.len(), to.tensors.len());
    for (name, tensor) in &from.tensors {
        let written = to.tensor(name).unwrap();
        assert_eq!(
            (tensor.ty, &tensor.dims),
            (written.ty, &written.dims),
            "{name}"
        );
        assert!(tensor.bytes() == written.bytes(), "{name}");
    }
    // Nothing but the file is left.
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn the_mix_of_q4_k_m_is_that_of_model_cards() {
    let dir = TempDir::new("convert-mix");
    let (wide, mixed) = (dir.path().join("wide.gguf"), dir.path().join("mixed.gguf"));
    convert(&hamlet(), &wide, &["--type", "f16"]);
    convert(&wide, &mixed, &["--type", "q4_k_m", "--threads", "3"]);
    let (from, to) = (
        ModelFile::open(&hamlet()).unwrap(),
        ModelFile::open(&mixed).unwrap(),
    );
    for (name, tensor) in &from.tensors {
        assert_eq!(tensor.ty, to.tensor(name).unwrap().ty, "{name}");
    }
    assert_eq!(to.u32("general.file_type").unwrap(), 15);
    let wide = ModelFile::open(&wide).unwrap();
    assert_eq!(wide.u32("general.file_type").unwrap(), 1);
    assert_eq!(
        wide.tensor("blk.0.attn_q.weight").unwrap().ty,
        TensorType::F16
    );
    assert_eq!(
        wide.tensor("blk.0.attn_norm.weight").unwrap().ty,
        TensorType::F32
    );
}

/// A file has the head that guesses further tokens, as its folder does.
#[test]
fn heads_of_folders_are_written() {
    for (name, own) in [
        ("qwen3_5", false),
        ("qwen3_next", false),
        ("glm4_moe", true),
        ("deepseek_v3", false),
        ("mimo", false),
    ] {
        let dir = TempDir::new("convert-heads");
        let folder = common::heads::folder(name, own);
        folder.write(&dir);
        let output = dir.path().join("out.gguf");
        convert(dir.path(), &output, &[]);
        let (_, of_folder) = common::heads::networks(folder.ready());
        let (network, of_file) = common::heads::networks(ModelFile::open(&output).unwrap());
        let n_layers = folder.config["num_hidden_layers"].as_u64().unwrap() as usize;
        assert_eq!(network.blocks.len(), n_layers, "{name}");
        let pairs: Vec<_> = of_folder.tensors().zip(of_file.tensors()).collect();
        assert!(pairs.len() > 12, "{name}");
        assert_eq!(
            of_folder.tensors().count(),
            of_file.tensors().count(),
            "{name}"
        );
        for (from, to) in pairs {
            assert_eq!(
                (from.ty, &from.dims),
                (to.ty, &to.dims),
                "{name}: {}",
                to.name
            );
            assert!(from.bytes() == to.bytes(), "{name}: {}", to.name);
        }
    }
}

/// What is a head and no model is not written.
#[test]
fn heads_of_eagle_are_refused() {
    let dir = TempDir::new("convert-eagle");
    common::fused::published(common::fused::Form::SpecForge).write(&dir);
    let message = refused(dir.path(), &dir.path().join("out.gguf"), &[]);
    assert!(message.contains("EAGLE-3"), "{message}");
}

#[test]
fn folders_become_files() {
    let dir = TempDir::new("convert-folders");
    for name in ["gemma3", "gpt_oss", "mixtral", "gpt2", "phi3"] {
        let output = dir.path().join(format!("{name}.gguf"));
        convert(&family_path(name), &output, &[]);
        let expected = ModelFile::open(&family_path(name).join("model.gguf")).unwrap();
        let written = ModelFile::open(&output).unwrap();
        Network::from_file(&written).unwrap();
        assert_eq!(written.str("general.name").unwrap(), name);
        assert_eq!(written.str("tokenizer.ggml.model").unwrap(), "no_vocab");
        for (key, tensor) in &expected.tensors {
            assert_eq!(
                written.tensor(key).unwrap().dims,
                tensor.dims,
                "{name} {key}"
            );
        }
        assert_eq!(written.tensors.len(), expected.tensors.len());
    }
}

/// A tokenizer of a byte-level vocabulary, as the tokenizers library saves it.
fn byte_level(pattern: &str) -> Json {
    let vocab: serde_json::Map<String, Json> = ["a", "b", "ab", "Ġ", "Ġa"]
        .iter()
        .enumerate()
        .map(|(id, text)| ((*text).to_owned(), id.into()))
        .collect();
    json!({
        "added_tokens": [
            {"id": 5, "content": "<|end|>", "special": true},
            {"id": 6, "content": "tool", "special": false},
        ],
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
        ]},
        "post_processor": {"type": "TemplateProcessing", "single": [
            {"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": [["a", "b"], ["Ġ", "a"]], "ignore_merges": true},
    })
}

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Converts a folder with this tokenizer.
fn with_tokenizer(dir: &TempDir, tokenizer: &Json) -> std::path::PathBuf {
    Folder::family("qwen2").write(dir);
    dir.file("tokenizer.json", tokenizer.to_string().as_bytes());
    dir.path().join("out.gguf")
}

#[test]
fn byte_level_tokenizers_become_metadata() {
    let dir = TempDir::new("convert-bytes");
    let output = with_tokenizer(&dir, &byte_level(LLAMA3));
    let config = json!({"bos_token": "<|end|>", "eos_token": {"content": "<|end|>"}, "chat_template": "hello"});
    dir.file("tokenizer_config.json", config.to_string().as_bytes());
    convert(dir.path(), &output, &[]);
    let file = ModelFile::open(&output).unwrap();
    assert_eq!(file.str("tokenizer.ggml.model").unwrap(), "gpt2");
    assert_eq!(file.str("tokenizer.ggml.pre").unwrap(), "llama-bpe");
    assert_eq!(file.str("tokenizer.chat_template").unwrap(), "hello");
    let tokens = file.strings("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens.len(), 96);
    let first: Vec<&str> = tokens.iter().take(8).collect();
    assert_eq!(
        first,
        ["a", "b", "ab", "Ġ", "Ġa", "<|end|>", "tool", "[PAD7]"]
    );
    let kinds: Vec<i64> = file.get("tokenizer.ggml.token_type").unwrap();
    assert_eq!(kinds[..8], [1, 1, 1, 1, 1, 3, 4, 5]);
    let merges: Vec<&str> = file
        .strings("tokenizer.ggml.merges")
        .unwrap()
        .iter()
        .collect();
    assert_eq!(merges, ["a b", "Ġ a"]);
    for key in ["bos_token_id", "eos_token_id"] {
        assert_eq!(file.u32(&format!("tokenizer.ggml.{key}")).unwrap(), 5);
    }
    assert!(file.bool("tokenizer.ggml.add_bos_token").unwrap());
    assert!(!file.bool("tokenizer.ggml.add_eos_token").unwrap());
}

#[test]
fn tokenizers_with_bytes_to_fall_back_to_become_scores() {
    let dir = TempDir::new("convert-spm");
    let tokenizer = json!({
        "added_tokens": [{"id": 0, "content": "<unk>", "special": true}, {"id": 1, "content": "<s>", "special": true}],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": true,
            "vocab": {"<unk>": 0, "<s>": 1, "<0x41>": 2, "▁a": 3, "▁": 4, "a": 5, "▁aa": 6},
            "merges": ["▁ a", "▁a a"]},
    });
    let output = with_tokenizer(&dir, &tokenizer);
    convert(dir.path(), &output, &[]);
    let file = ModelFile::open(&output).unwrap();
    assert_eq!(file.str("tokenizer.ggml.model").unwrap(), "llama");
    assert!(file.bool("tokenizer.ggml.add_space_prefix").unwrap());
    let kinds: Vec<i64> = file.get("tokenizer.ggml.token_type").unwrap();
    assert_eq!(kinds[..8], [2, 3, 6, 1, 1, 1, 1, 5]);
    let scores: &[f32] = file.get("tokenizer.ggml.scores").unwrap();
    assert_eq!((scores[3], scores[6]), (0.0, -1.0));
    assert!(scores[4] < -1e5 && scores[5] < -1e5);
}

#[test]
fn tokenizers_without_a_name_in_gguf_are_refused() {
    let dir = TempDir::new("convert-unknown");
    let change = |change: &dyn Fn(&mut Json)| {
        let mut tokenizer = byte_level(LLAMA3);
        change(&mut tokenizer);
        let output = with_tokenizer(&dir, &tokenizer);
        let said = refused(dir.path(), &output, &[]);
        assert!(!output.exists());
        said
    };
    let said = change(&|t| {
        t["pre_tokenizer"]["pretokenizers"][0]["pattern"] = json!({"Regex": "\\p{L}+x"})
    });
    assert!(
        said.contains("tokenizer.json") && said.contains("\\\\p{L}+x"),
        "{said}"
    );
    let said = change(&|t| t["normalizer"] = json!({"type": "Lowercase"}));
    assert!(said.contains("Lowercase"), "{said}");
    let said = change(&|t| t["model"]["type"] = json!("WordLevel"));
    assert!(said.contains("WordLevel"), "{said}");
    let said = change(&|t| t["model"]["merges"] = json!([["a", "c"]]));
    assert!(said.contains("merge 0"), "{said}");
    let said = change(&|t| t["added_tokens"][0]["id"] = json!(96));
    assert!(said.contains("96"), "{said}");
}

#[test]
fn the_input_is_never_written_over() {
    let dir = TempDir::new("convert-refuse");
    let input = dir.file("in.gguf", &std::fs::read(hamlet()).unwrap());
    let other = dir.file("other.gguf", b"precious");
    assert!(refused(&input, &input, &["--force"]).contains("is the input"));
    assert!(refused(&input, &other, &[]).contains("--force"));
    assert_eq!(std::fs::read(&other).unwrap(), b"precious");
    assert!(refused(&input, &dir.path().join("out.bin"), &[]).contains(".gguf"));
    let part = dir.path().join("out-00001-of-00002.gguf");
    assert!(refused(&input, &part, &[]).contains("part"));
    let nowhere = dir.path().join("none").join("out.gguf");
    assert!(refused(&input, &nowhere, &[]).contains("cannot write"));
    assert!(refused(&nowhere, &dir.path().join("out.gguf"), &[]).contains("cannot open"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    convert(&input, &other, &["--force", "--type", "q8_0"]);
    assert!(ModelFile::open(&other).is_ok());
}

#[test]
fn wrong_command_lines() {
    for args in [
        &["a"][..],
        &["a", "b", "c"],
        &["--type", "q9", "a", "b.gguf"],
        &["--threads", "0", "a", "b.gguf"],
        &["--what"],
    ] {
        let args: Vec<&Path> = args.iter().map(Path::new).collect();
        assert_eq!(run(&args).status.code(), Some(2), "{args:?}");
    }
    let help = run(&[Path::new("--help")]);
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("--type"));
}

/// The tokenizer of this name in `data/tokenizers.jsonl.xz`, and the texts there that have no added token in them.
fn small_tokenizer(name: &str) -> (Json, Vec<String>) {
    let lines = common::xz::text(include_bytes!("data/tokenizers.jsonl.xz"));
    let mut cases = lines
        .lines()
        .map(|line| serde_json::from_str::<Json>(line).unwrap());
    let case = cases.find(|case| case["name"] == name).unwrap();
    let added = ["<s>", "</s>", "<|end|>", "<mask>", "tag", "<tool>"];
    let texts = case["cases"].as_array().unwrap().iter();
    let texts = texts.map(|triple| triple[0].as_str().unwrap().to_owned());
    let texts = texts.filter(|text| !added.iter().any(|token| text.contains(token)));
    (case["tokenizer"].clone(), texts.collect())
}

/// Writes a model with that tokenizer to a folder, and says where its GGUF file is to be.
fn wide_folder(dir: &TempDir, tokenizer: &Json, config: &Json) -> std::path::PathBuf {
    const VOCABULARY: usize = 320;
    let mut folder = Folder::family("qwen2");
    let width = folder.config["hidden_size"].as_u64().unwrap() as usize;
    let embedding = Stored::f32(&[VOCABULARY, width], &vec![0.5; VOCABULARY * width]);
    folder.set("vocab_size", json!(VOCABULARY));
    let name = "model.embed_tokens.weight";
    folder.tensors.insert(name.into(), embedding);
    folder.write(dir);
    dir.file("tokenizer.json", tokenizer.to_string().as_bytes());
    dir.file("tokenizer_config.json", config.to_string().as_bytes());
    dir.path().join("out.gguf")
}

/// Converts a model with that tokenizer; both ways of it must cut these texts alike.
fn cuts_alike(tokenizer: &Json, config: &Json, texts: &[String]) -> ModelFile {
    let dir = TempDir::new("convert-pieces");
    let output = wide_folder(&dir, tokenizer, config);
    convert(dir.path(), &output, &[]);
    let file = ModelFile::open(&output).unwrap();
    let ours = Tokenizer::from_file(&file).unwrap();
    let theirs = Tokenizer::from_file(&ModelFile::open(dir.path()).unwrap()).unwrap();
    let options = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    for text in texts {
        let ids = |tokenizer: &Tokenizer| {
            let mut ids = Vec::new();
            tokenizer.encode(text, options, &mut ids).unwrap();
            ids
        };
        assert_eq!(ids(&ours), ids(&theirs), "{text:?}");
    }
    file
}

#[test]
fn wordpieces_become_metadata() {
    let (mut tokenizer, texts) = small_tokenizer("bert");
    assert!(texts.len() > 10);
    let config = json!({"cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"});
    for lowercase in [true, false] {
        tokenizer["normalizer"]["lowercase"] = json!(lowercase);
        let file = cuts_alike(&tokenizer, &config, &texts);
        assert_eq!(file.str("tokenizer.ggml.model").unwrap(), "bert");
        let tokens = file.strings("tokenizer.ggml.tokens").unwrap();
        assert!(
            tokens.iter().any(|t| t == "\u{2581}walk") || tokens.iter().any(|t| t == "\u{2581}w")
        );
        assert!(!tokens.iter().any(|t| t.starts_with("##") && t.len() > 2));
        for key in ["cls", "seperator", "mask", "unknown"] {
            file.u32(&format!("tokenizer.ggml.{key}_token_id")).unwrap();
        }
    }
    tokenizer["model"]["continuing_subword_prefix"] = json!("@@");
    let dir = TempDir::new("convert-pieces-bad");
    let output = wide_folder(&dir, &tokenizer, &config);
    let said = refused(dir.path(), &output, &[]);
    assert!(said.contains("continuing_subword_prefix"), "{said}");
}

#[test]
fn unigrams_become_metadata() {
    let (mut tokenizer, texts) = small_tokenizer("unigram");
    assert!(texts.len() > 10);
    let runs = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "});
    // Without texts whose other white space only a map of characters would make spaces, and those that begin with
    // what spells a space: GGUF files mean one more before it.
    let plain = |text: &&String| {
        !text.contains(['\t', '\n', '\u{a0}', '\u{3000}', '\u{2581}']) && **text == text.trim()
    };
    let texts: Vec<String> = texts.iter().filter(plain).cloned().collect();
    assert!(texts.len() > 5);
    for normalizer in [Json::Null, runs] {
        tokenizer["normalizer"] = normalizer;
        let file = cuts_alike(&tokenizer, &json!({}), &texts);
        assert_eq!(file.str("tokenizer.ggml.model").unwrap(), "t5");
        assert!(file.bool("tokenizer.ggml.add_bos_token").unwrap());
        assert!(file.bool("tokenizer.ggml.add_eos_token").unwrap());
    }
    tokenizer["normalizer"] = json!({"type": "NFKC"});
    let dir = TempDir::new("convert-unigram-bad");
    let output = wide_folder(&dir, &tokenizer, &json!({}));
    let said = refused(dir.path(), &output, &[]);
    assert!(said.contains("NFKC"), "{said}");
}
