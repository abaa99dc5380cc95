//! Every family on the CPU: against Hugging Face transformers, by the tiny models of
//! `data/families/make.py`, and against itself however the work is cut.

use crate::common::convert::converted;
use crate::common::edit::Edited;
use crate::common::expected::Expected;
use crate::common::families::{self, FAMILIES, WINDOWED, open_family, with_context};
use crate::common::folder::{Folder, Stored};
use crate::common::tiny::Random;
use crate::common::work::{Driven, Step, step_batch};
use crate::common::{TempDir, cpu};
use emberlm::Status;
use emberlm::backend::cpu::CpuWeights;
use emberlm::backend::cpu::matmul::Isa;
use emberlm::backend::{KvType, LoadOptions, Runner, RunnerOptions, Weights};
use emberlm::engine::{Model, Session, SessionOptions};
use emberlm::format::{ModelFile, WeightType};
use emberlm::model::Network;
use emberlm::quant::TensorType;
use serde_json::json;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock};

static NEVER: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Transformers computes in single precision, too.
const TOLERANCE: f32 = 1e-3;
/// Of files with quantized weights, whose products are of 8-bit integers.
const QUANTIZED: f32 = 0.1;

fn describe(name: &str) -> Network {
    Network::from_file(&open_family(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn load(network: &Network, threads: usize) -> Arc<CpuWeights> {
    CpuWeights::load(network, threads, &mut |_| Ok(())).unwrap()
}

fn runner(weights: &Arc<CpuWeights>, context: usize, kv_type: KvType) -> Driven {
    let weights: Arc<dyn Weights> = weights.clone();
    Driven::with_context(&weights, context, kv_type)
}

fn logits(runner: &mut dyn Runner, n_vocab: usize) -> Vec<f32> {
    let mut out = vec![0.0; n_vocab];
    runner.logits(&mut out).unwrap();
    out
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn best(row: &[f32]) -> usize {
    let better = |best: usize, i: usize| if row[i] > row[best] { i } else { best };
    (0..row.len()).fold(0, better)
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, f32::max)
}

fn tokens(n: usize, n_vocab: usize) -> Vec<u32> {
    let mut random = Random::new(5, "tokens");
    let token = |_| (random.bits() % n_vocab as u64) as u32;
    (0..n).map(token).collect()
}

/// The logits after each piece of a text.
fn by_pieces(network: &Network) -> Vec<Vec<u32>> {
    let mut runner = runner(&load(network, 2), 64, KvType::F32);
    let step = |piece: &[u32]| {
        runner.extend(piece, &NEVER).unwrap();
        bits(&logits(&mut *runner, network.n_vocab))
    };
    tokens(30, network.n_vocab).chunks(7).map(step).collect()
}

/// Compares the logits after each token, given one by one to a session of that context.
fn compare(name: &str, file: &str, context: usize) {
    // Products with quantized weights quantize what they multiply, too.
    for model in [
        converted(&open_family(name), TensorType::F32),
        open_family(name),
    ] {
        let network = Network::from_file(&model).unwrap();
        compare_network(name, &network, file, context);
    }
}

fn compare_network(name: &str, network: &Network, file: &str, context: usize) {
    compare_with(name, network, &format!("families/{name}/{file}"), context);
}

/// The same with that file of `data/`.
fn compare_with(name: &str, network: &Network, file: &str, context: usize) {
    let mut matrices = network.blocks.iter().flat_map(|b| b.linears());
    let quantized = matrices.any(|m| m.weight.ty.block_len() > 1);
    let tolerance = if quantized { QUANTIZED } else { TOLERANCE };
    let expected = Expected::read(file);
    let weights = load(network, 2);
    let mut runner = runner(&weights, context, KvType::F32);
    let mut largest = 0f32;
    for (p, (token, theirs)) in expected.tokens.iter().zip(&expected.logits).enumerate() {
        runner.extend(&[*token], &NEVER).unwrap();
        let ours = logits(&mut *runner, network.n_vocab);
        largest = largest.max(largest_difference(&ours, theirs));
        assert!(largest < tolerance, "{name}, position {p}: {largest}");
        assert!(
            quantized || best(&ours) == best(theirs),
            "{name}, position {p}"
        );
    }
    println!("{name}: largest difference {largest:.2e}");
}

#[test]
fn every_family_agrees_with_transformers() {
    for &name in FAMILIES {
        compare(name, "logits", 64);
    }
}

/// Architectures that differ from others in names alone: the model of a family by its other name has the logits of
/// that family.
#[test]
fn relatives_by_other_names_agree_with_transformers() {
    for (architecture, of) in [
        ("internlm2", "llama_plain"),
        ("xverse", "llama_yarn"),
        ("baichuan", "llama_llama3"),
        ("pangu-embedded", "qwen2"),
        ("orion", "stablelm"),
        ("jais2", "nemotron"),
        ("minicpm", "granite"),
        ("bailingmoe2", "glm4_moe"),
        ("hy_v3", "dots1"),
        ("mellum", "qwen3moe"),
    ] {
        let (file, expected) = match of.starts_with("llama") {
            true => (families::open(of), format!("families/{of}")),
            false => (open_family(of), format!("families/{of}/logits")),
        };
        let mut edited = Edited::of(&converted(&file, TensorType::F32));
        edited.rename(architecture);
        if architecture == "bailingmoe2" {
            edited.rename_tensors("post_attention_norm", "ffn_norm");
            for end in ["weight", "bias"] {
                edited.join(
                    &["attn_q", "attn_k", "attn_v"].map(|part| format!("{part}.{end}")),
                    &format!("attn_qkv.{end}"),
                );
            }
        }
        if architecture == "hy_v3" {
            // Its converter writes the width of two shared experts as one, and not which layers have experts.
            edited.set("hy_v3.expert_shared_feed_forward_length", 16u32);
            edited.metadata.remove("hy_v3.expert_shared_count").unwrap();
            let first = "hy_v3.leading_dense_block_count";
            edited.metadata.remove(first).unwrap();
            edited.rename_tensors("exp_probs_b.bias", "exp_probs_b");
        }
        let network =
            Network::from_file(&edited.open()).unwrap_or_else(|e| panic!("{architecture}: {e}"));
        assert_eq!(network.architecture, architecture);
        compare_with(architecture, &network, &expected, 256);
    }
}

/// Folders that differ from others in names alone.
#[test]
fn folders_of_relatives_agree_with_transformers() {
    let numbers = |folder: &mut Folder, name: &str, factor: f32, more: f32| {
        let stored = &folder.tensors[name];
        let halves = stored.bytes.as_chunks().0.iter();
        let values: Vec<f32> = halves
            .map(|b| half::f16::from_le_bytes(*b).to_f32() * factor + more)
            .collect();
        let scaled = Stored::f32(&stored.shape, &values);
        folder.tensors.insert(name.to_owned(), scaled);
    };
    // Its scores have the usual factor.
    let mut minicpm = Folder::family("granite");
    minicpm.set("model_type", json!("minicpm"));
    minicpm.set("architectures", json!(["MiniCPMForCausalLM"]));
    for key in [
        "attention_multiplier",
        "embedding_multiplier",
        "residual_multiplier",
        "logits_scaling",
    ] {
        minicpm.config.remove(key);
    }
    minicpm.set("scale_emb", json!(12.0));
    minicpm.set("scale_depth", json!(0.22 * 2f64.sqrt()));
    minicpm.set("dim_model_base", json!(24));
    for layer in 0..2 {
        let name = format!("model.layers.{layer}.self_attn.q_proj.weight");
        numbers(&mut minicpm, &name, 0.1 * 4.0, 0.0);
    }
    let mut bailing = Folder::family("glm4_moe");
    bailing.set("model_type", json!("bailing_moe"));
    bailing.set("architectures", json!(["BailingMoeV2ForCausalLM"]));
    for (old, new) in [
        ("n_routed_experts", "num_experts"),
        ("n_shared_experts", "num_shared_experts"),
    ] {
        let value = bailing.config.remove(old).unwrap();
        bailing.set(new, value);
    }
    bailing.set("score_function", json!("sigmoid"));
    for layer in 0..3 {
        for end in ["weight", "bias"] {
            let parts =
                ["q", "k", "v"].map(|p| format!("model.layers.{layer}.self_attn.{p}_proj.{end}"));
            let parts = parts.map(|name| bailing.tensors.remove(&name).unwrap());
            let mut all = parts[0].clone();
            for part in &parts[1..] {
                all.shape[0] += part.shape[0];
                all.bytes.extend(&part.bytes);
            }
            let name = format!("model.layers.{layer}.attention.query_key_value.{end}");
            bailing.tensors.insert(name, all);
        }
    }
    bailing.tensors = std::mem::take(&mut bailing.tensors)
        .into_iter()
        .map(|(name, stored)| {
            let name = name
                .replace("embed_tokens", "word_embeddings")
                .replace("self_attn.o_proj", "attention.dense")
                .replace("self_attn.q_norm", "attention.query_layernorm")
                .replace("self_attn.k_norm", "attention.key_layernorm")
                .replace("e_score_correction_bias", "expert_bias");
            (name, stored)
        })
        .collect();
    // Its norms are stored as they are, not less 1.
    let mut jais = Folder::family("nemotron");
    jais.set("model_type", json!("jais2"));
    jais.set("architectures", json!(["Jais2ForCausalLM"]));
    let eps = jais.config.remove("norm_eps").unwrap();
    jais.set("layer_norm_eps", eps);
    let norms = jais.tensors.keys().filter(|n| n.ends_with("norm.weight"));
    for name in norms.cloned().collect::<Vec<_>>() {
        numbers(&mut jais, &name, 1.0, 1.0);
    }
    let mut mimo = Folder::family("qwen2");
    mimo.set("model_type", json!("mimo"));
    mimo.set("architectures", json!(["MiMoForCausalLM"]));
    mimo.set("num_nextn_predict_layers", json!(1));
    let mut mellum = Folder::family("qwen3moe");
    mellum.set("model_type", json!("mellum"));
    mellum.set("architectures", json!(["MellumForCausalLM"]));
    let mut ministral = Folder::family("mistral");
    ministral.set("model_type", json!("ministral"));
    ministral.set("architectures", json!(["MinistralForCausalLM"]));
    for (name, folder, of) in [
        ("mellum", mellum, "qwen3moe"),
        ("llama", ministral, "mistral"),
        ("qwen2", mimo, "qwen2"),
        ("jais2", jais, "nemotron"),
        ("minicpm", minicpm, "granite"),
        ("bailingmoe2", bailing, "glm4_moe"),
    ] {
        let file = folder.open().unwrap_or_else(|e| panic!("{name}: {e}"));
        let file = file.with_weights(WeightType::F32).unwrap();
        file.make(1, &mut |_| Ok(())).unwrap();
        let network = Network::from_file(&file).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(network.architecture, name);
        compare_with(name, &network, &format!("families/{of}/logits"), 64);
    }
}

/// The folder of Hy3 as it is published, and as transformers writes it, is the GGUF file.
#[test]
fn folders_of_hy3_are_its_files() {
    let all = |file: &ModelFile| {
        let network = Network::from_file(file).unwrap();
        assert_eq!(network.architecture, "hy_v3");
        by_pieces(&network)
    };
    // Its experts are in no groups.
    let mut edited = Edited::of(&converted(&open_family("dots1"), TensorType::F32));
    edited.rename("hy_v3");
    edited.set("hy_v3.expert_group_count", 1u32);
    edited.set("hy_v3.expert_shared_feed_forward_length", 16u32);
    let expected = all(&edited.open());
    let mut hy3 = Folder::family("dots1");
    hy3.set("model_type", json!("hy_v3"));
    hy3.set("architectures", json!(["HYV3ForCausalLM"]));
    for (old, new) in [
        ("n_routed_experts", "num_experts"),
        ("n_shared_experts", "num_shared_experts"),
        ("routed_scaling_factor", "router_scaling_factor"),
    ] {
        let value = hy3.config.remove(old).unwrap();
        hy3.set(new, value);
    }
    for names in [
        [
            ("mlp.gate.e_score", "mlp.e_score"),
            ("mlp.gate.", "mlp.gate."),
        ],
        [
            ("mlp.gate.e_score_correction_bias", "mlp.expert_bias"),
            ("mlp.gate.", "mlp.router.gate."),
        ],
    ] {
        let mut folder = Folder::family("dots1");
        folder.config = hy3.config.clone();
        folder.tensors = std::mem::take(&mut folder.tensors)
            .into_iter()
            .map(|(name, stored)| {
                let [bias, router] = names.map(|(old, new)| name.replace(old, new));
                let name = if bias == name { router } else { bias };
                (name, stored)
            })
            .collect();
        let file = folder.open().unwrap();
        let file = file.with_weights(WeightType::F32).unwrap();
        file.make(1, &mut |_| Ok(())).unwrap();
        assert!(all(&file) == expected, "{names:?}");
    }
}

#[test]
fn gates_and_ups_of_experts_may_be_one_matrix() {
    for name in ["qwen3moe", "deepseek_v3"] {
        let all = |file: &ModelFile| by_pieces(&Network::from_file(file).unwrap());
        let apart = open_family(name);
        let fused = Edited::of(&apart).fuse_experts().open();
        assert!(fused.tensors.contains_key("blk.1.ffn_gate_up_exps.weight"));
        assert!(all(&apart) == all(&fused), "{name}");
    }
}

#[test]
fn short_contexts_have_their_own_frequencies() {
    compare("phi3", "short", 24);
    compare("phi3", "short", 32);
    compare("minicpm3", "short", 24);
}

/// Logits, so many, of the last token, `tokens` given in chunks.
fn last(
    (weights, n_vocab): (&Arc<CpuWeights>, usize),
    tokens: &[u32],
    chunk: usize,
    kv_type: KvType,
) -> Vec<u32> {
    let mut runner = runner(weights, 64, kv_type);
    for chunk in tokens.chunks(chunk) {
        runner.extend(chunk, &NEVER).unwrap();
    }
    bits(&logits(&mut *runner, n_vocab))
}

#[test]
fn chunks_threads_and_instruction_sets_do_not_change_a_bit() {
    for &name in FAMILIES {
        let network = describe(name);
        let n_vocab = network.n_vocab;
        let tokens = tokens(45, n_vocab);
        for kv_type in [KvType::F32, KvType::F16] {
            let reference = last((&load(&network, 1), n_vocab), &tokens, 1, kv_type);
            for (threads, chunks) in [(1, [2, 45]), (2, [1, 44]), (3, [7, 45])] {
                let weights = load(&network, threads);
                for chunk in chunks {
                    let ours = last((&weights, n_vocab), &tokens, chunk, kv_type);
                    assert_eq!(
                        ours, reference,
                        "{name}: {threads} threads, chunks of {chunk}"
                    );
                }
            }
            for isa in Isa::available() {
                let weights = CpuWeights::load_for(isa, &network, 2, &mut |_| Ok(())).unwrap();
                for chunk in [1, 45] {
                    let ours = last((&weights, n_vocab), &tokens, chunk, kv_type);
                    assert_eq!(ours, reference, "{name}: {isa:?}, chunks of {chunk}");
                }
            }
        }
    }
}

#[test]
fn batches_and_forks_do_not_change_a_bit() {
    for &name in FAMILIES {
        let network = describe(name);
        let weights = load(&network, 2);
        let tokens = tokens(40, network.n_vocab);
        let mut whole = runner(&weights, 64, KvType::F32);
        whole.extend(&tokens[..30], &NEVER).unwrap();
        let mut forked = whole.fork().unwrap();
        let mut short = runner(&weights, 64, KvType::F32);
        short.extend(&tokens[..3], &NEVER).unwrap();
        // The fork goes on with the text, beside two others.
        whole.extend(&[7, 8, 9], &NEVER).unwrap();
        for (i, token) in tokens[30..].iter().enumerate() {
            let step = |token: u32| Step {
                token: Some(token),
                sampling: Default::default(),
            };
            let steps = [step(5), step(*token), step(tokens[3 + i])];
            let mut chosen = [0; 3];
            let mut runners = [&mut whole, &mut forked, &mut short];
            step_batch(&mut runners, &steps, &[&*NEVER; 3], &mut chosen).unwrap();
        }
        for (runner, text) in [(forked, &tokens[..]), (short, &tokens[..13])] {
            let mut runner = runner;
            assert_eq!(
                bits(&logits(&mut *runner, network.n_vocab)),
                last((&weights, network.n_vocab), text, 64, KvType::F32),
                "{name}"
            );
        }
    }
}

#[test]
fn a_long_text_goes_round_the_rings() {
    for &name in WINDOWED {
        let network = Network::from_file(&with_context(name, 4096).open()).unwrap();
        let (weights, n_vocab) = (load(&network, 2), network.n_vocab);
        let text = tokens(2500, n_vocab);
        let mut one = runner(&weights, 3000, KvType::F32);
        for chunk in text.chunks(911) {
            one.extend(chunk, &NEVER).unwrap();
        }
        let expected = bits(&logits(&mut *one, n_vocab));
        let mut other = runner(&weights, 3000, KvType::F32);
        other.extend(&text[..2300], &NEVER).unwrap();
        for token in &text[2300..2400] {
            other.extend(&[*token], &NEVER).unwrap();
        }
        let mut forked = other.fork().unwrap();
        // A short step back is free; the text in between leaves no trace.
        assert_eq!(other.truncate(2390), 2390);
        other.extend(&text[..60], &NEVER).unwrap();
        assert_eq!(other.truncate(2390), 2390);
        other.extend(&text[2390..], &NEVER).unwrap();
        assert_eq!(bits(&logits(&mut *other, n_vocab)), expected, "{name}");
        forked.extend(&text[2400..], &NEVER).unwrap();
        assert_eq!(bits(&logits(&mut *forked, n_vocab)), expected, "{name}");
        // One beyond the ring leaves nothing, and then everything starts anew.
        assert_eq!(other.truncate(700), 0);
        assert!(other.is_empty() && !other.has_logits());
        other.extend(&text, &NEVER).unwrap();
        assert_eq!(bits(&logits(&mut *other, n_vocab)), expected, "{name}");
    }
}

/// Where all layers have windows, only the last tokens count, and rope knows only distances: what
/// is in a ring that went round many times is what a short text would have left there.
#[test]
fn only_the_last_tokens_count_where_all_layers_have_windows() {
    let network = Network::from_file(&with_context("mistral", 4096).open()).unwrap();
    let weights = load(&network, 2);
    let text = tokens(3000, network.n_vocab);
    let mut long = runner(&weights, 3000, KvType::F32);
    long.extend(&text, &NEVER).unwrap();
    // Two layers see 6 tokens back each.
    let mut short = runner(&weights, 64, KvType::F32);
    short.extend(&text[3000 - 13..], &NEVER).unwrap();
    let (long, short) = (logits(&mut *long, 96), logits(&mut *short, 96));
    assert!(largest_difference(&long, &short) < 2e-4);
    let mut shorter = runner(&weights, 64, KvType::F32);
    shorter.extend(&text[3000 - 12..], &NEVER).unwrap();
    assert!(largest_difference(&long, &logits(&mut *shorter, 96)) > 1e-2);
}

#[test]
fn an_interrupted_text_leaves_a_session_that_goes_on() {
    let network = Network::from_file(&with_context("gemma2", 4096).open()).unwrap();
    let weights = load(&network, 2);
    let text = tokens(2600, network.n_vocab);
    let mut runner = runner(&weights, 3000, KvType::F32);
    runner.extend(&text[..300], &NEVER).unwrap();
    let set = Arc::new(AtomicBool::new(true));
    let error = runner.extend(&text[300..], &set).unwrap_err();
    assert_eq!(error.status, Status::Interrupted);
    // What a ring holds may have been overwritten, so there is nothing to go on with.
    let left = runner.len();
    assert!(left == 0 || left == 300);
    runner.extend(&text[left..500], &NEVER).unwrap();
    let mut fresh = self::runner(&weights, 3000, KvType::F32);
    fresh.extend(&text[..500], &NEVER).unwrap();
    let n = network.n_vocab;
    assert_eq!(
        bits(&logits(&mut *runner, n)),
        bits(&logits(&mut *fresh, n))
    );
}

#[test]
fn caches_hold_windows_and_estimates_know_it() {
    // Those whose layers are alike.
    for &name in WINDOWED
        .iter()
        .filter(|name| !name.starts_with("gemma4") && **name != "gemma3n")
    {
        let network = Network::from_file(&with_context(name, 100_000).open()).unwrap();
        let weights = load(&network, 1);
        let bytes = |context| {
            weights.kv_bytes(&RunnerOptions {
                context,
                kv_type: KvType::F16,
                ..RunnerOptions::default()
            })
        };
        let windows = network
            .blocks
            .iter()
            .filter(|b| b.mixer.as_attention().unwrap().window.is_some());
        let (n, windows) = (network.blocks.len() as u64, windows.count() as u64);
        let per_token = weights.kv_bytes_per_token(KvType::F16);
        if windows == n {
            assert_eq!((per_token, bytes(90_000)), (0, bytes(4096)), "{name}");
        }
        let growth = bytes(90_112) - bytes(4096);
        assert_eq!(growth, (90_112 - 4096) * per_token, "{name}");
        // Layers are alike: those with a window take no more than some chunks of 256 positions.
        let layer = bytes(256) / n / 256;
        assert_eq!(per_token, (n - windows) * layer, "{name}");
        assert!(
            bytes(90_112) < 90_112 * per_token + windows * 1300 * layer,
            "{name}"
        );

        let dir = TempDir::new("windows");
        let path = dir.file("model.gguf", &with_context(name, 100_000).bytes());
        let session = SessionOptions {
            context: 90_000,
            ..Default::default()
        };
        let (estimate, _) =
            Model::estimate(&path, cpu(), &LoadOptions::default(), &session).unwrap();
        let estimate = estimate.device;
        assert_eq!(estimate.kv_bytes, bytes(90_000), "{name}");
        assert_eq!(estimate.kv_bytes_per_token, per_token, "{name}");
    }
}

#[test]
fn sessions_rewind_as_far_as_they_like() {
    for name in [
        "cohere2",
        "falcon_h1",
        "gemma3",
        "gemma3n",
        "llama4",
        "gemma4_e",
        "jamba",
        "mistral",
        "mamba",
        "mamba2",
        "lfm2",
    ] {
        let dir = TempDir::new("rewind");
        let path = dir.file("model.gguf", &with_context(name, 4096).bytes());
        let options = LoadOptions {
            threads: 2,
            ..Default::default()
        };
        let model = Arc::new(Model::load(&path, cpu(), &options, &mut |_| Ok(())).unwrap());
        let session = SessionOptions {
            context: 3000,
            kv_type: KvType::F32,
            ..Default::default()
        };
        let text = tokens(2400, model.details().n_vocab);
        let mut one = Session::create(model.clone(), &session).unwrap();
        assert_eq!(
            one.kv_bytes(),
            model.weights().kv_bytes(&RunnerOptions {
                context: 3000,
                kv_type: KvType::F32,
                ..RunnerOptions::default()
            })
        );
        one.prefill(&text).unwrap();
        let mut expected = vec![0.0; model.details().n_vocab];
        let mut found = expected.clone();
        for keep in [2399, 2350, 1000, 700, 5, 1] {
            one.rewind(keep).unwrap();
            assert_eq!(one.position(), keep);
            let token = one.decode().unwrap();
            let mut fresh = Session::create(model.clone(), &session).unwrap();
            fresh.prefill(&text[..keep]).unwrap();
            assert_eq!(fresh.decode().unwrap(), token, "{name}, kept {keep}");
            one.logits(&mut found).unwrap();
            fresh.logits(&mut expected).unwrap();
            assert_eq!(bits(&found), bits(&expected), "{name}, kept {keep}");
            let mut forked = one.fork().unwrap();
            forked.rewind(keep / 2).unwrap();
            one.rewind(keep).unwrap();
            one.prefill(&text[keep..]).unwrap();
            if keep > 1 {
                forked.logits(&mut found).unwrap();
                fresh.rewind(keep / 2).unwrap();
                fresh.logits(&mut expected).unwrap();
                assert_eq!(bits(&found), bits(&expected), "{name}, forked at {keep}");
            }
        }
    }
}

/// A session that asks for marks every so many positions evaluates no more of them again, whatever it has done.
#[test]
fn recurrent_layers_are_evaluated_again_as_far_as_a_session_asks_for() {
    const EVERY: usize = 50;
    for name in [
        "falcon_h1",
        "lfm2",
        "qwen3_5",
        "granite_hybrid",
        "jamba",
        "mamba",
        "mamba2",
        "bamba",
        "nemotron_h_moe",
    ] {
        let file = ModelFile::from_bytes(&with_context(name, 4096).bytes()).unwrap();
        let network = Network::from_file(&file).unwrap();
        let weights: Arc<dyn Weights> = load(&network, 1);
        let options = RunnerOptions {
            context: 1500,
            kv_type: KvType::F32,
            mark_interval: EVERY,
            ..RunnerOptions::default()
        };
        let mut random = Random::new(3, name);
        let mut below = |n: usize| (random.bits() % n as u64) as usize;
        let text = tokens(1500, network.n_vocab);
        let mut runner = Driven::new(&weights, &options).unwrap();
        let mut alone = Driven::with_context(&weights, 1500, KvType::F32);
        for _ in 0..20 {
            let at = runner.runner.len();
            let end = (at + 1 + below(500)).min(1500);
            if below(2) == 0 {
                runner.extend(&text[at..end], &NEVER).unwrap();
            } else {
                for token in &text[at..end.min(at + 120)] {
                    runner.extend(std::slice::from_ref(token), &NEVER).unwrap();
                }
            }
            let wanted = below(runner.runner.len() + 1);
            let mark = runner.runner.mark_before(wanted);
            let (again, kept) = (wanted - mark.position(), mark.position());
            assert!(again <= EVERY, "{name}: {again} positions before {wanted}");
            runner.runner.rollback(mark);
            assert_eq!(runner.runner.len(), kept);
        }
        // And what was kept is what a session without marks has there.
        let kept = runner.runner.len();
        alone.extend(&text[..kept + 1], &NEVER).unwrap();
        runner.extend(&text[kept..kept + 1], &NEVER).unwrap();
        let [found, expected] =
            [&mut runner, &mut alone].map(|r| logits(&mut *r.runner, network.n_vocab));
        assert_eq!(bits(&found), bits(&expected), "{name}");
    }
}
