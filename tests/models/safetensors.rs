//! Folders that are broken, incomplete or hostile: errors that name what is wrong, and nothing else.

use crate::common::TempDir;
use crate::common::folder::{Folder, Stored, with_header, write_index};
use emberlm::format::ModelFile;
use emberlm::model::Network;
use emberlm::{Error, Status};
use serde_json::{Map, Value, json};

/// The config of a small llama.
fn config() -> Vec<u8> {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8,
        "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "max_position_embeddings": 16, "vocab_size": 4, "rms_norm_eps": 1e-5
    })
    .to_string()
    .into_bytes()
}

/// What reading a safetensors file of this header and data ends with.
fn error_of(header: &str, data: &[u8]) -> Error {
    ModelFile::from_folder(&config(), &with_header(header, data)).unwrap_err()
}

fn assert_error(error: &Error, status: Status, parts: &[&str]) {
    assert_eq!(error.status, status, "{error}");
    for part in parts {
        assert!(
            error.message.contains(part),
            "{error} does not say {part:?}"
        );
    }
}

#[test]
fn headers_that_are_no_headers() {
    let file = |bytes: &[u8]| ModelFile::from_folder(&config(), bytes).unwrap_err();
    assert_error(&file(b"\x01\0\0"), Status::FileTruncated, &["byte 3"]);
    let too_long = [&100_000_001u64.to_le_bytes()[..], b"{}"].concat();
    assert_error(
        &file(&too_long),
        Status::FileCorrupt,
        &["100000001 bytes", "100000000"],
    );
    assert_error(
        &file(&[0xFF; 64]),
        Status::FileCorrupt,
        &["18446744073709551615"],
    );
    let short = [&50u64.to_le_bytes()[..], b"{}"].concat();
    assert_error(
        &file(&short),
        Status::FileTruncated,
        &["8 to 58", "byte 10"],
    );
    assert_eq!(file(b"").status, Status::FileEmpty);

    let deep = format!("{{\"a\":{}", "[".repeat(1_000_000));
    for header in [
        "",
        "[]",
        "nonsense",
        "{\"a\":",
        "{\"a\":1}",
        "{\"a\":{}}",
        &deep,
    ] {
        assert_error(
            &error_of(header, &[]),
            Status::FileCorrupt,
            &["header is not valid"],
        );
    }
    // Numbers that are no sizes.
    for number in [
        "-1",
        "1.5",
        "1e3",
        "18446744073709551616",
        "99999999999999999999999999",
        "\"1\"",
    ] {
        let header =
            format!(r#"{{"x":{{"dtype":"F32","shape":[{number}],"data_offsets":[0,4]}}}}"#);
        assert_error(
            &error_of(&header, &[0; 4]),
            Status::FileCorrupt,
            &["tensor x"],
        );
    }
    let dims = vec!["1"; 100_000].join(",");
    let header = format!(r#"{{"x":{{"dtype":"F32","shape":[{dims}],"data_offsets":[0,4]}}}}"#);
    assert_error(
        &error_of(&header, &[0; 4]),
        Status::FileCorrupt,
        &["tensor x", "at most 8"],
    );
}

#[test]
fn tensors_that_do_not_tile_the_file() {
    let tensor = |name: &str, dtype: &str, shape: &str, from: u64, to: u64| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}"#)
    };
    let x = tensor("x", "F32", "[2]", 0, 8);
    for (second, status, parts) in [
        (
            tensor("y", "F32", "[2]", 8, 16),
            Status::FileTruncated,
            ["y", "16"],
        ),
        (
            tensor("y", "F32", "[1]", 4, 8),
            Status::FileCorrupt,
            ["y", "inside tensor x"],
        ),
        (
            tensor("y", "F16", "[1]", 10, 12),
            Status::FileCorrupt,
            ["2 unexplained bytes", "y"],
        ),
        (
            tensor("y", "F32", "[0]", 8, 8),
            Status::FileCorrupt,
            ["4 unexplained bytes", "last"],
        ),
        (
            tensor("x", "F32", "[1]", 8, 12),
            Status::FileCorrupt,
            ["x", "twice"],
        ),
        (
            tensor("y", "F32", "[2]", 8, 12),
            Status::FileCorrupt,
            ["y", "[2]"],
        ),
        (
            tensor("y", "F32", "[1]", 12, 8),
            Status::FileCorrupt,
            ["y", "12 to 8"],
        ),
        (
            tensor("y", "F4", "[3]", 8, 9),
            Status::FileCorrupt,
            ["y", "F4"],
        ),
        (
            tensor("y", "Q7", "[4]", 8, 12),
            Status::Unsupported,
            ["y", "Q7"],
        ),
        (
            tensor("y", "F32", "[4294967296,4294967296]", 8, 12),
            Status::FileCorrupt,
            ["y", "4294967296"],
        ),
        (
            tensor("y", "U8", "[18446744073709551615]", 1, 0),
            Status::FileCorrupt,
            ["y", "1 to 0"],
        ),
        (
            tensor("y", "U8", "[4]", u64::MAX - 4, u64::MAX),
            Status::FileTruncated,
            ["y", "18446744073709551615"],
        ),
    ] {
        let error = error_of(&format!("{{{x},{second}}}"), &[0; 12]);
        assert_error(&error, status, &parts);
    }
}

#[test]
fn every_truncation_is_an_error() {
    let folder = Folder::family("qwen2");
    let whole = crate::common::folder::safetensors(&folder.tensors);
    let header = 8 + u64::from_le_bytes(*whole.first_chunk().unwrap()) as usize;
    let ends = (0..40).chain((header - 20..header + 20).chain([whole.len() - 1]));
    for end in ends {
        let error = ModelFile::from_folder(&folder.config_bytes(), &whole[..end]).unwrap_err();
        let expected = [
            Status::FileTruncated,
            Status::FileCorrupt,
            Status::FileEmpty,
        ];
        assert!(expected.contains(&error.status), "{end}: {error}");
    }
    let longer = [&whole[..], b"x"].concat();
    let error = ModelFile::from_folder(&folder.config_bytes(), &longer).unwrap_err();
    assert_error(&error, Status::FileCorrupt, &["1 unexplained bytes"]);
}

/// What opening a family's folder, and describing its network, ends with after a change.
fn changed(family: &str, change: impl FnOnce(&mut Folder)) -> Error {
    let mut folder = Folder::family(family);
    change(&mut folder);
    match folder
        .open()
        .and_then(|file| Network::from_file(&file).map(|_| ()))
    {
        Err(error) => error,
        Ok(()) => panic!("{family}: no error"),
    }
}

#[test]
fn configs_that_cannot_be() {
    use Status::{InvalidModel, MissingKey, ShapeMismatch, Unsupported};
    let set = |key: &'static str, value: Value| {
        move |folder: &mut Folder| {
            folder.set(key, value);
        }
    };
    for (family, key, value, status, parts) in [
        (
            "qwen2",
            "architectures",
            json!(["BertModel"]),
            Unsupported,
            vec!["BertModel", "LlamaForCausalLM", "Qwen2ForCausalLM"],
        ),
        (
            "qwen2",
            "architectures",
            json!([7]),
            InvalidModel,
            vec!["architectures"],
        ),
        (
            "qwen2",
            "architectures",
            json!(["LlamaForCausalLM"]),
            InvalidModel,
            vec!["model_type", "qwen2", "LlamaForCausalLM"],
        ),
        (
            "qwen2",
            "hidden_act",
            json!("relu"),
            Unsupported,
            vec!["hidden_act", "relu"],
        ),
        (
            "qwen2",
            "num_attention_heads",
            json!(5),
            InvalidModel,
            vec!["num_attention_heads", "5"],
        ),
        (
            "qwen2",
            "num_key_value_heads",
            json!(4),
            InvalidModel,
            vec!["num_key_value_heads", "4"],
        ),
        (
            "qwen2",
            "num_attention_heads",
            json!(0),
            InvalidModel,
            vec!["num_attention_heads", "0"],
        ),
        (
            "qwen2",
            "hidden_size",
            json!(-48),
            InvalidModel,
            vec!["hidden_size"],
        ),
        (
            "qwen2",
            "hidden_size",
            json!("48"),
            InvalidModel,
            vec!["hidden_size"],
        ),
        (
            "qwen2",
            "hidden_size",
            json!(1e30),
            InvalidModel,
            vec!["hidden_size"],
        ),
        (
            "qwen2",
            "hidden_size",
            json!(null),
            MissingKey,
            vec!["hidden_size"],
        ),
        (
            "qwen2",
            "hidden_size",
            json!(96),
            ShapeMismatch,
            vec!["model."],
        ),
        (
            "qwen2",
            "num_hidden_layers",
            json!(2_000_000_000),
            InvalidModel,
            vec!["num_hidden_layers"],
        ),
        (
            "qwen2",
            "num_hidden_layers",
            json!(3),
            InvalidModel,
            vec!["layer_types"],
        ),
        (
            "qwen2",
            "num_hidden_layers",
            json!(1),
            InvalidModel,
            vec!["layer"],
        ),
        (
            "qwen2",
            "rope_parameters",
            json!({"rope_type": "dynamic", "factor": 2.0}),
            Unsupported,
            vec!["dynamic"],
        ),
        (
            "qwen2",
            "rope_parameters",
            json!({"rope_type": "yarn", "factor": 2.0}),
            MissingKey,
            vec!["original_max_position_embeddings"],
        ),
        (
            "qwen2",
            "rope_parameters",
            json!({"rope_type": "linear", "factor": -2.0}),
            InvalidModel,
            vec!["factor"],
        ),
        (
            "qwen2",
            "rope_parameters",
            json!(3),
            InvalidModel,
            vec!["rope_parameters"],
        ),
        (
            "qwen2",
            "rope_parameters",
            json!({"rope_theta": 0}),
            InvalidModel,
            vec!["rope_theta"],
        ),
        (
            "qwen2",
            "quantization_config",
            json!({"quant_method": "hqq"}),
            Unsupported,
            vec!["hqq"],
        ),
        (
            "qwen3",
            "head_dim",
            json!(100_000),
            InvalidModel,
            vec!["head_dim"],
        ),
        (
            "mistral",
            "sliding_window",
            json!(0),
            InvalidModel,
            vec!["sliding_window"],
        ),
        (
            "gemma2",
            "layer_types",
            json!(["full_attention"]),
            InvalidModel,
            vec!["layer_types"],
        ),
        (
            "gemma2",
            "layer_types",
            json!(["full_attention", "x", "full_attention"]),
            InvalidModel,
            vec!["layer_types", "x"],
        ),
        (
            "gemma3",
            "use_bidirectional_attention",
            json!(true),
            Unsupported,
            vec!["use_bidirectional_attention"],
        ),
        (
            "mixtral",
            "num_local_experts",
            json!(1_000_000_000),
            InvalidModel,
            vec!["num_local_experts"],
        ),
        (
            "mixtral",
            "num_experts_per_tok",
            json!(6),
            InvalidModel,
            vec!["num_experts_per_tok"],
        ),
        (
            "qwen3moe",
            "num_experts",
            json!(8),
            InvalidModel,
            vec!["num_experts", "8", "7"],
        ),
        (
            "qwen3moe",
            "mlp_only_layers",
            json!([0]),
            Unsupported,
            vec!["mlp_only_layers"],
        ),
        (
            "gpt_oss",
            "swiglu_limit",
            json!(5.0),
            Unsupported,
            vec!["swiglu_limit"],
        ),
        (
            "phi3",
            "rope_parameters",
            json!({"rope_type": "longrope", "original_max_position_embeddings": 32, "long_factor": [1.0], "short_factor": [1.0]}),
            InvalidModel,
            vec!["long_factor"],
        ),
        (
            "glm4",
            "rope_parameters",
            json!({"partial_rotary_factor": 0.05}),
            InvalidModel,
            vec!["partial_rotary_factor"],
        ),
        (
            "gpt2",
            "add_cross_attention",
            json!(true),
            Unsupported,
            vec!["add_cross_attention"],
        ),
        (
            "smollm3",
            "no_rope_layers",
            json!([1, 2]),
            InvalidModel,
            vec!["no_rope_layers"],
        ),
        (
            "starcoder2",
            "vocab_size",
            json!(97),
            ShapeMismatch,
            vec!["embed_tokens"],
        ),
    ] {
        let name = format!("{family} {key}");
        let error = changed(family, set(key, value));
        assert_eq!(error.status, status, "{name}: {error}");
        for part in parts {
            assert!(
                error.message.contains(part),
                "{name}: {error} does not say {part:?}"
            );
        }
    }
    // Without a class, the type decides.
    let error = changed("qwen2", |folder| {
        folder.config.remove("architectures");
        folder.set("model_type", json!("reformer"));
    });
    assert_error(
        &error,
        Unsupported,
        &["model_type", "reformer", "LlamaForCausalLM"],
    );
    for text in [
        "",
        "[]",
        "nonsense",
        "{\"a\":",
        &"[".repeat(1_000_000),
        &"{\"a\":".repeat(100_000),
    ] {
        let error = ModelFile::from_folder(text.as_bytes(), b"x").unwrap_err();
        assert_error(&error, Status::FileCorrupt, &["config.json"]);
    }
}

#[test]
fn tensors_that_do_not_fit() {
    let rename = |from: &'static str, to: &'static str| {
        move |folder: &mut Folder| {
            let tensor = folder.tensors.remove(from).unwrap();
            folder.tensors.insert(to.into(), tensor);
        }
    };
    let remove = |name: &'static str| {
        move |folder: &mut Folder| {
            folder.tensors.remove(name).unwrap();
        }
    };
    let q = "model.layers.1.self_attn.q_proj.weight";
    for (family, name) in [
        ("qwen3", q),
        ("qwen3", "model.layers.1.input_layernorm.weight"),
        (
            "mixtral",
            "model.layers.1.block_sparse_moe.experts.2.w1.weight",
        ),
        ("gpt_oss", "model.layers.1.self_attn.sinks"),
    ] {
        assert_error(
            &changed(family, remove(name)),
            Status::MissingTensor,
            &[name],
        );
    }
    for (family, name) in [
        ("qwen3", "model.embed_tokens.weight"),
        ("qwen3", "model.norm.weight"),
        ("qwen3", "lm_head.weight"),
        ("gpt2", "transformer.ln_f.weight"),
    ] {
        let error = changed(family, remove(name));
        assert_eq!(error.status, Status::MissingTensor, "{name}: {error}");
    }
    let unknown = "model.layers.1.self_attn.rotation.weight";
    assert_error(
        &changed("qwen3", rename(q, unknown)),
        Status::Unsupported,
        &[unknown, "qwen3"],
    );
    let beyond = "model.layers.2.self_attn.q_proj.weight";
    assert_error(
        &changed("qwen3", rename(q, beyond)),
        Status::InvalidModel,
        &[beyond, "num_hidden_layers"],
    );
    // Another family's tensors under this family's config.
    let error = changed("qwen3", |folder| {
        folder.tensors = Folder::family("gpt2").tensors
    });
    assert_eq!(error.status, Status::Unsupported, "{error}");
    let twice = changed("qwen3", |folder| {
        let tensor = folder.tensors[q].clone();
        folder
            .tensors
            .insert(q.strip_prefix("model.").unwrap().into(), tensor);
    });
    assert_error(&twice, Status::FileCorrupt, &[q, "same part"]);
    let shape = |shape: &'static [usize]| {
        move |folder: &mut Folder| {
            let tensor = Stored::f32(shape, &vec![0.0; shape.iter().product()]);
            folder.tensors.insert(q.into(), tensor);
        }
    };
    for dims in [&[60, 41][..], &[40], &[1, 1, 1, 60, 40], &[0, 40], &[]] {
        assert_error(&changed("qwen3", shape(dims)), Status::ShapeMismatch, &[q]);
    }
    let integers = changed("qwen3", |folder| {
        let tensor = folder.tensors.get_mut(q).unwrap();
        tensor.ty = "I16".into();
    });
    assert_error(&integers, Status::Unsupported, &[q, "I16"]);
    let unscaled = changed("qwen3", |folder| {
        folder.set("quantization_config", json!({"quant_method": "fp8"}));
        let tensor = folder.tensors.get_mut(q).unwrap();
        tensor.ty = "F8_E4M3".into();
        tensor.bytes.truncate(tensor.bytes.len() / 2);
    });
    assert_error(&unscaled, Status::MissingTensor, &[q, "scale"]);
}

#[test]
fn folders_with_files_missing() {
    let dir = TempDir::new("missing");
    let open = || ModelFile::open(dir.path()).unwrap_err();
    assert_error(&open(), Status::UnknownFormat, &["config.json"]);
    let folder = Folder::family("qwen3");
    dir.file("config.json", &folder.config_bytes());
    assert_error(&open(), Status::FileNotFound, &["model.safetensors"]);
    let nowhere = ModelFile::open(&dir.path().join("none").join("config.json"));
    assert!(nowhere.is_err());

    let names = folder.write_shards(&dir, 2);
    assert!(ModelFile::open(dir.path()).is_ok());
    std::fs::remove_file(dir.path().join(&names[1])).unwrap();
    assert_error(&open(), Status::FileNotFound, &[&names[1], "index.json"]);
}

#[test]
fn indices_that_lie() {
    let dir = TempDir::new("indices");
    let open = || ModelFile::open(dir.path()).unwrap_err();
    let folder = Folder::family("qwen3");
    let names = folder.write_shards(&dir, 2);
    let all = |shard: &str| -> Map<String, Value> {
        folder
            .tensors
            .keys()
            .map(|name| (name.clone(), shard.into()))
            .collect()
    };
    // Shards outside of the folder.
    let outside = TempDir::new("outside");
    outside.file(
        "x.safetensors",
        &crate::common::folder::safetensors(&folder.tensors),
    );
    let absolute = outside.path().join("x.safetensors");
    let parent = format!(
        "../{}/x.safetensors",
        outside.path().file_name().unwrap().to_str().unwrap()
    );
    for shard in [
        &parent,
        absolute.to_str().unwrap(),
        "..",
        ".",
        "",
        "a/b",
        "a\\b",
        "C:x",
        "./x",
        "x\0",
    ] {
        write_index(dir.path(), all(shard));
        assert_error(&open(), Status::FileCorrupt, &["not the name of a file"]);
    }
    // Tensors that are elsewhere.
    write_index(dir.path(), all(&names[0]));
    assert_error(
        &open(),
        Status::MissingTensor,
        &["tensor model.", &names[0]],
    );
    folder.write_shards(&dir, 2);
    let mut map = Map::new();
    for (i, name) in folder.tensors.keys().enumerate().skip(1) {
        map.insert(name.clone(), names[i % 2].as_str().into());
    }
    write_index(dir.path(), map);
    assert_error(
        &open(),
        Status::FileCorrupt,
        &["lm_head.weight", "not in the index"],
    );
    // The same tensor in both.
    folder.write_shards(&dir, 2);
    dir.file(
        &names[1],
        &crate::common::folder::safetensors(&folder.tensors),
    );
    assert_error(&open(), Status::FileCorrupt, &["too", &names[0]]);
    dir.file("model.safetensors.index.json", b"");
    assert_error(&open(), Status::FileEmpty, &["index.json"]);
    for text in [
        "{}",
        r#"{"weight_map":[]}"#,
        r#"{"weight_map":{}}"#,
        r#"{"weight_map":{"x":1}}"#,
    ] {
        dir.file("model.safetensors.index.json", text.as_bytes());
        assert_error(&open(), Status::FileCorrupt, &["index.json"]);
    }
}

#[cfg(unix)]
#[test]
fn links_are_followed_and_pipes_are_not_waited_for() {
    let real = TempDir::new("blobs");
    let dir = TempDir::new("links");
    let folder = Folder::family("qwen3");
    folder.write(&real);
    for name in ["config.json", "model.safetensors"] {
        std::os::unix::fs::symlink(real.path().join(name), dir.path().join(name)).unwrap();
    }
    assert!(ModelFile::open(dir.path()).is_ok());
    std::fs::remove_file(dir.path().join("config.json")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", dir.path().join("config.json")).unwrap();
    assert_eq!(
        ModelFile::open(dir.path()).unwrap_err().status,
        Status::UnknownFormat
    );
}

/// Biases that the config announces must be there, in every layer and of every matrix that has one.
#[test]
fn announced_biases_that_are_missing() {
    let projections = ["q_proj", "k_proj", "v_proj", "o_proj"].map(|p| format!("self_attn.{p}"));
    for (family, flag, parts) in [
        ("mistral", "attention_bias", &projections[..]),
        ("qwen3", "attention_bias", &projections),
        ("glm4", "attention_bias", &projections[..3]),
        ("granite", "mlp_bias", &["mlp.up_proj".to_owned()]),
    ] {
        let mut folder = Folder::family(family);
        if family == "mistral" {
            folder.set("architectures", json!(["LlamaForCausalLM"]));
            folder.set("model_type", json!("llama"));
            folder.set("sliding_window", Value::Null);
        }
        folder.tensors.retain(|name, _| !name.ends_with(".bias"));
        folder.set(flag, json!(false));
        assert!(folder.open().is_ok(), "{family}");
        let error = folder.set(flag, json!(true)).open().unwrap_err();
        assert_error(&error, Status::MissingTensor, &["layers.0.", ".bias", flag]);
        // All but one.
        let matrices: Vec<String> = folder.tensors.keys().cloned().collect();
        for name in matrices.iter().filter(|n| n.contains("_proj.weight")) {
            let rows = folder.tensors[name].shape[0];
            let bias = Stored::f32(&[rows], &vec![0.0; rows]);
            let name = name.replace("_proj.weight", "_proj.bias");
            if family == "glm4" && (name.contains("o_proj") || name.contains("mlp")) {
                continue;
            }
            if flag == "attention_bias" && name.contains("mlp") {
                continue;
            }
            folder.tensors.insert(name, bias);
        }
        assert!(folder.open().is_ok(), "{family}: {:?}", folder.open().err());
        for part in parts {
            let name = format!("model.layers.1.{part}.bias");
            let mut folder = folder.clone();
            assert!(folder.tensors.remove(&name).is_some(), "{family}: {name}");
            let error = folder.open().unwrap_err();
            assert_error(&error, Status::MissingTensor, &[&name, flag]);
        }
    }
}

#[test]
fn missing_tensors_are_called_what_the_folder_would_call_them() {
    for (family, name) in [
        ("qwen3", "model.norm.weight"),
        ("qwen3", "model.embed_tokens.weight"),
        ("phi2", "model.final_layernorm.weight"),
        ("gpt2", "transformer.ln_f.weight"),
        ("gpt2", "transformer.wte.weight"),
        ("mixtral", "lm_head.weight"),
        ("mamba", "backbone.embeddings.weight"),
        ("mamba", "backbone.norm_f.weight"),
        ("mamba2", "backbone.embeddings.weight"),
        ("mamba2", "backbone.norm_f.weight"),
        ("bamba", "model.final_layernorm.weight"),
        ("jamba", "model.final_layernorm.weight"),
    ] {
        let mut folder = Folder::family(family);
        if name == "lm_head.weight" {
            folder.set("tie_word_embeddings", json!(false));
        }
        assert!(folder.tensors.remove(name).is_some(), "{family}: {name}");
        let error = folder.open().unwrap_err();
        assert_error(
            &error,
            Status::MissingTensor,
            &[&format!("tensor {name} is missing")],
        );
    }
}

/// Whatever is wrong with a config is said in its own terms.
#[test]
fn keys_are_called_what_the_config_calls_them() {
    let describe = |folder: &Folder| Network::from_file(&folder.open()?).map(drop);
    for (family, key, value) in [
        ("qwen3", "num_hidden_layers", json!(-1)),
        ("qwen3", "hidden_size", json!(-64)),
        ("qwen3", "head_dim", json!(15)),
        ("qwen3", "rms_norm_eps", json!(0.0)),
        ("qwen3", "rms_norm_eps", json!("NaN")),
        (
            "qwen3",
            "rope_parameters",
            json!({"rope_theta": 0.5, "rope_type": "default"}),
        ),
        ("gemma2", "attn_logit_softcapping", json!(0.0)),
        ("gemma2", "final_logit_softcapping", json!(-1.0)),
        ("granite", "logits_scaling", json!(0.0)),
        ("granite", "residual_multiplier", json!(0.0)),
        ("granite", "embedding_multiplier", json!(0.0)),
        ("cohere2", "logit_scale", json!(0.0)),
        ("cohere2", "layer_norm_eps", json!(-1.0)),
        ("cohere2_moe", "num_experts", json!(1)),
        ("cohere2_moe", "num_shared_experts", json!(-1)),
        (
            "cohere2_moe",
            "shared_expert_combination_strategy",
            json!("sum"),
        ),
        ("cohere2_moe", "expert_selection_fn", json!("entropy")),
        ("cohere2_moe", "mlp_layer_types", json!(["dense"])),
        (
            "cohere2_moe",
            "mlp_layer_types",
            json!(["dense", "moe", "sparse", "sparse", "sparse"]),
        ),
        (
            "cohere2_moe",
            "prefix_dense_sliding_window_pattern",
            json!(2),
        ),
        ("cohere2_moe", "sliding_window", json!(0)),
        ("mixtral", "num_local_experts", json!(1_000_000_000)),
        ("mamba", "hidden_size", json!(0)),
        ("mamba", "layer_norm_epsilon", json!(0.0)),
        ("mamba", "conv_kernel", json!(1)),
        ("mamba", "state_size", json!(-16)),
        ("mamba", "state_size", json!(1_000_000_000)),
        ("mamba", "time_step_rank", json!("some")),
        ("mamba", "hidden_act", json!("gelu")),
        ("falcon_mamba", "mixer_rms_eps", json!(-1.0)),
        ("mamba2", "n_groups", json!(2)),
        ("mamba2", "num_heads", json!(4)),
        ("mamba2", "conv_kernel", json!(1)),
        ("mamba2", "time_step_limit", json!([0.0, 0.1])),
        ("afmoe", "route_norm", json!(false)),
        ("afmoe", "n_group", json!(2)),
        ("afmoe", "num_experts_per_tok", json!(6)),
        ("afmoe", "sliding_window", json!(0)),
        ("exaone_moe", "mlp_layer_types", json!(["dense"])),
        ("exaone_moe", "n_group", json!("three")),
        ("bitnet", "hidden_act", json!("gelu")),
        ("bitnet", "num_key_value_heads", json!(2)),
        ("bamba", "attn_layer_indices", json!([3])),
        ("bamba", "attn_layer_indices", json!(["first"])),
        ("bamba", "mamba_n_heads", json!(7)),
        ("bamba", "mlp_bias", json!(true)),
        ("jamba", "mamba_dt_rank", json!(0)),
        ("jamba", "mamba_d_conv", json!(65)),
        ("jamba", "attn_layer_offset", json!(3)),
        ("jamba", "attn_layer_period", json!(0)),
        ("jamba", "expert_layer_period", json!(1)),
        ("jamba", "num_experts_per_tok", json!(4)),
        ("jamba", "num_attention_heads", json!(5)),
        ("jamba", "sliding_window", json!(128)),
    ] {
        let mut folder = Folder::family(family);
        let error = describe(folder.set(key, value.clone())).unwrap_err();
        let what = format!("{family}: {key} = {value}: {error}");
        assert!(error.message.contains(key), "{what}");
        let prefixes = [
            "qwen3.", "gemma2.", "granite.", "cohere2.", "mamba.", "llama.",
        ];
        assert!(
            !prefixes.iter().any(|p| error.message.contains(p)),
            "{what}"
        );
    }
}

/// Python writes numbers that JSON does not have.
#[test]
fn infinity_in_a_config_is_read() {
    let folder = Folder::family("qwen3");
    let text = String::from_utf8(folder.config_bytes()).unwrap();
    let weights = crate::common::folder::safetensors(&folder.tensors);
    let with = |more: &str| {
        let text = text.replacen('{', &format!("{{{more},"), 1);
        ModelFile::from_folder(text.as_bytes(), &weights)
    };
    with(r#""time_step_limit": [0.0, Infinity], "x": -Infinity, "y": NaN"#).unwrap();
    let text = text.replace("\"head_dim\"", "\"unused\"");
    let text = text.replacen('{', "{\"head_dim\": NaN,", 1);
    let error = ModelFile::from_folder(text.as_bytes(), &weights).unwrap_err();
    assert_error(&error, Status::InvalidModel, &["head_dim", "NaN"]);
}

/// JSON that would take far more memory than it has bytes.
#[test]
fn json_files_take_bounded_memory() {
    let dir = TempDir::new("json-memory");
    let open = || ModelFile::open(dir.path()).unwrap_err();
    let folder = Folder::family("qwen3");
    folder.write_shards(&dir, 2);
    let index = dir.path().join("model.safetensors.index.json");
    let names: Vec<String> = (0..300_000).map(|i| format!("\"{i}\":\"x\"")).collect();
    let text = format!("{{\"weight_map\":{{{}}}}}", names.join(","));
    std::fs::write(&index, text).unwrap();
    assert_error(&open(), Status::FileCorrupt, &["index.json", "262144"]);
    for (name, limit) in [
        ("model.safetensors.index.json", 32usize << 20),
        ("config.json", 2 << 20),
    ] {
        let file = dir.file(name, b"{}");
        let file = std::fs::OpenOptions::new().write(true).open(file).unwrap();
        file.set_len(limit as u64 + 1).unwrap();
        assert_error(&open(), Status::Unsupported, &[name, &limit.to_string()]);
    }
    let infos: Vec<String> = (0..300_000)
        .map(|i| format!(r#""{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#))
        .collect();
    let error = error_of(&format!("{{{}}}", infos.join(",")), &[]);
    assert_error(&error, Status::FileCorrupt, &["262144 tensors"]);
}
