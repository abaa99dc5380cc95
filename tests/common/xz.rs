//! Test data that is stored as xz (`data/pack.py`).
#![allow(dead_code)]

pub fn unpacked(mut packed: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    lzma_rs::xz_decompress(&mut packed, &mut bytes).unwrap();
    bytes
}

/// The `model.gguf` and `model.safetensors` of a folder's `weights.xz`.
pub fn weights(packed: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let data = unpacked(packed);
    let (length, data) = data.split_first_chunk::<8>().unwrap();
    let (gguf, safetensors) = data.split_at(u64::from_le_bytes(*length) as usize);
    (gguf.to_vec(), safetensors.to_vec())
}

pub fn text(packed: &[u8]) -> String {
    String::from_utf8(unpacked(packed)).unwrap()
}
