//! The tiny models of `data/make_families.py`: one per variant of a family.

use super::edit::Edited;
use super::repository_file;
use emberlm::format::{ModelFile, Value};

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

/// The families of `data/families/make.py`: folders `tests/data/families/{name}`.
pub const FAMILIES: &[&str] = &[
    "afmoe",
    "apertus",
    "arcee",
    "bamba",
    "bitnet",
    "cohere",
    "cohere2",
    "cohere2_moe",
    "cohere2_moe_rms",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v3_biased",
    "dots1",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone",
    "exaone4",
    "exaone_moe",
    "falcon",
    "falcon_h1",
    "falcon_h1_biased",
    "falcon_h1_normed",
    "falcon_mamba",
    "falcon_new",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gemma4_e",
    "gemma4_moe",
    "glm",
    "glm4",
    "glm4_moe",
    "glm4_moe_lite",
    "gpt2",
    "gpt_neox",
    "gpt_neox_sequential",
    "gpt_oss",
    "granite",
    "granite_hybrid",
    "granite_hybrid_moe",
    "granite_moe",
    "hunyuan",
    "hunyuan_moe",
    "jamba",
    "lfm2",
    "lfm2_moe",
    "llama4",
    "mamba",
    "mamba2",
    "minicpm3",
    "minimax_m2",
    "ministral3",
    "mistral",
    "mistral4",
    "mixtral",
    "nemotron",
    "nemotron_h",
    "nemotron_h_latent",
    "nemotron_h_moe",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "phi2",
    "phi3",
    "phi4",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
    "qwen3moe",
    "seed_oss",
    "smollm3",
    "stablelm",
    "stablelm_parallel",
    "starcoder",
    "starcoder2",
];

/// Those of them that have layers with a sliding window, and what else they have is no limit to
/// the context, with the 96 tokens that texts of tests have.
pub const WINDOWED: &[&str] = &[
    "cohere2",
    "cohere2_moe",
    "cohere2_moe_rms",
    "exaone4",
    "gemma2",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gemma4_e",
    "gemma4_moe",
    "gpt_oss",
    "mistral",
    "olmo3",
    "starcoder2",
];

/// Some of those with recurrent layers: of each kind of mixer, alone, beside attention and with experts.
pub const RECURRENT: &[&str] = &[
    "bamba",
    "falcon_h1",
    "falcon_mamba",
    "granite_hybrid",
    "granite_hybrid_moe",
    "jamba",
    "lfm2",
    "lfm2_moe",
    "mamba",
    "mamba2",
    "nemotron_h",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
];

/// Opens the GGUF file of a family.
pub fn open_family(name: &str) -> ModelFile {
    let path = repository_file(&format!("tests/data/families/{name}/model.gguf"));
    ModelFile::open(&path).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The same with another context length.
pub fn with_context(name: &str, context: usize) -> Edited {
    let mut edited = Edited::of(&open_family(name));
    let architecture = match &edited.metadata["general.architecture"] {
        Value::String(architecture) => architecture.to_string(),
        other => panic!("{other:?}"),
    };
    edited.set(&format!("{architecture}.context_length"), context);
    edited
}
