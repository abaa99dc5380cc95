//! The plan of a session's state: where the keys and values of each layer lie.
//!
//! Positions are kept in segments of [`SEGMENT`]. A segment holds, for each layer and KV head, a
//! block of keys `[tile][head_dim][16]` (tiles of 16 positions, so that a vector holds one element
//! of 16 positions' keys) and a block of values `[position][padded head_dim]`. So a head's part of
//! a segment is contiguous.
//!
//! Layers with a sliding window have a ring of few segments, which later ones overwrite. Layers
//! with the same ring lie together, so a segment holds the blocks of the layers of one [`Group`].

use super::super::simd::LANES;
use super::kv::{MAX_CHUNK, SEGMENT};
use crate::backend::KvType;
use crate::backend::state::WindowState;
use crate::error::{Result, fail};
use crate::model::KvShape;

/// KV heads and head size of one layer, and where its part of a segment begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub n_kv_heads: usize,
    pub head_dim: usize,
    /// Index of its group.
    pub group: usize,
    /// Bytes into the segment.
    pub offset: usize,
    /// Bytes of one head's keys, and of its values.
    pub keys_bytes: usize,
    pub values_bytes: usize,
}

/// Layers whose segments lie together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub window: Option<usize>,
    pub segment_bytes: usize,
}

impl Group {
    /// Segments for `context` positions: all, or as many as a window and a chunk can touch, and one
    /// more for short rewinds.
    pub fn segments(&self, context: usize) -> usize {
        let all = context.div_ceil(SEGMENT);
        match self.window {
            Some(window) => {
                let touched = (window.saturating_add(MAX_CHUNK)).div_ceil(SEGMENT) + 1;
                all.min(touched + 1)
            }
            None => all,
        }
    }

    /// Bytes for `context` positions, if that is a number.
    pub fn bytes(&self, context: usize) -> Option<usize> {
        self.segments(context).checked_mul(self.segment_bytes)
    }
}

/// Where everything is in a cache.
#[derive(Clone)]
pub struct Shape {
    pub(super) parts: Vec<Part>,
    pub(super) groups: Vec<Group>,
    pub(super) kv_type: KvType,
}

impl Shape {
    /// The shape for these layers. Errors: `OutOfMemory` where the numbers are beyond all memory.
    pub fn new(layers: impl Iterator<Item = KvShape>, kv_type: KvType) -> Result<Shape> {
        let size = element_bytes(kv_type);
        let mut parts = Vec::new();
        let mut groups: Vec<Group> = Vec::new();
        for layer in layers {
            let KvShape {
                n_kv_heads,
                head_dim,
                window,
            } = layer;
            let group = groups.iter().position(|g| g.window == window);
            let group = group.unwrap_or_else(|| {
                groups.push(Group {
                    window,
                    segment_bytes: 0,
                });
                groups.len() - 1
            });
            let offset = groups[group].segment_bytes;
            let bytes = |dim: usize| dim.checked_mul(SEGMENT * size);
            let ends = (|| {
                let (keys, values) = (bytes(head_dim)?, bytes(head_dim.next_multiple_of(LANES))?);
                let end = keys
                    .checked_add(values)?
                    .checked_mul(n_kv_heads)?
                    .checked_add(offset)?;
                Some((keys, values, end))
            })();
            let Some((keys_bytes, values_bytes, end)) = ends else {
                fail!(
                    OutOfMemory,
                    "KV cache: {n_kv_heads} heads of {head_dim} are beyond all memory"
                );
            };
            parts.push(Part {
                n_kv_heads,
                head_dim,
                group,
                offset,
                keys_bytes,
                values_bytes,
            });
            groups[group].segment_bytes = end;
        }
        Ok(Shape {
            parts,
            groups,
            kv_type,
        })
    }

    /// What layers with windows hold of an empty session, ascending by window.
    pub fn windows(&self) -> Vec<WindowState> {
        let mut windows: Vec<usize> = self.groups.iter().filter_map(|g| g.window).collect();
        windows.sort_unstable();
        let empty = |window| WindowState { window, from: 0 };
        windows.into_iter().map(empty).collect()
    }

    /// Bytes of a further position, in layers without a window.
    pub fn bytes_per_token(&self) -> u64 {
        let growing = self.groups.iter().filter(|g| g.window.is_none());
        growing.map(|g| (g.segment_bytes / SEGMENT) as u64).sum()
    }

    /// Bytes of a cache for `context` positions, which are whole segments.
    pub fn bytes(&self, context: usize) -> u64 {
        let bytes = |g: &Group| g.bytes(context).map_or(u64::MAX, |b| b as u64);
        self.groups.iter().map(bytes).fold(0, u64::saturating_add)
    }
}

pub(super) fn element_bytes(kv_type: KvType) -> usize {
    match kv_type {
        KvType::F16 => 2,
        // q8_0 is refused when a session is made.
        KvType::F32 | KvType::Q8_0 => 4,
    }
}
