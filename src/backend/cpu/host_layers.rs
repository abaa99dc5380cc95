//! Parts of layers that another device has evaluated here: rows of the residual stream come, and go on behind the part.

use super::chunk::{Chunk, Places};
use super::kv::MAX_CHUNK;
use super::prefill::chunk_space;
use super::weights::CpuWeights;
use crate::backend::{HostLayers, TokenInput};
use crate::error::{Result, fail};
use std::sync::atomic::AtomicBool;

/// The ids of a chunk's tokens, which nothing without embeddings asks for.
static NO_TOKENS: [u32; MAX_CHUNK] = [0; MAX_CHUNK];

impl HostLayers for CpuWeights {
    fn reserve(&self, rows: usize) -> Result<()> {
        let mut space = self.prefill.lock().unwrap_or_else(|e| e.into_inner());
        match rows {
            0 | 1 => Ok(()),
            _ => chunk_space(self, &mut space).map(drop),
        }
    }

    fn run(&self, layer: usize, rows: &mut [f32], stride: usize) -> Result<()> {
        let Some(layer) = self.layers.get(layer) else {
            fail!(Internal, "the host has no layer {layer}");
        };
        // Whoever waits for the rows cannot go on without them.
        let never = AtomicBool::new(false);
        let width = self.hidden;
        if rows.len() <= stride {
            let row = &mut rows[..width];
            return super::forward::run_layer(self, layer, row, &never);
        }
        let _turn = self.prefill_turns.take(&never)?;
        let mut space = self.prefill.lock().unwrap_or_else(|e| e.into_inner());
        let space = chunk_space(self, &mut space)?;
        for rows in rows.chunks_mut(space.tokens() * stride) {
            let tokens = &NO_TOKENS[..rows.len().div_ceil(stride)];
            let chunk = Chunk::new(self, space, tokens, Places::Unknown, None)?;
            let turn = self.pool.turn(&never)?;
            for (i, row) in rows.chunks(stride).enumerate() {
                chunk.enter(i, 1, TokenInput::Stream(&row[..width]))?;
            }
            chunk.pass(&turn).block(layer)?;
            for (i, row) in rows.chunks_mut(stride).enumerate() {
                chunk.leave(i, &mut row[..width]);
            }
        }
        Ok(())
    }
}
