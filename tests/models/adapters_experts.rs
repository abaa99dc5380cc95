//! LoRA adapters of routers, of experts that these choose, and of heads of latent attention.

use super::adapters::{
    Case, Files, TOKENS, load_model, model, refused, rename, resize, same_as_merged, with,
};
use crate::common::adapters::{decode, decode_together, random_adapter, scaled};
use crate::common::folder::{Stored, family_path};
use crate::common::states::bits;
use crate::common::{TempDir, cpu};
use emberlm::backend::LoadOptions;
use emberlm::engine::speculate::DraftOptions;
use emberlm::engine::{Adapter, Model};
use emberlm::format::writer::Writer;
use emberlm::quant::TensorType;
use emberlm::{Result, Status};
use half::f16;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Mixtures of all kinds, and latent attention: those whose shared expert has a gate, whose weights are factors on inputs, beside a
/// dense part, with gate and up in one matrix, and in a space of their own.
const FAMILIES: [&str; 8] = [
    "mixtral",
    "qwen2_moe",
    "deepseek_v3",
    "llama4",
    "gemma4_moe",
    "gpt_oss",
    "nemotron_h_latent",
    "granite_hybrid_moe",
];

#[test]
fn adapters_of_experts_and_routers_are_what_their_sums_would_be() {
    let experts = ["w1", "w2", "w3", "gate"].map(|part| format!(".{part}.weight"));
    let experts: Vec<&str> = experts.iter().map(|part| &**part).collect();
    same_as_merged("mixtral", &experts, 32);
    let gates = [".shared_expert_gate.weight", ".mlp.gate.weight"];
    same_as_merged("qwen2_moe", &gates, 4);
    let heads = [".kv_b_proj.weight", ".mlp.gate.weight"];
    same_as_merged("deepseek_v3", &heads, 5);
    same_as_merged("deepseek_v2", &heads, 3);
    let latent = [".gate.weight", ".up_proj.weight", ".down_proj.weight"];
    same_as_merged("nemotron_h_latent", &latent, 26);
}

const RANKS: [usize; 2] = [2, 1];
const EXPERTS: usize = 5;
const HIDDEN: usize = 40;
const INNER: usize = 32;

fn halves(t: &Stored) -> Vec<f16> {
    let all = t.bytes.as_chunks().0.iter();
    all.map(|bytes| f16::from_le_bytes(*bytes)).collect()
}

fn stored(shape: &[usize], values: impl IntoIterator<Item = f16>) -> Stored {
    let bytes: Vec<u8> = values.into_iter().flat_map(f16::to_le_bytes).collect();
    assert_eq!(bytes.len(), 2 * shape.iter().product::<usize>());
    Stored {
        ty: "F16".to_owned(),
        shape: shape.to_vec(),
        bytes,
    }
}

/// The pair of all experts of a layer in Mixtral's adapter, gate and up or down.
fn fused(files: &Files, layer: usize, down: bool) -> [Vec<f16>; 2] {
    let inside = if down { "" } else { ".base_layer" };
    ["A", "B"].map(|half| {
        let name =
            format!("base_model.model.model.layers.{layer}.mlp.experts{inside}.lora_{half}.weight");
        halves(&files.tensors[&name])
    })
}

/// `A` and `B` of an expert, `[rank][inputs]` and `[outputs][rank]`.
fn pair_of([a, b]: &[Vec<f16>; 2], expert: usize, rank: usize) -> [Vec<f16>; 2] {
    let each = a.len() / EXPERTS;
    let own_a = a[expert * each..][..each].to_vec();
    let own_b = b.iter().skip(expert).step_by(EXPERTS).copied().collect();
    assert_eq!(each % rank, 0);
    [own_a, own_b]
}

/// Mixtral's adapter with a module for each expert, as transformers 4 has them.
fn one_by_one() -> Files {
    let mut files = Files::of("mixtral");
    for layer in 0..2 {
        for down in [false, true] {
            let (both, rank) = (fused(&files, layer, down), RANKS[usize::from(down)]);
            for expert in 0..EXPERTS {
                let [a, b] = pair_of(&both, expert, rank);
                let mut put = |name: &str, inputs: usize, b: &[f16]| {
                    let module = format!(
                        "base_model.model.model.layers.{layer}.block_sparse_moe.experts.{expert}.{name}"
                    );
                    let a = stored(&[rank, inputs], a.iter().copied());
                    let b = stored(&[b.len() / rank, rank], b.iter().copied());
                    files.tensors.insert(format!("{module}.lora_A.weight"), a);
                    files.tensors.insert(format!("{module}.lora_B.weight"), b);
                };
                if down {
                    put("w2", INNER, &b);
                } else {
                    put("w1", HIDDEN, &b[..INNER * rank]);
                    put("w3", HIDDEN, &b[INNER * rank..]);
                }
            }
        }
    }
    files
        .tensors
        .retain(|name, _| !name.contains("mlp.experts"));
    files.config["rank_pattern"] = json!({"w2": 1});
    files.config["target_parameters"] = json!(["gate.weight"]);
    files
}

/// Every form of an adapter's experts is read as the same.
#[test]
fn experts_one_by_one_and_together_are_the_same_adapter() {
    let model = model("mixtral");
    let whole = Files::of("mixtral");
    let expected = whole.load(&model).unwrap();
    assert_eq!(expected.data().max_rank, 2);
    let same = |found: Result<Adapter>, what: &str| {
        let found = found.unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(
            found.data().fingerprint,
            expected.data().fingerprint,
            "{what}"
        );
    };
    let parts = one_by_one();
    let adapter = parts.load(&model).unwrap();
    assert_eq!(adapter.data().n_tensors, parts.tensors.len());
    same(Ok(adapter), "one by one");

    // As earlier versions have them, which took rows of the matrices for columns.
    let mut turned = Files::of("mixtral");
    for layer in 0..2 {
        for down in [false, true] {
            let (both, rank) = (fused(&whole, layer, down), RANKS[usize::from(down)]);
            let (inputs, outputs) = if down {
                (INNER, HIDDEN)
            } else {
                (HIDDEN, 2 * INNER)
            };
            let inside = if down { "" } else { ".base_layer" };
            let module = format!("base_model.model.model.layers.{layer}.mlp.experts{inside}");
            let [a, b] = &both;
            // Row e * rank + k of A, and column k * EXPERTS + e of B.
            let new_a = (0..EXPERTS * rank).flat_map(|row| {
                let column = row % rank * EXPERTS + row / rank;
                (0..outputs).map(move |o| b[o * rank * EXPERTS + column])
            });
            let new_b = (0..inputs).flat_map(|i| {
                (0..EXPERTS * rank).map(move |column| {
                    let row = column % EXPERTS * rank + column / EXPERTS;
                    a[row * inputs + i]
                })
            });
            let a = stored(&[EXPERTS * rank, outputs], new_a);
            let b = stored(&[inputs, EXPERTS * rank], new_b);
            turned.tensors.insert(format!("{module}.lora_A.weight"), a);
            turned.tensors.insert(format!("{module}.lora_B.weight"), b);
        }
    }
    same(turned.load(&model), "turned");

    // A GGUF file, with the experts' matrices below each other.
    let mut writer = Writer::new();
    writer.set("general.type", "adapter");
    writer.set("general.architecture", "llama");
    writer.set("adapter.type", "lora");
    writer.set("adapter.lora.alpha", 3f32);
    let mut tensors = BTreeMap::new();
    for layer in 0..2 {
        for down in [false, true] {
            let (both, rank) = (fused(&whole, layer, down), RANKS[usize::from(down)]);
            let pairs: Vec<_> = (0..EXPERTS).map(|e| pair_of(&both, e, rank)).collect();
            let parts: &[(&str, usize, usize)] = match down {
                true => &[("ffn_down_exps", 0, HIDDEN)],
                false => &[("ffn_gate_exps", 0, INNER), ("ffn_up_exps", INNER, INNER)],
            };
            for (part, first, rows) in parts {
                let a: Vec<f16> = pairs.iter().flat_map(|p| p[0].clone()).collect();
                let b = pairs
                    .iter()
                    .flat_map(|p| &p[1][first * rank..][..rows * rank]);
                let b: Vec<f16> = b.copied().collect();
                let name = |half: &str| format!("blk.{layer}.{part}.weight.lora_{half}");
                let inputs = if down { INNER } else { HIDDEN };
                tensors.insert(name("a"), (vec![inputs, rank, EXPERTS], a));
                tensors.insert(name("b"), (vec![rank, *rows, EXPERTS], b));
            }
        }
        for (module, part) in [
            ("mlp.gate", "ffn_gate_inp"),
            ("self_attn.o_proj", "attn_output"),
        ] {
            for half in ["A", "B"] {
                let name =
                    format!("base_model.model.model.layers.{layer}.{module}.lora_{half}.weight");
                let t = &whole.tensors[&name];
                let name = format!("blk.{layer}.{part}.weight.lora_{}", half.to_lowercase());
                tensors.insert(name, (vec![t.shape[1], t.shape[0]], halves(t)));
            }
        }
    }
    for (name, (dims, _)) in &tensors {
        writer.tensor(name, TensorType::F16, dims).unwrap();
    }
    let mut bytes = Vec::new();
    let written = writer.write(&mut bytes, |entry, out| {
        let values = &tensors[&*entry.name].1;
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        out.write_all(&bytes)
    });
    written.unwrap();
    let dir = TempDir::new("experts");
    let path = dir.file("adapter.gguf", &bytes);
    same(Adapter::load(model.clone(), &path), "GGUF");
}

/// Ranks and factors may differ from expert to expert, and some may have none.
#[test]
fn experts_may_have_ranks_and_factors_of_their_own() {
    let model = model("mixtral");
    let logits = |files: &Files| {
        let adapter = files.load(&model).unwrap();
        bits(&mut with(&model, &[scaled(&adapter, 1.0)], &TOKENS))
    };
    // A factor that is a power of two changes no bits.
    let whole = one_by_one();
    let mut other = one_by_one();
    other.config["alpha_pattern"] = json!({"experts.3.w2": 0.75});
    for layer in 0..2 {
        let name = format!(
            "base_model.model.model.layers.{layer}.block_sparse_moe.experts.3.w2.lora_B.weight"
        );
        let t = &other.tensors[&name];
        let larger = halves(t)
            .into_iter()
            .map(|x| f16::from_f32(4.0 * x.to_f32()));
        let t = stored(&t.shape, larger);
        other.tensors.insert(name, t);
    }
    assert_eq!(logits(&other), logits(&whole));

    // A rank of one more with zeros in it.
    let mut other = one_by_one();
    other.config["rank_pattern"] = json!({"experts.1.w2": 2, "w2": 1});
    other.config["alpha_pattern"] = json!({"experts.1.w2": 6});
    for layer in 0..2 {
        let module = format!("base_model.model.model.layers.{layer}.block_sparse_moe.experts.1.w2");
        let name = format!("{module}.lora_A.weight");
        let a = halves(&other.tensors[&name]);
        let a = a.into_iter().chain([f16::ONE; INNER]);
        other.tensors.insert(name, stored(&[2, INNER], a));
        let name = format!("{module}.lora_B.weight");
        let b = halves(&other.tensors[&name]);
        let b = b.into_iter().flat_map(|x| [x, f16::ZERO]);
        other.tensors.insert(name, stored(&[HIDDEN, 2], b));
    }
    assert_eq!(logits(&other), logits(&whole));

    // None of one expert is zeros of it.
    let (mut none, mut zeros) = (one_by_one(), one_by_one());
    none.tensors.retain(|name, _| !name.contains(".experts.2."));
    for (name, t) in &mut zeros.tensors {
        if name.contains(".experts.2.") {
            t.bytes.fill(0);
        }
    }
    assert_eq!(logits(&none), logits(&zeros));
    assert_ne!(logits(&none), logits(&whole));
}

fn adapters(model: &Arc<Model>, family: &str) -> [Adapter; 2] {
    let path = family_path(family).join("model.gguf");
    [(1, 3, TensorType::F32), (2, 2, TensorType::BF16)]
        .map(|which| random_adapter(model, &path, which, 0.2))
}

/// A session's bits depend neither on how a text is cut, nor on threads, nor on what shares a batch.
#[test]
fn adapters_of_experts_are_exact_in_batches_and_in_pieces() {
    for family in FAMILIES {
        let model = model(family);
        let [first, second] = adapters(&model, family);
        let reach = first.data().has_experts || first.data().has_heads;
        assert!(reach, "{family}");
        let both = [scaled(&first, 1.0), scaled(&second, -0.5)];
        let sets = [&both[..0], &both[..1], &both[1..], &both[..], &both[..1]];
        let make = || sets.map(|set| with(&model, set, &TOKENS));
        let mut alone = make();
        // Token by token, and by threads of another number.
        let options = LoadOptions {
            threads: 1,
            ..Default::default()
        };
        let path = family_path(family).join("model.gguf");
        let one = Model::load(&path, cpu(), &options, &mut |_| Ok(())).unwrap();
        let one = Arc::new(one);
        let [of_one, _] = adapters(&one, family);
        let mut pieces = with(&one, &[scaled(&of_one, 1.0)], &TOKENS[..1]);
        TOKENS[1..]
            .chunks(3)
            .for_each(|few| pieces.prefill(few).unwrap());
        assert_eq!(bits(&mut pieces), bits(&mut alone[1]), "{family}");
        let mut pieces = with(&model, &both, &TOKENS[..1]);
        TOKENS[1..]
            .iter()
            .for_each(|one| pieces.prefill(&[*one]).unwrap());
        assert_eq!(bits(&mut pieces), bits(&mut alone[3]), "{family}");

        let tokens: Vec<Vec<u32>> = alone.iter_mut().map(|s| decode(s, 6)).collect();
        let mut together = make();
        assert_eq!(decode_together(&mut together, 6), tokens, "{family}");
        for (i, (a, b)) in alone.iter_mut().zip(&mut together).enumerate() {
            assert_eq!(bits(a), bits(b), "{family}, session {i}");
        }
        let mut different: Vec<_> = alone.iter_mut().take(4).map(bits).collect();
        different.sort();
        different.dedup();
        assert_eq!(different.len(), 4, "{family}");
    }
}

#[test]
fn drafts_change_nothing_with_adapters_of_experts() {
    for family in ["mixtral", "deepseek_v3", "llama4"] {
        let model = model(family);
        let [adapter, _] = adapters(&model, family);
        let repeated: Vec<u32> = TOKENS.repeat(2);
        let mut plain = with(&model, &[scaled(&adapter, 1.0)], &repeated);
        let mut drafted = with(&model, &[scaled(&adapter, 1.0)], &repeated);
        let options = DraftOptions::default();
        drafted.set_ngram_drafts(1, &options).unwrap();
        assert_eq!(decode(&mut plain, 20), decode(&mut drafted, 20), "{family}");
        assert_eq!(bits(&mut plain), bits(&mut drafted), "{family}");
    }
}

const A: &str = "base_model.model.model.layers.0.mlp.experts.lora_A.weight";
const B: &str = "base_model.model.model.layers.0.mlp.experts.lora_B.weight";

#[test]
fn what_is_wrong_with_experts_is_named() {
    let mixtral = model("mixtral");
    let together: &[Case<'_>] = &[
        (|f| drop(f.tensors.remove(A)), Status::MissingTensor, A),
        (|f| drop(f.tensors.remove(B)), Status::MissingTensor, B),
        (
            |f| f.config["target_parameters"] = json!("experts.down_proj"),
            Status::MissingKey,
            "target_parameters",
        ),
        (
            |f| f.config["target_parameters"] = json!([1]),
            Status::MissingKey,
            "target_parameters",
        ),
        (
            |f| f.config["target_parameters"] = json!(null),
            Status::Unsupported,
            "target_parameters",
        ),
        (
            |f| f.config["target_parameters"] = json!(["experts.down_proj"]),
            Status::Unsupported,
            "base_layer",
        ),
        (
            |f| f.config["rank_pattern"] = json!({}),
            Status::ShapeMismatch,
            "rank 1",
        ),
        (|f| resize(f, A, &[6, 32]), Status::ShapeMismatch, A),
        (
            |f| resize(f, A, &[5, 31]),
            Status::ShapeMismatch,
            "ffn_down_exps",
        ),
        (
            |f| resize(f, B, &[39, 5]),
            Status::ShapeMismatch,
            "ffn_down_exps",
        ),
        (|f| resize(f, B, &[40, 4]), Status::ShapeMismatch, B),
        (
            |f| {
                resize(f, A, &[4, 32]);
                resize(f, B, &[40, 4]);
            },
            Status::ShapeMismatch,
            "5 experts",
        ),
        (
            |f| rename(f, ".base_layer.", ".base_layer.base_layer."),
            Status::Unsupported,
            "target_parameters",
        ),
        (
            |f| rename(f, "layers.1.mlp.experts", "layers.7.mlp.experts"),
            Status::MissingTensor,
            "blk.7.ffn",
        ),
    ];
    refused(&mixtral, || Files::of("mixtral"), together);
    const W2: &str = "base_model.model.model.layers.0.block_sparse_moe.experts.4.w2.lora_A.weight";
    let single: &[Case<'_>] = &[
        (|f| drop(f.tensors.remove(W2)), Status::MissingTensor, W2),
        (
            |f| rename(f, "experts.4.", "experts.5."),
            Status::MissingTensor,
            "expert 5",
        ),
        (
            |f| rename(f, "experts.4.", "experts.04."),
            Status::Unsupported,
            "experts.04",
        ),
        (
            |f| rename(f, "experts.4.w2", "experts.4.w4"),
            Status::Unsupported,
            "experts.4.w4",
        ),
        (
            |f| rename(f, "experts.4.w2", "experts.18446744073709551616.w2"),
            Status::Unsupported,
            "18446744073709551616",
        ),
        (
            |f| resize(f, W2, &[1, 31]),
            Status::ShapeMismatch,
            "experts.4.w2",
        ),
        (
            |f| {
                f.config["alpha_pattern"] = json!({"experts.4.w2": 1e37});
                f.config["lora_alpha"] = json!(1e-5);
            },
            Status::InvalidModel,
            "not finite",
        ),
        (
            |f| f.config["rank_pattern"] = json!({"experts.4.w2": 2, "w2": 1}),
            Status::ShapeMismatch,
            "experts.4.w2",
        ),
    ];
    refused(&mixtral, one_by_one, single);
    // A layer without experts, and a model without any.
    let deepseek = load_model(&family_path("deepseek_v3").join("model.gguf"));
    let mut files = Files::of("deepseek_v3");
    rename(&mut files, "layers.2.mlp", "layers.0.mlp");
    files.config["target_parameters"] = json!(["0.mlp.experts.down_proj"]);
    let e = files.load(&deepseek).err().unwrap();
    assert_eq!(e.status, Status::MissingTensor, "{e}");
    let e = Files::of("mixtral").load(&model("mistral")).err().unwrap();
    assert_eq!(e.status, Status::Unsupported, "{e}");
    // Heads of another size.
    let mut files = Files::of("deepseek_v3");
    let name = "base_model.model.model.layers.0.self_attn.kv_b_proj.lora_B.weight";
    let rows = files.tensors[name].shape[0];
    resize(&mut files, name, &[rows - 1, 2]);
    let e = files.load(&deepseek).err().unwrap();
    assert_eq!(e.status, Status::ShapeMismatch, "{e}");
    assert!(e.message.contains(name), "{e}");
}
