//! Tokens and the experts that were chosen for them, a pair each, in device memory.

/// What the router decides.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// f32, `[rows][router rows]`.
    pub scores: u64,
    /// u32, `[pairs]`.
    pub chosen: u64,
    /// f32, `[rows][n_used + 1]`.
    pub weights: u64,
}

/// Pairs sorted by expert, as `SortArgs` has them.
#[derive(Clone, Copy, Debug)]
pub struct Sorted {
    /// u32, `[n_experts + 1]`.
    pub starts: u64,
    /// u32, `[pairs]`.
    pub slots: u64,
    /// u32, `[pairs]`.
    pub pairs: u64,
    /// u32, `[n_experts + 1]`: the first tile of each expert, and the end.
    pub tiles: u64,
    /// `TilePlace` of expert_tiles.cuh, one per tile.
    pub places: u64,
}

/// `PairTile` of route.cuh.
pub type PairTile = [u32; 8];

/// Pairs of a step of several sessions, in tiles of one expert each.
#[derive(Clone, Copy, Debug)]
pub struct PairTiles {
    /// [`PairTile`], one per tile.
    pub tiles: u64,
    /// u32: how many there are.
    pub count: u64,
}
