//! What the CPU backend computes: against Hugging Face transformers, against the oracle in double
//! precision for every tensor type, and against itself however the work is cut.

use crate::common::convert::converted;
use crate::common::expected::Expected;
use crate::common::reference_llama::{self, mean_divergence};
use crate::common::runs::{Run, on_cpu, on_cpu_with};
use crate::common::{families, hamlet};
use emberlm::backend::KvType;
use emberlm::backend::cpu::matmul::Isa;
use emberlm::format::ModelFile;
use emberlm::model::Network;
use emberlm::quant::TensorType;

/// Logits after every token, on one thread.
fn token_by_token(network: &Network, tokens: &[u32], kv_type: KvType) -> Vec<Vec<f32>> {
    let weights = on_cpu(network, 1);
    Run::new(&weights, network.n_vocab, kv_type).extend(tokens, 1)
}

/// The two largest logits' difference and the largest one's token.
fn top(logits: &[f32]) -> (f32, usize) {
    let mut ranked: Vec<usize> = (0..logits.len()).collect();
    ranked.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    (logits[ranked[0]] - logits[ranked[1]], ranked[0])
}

/// Weights that are not quantized, so that only rounding differs.
fn compare_with_transformers(name: &str, file: &ModelFile, expected: &Expected) {
    let network = Network::from_file(file).unwrap();
    for kv_type in [KvType::F16, KvType::F32] {
        let logits = token_by_token(&network, &expected.tokens, kv_type);
        let mut largest = 0.0_f32;
        for (position, (ours, theirs)) in logits.iter().zip(&expected.logits).enumerate() {
            let (margin, token) = top(theirs);
            assert!(
                margin <= 0.02 || top(ours).1 == token,
                "{name}, KV {kv_type:?}, position {position}: token {}, transformers {token}",
                top(ours).1
            );
            for (a, b) in ours.iter().zip(theirs) {
                largest = largest.max((a - b).abs());
            }
        }
        println!("{name}, KV {kv_type:?}: largest difference {largest:.2e}");
        let bound = if kv_type == KvType::F16 { 0.03 } else { 0.001 };
        assert!(largest < bound, "{name}, KV {kv_type:?}: {largest}");
    }
}

#[test]
#[ignore = "needs ../shared/models/hamlet"]
fn float16_agrees_with_transformers() {
    let expected = Expected::read("hamlet_f16_logits");
    compare_with_transformers("hamlet F16", &hamlet::f16(), &expected);
}

#[test]
fn float32_agrees_with_transformers() {
    let expected = Expected::read("hamlet_q4_k_m_logits");
    let file = hamlet::converted(TensorType::F32);
    compare_with_transformers("hamlet F32", &file, &expected);
}

/// Mean divergence of the backend from the oracle on the same weights.
fn divergence(file: &ModelFile, tokens: &[u32]) -> f64 {
    let network = Network::from_file(file).unwrap();
    let logits = token_by_token(&network, tokens, KvType::F16);
    mean_divergence(&reference_llama::logits(&network, tokens), &logits)
}

/// Eight-bit activations alone cost about 1e-5 with this model, and a defect in one product far
/// more than the bound.
#[test]
fn every_tensor_type_is_near_the_oracle() {
    let source = hamlet::q4_k_m();
    let tokens = Expected::read("hamlet_q4_k_m_logits").tokens;
    let mut results = vec![("committed file", divergence(&source, &tokens))];
    for ty in types() {
        results.push((ty.name(), divergence(&converted(&source, ty), &tokens)));
    }
    for (name, divergence) in results {
        println!("{name}: mean divergence {divergence:.2e}");
        // Of the tests' simple quantizers to three bits and less, little is left of the model, which then
        // amplifies errors.
        let few_bits = ["IQ1", "IQ2", "IQ3", "TQ"]
            .iter()
            .any(|t| name.starts_with(t));
        let most = if few_bits { 2e-3 } else { 1e-4 };
        assert!(divergence < most, "{name}: {divergence}");
    }
}

/// Rows of 64 and 96 elements, which the types with blocks of 32 allow. These models amplify every
/// error, being random: eight-bit activations cost about 1.5e-3.
#[test]
fn short_rows_are_near_the_oracle() {
    for ty in TensorType::ALL
        .into_iter()
        .filter(|ty| ty.block_len() <= 32)
    {
        for name in families::NAMES {
            let tokens = Expected::read(&format!("families/{name}")).tokens;
            let file = converted(&families::open(name), ty);
            let divergence = divergence(&file, &tokens);
            println!("{name} {}: mean divergence {divergence:.2e}", ty.name());
            assert!(divergence < 5e-3, "{name} {}: {divergence}", ty.name());
        }
    }
}

/// The types that tests convert to: all, or, unless slow tests are asked for, one of each kind of block.
fn types() -> Vec<TensorType> {
    use TensorType::*;
    match std::env::var_os("EMBERLM_SLOW_TESTS") {
        Some(_) => TensorType::ALL.to_vec(),
        None => vec![F16, Q5_0, Q4K, Q6K, IQ4XS, MXFP4],
    }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|v| v.to_bits()).collect()
}

/// Prefill in one piece, in pieces of any size, token by token, on any number of threads, with any
/// instruction set, and after forgetting a part: the same bits.
#[test]
fn the_cut_makes_no_difference() {
    let tokens = Expected::read("hamlet_q4_k_m_logits").tokens;
    let source = hamlet::q4_k_m();
    let files: Vec<_> = types()
        .into_iter()
        .map(|ty| (ty.name(), converted(&source, ty)))
        .collect();
    for (name, file) in [("committed file", source)].into_iter().chain(files) {
        let network = Network::from_file(&file).unwrap();
        let expected: Vec<_> = token_by_token(&network, &tokens, KvType::F16)
            .iter()
            .map(|logits| bits(logits))
            .collect();
        let mut cases = vec![(Isa::detect(), 1, 37), (Isa::detect(), 3, 13)];
        cases.extend(
            Isa::available()
                .into_iter()
                .map(|isa| (isa, 2, tokens.len())),
        );
        for (isa, threads, piece) in cases {
            let weights = on_cpu_with(isa, &network, threads);
            let mut run = Run::new(&weights, network.n_vocab, KvType::F16);
            let ends = (piece..=tokens.len()).step_by(piece);
            for (end, logits) in ends.zip(run.extend(&tokens, piece)) {
                assert!(
                    bits(&logits) == expected[end - 1],
                    "{name}, {isa:?}, {threads} threads, pieces of {piece}, {end} tokens"
                );
            }
            run.runner.truncate(33);
            assert_eq!(run.runner.len(), 33);
            assert!(
                bits(&run.last(&tokens[33..], 16)) == expected[tokens.len() - 1],
                "{name}, {isa:?}, {threads} threads, after a truncation"
            );
        }
    }
}
