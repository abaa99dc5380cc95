//! Folders with weights of two to eight bits in several tensors, against what the packages that write them
//! make of them (`data/make_packed.py`).

use crate::common::folder::{Folder, Stored, elements, tensors};
use crate::common::repository_file;
use crate::common::tiny::Random;
use crate::common::xz;
use emberlm::error::{Error, Status};
use emberlm::format::ModelFile;
use emberlm::model::Network;
use emberlm::quant::TensorType;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::LazyLock;

const OUT: usize = 24;
const IN: usize = 64;
const UP: &str = "model.layers.0.mlp.up_proj";

/// A format, what the config says of it, the type that it becomes, and by how much that differs from it, as a
/// share of the largest number.
const FORMATS: [(&str, &str, TensorType, f32); 26] = [
    (
        "bitnet_divided",
        r#"{"quant_method": "bitnet"}"#,
        TensorType::Q8_0,
        5e-4,
    ),
    (
        "bitnet_multiplied",
        r#"{"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}"#,
        TensorType::Q8_0,
        0.0,
    ),
    (
        "bitnet_tiny",
        r#"{"quant_method": "bitnet", "linear_class": "bitlinear"}"#,
        TensorType::F32,
        1e-6,
    ),
    (
        "bitnet_online",
        r#"{"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}"#,
        TensorType::Q8_0,
        5e-4,
    ),
    (
        "gptq_2",
        r#"{"quant_method": "gptq", "bits": 2}"#,
        TensorType::Q4_1,
        6e-4,
    ),
    (
        "gptq_2_symmetric",
        r#"{"quant_method": "gptq", "bits": 2}"#,
        TensorType::Q4_0,
        0.0,
    ),
    (
        "gptq_3",
        r#"{"quant_method": "gptq", "bits": 3}"#,
        TensorType::Q4_1,
        6e-4,
    ),
    (
        "gptq_3_symmetric",
        r#"{"quant_method": "gptq", "bits": 3, "checkpoint_format": "gptq_v2"}"#,
        TensorType::Q4_0,
        0.0,
    ),
    (
        "gptq_3_order",
        r#"{"quant_method": "gptq", "bits": 3, "desc_act": true}"#,
        TensorType::F16,
        5e-4,
    ),
    (
        "awq_gemv",
        r#"{"quant_method": "awq", "bits": 4, "version": "gemv", "group_size": 32}"#,
        TensorType::Q4_1,
        6e-4,
    ),
    (
        "gptq",
        r#"{"quant_method": "gptq", "bits": 4}"#,
        TensorType::Q4_1,
        6e-4,
    ),
    (
        "gptq_symmetric",
        r#"{"quant_method": "gptq", "bits": 4}"#,
        TensorType::Q4_0,
        0.0,
    ),
    (
        "gptq_v2",
        r#"{"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}"#,
        TensorType::Q4_1,
        6e-4,
    ),
    (
        "gptq_order",
        r#"{"quant_method": "gptq", "bits": 4, "desc_act": true}"#,
        TensorType::F16,
        5e-4,
    ),
    (
        "gptq_8",
        r#"{"quant_method": "gptq", "bits": 8}"#,
        TensorType::Q8_0,
        0.0,
    ),
    (
        "gptq_narrow",
        r#"{"quant_method": "gptq", "bits": 4, "group_size": 16}"#,
        TensorType::F16,
        5e-4,
    ),
    (
        "awq",
        r#"{"quant_method": "awq", "bits": 4, "version": "gemm"}"#,
        TensorType::Q4_1,
        6e-4,
    ),
    (
        "awq_symmetric",
        r#"{"quant_method": "awq", "version": "GEMM"}"#,
        TensorType::Q4_0,
        0.0,
    ),
    ("packed", COMPRESSED, TensorType::Q4_0, 0.0),
    ("packed_rows", COMPRESSED, TensorType::Q4_0, 0.0),
    ("packed_zeros", COMPRESSED, TensorType::Q4_1, 6e-4),
    ("packed_8", COMPRESSED, TensorType::Q8_0, 5e-4),
    ("bytes", COMPRESSED, TensorType::Q8_0, 0.0),
    ("nvfp4", COMPRESSED, TensorType::Q8_0, 5e-3),
    ("mxfp4", COMPRESSED, TensorType::MXFP4, 0.0),
    (
        "modelopt",
        r#"{"quant_method": "modelopt", "quant_algo": "NVFP4"}"#,
        TensorType::Q8_0,
        5e-3,
    ),
];
const COMPRESSED: &str = r#"{"quant_method": "compressed-tensors"}"#;

/// The parts of one of the formats.
fn parts(format: &str) -> BTreeMap<String, Stored> {
    static ALL: LazyLock<BTreeMap<String, Stored>> = LazyLock::new(|| {
        let packed = std::fs::read(repository_file("tests/data/packed.safetensors.xz"));
        tensors(&xz::unpacked(&packed.unwrap()))
    });
    ALL.iter()
        .filter_map(|(name, stored)| {
            let part = name.strip_prefix(format)?.strip_prefix('.')?;
            Some((part.to_owned(), stored.clone()))
        })
        .collect()
}

fn expected(format: &str) -> Vec<f32> {
    let bytes = &parts(format)["expected"].bytes;
    let elements = bytes.as_chunks().0.iter();
    elements.map(|b| f32::from_le_bytes(*b)).collect()
}

/// A model of one layer, dense or with two experts.
fn folder(experts: bool, quantization: &str) -> Folder {
    let kind = match experts {
        true => {
            json!({"model_type": "qwen3_moe", "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": OUT})
        }
        false => json!({"model_type": "qwen3"}),
    };
    let common = json!({"hidden_size": IN, "intermediate_size": OUT, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 40, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "tie_word_embeddings": true});
    let mut config: Map<String, Value> = common.as_object().unwrap().clone();
    config.extend(kind.as_object().unwrap().clone());
    config.insert(
        "quantization_config".into(),
        serde_json::from_str(quantization).unwrap(),
    );
    let mut folder = Folder {
        config,
        tensors: BTreeMap::new(),
    };
    let layer = "model.layers.0.";
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".into(), vec![40, IN]),
        ("model.norm.weight".into(), vec![IN]),
        (format!("{layer}input_layernorm.weight"), vec![IN]),
        (format!("{layer}post_attention_layernorm.weight"), vec![IN]),
        (format!("{layer}self_attn.q_norm.weight"), vec![32]),
        (format!("{layer}self_attn.k_norm.weight"), vec![32]),
        (format!("{layer}self_attn.q_proj.weight"), vec![64, IN]),
        (format!("{layer}self_attn.k_proj.weight"), vec![32, IN]),
        (format!("{layer}self_attn.v_proj.weight"), vec![32, IN]),
        (format!("{layer}self_attn.o_proj.weight"), vec![IN, 64]),
    ];
    let feed_forwards = match experts {
        true => vec![
            format!("{layer}mlp.experts.0"),
            format!("{layer}mlp.experts.1"),
        ],
        false => vec![format!("{layer}mlp")],
    };
    for of in feed_forwards {
        shapes.push((format!("{of}.gate_proj.weight"), vec![OUT, IN]));
        shapes.push((format!("{of}.up_proj.weight"), vec![OUT, IN]));
        shapes.push((format!("{of}.down_proj.weight"), vec![IN, OUT]));
    }
    if experts {
        shapes.push((format!("{layer}mlp.gate.weight"), vec![2, IN]));
    }
    for (name, shape) in shapes {
        let count = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|i| (i % 17) as f32 / 100.0).collect();
        folder.tensors.insert(name, Stored::f32(&shape, &values));
    }
    folder
}

/// Puts a format's parts in the place of `{stem}.weight`.
fn put(folder: &mut Folder, stem: &str, format: &str) {
    folder.tensors.remove(&format!("{stem}.weight"));
    let parts = parts(format).into_iter();
    for (part, stored) in parts.filter(|(part, _)| part != "expected") {
        folder.tensors.insert(format!("{stem}.{part}"), stored);
    }
}

fn packed(format: &str) -> Folder {
    let (_, quantization, ..) = FORMATS.iter().find(|f| f.0 == format).unwrap();
    let mut folder = folder(false, quantization);
    put(&mut folder, UP, format);
    folder
}

fn assert_close(what: &str, found: &[f32], expected: &[f32], share: f32) {
    let largest = expected.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = (found - expected).abs();
        assert!(
            off <= share * largest,
            "{what}, element {i}: {found}, not {expected}"
        );
    }
}

#[test]
fn every_format_is_what_its_package_makes_of_it() {
    for (format, _, ty, share) in FORMATS {
        let file = packed(format).ready();
        Network::from_file(&file).unwrap_or_else(|e| panic!("{format}: {e}"));
        let tensor = file.tensor("blk.0.ffn_up.weight").unwrap();
        assert_eq!(tensor.ty, ty, "{format}");
        assert_eq!(tensor.dims, [IN, OUT], "{format}");
        assert_close(format, &elements(tensor), &expected(format), share);
        // Any rows alone.
        let lazy = packed(format).open().unwrap();
        let lazy = lazy.tensor("blk.0.ffn_up.weight").unwrap();
        for rows in [0..1, 5..12, 7..8, 3..OUT] {
            let row = tensor.row_bytes();
            let mut some = vec![0; rows.len() * row];
            lazy.read_rows(rows.start, &mut some).unwrap();
            let same = some == tensor.bytes()[rows.start * row..rows.end * row];
            assert!(same, "{format}: rows {rows:?}");
        }
    }
}

#[test]
fn experts_that_differ_stand_in_one_tensor() {
    let mut folder = folder(true, r#"{"quant_method": "gptq"}"#);
    let formats = ["gptq_symmetric", "gptq"];
    for (i, format) in formats.iter().enumerate() {
        let stem = format!("model.layers.0.mlp.experts.{i}.up_proj");
        put(&mut folder, &stem, format);
    }
    let file = folder.ready();
    let tensor = file.tensor("blk.0.ffn_up_exps.weight").unwrap();
    assert_eq!(
        (tensor.ty, &tensor.dims[..]),
        (TensorType::Q4_1, &[IN, OUT, 2][..])
    );
    let found = elements(tensor);
    for (format, found) in formats.iter().zip(found.chunks_exact(IN * OUT)) {
        assert_close(format, found, &expected(format), 6e-4);
    }
}

#[test]
fn scales_that_half_precision_has_not_make_single_precision() {
    let mut folder = packed("bytes");
    let scales = vec![1e-6; OUT];
    let scales = Stored::f32(&[OUT, 1], &scales);
    folder.tensors.insert(format!("{UP}.weight_scale"), scales);
    let file = folder.ready();
    let tensor = file.tensor("blk.0.ffn_up.weight").unwrap();
    assert_eq!(tensor.ty, TensorType::F32);
    let codes = &parts("bytes")["weight"].bytes;
    let expected: Vec<f32> = codes.iter().map(|c| f32::from(*c as i8) * 1e-6).collect();
    assert_eq!(elements(tensor), expected);
}

fn error_of(format: &str, change: impl FnOnce(&mut Folder)) -> Error {
    let mut folder = packed(format);
    change(&mut folder);
    let network = folder
        .open()
        .and_then(|file: ModelFile| Network::from_file(&file));
    network.unwrap_err()
}

#[test]
fn parts_that_do_not_fit_are_named() {
    let missing = [
        ("gptq", "scales"),
        ("gptq", "qzeros"),
        ("awq", "scales"),
        ("packed", "weight_scale"),
        ("packed", "weight_shape"),
        ("bytes", "weight_scale"),
        ("nvfp4", "weight_scale"),
        ("nvfp4", "weight_global_scale"),
        ("modelopt", "weight_scale"),
        ("mxfp4", "weight_scale"),
        ("bitnet_divided", "weight_scale"),
        ("bitnet_multiplied", "weight_scale"),
    ];
    for (format, part) in missing {
        let part = format!("{UP}.{part}");
        let e = error_of(format, |folder| {
            folder.tensors.remove(&part);
        });
        assert_eq!(e.status, Status::MissingTensor, "{format}: {e}");
        assert!(e.message.contains(&part), "{format}: {e}");
    }
    for (format, ..) in FORMATS {
        for part in parts(format).into_keys() {
            // A list of other length than there are inputs, a shape that is none, and factors that are lists are
            // found likewise; an input's scale is not read.
            if ["expected", "input_scale"].contains(&&*part) {
                continue;
            }
            let part = format!("{UP}.{part}");
            let e = error_of(format, |folder| {
                let stored = folder.tensors.get_mut(&part).unwrap();
                stored.shape.push(3);
                stored.bytes = stored.bytes.repeat(3);
            });
            assert!(
                matches!(e.status, Status::ShapeMismatch | Status::Unsupported),
                "{part}: {e}"
            );
            assert!(e.message.contains(UP), "{part}: {e}");
            let e = error_of(format, |folder| {
                let stored = folder.tensors.get_mut(&part).unwrap();
                stored.ty = "BOOL".into();
                let count = stored.shape.iter().product();
                stored.bytes.resize(count, 0);
            });
            assert!(
                matches!(e.status, Status::ShapeMismatch | Status::Unsupported),
                "{part}: {e}"
            );
            assert!(e.message.contains(UP), "{part}: {e}");
        }
    }
}

#[test]
fn numbers_that_cannot_be_are_named() {
    for number in [f32::NAN, f32::INFINITY] {
        let scale = format!("{UP}.weight_scale");
        let e = error_of("packed_8", |folder| {
            let mut scales = vec![0.1; OUT];
            scales[3] = number;
            let scales = Stored::f32(&[OUT, 1], &scales);
            folder.tensors.insert(scale.clone(), scales);
        });
        assert_eq!(e.status, Status::InvalidModel, "{e}");
        assert!(e.message.contains(&scale), "{e}");
    }
    for number in [0.0, f32::NAN] {
        let factor = format!("{UP}.weight_global_scale");
        let e = error_of("nvfp4", |folder| {
            let one = Stored::f32(&[1], &[number]);
            folder.tensors.insert(factor.clone(), one);
        });
        assert_eq!(e.status, Status::InvalidModel, "{e}");
        assert!(e.message.contains(&factor), "{e}");
    }
    for number in [0.0, f32::NAN] {
        let scale = format!("{UP}.weight_scale");
        for format in ["bitnet_divided", "bitnet_multiplied"] {
            let e = error_of(format, |folder| {
                let one = Stored::f32(&[1], &[number]);
                folder.tensors.insert(scale.clone(), one);
            });
            assert_eq!(e.status, Status::InvalidModel, "{e}");
            assert!(e.message.contains(&scale), "{e}");
        }
    }
    for (format, part, at, byte) in [
        ("gptq", "g_idx", 4, 2),
        ("gptq", "g_idx", 7, 255),
        ("packed", "weight_shape", 0, 23),
    ] {
        let part = format!("{UP}.{part}");
        let e = error_of(format, |folder| {
            folder.tensors.get_mut(&part).unwrap().bytes[at] = byte;
        });
        let statuses = [Status::InvalidModel, Status::ShapeMismatch];
        assert!(statuses.contains(&e.status), "{part}: {e}");
        assert!(e.message.contains(UP), "{part}: {e}");
    }
}

#[test]
fn configs_that_say_otherwise_are_refused() {
    for (format, quantization, needed) in [
        ("gptq", json!({"quant_method": "gptq", "bits": 5}), "5 bits"),
        (
            "bitnet_divided",
            json!({"quant_method": "bitnet", "linear_class": "linear"}),
            "linear_class",
        ),
        (
            "bitnet_divided",
            json!({"quant_method": "bitnet", "use_rms_norm": true}),
            "use_rms_norm",
        ),
        (
            "gptq",
            json!({"quant_method": "gptq", "checkpoint_format": "marlin"}),
            "marlin",
        ),
        ("gptq", json!({"quant_method": "fp8"}), "quant_method"),
        ("gptq", json!({"bits": 4}), "quant_method"),
        ("gptq", json!({"quant_method": "awq"}), "scales"),
        ("awq", json!({"quant_method": "awq", "bits": 8}), "8 bits"),
        (
            "awq",
            json!({"quant_method": "awq", "version": "exllama"}),
            "exllama",
        ),
        (
            "awq_gemv",
            json!({"quant_method": "awq", "version": "gemv"}),
            "group_size",
        ),
        (
            "awq_gemv",
            json!({"quant_method": "awq", "version": "gemv", "group_size": 24}),
            "groups of 24 inputs",
        ),
        ("packed", json!({"quant_method": "hqq"}), "hqq"),
    ] {
        let e = error_of(format, |folder| {
            folder.set("quantization_config", quantization.clone());
        });
        assert!(e.message.contains(needed), "{quantization}: {e}");
    }
    let e = error_of("gptq", |folder| {
        folder.config.remove("quantization_config");
    });
    assert!(e.message.contains("quantization_config"), "{e}");
}

/// Shapes, types and bytes at random: an error or a tensor, never a panic.
#[test]
fn parts_at_random_are_errors_or_tensors() {
    let mut random = Random::new(11, "parts");
    let mut below = |n: usize| (random.bits() % n as u64) as usize;
    let (mut made, mut refused) = (0, 0);
    for round in 0..3000 {
        let mut folder = packed(FORMATS[round % FORMATS.len()].0);
        let own: Vec<String> = folder
            .tensors
            .keys()
            .filter(|n| n.contains(UP))
            .cloned()
            .collect();
        for _ in 0..1 + below(2) {
            let name = &own[below(own.len())];
            let Some(stored) = folder.tensors.get_mut(name) else {
                continue;
            };
            match below(5) {
                0 => {
                    folder.tensors.remove(name);
                }
                1 => {
                    // Of the same bytes, so that the file is whole.
                    let n = stored.shape.iter().product::<usize>();
                    let rows = [1, 2, 3, 8, 24, n][below(6)];
                    if n.is_multiple_of(rows) {
                        stored.shape =
                            [vec![rows, n / rows], vec![n / rows, rows], vec![n]][below(3)].clone();
                    }
                }
                2 if stored.bytes.len().is_multiple_of(4) => {
                    stored.ty = ["I32", "F32", "U8", "I8"][below(4)].into();
                    let size = if stored.ty.ends_with("32") { 4 } else { 1 };
                    stored.shape = vec![stored.bytes.len() / size];
                }
                _ => {
                    let n = stored.bytes.len();
                    for _ in 0..1 + below(4) {
                        stored.bytes[below(n)] = [0, 1, 0x7f, 0x80, 0xff][below(5)];
                    }
                }
            }
        }
        let file = folder.open();
        match file.and_then(|file| file.make(1, &mut |_| Ok(())).map(|()| file)) {
            Ok(file) => {
                made += 1;
                let _ = Network::from_file(&file);
            }
            Err(e) => {
                refused += 1;
                assert!(!e.message.is_empty());
            }
        }
    }
    assert!(
        made > 100 && refused > 100,
        "{made} made, {refused} refused"
    );
}

/// A matrix whose rows are blocks of ternary numbers, packed and not.
#[test]
fn ternary_rows_of_whole_blocks_stay_ternary() {
    const WIDE: usize = 512;
    const TALL: usize = 8;
    let down = "model.layers.0.mlp.down_proj";
    let code = |row: usize, column: usize| (row * 7 + column * column + column / 5) % 3;
    let scale = 0.375;
    let expected: Vec<f32> = (0..TALL * WIDE)
        .map(|i| (code(i / WIDE, i % WIDE) as f32 - 1.0) * scale)
        .collect();
    let mut packed = Vec::new();
    for row in 0..TALL / 4 {
        for column in 0..WIDE {
            let byte = (0..4).map(|n| code(row + n * TALL / 4, column) << (2 * n));
            packed.push(byte.sum::<usize>() as u8);
        }
    }
    let mode = |mode: &str| json!({"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": mode});
    let open = |quantization: &Value, weight: Stored, scale: Option<f32>| {
        let mut folder = folder(false, &quantization.to_string());
        folder.set("hidden_size", json!(TALL));
        folder.set("intermediate_size", json!(WIDE));
        folder.tensors.insert(format!("{down}.weight"), weight);
        if let Some(scale) = scale {
            let scale = Stored::f32(&[1], &[scale]);
            folder.tensors.insert(format!("{down}.weight_scale"), scale);
        }
        folder.open().map(|file| {
            let made = file.make(2, &mut |_| Ok(()));
            (file.tensor("blk.0.ffn_down.weight").unwrap().clone(), made)
        })
    };
    let bytes = |bytes: Vec<u8>| Stored {
        ty: "U8".into(),
        shape: vec![TALL / 4, WIDE],
        bytes,
    };
    let offline = mode("offline");
    let (tensor, made) = open(&offline, bytes(packed.clone()), Some(scale)).unwrap();
    made.unwrap();
    assert_eq!(tensor.ty, TensorType::TQ2_0);
    assert_eq!(elements(&tensor), expected);
    // Numbers beside a scale are multiplied with it.
    let plain = Stored::f32(&[TALL, WIDE], &expected);
    let (tensor, made) = open(&offline, plain.clone(), Some(2.0)).unwrap();
    made.unwrap();
    assert_eq!(tensor.ty, TensorType::F32);
    let doubled: Vec<f32> = expected.iter().map(|x| x * 2.0).collect();
    assert_eq!(elements(&tensor), doubled);
    // The mean magnitude takes the place of the scale.
    let (tensor, made) = open(&mode("online"), plain, None).unwrap();
    made.unwrap();
    assert_eq!(tensor.ty, TensorType::TQ2_0);
    let mean = expected.iter().map(|x| x.abs()).sum::<f32>() / expected.len() as f32;
    let rounded: Vec<f32> = expected.iter().map(|x| x / scale * mean).collect();
    assert_close("online", &elements(&tensor), &rounded, 5e-4);
    // What is no element, and numbers that have no mean.
    packed[WIDE + 3] = 0b1100_0000;
    let (_, made) = open(&offline, bytes(packed), Some(scale)).unwrap();
    let e = made.unwrap_err();
    assert_eq!(e.status, Status::InvalidModel, "{e}");
    assert!(e.message.contains(down), "{e}");
    let endless = Stored::f32(&[TALL, WIDE], &vec![f32::INFINITY; TALL * WIDE]);
    let (_, made) = open(&mode("online"), endless, None).unwrap();
    let e = made.unwrap_err();
    assert_eq!(e.status, Status::InvalidModel, "{e}");
    assert!(e.message.contains(down), "{e}");
}
