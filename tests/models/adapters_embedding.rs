//! LoRA adapters of the token embedding.

use super::adapters::{Case, Files, TOKENS, load_model, model, refused, rename, resize, with};
use crate::common::TempDir;
use crate::common::adapters::{decode, decode_together, logits, scaled};
use crate::common::edit::Edited;
use crate::common::folder::{Stored, family_path};
use crate::common::states::bits;
use crate::common::tiny::Random;
use emberlm::Status;
use emberlm::engine::Adapter;
use emberlm::format::ModelFile;
use emberlm::format::adapter::{AdapterFile, BaseShape};
use emberlm::format::writer::Writer;
use emberlm::quant::TensorType;
use half::f16;
use serde_json::json;
use std::collections::BTreeMap;

const RANK: usize = 3;
const ALPHA: f32 = 2.0;
const EMBEDDING: &str = "base_model.model.model.embed_tokens";

/// Random numbers for a family's embedding, exact in half precision: `A` by rank, `B` by column.
struct Numbers {
    tokens: usize,
    columns: usize,
    a: Vec<f32>,
    b: Vec<f32>,
}

impl Numbers {
    fn of(family: &str) -> Numbers {
        let file = ModelFile::open(&family_path(family).join("model.gguf")).unwrap();
        let table = file.tensor("token_embd.weight").unwrap();
        let (columns, tokens) = (table.row_len(), table.rows());
        let mut random = Random::new(5, "embedding");
        let mut numbers = |count: usize| -> Vec<f32> {
            let half = |_| f16::from_f32(0.5 * random.signed_unit()).to_f32();
            (0..count).map(half).collect()
        };
        Numbers {
            tokens,
            columns,
            a: numbers(RANK * tokens),
            b: numbers(RANK * columns),
        }
    }

    /// A folder as PEFT writes it, the model's own matrix beside the pair.
    fn folder(&self) -> Files {
        let mut tensors = BTreeMap::new();
        let mut put = |name: &str, shape: [usize; 2], values: &[f32]| {
            let name = format!("{EMBEDDING}.{name}");
            tensors.insert(name, Stored::f32(&shape, values));
        };
        put("lora_embedding_A", [RANK, self.tokens], &self.a);
        put("lora_embedding_B", [self.columns, RANK], &self.b);
        let whole = vec![0.0; self.tokens * self.columns];
        put("base_layer.weight", [self.tokens, self.columns], &whole);
        Files {
            config: json!({"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA}),
            tensors,
        }
    }

    /// A file as llama.cpp's converter writes it: rows of both are `RANK` long.
    fn gguf(&self, architecture: &str) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.set("general.type", "adapter");
        writer.set("general.architecture", architecture);
        writer.set("adapter.type", "lora");
        writer.set("adapter.lora.alpha", ALPHA);
        let [a, b] = ["a", "b"].map(|half| format!("token_embd.weight.lora_{half}"));
        writer
            .tensor(&a, TensorType::F32, &[RANK, self.tokens])
            .unwrap();
        writer
            .tensor(&b, TensorType::F32, &[RANK, self.columns])
            .unwrap();
        let mut bytes = Vec::new();
        let written = writer.write(&mut bytes, |entry, out| {
            for i in 0..entry.size as usize / 4 {
                let (row, k) = (i / RANK, i % RANK);
                let x = match entry.name.ends_with("_a") {
                    true => self.a[k * self.tokens + row],
                    false => self.b[i],
                };
                out.write_all(&x.to_le_bytes())?;
            }
            Ok(())
        });
        written.unwrap();
        bytes
    }
}

/// Every form is the same adapter, and it does what a model does whose embedding was changed, its head left alone.
#[test]
fn adapters_of_the_embedding_are_what_their_sum_would_be() {
    // With a head of its own, and tied: with factors on the embedding, by positions, with inputs of layers.
    for family in ["mistral", "gemma3", "granite", "gpt2", "gemma4_e"] {
        let numbers = Numbers::of(family);
        let path = family_path(family).join("model.gguf");
        let model = model(family);
        let file = ModelFile::open(&path).unwrap();
        let base = BaseShape::of(&file).unwrap();
        let dir = TempDir::new("embedding");
        let gguf = dir.file("adapter.gguf", &numbers.gguf(&base.architecture));
        let adapter = Adapter::load(model.clone(), &gguf).unwrap();
        let mut folder = numbers.folder();
        if family == "gpt2" {
            rename(&mut folder, "model.embed_tokens", "transformer.wte");
        }
        let of_folder = folder.load(&model).unwrap();
        let fingerprint = adapter.data().fingerprint;
        assert_eq!(of_folder.data().fingerprint, fingerprint, "{family}");

        let read = AdapterFile::open(&gguf, &base).unwrap();
        let merged = file.merged(&[(read, 1.0)], false).unwrap();
        let merged = dir.file("merged.gguf", &Edited::of(&merged).bytes());
        let mut expected = with(&load_model(&merged), &[], &TOKENS);
        let mut session = with(&model, &[scaled(&adapter, 1.0)], &TOKENS);
        let found = logits(&mut session);
        let mut one_by_one = with(&model, &[scaled(&adapter, 1.0)], &TOKENS[..1]);
        for token in &TOKENS[1..] {
            one_by_one.prefill(&[*token]).unwrap();
        }
        assert_eq!(bits(&mut one_by_one), bits(&mut session), "{family}");
        let mut plain = with(&model, &[], &TOKENS);
        let distance = |a: &[f32], b: &[f32]| {
            let pairs = a.iter().zip(b);
            pairs.fold(0f32, |most, (a, b)| most.max((a - b).abs()))
        };
        let (expected, plain) = (logits(&mut expected), logits(&mut plain));
        let (error, effect) = (distance(&found, &expected), distance(&found, &plain));
        assert!(
            effect > 0.05 && error < 1e-3,
            "{family}: {error} of {effect}"
        );
    }
}

#[test]
fn sessions_of_a_batch_have_embeddings_of_their_own() {
    let model = model("mistral");
    let adapter = Numbers::of("mistral").folder().load(&model).unwrap();
    let mut parameter = Numbers::of("mistral").folder();
    // Of a parameter, in the order of other matrices.
    let (tokens, columns) = {
        let shape = &parameter.tensors[&format!("{EMBEDDING}.base_layer.weight")].shape;
        (shape[0], shape[1])
    };
    parameter.tensors.clear();
    for (name, shape) in [("A", [RANK, columns]), ("B", [tokens, RANK])] {
        let values = vec![0.25; shape[0] * shape[1]];
        let name = format!("{EMBEDDING}.lora_{name}.weight");
        parameter.tensors.insert(name, Stored::f32(&shape, &values));
    }
    let other = parameter.load(&model).unwrap();
    let both = [scaled(&adapter, 1.0), scaled(&other, -0.5)];
    let sets = [&both[..0], &both[..1], &both[1..], &both[..]];
    let make = || sets.map(|set| with(&model, set, &TOKENS));
    let mut alone = make();
    let tokens: Vec<Vec<u32>> = alone.iter_mut().map(|s| decode(s, 5)).collect();
    let mut together = make();
    assert_eq!(decode_together(&mut together, 5), tokens);
    let mut different: Vec<_> = alone.iter_mut().map(bits).collect();
    let batched: Vec<_> = together.iter_mut().map(bits).collect();
    assert_eq!(different, batched);
    different.sort();
    different.dedup();
    assert_eq!(different.len(), 4);
}

#[test]
fn what_is_wrong_with_an_embedding_is_named() {
    const A: &str = "base_model.model.model.embed_tokens.lora_embedding_A";
    const B: &str = "base_model.model.model.embed_tokens.lora_embedding_B";
    const WHOLE: &str = "base_model.model.model.embed_tokens.base_layer.weight";
    let model = model("mistral");
    let cases: &[Case<'_>] = &[
        (|f| drop(f.tensors.remove(A)), Status::MissingTensor, A),
        (|f| drop(f.tensors.remove(B)), Status::MissingTensor, B),
        (|f| resize(f, WHOLE, &[5, 5]), Status::ShapeMismatch, WHOLE),
        (
            |f| rename(f, "embed_tokens.base", "norm.base"),
            Status::Unsupported,
            "norm.base",
        ),
        (
            |f| rename(f, "embed_tokens", "layers.0.self_attn.q_proj"),
            Status::Unsupported,
            "no token embedding",
        ),
        (
            |f| f.config["r"] = json!(2),
            Status::ShapeMismatch,
            "rank 3",
        ),
        (
            |f| rename(f, "embed_tokens", "norm"),
            Status::Unsupported,
            "model.norm",
        ),
    ];
    let halves = || {
        let mut files = Numbers::of("mistral").folder();
        for t in files.tensors.values_mut() {
            // As `resize` has them.
            let halves = t.bytes.as_chunks().0.iter();
            let half = |x: &[u8; 4]| f16::from_f32(f32::from_le_bytes(*x)).to_le_bytes();
            t.bytes = halves.flat_map(half).collect();
            t.ty = "F16".to_owned();
        }
        files
    };
    refused(&model, halves, cases);
    // Of another vocabulary, in both forms.
    let other = Numbers::of("gpt2");
    let e = other.folder().load(&model).err().unwrap();
    assert_eq!(e.status, Status::ShapeMismatch, "{e}");
    let dir = TempDir::new("embedding");
    let path = dir.file("adapter.gguf", &other.gguf("llama"));
    let e = Adapter::load(model.clone(), &path).err().unwrap();
    assert_eq!(e.status, Status::ShapeMismatch, "{e}");
    assert!(e.message.contains("token_embd"), "{e}");
}
