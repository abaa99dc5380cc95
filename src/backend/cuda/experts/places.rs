//! The memory that experts work in, in a step and in a chunk of a prompt.

use super::super::matrix::tiled_bytes;
use super::super::plan::Plan;
use super::super::step::Arena;

/// Where the experts of a step or a chunk have their memory: offsets, then addresses.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExpertPlaces {
    /// f32, `[rows][router rows]`.
    pub scores: u64,
    /// u32, `[pairs]`.
    pub chosen: u64,
    /// f32, `[rows][n_used + 1]`.
    pub weights: u64,
    /// f32, `[pairs][2 * n_ff]`: gates and ups.
    pub inner: u64,
    /// f32, `[pairs][hidden]`: outputs. In a chunk they take the place of `inner`.
    pub out: u64,
    /// f32, `[rows][hidden]`: outputs of the shared expert.
    pub shared: u64,
    /// A step's inputs of the last products: int8, their scales, f32.
    pub q8: u64,
    /// f32, `[pairs][groups]`.
    pub q8_scale: u64,
    /// f32, `[pairs][groups * 32]`.
    pub f32: u64,
    /// A chunk's: f32 `[rows][hidden]` for the router, f16 (tiled) and its scales for the rest.
    pub input: u64,
    /// f16, tiled.
    pub f16: u64,
    /// f32, `[pairs]`.
    pub f16_scale: u64,
    /// The lists of `SortArgs`.
    pub starts: u64,
    /// u32, `[pairs]`.
    pub slots: u64,
    /// u32, `[pairs]`.
    pub pairs: u64,
    /// u32, `[n_experts + 1]`.
    pub tiles: u64,
    /// u32, one per tile.
    pub tile_experts: u64,
}

impl ExpertPlaces {
    /// For steps of `rows` sessions.
    pub fn step(arena: &mut Arena, plan: &Plan, rows: u32) -> ExpertPlaces {
        let s = Extents::of(plan, rows);
        ExpertPlaces {
            q8: arena.take(s.pairs_groups * 32),
            q8_scale: arena.take(s.pairs_groups * 4),
            f32: arena.take(s.pairs_groups * 128),
            starts: arena.take(s.experts * 4),
            slots: arena.take(s.pairs * 4),
            pairs: arena.take(s.pairs * 4),
            inner: arena.take(s.inner),
            out: arena.take(s.out),
            ..ExpertPlaces::common(arena, &s)
        }
    }

    /// For chunks of `rows` tokens.
    pub fn chunk(arena: &mut Arena, plan: &Plan, rows: u32) -> ExpertPlaces {
        let s = Extents::of(plan, rows);
        let inner = arena.take(s.inner.max(s.out));
        ExpertPlaces {
            inner,
            out: inner,
            input: arena.take(s.input),
            f16: arena.take(s.f16),
            f16_scale: arena.take(s.pairs * 4),
            starts: arena.take(s.experts * 4),
            slots: arena.take(s.pairs * 4),
            pairs: arena.take(s.pairs * 4),
            tiles: arena.take(s.experts * 4),
            tile_experts: arena.take(s.tiles * 4),
            ..ExpertPlaces::common(arena, &s)
        }
    }

    fn common(arena: &mut Arena, s: &Extents) -> ExpertPlaces {
        ExpertPlaces {
            scores: arena.take(s.scores),
            chosen: arena.take(s.pairs * 4),
            weights: arena.take(s.weights),
            shared: arena.take(s.shared),
            ..ExpertPlaces::default()
        }
    }

    /// Turns offsets into addresses.
    pub fn place(&mut self, base: u64) {
        for place in [
            &mut self.scores,
            &mut self.chosen,
            &mut self.weights,
            &mut self.inner,
            &mut self.out,
            &mut self.shared,
            &mut self.q8,
            &mut self.q8_scale,
            &mut self.f32,
            &mut self.input,
            &mut self.f16,
            &mut self.f16_scale,
            &mut self.starts,
            &mut self.slots,
            &mut self.pairs,
            &mut self.tiles,
            &mut self.tile_experts,
        ] {
            *place += base;
        }
    }
}

/// Largest extents over all layers' mixtures, most of them in bytes; zeros if there are none.
#[derive(Default)]
struct Extents {
    scores: u64,
    weights: u64,
    inner: u64,
    out: u64,
    shared: u64,
    input: u64,
    f16: u64,
    pairs: u64,
    pairs_groups: u64,
    /// One more than there are experts.
    experts: u64,
    tiles: u64,
}

impl Extents {
    fn of(plan: &Plan, rows: u32) -> Extents {
        let mut s = Extents::default();
        let n = u64::from(rows);
        for e in plan.experts() {
            let pairs = n * u64::from(e.n_used);
            let most = |to: &mut u64, v: u64| *to = v.max(*to);
            most(&mut s.scores, n * u64::from(e.router.rows) * 4);
            most(&mut s.weights, n * u64::from(e.n_used + 1) * 4);
            most(&mut s.inner, pairs * u64::from(e.n_ff) * 8);
            most(&mut s.out, pairs * u64::from(plan.hidden) * 4);
            if e.shared.is_some() {
                most(&mut s.shared, n * u64::from(plan.hidden) * 4);
            }
            most(&mut s.input, n * u64::from(e.router.groups) * 128);
            most(&mut s.f16, tiled_bytes(pairs as u32, e.down.groups));
            most(&mut s.pairs, pairs);
            most(&mut s.pairs_groups, pairs * u64::from(e.down.groups));
            most(&mut s.experts, u64::from(e.n_experts) + 1);
            most(
                &mut s.tiles,
                u64::from(e.most_tiles(pairs as u32, e.n_experts)),
            );
        }
        s
    }
}
