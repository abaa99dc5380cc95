//! A well-formed file with changed metadata and tensors: an error or a network whose shapes fit
//! together, and never a panic. The input is a list of changes to a tiny model.
#![no_main]

#[allow(dead_code)]
#[path = "../../tests/common/tiny.rs"]
mod tiny;

use emberlm::format::writer::Writer;
use emberlm::format::{Array, ModelFile, Value};
use emberlm::model::{Mixer, Network};
use emberlm::quant::TensorType;
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use tiny::Tiny;

const KEYS: [&str; 26] = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "expert_count",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.causal",
    "attention.scale",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_log_multiplier",
];

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = changed_model(&mut Unstructured::new(bytes)) else {
        return;
    };
    let Ok(file) = ModelFile::from_bytes(&file) else {
        return;
    };
    let Ok(network) = Network::from_file(&file) else {
        return;
    };
    for block in &network.blocks {
        let Mixer::Attention(a) = &block.mixer else {
            panic!("llama has attention in every layer");
        };
        assert_eq!(a.n_heads % a.n_kv_heads, 0);
        assert_eq!(a.q.weight.rows(), a.n_heads * a.head_dim);
        assert_eq!(a.k.weight.rows(), a.n_kv_heads * a.head_dim);
        assert_eq!(a.output.weight.row_len(), a.n_heads * a.head_dim);
        let rope = a.rope.as_ref().expect("llama has one in every layer");
        assert!((1..=a.head_dim / 2).contains(&rope.inv_freq.len()));
        assert!(rope.inv_freq.iter().all(|f| f.is_finite()));
        assert!(rope.magnitude.is_finite() && a.scale.is_finite());
    }
});

/// Bytes of the largest tensor that is worth writing.
const MAX_TENSOR_BYTES: usize = 1 << 16;

fn changed_model(u: &mut Unstructured) -> Result<Vec<u8>> {
    let options = u.arbitrary::<u8>()?;
    let base = Tiny {
        layers: 1 + usize::from(options & 1),
        hidden: 16,
        head_dim: 4,
        ff: 16,
        vocab: 16,
        biases: options & 2 != 0,
        tied: options & 4 != 0,
        rope_factors: (options & 8 != 0).then(|| vec![1.0, 8.0]),
        rope_scaling: (options & 16 != 0).then_some(("yarn", 4.0)),
        ..Tiny::default()
    };
    let mut writer = base.writer();
    let mut tensors = writer.tensors().to_vec();
    while !u.is_empty() {
        match u.int_in_range(0..=4)? {
            0 => {
                let key = format!("llama.{}", u.choose(&KEYS)?);
                writer.set(&key, value(u)?);
            }
            1 => {
                writer.unset(&format!("llama.{}", u.choose(&KEYS)?));
            }
            2 if tensors.len() > 1 => {
                tensors.remove(u.choose_index(tensors.len())?);
            }
            3 => {
                let index = u.choose_index(tensors.len())?;
                tensors[index].ty = *u.choose(&TensorType::ALL)?;
            }
            _ => {
                let index = u.choose_index(tensors.len())?;
                let n_dims = u.int_in_range(1..=4)?;
                tensors[index].dims.resize(n_dims, 1);
                let dim = u.choose_index(n_dims)?;
                tensors[index].dims[dim] = *u.choose(&[0, 1, 2, 4, 8, 15, 16, 17, 32, 256])?;
            }
        }
    }
    let mut changed = Writer::new();
    for (key, value) in writer.metadata() {
        changed.set(key, value.clone());
    }
    for tensor in &tensors {
        let rows: usize = tensor.dims[1..].iter().product();
        let row_bytes = tensor.ty.row_bytes(tensor.dims[0]).unwrap_or(0);
        // Impossible shapes are the writer's to refuse.
        if row_bytes * rows <= MAX_TENSOR_BYTES {
            let _ = changed.tensor(&tensor.name, tensor.ty, &tensor.dims);
        }
    }
    let mut file = Vec::new();
    let zeros = [0; 4096];
    changed
        .write(&mut file, |tensor, out| {
            let mut left = tensor.size as usize;
            while left > 0 {
                let n = left.min(zeros.len());
                out.write_all(&zeros[..n])?;
                left -= n;
            }
            Ok(())
        })
        .expect("writing to memory");
    Ok(file)
}

fn value(u: &mut Unstructured) -> Result<Value> {
    const SIZES: [u64; 12] = [0, 1, 2, 3, 4, 8, 15, 16, 17, 1 << 31, 1 << 32, u64::MAX];
    const NUMBERS: [f32; 8] = [0.0, -1.0, 0.5, 1.0, 1e30, 1e-30, f32::NAN, f32::INFINITY];
    Ok(match u.int_in_range(0..=7)? {
        0 | 1 => Value::U64(*u.choose(&SIZES)?),
        2 => Value::I64(u.arbitrary()?),
        3 => Value::F32(*u.choose(&NUMBERS)?),
        4 => Value::F32(u.arbitrary()?),
        5 => Value::Bool(u.arbitrary()?),
        6 => Value::String((*u.choose(&["none", "linear", "yarn", "longrope", ""])?).to_owned()),
        _ => {
            let len = u.int_in_range(0..=3)?;
            let sizes: Result<Vec<u64>> = (0..len).map(|_| u.choose(&SIZES).copied()).collect();
            Value::Array(Array::U64(sizes?))
        }
    })
}
