//! What adapters add to products.

/// `AdapterPair`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AdapterPair {
    pub a: u64,
    pub b: u64,
    pub rank: u32,
    pub at: u32,
    pub a_type: u32,
    pub b_type: u32,
    pub scale: f32,
    pub padding: u32,
}

/// Most linear layers of a fused matrix that adapters can be added to, and most pieces that its rows are cut into.
pub const MAX_LINEARS: usize = 8;

/// `AdapterPiece`.
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
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Adapted {
    pub pairs: u64,
    pub words: u64,
    pub uses: u32,
    pub ranks: u32,
    pub n_linears: u32,
    pub thin_at: u32,
    pub tag: u32,
    pub padding: u32,
    pub pieces: [AdapterPiece; MAX_LINEARS],
}

/// `AdaptArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Adapt {
    pub sessions: u64,
    pub q8: u64,
    pub q8_scale: u64,
    pub f32: u64,
    pub f16: u64,
    pub f16_scale: u64,
    pub out: u64,
    pub out_stride: u32,
    pub groups: u32,
    pub first_row: u32,
    pub rows: u32,
    pub outputs: u32,
    pub first_linear: u32,
    pub n_linears: u32,
    pub padding: u32,
    pub pieces: [AdapterPiece; MAX_LINEARS],
}

const _: () = {
    assert!(size_of::<AdapterPair>() == 40);
    assert!(size_of::<AdapterPiece>() == 20);
    assert!(size_of::<Adapted>() == 200);
    assert!(size_of::<Adapt>() == 248);
};
