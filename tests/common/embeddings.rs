//! The data of `tests/data/embeddings`, and embedders with their usual options.

use super::repository_file;
use emberlm::engine::Model;
use emberlm::engine::embedder::{Embedder, EmbedderOptions, Product};
use emberlm::model::Pooling;
use std::path::PathBuf;
use std::sync::Arc;

pub const ENCODERS: [&str; 11] = [
    "bert",
    "bert_scores",
    "distilbert",
    "embedding_gemma",
    "eurobert",
    "jina_v2",
    "jina_v3",
    "modernbert_scores",
    "nomic_bert",
    "nomic_moe",
    "xlm_roberta_scores",
];
/// Those that run on CPUs alone.
pub const ON_CPUS: [&str; 3] = ["mpnet", "t5", "umt5"];
pub const DECODERS: [&str; 3] = ["gemma2", "mistral", "qwen3"];

/// A text of the data, and what transformers makes of it.
pub struct Text {
    pub tokens: Vec<u32>,
    /// A row of each token.
    pub hidden: Vec<f32>,
    pub scores: Vec<f32>,
}

pub struct Expected {
    pub width: usize,
    pub texts: Vec<Text>,
}

impl Expected {
    pub fn read(name: &str) -> Expected {
        Expected::of(&format!("tests/data/embeddings/{name}"))
    }

    /// Of a folder.
    pub fn of(folder: &str) -> Expected {
        let path = repository_file(&format!("{folder}/hidden.bin"));
        let bytes = std::fs::read(path).unwrap();
        let mut words = bytes
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes(b.try_into().unwrap()));
        let mut next = || words.next().unwrap();
        let (n, width, n_scores) = (next(), next() as usize, next() as usize);
        let texts = (0..n).map(|_| {
            let len = next() as usize;
            let tokens = (0..len).map(|_| next()).collect();
            let hidden = (0..len * width).map(|_| f32::from_bits(next())).collect();
            let scores = (0..n_scores).map(|_| f32::from_bits(next())).collect();
            Text {
                tokens,
                hidden,
                scores,
            }
        });
        let texts: Vec<Text> = texts.collect();
        assert!(!texts.is_empty());
        Expected { width, texts }
    }

    /// The tokens of all texts, and how many each has.
    pub fn all(&self) -> (Vec<u32>, Vec<usize>) {
        let tokens = self.texts.iter().flat_map(|t| t.tokens.clone()).collect();
        (tokens, self.texts.iter().map(|t| t.tokens.len()).collect())
    }
}

/// The forms that a model is there in.
pub fn paths(name: &str) -> Vec<PathBuf> {
    let folder = match DECODERS.contains(&name) {
        true => repository_file(&format!("tests/data/families/{name}")),
        false => repository_file(&format!("tests/data/embeddings/{name}")),
    };
    vec![folder.join("model.gguf"), folder]
}

pub fn embedder(model: &Arc<Model>, options: &EmbedderOptions<'_>) -> Embedder {
    Embedder::create(model.clone(), options.clone()).unwrap_or_else(|e| panic!("{e}"))
}

pub fn vectors(pooling: Pooling, normalize: bool) -> EmbedderOptions<'static> {
    EmbedderOptions {
        product: Some(Product::Vectors(pooling)),
        normalize: Some(normalize),
        ..EmbedderOptions::default()
    }
}

pub fn scores() -> EmbedderOptions<'static> {
    EmbedderOptions {
        product: Some(Product::Scores),
        ..EmbedderOptions::default()
    }
}

pub fn run(embedder: &mut Embedder, (tokens, counts): &(Vec<u32>, Vec<usize>)) -> Vec<f32> {
    let texts = embedder.given(tokens, counts).unwrap();
    let out = embedder.run(&texts).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(out.len(), embedder.result_len(&texts).unwrap());
    out
}

pub fn pooled(pooling: Pooling, hidden: &[f32], width: usize) -> Vec<f32> {
    let rows: Vec<&[f32]> = hidden.chunks(width).collect();
    match pooling {
        Pooling::First => rows[0].to_vec(),
        Pooling::Last | Pooling::None => rows[rows.len() - 1].to_vec(),
        Pooling::Mean => (0..width)
            .map(|i| rows.iter().map(|row| row[i]).sum::<f32>() / rows.len() as f32)
            .collect(),
    }
}

/// Of `data/embeddings/make.py`.
pub const QUERY: &str = "a bad cab";
pub const DOCUMENTS: [&str; 3] = ["dead beef", "a cab, a fad!", "ace"];

pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}
