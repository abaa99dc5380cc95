//! Running a network on a backend, piece by piece.

use super::work::Driven;
use emberlm::backend::cpu::CpuWeights;
use emberlm::backend::cpu::matmul::Isa;
use emberlm::backend::{KvType, RunnerOptions, Weights};
use emberlm::model::Network;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The network on the CPU, with a pool of so many threads and the best instruction set.
pub fn on_cpu(network: &Network, threads: usize) -> Arc<dyn Weights> {
    CpuWeights::load(network, threads, &mut |_| Ok(())).unwrap()
}

/// The network on the CPU with an instruction set that it has.
pub fn on_cpu_with(isa: Isa, network: &Network, threads: usize) -> Arc<dyn Weights> {
    CpuWeights::load_for(isa, network, threads, &mut |_| Ok(())).unwrap()
}

/// One context of a network.
pub struct Run {
    pub runner: Driven,
    n_vocab: usize,
}

impl Run {
    /// An empty context of 128 positions.
    pub fn new(weights: &Arc<dyn Weights>, n_vocab: usize, kv_type: KvType) -> Run {
        let options = RunnerOptions {
            context: 128,
            kv_type,
            ..Default::default()
        };
        let runner = Driven::new(weights, &options).unwrap();
        Run { runner, n_vocab }
    }

    /// Appends `tokens` in pieces of at most `piece` and returns the logits after each piece.
    pub fn extend(&mut self, tokens: &[u32], piece: usize) -> Vec<Vec<f32>> {
        let never = Arc::new(AtomicBool::new(false));
        let mut all = Vec::new();
        for piece in tokens.chunks(piece) {
            self.runner.extend(piece, &never).unwrap();
            let mut logits = vec![f32::NAN; self.n_vocab];
            self.runner.logits(&mut logits).unwrap();
            assert!(logits.iter().all(|v| v.is_finite()));
            all.push(logits);
        }
        all
    }

    /// The logits after the last of `tokens`.
    pub fn last(&mut self, tokens: &[u32], piece: usize) -> Vec<f32> {
        self.extend(tokens, piece).pop().unwrap()
    }
}
