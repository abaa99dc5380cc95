//! Hugging Face folders are read as the GGUF files that a converter would make of them.

use crate::common::expected::Expected;
use crate::common::folder::{Folder, Stored, elements, families, family_path};
use crate::common::{TempDir, repository_file};
use emberlm::Status;
use emberlm::backend::{KvType, LoadOptions};
use emberlm::engine::{Model, Session, SessionOptions, device};
use emberlm::format::{ModelFile, Value, WeightType};
use emberlm::model::Network;
use emberlm::quant::TensorType;
use emberlm::text::{EncodeOptions, Tokenizer};
use half::f16;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The keys of a file's architecture.
fn own_keys(file: &ModelFile) -> BTreeMap<String, Value> {
    let architecture = file.str("general.architecture").unwrap();
    let metadata = file.metadata.iter();
    let own = metadata.filter(|(key, _)| key.starts_with(architecture));
    own.map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// Both files have the same tensors, bit for bit after widening; all but those named are as wide.
fn assert_same_tensors(name: &str, found: &ModelFile, expected: &ModelFile) {
    let keys = |file: &ModelFile| -> Vec<Arc<str>> {
        let mut keys: Vec<_> = file.tensors.keys().cloned().collect();
        keys.sort();
        keys
    };
    assert_eq!(keys(found), keys(expected), "{name}");
    for (key, tensor) in &found.tensors {
        let expected = expected.tensor(key).unwrap();
        assert_eq!(tensor.dims, expected.dims, "{name} {key}");
        let same = elements(tensor) == elements(expected);
        assert!(same, "{name} {key}: {tensor:?} and {expected:?}");
    }
}

#[test]
fn folders_have_the_tensors_and_keys_of_their_gguf_files() {
    for name in families() {
        let folder = family_path(&name);
        let gguf = ModelFile::open(&folder.join("model.gguf")).unwrap();
        let file = ModelFile::open(&folder).unwrap_or_else(|e| panic!("{name}: {e}"));
        file.make(2, &mut |_| Ok(())).unwrap();
        assert_same_tensors(&name, &file, &gguf);
        let found = own_keys(&file);
        for (key, value) in own_keys(&gguf) {
            assert_eq!(found.get(&key), Some(&value), "{name}: {key}");
        }
        let size = |file: &str| std::fs::metadata(folder.join(file)).unwrap().len();
        assert_eq!(file.file_bytes, size("model.safetensors"));
    }
}

#[test]
fn a_folder_is_found_by_any_of_its_files() {
    let folder = family_path("qwen2");
    for file in ["", "config.json", "model.safetensors"] {
        let opened = ModelFile::open(&folder.join(file)).unwrap();
        assert_eq!(opened.str("general.architecture").unwrap(), "qwen2");
        assert_eq!(opened.str("general.name").unwrap(), "qwen2");
    }
}

/// The logits behind each of these tokens.
fn logits(folder: &Path, weights: WeightType, tokens: &[u32]) -> emberlm::Result<Vec<Vec<f32>>> {
    let cpu = (0..device::count().unwrap()).find(|&i| !device::info(i).unwrap().isa.is_empty());
    let options = LoadOptions {
        threads: 2,
        weights,
        ..Default::default()
    };
    let mut reached = 0.0;
    let model = Model::load(
        folder,
        cpu.unwrap_or(device::count().unwrap() - 1),
        &options,
        &mut |done| {
            assert!(done >= reached && done <= 1.0);
            reached = done;
            Ok(())
        },
    )?;
    let n_vocab = model.details().n_vocab;
    let options = SessionOptions {
        kv_type: KvType::F32,
        ..Default::default()
    };
    let mut session = Session::create(Arc::new(model), &options)?;
    let mut all = Vec::new();
    for token in tokens {
        let mut logits = vec![0.0; n_vocab];
        session.prefill(&[*token])?;
        session.logits(&mut logits)?;
        all.push(logits);
    }
    Ok(all)
}

/// The logits that a model gives to the tokens of a test file: largest difference, and how often
/// the best token is another.
fn difference(folder: &str, weights: WeightType) -> emberlm::Result<(f32, usize)> {
    let expected = Expected::read(&format!("families/{folder}/logits"));
    let found = logits(&family_path(folder), weights, &expected.tokens)?;
    let (mut most, mut wrong) = (0.0f32, 0);
    let best = |x: &[f32]| (0..x.len()).max_by(|&a, &b| x[a].total_cmp(&x[b]));
    for (logits, expected) in found.iter().zip(&expected.logits) {
        let pairs = logits.iter().zip(expected);
        most = pairs.fold(most, |most, (a, b)| most.max((a - b).abs()));
        wrong += usize::from(best(logits) != best(expected));
    }
    Ok((most, wrong))
}

#[test]
fn folders_give_the_logits_of_transformers() {
    for name in families() {
        let (most, wrong) =
            difference(&name, WeightType::Keep).unwrap_or_else(|e| panic!("{name}: {e}"));
        println!("{name}: {most}");
        assert!(most < 1e-3 && wrong == 0, "{name}: {most}, {wrong} other");
    }
}

#[test]
fn quantized_while_loading_they_stay_close() {
    // Rows of 40 and 48 elements are no blocks of any type: all fall back to F16. Those of 64 fit.
    for (name, weights, bound) in [
        ("qwen2", WeightType::Q4K, 1e-3),
        ("gpt_oss", WeightType::Q8_0, 1.5),
    ] {
        let (most, _) = difference(name, weights).unwrap();
        assert!(most < bound, "{name}: {most}");
        assert!(
            name != "gpt_oss" || most > 1e-3,
            "{name}: {most}, not quantized"
        );
    }
}

#[test]
#[ignore = "needs ../shared/models/hamlet"]
fn hamlets_folder_is_its_gguf_file() {
    let folder = repository_file("../shared/models/hamlet/hf");
    let load = |path: &Path, weights| {
        let cpu = (0..device::count().unwrap()).find(|&i| !device::info(i).unwrap().isa.is_empty());
        let options = LoadOptions {
            weights,
            ..Default::default()
        };
        Model::load(path, cpu.unwrap(), &options, &mut |_| Ok(())).unwrap()
    };
    let expected = Expected::read("hamlet_f16_logits");
    let logits = |model: Model| {
        let mut session = Session::create(Arc::new(model), &Default::default()).unwrap();
        session.prefill(&expected.tokens).unwrap();
        let mut logits = vec![0.0; 1424];
        session.logits(&mut logits).unwrap();
        logits
    };
    let model = load(&folder, WeightType::Keep);
    let gguf = load(
        &repository_file("models/hamlet-7m-Q4_K_M.gguf"),
        WeightType::Keep,
    );
    let (found, known) = (model.tokenizer().unwrap(), gguf.tokenizer().unwrap());
    let heldout = repository_file("../shared/models/hamlet/heldout.txt");
    let text = std::fs::read_to_string(heldout).unwrap();
    let encode = |tokenizer: &Tokenizer| {
        let options = EncodeOptions {
            parse_special: true,
            ..Default::default()
        };
        let mut tokens = Vec::new();
        tokenizer.encode(&text, options, &mut tokens).unwrap();
        tokens
    };
    assert!(encode(found) == encode(known));
    assert_eq!((found.bos(), found.eos()), (known.bos(), known.eos()));

    let last = expected.logits.last().unwrap();
    let most = |found: &[f32]| {
        let pairs = found.iter().zip(last);
        pairs.fold(0.0f32, |most, (a, b)| most.max((a - b).abs()))
    };
    let keep = most(&logits(model));
    let q8 = most(&logits(load(&folder, WeightType::Q8_0)));
    let q4 = most(&logits(load(&folder, WeightType::Q4KM)));
    println!("largest difference: F16 {keep}, Q8_0 {q8}, Q4_K_M {q4}");
    assert!(keep < 0.02 && q8 < 0.5 && q4 < 5.0);
    // The same weights as those that llama.cpp's quantizer made, to a few roundings.
    assert!((q4 - most(&logits(gguf))).abs() < 0.5);
}

#[test]
fn shards_are_put_together() {
    let folder = Folder::family("qwen3");
    let dir = TempDir::new("shards");
    let names = folder.write_shards(&dir, 3);
    let whole = folder.ready();
    for path in [dir.path().to_owned(), dir.path().join(&names[1])] {
        let file = ModelFile::open(&path).unwrap();
        file.make(1, &mut |_| Ok(())).unwrap();
        assert_same_tensors("shards", &file, &whole);
    }
}

#[test]
fn configs_of_older_versions_mean_the_same() {
    for name in families() {
        let mut folder = Folder::family(&name);
        let expected = own_keys(&folder.open().unwrap());
        if name.starts_with("gemma4") || name == "gemma3n" {
            continue; // No older version knows it.
        }
        let Some(rope) = folder.config.remove("rope_parameters") else {
            continue;
        };
        let full = rope.get("full_attention").unwrap_or(&rope).clone();
        if let Some(theta) = rope["sliding_attention"].get("rope_theta") {
            if name == "olmo3" {
                continue;
            }
            folder.set("rope_local_base_freq", theta.clone());
        }
        let mut scaling = full.as_object().unwrap().clone();
        for key in ["rope_theta", "partial_rotary_factor"] {
            if let Some(value) = scaling.remove(key) {
                folder.set(key, value);
            }
        }
        let kind = scaling.remove("rope_type").unwrap();
        let scaling = match kind.as_str().unwrap() {
            "default" => json!(null),
            _ => {
                scaling.insert("type".into(), kind);
                scaling.into()
            }
        };
        folder.set("rope_scaling", scaling);
        if let Some(types) = folder.config.remove("layer_types") {
            let types = types.as_array().unwrap();
            let mut attends = (0..types.len()).filter(|i| types[*i] == "full_attention");
            match &*name {
                "afmoe" => {
                    folder.set("global_attn_every_n_layers", json!(2));
                }
                // Nothing else says it.
                "exaone_moe" => {
                    folder.set("layer_types", json!(types));
                }
                "lfm2" | "lfm2_moe" => {
                    folder.set("full_attn_idxs", json!(attends.collect::<Vec<_>>()));
                }
                "qwen3_5" | "qwen3_5_moe" | "qwen3_next" => {
                    let first = attends.next().unwrap();
                    folder.set("full_attention_interval", json!(first + 1));
                }
                "granite_hybrid" | "granite_hybrid_moe" => {
                    let old = |ty: &serde_json::Value| match ty.as_str() {
                        Some("full_attention") => "attention",
                        _ => "mamba",
                    };
                    let types: Vec<_> = types.iter().map(old).collect();
                    folder.set("layer_types", json!(types));
                }
                _ => {}
            }
        }
        assert_eq!(own_keys(&folder.open().unwrap()), expected, "{name}");
    }
}

#[test]
fn older_spellings_of_nemotron_are_known() {
    let plain = Folder::family("nemotron_h");
    let mut folder = plain.clone();
    folder.config.remove("layers_block_type");
    folder.set("hybrid_override_pattern", json!("M-M*-M"));
    folder.set("num_hidden_layers", json!(6));
    let tensors = std::mem::take(&mut folder.tensors);
    for (name, tensor) in tensors {
        folder
            .tensors
            .insert(name.replacen("model.", "backbone.", 1), tensor);
    }
    assert_same_tensors("nemotron_h", &folder.ready(), &plain.ready());
    assert_eq!(
        own_keys(&folder.open().unwrap()),
        own_keys(&plain.open().unwrap())
    );
    for (pattern, needed) in [
        ("M-M*-", "num_hidden_layers is 6, but 5"),
        ("M-M*-E", "layer 5 is a feed-forward part"),
        ("M-M*EM", "layers.4.mixer.up_proj.weight"),
        ("M-M*-x", "hybrid_override_pattern"),
        ("M--*-M", "layer 2 is a feed-forward part"),
    ] {
        folder.set("hybrid_override_pattern", json!(pattern));
        let e = folder.open().map(|file| Network::from_file(&file));
        let e = e.and_then(|network| network).unwrap_err();
        assert!(e.message.contains(needed), "{pattern}: {e}");
    }
}

#[test]
fn the_text_part_of_a_larger_model_is_found() {
    let plain = Folder::family("gemma3");
    let mut folder = plain.clone();
    let mut text = std::mem::take(&mut folder.config);
    text.remove("architectures");
    folder.set("architectures", json!(["Gemma3ForConditionalGeneration"]));
    folder.set("model_type", json!("gemma3"));
    folder.set("vision_config", json!({"hidden_size": 9}));
    folder.set("text_config", text.into());
    let tensors = std::mem::take(&mut folder.tensors);
    for (name, tensor) in tensors {
        folder
            .tensors
            .insert(format!("language_model.{name}"), tensor);
    }
    let other = Stored::f32(&[1], &[0.0]);
    folder.tensors.insert("vision_tower.x.weight".into(), other);
    assert_same_tensors("gemma3", &folder.ready(), &plain.ready());
    assert_eq!(
        own_keys(&folder.open().unwrap()),
        own_keys(&plain.open().unwrap())
    );
}

#[test]
fn a_single_file_may_have_names_without_the_models_prefix() {
    let plain = Folder::family("gpt2");
    let mut folder = plain.clone();
    let tensors = std::mem::take(&mut folder.tensors);
    for (name, tensor) in tensors {
        let name = name.strip_prefix("transformer.").unwrap().to_owned();
        folder.tensors.insert(name, tensor);
    }
    // Constants that old files have.
    let mask = Stored::f32(&[1, 1, 2, 2], &[1.0, 0.0, 1.0, 1.0]);
    folder.tensors.insert("h.0.attn.bias".into(), mask);
    assert_same_tensors("gpt2", &folder.ready(), &plain.ready());
}

#[test]
fn a_head_of_its_own_is_one_whatever_the_config_says() {
    let plain = Folder::family("qwen3");
    let mut tied = plain.clone();
    tied.set("tie_word_embeddings", json!(true));
    assert_same_tensors("qwen3", &tied.ready(), &plain.ready());
    // A copy of the embedding is not kept twice.
    let mut copied = tied.clone();
    let embedding = copied.tensors["model.embed_tokens.weight"].clone();
    copied.tensors.insert("lm_head.weight".into(), embedding);
    tied.tensors.remove("lm_head.weight");
    assert_same_tensors("qwen3", &copied.ready(), &tied.ready());
    assert!(copied.ready().tensor("output.weight").is_err());
    // It may be the last byte that differs.
    let head = copied.tensors.get_mut("lm_head.weight").unwrap();
    *head.bytes.last_mut().unwrap() ^= 1;
    assert!(copied.ready().tensor("output.weight").is_ok());
}

#[test]
fn a_head_without_weights_of_its_own_may_have_a_bias() {
    let plain = Folder::family("phi2");
    let mut copied = plain.clone();
    let embedding = copied.tensors["model.embed_tokens.weight"].clone();
    copied.tensors.insert("lm_head.weight".into(), embedding);
    let mut tied = plain.clone();
    tied.set("tie_word_embeddings", json!(true));
    tied.tensors.remove("lm_head.weight");
    let tokens = Expected::read("families/phi2/logits").tokens;
    let [apart, tied] = [copied, tied].map(|folder| {
        let dir = TempDir::new("head");
        folder.write(&dir);
        logits(dir.path(), WeightType::Keep, &tokens).unwrap()
    });
    assert_eq!(apart, tied);
}

/// Published folders of Gemma 3n have no embeddings of layers for their last tokens: those of the first token stand for them.
#[test]
fn tokens_without_embeddings_of_layers_have_the_first_ones() {
    const NAME: &str = "model.embed_tokens_per_layer.weight";
    let mut whole = Folder::family("gemma3n");
    let mut cut = whole.clone();
    cut.set("vocab_size_per_layer_input", json!(90));
    let table = cut.tensors.get_mut(NAME).unwrap();
    assert_eq!(table.shape[0], 96);
    let row_bytes = table.bytes.len() / 96;
    table.shape[0] = 90;
    table.bytes.truncate(90 * row_bytes);
    let table = whole.tensors.get_mut(NAME).unwrap();
    for row in 90..96 {
        table.bytes.copy_within(0..row_bytes, row * row_bytes);
    }
    assert_same_tensors("gemma3n", &cut.ready(), &whole.ready());
    // Only as many as the config says may lack.
    cut.set("vocab_size_per_layer_input", json!(91));
    let e = Network::from_file(&cut.open().unwrap()).unwrap_err();
    assert!(e.message.contains(NAME), "{e}");
}

#[test]
fn rows_that_change_places_must_be_of_whole_heads() {
    for part in ["q_b_proj.weight", "kv_a_proj_with_mqa.bias"] {
        let mut folder = Folder::family("deepseek_v3_biased");
        let name = format!("model.layers.1.self_attn.{part}");
        let stored = folder.tensors.get_mut(&name).unwrap();
        let row_bytes = stored.bytes.len() / stored.shape[0];
        stored.shape[0] -= 1;
        stored.bytes.truncate(stored.shape[0] * row_bytes);
        let e = folder.open().unwrap_err();
        assert_eq!(e.status, Status::ShapeMismatch, "{e}");
        assert!(e.message.contains(&name), "{e}");
    }
}

#[test]
fn factors_that_a_config_turns_off_are_ones() {
    let mut folder = Folder::family("gemma3n");
    let factors = |folder: &Folder| {
        let file = folder.ready();
        elements(file.tensor("blk.1.altup_correct_scale.weight").unwrap())
    };
    assert!(factors(&folder).iter().any(|f| *f != 1.0));
    folder.set("altup_correct_scale", json!(false));
    assert!(factors(&folder).iter().all(|f| *f == 1.0));
}

#[test]
fn a_head_beside_transposed_matrices_is_as_it_is() {
    let mut folder = Folder::family("gpt2");
    let mut head = folder.tensors["transformer.wte.weight"].clone();
    let len = head.bytes.len();
    head.bytes.copy_within(..len / 2, len / 2);
    folder.set("tie_word_embeddings", json!(false));
    folder.tensors.insert("lm_head.weight".into(), head.clone());
    let file = folder.ready();
    assert_eq!(
        elements(file.tensor("output.weight").unwrap()),
        values(&head)
    );
}

/// Where YaRN's blend begins and ends is seen in the logits.
#[test]
fn yarn_is_truncated_as_the_config_says() {
    let plain = Folder::family("gpt_oss");
    let tokens = Expected::read("families/gpt_oss/logits").tokens;
    let with = |truncate: Option<bool>| {
        let mut folder = plain.clone();
        let rope = folder.config["rope_parameters"].as_object_mut().unwrap();
        rope.remove("truncate");
        rope.extend(truncate.map(|truncate| ("truncate".to_owned(), json!(truncate))));
        let dir = TempDir::new("truncate");
        folder.write(&dir);
        logits(dir.path(), WeightType::Keep, &tokens).unwrap()
    };
    // As the family's files have it.
    assert!(with(Some(false)) == with(None));
    assert!(with(Some(true)) != with(None));
    let mut folder = plain.clone();
    folder.config["rope_parameters"]["truncate"] = json!("no");
    let e = folder.open().unwrap_err();
    assert!(e.message.contains("truncate"), "{e}");
}

/// Files of these families say that nothing is scaled, where that is so.
#[test]
fn scaling_is_kept_where_a_family_has_none_as_a_rule() {
    for (family, architecture) in [
        ("cohere", "command-r"),
        ("cohere2", "cohere2"),
        ("cohere2_moe", "cohere2moe"),
    ] {
        let mut folder = Folder::family(family);
        let find = |folder: &Folder, key: &str| {
            let keys = own_keys(&folder.open().unwrap());
            keys.get(&format!("{architecture}.rope.scaling.{key}"))
                .cloned()
        };
        assert_eq!(find(&folder, "type"), Some("none".into()), "{family}");
        let rope = json!({"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4});
        folder.set("rope_parameters", rope);
        assert_eq!(find(&folder, "type"), Some("linear".into()), "{family}");
        assert_eq!(find(&folder, "factor"), Some(4f32.into()), "{family}");
    }
}

#[test]
fn rotations_of_layers_with_a_window_are_not_scaled() {
    for family in ["gemma3", "gemma3n", "gemma4"] {
        let mut folder = Folder::family(family);
        let rope = json!({"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4});
        folder.config["rope_parameters"]["sliding_attention"] = rope;
        let e = folder.open().unwrap_err();
        assert_eq!(e.status, Status::Unsupported, "{family}: {e}");
        assert!(e.message.contains("sliding_attention"), "{family}: {e}");
    }
}

/// The values of a tensor of F16.
fn values(stored: &Stored) -> Vec<f32> {
    let (halves, _) = stored.bytes.as_chunks();
    halves
        .iter()
        .map(|b| f16::from_le_bytes(*b).to_f32())
        .collect()
}

#[test]
fn bf16_and_f32_are_kept() {
    let plain = Folder::family("qwen3");
    let mut folder = plain.clone();
    for stored in folder.tensors.values_mut() {
        let rounded = values(stored)
            .iter()
            .map(|v| half::bf16::from_f32(*v))
            .collect::<Vec<_>>();
        stored.ty = "BF16".into();
        stored.bytes = rounded.iter().flat_map(|v| v.to_le_bytes()).collect();
    }
    let file = folder.ready();
    assert_eq!(
        file.tensor("blk.0.attn_q.weight").unwrap().ty,
        TensorType::BF16
    );
    assert_eq!(
        file.tensor("blk.0.attn_norm.weight").unwrap().ty,
        TensorType::F32
    );
    let mut folder = plain.clone();
    for stored in folder.tensors.values_mut() {
        *stored = Stored::f32(&stored.shape, &values(stored));
    }
    let file = folder.ready();
    assert_eq!(
        file.tensor("blk.0.attn_q.weight").unwrap().ty,
        TensorType::F32
    );
    assert_same_tensors("qwen3", &file, &plain.ready());
}

/// The value of an E4M3 code, by the formula.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match exponent {
        0 => mantissa / 8.0 * 2f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if code < 128 { magnitude } else { -magnitude }
}

#[test]
fn eight_bit_floats_are_multiplied_with_their_scales() {
    let plain = Folder::family("qwen3");
    // Per tensor, per row, and per block of 16 x 32.
    for (suffix, method, of) in [
        (
            "weight_scale",
            "compressed-tensors",
            [usize::MAX, usize::MAX],
        ),
        ("weight_scale", "fbgemm_fp8", [1, usize::MAX]),
        ("weight_scale_inv", "fp8", [16, 32]),
    ] {
        let mut folder = plain.clone();
        folder.set(
            "quantization_config",
            json!({"quant_method": method, "weight_block_size": if of[0] == 16 { json!([16, 32]) } else { json!(null) }}),
        );
        let mut expected = BTreeMap::new();
        for (name, stored) in plain.tensors.iter().filter(|(n, _)| n.contains("_proj.")) {
            let (rows, columns) = (stored.shape[0], stored.shape[1]);
            let of = [of[0].min(rows), of[1].min(columns)];
            let codes: Vec<u8> = (0..rows * columns)
                .map(|i| (i * 37 % 127 + i % 2 * 128) as u8)
                .collect();
            let blocks = [rows.div_ceil(of[0]), columns.div_ceil(of[1])];
            let scales: Vec<f32> = (0..blocks[0] * blocks[1])
                .map(|i| 0.001 * (i + 1) as f32)
                .collect();
            let value = |i: usize| {
                let block = i / columns / of[0] * blocks[1] + i % columns / of[1];
                f16::from_f32(e4m3(codes[i]) * scales[block]).to_f32()
            };
            expected.insert(
                name.clone(),
                (0..rows * columns).map(value).collect::<Vec<_>>(),
            );
            let fp8 = Stored {
                ty: "F8_E4M3".into(),
                shape: stored.shape.clone(),
                bytes: codes,
            };
            folder.tensors.insert(name.clone(), fp8);
            let scale = name.replace("weight", suffix);
            folder.tensors.insert(scale, Stored::f32(&blocks, &scales));
            let input = name.replace("weight", "input_scale");
            folder.tensors.insert(input, Stored::f32(&[], &[1.0]));
        }
        let file = folder.ready();
        for tensor in file.tensors.values() {
            if let Some(expected) = expected.get(&*tensor.name) {
                assert_eq!(tensor.ty, TensorType::F16);
                assert!(elements(tensor) == *expected, "{method} {}", tensor.name);
            }
        }
        // Scales beyond what half precision holds.
        let scale = folder
            .tensors
            .iter()
            .find(|(n, _)| n.ends_with(suffix))
            .unwrap()
            .0
            .clone();
        let count = folder.tensors[&scale].shape.iter().product::<usize>();
        let shape = folder.tensors[&scale].shape.clone();
        folder
            .tensors
            .insert(scale, Stored::f32(&shape, &vec![300.0; count]));
        let file = folder.ready();
        assert_eq!(
            file.tensor("blk.0.attn_q.weight").unwrap().ty,
            TensorType::F32
        );
    }
}

#[test]
fn four_bit_experts_are_repacked() {
    let plain = Folder::family("gpt_oss");
    let gguf = ModelFile::open(&family_path("gpt_oss").join("model.gguf")).unwrap();
    let mut folder = plain.clone();
    folder.set("quantization_config", json!({"quant_method": "mxfp4"}));
    let layers = 2;
    for layer in 0..layers {
        let stem = format!("model.layers.{layer}.mlp.experts");
        let blocks = |part: &str| {
            gguf.tensor(&format!("blk.{layer}.{part}_exps.weight"))
                .unwrap()
                .clone()
        };
        let (gate, up, down) = (blocks("ffn_gate"), blocks("ffn_up"), blocks("ffn_down"));
        // Rows of gate and up take turns.
        let both: Vec<&[u8]> = gate
            .bytes()
            .chunks(gate.row_bytes())
            .zip(up.bytes().chunks(up.row_bytes()))
            .flat_map(|(gate, up)| [gate, up])
            .collect();
        for (name, tensor, rows, bytes) in [
            ("gate_up_proj", &gate, 2 * gate.dims[1], both.concat()),
            ("down_proj", &down, down.dims[1], down.bytes().to_vec()),
        ] {
            let shape = vec![tensor.dims[2], rows, tensor.dims[0] / 32];
            let scales = bytes.chunks(17).map(|b| b[0]).collect();
            let code = |b: &[u8], i: usize| b[1 + i % 16] >> (4 * (i / 16)) & 15;
            let codes = bytes.chunks(17).flat_map(|b| {
                (0..16)
                    .map(|i| code(b, 2 * i) | code(b, 2 * i + 1) << 4)
                    .collect::<Vec<_>>()
            });
            let blocks = Stored {
                ty: "U8".into(),
                shape: [&shape[..], &[16]].concat(),
                bytes: codes.collect(),
            };
            folder
                .tensors
                .insert(format!("{stem}.{name}_blocks"), blocks);
            folder.tensors.insert(
                format!("{stem}.{name}_scales"),
                Stored {
                    ty: "U8".into(),
                    shape,
                    bytes: scales,
                },
            );
            folder.tensors.remove(&format!("{stem}.{name}")).unwrap();
        }
    }
    let file = folder.ready();
    assert_same_tensors("gpt_oss", &file, &gguf);
    let gate = file.tensor("blk.0.ffn_gate_exps.weight").unwrap();
    assert_eq!(gate.ty, TensorType::MXFP4);
    assert_eq!(
        gate.bytes(),
        gguf.tensor("blk.0.ffn_gate_exps.weight").unwrap().bytes()
    );
}

#[test]
fn fused_experts_are_taken_apart() {
    let plain = Folder::family("qwen3moe");
    let mut folder = plain.clone();
    let n_experts = folder.config["num_local_experts"].as_u64().unwrap();
    for layer in 0..2 {
        let stem = format!("model.layers.{layer}.mlp.experts");
        let mut take = |e: u64, part: &str| {
            folder
                .tensors
                .remove(&format!("{stem}.{e}.{part}.weight"))
                .unwrap()
        };
        let (mut gate_up, mut down, mut shapes) = (Vec::new(), Vec::new(), Vec::new());
        for e in 0..n_experts {
            let (gate, up, d) = (
                take(e, "gate_proj"),
                take(e, "up_proj"),
                take(e, "down_proj"),
            );
            gate_up.extend([gate.bytes, up.bytes].concat());
            down.extend(d.bytes);
            shapes = vec![
                vec![n_experts as usize, 2 * gate.shape[0], gate.shape[1]],
                vec![n_experts as usize, d.shape[0], d.shape[1]],
            ];
        }
        for (name, shape, bytes) in [
            ("gate_up_proj", &shapes[0], gate_up),
            ("down_proj", &shapes[1], down),
        ] {
            let fused = Stored {
                ty: "F16".into(),
                shape: shape.clone(),
                bytes,
            };
            folder.tensors.insert(format!("{stem}.{name}"), fused);
        }
    }
    assert_same_tensors("qwen3moe", &folder.ready(), &plain.ready());
}

#[test]
fn weights_are_converted_only_where_that_saves_bytes() {
    let folder = Folder::family("gpt_oss");
    let types = |weights: WeightType| {
        let file = folder.open().unwrap().with_weights(weights).unwrap();
        file.make(2, &mut |_| Ok(())).unwrap();
        let ty = |name: &str| file.tensor(name).unwrap().ty;
        (
            ty("blk.0.attn_q.weight"),
            ty("blk.0.ffn_gate_inp.weight"),
            ty("token_embd.weight"),
            ty("blk.0.attn_norm.weight"),
        )
    };
    use TensorType::{F16, F32, Q5_0, Q8_0};
    assert_eq!(types(WeightType::Keep), (F16, F32, F16, F32));
    assert_eq!(types(WeightType::Q8_0), (Q8_0, F32, Q8_0, F32));
    assert_eq!(types(WeightType::Q4K), (Q5_0, F32, Q5_0, F32));
    assert_eq!(types(WeightType::Q6K), (Q8_0, F32, Q8_0, F32));
    assert_eq!(types(WeightType::F32), (F32, F32, F32, F32));
    // A file that is smaller already.
    let q8 = folder
        .open()
        .unwrap()
        .with_weights(WeightType::Q4K)
        .unwrap();
    let again = q8.with_weights(WeightType::Q8_0).unwrap();
    assert_eq!(again.tensor("blk.0.attn_q.weight").unwrap().ty, Q5_0);
}

#[test]
fn a_value_that_no_type_holds_is_named() {
    let mut folder = Folder::family("gpt_oss");
    let name = "model.layers.1.self_attn.o_proj.weight";
    let stored = folder.tensors.get_mut(name).unwrap();
    stored.bytes[1000..1002].copy_from_slice(&f16::INFINITY.to_le_bytes());
    let columns = stored.shape[1];
    let file = folder
        .open()
        .unwrap()
        .with_weights(WeightType::Q8_0)
        .unwrap();
    let error = file.make(2, &mut |_| Ok(())).unwrap_err();
    assert_eq!(error.status, emberlm::Status::InvalidModel);
    let place = format!("element {} of row {}", 500 % columns, 500 / columns);
    assert!(
        error.message.contains(name) && error.message.contains(&place),
        "{error}"
    );
    assert!(!file.is_ready());
}

#[test]
fn making_stops_when_it_is_told_to() {
    let folder = Folder::family("gemma2");
    let file = folder
        .open()
        .unwrap()
        .with_weights(WeightType::F32)
        .unwrap();
    let mut calls = 0;
    let error = file
        .make(2, &mut |_| {
            calls += 1;
            Err(emberlm::Error::new(emberlm::Status::Cancelled, "enough"))
        })
        .unwrap_err();
    assert_eq!((error.status, calls), (emberlm::Status::Cancelled, 1));
    assert!(!file.is_ready());
    file.make(1, &mut |_| Ok(())).unwrap();
    assert!(file.is_ready());
    Network::from_file(&file).unwrap();
}
