//! GGUF files as llama.cpp's converter writes them where it has other names, keys or shapes than the files of
//! `data/families`: the model stays the same, and so do its logits.

use crate::common::convert::converted;
use crate::common::edit::{Edited, EditedTensor};
use crate::common::expected::Expected;
use crate::common::families::{FAMILIES, open_family};
use crate::common::quantize::quantize_row;
use crate::common::repository_file;
use crate::common::work::Driven;
use emberlm::Status;
use emberlm::backend::cpu::CpuWeights;
use emberlm::backend::{KvType, Weights};
use emberlm::format::{Array, ModelFile, Value};
use emberlm::model::{Activation, FeedForward, Mixer, Network, Pooling, Scoring};
use emberlm::quant::TensorType;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The tensors in single precision.
fn edited(name: &str) -> Edited {
    Edited::of(&converted(&open_family(name), TensorType::F32))
}

/// The logits after each token of a text, which is given in pieces.
fn logits(file: &ModelFile, text: &[u32]) -> Vec<Vec<f32>> {
    let network = Network::from_file(file).unwrap_or_else(|e| panic!("{e}"));
    let weights: Arc<dyn Weights> =
        CpuWeights::load(&network, 2, &mut |_| Ok(())).unwrap() as Arc<CpuWeights>;
    let mut driven = Driven::with_context(&weights, 64, KvType::F32);
    let never = Arc::new(AtomicBool::new(false));
    let step = |piece: &[u32]| {
        driven.extend(piece, &never).unwrap();
        let mut out = vec![0.0; network.n_vocab];
        driven.runner.logits(&mut out).unwrap();
        out
    };
    text.chunks(7).map(step).collect()
}

/// Checks that an edited file has the logits of the family, to the last bit if the order of all sums is the same.
fn same_logits(name: &str, edited: &Edited) {
    let text = Expected::read(&format!("families/{name}/logits")).tokens;
    let found = logits(&edited.open(), &text);
    let expected = logits(&self::edited(name).open(), &text);
    assert!(found == expected, "{name}");
}

/// Rows of a matrix, or elements of a vector, in another order: row `i` is row `source(i)`.
fn reorder(tensor: &mut EditedTensor, source: impl Fn(usize) -> usize) {
    let rows = *tensor.dims.last().unwrap();
    let row_bytes = tensor.bytes.len() / rows;
    let row = |i: usize| &tensor.bytes[source(i) * row_bytes..][..row_bytes];
    tensor.bytes = (0..rows).flat_map(|i| row(i).to_vec()).collect();
}

/// `--fuse-qkv`.
#[test]
fn queries_keys_and_values_may_be_one_matrix() {
    let parts = |end: &str| ["attn_q", "attn_k", "attn_v"].map(|part| format!(".{part}.{end}"));
    let mut tested = 0;
    for name in FAMILIES {
        let mut file = edited(name);
        let before = file.tensors.len();
        file.join(&parts("weight"), ".attn_qkv.weight");
        file.join(&parts("bias"), ".attn_qkv.bias");
        // The converter has no such matrix for Gemma 4.
        if file.tensors.len() == before || name.starts_with("gemma4") {
            continue;
        }
        same_logits(name, &file);
        tested += 1;
    }
    assert!(tested > 40, "{tested} families");
}

/// Its `ffn_norm` has no end in its name, but it had one in older files of `ember-convert`.
#[test]
fn falcon_h1_has_a_norm_without_an_end() {
    let mut file = edited("falcon_h1");
    assert!(file.tensors.contains_key("blk.1.ffn_norm"));
    file.rename_tensors(".ffn_norm", ".ffn_norm.weight");
    same_logits("falcon_h1", &file);
}

/// Nemotron-H has that of layer norms.
#[test]
fn epsilons_may_have_the_key_of_the_other_kind_of_norm() {
    const RMS: &str = "layer_norm_rms_epsilon";
    const LAYER: &str = "layer_norm_epsilon";
    for (name, [usual, other]) in [
        ("nemotron_h", [RMS, LAYER]),
        ("nemotron_h_moe", [RMS, LAYER]),
        ("starcoder2", [LAYER, RMS]),
    ] {
        let mut file = edited(name);
        let key = |key: &str| format!("{name}.attention.{key}");
        let eps = file.metadata.remove(&key(usual));
        file.set(&key(other), eps.unwrap());
        same_logits(name, &file);
        file.metadata.remove(&key(other));
        let error = Network::from_file(&file.open()).unwrap_err();
        assert_eq!(error.status, Status::MissingKey);
        assert!(error.to_string().contains(&key(usual)), "{error}");
    }
}

/// Of Nemotron 3 Super: a layer that attends and has experts, for both of which the lists of all layers have a number.
#[test]
fn nemotron_h_has_a_layer_behind_that_guesses_tokens() {
    let name = "nemotron_h_moe";
    let mut file = edited(name);
    let key = |key: &str| format!("{name}.{key}");
    let layers = 6;
    for (list, more) in [("attention.head_count_kv", 2), ("feed_forward_length", 12)] {
        let list = file.metadata.get_mut(&key(list));
        let Some(Value::Array(list)) = list else {
            panic!("{list:?}");
        };
        match list {
            Array::U64(list) => list.push(more),
            Array::I64(list) => list.push(more as i64),
            other => panic!("{other:?}"),
        }
    }
    file.set(&key("block_count"), layers + 1);
    file.set(&key("nextn_predict_layers"), 1);
    // Attention is layer 2, and experts are layer 3; norms of the same names have new ones here.
    for from in ["blk.2.", "blk.3."] {
        let all: Vec<_> = file
            .tensors
            .iter()
            .filter_map(|(name, t)| Some((name.strip_prefix(from)?.to_owned(), t.clone())))
            .collect();
        for (part, tensor) in all {
            file.tensors.insert(format!("blk.{layers}.{part}"), tensor);
        }
    }
    same_logits(name, &file);
}

/// `--mtp`: a file without the model's layers is not one that lacks a tensor.
#[test]
fn files_of_heads_alone_are_refused_as_such() {
    let mut file = edited("glm4_moe");
    file.set("glm4moe.nextn_predict_layers", 1);
    let of_model = |name: &str| name.starts_with("blk.0.") || name.starts_with("blk.1.");
    file.tensors.retain(|name, _| !of_model(name));
    let error = Network::from_file(&file.open()).unwrap_err();
    assert_eq!(error.status, Status::Unsupported, "{error}");
    assert!(error.to_string().contains("further tokens"), "{error}");
}

/// Positions of GLM 4.1V have several dimensions, which a text's have alike. Rows of queries and keys are in another order.
#[test]
fn texts_of_glm_4_1v() {
    const HEAD: usize = 20;
    const ROTATED: usize = 12;
    let mut file = edited("glm4");
    file.set(
        "glm4.rope.dimension_sections",
        Value::Array(Array::I64(vec![2, 2, 2, 0])),
    );
    // The first of each pair, then the second.
    let source = |row: usize| {
        let (head, i) = (row / HEAD * HEAD, row % HEAD);
        head + match i {
            i if i < ROTATED / 2 => 2 * i,
            i if i < ROTATED => 2 * (i - ROTATED / 2) + 1,
            i => i,
        }
    };
    for (name, tensor) in &mut file.tensors {
        if name.contains(".attn_q.") || name.contains(".attn_k.") {
            reorder(tensor, source);
        }
    }
    // Sums over a head are in another order.
    let text = Expected::read("families/glm4/logits").tokens;
    let found = logits(&file.open(), &text);
    let expected = logits(&edited("glm4").open(), &text);
    for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
        assert!((found - expected).abs() < 1e-4, "{found}, not {expected}");
    }
}

/// `--outtype q8_0`.
#[test]
fn routers_of_streams_may_be_quantized() {
    let mut file = edited("gemma3n");
    let mut rounded = file.clone();
    for (name, tensor) in &mut file.tensors {
        if !name.ends_with(".altup_router.weight") {
            continue;
        }
        let floats = tensor.bytes.as_chunks().0.iter();
        let floats: Vec<f32> = floats.map(|b| f32::from_le_bytes(*b)).collect();
        let rows = floats.chunks(tensor.dims[0]);
        tensor.bytes = rows
            .flat_map(|row| quantize_row(TensorType::Q8_0, row))
            .collect();
        tensor.ty = TensorType::Q8_0;
        let mut values = floats.clone();
        emberlm::quant::dequantize_row(TensorType::Q8_0, &tensor.bytes, &mut values);
        assert_ne!(values, floats);
        rounded.tensors.get_mut(name).unwrap().bytes =
            values.iter().flat_map(|v| v.to_le_bytes()).collect();
    }
    let text = Expected::read("families/gemma3n/logits").tokens;
    assert!(logits(&file.open(), &text) == logits(&rounded.open(), &text));
}

/// Which layers rotate queries and keys.
fn rotating(file: &Edited) -> Vec<bool> {
    let network = Network::from_file(&file.open()).unwrap();
    let rotates = |mixer: &Mixer| match mixer {
        Mixer::Attention(a) => a.rope.is_some(),
        other => panic!("{other:?}"),
    };
    network.blocks.iter().map(|b| rotates(&b.mixer)).collect()
}

/// Where a model has a window, layers without it do not rotate, even if none has it.
#[test]
fn layers_of_exaone_rotate_with_a_window_or_where_there_is_none() {
    for (name, architecture) in [("exaone4", "exaone4"), ("exaone_moe", "exaone-moe")] {
        let mut file = edited(name);
        let layers = rotating(&file).len();
        assert!(rotating(&file).contains(&true) && rotating(&file).contains(&false));
        file.set(
            &format!("{architecture}.attention.sliding_window_pattern"),
            Value::Array(Array::Bool(vec![false; layers])),
        );
        assert_eq!(rotating(&file), vec![false; layers], "{name}");
        let window = format!("{architecture}.attention.sliding_window");
        file.set(&window, 0);
        assert_eq!(rotating(&file), vec![true; layers], "{name}");
        file.metadata.remove(&window);
        assert_eq!(rotating(&file), vec![true; layers], "{name}");
    }
}

/// Its first files do not say how experts are chosen, but those of DeepSeek V2 do not, either.
#[test]
fn experts_of_glm_4_7_flash_are_chosen_by_sigmoids() {
    const LAYERS: usize = 47;
    const VOCABULARY: usize = 154_880;
    let scoring = |file: &Edited| {
        let network = Network::from_file(&file.open()).unwrap();
        match &network.blocks.last().unwrap().feed_forward {
            FeedForward::Experts(experts) => experts.scoring,
            other => panic!("{other:?}"),
        }
    };
    let mut file = edited("glm4_moe_lite");
    assert_eq!(scoring(&file), Scoring::Sigmoid);
    file.metadata.remove("deepseek2.expert_gating_func");
    assert_eq!(scoring(&file), Scoring::Softmax);

    let last: Vec<_> = file
        .tensors
        .iter()
        .filter_map(|(name, t)| Some((name.strip_prefix("blk.2.")?.to_owned(), t.clone())))
        .collect();
    for layer in 3..LAYERS {
        for (part, tensor) in &last {
            let name = format!("blk.{layer}.{part}");
            file.tensors.insert(name, tensor.clone());
        }
    }
    file.set("deepseek2.block_count", LAYERS);
    file.set("deepseek2.vocab_size", VOCABULARY);
    for name in ["token_embd.weight", "output.weight"] {
        if let Some(tensor) = file.tensors.get_mut(name) {
            let row_bytes = tensor.bytes.len() / tensor.dims[1];
            tensor.dims[1] = VOCABULARY;
            tensor.bytes.resize(VOCABULARY * row_bytes, 0);
        }
    }
    assert_eq!(scoring(&file), Scoring::Sigmoid);
}

/// Relatives of ModernBERT have gates of another kind, and say where their scores come from.
#[test]
fn modern_bert_names_its_activation_and_the_pooling_of_its_scores() {
    let path = repository_file("tests/data/embeddings/modernbert_scores/model.gguf");
    let mut file = Edited::of(&ModelFile::open(&path).unwrap());
    let described = |file: &Edited| -> emberlm::Result<(Activation, Pooling)> {
        let network = Network::from_file(&file.open())?;
        let FeedForward::Dense(mlp) = &network.blocks[1].feed_forward else {
            panic!("a feed-forward part for all tokens");
        };
        Ok((mlp.activation, network.readout.scores.unwrap().pooling))
    };
    file.metadata.remove("modern-bert.score_pooling_type");
    // As files are that say neither.
    let (activation, pooling) = described(&file).unwrap();
    assert_eq!((activation, pooling), (Activation::Gelu, Pooling::Mean));
    for (number, expected) in [(1, Pooling::Mean), (2, Pooling::First)] {
        file.set("modern-bert.classifier.pooling_type", number);
        assert_eq!(described(&file).unwrap().1, expected);
    }
    for (name, expected) in [("gelu", Activation::Gelu), ("silu", Activation::Silu)] {
        file.set("modern-bert.hidden_activation", name);
        assert_eq!(described(&file).unwrap().0, expected);
    }
    file.set("modern-bert.hidden_activation", "relu");
    assert_eq!(described(&file).unwrap_err().status, Status::Unsupported);
}
