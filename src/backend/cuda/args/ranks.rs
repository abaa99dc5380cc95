//! Sums over GPUs that share layers.

/// Most GPUs of a group.
pub const MAX_RANKS: usize = 8;

/// Most blocks of a sum.
pub const MAX_SUM_BLOCKS: u32 = 128;

/// `MeetingArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Meeting {
    pub flags: [u64; MAX_RANKS],
    pub launch: u64,
    pub failed: u64,
    pub patience: u64,
    pub rank: u32,
    pub n_ranks: u32,
    pub index: u32,
    pub padding: u32,
}

/// `RankSumArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RankSum {
    pub meeting: Meeting,
    pub inboxes: [u64; MAX_RANKS],
    pub tagged: [u64; MAX_RANKS],
    pub x: u64,
    pub base: u64,
    pub out: u64,
    pub capacity: u64,
    pub tagged_capacity: u32,
    pub rows: u32,
    pub len: u32,
    pub x_stride: u32,
    pub stride: u32,
    pub padding: u32,
}

/// `RankLogitsArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RankLogits {
    pub meeting: Meeting,
    pub inbox: u64,
    pub logits: u64,
    pub rows: u32,
    pub n_vocab: u32,
    pub first: u32,
    pub end: u32,
}

/// `RankPackArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RankPack {
    pub x: u64,
    pub out: u64,
    pub rows: u32,
    pub len: u32,
    pub x_stride: u32,
    pub out_stride: u32,
}

/// `RankAddArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RankAdd {
    pub x: u64,
    pub base: u64,
    pub out: u64,
    pub n_ranks: u32,
    pub rows: u32,
    pub len: u32,
    pub stride: u32,
}

/// `RankPlaceArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RankPlace {
    pub x: u64,
    pub logits: u64,
    pub n_ranks: u32,
    pub rows: u32,
    pub width: u32,
    pub n_vocab: u32,
}

const _: () = {
    assert!(size_of::<Meeting>() == 104);
    assert!(size_of::<RankSum>() == 288);
    assert!(size_of::<RankLogits>() == 136);
    assert!(size_of::<RankPack>() == 32);
    assert!(size_of::<RankAdd>() == 40);
    assert!(size_of::<RankPlace>() == 32);
};
