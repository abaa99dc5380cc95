//! The tiny models of `data/make_families.py`: one per variant of a family.

use super::repository_file;
use emberlm::format::ModelFile;

/// Every variant: files `tests/data/families/{name}.gguf` and `{name}.bin`.
pub const NAMES: [&str; 4] = [
    "llama_plain",
    "llama_llama3",
    "llama_linear_biases",
    "llama_yarn",
];

/// Opens a variant.
pub fn open(name: &str) -> ModelFile {
    ModelFile::open(&repository_file(&format!(
        "tests/data/families/{name}.gguf"
    )))
    .unwrap()
}
