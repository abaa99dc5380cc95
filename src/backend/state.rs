//! A session's state in a form of no device.
//!
//! The stream of a state is, in this order: the logits of the last position as `f32`, if they are
//! at hand; the keys and values of the layers that keep all positions; those of the layers with a
//! window; the states of fixed size of the layers that have one, first to last, as `f32`
//! ([`FixedShape`](crate::model::FixedShape)), unless there are no positions. Keys and values are sequences of blocks of [`BLOCK`] positions. A block holds, for each of
//! those layers, first to last, that still holds a position of the block: keys
//! `[kv head][BLOCK][row]`, then values likewise. A row is one head's vector ([`row_bytes`]), little
//! endian. Rows of positions that the state does not hold are zero.

use super::KvType;
use crate::error::{Result, fail};
use crate::model::KvShape;
use std::ops::Range;

/// Positions in a block of a stream.
pub const BLOCK: usize = 64;

/// Bytes of a head's key or value of one position: its elements, padded with zeros to a multiple
/// of 16. In q8_0, the values come first, padded to whole groups of 32, then a scale for each group in
/// half precision.
pub fn row_bytes(kv_type: KvType, head_dim: usize) -> usize {
    let bytes = match kv_type {
        KvType::F16 => head_dim * 2,
        KvType::F32 => head_dim * 4,
        KvType::Q8_0 => head_dim.next_multiple_of(32) + head_dim.div_ceil(32) * 2,
    };
    bytes.next_multiple_of(16)
}

/// A place in a session's life that its state can go back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(usize);

impl Mark {
    /// The empty state, to which every state can go back.
    pub const EMPTY: Mark = Mark(0);

    /// The state of the first `position` positions. Only the backend that keeps it makes one.
    pub(super) fn at(position: usize) -> Mark {
        Mark(position)
    }

    /// A mark of a backend that exists in tests only.
    #[cfg(test)]
    pub(crate) fn for_tests(position: usize) -> Mark {
        Mark(position)
    }

    /// Positions in the state.
    pub fn position(self) -> usize {
        self.0
    }
}

/// What a state has in its stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateInfo {
    /// Element type of keys and values.
    pub kv_type: KvType,
    /// Positions in the state.
    pub len: usize,
    /// Whether the logits of the last position are part of it.
    pub has_logits: bool,
    /// Of each different window of the layers, ascending.
    pub windows: Vec<WindowState>,
}

/// What layers with a window hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowState {
    /// The window.
    pub window: usize,
    /// The first position that these layers hold, a multiple of [`BLOCK`]; they hold all from it on.
    pub from: usize,
}

impl WindowState {
    /// The states of the different windows of `layers`, of an empty session.
    pub fn of(layers: &[KvShape]) -> Vec<WindowState> {
        let mut windows: Vec<usize> = layers.iter().filter_map(|l| l.window).collect();
        windows.sort_unstable();
        windows.dedup();
        let empty = |window| WindowState { window, from: 0 };
        windows.into_iter().map(empty).collect()
    }

    /// Whether these layers hold all that a token behind the first `len` positions sees.
    pub fn keeps(&self, len: usize) -> bool {
        let first = (len + 1).saturating_sub(self.window);
        len == 0 || first >= self.from.min(len)
    }
}

/// Whether layers with these windows hold all that a token behind the first `len` positions sees.
pub fn keeps(windows: &[WindowState], len: usize) -> bool {
    windows.iter().all(|w| w.keeps(len))
}

/// The first position that layers with a window, or without one, hold.
pub fn held_from(windows: &[WindowState], window: Option<usize>) -> usize {
    let of_layer = windows.iter().find(|w| Some(w.window) == window);
    of_layer.map_or(0, |w| w.from)
}

/// Where a state's stream goes.
pub trait StateSink {
    /// Called once, before anything is written: what the stream will hold.
    fn begin(&mut self, info: &StateInfo) -> Result<()>;

    /// Takes the next bytes of the stream.
    fn write(&mut self, bytes: &[u8]) -> Result<()>;
}

/// Where a state's stream comes from.
pub trait StateSource {
    /// Fills `bytes` with the next bytes of the stream.
    fn read(&mut self, bytes: &mut [u8]) -> Result<()>;
}

/// The keys, or the values, of one layer in one block of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plane {
    /// Index of the layer.
    pub layer: usize,
    /// Index of the block.
    pub block: usize,
    /// Values, not keys.
    pub is_value: bool,
}

/// Where everything is in a stream.
pub struct StateLayout<'a> {
    layers: &'a [KvShape],
    info: &'a StateInfo,
    n_vocab: usize,
    /// Floats of all states of fixed size.
    fixed_len: usize,
}

impl<'a> StateLayout<'a> {
    /// The layout for a network with these layers.
    ///
    /// Errors: `FileCorrupt` if the windows are not those of the layers or hold what is not there.
    pub fn new(
        layers: &'a [KvShape],
        info: &'a StateInfo,
        n_vocab: usize,
    ) -> Result<StateLayout<'a>> {
        let expected = WindowState::of(layers);
        let same = info.windows.len() == expected.len()
            && info
                .windows
                .iter()
                .zip(&expected)
                .all(|(a, b)| a.window == b.window);
        if !same {
            fail!(
                FileCorrupt,
                "the state has other windows than the model's layers"
            );
        }
        let fits = |w: &WindowState| {
            w.from.is_multiple_of(BLOCK) && (w.from == 0 || w.from < info.len) && w.keeps(info.len)
        };
        if let Some(w) = info.windows.iter().find(|w| !fits(w)) {
            fail!(
                FileCorrupt,
                "layers with a window of {} hold positions from {} on, of {}",
                w.window,
                w.from,
                info.len
            );
        }
        Ok(StateLayout {
            layers,
            info,
            n_vocab,
            fixed_len: 0,
        })
    }

    /// The same for a network whose layers keep so many floats of fixed size, together.
    pub fn with_fixed(self, fixed_len: usize) -> StateLayout<'a> {
        StateLayout { fixed_len, ..self }
    }

    /// Bytes of the states of fixed size in the stream.
    pub fn fixed_bytes(&self) -> usize {
        match self.info.len {
            0 => 0,
            _ => self.fixed_len * size_of::<f32>(),
        }
    }

    /// What a layer keeps of a position.
    pub fn shape(&self, layer: usize) -> &KvShape {
        &self.layers[layer]
    }

    /// Blocks that the state reaches into.
    pub fn blocks(&self) -> usize {
        self.info.len.div_ceil(BLOCK)
    }

    /// Bytes of the logits in the stream.
    pub fn logits_bytes(&self) -> usize {
        match self.info.has_logits {
            true => self.n_vocab * size_of::<f32>(),
            false => 0,
        }
    }

    /// Bytes of keys, or of values, of a layer in a block.
    pub fn plane_bytes(&self, layer: usize) -> usize {
        let shape = &self.layers[layer];
        shape.n_kv_heads * BLOCK * row_bytes(self.info.kv_type, shape.head_dim)
    }

    /// The first position that a layer holds.
    pub fn from(&self, layer: usize) -> usize {
        let Some(window) = self.layers[layer].window else {
            return 0;
        };
        let of_window = self.info.windows.iter().find(|w| w.window == window);
        of_window.map_or(0, |w| w.from)
    }

    /// Positions of a block that a layer holds, counted from the block's first.
    pub fn rows(&self, layer: usize, block: usize) -> Range<usize> {
        let first = block * BLOCK;
        let start = self.from(layer).clamp(first, first + BLOCK) - first;
        let end = self.info.len.clamp(first, first + BLOCK) - first;
        start.min(end)..end
    }

    /// The planes of the stream, in order; `windowed` says which half.
    pub fn planes(&self, windowed: bool) -> impl Iterator<Item = Plane> + '_ {
        (0..self.blocks()).flat_map(move |block| self.planes_of(windowed, block))
    }

    /// Those of one block.
    pub fn planes_of(&self, windowed: bool, block: usize) -> impl Iterator<Item = Plane> + '_ {
        let here = (0..self.layers.len()).filter(move |layer| {
            let shape = &self.layers[*layer];
            let keeps = shape.n_kv_heads > 0 && !self.rows(*layer, block).is_empty();
            keeps && shape.window.is_some() == windowed
        });
        here.flat_map(move |layer| {
            [false, true].map(|is_value| Plane {
                layer,
                block,
                is_value,
            })
        })
    }

    /// Bytes of the whole stream. `None` if that is beyond all memory.
    pub fn bytes(&self) -> Option<u64> {
        let mut total = (self.logits_bytes() as u64).checked_add(self.fixed_bytes() as u64)?;
        for layer in 0..self.layers.len() {
            let blocks = self.blocks() - (self.from(layer) / BLOCK).min(self.blocks());
            let bytes = (2 * self.plane_bytes(layer) as u64).checked_mul(blocks as u64)?;
            total = total.checked_add(bytes)?;
        }
        Some(total)
    }

    /// Zeroes the rows of a plane that the state does not hold.
    pub fn clear_outside(&self, plane: Plane, bytes: &mut [u8]) {
        let shape = &self.layers[plane.layer];
        let row = row_bytes(self.info.kv_type, shape.head_dim);
        let held = self.rows(plane.layer, plane.block);
        if held == (0..BLOCK) {
            return;
        }
        for head in bytes.chunks_exact_mut(BLOCK * row) {
            head[..held.start * row].fill(0);
            head[held.end * row..].fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: [KvShape; 3] = [
        KvShape {
            n_kv_heads: 2,
            head_dim: 20,
            window: None,
        },
        KvShape {
            n_kv_heads: 1,
            head_dim: 8,
            window: Some(100),
        },
        KvShape {
            n_kv_heads: 1,
            head_dim: 8,
            window: Some(30),
        },
    ];

    fn info(len: usize, from: [usize; 2]) -> StateInfo {
        let mut windows = WindowState::of(&LAYERS);
        windows[0].from = from[0];
        windows[1].from = from[1];
        StateInfo {
            kv_type: KvType::F16,
            len,
            has_logits: true,
            windows,
        }
    }

    #[test]
    fn a_stream_has_every_held_row_once() {
        let info = info(200, [128, 64]);
        let layout = StateLayout::new(&LAYERS, &info, 10).unwrap();
        let planes: Vec<Plane> = [false, true]
            .into_iter()
            .flat_map(|w| layout.planes(w).collect::<Vec<_>>())
            .collect();
        let bytes: usize = planes.iter().map(|p| layout.plane_bytes(p.layer)).sum();
        assert_eq!(layout.bytes(), Some(bytes as u64 + 40));
        for (layer, from) in [(0, 0), (1, 64), (2, 128)] {
            let of_layer = planes.iter().filter(|p| p.layer == layer && !p.is_value);
            let held: usize = of_layer.map(|p| layout.rows(layer, p.block).len()).sum();
            assert_eq!(held, 200 - from, "layer {layer}");
        }
        // Layers without a window come first.
        let windowed: Vec<bool> = planes.iter().map(|p| p.layer > 0).collect();
        assert!(windowed.is_sorted());
    }

    #[test]
    fn rows_outside_become_zero() {
        let info = info(70, [0, 0]);
        let layout = StateLayout::new(&LAYERS, &info, 10).unwrap();
        let mut bytes = vec![1u8; layout.plane_bytes(0)];
        let plane = Plane {
            layer: 0,
            block: 1,
            is_value: false,
        };
        layout.clear_outside(plane, &mut bytes);
        // 20 elements of 2 bytes, padded to 48.
        for head in bytes.chunks(64 * 48) {
            assert!(head[..6 * 48].iter().all(|b| *b == 1));
            assert!(head[6 * 48..].iter().all(|b| *b == 0));
        }
    }

    #[test]
    fn impossible_windows_are_refused() {
        for (len, from) in [(200, [63, 0]), (200, [256, 0]), (100, [0, 64])] {
            let info = info(len, from);
            assert!(StateLayout::new(&LAYERS, &info, 1).is_err(), "{from:?}");
        }
        let mut other = info(10, [0, 0]);
        other.windows[0].window = 31;
        assert!(StateLayout::new(&LAYERS, &other, 1).is_err());
    }
}
