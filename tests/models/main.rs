//! Files of models: how they are read, what networks they are, what is said of broken ones. In one binary, because each takes seconds to build.

#[path = "../common/mod.rs"]
mod common;

mod adapted_embeddings;
mod adapters;
mod adapters_embedding;
mod adapters_experts;
mod converter;
mod dequantize;
mod embeddings;
mod families;
mod families_bad;
mod format;
mod huggingface;
mod later;
mod llama;
mod packed;
mod quantize;
mod ranks;
mod safetensors;
mod variants;
