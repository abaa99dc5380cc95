//! Families that came later, made in code of the tiny models of others: as GGUF files and as folders, against the plain evaluation of
//! their networks.

use crate::common::edit::Edited;
use crate::common::folder::{Folder, Stored};
use crate::common::later::{
    add_post_norms, codeshell, dbrx, deci, deepseek, falcon_rw, falling, flex_olmo, gpt_neo,
    hunyuan_vl, hyperclova, jais, kimi_layers, kimi_linear, lfm3, ling_1, ling_3, llama_embed,
    maincoder, mpt, muse_glimmer, nanbeige, norm_embeddings, olmo_hybrid, openelm, plamo_3, plm,
    qwen_1, refact, spark, step, vault_gemma,
};
use crate::common::variants::Both;
use crate::variants::{agrees, agrees_over, network_of};
use emberlm::Status;
use emberlm::format::{Array, Value};
use emberlm::model::{Activation, FeedForward, Mixer, Network};
use emberlm::quant::TensorType;
use serde_json::json;

/// A folder by another `model_type` and class.
fn renamed(family: &str, model_type: &str, class: &str) -> Folder {
    let mut folder = Folder::family(family);
    folder.set("model_type", json!(model_type));
    folder.set("architectures", json!([class]));
    folder
}

fn described(file: &Edited) -> Network {
    Network::from_file(&file.open()).unwrap()
}

fn bits(folder: &Folder) -> Vec<u32> {
    agrees(&network_of(folder))
}

/// The message of a folder that is not supported with this value of its config.
fn refused(folder: &Folder, key: &str, value: serde_json::Value) {
    let mut folder = folder.clone();
    folder.set(key, value);
    let e = match folder.open() {
        Ok(file) => Network::from_file(&file).unwrap_err(),
        Err(e) => e,
    };
    assert_eq!(e.status, Status::Unsupported, "{e}");
    assert!(e.message.contains(key), "{key}: {e}");
}

/// The window of each layer.
fn windows(network: &Network) -> Vec<Option<usize>> {
    let attention = network.blocks.iter().map(|b| b.mixer.as_attention());
    attention.map(|a| a.unwrap().window).collect()
}

#[test]
fn relatives_of_llama_are_read_as_llama() {
    let mut plain = Folder::family("mistral");
    plain.set("sliding_window", json!(null));
    let expected = bits(&plain);
    let mut iquest = renamed("mistral", "iquestcoder", "LlamaForCausalLM");
    iquest.set("sliding_window", json!(null));
    assert_eq!(bits(&iquest), expected);
    refused(&iquest, "clip_qkv", json!(8.0));
    refused(&iquest, "use_sliding_window", json!(true));

    // Its rows are in GGUF's order.
    let mut helium = renamed("mistral", "helium", "HeliumForCausalLM");
    for (name, stored) in &mut helium.tensors {
        if name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight") {
            let row = stored.bytes.len() / stored.shape[0];
            let rows = stored.bytes.clone();
            for (i, out) in stored.bytes.chunks_exact_mut(row).enumerate() {
                let (first, i) = (i - i % 24, i % 24);
                let from = first + i % 2 * 12 + i / 2;
                out.copy_from_slice(&rows[from * row..][..row]);
            }
        }
    }
    assert_eq!(bits(&helium), expected);

    let mut cwm = renamed("mistral", "cwm", "CwmForCausalLM");
    cwm.set("sliding_window", json!(5));
    let network = network_of(&cwm);
    // All but every fourth, from the first one on.
    assert_eq!(windows(&network), [None, Some(5)]);
    agrees(&network);
    cwm.set(
        "layer_types",
        json!(["sliding_attention", "full_attention"]),
    );
    assert_eq!(windows(&network_of(&cwm)), [Some(5), None]);
    cwm.config.remove("rope_parameters");
    let e = cwm.open().unwrap_err();
    assert_eq!(e.status, Status::MissingKey, "{e}");
}

/// Models that see: the text part is another family's.
#[test]
fn text_parts_are_read_as_the_families_that_they_are() {
    let mut exaone = renamed("exaone4", "exaone4_5", "Exaone4_5_ForConditionalGeneration");
    exaone.tensors = std::mem::take(&mut exaone.tensors)
        .into_iter()
        .map(|(name, stored)| (name.replacen("model.", "model.language_model.", 1), stored))
        .collect();
    let vision = Stored::f32(&[2], &[1.0, 2.0]);
    let name = "model.visual.blocks.0.norm1.weight";
    exaone.tensors.insert(name.into(), vision.clone());
    assert_eq!(bits(&exaone), bits(&Folder::family("exaone4")));

    let class = "Gemma4UnifiedForConditionalGeneration";
    let mut gemma = renamed("gemma4", "gemma4_unified", class);
    for name in ["model.vision_embedder.x", "model.embed_vision.x"] {
        gemma.tensors.insert(name.into(), vision.clone());
    }
    assert_eq!(bits(&gemma), bits(&Folder::family("gemma4")));
    refused(&gemma, "use_bidirectional_attention", json!("all"));

    for (of, model_type, class) in [
        ("lfm2", "lfm2_vl", "Lfm2VlForConditionalGeneration"),
        ("glm4", "glm4v", "Glm4vForConditionalGeneration"),
        ("glm4_moe", "glm4v_moe", "Glm4vMoeForConditionalGeneration"),
    ] {
        let folder = renamed(of, model_type, class);
        assert_eq!(bits(&folder), bits(&Folder::family(of)), "{class}");
    }
    let mut llama = Folder::family("mistral");
    llama.set("sliding_window", json!(null));
    let expected = bits(&llama);
    for (model_type, class, prefix) in [
        (
            "smolvlm",
            "SmolVLMForConditionalGeneration",
            "model.text_model.",
        ),
        (
            "idefics3",
            "Idefics3ForConditionalGeneration",
            "model.text_model.",
        ),
        (
            "voxtral",
            "VoxtralForConditionalGeneration",
            "language_model.model.",
        ),
    ] {
        let mut whole = renamed("mistral", model_type, class);
        whole.set("sliding_window", json!(null));
        whole.tensors = std::mem::take(&mut whole.tensors)
            .into_iter()
            .map(|(name, stored)| (name.replacen("model.", prefix, 1), stored))
            .collect();
        let name = "model.connector.modality_projection.proj.weight";
        whole.tensors.insert(name.into(), vision.clone());
        whole.set("text_config", json!({"model_type": "llama"}));
        assert_eq!(bits(&whole), expected, "{class}");
        whole.set("text_config", json!({"model_type": "mistral"}));
        let e = whole.open().unwrap_err();
        assert_eq!(e.status, Status::Unsupported, "{e}");
    }

    let class = "KimiK25ForConditionalGeneration";
    let mut kimi = renamed("deepseek_v3", "kimi_k25", class);
    kimi.tensors = std::mem::take(&mut kimi.tensors)
        .into_iter()
        .map(|(name, stored)| (format!("language_model.{name}"), stored))
        .collect();
    for name in ["vision_tower.x", "mm_projector.x"] {
        kimi.tensors.insert(name.into(), vision.clone());
    }
    assert_eq!(bits(&kimi), bits(&Folder::family("deepseek_v3")));
}

#[test]
fn hyperclova_x_is_granite_with_norms_behind_both_parts() {
    let mut model = hyperclova();
    model.check("hyperclovax", true);
    assert_eq!(bits(&model.folder), bits(&Folder::family("granite")));
    add_post_norms(&mut model);
    let network = model.check("hyperclovax", true);
    assert_eq!(network.logit_scale, 0.5);
    assert!(network.blocks[1].feed_forward_post_norm.is_some());
    model.without(
        "blk.1.post_ffw_norm.weight",
        "model.layers.1.post_norm2.weight",
    );
}

#[test]
fn vault_gemma_is_gemma_2_without_norms_behind_parts() {
    let model = vault_gemma();
    let network = model.check("vaultgemma", true);
    assert!(network.blocks[0].mixer_post_norm.is_none());
    let attention = |i: usize| network.blocks[i].mixer.as_attention().unwrap();
    assert_eq!((attention(0).window, attention(1).window), (Some(8), None));
    assert_eq!(attention(0).score_cap, Some(2.0));
}

#[test]
fn lfm_3_has_windows_gates_and_norms_behind_parts() {
    let mut model = lfm3();
    let width = model.folder.config.remove("block_auto_adjust_ff_dim");
    assert_eq!(width, Some(json!(true)));
    model.folder.set("intermediate_size", json!(40));
    model.folder.set("head_dim", json!(16));
    model.folder.set("sliding_window", json!(5));
    model.folder.set(
        "layer_types",
        json!(["conv", "full_attention", "sliding_attention", "conv"]),
    );
    let rope = |kind: &str, theta: f64, share: f64| json!({"rope_type": kind, "rope_theta": theta, "partial_rotary_factor": share});
    let both = |full, local| json!({"full_attention": full, "sliding_attention": local});
    let usual = both(rope("default", 1e4, 0.5), rope("default", 2500.0, 1.0));
    model.folder.set("rope_parameters", usual);
    let network = model.check("lfm3", true);
    let attention = network.blocks[2].mixer.as_attention().unwrap();
    assert_eq!(attention.window, Some(5));
    assert_eq!(attention.gate.as_ref().unwrap().weight.rows(), 3);
    model.without(
        "blk.2.attn_gate.weight",
        "model.layers.2.self_attn.gate_proj.weight",
    );
    model.without(
        "blk.0.post_ffw_norm.weight",
        "model.layers.0.post_ffn_norm.weight",
    );
    // Frequencies of whole heads, of which the first ones turn.
    let proportional = both(rope("proportional", 1e4, 0.5), rope("default", 2500.0, 1.0));
    model.folder.set("rope_parameters", proportional);
    let network = network_of(&model.folder);
    agrees(&network);
    let frequencies = &network.blocks[1].mixer.rope().unwrap().inv_freq;
    assert!(frequencies.len() == 8 && frequencies[3] > 0.01 && frequencies[4] < 1e-20);
    for wrong in [rope("linear", 2500.0, 1.0), rope("default", 2500.0, 0.5)] {
        let e = {
            let mut folder = model.folder.clone();
            folder.set("rope_parameters", both(rope("default", 1e4, 1.0), wrong));
            folder.open().unwrap_err()
        };
        assert_eq!(e.status, Status::Unsupported, "{e}");
        assert!(e.message.contains("sliding_attention"), "{e}");
    }
}

#[test]
fn step_3_5_has_gates_heads_by_layer_and_limits() {
    let mut model = step();
    let network = model.check("step35", true);
    let experts = network.blocks[1].feed_forward.experts().unwrap();
    assert_eq!(experts.activation, Activation::LimitedSilu { limit: 0.02 });
    let shared = &experts.shared.as_ref().unwrap().mlp;
    assert_eq!(shared.activation, Activation::Silu);
    let rotated = |layer: usize| 2 * network.blocks[layer].mixer.rope().unwrap().inv_freq.len();
    assert_eq!((rotated(0), rotated(1)), (8, 16));
    model.without(
        "blk.1.attn_gate.weight",
        "model.layers.1.self_attn.g_proj.weight",
    );
    model.refused("step35.moe_every_n_layers", 2u32, Status::Unsupported);
    let wrong = Value::Array(Array::F32(vec![1.0]));
    model.refused("step35.swiglu_clamp_exp", wrong, Status::InvalidModel);
    for (key, value) in [
        ("partial_rotary_factors", json!([1.0, 1.0])),
        ("rope_theta", json!([1e4])),
        ("norm_expert_weight", json!(false)),
        ("sparse_attention_config", json!({})),
        (
            "attention_other_setting",
            json!({"num_attention_groups": 2}),
        ),
    ] {
        let mut folder = model.folder.clone();
        folder.set(key, value);
        let e = folder.open().unwrap_err();
        assert!(
            [Status::Unsupported, Status::InvalidModel].contains(&e.status),
            "{key}: {e}"
        );
    }
    // Scaling of the half of a head that layers without a window rotate.
    model.folder.set(
        "rope_scaling",
        json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32}),
    );
    let folder = network_of(&model.folder);
    agrees(&folder);
    let frequencies = |network: &Network| network.blocks[0].mixer.rope().unwrap().inv_freq.clone();
    assert!(frequencies(&folder)[3] < frequencies(&network)[3]);
    assert_eq!(
        folder.blocks[1].mixer.rope(),
        network.blocks[1].mixer.rope()
    );
}

#[test]
fn dbrx_has_layer_norms_limits_and_experts() {
    let mut model = dbrx();
    let network = Network::from_file(&model.open()).unwrap();
    agrees(&network);
    assert_eq!(
        network.blocks[1].mixer.as_attention().unwrap().clip,
        Some(0.4)
    );
    let tensor = model
        .tensors
        .remove("blk.1.attn_output_norm.weight")
        .unwrap();
    assert_eq!(tensor.ty, TensorType::F32);
    let e = Network::from_file(&model.open()).unwrap_err();
    assert_eq!(e.status, Status::MissingTensor, "{e}");
}

fn slopes(network: &Network) -> Vec<f32> {
    let attention = network.blocks[1].mixer.as_attention().unwrap();
    attention.slopes.as_ref().unwrap().to_vec()
}

/// A length of context for which heads read several segments of the cache.
fn long_text_agrees(network: &Network) {
    let network = Network {
        context_length: 400,
        ..network.clone()
    };
    agrees_over(&network, 300);
}

/// Tensors of the file in a folder as BLOOM and Falcon have them: matrices the other way round, with queries, keys and values of each
/// head together.
fn store_heads_together(model: &mut Both) {
    let file = model.file.clone();
    model.folder.tensors.clear();
    for (name, tensor) in &file.tensors {
        let name = name.replace("blk.", "transformer.h.");
        let mut name = name.replace("token_embd.", "transformer.word_embeddings.");
        for (gguf, own) in [
            ("output_norm.", "transformer.ln_f."),
            ("attn_norm.", "input_layernorm."),
            ("ffn_norm.", "post_attention_layernorm."),
            ("attn_qkv.", "self_attention.query_key_value."),
            ("attn_output.", "self_attention.dense."),
            ("ffn_up.", "mlp.dense_h_to_4h."),
            ("ffn_down.", "mlp.dense_4h_to_h."),
        ] {
            name = name.replace(gguf, own);
        }
        let row = tensor.bytes.len() / tensor.dims.last().unwrap();
        let mut bytes = tensor.bytes.clone();
        if name.contains("query_key_value") {
            for (i, out) in bytes.chunks_exact_mut(row).enumerate() {
                let (head, part, i) = (i / 48, i / 16 % 3, i % 16);
                let from = part * 48 + head * 16 + i;
                out.copy_from_slice(&tensor.bytes[from * row..][..row]);
            }
        }
        let shape: Vec<usize> = tensor.dims.iter().rev().copied().collect();
        let ty = "F32".to_owned();
        model
            .folder
            .tensors
            .insert(name, Stored { ty, shape, bytes });
    }
}

#[test]
fn bloom_norms_embeddings_and_its_scores_fall_with_the_distance() {
    let mut model = falling("bloom");
    model.folder.config = serde_json::Map::new();
    for (key, value) in [
        ("architectures", json!(["BloomForCausalLM"])),
        ("model_type", json!("bloom")),
        ("n_embed", json!(48)),
        ("vocab_size", json!(96)),
        ("n_layer", json!(2)),
        ("n_head", json!(3)),
    ] {
        model.folder.set(key, value);
    }
    store_heads_together(&mut model);
    norm_embeddings(&mut model);
    let network = model.check("bloom", true);
    // Of three heads: two of a power of two, and one between those of four.
    let expected = [-4.0f32, -8.0, -2.0].map(f32::exp2);
    assert_eq!(slopes(&network), expected);
    long_text_agrees(&network);
    model.without(
        "token_embd_norm.bias",
        "transformer.word_embeddings_layernorm.bias",
    );
    refused(
        &model.folder,
        "apply_residual_connection_post_layernorm",
        json!(true),
    );
}

#[test]
fn falcon_rw_is_sequential_and_its_scores_fall_with_the_distance() {
    let mut model = falling("falcon");
    model.file = falcon_rw();
    model.folder.config = serde_json::Map::new();
    for (key, value) in [
        ("architectures", json!(["FalconForCausalLM"])),
        ("model_type", json!("falcon")),
        ("alibi", json!(true)),
        ("bias", json!(true)),
        ("multi_query", json!(false)),
        ("parallel_attn", json!(false)),
        ("hidden_size", json!(48)),
        ("vocab_size", json!(96)),
        ("num_hidden_layers", json!(2)),
        ("num_attention_heads", json!(3)),
    ] {
        model.folder.set(key, value);
    }
    store_heads_together(&mut model);
    let network = model.check("falcon", true);
    // Those of three heads, by the scale of the scores.
    let expected = [-6.0f32, -10.0, -4.0].map(f32::exp2);
    assert_eq!(slopes(&network), expected);
    assert!(!network.blocks[0].parallel);
    long_text_agrees(&network);

    let mut rotary = model.folder.clone();
    rotary.set("alibi", json!(false));
    let rotary = network_of(&rotary);
    assert!(
        rotary.blocks[1]
            .mixer
            .as_attention()
            .unwrap()
            .slopes
            .is_none()
    );
    agrees(&rotary);
    refused(&model.folder, "new_decoder_architecture", json!(true));
    let own = "transformer.h.1.post_attention_layernorm";
    model.without("blk.1.ffn_norm.bias", &format!("{own}.bias"));
    // Most files of sequential layers that lack the key are those of models with slopes.
    let mut file = falcon_rw();
    let key = "falcon.attention.max_alibi_bias";
    file.metadata.remove(key).unwrap();
    let e = Network::from_file(&file.open()).unwrap_err();
    assert_eq!(e.status, Status::MissingKey, "{e}");
    assert!(e.message.contains(key), "{e}");
}

#[test]
fn gpt2_has_scales_of_scores_by_layer_or_none() {
    let scales = |settings: &[&str]| {
        let mut folder = Folder::family("gpt2");
        for key in ["scale_attn_weights", "scale_attn_by_inverse_layer_idx"] {
            folder.set(key, json!(settings.contains(&key)));
        }
        let network = network_of(&folder);
        agrees(&network);
        let attention = network.blocks.iter().map(|b| b.mixer.as_attention());
        attention.map(|a| a.unwrap().scale).collect::<Vec<_>>()
    };
    assert_eq!(scales(&["scale_attn_weights"]), [0.25, 0.25]);
    assert_eq!(scales(&[]), [1.0, 1.0]);
    let by_layer = "scale_attn_by_inverse_layer_idx";
    assert_eq!(scales(&[by_layer]), [1.0, 0.5]);
    assert_eq!(scales(&["scale_attn_weights", by_layer]), [0.25, 0.125]);
}

#[test]
fn gpt_neo_has_windows_and_no_scale() {
    let mut model = gpt_neo();
    let network = model.check("gptneo", true);
    assert_eq!(windows(&network), [None, Some(6)]);
    let attention = network.blocks[0].mixer.as_attention().unwrap();
    assert_eq!(attention.scale, 1.0);
    // Without the short form, or with neither, layers take turns.
    for layers in [json!(["global", "local"]), json!(null)] {
        model.folder.config.remove("attention_types");
        model.folder.set("attention_layers", layers);
        assert_eq!(windows(&network_of(&model.folder)), [None, Some(6)]);
    }
    model
        .folder
        .set("attention_layers", json!(["local", "local"]));
    assert_eq!(windows(&network_of(&model.folder)), [Some(6); 2]);
    for (key, value) in [
        ("attention_layers", json!(["local"])),
        ("attention_layers", json!(["local", "strided"])),
        ("attention_types", json!([[["global"], 1_000_000]])),
        ("attention_types", json!([[["global"], 3.5]])),
    ] {
        let mut folder = gpt_neo().folder;
        folder.config.remove("attention_types");
        let e = folder.set(key, value).open().unwrap_err();
        assert_eq!(e.status, Status::InvalidModel, "{e}");
        assert!(e.message.contains(key), "{e}");
    }
}

/// GPT-Neo's tensors by OPT's names, with two rows in front of the first position's.
#[test]
fn opt_counts_positions_from_2_on() {
    let mut folder = gpt_neo().folder;
    let tensors = std::mem::take(&mut folder.tensors).into_iter();
    folder.tensors = tensors
        .map(|(name, mut tensor)| {
            let mut name = name.replace("transformer.h.", "model.decoder.layers.");
            for (from, to) in [
                ("transformer.wte.", "model.decoder.embed_tokens."),
                ("transformer.wpe.", "model.decoder.embed_positions."),
                ("transformer.ln_f.", "model.decoder.final_layer_norm."),
                (".ln_1.", ".self_attn_layer_norm."),
                (".ln_2.", ".final_layer_norm."),
                (".attn.attention.", ".self_attn."),
                (".mlp.c_fc.", ".fc1."),
                (".mlp.c_proj.", ".fc2."),
            ] {
                name = name.replace(from, to);
            }
            if name.contains("embed_positions") {
                let row = tensor.bytes.len() / tensor.shape[0];
                tensor.bytes.splice(..0, vec![0x55; 2 * row]);
                tensor.shape[0] += 2;
            }
            (name, tensor)
        })
        .collect();
    folder.config = serde_json::Map::new();
    for (key, value) in [
        ("architectures", json!(["OPTForCausalLM"])),
        ("model_type", json!("opt")),
        ("hidden_size", json!(48)),
        ("word_embed_proj_dim", json!(48)),
        ("ffn_dim", json!(192)),
        ("num_hidden_layers", json!(2)),
        ("num_attention_heads", json!(3)),
        ("max_position_embeddings", json!(64)),
        ("vocab_size", json!(96)),
    ] {
        folder.set(key, value);
    }
    let network = network_of(&folder);
    let positions = network.positions.as_ref().unwrap().to_f32().unwrap();
    let of_gpt_neo = Network::from_file(&gpt_neo().folder.ready()).unwrap();
    let expected = of_gpt_neo.positions.as_ref().unwrap().to_f32().unwrap();
    assert_eq!(positions, expected);
    agrees(&network);
    refused(&folder, "do_layer_norm_before", json!(false));
    refused(&folder, "enable_bias", json!(false));
    refused(&folder, "word_embed_proj_dim", json!(24));
    refused(&folder, "activation_function", json!("gelu"));
    let positions = "model.decoder.embed_positions.weight";
    let positions = folder.tensors.get_mut(positions).unwrap();
    positions.bytes.truncate(positions.bytes.len() / 66 * 2);
    positions.shape[0] = 2;
    let e = folder.open().unwrap_err();
    assert_eq!(e.status, Status::ShapeMismatch, "{e}");
    assert!(e.message.contains("embed_positions"), "{e}");
}

#[test]
fn mpt_has_slopes_or_learned_positions() {
    let mut model = mpt();
    let network = Network::from_file(&model.open()).unwrap();
    agrees(&network);
    let expected = [-3.0f64, -6.0, -1.5].map(|power| power.exp2() as f32);
    assert_eq!(slopes(&network), expected);
    model.set("mpt.attention.max_alibi_bias", 0f32);
    let e = Network::from_file(&model.open()).unwrap_err();
    assert_eq!(e.status, Status::MissingTensor, "{e}");
    let file = Both::of("gpt2", "mpt", "gpt2", "GPT2LMHeadModel").file;
    let positions = file.tensors["position_embd.weight"].clone();
    model
        .tensors
        .insert("position_embd.weight".into(), positions);
    let network = Network::from_file(&model.open()).unwrap();
    assert!(network.positions.is_some());
    agrees(&network);
}

/// Only the number of layers tells it from the one that rotates.
#[test]
fn baichuan_of_40_layers_has_slopes() {
    let mut model = Both::of("mistral", "baichuan", "mistral", "MistralForCausalLM").file;
    let window = "baichuan.attention.sliding_window";
    model.metadata.remove(window).unwrap();
    for (name, tensor) in model.tensors.clone() {
        if let Some(part) = name.strip_prefix("blk.1.") {
            for layer in 2..40 {
                model
                    .tensors
                    .insert(format!("blk.{layer}.{part}"), tensor.clone());
            }
        }
    }
    model.set("baichuan.block_count", 40u32);
    let network = Network::from_file(&model.open()).unwrap();
    assert_eq!(slopes(&network), [-4.0f32, -8.0, -2.0].map(f32::exp2));
    assert!(network.blocks[0].mixer.rope().is_none());
    agrees(&network);
}

#[test]
fn muse_glimmer_norms_embeddings_and_heads() {
    let model = muse_glimmer();
    let network = model.check("muse-glimmer", true);
    assert!(network.embedding_norm.is_some());
    let attention = |i: usize| network.blocks[i].mixer.as_attention().unwrap();
    assert!(attention(0).rope.is_some() && attention(1).rope.is_none());
    assert_eq!(
        network.blocks[1].mixer_post_norm.as_ref().unwrap().eps,
        1e-8
    );
    refused(&model.folder, "layer_rope_theta", json!([1e4, 1e4, 1e4]));
    refused(&model.folder, "post_norm_eps", json!(1e-6));
}

#[test]
fn nanochat_has_norms_without_weights_and_turns_the_other_way() {
    let mut folder = renamed("arcee", "nanochat", "NanoChatForCausalLM");
    folder.tensors = std::mem::take(&mut folder.tensors)
        .into_iter()
        .filter(|(name, _)| !name.ends_with("norm.weight"))
        .map(|(name, stored)| {
            let name = name.replace("mlp.up_proj", "mlp.fc1");
            (name.replace("mlp.down_proj", "mlp.fc2"), stored)
        })
        .collect();
    folder.tensors.retain(|name, _| !name.ends_with(".bias"));
    for flag in ["attention_bias", "mlp_bias"] {
        folder.set(flag, json!(false));
    }
    folder.set("final_logit_softcapping", json!(3.0));
    let network = network_of(&folder);
    agrees(&network);
    let attention = network.blocks[1].mixer.as_attention().unwrap();
    assert!(attention.norm_after_rope && network.embedding_norm.is_some());
    assert_eq!(attention.rope.as_ref().unwrap().inv_freq[0], -1.0);
    assert_eq!(network.logit_cap, Some(3.0));
    folder.config.remove("final_logit_softcapping");
    assert_eq!(folder.open().unwrap_err().status, Status::MissingKey);
}

#[test]
fn flex_olmo_is_olmo_2_with_experts() {
    let model = flex_olmo();
    let network = model.check("flex_olmo", true);
    assert!(!network.blocks[1].feed_forward.experts().unwrap().normalize);
    refused(&model.folder, "clip_qkv", json!(8.0));
}

#[test]
fn olmo_hybrid_has_delta_nets_with_larger_steps() {
    let mut model = olmo_hybrid();
    let network = model.check("olmo_hybrid", true);
    let net = |network: &Network| match &network.blocks[0].mixer {
        Mixer::DeltaNet(net) => (**net).clone(),
        _ => panic!("no delta net"),
    };
    assert_eq!(
        (net(&network).beta_scale, net(&network).norm.eps),
        (2.0, 1e-5)
    );
    assert!(network.blocks[1].mixer.rope().is_some());
    // As published folders have it: convolutions apart.
    let name = "model.layers.0.linear_attn.conv1d.weight";
    let joined = model.folder.tensors.remove(name).unwrap();
    let mut from = 0;
    for (part, channels) in [("q", 36), ("k", 36), ("v", 60)] {
        let end = from + channels * 16;
        let apart = Stored {
            ty: joined.ty.clone(),
            shape: vec![channels, 1, 4],
            bytes: joined.bytes[from..end].to_vec(),
        };
        model
            .folder
            .tensors
            .insert(name.replace("conv1d", &format!("{part}_conv1d")), apart);
        from = end;
    }
    model.check("olmo_hybrid", true);
    refused(&model.folder, "linear_num_value_heads", json!(6));
    model.folder.set(
        "rope_parameters",
        json!({"rope_type": "default", "rope_theta": null}),
    );
    model.folder.set("linear_allow_neg_eigval", json!(false));
    let network = network_of(&model.folder);
    agrees(&network);
    assert!(network.blocks[1].mixer.rope().is_none());
    assert_eq!(net(&network).beta_scale, 1.0);
}

#[test]
fn kimi_linear_has_steps_of_channels_and_does_not_rotate() {
    let mut model = kimi_linear(14);
    let network = model.check("kimi-linear", true);
    let Mixer::DeltaNet(net) = &network.blocks[0].mixer else {
        panic!("no delta net");
    };
    assert!(net.sigmoid_gate && net.z_short.is_some());
    assert!(
        network.blocks[1]
            .mixer
            .rope()
            .unwrap()
            .inv_freq
            .iter()
            .all(|f| *f == 0.0)
    );
    model.without(
        "blk.2.ssm_conv1d_k.weight",
        "model.layers.2.self_attn.k_conv1d.weight",
    );
    model.without(
        "blk.0.ssm_f_b.weight",
        "model.layers.0.self_attn.f_b_proj.weight",
    );
    refused(&model.folder, "mla_use_nope", json!(false));
    refused(
        &model.folder,
        "moe_router_activation_func",
        json!("softmax"),
    );
    model
        .folder
        .set("linear_attn_config", kimi_layers(14, &[2], &[1]));
    let e = model.folder.open().unwrap_err();
    assert_eq!(e.status, Status::InvalidModel, "{e}");
    assert!(e.message.contains("kda_layers"), "{e}");
}

#[test]
fn ling_3_has_a_floor_of_its_decay_and_gates_of_heads() {
    let mut model = ling_3(14);
    let network = model.check("bailingmoe3", true);
    let Mixer::Latent(attention) = &network.blocks[1].mixer else {
        panic!("no latent attention");
    };
    assert!(attention.gate.is_some() && attention.rope.inv_freq[0] == 1.0);
    let Mixer::DeltaNet(net) = &network.blocks[2].mixer else {
        panic!("no delta net");
    };
    assert!(net.decay_floor == Some(-3.0) && net.z_short.is_none());
    model.without(
        "blk.1.attn_gate.weight",
        "model.layers.1.attention.g_proj.weight",
    );
    model.refused("bailingmoe3.kda.safe_gate", false, Status::Unsupported);
    model.refused(
        "bailingmoe3.kda.gate_lower_bound",
        1f32,
        Status::InvalidModel,
    );
    refused(&model.folder, "no_kda_lora", json!(false));
    model.folder.config.remove("layer_types");
    refused(&model.folder, "layer_group_size", json!(2));
}

/// Keys and values of each head, which are those that heads share.
#[test]
fn starcoder_may_have_keys_of_each_head() {
    let one = Folder::family("starcoder");
    let mut each = one.clone();
    each.set("multi_query", json!(false));
    each.set("num_key_value_heads", json!(3));
    let (heads, head_dim) = (3, 16);
    for (name, stored) in &mut each.tensors {
        if !name.contains(".c_attn.") {
            continue;
        }
        let row = stored.bytes.len() / stored.shape[0];
        let of = |first: usize| &stored.bytes[first * row..(first + head_dim) * row];
        let head = |h: usize| [of(h * head_dim), of(48), of(64)].concat();
        stored.bytes = (0..heads).flat_map(head).collect();
        stored.shape[0] = heads * 3 * head_dim;
    }
    assert!(bits(&each) == bits(&one));
}

#[test]
fn phi_may_have_norms_of_heads() {
    let mut folder = Folder::family("phi2");
    folder.set("qk_layernorm", json!(true));
    let before = bits(&folder);
    for (layer, part) in (0..2).flat_map(|layer| [(layer, "q"), (layer, "k")]) {
        for (what, base) in [("weight", 1.0), ("bias", 0.0)] {
            let name = format!("model.layers.{layer}.self_attn.{part}_layernorm.{what}");
            let value = |i: usize| base + ((i * 7 + layer * 5 + part.len()) % 11) as f32 / 16.0;
            let values: Vec<f32> = (0..16).map(value).collect();
            folder.tensors.insert(name, Stored::f32(&[16], &values));
        }
    }
    let network = network_of(&folder);
    let attention = network.blocks[1].mixer.as_attention().unwrap();
    assert!(attention.q_norm.as_ref().unwrap().bias.is_some());
    assert!(bits(&folder) != before);
}

#[test]
fn the_largest_stablelm_has_norms_of_each_head() {
    let mut folder = Folder::family("stablelm");
    folder.set("qk_layernorm", json!(true));
    let (heads, head_dim) = (6, 8);
    for (layer, part, head) in (0..2).flat_map(|layer| {
        (0..heads).flat_map(move |head| [(layer, "q", head), (layer, "k", head / 2)])
    }) {
        let name = format!("model.layers.{layer}.self_attn.{part}_layernorm.norms.{head}.weight");
        let value = |i: usize| 1.0 + ((i * 7 + head * 5 + layer) % 11) as f32 / 16.0;
        let values: Vec<f32> = (0..head_dim).map(value).collect();
        folder
            .tensors
            .insert(name, Stored::f32(&[head_dim], &values));
    }
    let network = network_of(&folder);
    let attention = network.blocks[1].mixer.as_attention().unwrap();
    assert!(attention.own_head_norms);
    assert_eq!(attention.q_norm.as_ref().unwrap().weight.dims, [48]);
    assert!(bits(&folder) != bits(&Folder::family("stablelm")));
    let name = "model.layers.1.self_attn.k_layernorm.norms.1.weight";
    folder.tensors.remove(name);
    let e = folder.open().unwrap_err();
    assert_eq!(e.status, Status::MissingTensor, "{e}");
    assert!(e.message.contains(name), "{e}");
}

/// Where transformers leaves a choice to the config, and files to the family.
#[test]
fn choices_of_configs_are_kept() {
    let mut folder = Folder::family("qwen3moe");
    folder.set("sliding_window", json!(5));
    assert_eq!(windows(&network_of(&folder)), [None, None]);
    folder.set("use_sliding_window", json!(true));
    folder.set("max_window_layers", json!(1));
    let network = network_of(&folder);
    assert_eq!(windows(&network), [Some(5), Some(5)]);
    agrees(&network);

    let caps = |folder: &Folder| {
        let network = network_of(folder);
        let attention = network.blocks[0].mixer.as_attention().unwrap();
        (attention.score_cap, network.logit_cap)
    };
    let mut folder = Folder::family("gemma2");
    assert_eq!(caps(&folder), (Some(2.0), Some(3.0)));
    folder.set("attn_logit_softcapping", json!(null));
    folder.set("final_logit_softcapping", json!(null));
    assert_eq!(caps(&folder), (None, None));
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        folder.config.remove(key);
    }
    assert_eq!(caps(&folder), (Some(50.0), Some(30.0)));
    refused(
        &Folder::family("gemma3n"),
        "final_logit_softcapping",
        json!(null),
    );

    let llama4 = Folder::family("llama4");
    refused(
        &llama4,
        "layer_types",
        json!(["full_attention", "full_attention", "full_attention"]),
    );
}

/// Files that llama.cpp evaluates alike, to 2e-6 of the largest logit, and those with a GELU, which it approximates, to 1e-3 (release 0.3.36
/// of its Python package, caches in f32).
#[test]
fn files_of_relatives_of_llama_agree() {
    let network = described(&maincoder());
    assert!(
        network.blocks[1]
            .mixer
            .as_attention()
            .unwrap()
            .norm_after_rope
    );
    agrees(&network);

    let file = spark();
    let network = described(&file);
    assert_eq!(windows(&network), [Some(5), None]);
    let rotated = |layer: usize| 2 * network.blocks[layer].mixer.rope().unwrap().inv_freq.len();
    assert_eq!((rotated(0), rotated(1)), (24, 12));
    agrees(&network);
    for gone in [
        "attention.sliding_window_pattern",
        "attention.sliding_window",
    ] {
        let mut file = file.clone();
        let key = format!("spark2_5.{gone}");
        file.metadata.remove(key.as_str()).unwrap();
        let e = Network::from_file(&file.open()).unwrap_err();
        assert_eq!(e.status, Status::MissingKey, "{e}");
        assert!(e.message.contains(gone), "{e}");
    }

    let file = ling_1();
    let network = described(&file);
    let attention = network.blocks[0].mixer.as_attention().unwrap();
    assert_eq!((attention.head_dim, attention.scale), (16, 0.25));
    let experts = network.blocks[0].feed_forward.experts().unwrap();
    assert_eq!((experts.normalize, experts.weight_scale), (true, 1.5));
    assert_eq!(experts.shared.as_ref().unwrap().mlp.up.weight.rows(), 64);
    agrees(&network);
    let mut long = file;
    long.set("bailingmoe.rope.dimension_count", 1u32 << 20);
    let e = Network::from_file(&long.open()).unwrap_err();
    assert_eq!(e.status, Status::InvalidModel, "{e}");
    assert!(e.message.contains("rope.dimension_count"), "{e}");

    let network = described(&deepseek());
    assert!(network.blocks[0].feed_forward.experts().is_none());
    let experts = network.blocks[1].feed_forward.experts().unwrap();
    assert!(!experts.normalize);
    agrees(&network);

    let file = qwen_1();
    agrees(&described(&file));
    let mut odd = file;
    odd.set("qwen.feed_forward_length", 81u32);
    let e = Network::from_file(&odd.open()).unwrap_err();
    assert_eq!(e.status, Status::InvalidModel, "{e}");
    assert!(e.message.contains("qwen.feed_forward_length is 81"), "{e}");

    let network = described(&refact());
    let attention = network.blocks[1].mixer.as_attention().unwrap();
    assert!(attention.rope.is_none() && attention.slopes.is_some());
    agrees(&network);
    agrees(&described(&codeshell()));

    let file = openelm();
    let network = described(&file);
    let heads = |layer: usize| network.blocks[layer].mixer.as_attention().unwrap().n_heads;
    assert_eq!((heads(0), heads(1)), (2, 3));
    agrees(&network);
    for (key, wrong) in [
        ("attention.head_count", vec![2, 3, 4]),
        ("attention.head_count_kv", vec![1, 2]),
        ("feed_forward_length", vec![24, 0]),
    ] {
        let mut file = file.clone();
        file.set(&format!("openelm.{key}"), Value::Array(Array::I64(wrong)));
        let e = Network::from_file(&file.open()).unwrap_err();
        assert_eq!(e.status, Status::InvalidModel, "{e}");
        assert!(e.message.contains("openelm."), "{e}");
    }
}

/// The same of others.
#[test]
fn files_of_further_relatives_agree() {
    let file = nanbeige();
    let network = described(&file);
    assert_eq!(network.blocks.len(), 6);
    let normed = network
        .blocks
        .iter()
        .map(|b| b.feed_forward_sum_norm.is_some());
    let normed: Vec<bool> = normed.collect();
    assert_eq!(normed, [false, true, false, true, false, false]);
    let key = |layer: usize| {
        network.blocks[layer]
            .mixer
            .as_attention()
            .unwrap()
            .k
            .weight
            .id()
    };
    assert!(key(0) == key(2) && key(1) == key(5) && key(0) != key(1));
    let thrice = agrees(&network);
    let mut folder = renamed("mistral", "nanbeige", "NanbeigeForCausalLM");
    folder.set("sliding_window", json!(null));
    folder.set("num_loops", json!(3));
    assert_eq!(bits(&folder), thrice);
    let mut bare = file.clone();
    bare.set("nanbeige.skip_loop_final_norm", true);
    assert_ne!(agrees(&described(&bare)), thrice);
    for loops in [0u32, 3000] {
        let mut wrong = file.clone();
        wrong.set("nanbeige.num_loops", loops);
        let e = Network::from_file(&wrong.open()).unwrap_err();
        assert_eq!(e.status, Status::InvalidModel, "{e}");
        assert!(e.message.contains("nanbeige.num_loops"), "{e}");
    }

    let network = described(&plamo_3());
    assert_eq!(windows(&network), [Some(5), None]);
    agrees(&network);

    let network = described(&jais());
    let attention = network.blocks[1].mixer.as_attention().unwrap();
    assert_eq!(attention.scale, 1.0 / 16.0);
    assert!(attention.slopes.is_some());
    agrees(&network);

    let network = described(&plm());
    let FeedForward::Dense(mlp) = &network.blocks[1].feed_forward else {
        panic!("a dense part");
    };
    assert!(mlp.gate.is_none() && mlp.activation == Activation::ReluSquared);
    agrees(&network);

    let file = hunyuan_vl();
    let longer = agrees(&described(&file));
    let mut other = file;
    // 10,000 times 3 to the power of 20 / 18.
    let key = "hunyuan_vl.rope.scaling.alpha";
    other.metadata.remove(key).unwrap();
    let base = 10_000.0 * 3f64.powf(20.0 / 18.0);
    other.set("hunyuan_vl.rope.freq_base", base as f32);
    let apart = |a: &u32, b: &u32| (f32::from_bits(*a) - f32::from_bits(*b)).abs();
    let others = agrees(&described(&other));
    let most = longer.iter().zip(&others).map(|(a, b)| apart(a, b));
    assert!(most.fold(0f32, f32::max) < 1e-4);

    let network = described(&llama_embed());
    assert!(network.encoder.is_some());
    let attention = network.blocks[1].mixer.as_attention().unwrap();
    assert!(!attention.causal && attention.rope.is_some());
    let mut file = llama_embed();
    file.set("llama-embed.attention.causal", true);
    let decoder = described(&file);
    assert!(decoder.encoder.is_none());
    agrees(&decoder);
}

/// llama.cpp agrees, but where a layer has attention alone, which it leaves out.
#[test]
fn layers_without_parts_are_left_out() {
    for alone in [false, true] {
        let network = described(&deci(alone));
        let parts = network.blocks.iter().map(|block| {
            let is_there = !matches!(block.mixer, Mixer::Absent);
            (is_there, !matches!(block.feed_forward, FeedForward::None))
        });
        let parts: Vec<(bool, bool)> = parts.collect();
        let (both, neither) = ((true, true), (false, false));
        assert_eq!(parts, [both, (false, true), neither, (alone, false), both]);
        assert!(
            network
                .blocks
                .iter()
                .all(|b| b.mixer.state(64).fixed().is_none())
        );
        agrees(&network);
    }
    let array = |all: [i64; 5]| Value::Array(Array::I64(all.to_vec()));
    for (key, value, status) in [
        (
            "attention.head_count_kv",
            array([1, 0, 0, 0, 0]),
            Status::Unsupported,
        ),
        (
            "attention.head_count_kv",
            array([1, 0, 0, 0, 3]),
            Status::InvalidModel,
        ),
        ("attention.head_count", array([0; 5]), Status::InvalidModel),
    ] {
        let mut file = deci(false);
        file.set(&format!("deci.{key}"), value);
        let e = Network::from_file(&file.open()).unwrap_err();
        assert_eq!(e.status, status, "{e}");
        assert!(e.message.contains("deci.attention.head_count"), "{e}");
    }
}
