//! What a network would take, by its shapes and types alone.

use super::attention::AttentionScratch;
use super::attention_layer::distance_table_len;
use super::batch::batch_bytes;
use super::fixed::FixedStates;
use super::forward::{DecodeSpace, partials_bytes};
use super::kv::Shape;
use super::matmul::Scratch;
use super::pool::indices;
use super::prefill::prefill_bytes;
use super::weights::{Sizes, fixed_layers, kv_layers, matrix_bytes};
use crate::backend::{Estimate, RunnerOptions};
use crate::engine::sampling;
use crate::error::Result;
use crate::model::{Network, Norm};

/// What loading `network` on `threads` threads and making a session would take.
///
/// Errors: `OutOfMemory` for a KV cache beyond all memory.
pub(super) fn estimate(
    network: &Network,
    threads: usize,
    options: &RunnerOptions,
) -> Result<Estimate> {
    let s = Sizes::of(network);
    let kv = Shape::new(kv_layers(network), options.kv_type)?;
    let thread = Scratch::bytes_for(s.cols())
        + AttentionScratch::bytes_for(s.group, s.head_dim)
        + s.normed() * size_of::<f32>();
    let indices = indices(threads);
    let model = ((indices - threads + 1) * DecodeSpace::bytes_for(&s))
        .saturating_add(partials_bytes(&s, threads, options.context))
        .saturating_add(indices * thread)
        .saturating_add(prefill_bytes(&s, threads, matrix_bytes(network)))
        .saturating_add(batch_bytes(&s, threads, network.logits_len()));
    let fixed_len = fixed_layers(network).fold(0, usize::saturating_add);
    let fixed = FixedStates::bytes_for(fixed_len, network.logits_len(), options.marks());
    if network.encoder.is_some() {
        // It has no sessions.
        return Ok(Estimate {
            weights_bytes: weights_bytes(network),
            model_workspace_bytes: model as u64,
            ..Estimate::default()
        });
    }
    Ok(Estimate {
        weights_bytes: weights_bytes(network),
        kv_bytes_per_token: kv.bytes_per_token(),
        kv_bytes: kv.bytes(options.context).saturating_add(fixed),
        model_workspace_bytes: model as u64,
        session_workspace_bytes: session_bytes(network.logits_len(), options.context) as u64,
    })
}

/// What a session has beside its KV cache.
pub(super) fn session_bytes(n_vocab: usize, context: usize) -> usize {
    // Logits, what a choice needs, a mask.
    let choice = n_vocab * size_of::<f32>()
        + sampling::Scratch::bytes_for(n_vocab)
        + n_vocab.div_ceil(32) * size_of::<u32>();
    // The tokens of the context, which session and runner both hold.
    choice.saturating_add(context.saturating_mul(2 * size_of::<u32>()))
}

/// Matrices as they lie in the file, small vectors as `f32`.
fn weights_bytes(network: &Network) -> u64 {
    let mut mapped = matrix_bytes(network);
    let tied = network.ends() && network.embedding.same_data(&network.head.weight);
    if network.embeds() {
        mapped += if tied {
            0
        } else {
            network.embedding.byte_len()
        };
        mapped += network.positions.as_ref().map_or(0, |p| p.byte_len());
    }
    let norm = |norm: &Norm| {
        let bias = norm.bias.as_ref().map_or(0, |b| b.row_len());
        norm.weight.row_len() + bias
    };
    let mut floats = match network.ends() {
        true => norm(&network.final_norm) + network.head.bias.as_ref().map_or(0, |b| b.row_len()),
        false => 0,
    };
    if network.embeds() {
        floats += network.embedding_norm.as_ref().map_or(0, norm);
    }
    if let Some(inputs) = &network.per_layer {
        mapped += inputs.embedding.byte_len();
        floats += norm(&inputs.norm);
    }
    if let Some(entry) = &network.entry {
        floats += entry.norms().map(norm).iter().sum::<usize>();
        floats += entry.projection.bias.as_ref().map_or(0, |b| b.row_len());
    }
    if let Some(encoder) = &network.encoder {
        mapped += encoder.token_types.as_ref().map_or(0, |t| t.byte_len());
        floats += encoder.embedding_norm.as_ref().map_or(0, norm);
    }
    for dense in network.readout.layers() {
        mapped += dense.linear.weight.byte_len();
        floats += dense.linear.bias.as_ref().map_or(0, |b| b.row_len());
        floats += dense.norm.as_ref().map_or(0, norm);
    }
    for block in &network.blocks {
        floats += block.norms().map(norm).sum::<usize>();
        let biases = block.linears().into_iter().filter_map(|m| m.bias.as_ref());
        let vectors = biases.chain(block.vectors());
        floats += vectors.map(|b| b.row_len() * b.rows()).sum::<usize>();
        if let Some(a) = block.mixer.as_attention() {
            if a.value_norm.is_some() {
                floats += a.head_dim;
            }
            if let Some(d) = &a.distances {
                // Instead of its weight.
                floats += distance_table_len(d);
                floats -= d.weight.row_len() * d.weight.rows();
            }
        }
    }
    (mapped + floats * size_of::<f32>()) as u64
}
