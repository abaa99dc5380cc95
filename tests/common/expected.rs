//! Logits that Hugging Face transformers computed, as the scripts in `data/` write them.

use super::{repository_file, xz};

/// A text and what comes after each of its tokens.
pub struct Expected {
    /// The text.
    pub tokens: Vec<u32>,
    /// The logits after each token, `n_vocab` of them.
    pub logits: Vec<Vec<f32>>,
}

impl Expected {
    /// Reads `tests/data/{name}.bin`, or its xz.
    pub fn read(name: &str) -> Expected {
        let path = repository_file(&format!("tests/data/{name}.bin"));
        let file = std::fs::read(&path).unwrap_or_else(|_| {
            let path = path.with_extension("bin.xz");
            let packed = std::fs::read(&path);
            xz::unpacked(&packed.unwrap_or_else(|e| panic!("{}: {e}", path.display())))
        });
        let (words, rest) = file.as_chunks();
        assert!(rest.is_empty());
        let words: Vec<u32> = words.iter().map(|b| u32::from_le_bytes(*b)).collect();
        let (n_tokens, n_vocab) = (words[0] as usize, words[1] as usize);
        let (tokens, logits) = words[2..].split_at(n_tokens);
        assert_eq!(logits.len(), n_tokens * n_vocab);
        let row = |bits: &[u32]| bits.iter().copied().map(f32::from_bits).collect();
        Expected {
            tokens: tokens.to_vec(),
            logits: logits.chunks(n_vocab).map(row).collect(),
        }
    }
}
