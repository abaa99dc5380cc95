//! Vectors and scores of texts on a GPU: against transformers, against the CPU, and against themselves however texts are put
//! together.
//!
//! What is rounded to f16 are keys, values, queries, weights of the softmax and the inputs of products, so hidden states are off by
//! some 2^-11 of their size, and layers add to that: half a hundredth is the bound of all elements together, and twice that for the tiny
//! ModernBERT, in whose layers numbers are larger. A norm of a short row may bring single ones further.

use crate::common::adapters::{random_adapter, scaled};
use crate::common::edit::Edited;
use crate::common::embeddings::{
    DECODERS, DOCUMENTS, ENCODERS, Expected, ON_CPUS, QUERY, bits, embedder, paths, pooled, run,
    scores, vectors,
};
use crate::common::states::session;
use crate::common::{TempDir, repository_file};
use crate::gpu::{Tests, context, load_on, nth};
use emberlm::backend::{DeviceKind, LoadOptions};
use emberlm::engine::embedder::{Embedder, EmbedderOptions};
use emberlm::engine::{Model, Session, SessionOptions, WantedAdapter};
use emberlm::format::ModelFile;
use emberlm::model::Pooling;
use emberlm::quant::TensorType;
use emberlm::{Result, Status};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const BOUND: f32 = 5e-3;
const MOST: f32 = 6e-2;

pub fn tests(tests: &mut Tests) {
    for name in ENCODERS.into_iter().chain(DECODERS) {
        tests.push((
            format!("embed::{name}"),
            Box::new(move || agrees_with_transformers(name)),
        ));
        tests.push((
            format!("embed::{name}_packs"),
            Box::new(move || neighbours_change_nothing(&paths(name)[0])),
        ));
        tests.push((
            format!("embed::{name}_adapters"),
            Box::new(move || adapters_are_as_on_a_cpu(name)),
        ));
    }
    for name in [
        "nomic_bert",
        "nomic_moe",
        "jina_v2",
        "modernbert_scores",
        "eurobert",
        "mistral",
        "gemma2",
    ] {
        tests.push((
            format!("embed::{name}_long"),
            Box::new(move || long_texts_are_as_on_a_cpu(&long_file(name), name)),
        ));
    }
    let all: [(&str, fn()); 13] = [
        ("pairs", pairs),
        ("hamlet", hamlet),
        ("hamlet_packs", || neighbours_change_nothing(&hamlet_path())),
        ("halves", halves),
        ("input", bad_input_is_named),
        ("refused", what_a_gpu_cannot_take_is_named),
        ("out_of_memory", out_of_memory),
        ("limits", limits),
        ("evict", evicted_models_come_back),
        ("interrupt", interrupts_end_calls),
        ("together", embedders_and_sessions_share_a_model),
        ("peft", peft),
        ("minilm", minilm),
    ];
    for (name, run) in all {
        tests.push((format!("embed::{name}"), Box::new(run)));
    }
}

fn load(path: &Path) -> Arc<Model> {
    load_on(path, DeviceKind::Cuda, &LoadOptions::default())
}

fn on_cpu(path: &Path) -> Arc<Model> {
    load_on(path, DeviceKind::Cpu, &LoadOptions::default())
}

fn hamlet_path() -> PathBuf {
    repository_file("models/hamlet-7m-Q4_K_M.gguf")
}

/// How far numbers are from those of a reference: the root of the mean square, over that of the reference, and the largest difference
/// over the largest of them.
fn apart(ours: &[f32], theirs: &[f32]) -> (f32, f32) {
    assert_eq!(ours.len(), theirs.len());
    assert!(ours.iter().all(|x| x.is_finite()));
    let square = |x: f32| f64::from(x) * f64::from(x);
    let (mut squares, mut all, mut most, mut largest) = (0.0, 0.0, 0f32, 0f32);
    for (a, b) in ours.iter().zip(theirs) {
        squares += square(a - b);
        all += square(*b);
        most = most.max((a - b).abs());
        largest = largest.max(b.abs());
    }
    ((squares / all).sqrt() as f32, most / largest)
}

fn check(what: &str, ours: &[f32], theirs: &[f32]) {
    let (all, most) = apart(ours, theirs);
    println!("{what}: {all:.1e}, most {most:.1e}");
    let bound = match what.contains("modernbert") {
        true => 2.0 * BOUND,
        false => BOUND,
    };
    assert!(all < bound && most < MOST, "{what}: {all}, most {most}");
}

fn agrees_with_transformers(name: &str) {
    let expected = Expected::read(name);
    let texts = expected.all();
    for path in paths(name) {
        let what = |how: &str| format!("{}, {how}", path.display());
        let (gpu, cpu) = (load(&path), on_cpu(&path));
        let of_all = |of: &dyn Fn(&crate::common::embeddings::Text) -> Vec<f32>| -> Vec<f32> {
            expected.texts.iter().flat_map(of).collect()
        };
        let both = |options: &EmbedderOptions<'_>| {
            [&gpu, &cpu].map(|model| run(&mut embedder(model, options), &texts))
        };
        let [ours, theirs] = both(&vectors(Pooling::None, false));
        check(
            &what("every position"),
            &ours,
            &of_all(&|t| t.hidden.clone()),
        );
        check(&what("every position of the CPU"), &ours, &theirs);
        for pooling in [Pooling::Mean, Pooling::First, Pooling::Last] {
            let [ours, theirs] = both(&vectors(pooling, false));
            let wanted = of_all(&|t| pooled(pooling, &t.hidden, expected.width));
            check(&what(&format!("{pooling:?}")), &ours, &wanted);
            check(&what(&format!("{pooling:?} of the CPU")), &ours, &theirs);
            let [ours, theirs] = both(&vectors(pooling, true));
            check(&what(&format!("{pooling:?}, normalized")), &ours, &theirs);
        }
        if !expected.texts[0].scores.is_empty() {
            let [ours, theirs] = both(&scores());
            check(&what("scores"), &ours, &of_all(&|t| t.scores.clone()));
            check(&what("scores of the CPU"), &ours, &theirs);
        }
    }
}

fn one_by_one(embedder: &mut Embedder, (tokens, counts): &(Vec<u32>, Vec<usize>)) -> Vec<f32> {
    let (mut all, mut rest) = (Vec::new(), &tokens[..]);
    for count in counts {
        let (text, behind) = rest.split_at(*count);
        all.extend(run(embedder, &(text.to_vec(), vec![*count])));
        rest = behind;
    }
    all
}

/// Texts of these lengths.
fn texts(n_vocab: usize, counts: &[usize]) -> (Vec<u32>, Vec<usize>) {
    let total = counts.iter().sum::<usize>() as u64;
    let tokens = (0..total).map(|i| ((i * i * 31 + i * 7 + 5) % n_vocab as u64) as u32);
    (tokens.collect(), counts.to_vec())
}

/// The bits are the same whatever a text is packed with.
fn neighbours_change_nothing(path: &Path) {
    let model = load(path);
    let most = model.details().context_length.min(60);
    let counts = [3, 1, most, 17, 2, most / 2, 5, 5, most - 1, 33, 1];
    let texts = texts(model.details().n_vocab, &counts);
    for pooling in [Pooling::Mean, Pooling::Last, Pooling::None] {
        let of = |batch_tokens| EmbedderOptions {
            max_tokens: most,
            batch_tokens,
            ..vectors(pooling, true)
        };
        let reference = bits(&run(&mut embedder(&model, &of(2048)), &texts));
        for batch_tokens in [most, most + 5, 300] {
            let mut embedder = embedder(&model, &of(batch_tokens));
            let together = bits(&run(&mut embedder, &texts));
            assert!(together == reference, "{pooling:?}, {batch_tokens}");
            let alone = bits(&one_by_one(&mut embedder, &texts));
            assert!(
                alone == reference,
                "{pooling:?}, {batch_tokens}, one by one"
            );
        }
    }
}

/// A tiny model whose file says that it takes long texts.
fn long_file(name: &str) -> (TempDir, PathBuf) {
    let file = ModelFile::open(&paths(name)[0]).unwrap();
    let mut edited = Edited::of(&file);
    let architecture = file.str("general.architecture").unwrap();
    edited.set(&format!("{architecture}.context_length"), 4096u32);
    let dir = TempDir::new("long");
    let path = dir.file("model.gguf", &edited.bytes());
    (dir, path)
}

/// Texts to either side of what the kernels take as long, packed and alone.
fn long_texts_are_as_on_a_cpu((_dir, path): &(TempDir, PathBuf), name: &str) {
    let [gpu, cpu] = [load(path), on_cpu(path)];
    let texts = texts(
        gpu.details().n_vocab,
        &[700, 255, 256, 3, 257, 64, 65, 128, 1000, 129],
    );
    let options = EmbedderOptions {
        max_tokens: 1000,
        batch_tokens: 2000,
        ..vectors(Pooling::None, false)
    };
    let mut long = embedder(&gpu, &options);
    let ours = run(&mut long, &texts);
    let theirs = run(&mut embedder(&cpu, &options), &texts);
    let has_experts = name.contains("moe");
    if has_experts {
        // A token whose experts' scores are nearly equal may go to others.
        let width = gpu.details().hidden;
        let rows = ours.chunks(width).zip(theirs.chunks(width));
        let mut all: Vec<f32> = rows.map(|(a, b)| apart(a, b).0).collect();
        all.sort_by(f32::total_cmp);
        println!(
            "{name}: {:.1e}, worst {:.1e}",
            all[all.len() / 2],
            all[all.len() - 1]
        );
        assert!(all[all.len() * 9 / 10] < BOUND, "{name}");
    } else {
        check(name, &ours, &theirs);
    }
    let alone = one_by_one(&mut long, &texts);
    assert!(bits(&alone) == bits(&ours), "{name}: one by one");
}

fn adapters_are_as_on_a_cpu(name: &str) {
    let path = &paths(name)[0];
    let texts = Expected::read(name).all();
    let [gpu, cpu] = [load(path), on_cpu(path)].map(|model| {
        let first = random_adapter(&model, path, (1, 4, TensorType::F32), 0.05);
        let second = random_adapter(&model, path, (2, 3, TensorType::BF16), 0.05);
        let list = [scaled(&first, 1.0), scaled(&second, -0.7)];
        let of = |adapters: &[WantedAdapter<'_>]| {
            let options = EmbedderOptions {
                adapters,
                ..vectors(Pooling::Mean, false)
            };
            let mut adapted = embedder(&model, &options);
            let together = run(&mut adapted, &texts);
            assert_eq!(bits(&one_by_one(&mut adapted, &texts)), bits(&together));
            together
        };
        (of(&list), of(&[]))
    });
    let (moved, off) = (apart(&gpu.0, &gpu.1).0, apart(&gpu.0, &cpu.0).0);
    println!("{name}: {off:.1e}, and {moved:.1e} without");
    assert!(off < BOUND, "{name}: {off}");
    assert!(moved > 4.0 * off, "{name}: {moved} without");
}

/// Adapters of embedders against peft.
fn peft() {
    for name in ["bert", "eurobert", "modernbert_scores", "qwen3"] {
        let folder = format!("tests/data/adapters/{name}_embedder");
        let expected = Expected::of(&folder);
        let texts = expected.all();
        let model = load(&paths(name)[0]);
        let adapter =
            emberlm::engine::Adapter::load(model.clone(), &repository_file(&folder)).unwrap();
        let list = [scaled(&adapter, 1.0)];
        let options = EmbedderOptions {
            adapters: &list,
            ..vectors(Pooling::None, false)
        };
        let theirs: Vec<f32> = expected
            .texts
            .iter()
            .flat_map(|t| t.hidden.clone())
            .collect();
        check(name, &run(&mut embedder(&model, &options), &texts), &theirs);
    }
}

fn floats(path: &str) -> Vec<f32> {
    let bytes = std::fs::read(repository_file(path)).unwrap();
    let words = bytes.chunks_exact(4);
    words
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

/// Of two texts, and of models that answer yes or no.
fn pairs() {
    for name in ["bert_scores", "qwen3_reranker"] {
        let folder = format!("tests/data/embeddings/{name}");
        let theirs = floats(&format!("{folder}/pairs.bin"));
        let model = load(&repository_file(&folder));
        let mut scorer = embedder(&model, &scores());
        let together = scorer.pairs(QUERY, &DOCUMENTS).unwrap();
        let ours = scorer.run(&together).unwrap();
        check(name, &ours, &theirs);
        let alone: Vec<f32> = DOCUMENTS
            .iter()
            .flat_map(|document| {
                let pair = scorer.pairs(QUERY, &[document]).unwrap();
                scorer.run(&pair).unwrap()
            })
            .collect();
        assert_eq!(bits(&alone), bits(&ours), "{name}");
    }
}

/// A trained decoder with quantized matrices.
fn hamlet() {
    let [gpu, cpu] = [load(&hamlet_path()), on_cpu(&hamlet_path())];
    let texts = texts(gpu.details().n_vocab, &[5, 900, 31, 300, 256, 1]);
    for pooling in [Pooling::Mean, Pooling::Last] {
        let options = vectors(pooling, true);
        let mut ours = embedder(&gpu, &options);
        let theirs = run(&mut embedder(&cpu, &options), &texts);
        // A CPU rounds the inputs of products with quantized matrices to bytes.
        let got = run(&mut ours, &texts);
        for (i, (a, b)) in got
            .chunks(gpu.details().hidden)
            .zip(theirs.chunks(gpu.details().hidden))
            .enumerate()
        {
            let cosine: f32 = a.iter().zip(b).map(|(a, b)| a * b).sum();
            println!("{pooling:?}, text {i}: {cosine}");
            assert!(cosine > 0.9995, "{pooling:?}, text {i}: {cosine}");
        }
        assert_eq!(bits(&one_by_one(&mut ours, &texts)), bits(&got));
    }
}

/// Weights of other types.
fn halves() {
    let file = ModelFile::open(&paths("mistral")[0]).unwrap();
    for ty in [TensorType::BF16, TensorType::F16] {
        let dir = TempDir::new("halves");
        let converted = crate::common::convert::converted(&file, ty);
        let path = dir.file("model.gguf", &Edited::of(&converted).bytes());
        let [gpu, cpu] = [load(&path), on_cpu(&path)];
        let texts = Expected::read("mistral").all();
        let options = vectors(Pooling::Mean, false);
        let [ours, theirs] = [&gpu, &cpu].map(|m| run(&mut embedder(m, &options), &texts));
        check(ty.name(), &ours, &theirs);
    }
}

fn bad_input_is_named() {
    let model = load(&paths("bert")[0]);
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
    assert_eq!(create(scores()).status, Status::Unsupported);
    let mut embedder = embedder(&model, &EmbedderOptions::default());
    let run = |embedder: &mut Embedder, tokens: &[u32], counts: &[usize]| {
        let texts = embedder.given(tokens, counts)?;
        embedder.run(&texts)
    };
    for (tokens, counts, status, index) in [
        (&[5, 6][..], &[2, 0][..], Status::NoInput, Some(1)),
        (&[5; 65], &[65], Status::ContextFull, Some(0)),
        (&[5, 6, 96], &[1, 2], Status::InvalidToken, Some(1)),
        (&[5, 6, 7], &[1, 1], Status::InvalidArgument, None),
    ] {
        let e = run(&mut embedder, tokens, counts).unwrap_err();
        assert_eq!((e.status, e.index), (status, index), "{e}");
    }
    assert_eq!(run(&mut embedder, &[5], &[1]).unwrap().len(), 48);
    assert!(run(&mut embedder, &[], &[]).unwrap().is_empty());
}

fn what_a_gpu_cannot_take_is_named() {
    let refused = |model: &Arc<Model>, options: EmbedderOptions<'_>, named: &str| {
        let e = Embedder::create(model.clone(), options).err().unwrap();
        assert_eq!(e.status, Status::Unsupported, "{named}: {e}");
        assert!(e.message.contains(named), "{named}: {e}");
    };
    let family = |name: &str| load(&repository_file(&format!("tests/data/families/{name}")));
    refused(
        &family("lfm2"),
        vectors(Pooling::Mean, true),
        "a short convolution",
    );
    refused(
        &family("deepseek_v3"),
        vectors(Pooling::Mean, true),
        "latent attention",
    );
    let (_dir, path) = long_file("mistral");
    let many = EmbedderOptions {
        batch_tokens: 65_536,
        ..vectors(Pooling::Mean, true)
    };
    refused(&load(&path), many, "65536 tokens");
    for name in ON_CPUS {
        let options = LoadOptions::default();
        let path = &paths(name)[0];
        let e = Model::load(path, nth(DeviceKind::Cuda, 0), &options, &mut |_| Ok(())).err();
        let e = e.unwrap_or_else(|| panic!("{name}"));
        assert_eq!(e.status, Status::Unsupported, "{name}: {e}");
        assert!(e.message.contains("by the distance"), "{name}: {e}");
    }
    for name in ENCODERS {
        let model = load(&paths(name)[0]);
        let e = Session::create(model.clone(), &SessionOptions::default())
            .err()
            .unwrap();
        assert_eq!(e.status, Status::Unsupported, "{name}: {e}");
        assert!(e.message.contains("encoder"), "{name}: {e}");
    }
    // The head of a model whose answers are judged has no adapter.
    let path = repository_file("tests/data/embeddings/qwen3_reranker/model.gguf");
    if path.exists() {
        let model = load(&path);
        let adapter = random_adapter(&model, &path, (1, 4, TensorType::F32), 0.05);
        let list = [scaled(&adapter, 1.0)];
        let options = EmbedderOptions {
            adapters: &list,
            ..scores()
        };
        refused(&model, options, "output.weight");
    }
}

fn made(model: &Arc<Model>, adapters: &[WantedAdapter<'_>]) -> Result<Embedder> {
    let options = EmbedderOptions {
        adapters,
        ..vectors(Pooling::Mean, true)
    };
    Embedder::create(model.clone(), options)
}

/// Every allocation of what makes an embedder or uses one fails in turn; nothing is lost.
fn out_of_memory() {
    let path = hamlet_path();
    let model = load(&path);
    let adapter = random_adapter(&model, &path, (1, 4, TensorType::F16), 0.05);
    let list = [scaled(&adapter, 1.0)];
    let texts = texts(model.details().n_vocab, &[40, 3, 300]);
    let context = context();
    for adapters in [&[][..], &list[..]] {
        let reference = bits(&run(&mut made(&model, adapters).unwrap(), &texts));
        let mut kept = made(&model, adapters).unwrap();
        let mut other = session(&model);
        other.prefill(&[1, 2, 3]).unwrap();
        for (what, evict) in [("create", false), ("resume", true)] {
            let mut n = 0;
            loop {
                if evict {
                    other.evict().unwrap();
                    model.evict().unwrap();
                }
                let before = model.weights().taken();
                context.fail_allocation(n);
                let result = made(&model, adapters).and_then(|mut embedder| {
                    let given = embedder.given(&texts.0, &texts.1)?;
                    embedder.run(&given)
                });
                context.fail_allocation(-1);
                match result {
                    Ok(out) => {
                        assert!(bits(&out) == reference);
                        break;
                    }
                    Err(e) => assert_eq!(e.status, Status::OutOfMemory, "{what}, {n}: {e}"),
                }
                if !evict {
                    assert_eq!(model.weights().taken(), before, "{what}, {n}");
                }
                assert!(bits(&run(&mut kept, &texts)) == reference, "{what}, {n}");
                n += 1;
                assert!(n < 100, "{what} never succeeds");
            }
            println!("{what}: {n} allocations failed");
            assert!(n >= 2, "{what}: {n} allocations");
        }
    }
}

/// What an embedder takes is within the limit of sessions, and does not grow with the texts.
fn limits() {
    let path = hamlet_path();
    let with_limit = |session_memory_limit| {
        let options = LoadOptions {
            session_memory_limit,
            ..Default::default()
        };
        load_on(&path, DeviceKind::Cuda, &options)
    };
    let model = with_limit(0);
    let mut first = made(&model, &[]).unwrap();
    let each = model.weights().taken().sessions;
    assert!(each >= first.details().bytes, "{each}");
    let many = vec![7; 500];
    run(&mut first, &texts(model.details().n_vocab, &many));
    assert_eq!(model.weights().taken().sessions, each);
    drop(first);
    assert_eq!(model.weights().taken().sessions, 0);

    let limited = with_limit(2 * each);
    let mut both = [made(&limited, &[]).unwrap(), made(&limited, &[]).unwrap()];
    let e = made(&limited, &[]).err().unwrap();
    assert_eq!(e.status, Status::OutOfMemory, "{e}");
    assert!(e.message.contains("session_memory_limit"), "{e}");
    let few = texts(model.details().n_vocab, &[3, 4]);
    let [a, b] = &mut both;
    assert_eq!(bits(&run(a, &few)), bits(&run(b, &few)));
}

fn evicted_models_come_back() {
    for path in [hamlet_path(), paths("bert")[0].clone()] {
        let model = load(&path);
        let mut embedder = made(&model, &[]).unwrap();
        let texts = texts(model.details().n_vocab, &[30, 3]);
        let reference = bits(&run(&mut embedder, &texts));
        model.evict().unwrap();
        assert_eq!(bits(&run(&mut embedder, &texts)), reference);
        model.evict().unwrap();
        model.resume().unwrap();
        assert_eq!(bits(&run(&mut embedder, &texts)), reference);
    }
}

fn interrupts_end_calls() {
    let model = load(&hamlet_path());
    let options = EmbedderOptions {
        max_tokens: 64,
        batch_tokens: 64,
        ..vectors(Pooling::Mean, true)
    };
    let mut embedder = embedder(&model, &options);
    let few = texts(model.details().n_vocab, &[9]);
    let reference = bits(&run(&mut embedder, &few));
    embedder.interrupts().ask();
    let given = embedder.given(&few.0, &few.1).unwrap();
    assert_eq!(
        embedder.run(&given).unwrap_err().status,
        Status::Interrupted
    );
    assert_eq!(bits(&run(&mut embedder, &few)), reference);
    let many = texts(model.details().n_vocab, &vec![60; 50_000]);
    let given = embedder.given(&many.0, &many.1).unwrap();
    let interrupts = embedder.interrupts().clone();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            interrupts.ask();
        });
        let e = embedder.run(&given).unwrap_err();
        assert_eq!(e.status, Status::Interrupted, "{e}");
    });
    assert_eq!(bits(&run(&mut embedder, &few)), reference);
}

/// Embedders and sessions of one model work at once, each as it does alone.
fn embedders_and_sessions_share_a_model() {
    let model = load(&hamlet_path());
    let texts = texts(model.details().n_vocab, &[300, 17, 40, 500]);
    let reference = bits(&run(&mut made(&model, &[]).unwrap(), &texts));
    let prompt: Vec<u32> = (0..700).map(|i| i * 7 % 1000).collect();
    let decoded = || {
        let mut session = session(&model);
        session.prefill(&prompt).unwrap();
        (0..60)
            .map(|_| session.decode().unwrap())
            .collect::<Vec<u32>>()
    };
    let alone = decoded();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut embedder = made(&model, &[]).unwrap();
                for _ in 0..20 {
                    assert!(bits(&run(&mut embedder, &texts)) == reference);
                }
            });
            scope.spawn(|| {
                for _ in 0..3 {
                    assert_eq!(decoded(), alone);
                }
            });
        }
    });
}

/// A trained model, where the folder is that `EMBERLM_MINILM` names.
fn minilm() {
    let Some(folder) = std::env::var_os("EMBERLM_MINILM") else {
        println!("EMBERLM_MINILM names no folder with all-MiniLM-L6-v2: nothing is compared");
        return;
    };
    let list =
        std::fs::read_to_string(repository_file("tests/data/embeddings/minilm.txt")).unwrap();
    let list: Vec<&str> = list.lines().collect();
    let theirs = floats("tests/data/embeddings/minilm.bin");
    let model = load(Path::new(&folder));
    let mut embedder = embedder(&model, &EmbedderOptions::default());
    let tokens = embedder.tokenized(&list).unwrap();
    let ours = embedder.run(&tokens).unwrap();
    assert_eq!((list.len(), ours.len()), (50, theirs.len()));
    for ((a, b), text) in ours.chunks(384).zip(theirs.chunks(384)).zip(&list) {
        let cosine: f32 = a.iter().zip(b).map(|(a, b)| a * b).sum();
        assert!(cosine > 0.9999, "{text}: {cosine}");
    }
}
