//! The memory that experts work in, in a step and in a chunk of a prompt.

use crate::backend::cuda::driver::arena::Arena;
use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::experts::{Choice, PairTile, PairTiles, Sorted};
use crate::backend::cuda::launch::matrix::{Inputs, tiled_bytes};
use crate::backend::cuda::network::plan::Plan;

/// Where the experts of a step have their memory. All of it is 0 in a network without experts.
#[derive(Clone, Copy, Debug)]
pub struct StepExperts {
    /// The inputs of the last products, a row per pair.
    pub inputs: Inputs,
    /// Where there are enough sessions.
    pub sorted: Sorted,
    /// Where several share weights.
    pub tiles: PairTiles,
    /// f32, `[pairs][inner_width]`: gates and ups, or ups.
    pub inner: u64,
    /// f32, `[pairs][hidden]`: outputs.
    pub out: u64,
    /// The experts of each session.
    pub choice: Choice,
    /// f32, `[rows][hidden]`: outputs of the shared expert.
    pub shared: u64,
}

/// Where the experts of a chunk have their memory. All of it is 0 in a network without experts.
#[derive(Clone, Copy, Debug)]
pub struct ChunkExperts {
    /// f32, `[pairs][inner_width]`: gates and ups, or ups; then `[pairs][hidden]`: outputs, which take their place.
    pub inner: u64,
    /// f32, `[rows][router width]`: the router's input.
    pub input: u64,
    /// f16, tiled: the input of the last products.
    pub f16: u64,
    /// f32, `[pairs]`.
    pub f16_scale: u64,
    /// The pairs of all tokens.
    pub sorted: Sorted,
    /// The experts of each token.
    pub choice: Choice,
    /// f32, `[rows][hidden]`: outputs of the shared expert.
    pub shared: u64,
}

impl Choice {
    fn place(arena: &mut Arena, s: &Extents) -> Choice {
        Choice {
            scores: arena.array::<f32>(s.scores),
            chosen: arena.array::<u32>(s.pairs),
            weights: arena.array::<f32>(s.weights),
        }
    }
}

impl Sorted {
    fn place(arena: &mut Arena, s: &Extents) -> Sorted {
        Sorted {
            starts: arena.array::<u32>(s.experts),
            slots: arena.array::<u32>(s.pairs),
            pairs: arena.array::<u32>(s.pairs),
            tiles: arena.array::<u32>(s.experts),
            places: arena.array::<[u32; 4]>(s.tiles),
        }
    }
}

impl StepExperts {
    /// For steps of `rows` sessions.
    pub fn place(arena: &mut Arena, plan: &Plan, rows: u32) -> StepExperts {
        let s = Extents::of(plan, rows, args::PAIRS_AT_ONCE);
        StepExperts {
            inputs: Inputs::place(arena, s.inner_groups),
            sorted: Sorted::place(arena, &s),
            tiles: PairTiles {
                tiles: arena.array::<PairTile>(s.tiles),
                count: arena.array::<u32>(1),
            },
            inner: arena.array::<f32>(s.inner),
            out: arena.array::<f32>(s.out),
            choice: Choice::place(arena, &s),
            shared: arena.array::<f32>(s.shared),
        }
    }
}

impl ChunkExperts {
    /// For chunks of `rows` tokens.
    pub fn place(arena: &mut Arena, plan: &Plan, rows: u32) -> ChunkExperts {
        let s = Extents::of(plan, rows, args::TILE_ROWS);
        ChunkExperts {
            inner: arena.array::<f32>(s.inner.max(s.out)),
            input: arena.array::<f32>(s.input),
            f16: arena.take(s.f16_bytes),
            f16_scale: arena.array::<f32>(s.pairs),
            sorted: Sorted::place(arena, &s),
            choice: Choice::place(arena, &s),
            shared: arena.array::<f32>(s.shared),
        }
    }
}

/// Most elements over all layers' mixtures; zeros if there are none.
#[derive(Default)]
struct Extents {
    scores: u64,
    weights: u64,
    inner: u64,
    out: u64,
    shared: u64,
    input: u64,
    f16_bytes: u64,
    pairs: u64,
    inner_groups: u64,
    /// One more than there are experts.
    experts: u64,
    tiles: u64,
}

impl Extents {
    /// For so many rows, whose pairs are dealt out in tiles of `tile_rows`.
    fn of(plan: &Plan, rows: u32, tile_rows: u32) -> Extents {
        let mut s = Extents::default();
        let n = u64::from(rows);
        for e in plan.experts() {
            let pairs = n * u64::from(e.n_used);
            let most = |to: &mut u64, v: u64| *to = v.max(*to);
            most(&mut s.scores, n * u64::from(e.router.rows));
            most(&mut s.weights, n * u64::from(e.n_used + 1));
            // One row has those of the shared expert behind the others'.
            let shared = e.shared.as_ref().map_or(0, |shared| shared.n_ff);
            most(
                &mut s.inner,
                pairs * u64::from(e.inner_width()) + u64::from(shared),
            );
            most(&mut s.out, pairs * u64::from(e.width(plan.hidden)));
            // Or the sum of the experts alone.
            if e.shared.is_some() || e.own_width.is_some() {
                most(&mut s.shared, n * u64::from(plan.hidden));
            }
            most(&mut s.input, n * u64::from(e.router.width));
            most(&mut s.f16_bytes, tiled_bytes(pairs as u32, e.down.groups));
            most(&mut s.pairs, pairs);
            most(&mut s.inner_groups, pairs * u64::from(e.down.groups));
            most(&mut s.experts, u64::from(e.n_experts) + 1);
            most(
                &mut s.tiles,
                u64::from(e.most_tiles(pairs as u32, e.n_experts, tile_rows)),
            );
        }
        s
    }
}
