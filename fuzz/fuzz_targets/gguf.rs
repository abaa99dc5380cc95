//! Any bytes as a model file: an error or a network whose tensors can be read, and never a panic.
#![no_main]

use emberlm::format::ModelFile;
use emberlm::model::Network;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = ModelFile::from_bytes(bytes) else {
        return;
    };
    let mut total = 0;
    for tensor in file.tensors.values() {
        assert_eq!(tensor.bytes().len(), tensor.rows() * tensor.row_bytes());
        total += tensor.bytes().len();
    }
    assert!(total <= bytes.len());
    if let Ok(network) = Network::from_file(&file) {
        assert_eq!(network.embedding.rows(), network.n_vocab);
    }
});
