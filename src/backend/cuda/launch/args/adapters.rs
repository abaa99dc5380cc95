//! What adapters add to products.

use super::{ConstPtr, Half, Product, Ptr, Session};

/// Parts of a row of `A`, a warp each, whose products with the input are added up in order.
pub const LORA_DOWN_PARTS: u32 = 16;

/// `AdapterPair`.
///
/// A pair for one linear layer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AdapterPair {
    /// `[rank][groups * 32]` of the input, zeros behind its length.
    pub a: ConstPtr<u8>,
    /// `[outputs][rank, up to a multiple of 8]`, zeros behind its rank.
    pub b: ConstPtr<u8>,
    /// 0: nothing is added.
    pub rank: u32,
    /// Where its part of a thin row begins, a multiple of 8.
    pub at: u32,
    pub a_type: u32,
    pub b_type: u32,
    pub scale: f32,
    pub padding: u32,
}

/// Most linear layers of a fused matrix that adapters can be added to, and most pieces that its rows are cut into.
pub const MAX_LINEARS: usize = 8;

/// `AdapterPiece`.
///
/// Rows of a product's output that belong to one of its linear layers, up to row `end`: `run` rows at a time from row `first` of the
/// layer on, the next ones `step` rows further.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AdapterPiece {
    pub end: u32,
    pub linear: u32,
    pub first: u32,
    pub run: u32,
    pub step: u32,
}

/// `Adapted`.
///
/// What the adapters of one session have for a product of one row.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Adapted {
    /// Of its linear layers, `uses` each.
    pub pairs: ConstPtr<AdapterPair>,
    /// `[n_linears][ranks][LORA_DOWN_PARTS]` parts of A x: a float and, above it, `tag` once it is there.
    pub words: Ptr<u64>,
    pub uses: u32,
    pub ranks: u32,
    pub n_linears: u32,
    /// Of a block's shared memory, from where on it is for adapters (`Adapting`).
    pub thin_at: u32,
    /// That no other product of the step has.
    pub tag: u32,
    pub padding: u32,
    pub pieces: [AdapterPiece; MAX_LINEARS],
}

/// `AdaptArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Adapt {
    pub sessions: ConstPtr<ConstPtr<Session>>,
    /// `[rows][groups * 32]`, or NULL.
    pub q8: ConstPtr<i8>,
    /// `[rows][groups]`.
    pub q8_scale: ConstPtr<f32>,
    /// `[rows][groups * 32]`, or NULL.
    pub f32: ConstPtr<f32>,
    /// Tiled, or NULL: rows of the first session.
    pub f16: ConstPtr<Half>,
    /// `[rows]`.
    pub f16_scale: ConstPtr<f32>,
    /// `[rows][out_stride]`.
    pub out: Ptr<f32>,
    pub out_stride: u32,
    pub groups: u32,
    /// Of the inputs and outputs.
    pub first_row: u32,
    pub rows: u32,
    pub outputs: u32,
    /// Of the network.
    pub first_linear: u32,
    pub n_linears: u32,
    pub padding: u32,
    pub pieces: [AdapterPiece; MAX_LINEARS],
}

/// Most ranks of a pair that [`AdaptEach`] takes.
pub const MOST_RANKS_OF_EACH: u32 = 4096;
/// Threads of a block of [`AdaptEach`], and outputs that it has a part in.
pub const ADAPT_EACH_THREADS: u32 = 256;
pub const ADAPT_EACH_OUTPUTS: u32 = 1024;

/// `AdaptEachArgs`.
///
/// What adapters have for entries that have a matrix each: a token with one of the experts that a router has chosen for it, with a head of
/// latent attention, or with a router, which is the only one of its kind. In order, entries are `[rows][per_row]`, unless slots say otherwise.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AdaptEach {
    pub sessions: ConstPtr<ConstPtr<Session>>,
    /// `[inputs][groups * 32]`, or NULL.
    pub q8: ConstPtr<i8>,
    /// `[inputs][groups]`.
    pub q8_scale: ConstPtr<f32>,
    /// Tiled, or NULL.
    pub f16: ConstPtr<Half>,
    /// `[inputs]`.
    pub f16_scale: ConstPtr<f32>,
    /// `[inputs][x_stride]`, or NULL.
    pub f32: ConstPtr<f32>,
    /// `[rows][per_row]`: the matrix of each entry, or NULL where an entry's matrix is its place in its row.
    pub chosen: ConstPtr<u32>,
    /// The entry in each slot, or NULL where they are in order.
    pub slots: ConstPtr<u32>,
    /// f32, or f16 where `halves`: `[slots][out_stride]` where matrices are chosen, else `[rows][out_stride]`.
    pub out: Ptr<u8>,
    pub x_stride: u32,
    /// From the input in f32 of a matrix to that of the next one.
    pub x_matrix: u32,
    pub len: u32,
    pub groups: u32,
    pub out_stride: u32,
    pub out_matrix: u32,
    pub halves: u32,
    /// Factor on what is added.
    pub out_scale: f32,
    pub per_row: u32,
    /// Inputs are those of slots, not of rows.
    pub of_slots: u32,
    /// All rows are of the first session.
    pub one_session: u32,
    /// Of the network.
    pub linear: u32,
    pub matrices: u32,
    /// Rows of each matrix, and those that the output is of.
    pub matrix_rows: u32,
    pub first: u32,
    pub outputs: u32,
}

/// `AdaptedProductArgs`.
///
/// A product that adapters may add to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AdaptedProduct {
    pub product: Product,
    pub adapted: Adapted,
}

const _: () = {
    assert!(size_of::<AdapterPair>() == 40);
    assert!(size_of::<AdapterPiece>() == 20);
    assert!(size_of::<Adapted>() == 200);
    assert!(size_of::<Adapt>() == 248);
    assert!(size_of::<AdaptEach>() == 136);
    assert!(size_of::<AdaptedProduct>() == 552);
};
