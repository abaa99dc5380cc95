//! The forward pass of many tokens of a session, in chunks. A session gives up the pool between
//! layers if others wait for it, and has smaller chunks then.

use super::adapters::Sets;
use super::chunk::{Chunk, ChunkSpace, Places, chunk_bytes};
use super::experts::ExpertChunkSpace;
use super::forward::{Context, step};
use super::kv::MAX_CHUNK;
use super::pool::PoolTurn;
use super::weights::{CpuWeights, Sizes};
use crate::backend::{HiddenStates, Residual};
use crate::error::{Result, fail};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Fewest, whatever their memory.
const MIN_CHUNK: usize = 16;
/// Memory for a chunk that is fine for every model.
const SMALL_BYTES: usize = 8 << 20;
/// Tokens of a chunk while other sessions use the pool, who may have to wait for a layer of it.
const SHARED_CHUNK: usize = 64;
/// So few tokens do not wait for the chunk of another session, but are read one by one.
const STEPS: usize = 16;
/// A chunk of a larger model may take this fraction of its weights.
const WEIGHTS_SHARE: usize = 40;

/// Tokens in the largest chunk, for matrices of that many bytes.
fn chunk_tokens(s: &Sizes, matrix_bytes: usize) -> usize {
    let encoded = s.cols() * (4 * usize::from(s.encodings.float) + 2 * usize::from(s.encodings.q8));
    let floats = s.hidden + s.q.max(s.hidden) + 2 * s.kv + s.n_ff + s.rope;
    let experts = ExpertChunkSpace::bytes_for(&s.experts, 1, 1);
    let per_token = 4 * floats + encoded + experts;
    let budget = SMALL_BYTES.max(matrix_bytes / WEIGHTS_SHARE);
    (budget / per_token / 16 * 16).clamp(MIN_CHUNK, MAX_CHUNK)
}

/// Bytes that prefill takes for matrices of that many bytes.
pub(super) fn prefill_bytes(s: &Sizes, threads: usize, matrix_bytes: usize) -> usize {
    chunk_bytes(s, threads, chunk_tokens(s, matrix_bytes))
}

/// The memory of chunks, made if there is none. Errors: `OutOfMemory`.
pub(super) fn chunk_space<'s>(
    weights: &CpuWeights,
    space: &'s mut Option<ChunkSpace>,
) -> Result<&'s mut ChunkSpace> {
    match space {
        Some(space) => Ok(space),
        none => {
            let tokens = chunk_tokens(&weights.sizes, weights.matrix_bytes);
            Ok(none.insert(ChunkSpace::new(weights, tokens)?))
        }
    }
}

/// Appends `tokens` from `position` on, and writes the logits that follow the last one, where that
/// is wanted. `residual` is theirs at the ends of the layers.
///
/// Errors: `Interrupted` (the flag is looked at between layers), `OutOfMemory` for the first
/// chunk's memory, `Internal`. Then the logits are as they were.
pub(super) fn prefill(
    weights: &CpuWeights,
    context: Context<'_>,
    position: usize,
    tokens: &[u32],
    (mut residual, mut out): (Residual<'_>, Option<&mut [f32]>),
    interrupt: &AtomicBool,
) -> Result<()> {
    if tokens.len() <= STEPS && weights.prefill_turns.users() > 0 {
        return run_steps(
            weights,
            context,
            position,
            tokens,
            (residual, out),
            interrupt,
        );
    }
    let mut rest = tokens;
    let mut position = position;
    while !rest.is_empty() {
        let _turn = weights.prefill_turns.take(interrupt)?;
        let mut space = weights.prefill.lock().unwrap_or_else(|e| e.into_inner());
        let space = chunk_space(weights, &mut space)?;
        let shared = weights.pool.is_used() || weights.prefill_turns.users() > 1;
        let largest = if shared { SHARED_CHUNK } else { MAX_CHUNK };
        let n = rest.len().min(space.tokens()).min(largest);
        let (chunk, later) = rest.split_at(n);
        let last = match later {
            [] => out.take(),
            _ => None,
        };
        let ends = (residual.split(n, weights.hidden), last);
        run_chunk(weights, context, position, chunk, space, ends, interrupt)?;
        position += chunk.len();
        rest = later;
    }
    Ok(())
}

/// Tokens one by one, and the logits that follow the last one.
fn run_steps(
    weights: &CpuWeights,
    context: Context<'_>,
    position: usize,
    tokens: &[u32],
    (mut residual, mut out): (Residual<'_>, Option<&mut [f32]>),
    interrupt: &AtomicBool,
) -> Result<()> {
    let last = tokens.len() - 1;
    for (i, token) in tokens.iter().enumerate() {
        let logits = if i == last { out.take() } else { None };
        let ends = (residual.split(1, weights.hidden), logits);
        step(
            weights,
            context,
            (position + i, *token),
            ends,
            None,
            interrupt,
        )?;
    }
    Ok(())
}

/// One chunk, and the logits if it is the last one.
fn run_chunk(
    weights: &CpuWeights,
    context: Context<'_>,
    position: usize,
    tokens: &[u32],
    space: &mut ChunkSpace,
    (residual, out): (Residual<'_>, Option<&mut [f32]>),
    interrupt: &AtomicBool,
) -> Result<()> {
    let place = Places::Run(context.kv, position);
    let sets = context.adapters.map(Sets::One);
    let chunk = Chunk::new(weights, space, tokens, place, sets)?;
    let turn = weights.pool.turn(interrupt)?;
    chunk.embed(&turn)?;
    let fused = chunk.enter(0, tokens.len(), residual.input)?;
    chunk.project_entry(&turn, fused)?;
    let states = context.states;
    let turn = run_layers(
        weights,
        &chunk,
        turn,
        (position, tokens.len(), states),
        interrupt,
    )?;
    if let Some(output) = residual.output {
        chunk.leave(0, output);
    }
    if let Some(states) = states {
        chunk.pass(&turn).keep(states, position, (0, tokens.len()));
    }
    match out {
        Some(out) => chunk.last_logits(&turn, out),
        None => Ok(()),
    }
}

/// The layers of a chunk of so many tokens that begins at a position, whose hidden states go where they are wanted. The turn may be another
/// one afterwards.
pub(super) fn run_layers<'t>(
    weights: &'t CpuWeights,
    chunk: &Chunk<'_>,
    mut turn: PoolTurn<'t>,
    (position, count, states): (usize, usize, Option<&HiddenStates>),
    interrupt: &AtomicBool,
) -> Result<PoolTurn<'t>> {
    let (mut since, mut others) = (Instant::now(), Duration::ZERO);
    for index in 0..weights.layers.len() {
        if interrupt.load(Relaxed) {
            fail!(
                Interrupted,
                "interrupted at position {position}, layer {index}"
            );
        }
        // The others come first, but they do not get everything: half as long as they had it.
        if turn.is_wanted() && since.elapsed() >= others / 2 {
            drop(turn);
            let given = Instant::now();
            turn = weights.pool.turn(interrupt)?;
            since = Instant::now();
            others = since - given;
        }
        if let Some(states) = states {
            chunk
                .pass(&turn)
                .keep_before(index, states, position, (0, count));
        }
        chunk.run_layer(&turn, index)?;
    }
    Ok(turn)
}
