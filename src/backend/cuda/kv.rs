//! The KV caches of a session: one that grows with the context, of the layers that see all of it, and
//! a ring, of the layers with a window. Both consist of tiles of a few positions of all their layers.

use super::args::{KvLayout, NO_WINDOW};
use super::attention::KV_TILE;
use super::plan::LayerPlan;
use super::prefill::CHUNK;
use crate::backend::KvType;
use crate::error::{Result, fail};

/// Where everything is in the caches of an element type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvPlan {
    /// Element type.
    pub kv_type: KvType,
    /// Of each layer.
    pub layers: Vec<KvLayout>,
    /// Bytes of a tile of the cache that grows; 0 if every layer has a window.
    tile_bytes: u64,
    /// Bytes of a tile of the ring; 0 if no layer has a window.
    ring_tile_bytes: u64,
    /// Tiles of the ring.
    ring: usize,
    /// The largest window.
    window: usize,
}

impl KvPlan {
    /// The caches of these layers. `Unsupported` for an element type that the kernels do not have.
    pub fn new(layers: &[LayerPlan], kv_type: KvType) -> Result<KvPlan> {
        if kv_type == KvType::F32 {
            fail!(
                Unsupported,
                "a KV cache in f32 is not supported on a GPU; f16 and q8_0 are"
            );
        }
        let windows = layers.iter().filter_map(|l| l.attention.window);
        let window = windows.max().unwrap_or(0) as usize;
        // A prefill appends a whole chunk before its first position has looked back.
        let ring = match window {
            0 => 0,
            _ => (window + CHUNK).div_ceil(KV_TILE),
        };
        let (mut tile_bytes, mut ring_tile_bytes) = (0, 0);
        let mut layouts = Vec::new();
        for layer in layers {
            let a = &layer.attention;
            let dim = u64::from(a.head_dim);
            let row = match kv_type {
                KvType::Q8_0 => dim.next_multiple_of(32) + dim.div_ceil(32) * 2,
                _ => dim * 2,
            };
            let row_bytes = row.next_multiple_of(16);
            let tile = match a.window {
                Some(_) => &mut ring_tile_bytes,
                None => &mut tile_bytes,
            };
            layouts.push(KvLayout {
                tile_bytes: 0,
                layer_offset: *tile,
                row_bytes: row_bytes as u32,
                n_kv_heads: a.n_kv_heads,
                head_dim: a.head_dim,
                q8: u32::from(kv_type == KvType::Q8_0),
                ring: if a.window.is_some() { ring as u32 } else { 0 },
                window: a.window.unwrap_or(NO_WINDOW),
            });
            *tile += 2 * u64::from(a.n_kv_heads) * KV_TILE as u64 * row_bytes;
        }
        for layout in &mut layouts {
            layout.tile_bytes = if layout.ring > 0 {
                ring_tile_bytes
            } else {
                tile_bytes
            };
        }
        Ok(KvPlan {
            kv_type,
            layers: layouts,
            tile_bytes,
            ring_tile_bytes,
            ring,
            window,
        })
    }

    /// Bytes of the cache that grows and of the ring for that many positions.
    ///
    /// Errors: `OutOfMemory` where the number is beyond all memory.
    pub fn bytes(&self, positions: usize) -> Result<[usize; 2]> {
        let tiles = positions.div_ceil(KV_TILE);
        let bytes = |tiles: usize, tile: u64| usize::try_from(tile).ok()?.checked_mul(tiles);
        let both = (
            bytes(tiles, self.tile_bytes),
            bytes(tiles.min(self.ring), self.ring_tile_bytes),
        );
        match both {
            (Some(all), Some(ring)) => Ok([all, ring]),
            _ => fail!(
                OutOfMemory,
                "a context of {positions} positions does not fit the address space"
            ),
        }
    }

    /// Bytes that a position takes while it is in every cache.
    pub fn bytes_per_token(&self) -> u64 {
        (self.tile_bytes + self.ring_tile_bytes) / KV_TILE as u64
    }

    /// Whether a context of `len` positions can be gone on with, if `written` positions have been
    /// written: the ring must still have what the next one sees.
    pub fn keeps(&self, len: usize, written: usize) -> bool {
        let first = (len + 1).saturating_sub(self.window);
        len == 0 || self.ring == 0 || first + self.ring * KV_TILE >= written
    }
}
