//! The small model that the tests run: the committed file, and the same weights in any other type.

use super::quantize::quantize_row;
use super::repository_file;
use emberlm::format::writer::Writer;
use emberlm::format::{ModelFile, Tensor};
use emberlm::quant::{TensorType, dequantize_row};
use std::path::Path;

/// Mostly Q4_K, some tensors Q6_K.
pub fn q4_k_m() -> ModelFile {
    ModelFile::open(&repository_file("models/hamlet-7m-Q4_K_M.gguf")).unwrap()
}

/// The model with every matrix in type `ty`, each element the nearest to that of [`q4_k_m`] that
/// the tests' simple quantizer finds (the same in F32; F32 norms stay).
pub fn converted(ty: TensorType) -> ModelFile {
    let source = q4_k_m();
    rewritten(&source, |tensor| match tensor.dims.len() {
        1 => (tensor.ty, tensor.bytes().to_vec()),
        _ => (ty, quantize_rows(ty, tensor.row_len(), &elements(tensor))),
    })
}

/// The original float16 weights, from the folder `hf` of the model, which is not in the
/// repository but beside it.
pub fn f16() -> ModelFile {
    let safetensors = Safetensors::open(&repository_file(
        "../shared/models/hamlet/hf/model.safetensors",
    ));
    let source = q4_k_m();
    let heads = |key| source.u32(key).unwrap() as usize;
    let n_heads = heads("llama.attention.head_count");
    let n_kv_heads = heads("llama.attention.head_count_kv");
    rewritten(&source, |tensor| {
        let mut bytes = safetensors.f16(&hugging_face_name(&tensor.name));
        assert_eq!(bytes.len(), 2 * tensor.row_len() * tensor.rows());
        match tensor.name.split('.').nth(2) {
            Some("attn_q") => interleave(&mut bytes, n_heads, 2 * tensor.row_len()),
            Some("attn_k") => interleave(&mut bytes, n_kv_heads, 2 * tensor.row_len()),
            _ => {}
        }
        (TensorType::F16, bytes)
    })
}

/// A file of the same metadata whose tensors `convert` makes from those of `source`.
fn rewritten(source: &ModelFile, convert: impl Fn(&Tensor) -> (TensorType, Vec<u8>)) -> ModelFile {
    let mut writer = Writer::new();
    for (key, value) in &source.metadata {
        writer.set(key, value.clone());
    }
    let mut contents = Vec::new();
    for tensor in source.tensors.values() {
        let (ty, bytes) = convert(tensor);
        writer.tensor(&tensor.name, ty, &tensor.dims).unwrap();
        contents.push(bytes);
    }
    let mut file = Vec::new();
    let mut contents = contents.iter();
    writer
        .write(&mut file, |_, out| out.write_all(contents.next().unwrap()))
        .unwrap();
    ModelFile::from_bytes(&file).unwrap()
}

/// All elements of a tensor, row after row.
pub fn elements(tensor: &Tensor) -> Vec<f32> {
    let mut out = vec![0.0; tensor.row_len() * tensor.rows()];
    dequantize_row(tensor.ty, tensor.bytes(), &mut out);
    out
}

fn quantize_rows(ty: TensorType, row_len: usize, elements: &[f32]) -> Vec<u8> {
    let rows = elements.chunks(row_len);
    rows.flat_map(|row| quantize_row(ty, row)).collect()
}

fn hugging_face_name(name: &str) -> String {
    match name.split('.').collect::<Vec<_>>()[..] {
        ["token_embd", _] => "model.embed_tokens.weight".into(),
        ["output_norm", _] => "model.norm.weight".into(),
        ["blk", layer, part, _] => {
            let part = match part {
                "attn_norm" => "input_layernorm",
                "ffn_norm" => "post_attention_layernorm",
                "attn_q" => "self_attn.q_proj",
                "attn_k" => "self_attn.k_proj",
                "attn_v" => "self_attn.v_proj",
                "attn_output" => "self_attn.o_proj",
                "ffn_gate" => "mlp.gate_proj",
                "ffn_up" => "mlp.up_proj",
                "ffn_down" => "mlp.down_proj",
                _ => panic!("{name}"),
            };
            format!("model.layers.{layer}.{part}.weight")
        }
        _ => panic!("{name}"),
    }
}

/// Rows of q or k from the order of transformers (of each head first all first elements of the
/// pairs that rope rotates, then all second ones) to GGUF's (pair after pair).
fn interleave(bytes: &mut Vec<u8>, n_heads: usize, row_bytes: usize) {
    let head_bytes = bytes.len() / n_heads;
    let n_pairs = head_bytes / row_bytes / 2;
    let mut out = Vec::with_capacity(bytes.len());
    for head in bytes.chunks(head_bytes) {
        for row in 0..2 * n_pairs {
            let from = row % 2 * n_pairs + row / 2;
            out.extend(&head[from * row_bytes..][..row_bytes]);
        }
    }
    *bytes = out;
}

/// A safetensors file: u64 length of a JSON header, the header, the data.
struct Safetensors {
    header: String,
    data: Vec<u8>,
}

impl Safetensors {
    fn open(path: &Path) -> Safetensors {
        let file = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let (len, rest) = file.split_first_chunk().unwrap();
        let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
        Safetensors {
            header: String::from_utf8(header.to_vec()).unwrap(),
            data: data.to_vec(),
        }
    }

    /// The data of an F16 tensor. Its entry in the header is found as text, which is enough for a
    /// file that is known.
    fn f16(&self, name: &str) -> Vec<u8> {
        let (_, entry) = self.header.split_once(&format!("\"{name}\":")).unwrap();
        let (entry, _) = entry.split_once('}').unwrap();
        assert!(entry.contains("\"dtype\":\"F16\""), "{name}: {entry}");
        let (_, offsets) = entry.split_once("\"data_offsets\":[").unwrap();
        let (start, end) = offsets.trim_end_matches(']').split_once(',').unwrap();
        let offset = |text: &str| text.trim().parse::<usize>().unwrap();
        self.data[offset(start)..offset(end)].to_vec()
    }
}
