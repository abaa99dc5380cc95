//! What can be wrong with a file of a family: each thing is an error that names the key or tensor.

use crate::common::edit::Edited;
use crate::common::families::{FAMILIES, open_family};
use crate::common::folder::{Folder, encoders, families, safetensors};
use crate::common::later;
use crate::common::work::Driven;
use emberlm::backend::cpu::CpuWeights;
use emberlm::backend::{RunnerOptions, Weights};
use emberlm::format::{Array, ModelFile, Value};
use emberlm::model::Network;
use emberlm::{Result, Status};
use serde_json::{Map, json};
use std::sync::Arc;

fn load(edited: &Edited) -> Result<Network> {
    Network::from_file(&ModelFile::from_bytes(&edited.bytes())?)
}

/// A file of each family, and of those that came later.
fn wholes() -> impl Iterator<Item = (&'static str, Edited)> {
    let files = FAMILIES
        .iter()
        .map(|&name| (name, Edited::of(&open_family(name))));
    files.chain(later::FILES.iter().map(|(name, made)| (*name, made())))
}

/// Evaluates a few tokens, whatever comes of it.
fn evaluate(network: &Network) -> Result<()> {
    let weights: Arc<dyn Weights> = CpuWeights::load(network, 1, &mut |_| Ok(()))?;
    let options = RunnerOptions {
        context: 16,
        ..Default::default()
    };
    let mut driven = Driven::new(&weights, &options)?;
    let mut logits = vec![0.0; network.n_vocab];
    for tokens in [&[1u32, 2, 3][..], &[4]] {
        driven.extend(tokens, &Default::default())?;
        driven.runner.logits(&mut logits)?;
    }
    Ok(())
}

fn architecture(edited: &Edited) -> String {
    match &edited.metadata["general.architecture"] {
        Value::String(architecture) => architecture.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_missing_tensor_is_named() {
    let mut wrong = Vec::new();
    for (name, whole) in wholes() {
        load(&whole).unwrap();
        for tensor in whole.tensors.keys() {
            let mut edited = whole.clone();
            edited.tensors.remove(tensor);
            let is_named = match load(&edited) {
                // The head is then the embedding's; that of Phi-3.5-MoE may have biases, and each layer of MiMo V2 sinks.
                Ok(_) => {
                    tensor == "output.weight"
                        || name.contains("phi_moe") && tensor == "output.bias"
                        || name.contains("mimo") && tensor.contains("sinks")
                }
                Err(e) => e.status == Status::MissingTensor && e.message.contains(tensor.as_str()),
            };
            if !is_named {
                wrong.push(format!("{name}: {tensor}: {:?}", load(&edited).err()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn each_misshapen_tensor_is_named() {
    for (name, whole) in wholes() {
        for (tensor, t) in &whole.tensors {
            for dim in 0..t.dims.len() {
                let mut edited = whole.clone();
                let wrong = edited.tensors.get_mut(tensor).unwrap();
                let less = if dim == 0 { t.ty.block_len() } else { 1 };
                if wrong.dims[dim] <= less {
                    continue;
                }
                wrong.dims[dim] -= less;
                let rows: usize = wrong.dims[1..].iter().product();
                let bytes = t.ty.row_bytes(wrong.dims[0]).unwrap() * rows;
                wrong.bytes.truncate(bytes);
                let e = load(&edited).unwrap_err();
                assert_eq!(e.status, Status::ShapeMismatch, "{name}: {e}");
                assert!(e.message.contains(tensor.as_str()), "{name}: {tensor}: {e}");
            }
        }
    }
}

/// Every key with values that nobody means: an error that names the key or a tensor that it
/// contradicts, or a network that is none the worse.
#[test]
fn impossible_hyperparameters_are_named() {
    let values: [Value; 9] = [
        0u32.into(),
        1u32.into(),
        3u32.into(),
        1_000_000_000u32.into(),
        u64::MAX.into(),
        (-1i32).into(),
        f32::NAN.into(),
        (-1f32).into(),
        "many".into(),
    ];
    for (name, whole) in wholes() {
        let prefix = format!("{}.", architecture(&whole));
        let keys = whole.metadata.keys().filter(|k| k.starts_with(&prefix));
        let keys: Vec<&String> = keys.collect();
        let check = |edited: &Edited, text: &str| {
            match load(edited) {
                Err(e) => {
                    // Some keys stand for each other, as the number of heads and their size.
                    let named = keys.iter().any(|k| e.message.contains(k.as_str()));
                    // Those of Phi-3.5-MoE's epsilon, too, of which the file has only one.
                    let other = "phimoe.attention.layer_norm_epsilon";
                    let named = named || e.message.contains(other);
                    assert!(named || e.message.contains("tensor "), "{text}: {e}");
                }
                Ok(network) if network.encoder.is_none() => {
                    if let Err(e) = evaluate(&network) {
                        assert_ne!(e.status, Status::Internal, "{text}: {e}");
                    }
                }
                Ok(_) => {}
            }
        };
        for key in &keys {
            for value in &values {
                let mut edited = whole.clone();
                edited.set(key, value.clone());
                check(&edited, &format!("{name}: {key} = {value:?}"));
            }
            let mut edited = whole.clone();
            edited.metadata.remove(key.as_str());
            check(&edited, &format!("{name}: no {key}"));
        }
    }
}

/// The same of configs of folders, whose values may be of any kind: an error that says something, or a network that is none the worse.
#[test]
fn impossible_configs_are_refused_or_harmless() {
    let values = [
        json!(0),
        json!(3),
        json!(1_000_000_000),
        json!(u64::MAX),
        json!(-1),
        json!(1e30),
        json!(null),
        json!("many"),
        json!([]),
        json!([1, "two", 3]),
        json!({}),
        json!(true),
    ];
    let all = families()
        .into_iter()
        .map(|name| (Folder::family(&name), name));
    let all = all.chain(
        encoders()
            .into_iter()
            .map(|name| (Folder::encoder(&name), name)),
    );
    for (folder, name) in all {
        let weights = safetensors(&folder.tensors);
        let check = |config: &Map<String, serde_json::Value>, text: &str| {
            let bytes = serde_json::to_vec(config).unwrap();
            let network = ModelFile::from_folder(&bytes, &weights).and_then(|file| {
                let network = Network::from_file(&file)?;
                file.make(1, &mut |_| Ok(()))?;
                Ok(network)
            });
            let problem = match network {
                Ok(network) if network.encoder.is_none() => evaluate(&network).err(),
                other => other.err(),
            };
            if let Some(e) = problem {
                assert_ne!(e.status, Status::Internal, "{text}: {e}");
                assert!(!e.message.is_empty(), "{text}");
            }
        };
        for (key, old) in &folder.config {
            for value in &values {
                let mut config = folder.config.clone();
                config.insert(key.clone(), value.clone());
                check(&config, &format!("{name}: {key} = {value}"));
            }
            let mut config = folder.config.clone();
            config.remove(key);
            check(&config, &format!("{name}: no {key}"));
            let inner = old.as_object().into_iter().flat_map(|inner| inner.keys());
            for inner in inner.map(String::as_str) {
                for value in &values {
                    let mut config = folder.config.clone();
                    config[key][inner] = value.clone();
                    check(&config, &format!("{name}: {key}.{inner} = {value}"));
                }
            }
            // The last of a list, and one more.
            for len in old
                .as_array()
                .into_iter()
                .flat_map(|list| [list.len(), list.len() + 1])
            {
                for value in &values {
                    let mut config = folder.config.clone();
                    let list = config[key].as_array_mut().unwrap();
                    list.resize(len, value.clone());
                    if let Some(last) = list.last_mut() {
                        *last = value.clone();
                    }
                    check(&config, &format!("{name}: {key}[{len}] = {value}"));
                }
            }
        }
    }
}

#[test]
fn contradictions_are_refused_by_key() {
    use Status::{InvalidModel, MissingKey, Unsupported};
    let cases: Vec<(&str, &str, Value, Status)> = vec![
        (
            "qwen2",
            "attention.head_count_kv",
            4u32.into(),
            InvalidModel,
        ),
        ("qwen2", "attention.head_count", 5u32.into(), InvalidModel),
        (
            "qwen3",
            "block_count",
            1_000_000_000u32.into(),
            InvalidModel,
        ),
        (
            "qwen3",
            "attention.layer_norm_rms_epsilon",
            0f32.into(),
            InvalidModel,
        ),
        (
            "mistral",
            "attention.sliding_window",
            0u32.into(),
            InvalidModel,
        ),
        (
            "gemma2",
            "attention.sliding_window",
            0u32.into(),
            InvalidModel,
        ),
        (
            "gemma2",
            "attention.sliding_window_pattern",
            true.into(),
            MissingKey,
        ),
        (
            "gemma2",
            "attn_logit_softcapping",
            0f32.into(),
            InvalidModel,
        ),
        (
            "gemma2",
            "final_logit_softcapping",
            (-3f32).into(),
            InvalidModel,
        ),
        (
            "gemma3",
            "attention.sliding_window",
            0u32.into(),
            InvalidModel,
        ),
        ("gemma3", "rope.freq_base_swa", 1f32.into(), InvalidModel),
        (
            "cohere2",
            "attention.sliding_window",
            0u32.into(),
            InvalidModel,
        ),
        ("cohere2", "logit_scale", 0f32.into(), InvalidModel),
        (
            "olmo3",
            "attention.sliding_window_pattern",
            7f32.into(),
            MissingKey,
        ),
        (
            "gpt_oss",
            "attention.sliding_window",
            0u32.into(),
            InvalidModel,
        ),
        ("gpt_oss", "expert_used_count", 9u32.into(), InvalidModel),
        ("mixtral", "expert_used_count", 0u32.into(), InvalidModel),
        ("qwen3moe", "expert_count", 0u32.into(), InvalidModel),
        ("granite", "residual_scale", 0f32.into(), InvalidModel),
        (
            "granite",
            "embedding_scale",
            f32::INFINITY.into(),
            InvalidModel,
        ),
        ("granite", "logit_scale", 0f32.into(), InvalidModel),
        (
            "phi3",
            "rope.scaling.original_context_length",
            0u32.into(),
            InvalidModel,
        ),
        ("phi3", "rope.dimension_count", 11u32.into(), InvalidModel),
        ("phi2", "rope.dimension_count", 0u32.into(), InvalidModel),
        (
            "phi2",
            "attention.layer_norm_epsilon",
            f32::NAN.into(),
            InvalidModel,
        ),
        ("glm4", "nextn_predict_layers", 2u32.into(), InvalidModel),
        (
            "glm4_moe",
            "nextn_predict_layers",
            3u32.into(),
            InvalidModel,
        ),
        ("glm4_moe", "expert_group_count", 3u32.into(), InvalidModel),
        (
            "glm4_moe",
            "expert_group_used_count",
            5u32.into(),
            InvalidModel,
        ),
        (
            "glm4_moe",
            "expert_group_used_count",
            1u32.into(),
            InvalidModel,
        ),
        (
            "glm4_moe",
            "leading_dense_block_count",
            4u32.into(),
            InvalidModel,
        ),
        ("glm4_moe", "expert_gating_func", 9u32.into(), Unsupported),
        (
            "ernie4_5_moe",
            "interleave_moe_layer_step",
            0u32.into(),
            InvalidModel,
        ),
        (
            "ernie4_5_moe",
            "expert_shared_count",
            u64::MAX.into(),
            InvalidModel,
        ),
        (
            "ministral3",
            "attention.temperature_scale",
            f32::NAN.into(),
            InvalidModel,
        ),
        (
            "ministral3",
            "attention.temperature_length",
            0u32.into(),
            InvalidModel,
        ),
        (
            "ministral3",
            "rope.scaling.yarn_log_multiplier",
            (-1f32).into(),
            InvalidModel,
        ),
        (
            "exaone4",
            "attention.sliding_window",
            1.5f32.into(),
            MissingKey,
        ),
        (
            "deepseek_v3",
            "attention.kv_lora_rank",
            0u32.into(),
            InvalidModel,
        ),
        (
            "deepseek_v3",
            "rope.dimension_count",
            20u32.into(),
            InvalidModel,
        ),
        (
            "deepseek_v3",
            "rope.dimension_count",
            7u32.into(),
            InvalidModel,
        ),
        ("lfm2", "attention.causal", false.into(), Unsupported),
        (
            "gemma4",
            "attention.head_count_kv",
            2u32.into(),
            InvalidModel,
        ),
        (
            "gemma4",
            "attention.value_length_swa",
            11u32.into(),
            Unsupported,
        ),
        (
            "gemma4",
            "rope.dimension_count_swa",
            14u32.into(),
            InvalidModel,
        ),
        ("gemma4_moe", "expert_used_count", 8u32.into(), InvalidModel),
        (
            "gemma4_e",
            "attention.shared_kv_layers",
            6u32.into(),
            InvalidModel,
        ),
        (
            "gemma4_e",
            "attention.shared_kv_layers",
            5u32.into(),
            InvalidModel,
        ),
        (
            "gemma4_e",
            "embedding_length_per_layer_input",
            u64::MAX.into(),
            InvalidModel,
        ),
        ("gemma3n", "altup.num_inputs", 1u32.into(), InvalidModel),
        ("gemma3n", "altup.num_inputs", 17u32.into(), InvalidModel),
        ("gemma3n", "altup.active_idx", 3u32.into(), InvalidModel),
        (
            "gemma3n",
            "embedding_length_per_layer_input",
            0u32.into(),
            InvalidModel,
        ),
        (
            "gemma3n",
            "attention.shared_kv_layers",
            7u32.into(),
            InvalidModel,
        ),
        (
            "gemma3n",
            "attention.shared_kv_layers",
            6u32.into(),
            InvalidModel,
        ),
        (
            "gemma3n",
            "activation_sparsity_scale",
            Value::Array(Array::F32(vec![0.5; 6])),
            InvalidModel,
        ),
        (
            "gemma3n",
            "activation_sparsity_scale",
            Value::Array(Array::F32(vec![f32::NAN; 7])),
            InvalidModel,
        ),
        (
            "llama4",
            "attention.sliding_window_pattern",
            Value::Array(Array::Bool(vec![true; 2])),
            InvalidModel,
        ),
        (
            "llama4",
            "attention.temperature_scale",
            (-1f32).into(),
            InvalidModel,
        ),
        (
            "llama4",
            "attention.temperature_length",
            0u32.into(),
            InvalidModel,
        ),
        (
            "llama4",
            "interleave_moe_layer_step",
            0u32.into(),
            InvalidModel,
        ),
        ("llama4", "expert_used_count", 4u32.into(), InvalidModel),
        ("olmo", "attention.clamp_kqv", 0f32.into(), InvalidModel),
        ("olmo", "attention.clamp_kqv", f32::NAN.into(), InvalidModel),
        (
            "minicpm3",
            "rope.dimension_count",
            12u32.into(),
            InvalidModel,
        ),
        ("minicpm3", "residual_scale", 0f32.into(), InvalidModel),
        ("falcon_h1", "ssm.group_count", 3u32.into(), InvalidModel),
        ("falcon_h1", "ssm.inner_size", 61u32.into(), InvalidModel),
        ("falcon_h1", "ssm.conv_kernel", 1u32.into(), InvalidModel),
        (
            "falcon_new",
            "attention.head_count_kv",
            4u32.into(),
            InvalidModel,
        ),
        ("mamba", "ssm.conv_kernel", 1u32.into(), InvalidModel),
        ("mamba", "ssm.inner_size", 0u32.into(), InvalidModel),
        ("mamba", "ssm.inner_size", u64::MAX.into(), InvalidModel),
        ("mamba", "ssm.state_size", 0u32.into(), InvalidModel),
        (
            "mamba",
            "ssm.state_size",
            1_000_000_000u32.into(),
            InvalidModel,
        ),
        ("mamba", "ssm.time_step_rank", 0u32.into(), InvalidModel),
        ("mamba", "ssm.dt_b_c_rms", 2u32.into(), MissingKey),
        (
            "falcon_mamba",
            "ssm.dt_b_c_rms_epsilon",
            0f32.into(),
            InvalidModel,
        ),
        ("mamba2", "ssm.conv_kernel", 1u32.into(), InvalidModel),
        ("mamba2", "ssm.inner_size", 41u32.into(), InvalidModel),
        ("mamba2", "ssm.state_size", u64::MAX.into(), InvalidModel),
        ("mamba2", "ssm.time_step_rank", 0u32.into(), InvalidModel),
        ("mamba2", "ssm.group_count", 2u32.into(), InvalidModel),
        ("bamba", "logit_scale", 0f32.into(), InvalidModel),
        ("afmoe", "embedding_scale", 0f32.into(), InvalidModel),
        ("afmoe", "expert_used_count", 5u32.into(), InvalidModel),
        (
            "afmoe",
            "leading_dense_block_count",
            4u32.into(),
            InvalidModel,
        ),
        (
            "afmoe",
            "attention.sliding_window",
            0u32.into(),
            InvalidModel,
        ),
        (
            "exaone_moe",
            "expert_group_count",
            4u32.into(),
            InvalidModel,
        ),
        (
            "exaone_moe",
            "expert_group_used_count",
            1u32.into(),
            InvalidModel,
        ),
        ("exaone_moe", "expert_count", 0u32.into(), InvalidModel),
        ("bitnet", "hidden_activation", "gelu".into(), Unsupported),
        ("bitnet", "hidden_activation", 1u32.into(), MissingKey),
        ("bitnet", "expert_count", 2u32.into(), Unsupported),
        ("bamba", "rope.dimension_count", 18u32.into(), InvalidModel),
        ("jamba", "ssm.conv_kernel", 65u32.into(), InvalidModel),
        ("jamba", "ssm.time_step_rank", u64::MAX.into(), InvalidModel),
        ("jamba", "expert_count", 0u32.into(), InvalidModel),
        ("jamba", "expert_used_count", 4u32.into(), InvalidModel),
        ("jamba", "attention.head_count", 5u32.into(), InvalidModel),
        ("gpt_neox", "use_parallel_residual", 1u32.into(), MissingKey),
        (
            "dots1",
            "leading_dense_block_count",
            4u32.into(),
            InvalidModel,
        ),
        ("cohere", "logit_scale", 0f32.into(), InvalidModel),
        ("cohere2_moe", "logit_scale", 0f32.into(), InvalidModel),
        ("cohere2_moe", "expert_count", 0u32.into(), InvalidModel),
        (
            "cohere2_moe",
            "expert_used_count",
            6u32.into(),
            InvalidModel,
        ),
        (
            "cohere2_moe",
            "leading_dense_block_count",
            6u32.into(),
            InvalidModel,
        ),
        (
            "cohere2_moe",
            "nextn_predict_layers",
            5u32.into(),
            InvalidModel,
        ),
        (
            "cohere2_moe",
            "attention.sliding_window",
            0u32.into(),
            InvalidModel,
        ),
        (
            "cohere2_moe",
            "attention.sliding_window_pattern",
            4u32.into(),
            MissingKey,
        ),
        ("granite_moe", "logit_scale", 0f32.into(), InvalidModel),
        ("olmoe", "expert_used_count", 7u32.into(), InvalidModel),
        ("lfm2", "shortconv.l_cache", 0u32.into(), InvalidModel),
        ("lfm2", "shortconv.l_cache", 1u32.into(), InvalidModel),
        ("lfm2", "shortconv.l_cache", 65u32.into(), InvalidModel),
        (
            "granite_hybrid",
            "ssm.conv_kernel",
            0u32.into(),
            InvalidModel,
        ),
        (
            "granite_hybrid",
            "ssm.conv_kernel",
            1u32.into(),
            InvalidModel,
        ),
        (
            "granite_hybrid",
            "ssm.conv_kernel",
            65u32.into(),
            InvalidModel,
        ),
        (
            "granite_hybrid",
            "ssm.time_step_rank",
            0u32.into(),
            InvalidModel,
        ),
        (
            "granite_hybrid",
            "ssm.time_step_rank",
            7u32.into(),
            InvalidModel,
        ),
        (
            "granite_hybrid",
            "ssm.group_count",
            3u32.into(),
            InvalidModel,
        ),
        (
            "granite_hybrid",
            "ssm.group_count",
            0u32.into(),
            InvalidModel,
        ),
        (
            "granite_hybrid",
            "ssm.state_size",
            0u32.into(),
            InvalidModel,
        ),
        (
            "granite_hybrid",
            "ssm.state_size",
            u64::MAX.into(),
            InvalidModel,
        ),
        (
            "granite_hybrid",
            "ssm.inner_size",
            u64::MAX.into(),
            InvalidModel,
        ),
        ("nemotron_h", "ssm.group_count", 4u32.into(), InvalidModel),
        ("nemotron_h", "ssm.inner_size", 47u32.into(), InvalidModel),
        ("nemotron_h", "ssm.conv_kernel", 0u32.into(), InvalidModel),
        ("nemotron_h", "expert_count", 4u32.into(), Unsupported),
        ("nemotron_h_moe", "expert_count", 0u32.into(), InvalidModel),
        (
            "nemotron_h_moe",
            "expert_used_count",
            9u32.into(),
            InvalidModel,
        ),
        (
            "nemotron_h_latent",
            "moe_latent_size",
            29u32.into(),
            InvalidModel,
        ),
        (
            "nemotron_h_moe",
            "nextn_predict_layers",
            6u32.into(),
            InvalidModel,
        ),
        ("qwen3_5", "ssm.conv_kernel", 0u32.into(), InvalidModel),
        ("qwen3_5", "ssm.group_count", 4u32.into(), InvalidModel),
        ("qwen3_5", "ssm.time_step_rank", 5u32.into(), InvalidModel),
        ("qwen3_5", "ssm.state_size", 0u32.into(), InvalidModel),
    ];
    for (name, key, value, status) in cases {
        let mut edited = Edited::of(&open_family(name));
        let key = format!("{}.{key}", architecture(&edited));
        let text = format!("{key} = {value:?}");
        let e = load(edited.set(&key, value)).unwrap_err();
        assert_eq!(e.status, status, "{text}: {e}");
        assert!(e.message.contains(&key), "{text}: {e}");
    }
}

#[test]
fn patterns_have_a_value_for_each_layer() {
    for (name, key, value) in [
        (
            "gemma2",
            "attention.sliding_window_pattern",
            Array::Bool(vec![true]),
        ),
        (
            "cohere2_moe",
            "attention.sliding_window_pattern",
            Array::Bool(vec![true]),
        ),
        ("smollm3", "attention.rope_pattern", Array::Bool(vec![true])),
        ("lfm2", "attention.head_count_kv", Array::U64(vec![0, 1])),
        (
            "jamba",
            "attention.head_count_kv",
            Array::U64(vec![0, 1, 0]),
        ),
        (
            "granite_hybrid",
            "attention.head_count_kv",
            Array::U64(vec![0, 2, 0, 0, 0]),
        ),
        (
            "nemotron_h",
            "attention.head_count_kv",
            Array::U64(vec![0, 0, 0, 2, 0]),
        ),
        (
            "nemotron_h",
            "feed_forward_length",
            Array::U64(vec![0, 36, 0, 0, 36]),
        ),
        (
            "nemotron_h_moe",
            "feed_forward_length",
            Array::U64(vec![0, 12, 0, 12, 0]),
        ),
        // A layer is one part.
        (
            "nemotron_h",
            "feed_forward_length",
            Array::U64(vec![0, 36, 0, 36, 36, 0]),
        ),
    ] {
        let whole = Edited::of(&open_family(name));
        let key = format!("{}.{key}", architecture(&whole));
        let mut edited = whole.clone();
        let e = load(edited.set(&key, Value::Array(value))).unwrap_err();
        assert_eq!(e.status, Status::InvalidModel, "{e}");
        assert!(e.message.contains(&key), "{e}");
    }
    let mut edited = Edited::of(&open_family("gemma2"));
    let pattern = Value::Array(Array::Bool(vec![false, true, false]));
    let network = load(edited.set("gemma2.attention.sliding_window_pattern", pattern)).unwrap();
    let windows: Vec<_> = network
        .blocks
        .iter()
        .map(|b| b.mixer.as_attention().unwrap().window)
        .collect();
    assert_eq!(windows, [None, Some(8), None]);
    let network = load(edited.set("gemma2.attention.sliding_window_pattern", 3u32)).unwrap();
    let windows: Vec<_> = network
        .blocks
        .iter()
        .map(|b| b.mixer.as_attention().unwrap().window)
        .collect();
    assert_eq!(windows, [Some(8), Some(8), None]);
}

#[test]
fn an_unknown_architecture_is_named_beside_those_that_begin_alike() {
    let mut edited = Edited::of(&open_family("qwen2"));
    for (name, alike) in [
        ("mamba7", &["such as mamba, mamba2"][..]),
        ("qwen9moe", &["qwen2", "qwen3moe", "qwen35moe"]),
        ("g", &["gpt-oss", "gemma3n", "granite"]),
        ("rwkv7", &["none of the"]),
        ("", &["none of the"]),
        ("\u{e4}", &["none of the"]),
    ] {
        let e = load(edited.set("general.architecture", name)).unwrap_err();
        assert_eq!(e.status, Status::Unsupported);
        // The message of the C ABI has so many bytes.
        assert!(e.message.len() < 1000, "{e}");
        assert!(e.message.contains(&format!("{name:?}")), "{e}");
        assert!(alike.iter().all(|part| e.message.contains(part)), "{e}");
        assert!(!e.message.contains("such as llama"), "{e}");
    }
}

/// A weight that the network does not use is refused; what is known to be none is not.
#[test]
fn unknown_tensors_are_named() {
    for &name in FAMILIES {
        let whole = Edited::of(&open_family(name));
        let with = |tensor: &str| {
            let mut edited = whole.clone();
            let some = edited.tensors.values().next().unwrap().clone();
            edited.tensors.insert(tensor.into(), some);
            load(&edited)
        };
        for tensor in [
            "blk.0.attn_q.lora_a",
            "blk.0.attn_mystery_norm.weight",
            "blk.1.ffn_down.scale",
            "output_mystery.weight",
            "cls.mystery.weight",
            "blk.1000.attn_q.weight",
        ] {
            let e = with(tensor).unwrap_err();
            let status = match (name, tensor) {
                // A matrix may have one number there.
                ("bitnet", "blk.1.ffn_down.scale") => Status::ShapeMismatch,
                _ => Status::Unsupported,
            };
            assert_eq!(e.status, status, "{name}: {tensor}: {e}");
            assert!(e.message.contains(tensor), "{name}: {tensor}: {e}");
        }
        for tensor in [
            "v.blk.0.attn_q.weight",
            "mm.input_projection.weight",
            "a.blk.0.attn_q.weight",
            "blk.0.attn_rot_embd",
        ] {
            with(tensor).unwrap_or_else(|e| panic!("{name}: {tensor}: {e}"));
        }
    }
}

/// A head size that rope cannot rotate is blamed on the key that gives it.
#[test]
fn odd_heads_are_blamed_on_their_key() {
    let whole = Edited::of(&open_family("qwen3"));
    let mut edited = whole.clone();
    edited.metadata.remove("qwen3.rope.dimension_count");
    for part in ["key_length", "value_length"] {
        edited.set(&format!("qwen3.attention.{part}"), 15u32);
    }
    let e = load(&edited).unwrap_err();
    assert_eq!(e.status, Status::InvalidModel, "{e}");
    assert!(e.message.starts_with("qwen3.attention.key_length"), "{e}");
}

#[test]
fn layers_that_guess_further_tokens_ahead_are_left_out() {
    let mut edited = Edited::of(&open_family("nemotron_h_moe"));
    assert_eq!(load(&edited).unwrap().blocks.len(), 3);
    edited.set("nemotron_h_moe.nextn_predict_layers", 2u32);
    assert_eq!(load(&edited).unwrap().blocks.len(), 2);
}
