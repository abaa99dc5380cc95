//! The two files of a folder: an error, or tensors that lie inside the file, can be made, and give
//! a network or an error; never a panic. The input is `config.json`, a zero byte, and the
//! safetensors file.
#![no_main]

use emberlm::format::ModelFile;
use emberlm::model::Network;
use libfuzzer_sys::fuzz_target;

/// Bytes of made tensors that are worth making.
const MAX_MADE_BYTES: u64 = 1 << 24;

fuzz_target!(|bytes: &[u8]| {
    let Some(end) = bytes.iter().position(|b| *b == 0) else {
        return;
    };
    let Ok(file) = ModelFile::from_folder(&bytes[..end], &bytes[end + 1..]) else {
        return;
    };
    if file.made_bytes(|_| true) > MAX_MADE_BYTES || file.make(1, &mut |_| Ok(())).is_err() {
        return;
    }
    for tensor in file.tensors.values() {
        assert_eq!(tensor.bytes().len(), tensor.rows() * tensor.row_bytes());
    }
    let _ = Network::from_file(&file);
});
