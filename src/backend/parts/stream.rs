//! The stream of a state ([`crate::backend::state`]) from those of the parts, and back. It is the one that a single device
//! writes: the parts' planes by blocks, so each part's own stream is held in memory meanwhile.

use super::core::Core;
use crate::backend::state::{Plane, StateLayout, WindowState, held_from};
use crate::backend::{StateInfo, StateSink, StateSource, Weights};
use crate::error::{Result, fail};
use crate::memory::Pages;

/// The stream of a part.
pub(super) struct Stored {
    pub info: StateInfo,
    memory: Pages,
    /// Bytes that were written, or read.
    at: usize,
}

impl Stored {
    /// Room for the stream of a state of a part.
    pub fn new(weights: &dyn Weights, info: StateInfo, n_vocab: usize) -> Result<Stored> {
        let layout = StateLayout::new(weights.kv_layers(), &info, n_vocab)?;
        let bytes = layout.with_fixed(weights.fixed_len()).bytes();
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.unwrap_or(usize::MAX);
        Ok(Stored {
            memory: Pages::new(bytes.max(1), "host memory for the state of a part")?,
            info,
            at: 0,
        })
    }

    /// The next bytes.
    pub fn next(&mut self, bytes: usize) -> Result<&mut [u8]> {
        let from = self.at;
        self.at += bytes;
        match self.memory.bytes_mut().get_mut(from..self.at) {
            Some(bytes) => Ok(bytes),
            None => fail!(
                Internal,
                "the state of a part that is longer than its layout"
            ),
        }
    }
}

impl Stored {
    /// Those before the next ones.
    pub fn bytes(&self) -> &[u8] {
        &self.memory.bytes()[..self.at]
    }
}

/// Takes the stream of a part in.
struct Sink<'a> {
    weights: &'a dyn Weights,
    n_vocab: usize,
    stored: Option<Stored>,
}

impl<'a> Sink<'a> {
    pub fn new(weights: &'a dyn Weights, n_vocab: usize) -> Sink<'a> {
        Sink {
            weights,
            n_vocab,
            stored: None,
        }
    }

    /// What it has taken, from the beginning on.
    pub fn stored(self) -> Result<Stored> {
        match self.stored {
            Some(stored) => Ok(Stored { at: 0, ..stored }),
            None => fail!(Internal, "a saved state without a beginning"),
        }
    }
}

impl StateSink for Sink<'_> {
    fn begin(&mut self, info: &StateInfo) -> Result<()> {
        self.stored = Some(Stored::new(self.weights, info.clone(), self.n_vocab)?);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(stored) = &mut self.stored else {
            fail!(Internal, "a saved state without a beginning");
        };
        stored.next(bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }
}

/// The layers of the parts, one behind the other.
struct Places {
    /// The first layer of each part, and behind them the number of all.
    firsts: Vec<usize>,
}

impl Places {
    fn of(parts: &[std::sync::Arc<dyn Weights>]) -> Places {
        let mut firsts = vec![0];
        for part in parts {
            let last = firsts[firsts.len() - 1];
            firsts.push(last + part.kv_layers().len());
        }
        Places { firsts }
    }

    /// The part of a plane, and the plane there.
    fn of_plane(&self, plane: Plane) -> (usize, Plane) {
        let part = self.firsts.partition_point(|first| *first <= plane.layer) - 1;
        let layer = plane.layer - self.firsts[part];
        (part, Plane { layer, ..plane })
    }
}

/// What the whole state has, of what the parts have.
fn whole(stored: &[Stored], weights: &dyn Weights) -> Result<StateInfo> {
    let Some(last) = stored.last() else {
        fail!(Internal, "a network of no parts");
    };
    let mut windows = WindowState::of(weights.kv_layers());
    for window in &mut windows {
        let froms = stored
            .iter()
            .map(|s| held_from(&s.info.windows, Some(window.window)));
        window.from = froms.max().unwrap_or(0);
    }
    Ok(StateInfo {
        windows,
        ..last.info.clone()
    })
}

/// The streams of all parts.
pub(super) fn stored(core: &mut Core) -> Result<Vec<Stored>> {
    let n_vocab = core.weights.n_vocab();
    let parts = core.parts.iter_mut().zip(core.weights.parts());
    let one = parts.map(|(part, weights)| {
        let mut sink = Sink::new(&**weights, n_vocab);
        part.save(&mut sink)?;
        sink.stored()
    });
    one.collect()
}

/// Has all parts take their streams over.
pub(super) fn restore(core: &mut Core, stored: &[Stored], tokens: &[u32]) -> Result<()> {
    for (part, of_part) in core.parts.iter_mut().zip(stored) {
        let mut bytes = of_part.bytes();
        part.load(&of_part.info, tokens, &mut bytes)?;
    }
    Ok(())
}

/// Writes the state to a stream.
pub(super) fn save(core: &mut Core, sink: &mut dyn StateSink) -> Result<()> {
    let weights = core.weights.clone();
    let n_vocab = weights.n_vocab();
    let mut stored = stored(core)?;
    let info = whole(&stored, &*weights)?;
    sink.begin(&info)?;
    let layers = weights.kv_layers();
    let layout = StateLayout::new(layers, &info, n_vocab)?;
    if let Some(last) = stored.last_mut() {
        sink.write(last.next(layout.logits_bytes())?)?;
    }
    let places = Places::of(weights.parts());
    for windowed in [false, true] {
        // A part may hold blocks that another has lost.
        let mut planes = Vec::new();
        for (of_part, weights) in stored.iter().zip(weights.parts()) {
            let layout = StateLayout::new(weights.kv_layers(), &of_part.info, n_vocab)?;
            planes.push(layout.planes(windowed).collect::<Vec<_>>().into_iter());
        }
        for plane in layout.planes(windowed) {
            let (part, local) = places.of_plane(plane);
            let bytes = layout.plane_bytes(plane.layer);
            loop {
                let Some(next) = planes[part].next() else {
                    fail!(Internal, "a part has no {local:?}");
                };
                let shape = &weights.parts()[part];
                let of_part = StateLayout::new(shape.kv_layers(), &stored[part].info, n_vocab)?;
                let own = of_part.plane_bytes(next.layer);
                if next == local {
                    break;
                }
                stored[part].next(own)?;
            }
            sink.write(stored[part].next(bytes)?)?;
        }
    }
    for (of_part, weights) in stored.iter_mut().zip(weights.parts()) {
        let layout = StateLayout::new(weights.kv_layers(), &of_part.info, n_vocab)?;
        let bytes = layout.with_fixed(weights.fixed_len()).fixed_bytes();
        if bytes > 0 {
            sink.write(of_part.next(bytes)?)?;
        }
    }
    Ok(())
}

/// Takes the state over from a stream, in place of the empty one that the parts have.
pub(super) fn load(
    core: &mut Core,
    info: &StateInfo,
    tokens: &[u32],
    source: &mut dyn StateSource,
) -> Result<()> {
    let weights = core.weights.clone();
    let n_vocab = weights.n_vocab();
    let layout = StateLayout::new(weights.kv_layers(), info, n_vocab)?;
    let n_parts = weights.parts().len();
    let mut stored = Vec::new();
    for (i, weights) in weights.parts().iter().enumerate() {
        let mut windows = WindowState::of(weights.kv_layers());
        for window in &mut windows {
            window.from = held_from(&info.windows, Some(window.window));
        }
        let of_part = StateInfo {
            windows,
            has_logits: info.has_logits && i + 1 == n_parts,
            ..info.clone()
        };
        stored.push(Stored::new(&**weights, of_part, n_vocab)?);
    }
    if let Some(last) = stored.last_mut() {
        source.read(last.next(layout.logits_bytes())?)?;
    }
    let places = Places::of(weights.parts());
    for windowed in [false, true] {
        for plane in layout.planes(windowed) {
            let (part, _) = places.of_plane(plane);
            source.read(stored[part].next(layout.plane_bytes(plane.layer))?)?;
        }
    }
    for (of_part, weights) in stored.iter_mut().zip(weights.parts()) {
        let layout = StateLayout::new(weights.kv_layers(), &of_part.info, n_vocab)?;
        let bytes = layout.with_fixed(weights.fixed_len()).fixed_bytes();
        source.read(of_part.next(bytes)?)?;
    }
    restore(core, &stored, tokens)
}
