//! The description of llama networks: every variant that files have, and each thing that can be
//! wrong with one.

use crate::common::tiny::Tiny;
use emberlm::format::writer::Writer;
use emberlm::format::{ModelFile, Value};
use emberlm::model::{FeedForward, Network};
use emberlm::quant::TensorType;
use emberlm::{Error, Status};

fn load(bytes: &[u8]) -> Result<Network, Error> {
    Network::from_file(&ModelFile::from_bytes(bytes)?)
}

/// The network of a tiny model with changed metadata.
fn with(tiny: &Tiny, change: impl FnOnce(&mut Writer)) -> Result<Network, Error> {
    let mut writer = tiny.writer();
    change(&mut writer);
    load(&tiny.write(&writer))
}

#[test]
fn shapes_of_all_parts_are_as_described() {
    let tiny = Tiny {
        layers: 3,
        heads: 6,
        kv_heads: 3,
        // The heads together are wider than the model, as in Mistral Nemo's relatives.
        head_dim: 10,
        hidden: 32,
        ff: 40,
        vocab: 50,
        ..Tiny::default()
    };
    let n = load(&tiny.bytes()).unwrap();
    assert_eq!((n.hidden, n.n_vocab, n.context_length), (32, 50, 128));
    assert_eq!(n.blocks.len(), 3);
    assert_eq!(n.embedding.dims, [32, 50]);
    assert_eq!(n.head.weight.dims, [32, 50]);
    assert!(!n.head.weight.same_data(&n.embedding));
    assert_eq!(n.final_norm.weight.dims, [32]);
    for (i, block) in n.blocks.iter().enumerate() {
        let a = block.mixer.as_attention().unwrap();
        assert_eq!((a.n_heads, a.n_kv_heads, a.head_dim), (6, 3, 10));
        assert_eq!(a.scale, (1.0 / 10f64.sqrt()) as f32);
        assert_eq!(a.q.weight.dims, [32, 60]);
        assert_eq!(a.k.weight.dims, [32, 30]);
        assert_eq!(a.v.weight.dims, [32, 30]);
        assert_eq!(a.output.weight.dims, [60, 32]);
        let FeedForward::Dense(f) = &block.feed_forward else {
            panic!("experts")
        };
        let gate = f.gate.as_ref().unwrap();
        assert_eq!(gate.weight.dims, [32, 40]);
        assert_eq!(f.up.weight.dims, [32, 40]);
        assert_eq!(f.down.weight.dims, [40, 32]);
        // Each part has the tensor of its own name and layer.
        let parts = [
            (&block.mixer_norm.as_ref().unwrap().weight, "attn_norm"),
            (&a.q.weight, "attn_q"),
            (&a.k.weight, "attn_k"),
            (&a.v.weight, "attn_v"),
            (&a.output.weight, "attn_output"),
            (
                &block.feed_forward_norm.as_ref().unwrap().weight,
                "ffn_norm",
            ),
            (&gate.weight, "ffn_gate"),
            (&f.up.weight, "ffn_up"),
            (&f.down.weight, "ffn_down"),
        ];
        for (tensor, name) in parts {
            assert_eq!(*tensor.name, format!("blk.{i}.{name}.weight"));
        }
        for linear in block.linears() {
            assert!(linear.bias.is_none());
        }
    }
}

#[test]
fn tied_heads_share_the_embedding_and_biases_are_found() {
    let tiny = Tiny {
        tied: true,
        biases: true,
        ty: TensorType::F16,
        ..Tiny::default()
    };
    let n = load(&tiny.bytes()).unwrap();
    assert!(n.head.weight.same_data(&n.embedding));
    assert!(n.head.bias.is_none());
    let block = &n.blocks[1];
    for linear in block.linears() {
        let bias = linear.bias.as_ref().unwrap();
        assert_eq!(*bias.name, linear.weight.name.replace("weight", "bias"));
        assert_eq!(bias.dims, [linear.weight.rows()]);
    }
    let untied = Tiny {
        tied: false,
        ..tiny.clone()
    };
    let head = load(&untied.bytes()).unwrap().head;
    assert_eq!(head.bias.unwrap().dims, [48]);
    let mut writer = tiny.writer();
    writer
        .tensor("output.bias", TensorType::BF16, &[48])
        .unwrap();
    let head = load(&tiny.write(&writer)).unwrap().head;
    assert_eq!(head.bias.unwrap().ty, TensorType::BF16);
}

#[test]
fn optional_keys_have_their_defaults() {
    let tiny = Tiny {
        kv_heads: 4,
        ..Tiny::default()
    };
    let full = load(&tiny.bytes()).unwrap();
    let bare = with(&tiny, |w| {
        for key in [
            "llama.attention.head_count_kv",
            "llama.attention.key_length",
            "llama.attention.value_length",
            "llama.rope.dimension_count",
            "llama.rope.freq_base",
            "llama.vocab_size",
            "tokenizer.ggml.tokens",
        ] {
            w.unset(key);
        }
    })
    .unwrap();
    let (a, b) = (
        full.blocks[0].mixer.as_attention().unwrap(),
        bare.blocks[0].mixer.as_attention().unwrap(),
    );
    assert_eq!((b.n_kv_heads, b.head_dim), (4, 8));
    assert_eq!(a.rope, b.rope);
    assert_eq!(bare.n_vocab, 48);
}

#[test]
fn sizes_may_be_given_per_layer_if_they_are_the_same() {
    let tiny = Tiny::default();
    let set = |key: &'static str, values: &'static [u64]| {
        with(&tiny, |w| {
            w.set(key, values.to_vec());
        })
    };
    let n = set("llama.attention.head_count_kv", &[2, 2]).unwrap();
    assert_eq!(n.blocks[1].mixer.as_attention().unwrap().n_kv_heads, 2);
    set("llama.attention.head_count", &[4, 4]).unwrap();
    set("llama.feed_forward_length", &[64, 64]).unwrap();

    let error = set("llama.attention.head_count_kv", &[2, 4]).unwrap_err();
    assert_eq!(error.status, Status::Unsupported);
    assert!(error.message.contains("llama.attention.head_count_kv"));
    for short in [&[][..], &[64], &[64, 64, 64]] {
        let error = set("llama.feed_forward_length", short).unwrap_err();
        assert_eq!(error.status, Status::InvalidModel, "{error}");
        assert!(error.message.contains("llama.feed_forward_length"));
    }
}

#[test]
fn each_required_key_is_missed_by_name() {
    let tiny = Tiny::default();
    for key in [
        "general.architecture",
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
    ] {
        let missing = with(&tiny, |w| {
            w.unset(key);
        });
        let wrong = with(&tiny, |w| {
            w.set(key, true);
        });
        for error in [missing.unwrap_err(), wrong.unwrap_err()] {
            assert_eq!(error.status, Status::MissingKey, "{error}");
            assert!(error.message.contains(key), "{error}");
        }
    }
}

#[test]
fn each_tensor_is_missed_by_name_and_checked_for_its_shape() {
    let tiny = Tiny {
        biases: true,
        rope_factors: Some(vec![1.0; 4]),
        ..Tiny::default()
    };
    let whole = tiny.writer();
    let rebuilt = |change: &dyn Fn(&str, &mut Vec<usize>) -> bool| {
        let mut writer = Writer::new();
        tiny.set_metadata(&mut writer);
        for t in whole.tensors() {
            let mut dims = t.dims.clone();
            if change(&t.name, &mut dims) {
                writer.tensor(&t.name, t.ty, &dims).unwrap();
            }
        }
        let mut bytes = Vec::new();
        let data = |t: &emberlm::format::writer::TensorEntry, out: &mut dyn std::io::Write| {
            // 1.0 everywhere, which is a good factor for rope, too.
            (0..t.size / 4).try_for_each(|_| out.write_all(&1f32.to_le_bytes()))
        };
        writer.write(&mut bytes, data).unwrap();
        load(&bytes)
    };
    rebuilt(&|_, _| true).unwrap();
    for tensor in whole.tensors() {
        let name = &tensor.name;
        // A bias must be in every layer or in none.
        let optional = ["rope_freqs.weight", "output.weight", "output.bias"].contains(&&**name);
        let without = rebuilt(&|n, _| n != name);
        if optional {
            without.unwrap();
        } else {
            let error = without.unwrap_err();
            assert_eq!(error.status, Status::MissingTensor, "{error}");
            assert!(error.message.contains(name.as_str()), "{error}");
        }
        for dim in 0..tensor.dims.len() {
            for wrong in [tensor.dims[dim] - 1, tensor.dims[dim] + 1] {
                let error = rebuilt(&|n, dims| {
                    if n == name {
                        dims[dim] = wrong;
                    }
                    true
                });
                let error = error.unwrap_err();
                assert_eq!(error.status, Status::ShapeMismatch, "{error}");
                for part in [
                    name.as_str(),
                    &format!("{:?}", tensor.dims),
                    &wrong.to_string(),
                ] {
                    assert!(error.message.contains(part), "{error}");
                }
            }
        }
        // A further dimension of 1 says the same, one of 2 does not.
        rebuilt(&|n, dims| {
            if n == name {
                dims.push(1);
            }
            true
        })
        .unwrap();
        let error = rebuilt(&|n, dims| {
            if n == name {
                dims.push(2);
            }
            true
        });
        assert_eq!(error.unwrap_err().status, Status::ShapeMismatch);
    }
}

#[test]
fn norms_and_biases_are_not_quantized() {
    let tiny = Tiny::default();
    for name in ["blk.0.attn_norm.weight", "output_norm.weight"] {
        let mut writer = Writer::new();
        tiny.set_metadata(&mut writer);
        for t in tiny.writer().tensors() {
            let ty = if t.name == name {
                TensorType::Q8_0
            } else {
                t.ty
            };
            writer.tensor(&t.name, ty, &t.dims).unwrap();
        }
        let mut bytes = Vec::new();
        writer
            .write(&mut bytes, |t, out| {
                out.write_all(&vec![0; t.size as usize])
            })
            .unwrap();
        let error = load(&bytes).unwrap_err();
        assert_eq!(error.status, Status::ShapeMismatch);
        assert!(error.message.contains(name), "{error}");
        assert!(error.message.contains("Q8_0"), "{error}");
    }
}

#[test]
fn impossible_hyperparameters_are_refused_by_key() {
    use Status::{InvalidModel, MissingKey, ShapeMismatch, Unsupported};
    let huge = 1_000_000_000u64;
    let cases: Vec<(&str, Value, Status)> = vec![
        ("block_count", 0u32.into(), InvalidModel),
        ("block_count", huge.into(), InvalidModel),
        ("block_count", u64::MAX.into(), InvalidModel),
        ("block_count", (-1i32).into(), MissingKey),
        ("context_length", 0u32.into(), InvalidModel),
        ("context_length", (1u64 << 31).into(), InvalidModel),
        ("embedding_length", 0u32.into(), InvalidModel),
        ("feed_forward_length", 0u32.into(), InvalidModel),
        ("attention.head_count", 0u32.into(), InvalidModel),
        ("attention.head_count", i64::MAX.into(), InvalidModel),
        ("attention.head_count_kv", 0u32.into(), InvalidModel),
        ("attention.head_count_kv", 3u32.into(), InvalidModel),
        ("attention.head_count_kv", 8u32.into(), InvalidModel),
        ("attention.key_length", 0u32.into(), InvalidModel),
        ("attention.key_length", huge.into(), InvalidModel),
        ("attention.value_length", 16u32.into(), Unsupported),
        (
            "attention.layer_norm_rms_epsilon",
            0f32.into(),
            InvalidModel,
        ),
        (
            "attention.layer_norm_rms_epsilon",
            f32::NAN.into(),
            InvalidModel,
        ),
        (
            "attention.layer_norm_rms_epsilon",
            (-1f32).into(),
            InvalidModel,
        ),
        ("attention.scale", f32::INFINITY.into(), InvalidModel),
        ("expert_count", (1u64 << 40).into(), InvalidModel),
        ("rope.dimension_count", 0u32.into(), InvalidModel),
        ("rope.dimension_count", 7u32.into(), InvalidModel),
        ("rope.dimension_count", 10u32.into(), InvalidModel),
        ("rope.freq_base", 0f32.into(), InvalidModel),
        ("rope.freq_base", 1f32.into(), InvalidModel),
        ("rope.freq_base", f32::INFINITY.into(), InvalidModel),
        ("rope.freq_base", "10000".into(), MissingKey),
        ("rope.scaling.factor", (-2f32).into(), InvalidModel),
        ("rope.scaling.factor", f32::NAN.into(), InvalidModel),
        ("rope.scale_linear", f32::INFINITY.into(), InvalidModel),
        ("rope.scaling.attn_factor", 0f32.into(), InvalidModel),
        ("rope.scaling.type", "dynamic".into(), Unsupported),
        ("attention.sliding_window", 0u32.into(), InvalidModel),
        (
            "attention.sliding_window",
            (1u64 << 31).into(),
            InvalidModel,
        ),
        ("rope.scaling.type", "yarn".into(), MissingKey),
        ("rope.scaling.type", 1u32.into(), MissingKey),
    ];
    let tiny = Tiny::default();
    for (key, value, status) in cases {
        let key = format!("llama.{key}");
        let text = format!("{key} = {value:?}");
        let error = with(&tiny, |w| {
            w.set(&key, value);
        })
        .unwrap_err();
        assert_eq!(error.status, status, "{text}: {error}");
        assert!(error.message.contains(&key), "{text}: {error}");
    }

    // These contradict a tensor or the vocabulary.
    let error = with(&tiny, |w| {
        w.set("llama.vocab_size", 49u32);
    });
    let error = error.unwrap_err();
    assert_eq!(error.status, ShapeMismatch);
    assert!(error.message.contains("token_embd.weight"), "{error}");
    let error = with(&tiny, |w| {
        w.set("tokenizer.ggml.tokens", vec!["a".to_owned()]);
    });
    let error = error.unwrap_err();
    assert_eq!(error.status, InvalidModel);
    assert!(error.message.contains("tokenizer.ggml.tokens"), "{error}");
    let error = with(&tiny, |w| {
        w.unset("llama.attention.key_length")
            .set("llama.attention.head_count", 5u32)
            .set("llama.attention.head_count_kv", 5u32);
    });
    let error = error.unwrap_err();
    assert_eq!(error.status, InvalidModel);
    assert!(error.message.contains("llama.attention.head_count is 5"));
}

#[test]
fn harmless_keys_change_nothing() {
    let n = with(&Tiny::default(), |w| {
        w.set("llama.expert_count", 0u32)
            .set("llama.attention.causal", true)
            .set("llama.rope.scaling.finetuned", true);
    });
    assert_eq!(n.unwrap().context_length, 128);
}

#[test]
fn an_unknown_architecture_is_named() {
    let error = with(&Tiny::default(), |w| {
        w.set("general.architecture", "rwkv7");
    });
    let error = error.unwrap_err();
    assert_eq!(error.status, Status::Unsupported);
    assert!(error.message.contains("\"rwkv7\""), "{error}");
}
