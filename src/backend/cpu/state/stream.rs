//! A cache to a stream of no device ([`crate::backend::state`]), and back.

use super::kv::{Element, Half, Head, KvCache, SEGMENT};
use crate::backend::KvType;
use crate::backend::state::{
    BLOCK, Plane, StateLayout, StateSink, StateSource, held_from, row_bytes,
};
use crate::error::{Result, try_vec};
use crate::model::KvShape;

/// An element as it lies in a stream.
trait Stored: Element {
    /// Its bytes to the front of `to`.
    fn put(self, to: &mut [u8]);
    /// An element from the front of `from`.
    fn get(from: &[u8]) -> Self;
}

impl Stored for Half {
    fn put(self, to: &mut [u8]) {
        to[..2].copy_from_slice(&self.0.to_le_bytes());
    }
    fn get(from: &[u8]) -> Half {
        Half(u16::from_le_bytes([from[0], from[1]]))
    }
}

impl Stored for f32 {
    fn put(self, to: &mut [u8]) {
        to[..4].copy_from_slice(&self.to_le_bytes());
    }
    fn get(from: &[u8]) -> f32 {
        f32::from_le_bytes([from[0], from[1], from[2], from[3]])
    }
}

/// Where element `d` of a position lies: in keys or values of its segment.
fn element<E: Element>(head: &Head<'_, E>, plane: Plane, row: usize, d: usize) -> *mut E {
    let position = plane.block * BLOCK + row;
    let (segment, at) = (position / SEGMENT, position % SEGMENT);
    if plane.is_value {
        head.values(segment)
            .wrapping_add(at * head.value_stride() + d)
    } else {
        let tile = (at / 16) * head.head_dim * 16 + at % 16;
        head.keys(segment).wrapping_add(tile + d * 16)
    }
}

fn save_plane<E: Stored>(
    cache: &KvCache,
    layout: &StateLayout,
    plane: Plane,
    shape: &KvShape,
    bytes: &mut [u8],
) {
    let row_len = row_bytes(cache.kv_type(), shape.head_dim);
    bytes.fill(0);
    for h in 0..shape.n_kv_heads {
        let head = cache.head::<E>(plane.layer, h);
        for row in layout.rows(plane.layer, plane.block) {
            let out = &mut bytes[(h * BLOCK + row) * row_len..][..row_len];
            for (d, to) in out
                .chunks_mut(size_of::<E>())
                .take(shape.head_dim)
                .enumerate()
            {
                // SAFETY: inside the blocks of an existing segment; nobody writes the cache.
                unsafe { element(&head, plane, row, d).read() }.put(to);
            }
        }
    }
}

fn load_plane<E: Stored>(
    cache: &KvCache,
    layout: &StateLayout,
    plane: Plane,
    shape: &KvShape,
    bytes: &[u8],
) {
    let row_len = row_bytes(cache.kv_type(), shape.head_dim);
    for h in 0..shape.n_kv_heads {
        let head = cache.head::<E>(plane.layer, h);
        for row in layout.rows(plane.layer, plane.block) {
            let from = &bytes[(h * BLOCK + row) * row_len..][..row_len];
            for (d, from) in from.chunks(size_of::<E>()).take(shape.head_dim).enumerate() {
                // SAFETY: inside the blocks of an existing segment, which is the cache's own; the
                // caller has the cache for itself.
                unsafe { element(&head, plane, row, d).write(E::get(from)) };
            }
            if plane.is_value {
                for d in shape.head_dim..head.value_stride() {
                    // SAFETY: as above.
                    unsafe { element(&head, plane, row, d).write(E::ZERO) };
                }
            }
        }
    }
}

/// Memory for the largest plane.
fn plane_buffer(layout: &StateLayout, layers: &[KvShape]) -> Result<Vec<u8>> {
    let bytes = (0..layers.len()).map(|l| layout.plane_bytes(l)).max();
    try_vec(bytes.unwrap_or(0), 0u8, "a part of a saved state")
}

impl KvCache {
    /// Writes the keys and values to a stream.
    pub fn save(
        &self,
        layout: &StateLayout,
        layers: &[KvShape],
        sink: &mut dyn StateSink,
    ) -> Result<()> {
        let mut buffer = plane_buffer(layout, layers)?;
        for windowed in [false, true] {
            for plane in layout.planes(windowed) {
                let bytes = &mut buffer[..layout.plane_bytes(plane.layer)];
                let shape = &layers[plane.layer];
                match self.kv_type() {
                    KvType::F16 => save_plane::<Half>(self, layout, plane, shape, bytes),
                    // q8_0 is refused when a session is made.
                    KvType::F32 | KvType::Q8_0 => {
                        save_plane::<f32>(self, layout, plane, shape, bytes)
                    }
                }
                sink.write(bytes)?;
            }
        }
        if layout.fixed_bytes() > 0 {
            self.fixed.save(sink)?;
        }
        Ok(())
    }

    /// Reads the keys and values from a stream. Positions that are older than what the rings have
    /// room for are left out. The positions are prepared.
    pub fn load(
        &mut self,
        layout: &StateLayout,
        layers: &[KvShape],
        source: &mut dyn StateSource,
    ) -> Result<()> {
        let mut buffer = plane_buffer(layout, layers)?;
        for windowed in [false, true] {
            for plane in layout.planes(windowed) {
                let bytes = &mut buffer[..layout.plane_bytes(plane.layer)];
                source.read(bytes)?;
                let shape = &layers[plane.layer];
                if plane.block * BLOCK < held_from(self.windows(), shape.window) {
                    continue;
                }
                match self.kv_type() {
                    KvType::F16 => load_plane::<Half>(self, layout, plane, shape, bytes),
                    KvType::F32 | KvType::Q8_0 => {
                        load_plane::<f32>(self, layout, plane, shape, bytes)
                    }
                }
            }
        }
        if layout.fixed_bytes() > 0 {
            self.fixed.load(source)?;
        }
        Ok(())
    }
}
