//! The small model that the tests run.

use super::convert::rewritten_bytes;
use super::repository_file;
use emberlm::format::ModelFile;
use emberlm::quant::TensorType;
use std::path::Path;

/// The committed file: mostly Q4_K, some tensors Q6_K.
pub fn q4_k_m() -> ModelFile {
    ModelFile::open(&repository_file("models/hamlet-7m-Q4_K_M.gguf")).unwrap()
}

/// The committed file with every matrix in type `ty`.
pub fn converted(ty: TensorType) -> ModelFile {
    super::convert::converted(&q4_k_m(), ty)
}

/// The original float16 weights, from the folder `hf` of the model, which is not in the
/// repository but beside it.
pub fn f16() -> ModelFile {
    ModelFile::from_bytes(&f16_bytes()).unwrap()
}

/// The same as the bytes of a GGUF file.
pub fn f16_bytes() -> Vec<u8> {
    let safetensors = Safetensors::open(&repository_file(
        "../shared/models/hamlet/hf/model.safetensors",
    ));
    let source = q4_k_m();
    let heads = |key| source.u32(key).unwrap() as usize;
    let n_heads = heads("llama.attention.head_count");
    let n_kv_heads = heads("llama.attention.head_count_kv");
    rewritten_bytes(&source, |tensor| {
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
