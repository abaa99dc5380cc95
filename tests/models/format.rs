//! Good model files: everything that the writer writes is read back.

use crate::common::quantize::quantize_row;
use crate::common::tiny::Tiny;
use crate::common::{TempDir, repository_file};
use emberlm::Status;
use emberlm::format::writer::Writer;
use emberlm::format::{Array, ModelFile, Value};
use emberlm::model::{FeedForward, Network, RopePairing};
use emberlm::quant::{TensorType, dequantize_row};

#[test]
fn hamlet_is_a_llama_of_the_known_shape() {
    let path = repository_file("models/hamlet-7m-Q4_K_M.gguf");
    let file = ModelFile::open(&path).unwrap();
    assert_eq!(file.file_bytes, std::fs::metadata(&path).unwrap().len());
    assert_eq!(file.strings("tokenizer.ggml.tokens").unwrap().len(), 1424);
    let network = Network::from_file(&file).unwrap();
    assert_eq!(network.architecture, "llama");
    assert_eq!((network.hidden, network.n_vocab), (256, 1424));
    assert_eq!((network.context_length, network.blocks.len()), (2048, 8));
    assert!(network.head.weight.same_data(&network.embedding));
    for block in &network.blocks {
        let a = block.mixer.as_attention().unwrap();
        assert_eq!((a.n_heads, a.n_kv_heads, a.head_dim), (4, 2, 64));
        assert_eq!(a.q.weight.ty, TensorType::Q4K);
        assert_eq!(a.scale, 0.125);
        let rope = a.rope.as_ref().unwrap();
        assert_eq!(rope.pairing, RopePairing::Interleaved);
        assert_eq!(rope.inv_freq.len(), 32);
        assert_eq!((rope.inv_freq[0], rope.inv_freq[16]), (1.0, 0.01));
        assert_eq!(rope.magnitude, 1.0);
        assert_eq!(block.mixer_norm.as_ref().unwrap().eps, 1e-5);
        let FeedForward::Dense(mlp) = &block.feed_forward else {
            panic!("experts")
        };
        assert_eq!(mlp.down.weight.dims, [768, 256]);
    }
}

/// A file with this metadata and no tensors, read back.
fn read_back(values: &[(&str, Value)]) -> ModelFile {
    let mut writer = Writer::new();
    for (key, value) in values {
        writer.set(key, value.clone());
    }
    let mut bytes = Vec::new();
    writer.write(&mut bytes, |_, _| Ok(())).unwrap();
    ModelFile::from_bytes(&bytes).unwrap()
}

#[test]
fn every_kind_of_metadata_is_read_back() {
    let nested = Array::Array(vec![
        Array::Array(vec![Array::U64(vec![1, 2]), Array::U64(vec![])]),
        Array::String(["deep"].into_iter().collect()),
    ]);
    let values: Vec<(&str, Value)> = vec![
        ("small", 7u32.into()),
        ("large", u64::MAX.into()),
        ("negative", (-7i32).into()),
        ("very negative", i64::MIN.into()),
        ("single", 0.1f32.into()),
        ("double", 0.1f64.into()),
        ("true", true.into()),
        ("false", false.into()),
        ("text", "Grüße, 世界".into()),
        ("nothing", "".into()),
        ("numbers", vec![1u64, 2, u64::MAX].into()),
        ("small numbers", vec![1u64, 2].into()),
        ("signed numbers", vec![-1i64, 1 << 40].into()),
        ("singles", vec![1.5f32, -0.0].into()),
        ("doubles", Value::Array(Array::F64(vec![1e300]))),
        ("booleans", Value::Array(Array::Bool(vec![true, false]))),
        ("texts", vec!["a".to_owned(), "".to_owned()].into()),
        ("nested", nested.into()),
        ("empty", Vec::<String>::new().into()),
    ];
    let file = read_back(&values);
    assert_eq!(file.metadata.len(), values.len());
    for (key, value) in &values {
        assert_eq!(&file.metadata[*key], value, "{key}");
    }
}

#[test]
fn every_width_of_integer_is_read() {
    // Type id and bytes of the number 5, and what the value becomes.
    let cases: [(u32, Vec<u8>, Value); 8] = [
        (0, 5u8.to_le_bytes().into(), Value::U64(5)),
        (1, 5i8.to_le_bytes().into(), Value::I64(5)),
        (2, 5u16.to_le_bytes().into(), Value::U64(5)),
        (3, 5i16.to_le_bytes().into(), Value::I64(5)),
        (4, 5u32.to_le_bytes().into(), Value::U64(5)),
        (5, 5i32.to_le_bytes().into(), Value::I64(5)),
        (10, 5u64.to_le_bytes().into(), Value::U64(5)),
        (11, 5i64.to_le_bytes().into(), Value::I64(5)),
    ];
    for (id, number, value) in cases {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(2u64.to_le_bytes());
        bytes.extend(3u64.to_le_bytes());
        bytes.extend(b"one");
        bytes.extend(id.to_le_bytes());
        bytes.extend(&number);
        bytes.extend(4u64.to_le_bytes());
        bytes.extend(b"many");
        bytes.extend(9u32.to_le_bytes());
        bytes.extend(id.to_le_bytes());
        bytes.extend(2u64.to_le_bytes());
        bytes.extend(&number);
        bytes.extend(&number);
        let file = ModelFile::from_bytes(&bytes).unwrap();
        assert_eq!(file.metadata["one"], value, "type {id}");
        assert_eq!(file.u32("one").unwrap(), 5);
        assert_eq!(file.get::<i64>("one").unwrap(), 5);
        assert_eq!(file.get::<Vec<i32>>("many").unwrap(), [5, 5]);
        assert_eq!(file.get::<Vec<usize>>("many").unwrap(), [5, 5]);
    }
}

#[test]
fn getters_convert_what_fits_and_name_the_key() {
    let file = read_back(&[
        ("text", "hello".into()),
        ("single", 0.5f32.into()),
        ("double", 0.25f64.into()),
        ("minus one", (-1i32).into()),
        ("large", (1u64 << 32).into()),
        ("yes", true.into()),
        ("none", Vec::<u64>::new().into()),
    ]);
    assert_eq!(file.str("text").unwrap(), "hello");
    assert_eq!(file.f32("double").unwrap(), 0.25);
    assert_eq!(file.get::<f64>("single").unwrap(), 0.5);
    assert!(file.bool("yes").unwrap());
    assert_eq!(file.get::<u64>("large").unwrap(), 1 << 32);
    assert_eq!(file.get::<i32>("minus one").unwrap(), -1);
    assert_eq!(file.find::<u32>("absent").unwrap(), None);
    // An empty array has no element type to speak of.
    assert!(file.strings("none").unwrap().is_empty());

    let mistakes = [
        (file.u32("absent").unwrap_err(), "absent"),
        (file.u32("large").unwrap_err(), "large"),
        (file.u32("minus one").unwrap_err(), "minus one"),
        (file.f32("text").unwrap_err(), "text"),
        (file.f32("large").unwrap_err(), "large"),
        (file.bool("text").unwrap_err(), "text"),
        (file.str("yes").unwrap_err(), "yes"),
        (file.strings("text").unwrap_err(), "text"),
        (file.find::<u32>("text").unwrap_err(), "text"),
    ];
    for (error, key) in mistakes {
        assert_eq!(error.status, Status::MissingKey, "{error}");
        assert!(error.message.contains(&format!("key {key} ")), "{error}");
    }
    let error = file.tensor("absent.weight").unwrap_err();
    assert_eq!(error.status, Status::MissingTensor);
    assert!(error.message.contains("absent.weight"), "{error}");
}

#[test]
fn tensors_of_every_type_and_alignment_are_where_they_should_be() {
    for alignment in [1u32, 8, 32, 256, 4096] {
        let mut writer = Writer::new();
        writer.set("general.alignment", alignment);
        for (i, ty) in TensorType::ALL.into_iter().enumerate() {
            let dims = [256, 1 + i, 2, 1];
            writer.tensor(ty.name(), ty, &dims[..1 + i % 4]).unwrap();
        }
        let byte = |name: &str| name.bytes().fold(0u8, u8::wrapping_add);
        let mut bytes = Vec::new();
        writer
            .write(&mut bytes, |tensor, out| {
                out.write_all(&vec![byte(&tensor.name); tensor.size as usize])
            })
            .unwrap();
        let file = ModelFile::from_bytes(&bytes).unwrap();
        assert_eq!(file.tensors.len(), TensorType::ALL.len());
        for (i, ty) in TensorType::ALL.into_iter().enumerate() {
            let tensor = file.tensor(ty.name()).unwrap();
            assert_eq!((tensor.ty, tensor.dims.len()), (ty, 1 + i % 4));
            assert_eq!(tensor.row_len(), 256);
            assert_eq!(tensor.rows(), tensor.dims[1..].iter().product::<usize>());
            assert_eq!(tensor.row_bytes(), 256 / ty.block_len() * ty.block_bytes());
            assert_eq!(tensor.bytes().len(), tensor.rows() * tensor.row_bytes());
            assert!(tensor.bytes().iter().all(|&b| b == byte(ty.name())));
        }
    }
}

/// A file of two NVFP4 matrices of two experts and a scale of this type and these numbers.
fn with_scale(ty: TensorType, scale: &[f32]) -> Vec<u8> {
    let mut writer = Writer::new();
    let name = "blk.0.ffn_up_exps";
    writer
        .tensor(&format!("{name}.weight"), TensorType::NVFP4, &[128, 3, 2])
        .unwrap();
    writer
        .tensor(&format!("{name}.scale"), ty, &[scale.len()])
        .unwrap();
    let mut bytes = Vec::new();
    writer
        .write(&mut bytes, |tensor, out| match tensor.ty {
            TensorType::NVFP4 => {
                let blocks = (0..tensor.size as usize).map(|i| match i % 36 {
                    s @ 0..4 => 30 + 9 * s as u8,
                    _ => (i * 73 + i / 36) as u8,
                });
                out.write_all(&blocks.collect::<Vec<_>>())
            }
            TensorType::F32 => scale
                .iter()
                .try_for_each(|s| out.write_all(&s.to_le_bytes())),
            _ => out.write_all(&vec![0; tensor.size as usize]),
        })
        .unwrap();
    bytes
}

#[test]
fn nvfp4_tensors_are_multiplied_with_their_scales() {
    let values = |file: &ModelFile| {
        file.make(2, &mut |_| Ok(())).unwrap();
        let tensor = file.tensor("blk.0.ffn_up_exps.weight").unwrap();
        let mut values = vec![0.0; 128 * 6];
        dequantize_row(tensor.ty, tensor.bytes(), &mut values);
        (tensor.ty, values)
    };
    let open = |scale: &[f32]| ModelFile::from_bytes(&with_scale(TensorType::F32, scale));
    // One, which changes nothing.
    let (ty, plain) = values(&open(&[1.0]).unwrap());
    assert_eq!(ty, TensorType::NVFP4);
    assert!(plain.iter().any(|v| *v > 1.0));
    for scales in [&[0.0123][..], &[0.5, -3.0]] {
        let (ty, found) = values(&open(scales).unwrap());
        assert_eq!(ty, TensorType::Q8_0);
        for (i, (plain, found)) in plain.chunks(32).zip(found.chunks(32)).enumerate() {
            let scale = scales[i / 12 % scales.len()];
            let largest = plain.iter().fold(0f32, |m, v| m.max((v * scale).abs()));
            for (plain, found) in plain.iter().zip(found) {
                // Half a step of the int8, and the rounding of the block's scale.
                let off = (plain * scale - found).abs();
                assert!(
                    off <= largest * (1.0 / 254.0 + 1.0 / 2048.0),
                    "{plain} {found}"
                );
            }
        }
    }
    for (file, status) in [
        (open(&[1.0, 2.0, 3.0]), Status::ShapeMismatch),
        (open(&[f32::NAN]), Status::InvalidModel),
        (open(&[1.0, f32::INFINITY]), Status::InvalidModel),
        (
            ModelFile::from_bytes(&with_scale(TensorType::Q8_0, &[0.0; 32])),
            Status::ShapeMismatch,
        ),
    ] {
        let error = file.err().unwrap();
        assert_eq!(error.status, status, "{error}");
        assert!(
            error.message.contains("tensor blk.0.ffn_up_exps.scale"),
            "{error}"
        );
    }
}

/// Ternary blocks take a matrix's scale into their own, other types become F32.
#[test]
fn matrices_of_bitnet_are_multiplied_with_their_scales() {
    for (ty, expected) in [
        (TensorType::TQ1_0, TensorType::TQ1_0),
        (TensorType::TQ2_0, TensorType::TQ2_0),
        (TensorType::F16, TensorType::F32),
    ] {
        let open = |architecture: &str, scale: &[f32]| {
            let row: Vec<f32> = (0..256).map(|i| (i * i % 3) as f32 - 1.0).collect();
            let mut writer = Writer::new();
            writer.set("general.architecture", architecture);
            writer.tensor("blk.0.attn_q.weight", ty, &[256, 2]).unwrap();
            let dims = [scale.len()];
            writer
                .tensor("blk.0.attn_q.scale", TensorType::F32, &dims)
                .unwrap();
            let mut bytes = Vec::new();
            let both = quantize_row(ty, &row).repeat(2);
            writer
                .write(&mut bytes, |tensor, out| match tensor.ty {
                    TensorType::F32 => scale
                        .iter()
                        .try_for_each(|s| out.write_all(&s.to_le_bytes())),
                    _ => out.write_all(&both),
                })
                .unwrap();
            let mut numbers = vec![0.0; 512];
            dequantize_row(ty, &both, &mut numbers);
            (numbers, ModelFile::from_bytes(&bytes))
        };
        for scale in [1.0, 0.75, -0.0123] {
            let (numbers, file) = open("bitnet", &[scale]);
            let file = file.unwrap();
            file.make(2, &mut |_| Ok(())).unwrap();
            let tensor = file.tensor("blk.0.attn_q.weight").unwrap();
            assert_eq!(tensor.ty, if scale == 1.0 { ty } else { expected });
            assert_eq!(file.tensors.len(), 1);
            let mut values = vec![0.0; 512];
            dequantize_row(tensor.ty, tensor.bytes(), &mut values);
            for (number, value) in numbers.iter().zip(values) {
                let off = (number * scale - value).abs();
                assert!(off <= scale.abs() / 2048.0, "{number} {value}");
            }
        }
        for (scale, status) in [
            (&[1.0, 2.0][..], Status::ShapeMismatch),
            (&[f32::NAN], Status::InvalidModel),
        ] {
            let error = open("bitnet", scale).1.err().unwrap();
            assert_eq!(error.status, status, "{error}");
            assert!(error.message.contains("blk.0.attn_q.scale"), "{error}");
        }
        if ty == expected {
            let file = open("bitnet", &[1e9]).1.unwrap();
            let error = file.make(1, &mut |_| Ok(())).unwrap_err();
            assert_eq!(error.status, Status::InvalidModel, "{error}");
            assert!(error.message.contains("blk.0.attn_q.weight"), "{error}");
        }
        // Of others it is a tensor as any.
        assert_eq!(open("llama", &[0.5]).1.unwrap().tensors.len(), 2);
    }
}

#[test]
fn tensor_data_may_be_in_any_order_and_end_without_padding() {
    let mut writer = Writer::new();
    writer.tensor("first", TensorType::F32, &[8]).unwrap();
    writer.tensor("other", TensorType::F32, &[3]).unwrap();
    let mut bytes = Vec::new();
    writer
        .write(&mut bytes, |t, out| {
            out.write_all(&vec![t.name.as_bytes()[0]; t.size as usize])
        })
        .unwrap();
    // The padding of the last tensor (12 of 32 bytes) may be missing, wholly or in part.
    for cut in 0..=20 {
        let file = ModelFile::from_bytes(&bytes[..bytes.len() - cut]).unwrap();
        assert_eq!(file.tensor("other").unwrap().bytes(), [b'o'; 12]);
    }
    // The names trade places, so that the second description is of the first data.
    let swapped: Vec<usize> = ["first", "other"]
        .iter()
        .map(|name| bytes.windows(5).position(|w| w == name.as_bytes()).unwrap())
        .collect();
    let (first, other) = (swapped[0], swapped[1]);
    let description = 5 + 4 + 8 + 4;
    for i in 0..description {
        bytes.swap(first + i, other + i);
    }
    let offsets = [first + description, other + description];
    bytes[offsets[0]] = 32;
    bytes[offsets[1]] = 0;
    let file = ModelFile::from_bytes(&bytes).unwrap();
    assert_eq!(file.tensor("other").unwrap().bytes(), [b'o'; 12]);
    assert_eq!(file.tensor("first").unwrap().bytes(), [b'f'; 32]);
}

#[test]
fn version_2_is_read_like_version_3() {
    let mut bytes = Tiny::default().bytes();
    assert_eq!(bytes[4], 3);
    let three = ModelFile::from_bytes(&bytes).unwrap();
    bytes[4] = 2;
    let two = ModelFile::from_bytes(&bytes).unwrap();
    assert_eq!(two.metadata, three.metadata);
    assert_eq!(two.tensors.len(), three.tensors.len());
}

#[test]
fn files_without_tensors_are_read() {
    let file = read_back(&[("general.architecture", "llama".into())]);
    assert!(file.tensors.is_empty());
    assert_eq!(file.str("general.architecture").unwrap(), "llama");
    let empty = ModelFile::from_bytes(b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0").unwrap();
    assert!(empty.metadata.is_empty() && empty.tensors.is_empty());
}

#[test]
fn tensors_outlive_the_file_and_its_directory_entry() {
    let dir = TempDir::new("outlive");
    let path = dir.file("tiny.gguf", &Tiny::default().bytes());
    let file = ModelFile::open(&path).unwrap();
    let tensor = file.tensor("token_embd.weight").unwrap().clone();
    drop(file);
    // Not possible everywhere while the file is mapped, and no matter.
    let _ = std::fs::remove_file(&path);
    let elements = tensor.to_f32().unwrap().unwrap();
    assert_eq!(elements.len(), 32 * 48);
    assert!(elements.iter().all(|x| x.abs() <= 1.0));
    assert!(elements.iter().any(|x| x.abs() > 0.5));
}

/// The writers of a tiny model split into `count` parts, the tensors dealt in turn.
fn split(tiny: &Tiny, count: usize) -> Vec<Writer> {
    let whole = tiny.writer();
    let mut parts = Vec::new();
    for number in 0..count {
        let mut part = Writer::new();
        if number == 0 {
            tiny.set_metadata(&mut part);
        }
        part.set("split.no", number)
            .set("split.count", count)
            .set("split.tensors.count", whole.tensors().len() as i32);
        for tensor in whole.tensors().iter().skip(number).step_by(count) {
            part.tensor(&tensor.name, tensor.ty, &tensor.dims).unwrap();
        }
        parts.push(part);
    }
    parts
}

#[test]
fn a_split_file_is_read_through_any_of_its_parts() {
    let tiny = Tiny::default();
    let whole = ModelFile::from_bytes(&tiny.bytes()).unwrap();
    let dir = TempDir::new("split");
    let mut bytes = 0;
    let paths: Vec<_> = split(&tiny, 3)
        .iter()
        .enumerate()
        .map(|(i, part)| {
            let part = tiny.write(part);
            bytes += part.len() as u64;
            dir.file(&format!("tiny-{:05}-of-00003.gguf", i + 1), &part)
        })
        .collect();
    for path in &paths {
        let file = ModelFile::open(path).unwrap();
        assert_eq!(file.file_bytes, bytes);
        assert_eq!(file.str("general.name").unwrap(), "tiny");
        assert_eq!(file.tensors.len(), whole.tensors.len());
        for (name, tensor) in &whole.tensors {
            assert_eq!(file.tensor(name).unwrap().bytes(), tensor.bytes());
        }
        Network::from_file(&file).unwrap();
    }
}

#[test]
fn a_split_file_is_refused_for_each_thing_that_does_not_fit() {
    type Change = fn(&mut Vec<Writer>);
    let cases: [(&str, Change, Status, &str); 7] = [
        (
            "other-number",
            |p| {
                p[1].set("split.no", 2u32);
            },
            Status::FileCorrupt,
            "split.no is 2; it must be 1",
        ),
        (
            "other-count",
            |p| {
                p[2].set("split.count", 4u32);
            },
            Status::FileCorrupt,
            "split.count is 4; it must be 3",
        ),
        (
            "no-number",
            |p| {
                p[1].unset("split.no");
            },
            Status::FileCorrupt,
            "split.no",
        ),
        (
            "text-for-a-count",
            |p| {
                p[0].set("split.count", "three");
            },
            Status::FileCorrupt,
            "split.count",
        ),
        (
            "other-total",
            |p| {
                for part in p {
                    part.set("split.tensors.count", 5u32);
                }
            },
            Status::FileCorrupt,
            "split.tensors.count is 5",
        ),
        (
            "duplicate-tensor",
            |p| {
                let total = p.iter().map(|p| p.tensors().len()).sum::<usize>() + 1;
                p[1].tensor("token_embd.weight", TensorType::F32, &[32, 48])
                    .unwrap();
                for part in p {
                    part.set("split.tensors.count", total);
                }
            },
            Status::FileCorrupt,
            "tensor token_embd.weight appears twice",
        ),
        (
            "number-beyond-count",
            |p| {
                p[0].set("split.no", 3u32);
            },
            Status::FileCorrupt,
            "split.no is 3",
        ),
    ];
    let tiny = Tiny::default();
    let dir = TempDir::new("split-bad");
    for (name, change, status, message) in cases {
        let mut parts = split(&tiny, 3);
        change(&mut parts);
        let paths: Vec<_> = parts
            .iter()
            .enumerate()
            .map(|(i, part)| {
                dir.file(
                    &format!("{name}-{:05}-of-00003.gguf", i + 1),
                    &tiny.write(part),
                )
            })
            .collect();
        let error = ModelFile::open(&paths[0]).unwrap_err();
        assert_eq!(error.status, status, "{name}: {error}");
        assert!(error.message.contains(message), "{name}: {error}");
        assert!(error.message.contains(name), "{name}: {error}");
    }
}

#[test]
fn a_missing_part_and_a_renamed_part_are_named() {
    let tiny = Tiny::default();
    let dir = TempDir::new("split-missing");
    let parts = split(&tiny, 2);
    let first = dir.file("m-00001-of-00002.gguf", &tiny.write(&parts[0]));
    let error = ModelFile::open(&first).unwrap_err();
    assert_eq!(error.status, Status::FileNotFound);
    assert!(error.message.contains("m-00002-of-00002.gguf"), "{error}");

    let renamed = dir.file("renamed.gguf", &tiny.write(&parts[0]));
    let error = ModelFile::open(&renamed).unwrap_err();
    assert_eq!(error.status, Status::FileNotFound);
    assert!(error.message.contains("renamed.gguf"), "{error}");
    assert!(error.message.contains("-00001-of-00002.gguf"), "{error}");

    let error = ModelFile::from_bytes(&tiny.write(&parts[0])).unwrap_err();
    assert_eq!(error.status, Status::Unsupported);

    dir.file("m-00002-of-00002.gguf", &tiny.write(&parts[1]));
    ModelFile::open(&first).unwrap();
}

#[test]
fn the_writer_refuses_what_the_reader_would() {
    let mut writer = Writer::new();
    writer.tensor("a", TensorType::Q4K, &[256]).unwrap();
    for dims in [&[][..], &[100], &[0], &[256, 0], &[256, 1, 1, 1, 1]] {
        let error = writer.tensor("b", TensorType::Q4K, dims).unwrap_err();
        assert_eq!(error.status, Status::InvalidArgument, "{dims:?}");
    }
    let error = writer.tensor("a", TensorType::F32, &[1]).unwrap_err();
    assert_eq!(error.status, Status::InvalidArgument);
    let error = writer.write(&mut Vec::new(), |_, out| out.write_all(&[0; 3]));
    let error = error.unwrap_err();
    assert_eq!(error.status, Status::InvalidArgument);
    assert!(error.message.contains("tensor a has 144 bytes"), "{error}");
    writer.set("general.alignment", 33u32);
    let error = writer.write(&mut Vec::new(), |_, _| Ok(())).unwrap_err();
    assert_eq!(error.status, Status::InvalidArgument);
}
