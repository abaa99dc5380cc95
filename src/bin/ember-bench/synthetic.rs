//! Writes a model file of a known shape with random weights.

use crate::random::{self, Random};
use crate::shapes::{Fill, Hybrid, Mix, Plan, Shape};
use emberlm::format::writer::Writer;
use emberlm::format::{Array, ModelFile, Value};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Rows are made in pieces of about this many bytes.
const PIECE_BYTES: usize = 1 << 20;

/// The tokenizer of a model file; the error is a sentence that names the path.
pub fn vocabulary(path: &Path) -> Result<Vec<(String, Value)>, String> {
    let file = ModelFile::open(path).map_err(|e| e.to_string())?;
    let keys = file.metadata.into_iter();
    let mut keys: Vec<_> = keys
        .filter(|(key, _)| key.starts_with("tokenizer."))
        .collect();
    keys.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(keys)
}

/// Writes the file, with the keys of a tokenizer or without one; the error is a sentence that names
/// the path.
pub fn write(
    path: &Path,
    shape: &Shape,
    mix: Mix,
    vocabulary: Vec<(String, Value)>,
) -> Result<(), String> {
    let named = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let plans = shape.tensors(mix);
    let mut writer = Writer::new();
    for (key, value) in metadata(shape, vocabulary) {
        writer.set(&key, value);
    }
    for plan in &plans {
        writer
            .tensor(&plan.name, plan.ty, &plan.dims)
            .map_err(|e| named(&e))?;
    }
    let file = File::create(path).map_err(|e| named(&e))?;
    let mut file = BufWriter::with_capacity(PIECE_BYTES, file);
    let mut random = Random::new(0x0065_6d62_6572);
    let mut plans = plans.iter();
    writer
        .write(&mut file, |entry, out| {
            // The writer asks for the tensors in the order in which they were added.
            let plan = plans.next().filter(|plan| plan.name == entry.name);
            let plan = plan.ok_or_else(|| io::Error::other("tensors out of order"))?;
            write_tensor(plan, &mut random, out)
        })
        .map_err(|e| named(&e))
}

/// What describes the shape. The tokenizer `none` lets other programs load the file, too.
fn metadata(shape: &Shape, vocabulary: Vec<(String, Value)>) -> Vec<(String, Value)> {
    let number = |n: usize| Value::U64(n as u64);
    let text = |s: &str| Value::String(s.to_owned());
    let architecture = shape.architecture();
    let rotated = match shape.hybrid {
        Some(Hybrid::DeltaNet { .. }) => shape.head_dim / 4,
        _ => shape.head_dim,
    };
    let mut keys = vec![
        ("vocab_size", number(shape.n_vocab)),
        ("context_length", number(shape.context)),
        ("embedding_length", number(shape.hidden)),
        ("block_count", number(shape.n_layers)),
        ("feed_forward_length", number(shape.n_ff)),
        ("attention.head_count", number(shape.n_heads)),
        ("attention.head_count_kv", number(shape.n_kv_heads)),
        ("attention.key_length", number(shape.head_dim)),
        ("attention.value_length", number(shape.head_dim)),
        (
            "attention.layer_norm_rms_epsilon",
            Value::F32(shape.norm_eps),
        ),
        ("rope.dimension_count", number(rotated)),
        ("rope.freq_base", Value::F32(shape.rope_theta)),
    ];
    if let Some(e) = &shape.experts {
        keys.push(("expert_count", number(e.count)));
        keys.push(("expert_used_count", number(e.used)));
        keys.push(("expert_feed_forward_length", number(e.n_ff)));
        if e.shared_ff > 0 {
            keys.push(("expert_shared_feed_forward_length", number(e.shared_ff)));
        }
    }
    let own = shape.own_keys();
    keys.retain(|(key, _)| own.iter().all(|(k, _)| k != key));
    keys.extend(own);
    match &shape.hybrid {
        None
        | Some(Hybrid::Gemma4(_) | Hybrid::Latent(_) | Hybrid::Mamba(_) | Hybrid::Layers(_)) => {}
        Some(Hybrid::DeltaNet {
            key_heads,
            value_heads,
            dim,
            width,
        }) => {
            keys.push(("full_attention_interval", number(4)));
            keys.push(("ssm.conv_kernel", number(*width)));
            keys.push(("ssm.state_size", number(*dim)));
            keys.push(("ssm.group_count", number(*key_heads)));
            keys.push(("ssm.time_step_rank", number(*value_heads)));
            keys.push(("ssm.inner_size", number(value_heads * dim)));
            let sections = [11, 11, 10, 0].to_vec();
            let sections = Value::Array(Array::I64(sections));
            keys.push(("rope.dimension_sections", sections));
        }
        Some(Hybrid::ShortConv { width, .. }) => {
            keys.push(("shortconv.l_cache", number(*width)));
        }
        Some(Hybrid::Mamba2 {
            heads,
            groups,
            head_dim,
            state,
            width,
            ..
        }) => {
            keys.push(("ssm.conv_kernel", number(*width)));
            keys.push(("ssm.state_size", number(*state)));
            keys.push(("ssm.group_count", number(*groups)));
            keys.push(("ssm.time_step_rank", number(*heads)));
            keys.push(("ssm.inner_size", number(heads * head_dim)));
            // What Granite 4 has.
            keys.push(("rope.scaling.finetuned", Value::Bool(false)));
            keys.push(("attention.scale", Value::F32(1.0 / 64.0)));
            keys.push(("embedding_scale", Value::F32(12.0)));
            keys.push(("residual_scale", Value::F32(0.22)));
            keys.push(("logit_scale", Value::F32(8.0)));
        }
    }
    if let Some(Hybrid::ShortConv { .. } | Hybrid::Mamba2 { .. }) = shape.hybrid {
        let heads = (0..shape.n_layers).map(|i| match shape.attends(i) {
            true => shape.n_kv_heads as i64,
            false => 0,
        });
        let heads = Value::Array(Array::I64(heads.collect()));
        keys.retain(|(key, _)| *key != "attention.head_count_kv");
        keys.push(("attention.head_count_kv", heads));
    }
    if architecture == "gpt-oss" {
        keys.push(("attention.sliding_window", number(128)));
        keys.push(("rope.scaling.type", text("yarn")));
        keys.push(("rope.scaling.factor", Value::F32(32.0)));
        keys.push(("rope.scaling.original_context_length", number(4096)));
    }
    let keys = keys.into_iter();
    let mut all: Vec<_> = keys
        .map(|(key, value)| (format!("{architecture}.{key}"), value))
        .collect();
    let name = format!("{} with random weights", shape.name);
    all.push(("general.architecture".into(), text(architecture)));
    all.push(("general.name".into(), text(&name)));
    if vocabulary.is_empty() {
        all.push(("tokenizer.ggml.model".into(), text("none")));
    }
    all.extend(vocabulary);
    all
}

fn write_tensor(plan: &Plan, random: &mut Random, out: &mut dyn Write) -> io::Result<()> {
    let row_len = plan.dims[0];
    let rows: usize = plan.dims[1..].iter().product();
    let row_bytes = plan
        .ty
        .row_bytes(row_len)
        .ok_or_else(|| io::Error::other(format!("tensor {}: row of {row_len}", plan.name)))?;
    let sigma = match plan.fill {
        Fill::Constant(value) => {
            // Vectors alone, which are F32.
            for _ in 0..row_len * rows {
                out.write_all(&value.to_le_bytes())?;
            }
            return Ok(());
        }
        Fill::Weights => 1.0 / (row_len as f32).sqrt(),
        Fill::Bias => 0.1,
    };
    let rows_per_piece = (PIECE_BYTES / row_bytes).max(1);
    let mut piece = vec![0u8; rows_per_piece.min(rows) * row_bytes];
    let mut left = rows;
    while left > 0 {
        let now = rows_per_piece.min(left);
        let bytes = &mut piece[..now * row_bytes];
        random::fill(plan.ty, sigma, random, bytes);
        out.write_all(bytes)?;
        left -= now;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::{self, Experts};
    use emberlm::format::ModelFile;
    use emberlm::model::{FeedForward, Network};
    use emberlm::quant::{TensorType, dequantize_row};

    /// Elements of every type have the deviation that was asked for, and a mean near 0 (4-bit values
    /// from -8 to 7 have theirs at -0.5, a tenth of their deviation).
    #[test]
    fn random_blocks_have_the_wanted_deviation() {
        for ty in TensorType::ALL {
            let sigma = 0.02;
            let mut bytes = vec![0u8; ty.row_bytes(256 * 256).expect("whole blocks")];
            random::fill(ty, sigma, &mut Random::new(7), &mut bytes);
            let mut values = vec![0f32; 256 * 256];
            dequantize_row(ty, &bytes, &mut values);
            let n = values.len() as f64;
            let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
            let square = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n;
            let deviation = (square - mean * mean).sqrt() / f64::from(sigma);
            // MXFP4 and NVFP4 have powers of two alone; the others follow from uniform bits.
            let (low, high) = match ty {
                TensorType::MXFP4 | TensorType::NVFP4 => (0.7, 1.42),
                _ => (0.95, 1.05),
            };
            assert!(
                (low..high).contains(&deviation),
                "{}: {deviation}",
                ty.name()
            );
            assert!(
                mean.abs() < 0.15 * f64::from(sigma),
                "{}: mean {mean}",
                ty.name()
            );
        }
    }

    /// The shape called hamlet is that of the committed model: the same tensors, types and keys.
    #[test]
    fn the_shape_of_hamlet_equals_the_file() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let real = ModelFile::open(&root.join("models/hamlet-7m-Q4_K_M.gguf")).expect("committed");
        let shape = shapes::find("hamlet").expect("known");
        let plans = shape.tensors(Mix::Q4_K_M);
        assert_eq!(plans.len(), real.tensors.len());
        for plan in plans {
            let tensor = real.tensor(&plan.name).expect("in the file");
            assert_eq!(
                (tensor.ty, &tensor.dims),
                (plan.ty, &plan.dims),
                "{}",
                plan.name
            );
        }
    }

    /// A written file opens as the network that was asked for, in every mix.
    #[test]
    fn written_files_open() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("model.gguf");
        let small = Shape {
            name: "small",
            hidden: 256,
            n_layers: 2,
            n_heads: 3,
            n_kv_heads: 1,
            head_dim: 64,
            n_ff: 512,
            n_vocab: 300,
            tied: false,
            qkv_bias: true,
            rope_theta: 1e4,
            norm_eps: 1e-5,
            context: 64,
            experts: None,
            hybrid: None,
        };
        for ty in TensorType::ALL {
            let mix = Mix::parse(ty.name()).expect("every type is a mix");
            write(&path, &small, mix, Vec::new()).expect("written");
            let file = ModelFile::open(&path).expect("opens");
            let network = Network::from_file(&file).expect("is a network");
            assert_eq!((network.hidden, network.n_vocab), (256, 300), "{mix}");
            assert_eq!(network.blocks.len(), 2);
            assert!(
                network.blocks[1]
                    .mixer
                    .as_attention()
                    .expect("attends")
                    .q
                    .bias
                    .is_some()
            );
            assert_eq!(
                network.blocks[0]
                    .mixer
                    .as_attention()
                    .expect("attends")
                    .head_dim,
                64
            );
        }
        for architecture in ["qwen3moe", "gpt-oss"] {
            let experts = Shape {
                experts: Some(Experts {
                    architecture,
                    count: 5,
                    used: 2,
                    n_ff: 96,
                    shared_ff: 0,
                }),
                ..small
            };
            let mix = Mix::parse("mxfp4").expect("a mix");
            write(&path, &experts, mix, Vec::new()).expect("written");
            let network = Network::from_file(&ModelFile::open(&path).expect("opens"));
            let network = network.expect("is a network");
            let FeedForward::Experts(e) = &network.blocks[1].feed_forward else {
                panic!("no experts");
            };
            assert_eq!((e.n_experts, e.n_used), (5, 2));
            assert_eq!(e.up.weight.ty, TensorType::MXFP4);
            assert_eq!(
                network.blocks[1]
                    .mixer
                    .as_attention()
                    .expect("attends")
                    .q
                    .weight
                    .ty,
                TensorType::Q8_0
            );
        }
    }

    /// So do those with attention of another kind.
    #[test]
    fn files_with_other_attention_open() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("model.gguf");
        let small = Shape {
            name: "small",
            hidden: 256,
            n_layers: 4,
            n_heads: 2,
            n_kv_heads: 1,
            head_dim: 64,
            n_ff: 512,
            n_vocab: 300,
            tied: true,
            qkv_bias: false,
            rope_theta: 1e4,
            norm_eps: 1e-5,
            context: 64,
            experts: None,
            hybrid: Some(Hybrid::Gemma4(&shapes::Gemma4 {
                global_dim: 128,
                interval: 2,
                window: 16,
                shared: 2,
                input: 32,
            })),
        };
        let open = |shape: &Shape| {
            write(&path, shape, Mix::Q4_K_M, Vec::new()).expect("written");
            Network::from_file(&ModelFile::open(&path).expect("opens")).expect("is a network")
        };
        let network = open(&small);
        let inputs = network.per_layer.expect("inputs of layers");
        assert_eq!(inputs.embedding.row_len(), 4 * 32);
        let attention = |i: usize| network.blocks[i].mixer.as_attention().expect("attends");
        assert_eq!((attention(2).head_dim, attention(3).head_dim), (64, 128));
        assert_eq!((attention(2).shares, attention(1).shares), (Some(0), None));
        let latent = open(&Shape {
            head_dim: 40,
            tied: false,
            experts: Some(Experts {
                architecture: "deepseek2",
                count: 5,
                used: 2,
                n_ff: 64,
                shared_ff: 0,
            }),
            hybrid: Some(Hybrid::Latent(&shapes::Latent {
                rank: 32,
                plain: 32,
                rotated: 8,
                value: 32,
                dense: 1,
                shared: 2,
            })),
            ..small
        });
        assert!(matches!(
            latent.blocks[1].feed_forward,
            FeedForward::Experts(_)
        ));
        assert_eq!(latent.blocks[3].mixer.name(), "latent attention");
    }
}
