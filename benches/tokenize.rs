//! How soon a tokenizer is ready, and how fast it reads, on one thread:
//!
//!     cargo bench --no-default-features --bench tokenize -- VOCABULARY.gguf TEXT
//!
//! Without arguments, the committed model and this repository's header.

use emberlm::format::ModelFile;
use emberlm::text::{EncodeOptions, Tokenizer};
use std::path::Path;
use std::time::Instant;

const RUNS: usize = 5;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // cargo adds `--bench`.
    let mut paths = std::env::args().skip(1).filter(|a| !a.starts_with("--"));
    let mut path = |default: &str| paths.next().map_or_else(|| root.join(default), Into::into);
    let (model, text) = (
        path("models/hamlet-7m-Q4_K_M.gguf"),
        path("include/emberlm.h"),
    );
    let text = std::fs::read_to_string(&text).expect("a text in UTF-8");
    let file = ModelFile::open(&model).expect("a GGUF file or folder");
    let mut best = [f64::INFINITY; 2];
    let mut tokens = Vec::new();
    for _ in 0..RUNS {
        let start = Instant::now();
        let tokenizer = Tokenizer::from_file(&file).expect("a tokenizer");
        best[0] = best[0].min(start.elapsed().as_secs_f64());
        tokens.clear();
        let start = Instant::now();
        tokenizer
            .encode(&text, EncodeOptions::default(), &mut tokens)
            .expect("tokens");
        best[1] = best[1].min(start.elapsed().as_secs_f64());
    }
    println!(
        "ready in {:.1} ms; {} bytes to {} tokens at {:.1} MB/s (best of {RUNS})",
        best[0] * 1e3,
        text.len(),
        tokens.len(),
        text.len() as f64 / best[1] / 1e6
    );
}
