//! What one decoded token reads from memory.

use emberlm::format::ModelFile;
use emberlm::model::{Linear, Network};
use std::path::Path;

/// Facts about a model file that rates are computed with.
pub struct Traffic {
    /// Bytes of the file, or of all files of a split one.
    pub file_bytes: u64,
    /// Bytes of weights that a forward pass of one token reads: everything but the embedding, of
    /// which it reads one row, and the embedding too if it is the output head. Of experts, as many as
    /// a token goes through.
    pub weight_bytes: u64,
}

impl Traffic {
    /// Reads the file's header.
    pub fn of_file(path: &Path) -> emberlm::Result<Traffic> {
        let file = ModelFile::open(path)?;
        let network = Network::from_file(&file)?;
        Ok(Traffic {
            file_bytes: file.file_bytes,
            weight_bytes: weight_bytes(&network),
        })
    }

    /// Bytes read per token by `tokens` decodes that start at a context of `depth`: all weights
    /// once, and the keys and values of the context, half of the new ones on average.
    pub fn per_token(&self, kv_bytes_per_token: u64, depth: usize, tokens: usize) -> f64 {
        let positions = depth.max(1) as f64 + tokens as f64 / 2.0;
        self.weight_bytes as f64 + positions * kv_bytes_per_token as f64
    }
}

fn weight_bytes(network: &Network) -> u64 {
    let linear = |l: &Linear| {
        let bias = l.bias.as_ref().map_or(0, |b| b.byte_len());
        (l.weight.byte_len() + bias) as u64
    };
    let embedding_row = network.embedding.row_bytes() as u64;
    let blocks: u64 = network
        .blocks
        .iter()
        .map(|block| {
            let norms: usize = block.norms().map(|n| n.weight.byte_len()).sum();
            let all: u64 = block.linears().into_iter().map(linear).sum();
            let idle = match block.feed_forward.experts() {
                None => 0,
                Some(e) => {
                    let gate = e.gate.iter().filter(|_| !e.fused);
                    let matrices = gate.chain([&e.up, &e.down]);
                    let experts: u64 = matrices.map(linear).sum();
                    experts / e.n_experts as u64 * (e.n_experts - e.n_used) as u64
                }
            };
            all - idle + norms as u64
        })
        .sum();
    let last = network.final_norm.weight.byte_len() as u64;
    let inputs = network.per_layer.as_ref().map_or(0, |inputs| {
        linear(&inputs.projection) + inputs.embedding.row_bytes() as u64
    });
    embedding_row + inputs + blocks + last + linear(&network.head)
}
