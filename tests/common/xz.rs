//! Test data that is stored as xz (`data/pack.py`).
#![allow(dead_code)]

pub fn unpacked(mut packed: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    lzma_rs::xz_decompress(&mut packed, &mut bytes).unwrap();
    bytes
}

pub fn text(packed: &[u8]) -> String {
    String::from_utf8(unpacked(packed)).unwrap()
}
