//! Vectors and scores of texts on the CPU: against Hugging Face transformers, by the tiny models of
//! `data/embeddings/make.py`, and against themselves however the texts are put together.

use crate::common::edit::{Edited, EditedTensor};
pub use crate::common::embeddings::{
    DECODERS, DOCUMENTS, ENCODERS, Expected, ON_CPUS, QUERY, Text, bits, embedder, paths, pooled,
    run, scores, vectors,
};
use crate::common::families::open;
use crate::common::folder::{Folder, Stored};
use crate::common::{TempDir, cpu, repository_file};
use emberlm::Status;
use emberlm::backend::LoadOptions;
use emberlm::engine::embedder::{Embedder, EmbedderOptions, Product};
use emberlm::engine::{Model, Session, SessionOptions, WantedAdapter};
use emberlm::format::{ModelFile, Value};
use emberlm::model::{Network, Pooling};
use std::path::Path;
use std::sync::Arc;

/// Transformers computes in single precision, too.
const TOLERANCE: f32 = 1e-3;

pub fn load(path: &Path, threads: usize) -> Arc<Model> {
    let options = LoadOptions {
        threads,
        ..LoadOptions::default()
    };
    let model = Model::load(path, cpu(), &options, &mut |_| Ok(()));
    Arc::new(model.unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}

pub fn check(what: &str, ours: &[f32], theirs: &[f32]) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    let differences = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs());
    let largest = differences.fold(0.0, f32::max);
    assert!(largest < TOLERANCE, "{what}: {largest}");
}

/// Whether embedders of a model with these adapters have the hidden states, the vectors and, if there are any, the scores that are
/// expected of all texts.
pub fn agrees(
    what: &str,
    model: &Arc<Model>,
    expected: &Expected,
    texts: &(Vec<u32>, Vec<usize>),
    adapters: &[WantedAdapter<'_>],
) {
    let run_with = |options: EmbedderOptions<'_>| {
        let options = EmbedderOptions {
            adapters,
            ..options
        };
        run(&mut embedder(model, &options), texts)
    };
    let of_all = |of: &dyn Fn(&Text) -> Vec<f32>| -> Vec<f32> {
        expected.texts.iter().flat_map(of).collect()
    };
    let ours = run_with(vectors(Pooling::None, false));
    check(what, &ours, &of_all(&|t| t.hidden.clone()));
    for pooling in [Pooling::Mean, Pooling::First, Pooling::Last] {
        let ours = run_with(vectors(pooling, false));
        let theirs = of_all(&|t| pooled(pooling, &t.hidden, expected.width));
        check(&format!("{what}, {pooling:?}"), &ours, &theirs);
    }
    if !expected.texts[0].scores.is_empty() {
        let theirs = of_all(&|t| t.scores.clone());
        check(&format!("{what}, scores"), &run_with(scores()), &theirs);
    }
}

#[test]
fn every_model_agrees_with_transformers() {
    for name in ENCODERS.into_iter().chain(ON_CPUS).chain(DECODERS) {
        let expected = Expected::read(name);
        let texts = expected.all();
        for path in paths(name) {
            let what = path.display().to_string();
            let model = load(&path, 2);
            agrees(&what, &model, &expected, &texts, &[]);
        }
    }
}

#[test]
fn neighbours_threads_and_batches_do_not_change_a_bit() {
    for name in [
        "bert_scores",
        "modernbert_scores",
        "embedding_gemma",
        "eurobert",
        "jina_v2",
        "nomic_moe",
        "t5",
        "gemma2",
    ] {
        let expected = Expected::read(name);
        let texts = expected.all();
        let path = &paths(name)[0];
        let options = vectors(Pooling::Mean, true);
        let reference = bits(&run(&mut embedder(&load(path, 1), &options), &texts));
        for threads in [2, 3] {
            let model = load(path, threads);
            for batch_tokens in [40, 48, 512] {
                let options = EmbedderOptions {
                    max_tokens: 40,
                    batch_tokens,
                    ..options.clone()
                };
                let mut embedder = embedder(&model, &options);
                let together = run(&mut embedder, &texts);
                assert_eq!(bits(&together), reference, "{name}, {batch_tokens}");
                let alone = expected.texts.iter().flat_map(|text| {
                    run(
                        &mut embedder,
                        &(text.tokens.clone(), vec![text.tokens.len()]),
                    )
                });
                let alone: Vec<f32> = alone.collect();
                assert_eq!(
                    bits(&alone),
                    reference,
                    "{name}, {batch_tokens}, one by one"
                );
            }
        }
    }
}

#[test]
fn embedders_of_one_model_work_at_once() {
    let expected = Expected::read("bert");
    let model = load(&paths("bert")[0], 2);
    let texts = expected.all();
    let reference = bits(&run(
        &mut embedder(&model, &EmbedderOptions::default()),
        &texts,
    ));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut embedder = embedder(&model, &EmbedderOptions::default());
                for _ in 0..20 {
                    assert_eq!(bits(&run(&mut embedder, &texts)), reference);
                }
            });
        }
    });
}

#[test]
fn vectors_are_normalized_after_they_are_cut() {
    let expected = Expected::read("bert");
    let model = load(&paths("bert")[0], 2);
    let texts = expected.all();
    let whole = run(
        &mut embedder(&model, &vectors(Pooling::Mean, false)),
        &texts,
    );
    let options = EmbedderOptions {
        dimension: 10,
        ..vectors(Pooling::Mean, true)
    };
    let cut = run(&mut embedder(&model, &options), &texts);
    for (whole, cut) in whole.chunks(expected.width).zip(cut.chunks(10)) {
        let length = whole[..10].iter().map(|x| x * x).sum::<f32>().sqrt();
        let theirs: Vec<f32> = whole[..10].iter().map(|x| x / length).collect();
        check("cut", cut, &theirs);
    }
}

#[test]
fn what_files_say_is_the_default() {
    for (name, product) in [
        ("bert", Product::Vectors(Pooling::Mean)),
        ("bert_scores", Product::Scores),
        ("qwen3", Product::Vectors(Pooling::Last)),
    ] {
        let model = load(&paths(name)[0], 1);
        let embedder = embedder(&model, &EmbedderOptions::default());
        assert_eq!(embedder.details().product, product, "{name}");
        let normalized = product != Product::Scores;
        assert_eq!(embedder.details().normalized, normalized, "{name}");
    }
}

#[test]
fn encoders_have_no_sessions() {
    for name in ENCODERS.into_iter().chain(ON_CPUS) {
        let model = load(&paths(name)[1], 1);
        let e = Session::create(model, &SessionOptions::default())
            .err()
            .unwrap();
        assert_eq!(e.status, Status::Unsupported, "{name}: {e}");
        assert!(e.message.contains("encoder"), "{name}: {e}");
    }
}

#[test]
fn bad_input_is_named() {
    let model = load(&paths("bert")[0], 1);
    let create =
        |options: EmbedderOptions<'_>| Embedder::create(model.clone(), options).err().unwrap();
    let e = create(EmbedderOptions {
        max_tokens: 65,
        ..EmbedderOptions::default()
    });
    assert!(e.message.contains("max_tokens is 65"), "{e}");
    let e = create(EmbedderOptions {
        dimension: 49,
        ..EmbedderOptions::default()
    });
    assert!(e.message.contains("dimension is 49"), "{e}");
    let e = create(EmbedderOptions {
        max_tokens: 20,
        batch_tokens: 19,
        ..EmbedderOptions::default()
    });
    assert!(e.message.contains("batch_tokens is 19"), "{e}");
    let e = create(scores());
    assert_eq!(e.status, Status::Unsupported, "{e}");

    let mut embedder = embedder(&model, &EmbedderOptions::default());
    let run = |embedder: &mut Embedder, tokens: &[u32], counts: &[usize]| {
        let texts = embedder.given(tokens, counts)?;
        embedder.run(&texts)
    };
    let e = run(&mut embedder, &[5, 6], &[2, 0]).unwrap_err();
    assert_eq!((e.status, e.index), (Status::NoInput, Some(1)), "{e}");
    let e = run(&mut embedder, &[5; 65], &[65]).unwrap_err();
    assert_eq!((e.status, e.index), (Status::ContextFull, Some(0)), "{e}");
    let e = run(&mut embedder, &[5, 6, 96], &[1, 2]).unwrap_err();
    assert_eq!((e.status, e.index), (Status::InvalidToken, Some(1)), "{e}");
    let e = run(&mut embedder, &[5, 6, 7], &[1, 1]).unwrap_err();
    assert_eq!(e.status, Status::InvalidArgument, "{e}");
    let e = embedder.pairs("a", &["b"]).err().unwrap();
    assert_eq!(e.status, Status::InvalidArgument, "{e}");
    embedder.interrupts().ask();
    let e = run(&mut embedder, &[5], &[1]).unwrap_err();
    assert_eq!(e.status, Status::Interrupted, "{e}");
    assert_eq!(run(&mut embedder, &[5], &[1]).unwrap().len(), 48);
    assert!(run(&mut embedder, &[], &[]).unwrap().is_empty());

    let recurrent = load(&repository_file("tests/data/families/lfm2"), 1);
    let e = Embedder::create(recurrent, EmbedderOptions::default())
        .err()
        .unwrap();
    assert_eq!(e.status, Status::Unsupported, "{e}");
    assert!(e.message.contains("a short convolution"), "{e}");
}

/// A trained model, of another publisher. `data/embeddings/make_minilm.py` says where it is.
#[test]
#[ignore = "set EMBERLM_MINILM to the folder of all-MiniLM-L6-v2"]
fn minilm_agrees_with_sentence_transformers() {
    let folder = std::env::var_os("EMBERLM_MINILM").expect("EMBERLM_MINILM is not set");
    let data = |name: &str| repository_file(&format!("tests/data/embeddings/{name}"));
    let texts = std::fs::read_to_string(data("minilm.txt")).unwrap();
    let texts: Vec<&str> = texts.lines().collect();
    let theirs = std::fs::read(data("minilm.bin")).unwrap();
    let theirs: Vec<f32> = theirs
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    let model = load(Path::new(&folder), 2);
    let mut embedder = embedder(&model, &EmbedderOptions::default());
    assert_eq!(embedder.details().max_tokens, 256);
    let tokens = embedder.tokenized(&texts).unwrap();
    let ours = embedder.run(&tokens).unwrap();
    assert_eq!((texts.len(), ours.len()), (50, theirs.len()));
    for ((a, b), text) in ours.chunks(384).zip(theirs.chunks(384)).zip(&texts) {
        let cosine: f32 = a.iter().zip(b).map(|(a, b)| a * b).sum();
        assert!(cosine > 0.9999, "{text}: {cosine}");
    }
}

/// Gate and up of a feed-forward part in a tensor each, as older files have them.
#[test]
fn a_gate_apart_makes_no_difference() {
    let expected = Expected::read("jina_v2");
    let mut edited = Edited::of(&ModelFile::open(&paths("jina_v2")[0]).unwrap());
    for layer in 0..2 {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let both = edited.tensors.remove(&name("ffn_up")).unwrap();
        let halves = both.bytes.chunks(both.bytes.len() / 2);
        for (part, bytes) in ["ffn_gate", "ffn_up"].into_iter().zip(halves) {
            let half = EditedTensor {
                ty: both.ty,
                dims: vec![both.dims[0], both.dims[1] / 2],
                bytes: bytes.to_vec(),
            };
            edited.tensors.insert(name(part), half);
        }
    }
    let dir = TempDir::new("gate");
    let apart = load(&dir.file("model.gguf", &edited.bytes()), 2);
    let together = load(&paths("jina_v2")[0], 2);
    let hidden = |model: &Arc<Model>| {
        let mut embedder = embedder(model, &vectors(Pooling::None, false));
        bits(&run(&mut embedder, &expected.all()))
    };
    assert_eq!(hidden(&apart), hidden(&together));
}

/// Without the bias, as llama.cpp's converter writes it, a file is another model, and no error.
#[test]
fn the_bias_of_a_sum_of_experts_may_be_missing() {
    let mut edited = Edited::of(&ModelFile::open(&paths("nomic_moe")[0]).unwrap());
    let whole = Network::from_file(&edited.open()).unwrap();
    assert!(
        whole.blocks[1]
            .feed_forward
            .experts()
            .unwrap()
            .sum_bias
            .is_some()
    );
    edited.tensors.remove("blk.1.ffn_exps_sum.bias").unwrap();
    let less = Network::from_file(&edited.open()).unwrap();
    assert!(
        less.blocks[1]
            .feed_forward
            .experts()
            .unwrap()
            .sum_bias
            .is_none()
    );
}

#[test]
fn what_is_wrong_with_an_encoder_is_named() {
    for name in ["eurobert", "jina_v2", "mpnet", "nomic_moe", "t5"] {
        let whole = Edited::of(&ModelFile::open(&paths(name)[0]).unwrap());
        let refused = |edited: &Edited, status: Status, named: &str| {
            let file = ModelFile::from_bytes(&edited.bytes()).unwrap();
            let e = Network::from_file(&file).unwrap_err();
            assert_eq!(e.status, status, "{name}: {named}: {e}");
            assert!(e.message.contains(named), "{name}: {named}: {e}");
        };
        for (tensor, t) in &whole.tensors {
            // What a file may do without.
            let optional = [
                "token_types.weight",
                "token_embd_norm.bias",
                "blk.1.ffn_exps_sum.bias",
            ];
            if !optional.contains(&tensor.as_str()) {
                let mut edited = whole.clone();
                edited.tensors.remove(tensor);
                refused(&edited, Status::MissingTensor, tensor);
            }
            let mut edited = whole.clone();
            let wrong = edited.tensors.get_mut(tensor).unwrap();
            let last = t.dims.len() - 1;
            wrong.dims[last] -= 1;
            let rows: usize = wrong.dims[1..].iter().product();
            let bytes = t.ty.row_bytes(wrong.dims[0]).unwrap() * rows;
            wrong.bytes.truncate(bytes);
            // Kinds of tokens may be of any number, but there must be one.
            if tensor != "token_types.weight" {
                refused(&edited, Status::ShapeMismatch, tensor);
            }
        }
        let mut edited = whole.clone();
        let is_up = |t: &(&String, &EditedTensor)| t.0.ends_with("blk.0.ffn_up.weight");
        let (_, up) = whole.tensors.iter().find(is_up).unwrap();
        let further = "blk.0.attn_norm_2.weight";
        edited.tensors.insert(further.into(), up.clone());
        refused(&edited, Status::Unsupported, further);
    }
    let moe = Edited::of(&ModelFile::open(&paths("nomic_moe")[0]).unwrap());
    for (key, value, status) in [
        (
            "moe_every_n_layers",
            Value::from(0u32),
            Status::InvalidModel,
        ),
        ("expert_used_count", 5u32.into(), Status::InvalidModel),
        ("expert_gating_func", 9u32.into(), Status::Unsupported),
    ] {
        let key = format!("nomic-bert-moe.{key}");
        let mut edited = moe.clone();
        let e = Network::from_file(&edited.set(&key, value).open()).unwrap_err();
        assert_eq!(e.status, status, "{e}");
        assert!(e.message.contains(&key), "{e}");
        if status == Status::InvalidModel {
            edited.metadata.remove(&key);
            let e = Network::from_file(&edited.open()).unwrap_err();
            assert_eq!(e.status, Status::MissingKey, "{e}");
            assert!(e.message.contains(&key), "{e}");
        }
    }
}

#[test]
fn what_is_wrong_with_the_folder_of_an_encoder_is_named() {
    use Status::{InvalidModel, MissingKey, ShapeMismatch, Unsupported};
    let refused = |folder: &Folder, status: Status, named: &str| {
        let network = folder.open().and_then(|file| Network::from_file(&file));
        let e = network.err().unwrap_or_else(|| panic!("{named}"));
        assert_eq!(e.status, status, "{named}: {e}");
        assert!(e.message.contains(named), "{named}: {e}");
    };
    for (name, key, value, status) in [
        ("jina_v2", "feed_forward_type", "reglu".into(), Unsupported),
        ("jina_v2", "hidden_act", "relu".into(), Unsupported),
        (
            "jina_v2",
            "position_embedding_type",
            "relative".into(),
            InvalidModel,
        ),
        (
            "jina_v2",
            "architectures",
            ["BertModel"].into(),
            InvalidModel,
        ),
        ("nomic_moe", "prenorm", true.into(), Unsupported),
        (
            "nomic_moe",
            "rotary_emb_interleaved",
            true.into(),
            Unsupported,
        ),
        (
            "nomic_moe",
            "activation_function",
            "swiglu".into(),
            Unsupported,
        ),
        ("nomic_moe", "num_experts", 7.into(), ShapeMismatch),
        ("nomic_moe", "moe_top_k", 5.into(), InvalidModel),
        ("eurobert", "hidden_act", "gelu".into(), Unsupported),
        ("eurobert", "num_key_value_heads", 2.into(), InvalidModel),
        ("distilbert", "activation", "relu".into(), Unsupported),
        ("distilbert", "n_layers", 0.into(), InvalidModel),
        ("mpnet", "hidden_act", "relu".into(), Unsupported),
        (
            "mpnet",
            "relative_attention_num_buckets",
            16.into(),
            InvalidModel,
        ),
        ("mpnet", "is_decoder", true.into(), Unsupported),
        ("t5", "feed_forward_proj", "gated-silu".into(), Unsupported),
        (
            "t5",
            "relative_attention_num_buckets",
            3.into(),
            InvalidModel,
        ),
        (
            "t5",
            "relative_attention_max_distance",
            3.into(),
            InvalidModel,
        ),
        (
            "t5",
            "architectures",
            ["T5ForConditionalGeneration"].into(),
            InvalidModel,
        ),
    ] {
        let mut folder = Folder::encoder(name);
        // Of a plain BERT, the class is at fault.
        let named = match key {
            "position_embedding_type" => "architectures",
            key => key,
        };
        refused(folder.set(key, value), status, named);
    }
    let file = Folder::encoder("distilbert").open().unwrap();
    for (key, own) in [
        ("block_count", "n_layers"),
        ("embedding_length", "dim"),
        ("attention.head_count", "n_heads"),
        ("feed_forward_length", "hidden_dim"),
    ] {
        let named = file.key_name(&format!("bert.{key}"));
        assert_eq!(named, Some(format!("config.json: key {own}").as_str()));
    }
    for key in ["num_experts", "moe_top_k"] {
        let mut folder = Folder::encoder("nomic_moe");
        folder.config.remove(key);
        refused(&folder, MissingKey, key);
    }
    // As in jina-embeddings-v2-base-code, whose blocks differ.
    let mut code = Folder::encoder("jina_v2");
    let name = "encoder.layer.0.attention.self.layer_norm_q.weight";
    code.tensors
        .insert(name.into(), Stored::f32(&[48], &[1.0; 48]));
    refused(&code, Unsupported, name);
    let mut flat = Folder::encoder("nomic_moe");
    let name = "encoder.layers.1.mlp.experts.mlp.w1";
    flat.tensors.get_mut(name).unwrap().shape = vec![4 * 40 * 48];
    refused(&flat, ShapeMismatch, name);
}

/// Files of decoders may say that their attention is not causal.
#[test]
fn a_decoder_without_causal_attention_is_an_encoder() {
    let dir = TempDir::new("encoder");
    let mut edited = Edited::of(&open("llama_plain"));
    edited.set("llama.attention.causal", false);
    let path = dir.file("model.gguf", &edited.bytes());
    let model = load(&path, 2);
    let session = Session::create(model.clone(), &SessionOptions::default());
    assert_eq!(session.err().unwrap().status, Status::Unsupported);
    let hidden = |tokens: &[u32]| {
        let mut embedder = embedder(&model, &vectors(Pooling::First, false));
        run(&mut embedder, &(tokens.to_vec(), vec![tokens.len()]))
    };
    // The first position sees the last one.
    assert_ne!(hidden(&[5, 6, 7]), hidden(&[5, 6, 8]));
}

#[test]
fn pairs_are_scored_as_models_were_trained() {
    for name in ["bert_scores", "qwen3_reranker"] {
        let folder = repository_file(&format!("tests/data/embeddings/{name}"));
        let theirs = std::fs::read(folder.join("pairs.bin")).unwrap();
        let theirs: Vec<f32> = theirs
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        let model = load(&folder, 2);
        let mut scorer = embedder(&model, &scores());
        let pairs = scorer.pairs(QUERY, &DOCUMENTS).unwrap();
        check(name, &scorer.run(&pairs).unwrap(), &theirs);
        // One document at a time.
        for (document, theirs) in DOCUMENTS.iter().zip(theirs.chunks(theirs.len() / 3)) {
            let pair = scorer.pairs(QUERY, &[document]).unwrap();
            check(name, &scorer.run(&pair).unwrap(), theirs);
        }
    }
}

#[test]
fn long_texts_are_cut_where_that_is_asked_for() {
    let model = load(&repository_file("tests/data/embeddings/bert_scores"), 2);
    let of = |truncate| EmbedderOptions {
        max_tokens: 6,
        truncate,
        ..scores()
    };
    let long = "a b c d e f a b";
    let mut strict = embedder(&model, &of(false));
    let texts = strict.tokenized(&["a", long]).unwrap();
    let e = strict.run(&texts).unwrap_err();
    assert_eq!((e.status, e.index), (Status::ContextFull, Some(1)), "{e}");
    let mut cut = embedder(&model, &of(true));
    let ours = cut.tokenized(&[long]).unwrap();
    let theirs = cut.tokenized(&["a b c d"]).unwrap();
    assert_eq!(cut.run(&ours).unwrap(), cut.run(&theirs).unwrap());
    // Of a pair, the document.
    let ours = cut.pairs("a", &[long]).unwrap();
    let theirs = cut.pairs("a", &["a b"]).unwrap();
    assert_eq!(cut.run(&ours).unwrap(), cut.run(&theirs).unwrap());
    let e = cut.pairs("a b c d e f", &["a"]).and_then(|t| cut.run(&t));
    assert_eq!(e.unwrap_err().status, Status::ContextFull);
}
