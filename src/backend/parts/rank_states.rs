//! The stream of a state ([`crate::backend::state`]) from those of ranks, and back. It is the one that a single device writes: of each
//! layer, the heads of all ranks.

use super::core::Core;
use super::stream::{self, Stored};
use super::weights::PartsWeights;
use crate::backend::state::StateLayout;
use crate::backend::{StateInfo, StateSink, StateSource, Weights};
use crate::error::{Result, fail, try_vec};
use crate::model::{FixedCut, FixedShape, KvShape, Network, Pieces, Rank};

/// Bytes of a number of a state of fixed size.
const NUMBER: usize = size_of::<f32>();

/// The state of fixed size of a layer, of which each rank has some.
pub(super) struct FixedLayer {
    /// Of the whole.
    shape: FixedShape,
    /// By rank.
    cuts: Vec<FixedCut>,
}

impl FixedLayer {
    /// Of the layers of a network that have one, among so many ranks.
    pub fn of(network: &Network, count: usize) -> Result<Vec<FixedLayer>> {
        let cuts = (0..count).map(|index| network.fixed_cuts(Rank { index, count }));
        let cuts = cuts.collect::<Result<Vec<_>>>()?;
        let layers = network.blocks.iter().enumerate();
        let layers = layers.filter_map(|(i, block)| {
            let state = block.mixer.state(network.context_length);
            let cuts: Option<Vec<FixedCut>> =
                cuts.iter().map(|of_rank| of_rank[i].clone()).collect();
            let (shape, cuts) = state.fixed().zip(cuts)?;
            Some(FixedLayer { shape, cuts })
        });
        Ok(layers.collect())
    }

    /// Numbers of the whole.
    pub fn len(&self) -> usize {
        self.shape.len()
    }

    /// Bytes of the whole, and those of a rank.
    fn bytes(&self) -> usize {
        self.len() * NUMBER
    }

    fn bytes_of(&self, rank: usize) -> usize {
        let (shape, cut) = (&self.shape, &self.cuts[rank]);
        let convolution = shape.conv_columns * cut.channels.len();
        (convolution + cut.heads.len() * shape.rows * shape.columns) * NUMBER
    }

    /// Has `copy` copy all that a rank has: it gets what, how many bytes each of that has, and where all of it begins in the whole and
    /// in the rank's.
    fn each(&self, rank: usize, mut copy: impl FnMut(&Pieces, usize, [usize; 2])) {
        let (shape, cut) = (&self.shape, &self.cuts[rank]);
        let columns = [shape.conv_channels, cut.channels.len()].map(|channels| channels * NUMBER);
        for column in 0..shape.conv_columns {
            copy(&cut.channels, NUMBER, columns.map(|bytes| column * bytes));
        }
        let head = shape.rows * shape.columns * NUMBER;
        copy(
            &cut.heads,
            head,
            columns.map(|bytes| shape.conv_columns * bytes),
        );
    }

    /// Copies what a rank has to the whole.
    fn put(&self, rank: usize, from: &[u8], whole: &mut [u8]) {
        self.each(rank, |pieces, each, [at, own]| {
            pieces.put(each, &from[own..], &mut whole[at..]);
        });
    }

    /// Copies what a rank has from the whole.
    fn take(&self, rank: usize, whole: &[u8], to: &mut [u8]) {
        self.each(rank, |pieces, each, [at, own]| {
            pieces.take(each, &whole[at..], &mut to[own..]);
        });
    }
}

/// Bytes of a plane of a rank's layer.
fn plane_bytes(
    weights: &PartsWeights,
    rank: usize,
    info: &StateInfo,
    layer: usize,
) -> Result<usize> {
    let of_rank = weights.parts()[rank].kv_layers();
    Ok(StateLayout::new(of_rank, info, weights.n_vocab())?.plane_bytes(layer))
}

/// How many ranks have the same heads of keys in a layer.
fn alike(weights: &PartsWeights, layer: usize) -> usize {
    let heads = |layers: &[KvShape]| layers.get(layer).map_or(0, |shape| shape.n_kv_heads);
    let all: usize = weights
        .parts()
        .iter()
        .map(|part| heads(part.kv_layers()))
        .sum();
    (all / heads(weights.kv_layers()).max(1)).max(1)
}

/// `Unsupported` where other processes have most of a state.
fn check_states(weights: &PartsWeights) -> Result<()> {
    if weights.are_apart() {
        fail!(
            Unsupported,
            "sessions of a model whose other parts are in a group are not saved, restored or evicted"
        );
    }
    Ok(())
}

/// What memory is for that a layer's state comes together in.
const WHOLE: &str = "a part of a saved state";

/// Writes the state to a stream.
pub(super) fn save(core: &mut Core, sink: &mut dyn StateSink) -> Result<()> {
    let weights = core.weights.clone();
    check_states(&weights)?;
    let n_vocab = weights.n_vocab();
    let mut stored = stream::stored(core)?;
    let Some(first) = stored.first_mut() else {
        fail!(Internal, "a network of no ranks");
    };
    let info = first.info.clone();
    sink.begin(&info)?;
    let layout = StateLayout::new(weights.kv_layers(), &info, n_vocab)?;
    sink.write(first.next(layout.logits_bytes())?)?;
    // Of the others, they are nothing.
    for (other, weights) in stored.iter_mut().zip(weights.parts()).skip(1) {
        let info = other.info.clone();
        let of_rank = StateLayout::new(weights.kv_layers(), &info, n_vocab)?;
        other.next(of_rank.logits_bytes())?;
    }
    for windowed in [false, true] {
        for plane in layout.planes(windowed) {
            let mut written = 0;
            for (rank, of_rank) in stored.iter_mut().enumerate() {
                let bytes = of_rank.next(plane_bytes(&weights, rank, &info, plane.layer)?)?;
                // Several ranks may have the same heads, one behind the other.
                if rank.is_multiple_of(alike(&weights, plane.layer)) {
                    sink.write(bytes)?;
                    written += bytes.len();
                }
            }
            if written != layout.plane_bytes(plane.layer) {
                fail!(Internal, "{written} bytes of {plane:?}");
            }
        }
    }
    if info.len == 0 {
        return Ok(());
    }
    for layer in weights.fixed_layers() {
        let mut whole = try_vec(layer.bytes(), 0u8, WHOLE)?;
        for (rank, of_rank) in stored.iter_mut().enumerate() {
            // What several ranks have is the same.
            layer.put(rank, of_rank.next(layer.bytes_of(rank))?, &mut whole);
        }
        sink.write(&whole)?;
    }
    Ok(())
}

/// Takes the state over from a stream, in place of the empty one that the ranks have.
pub(super) fn load(
    core: &mut Core,
    info: &StateInfo,
    tokens: &[u32],
    source: &mut dyn StateSource,
) -> Result<()> {
    let weights = core.weights.clone();
    check_states(&weights)?;
    let n_vocab = weights.n_vocab();
    let layout = StateLayout::new(weights.kv_layers(), info, n_vocab)?;
    let mut stored = Vec::new();
    for (i, weights) in weights.parts().iter().enumerate() {
        let of_rank = StateInfo {
            has_logits: info.has_logits && i == 0,
            ..info.clone()
        };
        stored.push(Stored::new(&**weights, of_rank, n_vocab)?);
    }
    if let Some(first) = stored.first_mut() {
        source.read(first.next(layout.logits_bytes())?)?;
    }
    for windowed in [false, true] {
        for plane in layout.planes(windowed) {
            for first in (0..stored.len()).step_by(alike(&weights, plane.layer)) {
                let n = plane_bytes(&weights, first, info, plane.layer)?;
                let (before, behind) = stored.split_at_mut(first + 1);
                let bytes = before[first].next(n)?;
                source.read(bytes)?;
                for other in &mut behind[..alike(&weights, plane.layer) - 1] {
                    other.next(n)?.copy_from_slice(bytes);
                }
            }
        }
    }
    if info.len > 0 {
        for layer in weights.fixed_layers() {
            let mut whole = try_vec(layer.bytes(), 0u8, WHOLE)?;
            source.read(&mut whole)?;
            for (rank, of_rank) in stored.iter_mut().enumerate() {
                layer.take(rank, &whole, of_rank.next(layer.bytes_of(rank))?);
            }
        }
    }
    stream::restore(core, &stored, tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Channels that both ranks have, and heads in turns.
    #[test]
    fn what_ranks_have_is_the_whole() {
        let shape = FixedShape {
            conv_channels: 7,
            conv_columns: 2,
            n_heads: 4,
            rows: 2,
            columns: 3,
        };
        let cut = |channels: [std::ops::Range<usize>; 2], heads: [usize; 2]| FixedCut {
            channels: Pieces::new(channels),
            heads: Pieces::new(heads.map(|head| head..head + 1)),
        };
        let layer = FixedLayer {
            shape,
            cuts: vec![cut([0..2, 5..7], [0, 2]), cut([2..4, 4..7], [1, 3])],
        };
        let whole: Vec<u8> = (0..layer.bytes())
            .map(|i| (i * 7 + i / 256) as u8)
            .collect();
        let mut again = vec![0; whole.len()];
        for rank in 0..2 {
            let mut own = vec![0; layer.bytes_of(rank)];
            layer.take(rank, &whole, &mut own);
            layer.put(rank, &own, &mut again);
            let head = 6 * NUMBER;
            let from = (14 + 6 * (2 + rank)) * NUMBER;
            assert_eq!(own[own.len() - head..], whole[from..from + head]);
        }
        assert!(again == whole);
    }
}
