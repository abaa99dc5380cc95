//! Good model files: what the reader says about them, and the network in them.

mod common;

use common::repository_file;
use emberlm::format::ModelFile;
use emberlm::model::{Network, RopePairing};
use emberlm::quant::TensorType;

#[test]
fn hamlet_is_a_llama_of_the_known_shape() {
    let path = repository_file("models/hamlet-7m-Q4_K_M.gguf");
    let file = ModelFile::open(&path).unwrap();
    assert_eq!(file.file_bytes, std::fs::metadata(&path).unwrap().len());
    assert_eq!(file.strings("tokenizer.ggml.tokens").unwrap().len(), 1424);
    let network = Network::from_file(&file).unwrap();
    assert_eq!(network.architecture, "llama");
    assert_eq!((network.hidden, network.n_vocab), (256, 1424));
    assert_eq!((network.context_length, network.blocks.len()), (2048, 8));
    assert!(network.head.weight.same_data(&network.embedding));
    for block in &network.blocks {
        let a = &block.attention;
        assert_eq!((a.n_heads, a.n_kv_heads, a.head_dim), (4, 2, 64));
        assert_eq!(a.q.weight.ty, TensorType::Q4K);
        assert_eq!(a.scale, 0.125);
        assert_eq!(a.rope.pairing, RopePairing::Interleaved);
        assert_eq!(a.rope.inv_freq.len(), 32);
        assert_eq!((a.rope.inv_freq[0], a.rope.inv_freq[16]), (1.0, 0.01));
        assert_eq!(a.rope.magnitude, 1.0);
        assert_eq!(block.attention_norm.eps, 1e-5);
        assert_eq!(block.feed_forward.down.weight.dims, [768, 256]);
    }
}
