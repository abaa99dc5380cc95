//! Vectors and scores of texts with LoRA adapters: against peft, and against models that the adapters were merged into.

use crate::adapters::{Files, adapter, adapter_path};
use crate::common::adapters::scaled;
use crate::common::edit::{Edited, EditedTensor};
use crate::common::folder::Stored;
use crate::common::{TempDir, repository_file};
use crate::embeddings::{
    Expected, agrees, bits, check, embedder, load, paths, run, scores, vectors,
};
use emberlm::Status;
use emberlm::engine::embedder::{Embedder, EmbedderOptions};
use emberlm::engine::{MAX_ADAPTERS, Model, WantedAdapter};
use emberlm::format::ModelFile;
use emberlm::format::adapter::{AdapterFile, BaseShape};
use emberlm::model::Pooling;
use emberlm::quant::TensorType;
use std::path::Path;
use std::sync::Arc;

/// Models that have an adapter for vectors and scores.
const CASES: [&str; 4] = ["bert", "eurobert", "modernbert_scores", "qwen3"];

fn of_embedder(name: &str) -> String {
    format!("{name}_embedder")
}

/// Options with these adapters.
fn with<'a>(
    options: EmbedderOptions<'static>,
    adapters: &'a [WantedAdapter<'a>],
) -> EmbedderOptions<'a> {
    EmbedderOptions {
        adapters,
        ..options
    }
}

/// The model of a path with an adapter that was added for good, in single precision.
fn merged(path: &Path, adapter: &Path, factor: f32) -> Arc<Model> {
    let file = ModelFile::open(path).unwrap();
    let mut edited = Edited::of(&file);
    let base = BaseShape::of(&file).unwrap();
    let adapter = AdapterFile::open(adapter, &base).unwrap();
    let targets: Vec<String> = adapter.pairs.iter().map(|p| p.target.clone()).collect();
    let file = file.merged(&[(adapter, factor)], false).unwrap();
    for name in targets {
        let tensor = file.tensor(&name).unwrap();
        let elements = tensor.to_f32().unwrap().unwrap();
        let whole = EditedTensor {
            ty: TensorType::F32,
            dims: tensor.dims.clone(),
            bytes: elements.iter().flat_map(|x| x.to_le_bytes()).collect(),
        };
        edited.tensors.insert(name, whole);
    }
    let dir = TempDir::new("merged");
    load(&dir.file("model.gguf", &edited.bytes()), 2)
}

#[test]
fn vectors_and_scores_are_those_of_peft() {
    for name in CASES {
        let expected = Expected::of(&format!("tests/data/adapters/{}", of_embedder(name)));
        let texts = expected.all();
        for path in paths(name) {
            let what = path.display().to_string();
            let model = load(&path, 2);
            let adapter = adapter(&model, &of_embedder(name));
            let list = [scaled(&adapter, 1.0)];
            agrees(&what, &model, &expected, &texts, &list);
            // They do something.
            let every = vectors(Pooling::None, false);
            let ours = run(&mut embedder(&model, &with(every.clone(), &list)), &texts);
            let plain = run(&mut embedder(&model, &every), &texts);
            let differences = plain.iter().zip(&ours).map(|(a, b)| (a - b).abs());
            assert!(differences.fold(0.0, f32::max) > 0.1, "{what}");
        }
    }
}

#[test]
fn scaled_adapters_are_what_merging_them_gives() {
    for name in CASES {
        let texts = Expected::of(&format!("tests/data/adapters/{}", of_embedder(name))).all();
        let path = &paths(name)[0];
        let model = load(path, 2);
        let adapter = adapter(&model, &of_embedder(name));
        let options = vectors(Pooling::None, false);
        // Twice in the list adds twice.
        let list = [scaled(&adapter, -0.75), scaled(&adapter, 0.25)];
        let ours = run(&mut embedder(&model, &with(options.clone(), &list)), &texts);
        let merged = merged(path, &adapter_path(&of_embedder(name)), -0.5);
        let theirs = run(&mut embedder(&merged, &options), &texts);
        check(name, &ours, &theirs);
        // A factor of 0 is none.
        let nothing = with(options.clone(), &[]);
        let zero = [scaled(&adapter, 0.0)];
        let zero = with(options, &zero);
        let [nothing, zero] = [nothing, zero].map(|o| run(&mut embedder(&model, &o), &texts));
        assert_eq!(bits(&nothing), bits(&zero), "{name}");
    }
}

#[test]
fn adapted_vectors_depend_on_nothing_beside_them() {
    for name in CASES {
        let expected = Expected::of(&format!("tests/data/adapters/{}", of_embedder(name)));
        let texts = expected.all();
        let path = &paths(name)[0];
        let options = vectors(Pooling::Mean, true);
        let mut reference = None;
        for threads in [1, 2, 3] {
            let model = load(path, threads);
            let adapter = adapter(&model, &of_embedder(name));
            let list = [scaled(&adapter, 1.0), scaled(&adapter, 0.5)];
            for batch_tokens in [20, 512] {
                let options = EmbedderOptions {
                    max_tokens: 20,
                    batch_tokens,
                    ..with(options.clone(), &list)
                };
                let mut adapted = embedder(&model, &options);
                let together = bits(&run(&mut adapted, &texts));
                let reference = reference.get_or_insert_with(|| together.clone());
                assert_eq!(*reference, together, "{name}, {threads}, {batch_tokens}");
                let alone = expected.texts.iter().flat_map(|text| {
                    let one = (text.tokens.clone(), vec![text.tokens.len()]);
                    bits(&run(&mut adapted, &one))
                });
                assert_eq!(*reference, alone.collect::<Vec<_>>(), "{name}, one by one");
            }
        }
    }
}

/// Each embedder of a model has its own, and keeps them.
#[test]
fn embedders_with_different_adapters_share_a_model() {
    let texts = Expected::of("tests/data/adapters/bert_embedder").all();
    let model = load(&paths("bert")[0], 2);
    let loaded = adapter(&model, "bert_embedder");
    let bytes = loaded.data().bytes;
    let taken = || model.weights().taken().sessions;
    let lists = [
        vec![],
        vec![scaled(&loaded, 1.0)],
        vec![scaled(&loaded, -1.0)],
    ];
    let mut embedders: Vec<Embedder> = lists
        .iter()
        .map(|list| embedder(&model, &with(EmbedderOptions::default(), list)))
        .collect();
    let reference: Vec<Vec<u32>> = embedders
        .iter_mut()
        .map(|e| bits(&run(e, &texts)))
        .collect();
    assert_ne!(reference[0], reference[1]);
    assert_ne!(reference[1], reference[2]);
    // Its own memory is counted, and that of the adapter as long as anybody uses it.
    assert!(embedders[1].details().bytes > embedders[0].details().bytes);
    drop(lists);
    drop(loaded);
    assert_eq!(taken(), bytes);
    std::thread::scope(|scope| {
        for (mut embedder, reference) in embedders.into_iter().zip(&reference) {
            let texts = &texts;
            scope.spawn(move || {
                for _ in 0..20 {
                    assert_eq!(bits(&run(&mut embedder, texts)), *reference);
                }
            });
        }
    });
    assert_eq!(taken(), 0);
}

#[test]
fn what_is_wrong_with_an_embedders_adapters_is_named() {
    let (model, other) = (load(&paths("bert")[0], 1), load(&paths("bert")[0], 1));
    let mine = adapter(&model, "bert_embedder");
    let foreign = adapter(&other, "bert_embedder");
    let fails = |list: &[WantedAdapter<'_>]| {
        let options = with(EmbedderOptions::default(), list);
        Embedder::create(model.clone(), options).err().unwrap()
    };
    let e = fails(&[scaled(&mine, 1.0), scaled(&foreign, 1.0)]);
    assert_eq!(
        (e.status, e.index),
        (Status::InvalidArgument, Some(1)),
        "{e}"
    );
    assert!(e.message.contains("another model"), "{e}");
    let e = fails(&[scaled(&mine, f32::NAN)]);
    assert_eq!(
        (e.status, e.index),
        (Status::InvalidArgument, Some(0)),
        "{e}"
    );
    let e = fails(&vec![scaled(&mine, 1.0); MAX_ADAPTERS + 1]);
    assert_eq!(e.status, Status::InvalidArgument, "{e}");
    assert!(e.message.contains("17"), "{e}");

    // Modules of an encoder that no adapter is for.
    const QUERY: &str = "encoder.layer.0.attention.self.query";
    for (module, status, part) in [
        (
            "embeddings.word_embeddings",
            Status::ShapeMismatch,
            "token_embd",
        ),
        (
            "embeddings.position_embeddings",
            Status::Unsupported,
            "embeddings.position_embeddings",
        ),
        ("pooler.dense", Status::Unsupported, "pooler.dense"),
        (
            "encoder.layer.7.attention.self.query",
            Status::MissingTensor,
            "blk.7.attn_q",
        ),
        (
            "encoder.layer.00.attention.self.query",
            Status::Unsupported,
            "layer.00",
        ),
        ("layers.0.self_attn.q_proj", Status::Unsupported, "q_proj"),
    ] {
        let mut files = Files::of("bert_embedder");
        files.tensors = files
            .tensors
            .into_iter()
            .filter(|(name, _)| name.contains(QUERY))
            .map(|(name, t)| (name.replace(QUERY, module), t))
            .collect();
        files.config["rank_pattern"] = serde_json::json!({});
        files.config["r"] = serde_json::json!(3);
        let e = files.load(&model).err().unwrap();
        assert_eq!(e.status, status, "{module}: {e}");
        assert!(e.message.contains(part), "{module}: {e}");
    }
    let mut files = Files::of("bert_embedder");
    let b = files
        .tensors
        .keys()
        .find(|name| name.contains("lora_B"))
        .unwrap()
        .clone();
    let wrong = files.tensors.get_mut(&b).unwrap();
    wrong.shape[0] -= 1;
    wrong.bytes.truncate(2 * wrong.shape[0] * wrong.shape[1]);
    let e = files.load(&model).err().unwrap();
    assert_eq!(e.status, Status::ShapeMismatch, "{e}");
    assert!(e.message.contains(&b), "{e}");
}

/// The rows of the head that judge documents are not those of the whole head.
#[test]
fn an_adapter_of_the_head_cannot_judge() {
    let model = load(&repository_file("tests/data/embeddings/qwen3_reranker"), 1);
    let details = model.details();
    let mut files = Files::of("qwen3_embedder");
    let name = |half: &str| format!("base_model.model.lm_head.lora_{half}.weight");
    let half = |shape: [usize; 2]| Stored {
        ty: "F16".to_owned(),
        shape: shape.to_vec(),
        bytes: vec![0x11; 2 * shape[0] * shape[1]],
    };
    files.tensors = [
        (name("A"), half([2, details.hidden])),
        (name("B"), half([details.n_vocab, 2])),
    ]
    .into();
    let adapter = files.load(&model).unwrap();
    let list = [scaled(&adapter, 0.0), scaled(&adapter, 1.0)];
    let e = Embedder::create(model.clone(), with(scores(), &list[1..]))
        .err()
        .unwrap();
    assert_eq!((e.status, e.index), (Status::Unsupported, Some(0)), "{e}");
    assert!(e.message.contains("output.weight"), "{e}");
    Embedder::create(model.clone(), with(scores(), &list[..1])).unwrap();
    Embedder::create(model, with(vectors(Pooling::Last, true), &list)).unwrap();
}
