//! What a network is: hyperparameters and blocks described as data.
//!
//! One small file per family maps the names in a file to this description. Backends read it and
//! never ask for a family's name. All shapes are checked here, so a backend may rely on them.

mod adapter;
mod afmoe;
mod apertus;
mod arcee;
mod bert;
mod bitnet;
mod bloom;
mod cohere2;
mod dbrx;
mod deci;
mod decoder;
mod deepseek;
mod deepseek2;
mod distances;
mod eagle3;
mod ernie4_5;
mod exaone;
mod exaone4;
mod experts;
mod falcon;
mod falcon_h1;
mod gemma;
mod gemma3n;
mod gemma4;
mod glm4;
mod glm4moe;
mod gpt2;
mod gpt_oss;
mod gptneox;
mod granite;
mod hunyuan;
mod hybrid;
mod jamba;
mod kimi_linear;
mod laguna;
mod lfm2;
mod llama;
mod llama4;
mod mamba1;
mod mamba2;
mod mellum;
mod mimo2;
mod minimax_m2;
mod mistral3;
mod muse_glimmer;
mod nanochat;
mod nemotron;
mod nemotron_h;
mod network;
mod olmo;
mod olmo2;
mod olmo_hybrid;
mod olmoe;
mod openelm;
mod part;
mod phi2;
mod phi3;
mod phimoe;
mod plamo3;
mod predictor;
mod qwen;
mod qwen2;
mod qwen2moe;
mod qwen3;
mod qwen3moe;
mod qwen3next;
mod rank;
mod readout;
mod readouts;
mod rope;
mod seed_oss;
mod slopes;
mod smollm3;
mod source;
mod spark;
mod stablelm;
mod starcoder2;
mod step35;
mod t5;
mod unit;
mod unused;

pub use adapter::{
    Adaptable, Adapter, AdapterSet, AdapterUse, EmbeddingPair, Floats, LowRank, adaptable_cut,
    adaptable_linears, linears_adaptable_apart,
};
pub use network::{
    Activation, Attention, Block, Conv, DeltaNet, DeltaSteps, DenseAndExperts, Distances,
    ExpertGroups, Experts, FeedForward, FixedShape, KvShape, LatentAttention, LatentExperts,
    LayerInput, LayerStreams, Linear, LongRope, MAX_STREAMS, Mamba1, Mamba2, Mixer, MixerState,
    Mlp, Network, Norm, NormKind, PerLayerInputs, Rope, RopePairing, Scoring, SharedExpert,
    ShortConv, SideBySide, Streams, Temperature,
};

pub use part::Surroundings;
pub use predictor::{Entry, Fusion};
pub use rank::{FixedCut, MatrixCut, Pieces, Rank};
pub use readout::{Dense, DenseActivation, Encoder, Pooling, Readout, Scores};

use crate::error::{Result, fail};
use crate::format::ModelFile;

/// Describes the network in a file, checking every key, shape and type that it uses.
type Describe = fn(&ModelFile) -> Result<Network>;

/// The families, by `general.architecture`. A new one is a file here and a line in this table.
const ARCHITECTURES: &[(&str, Describe)] = &[
    ("afmoe", afmoe::describe),
    ("apertus", apertus::describe),
    ("arcee", arcee::describe),
    ("baichuan", llama::baichuan),
    ("bailingmoe", deepseek::bailingmoe),
    ("bailingmoe2", glm4moe::bailingmoe2),
    ("bailingmoe3", kimi_linear::bailing),
    ("bert", bert::bert),
    ("bitnet", bitnet::describe),
    ("bloom", bloom::bloom),
    ("chatglm", glm4::chatglm),
    ("codeshell", starcoder2::codeshell),
    ("cohere2", cohere2::describe),
    ("cohere2moe", cohere2::experts),
    ("command-r", cohere2::command_r),
    ("dbrx", dbrx::describe),
    ("deci", deci::describe),
    ("deepseek", deepseek::describe),
    ("deepseek2", deepseek2::describe),
    ("dots1", glm4moe::dots1),
    ("eagle3", eagle3::describe),
    ("ernie4_5", ernie4_5::describe),
    ("ernie4_5-moe", ernie4_5::experts),
    ("eurobert", bert::eurobert),
    ("exaone", exaone::describe),
    ("exaone4", exaone4::describe),
    ("exaone-moe", exaone4::experts),
    ("falcon", falcon::describe),
    ("falcon-h1", falcon_h1::describe),
    ("flex_olmo", olmo2::experts),
    ("gemma", gemma::gemma),
    ("gemma2", gemma::gemma2),
    ("gemma3", gemma::gemma3),
    ("gemma-embedding", gemma::embedding),
    ("gemma3n", gemma3n::describe),
    ("gemma4", gemma4::describe),
    ("glm4", glm4::describe),
    ("glm4moe", glm4moe::describe),
    ("gpt2", gpt2::describe),
    ("gpt-oss", gpt_oss::describe),
    ("gptneo", gpt2::neo),
    ("gptneox", gptneox::describe),
    ("granite", granite::describe),
    ("granite_swa", granite::windowed),
    ("granitehybrid", granite::hybrid),
    ("granitemoe", granite::experts),
    ("hunyuan-dense", hunyuan::describe),
    ("hunyuan-moe", hunyuan::experts),
    ("hunyuan_vl", hunyuan::vision),
    ("hy_v3", glm4moe::hy_v3),
    ("hyperclovax", granite::hyperclovax),
    ("internlm2", llama::internlm2),
    ("jais", bloom::jais),
    ("jais2", nemotron::jais2),
    ("jamba", jamba::describe),
    ("jina-bert-v2", bert::jina_bert_v2),
    ("jina-bert-v3", bert::jina_bert_v3),
    ("kimi-linear", kimi_linear::describe),
    ("laguna", laguna::describe),
    ("lfm2", lfm2::describe),
    ("lfm2moe", lfm2::experts),
    ("lfm3", lfm2::third),
    ("llama", llama::describe),
    ("llama-embed", llama::embed),
    ("llama4", llama4::describe),
    ("maincoder", hunyuan::maincoder),
    ("mamba", mamba1::describe),
    ("mamba2", mamba2::describe),
    ("mellum", mellum::describe),
    ("mimo2", mimo2::describe),
    ("minicpm", granite::minicpm),
    ("minicpm3", deepseek2::minicpm3),
    ("minimax-m2", minimax_m2::describe),
    ("mistral3", mistral3::describe),
    ("modern-bert", bert::modern_bert),
    ("mistral4", deepseek2::mistral4),
    ("mpnet", bert::mpnet),
    ("mpt", bloom::mpt),
    ("muse-glimmer", muse_glimmer::describe),
    ("nanbeige", llama::nanbeige),
    ("nanochat", nanochat::describe),
    ("nemotron", nemotron::describe),
    ("nemotron_h", nemotron_h::describe),
    ("nemotron_h_moe", nemotron_h::experts),
    ("nomic-bert", bert::nomic_bert),
    ("nomic-bert-moe", bert::nomic_bert_experts),
    ("olmo", olmo::describe),
    ("olmo2", olmo2::describe),
    ("olmo_hybrid", olmo_hybrid::describe),
    ("olmoe", olmoe::describe),
    ("openelm", openelm::describe),
    ("opt", gpt2::opt),
    ("orion", stablelm::orion),
    ("pangu-embedded", qwen2::pangu),
    ("phi2", phi2::describe),
    ("phi3", phi3::describe),
    ("phimoe", phimoe::describe),
    ("plamo3", plamo3::describe),
    ("plm", deepseek2::plm),
    ("qwen", qwen::describe),
    ("qwen2", qwen2::describe),
    ("qwen2moe", qwen2moe::describe),
    ("qwen2vl", qwen2::vision),
    ("qwen3", qwen3::describe),
    ("qwen35", qwen3next::dense),
    ("qwen35moe", qwen3next::experts),
    ("qwen3moe", qwen3moe::describe),
    ("qwen3next", qwen3next::next),
    ("qwen3vl", qwen3::vision),
    ("qwen3vlmoe", qwen3moe::vision),
    ("refact", llama::refact),
    ("seed_oss", seed_oss::describe),
    ("smollm3", smollm3::describe),
    ("spark2_5", spark::describe),
    ("stablelm", stablelm::describe),
    ("starcoder", gpt2::starcoder),
    ("starcoder2", starcoder2::describe),
    ("step35", step35::describe),
    ("t5encoder", t5::encoder),
    ("vaultgemma", gemma::vault),
    ("xverse", llama::xverse),
];

impl Network {
    /// Describes the network in `file`, checking every key, shape and type that it uses. Reads no
    /// tensor but the small `rope_freqs.weight`, queries and keys of Bamba, convolutions of Kimi Linear, and what keys
    /// and values of MiniCPM 3 come from.
    ///
    /// Errors: `Unsupported` names an unknown architecture or feature, or a tensor that the network
    /// does not use; `MissingKey`, `MissingTensor`, `ShapeMismatch` and `InvalidModel` name the key or tensor.
    pub fn from_file(file: &ModelFile) -> Result<Network> {
        let architecture = file.str("general.architecture")?;
        match ARCHITECTURES.iter().find(|(name, _)| *name == architecture) {
            Some((_, describe)) => {
                let mut network = describe(file)?;
                unused::refuse(file, &network)?;
                network.scale_residual_unit();
                Ok(network)
            }
            None => fail!(
                Unsupported,
                "general.architecture is {architecture:?}, none of the {} that are supported{}",
                ARCHITECTURES.len(),
                alike(architecture)
            ),
        }
    }
}

/// What is said about names that begin as this one does; all of them would be too much for a message.
fn alike(architecture: &str) -> String {
    let beginning: String = architecture.chars().take(3).collect();
    let names = ARCHITECTURES.iter().map(|(name, _)| *name);
    let names: Vec<_> = names.filter(|name| name.starts_with(&beginning)).collect();
    match names[..] {
        _ if beginning.is_empty() => String::new(),
        [] => String::new(),
        _ => format!(", such as {}", names.join(", ")),
    }
}
