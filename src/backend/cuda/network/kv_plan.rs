//! The plan of a session's state: the KV caches of its layers, one that grows with the context, of the layers that see all of it, and
//! a ring, of the layers with a window. Both consist of tiles of a few positions of all their layers.

use crate::backend::KvType;
use crate::backend::cuda::launch::args::{KvLayout, NO_WINDOW};
use crate::backend::cuda::launch::attention::KV_TILE;
use crate::backend::state::{WindowState, row_bytes};
use crate::error::{Result, fail};
use crate::model::KvShape;

/// Most positions that a prefill evaluates at a time.
pub const CHUNK: usize = 2048;
/// Positions that a prefill appends to a ring at a time, which has room for them beside the window.
const RING_CHUNK: usize = 512;

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
    /// What the layers keep.
    shapes: Vec<KvShape>,
}

impl KvPlan {
    /// The caches of these layers. `Unsupported` for an element type that the kernels do not have.
    pub fn new(layers: &[KvShape], kv_type: KvType) -> Result<KvPlan> {
        if kv_type == KvType::F32 {
            fail!(
                Unsupported,
                "a KV cache in f32 is not supported on a GPU; f16 and q8_0 are"
            );
        }
        let windows = layers.iter().filter_map(|l| l.window);
        let window = windows.max().unwrap_or(0);
        // All of a chunk are appended before the first of them looks back.
        let ring = match window {
            0 => 0,
            _ => (window + ring_chunk(layers)).div_ceil(KV_TILE),
        };
        let (mut tile_bytes, mut ring_tile_bytes) = (0, 0);
        let mut layouts = Vec::new();
        for layer in layers {
            let row_bytes = row_bytes(kv_type, layer.head_dim) as u64;
            let tile = match layer.window {
                Some(_) => &mut ring_tile_bytes,
                None => &mut tile_bytes,
            };
            layouts.push(KvLayout {
                tile_bytes: 0,
                layer_offset: *tile,
                row_bytes: row_bytes as u32,
                n_kv_heads: layer.n_kv_heads as u32,
                head_dim: layer.head_dim as u32,
                q8: u32::from(kv_type == KvType::Q8_0),
                ring: if layer.window.is_some() {
                    ring as u32
                } else {
                    0
                },
                window: layer.window.map_or(NO_WINDOW, |w| w as u32),
            });
            *tile += 2 * layer.n_kv_heads as u64 * KV_TILE as u64 * row_bytes;
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
            shapes: layers.to_vec(),
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

    /// Bytes that a further position takes, in layers without a window.
    pub fn bytes_per_token(&self) -> u64 {
        self.tile_bytes / KV_TILE as u64
    }

    /// Bytes of both caches for that many positions.
    pub fn all_bytes(&self, positions: usize) -> u64 {
        let both = self.bytes(positions);
        both.map_or(u64::MAX, |[all, ring]| all as u64 + ring as u64)
    }

    /// Positions that a prefill may append to a ring at a time.
    pub fn ring_chunk(&self) -> usize {
        ring_chunk(&self.shapes)
    }

    /// What the layers keep of a position.
    pub fn shapes(&self) -> &[KvShape] {
        &self.shapes
    }

    /// Bytes of a tile of the cache that grows, and of the ring.
    pub fn tile_bytes(&self) -> [usize; 2] {
        [self.tile_bytes as usize, self.ring_tile_bytes as usize]
    }

    /// Where a tile lies in the ring.
    pub fn ring_place(&self, tile: usize) -> usize {
        match self.ring {
            0 => 0,
            ring => tile % ring,
        }
    }

    /// What layers with windows hold of an empty session, ascending by window.
    pub fn windows(&self) -> Vec<WindowState> {
        WindowState::of(&self.shapes)
    }

    /// The first position that the ring holds when those below `end` have been written.
    pub fn oldest(&self, end: usize) -> usize {
        match self.ring {
            0 => 0,
            ring => end.div_ceil(KV_TILE).saturating_sub(ring) * KV_TILE,
        }
    }
}

/// Positions that a prefill may append to the ring of these layers at a time: all of its chunk where a
/// layer with a window keeps nothing of its own, because it reads what an earlier one has appended.
fn ring_chunk(layers: &[KvShape]) -> usize {
    let reads_another = |l: &KvShape| l.n_kv_heads == 0 && l.window.is_some();
    match layers.iter().any(reads_another) {
        true => CHUNK,
        false => RING_CHUNK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(windows: &[Option<usize>]) -> KvPlan {
        let shape = |window: &Option<usize>| KvShape {
            n_kv_heads: 2,
            head_dim: 20,
            window: *window,
        };
        let layers: Vec<KvShape> = windows.iter().map(shape).collect();
        KvPlan::new(&layers, KvType::F16).unwrap()
    }

    #[test]
    fn layers_with_a_window_hold_no_more_than_that_and_a_chunk() {
        let kv = plan(&[None, Some(512), None, Some(100)]);
        let row = 48;
        assert_eq!(kv.bytes_per_token(), 2 * 2 * 2 * row);
        let of_two_layers = |positions: u64| (positions * 2 * 2 * 2 * row) as usize;
        assert_eq!(kv.bytes(1).unwrap(), [of_two_layers(64); 2]);
        let [all, ring] = kv.bytes(1 << 20).unwrap();
        assert_eq!(all, of_two_layers(1 << 20));
        assert_eq!(ring, of_two_layers(512 + RING_CHUNK as u64));
        assert_eq!(kv.layers[3].layer_offset, kv.layers[2].layer_offset);
        assert_eq!(kv.layers[3].tile_bytes, 64 * 2 * 2 * 2 * row);
        assert_eq!(kv.all_bytes(1 << 20), (all + ring) as u64);
        assert!(kv.bytes(usize::MAX).is_err());
    }

    #[test]
    fn a_ring_that_another_layer_reads_has_room_for_a_whole_chunk() {
        let own = KvShape {
            n_kv_heads: 2,
            head_dim: 20,
            window: Some(100),
        };
        let reads = KvShape {
            n_kv_heads: 0,
            ..own
        };
        let kv = KvPlan::new(&[own, reads], KvType::F16).unwrap();
        assert_eq!(kv.ring_chunk(), CHUNK);
        assert_eq!(kv.layers[0].ring as usize, (100 + CHUNK).div_ceil(KV_TILE));
        assert_eq!(plan(&[Some(100), None]).ring_chunk(), RING_CHUNK);
    }

    #[test]
    fn a_ring_keeps_what_the_next_position_sees() {
        let kv = plan(&[Some(512), None]);
        let ring = 512 + RING_CHUNK;
        let keeps = |len: usize, written: usize| {
            let [mut state] = kv.windows()[..] else {
                panic!("one window")
            };
            state.from = kv.oldest(written);
            state.keeps(len)
        };
        assert!(keeps(ring, ring) && keeps(1, ring) && keeps(0, 10 * ring));
        // Position `len` sees from `len - 511` on; `ring` positions before `written` are there.
        let written = 3 * ring;
        let least = written - ring + 511;
        assert!(keeps(least, written) && !keeps(least - 1, written));
        // The tile that is written now counts as a whole.
        assert!(!keeps(least, written + 1) && keeps(least + 64, written + 1));
        assert!(plan(&[None]).windows().is_empty());
    }
}
