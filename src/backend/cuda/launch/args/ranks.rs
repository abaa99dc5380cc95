//! Sums over GPUs that share layers.

use super::{ConstPtr, Product, Ptr};

/// Most GPUs of a group.
pub const MAX_RANKS: usize = 8;

/// Most pieces of a sum.
pub const MAX_SUM_PIECES: u32 = 128;

/// Flags of a meeting: of pieces, and some others.
pub const SUM_FLAGS: u32 = 136;

/// `MeetingArgs`.
///
/// What all kernels need that meet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Meeting {
    /// Of each rank: `[2][MAX_RANKS][SUM_FLAGS]` u64 in its memory.
    pub flags: [u64; MAX_RANKS],
    /// The number of this launch, the same on all ranks, below 2^48.
    pub launch: ConstPtr<u64>,
    /// A peer did not come.
    pub failed: Ptr<u32>,
    /// How long to wait for it, in ns.
    pub patience: u64,
    pub rank: u32,
    pub n_ranks: u32,
    /// Of the meeting in the launch.
    pub index: u32,
    pub padding: u32,
}

/// `RankSumArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RankSum {
    pub meeting: Meeting,
    /// Of each rank: `[2][n_ranks][capacity]` f32 in its memory.
    pub inboxes: [u64; MAX_RANKS],
    /// Of each rank: `[2][n_ranks][tagged_capacity]` pairs of an f32 and a tag.
    pub tagged: [u64; MAX_RANKS],
    /// `[rows][x_stride]`: what this rank has.
    pub x: ConstPtr<f32>,
    /// `[rows][stride]`, or NULL: what is added to the sum.
    pub base: ConstPtr<f32>,
    /// `[rows][stride]`; may be `x` or `base`.
    pub out: Ptr<f32>,
    pub capacity: u64,
    /// A multiple of 4.
    pub tagged_capacity: u32,
    pub rows: u32,
    pub len: u32,
    pub x_stride: u32,
    pub stride: u32,
    pub pieces: u32,
}

/// `LinkedRow`.
///
/// A row that is added up over all ranks, and how they meet for that.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkedRow {
    pub meeting: Meeting,
    /// Of each rank: `[2][n_ranks][tagged_capacity]` pairs of an f32 and a tag.
    pub tagged: [u64; MAX_RANKS],
    pub tagged_capacity: u32,
    pub padding: u32,
}

/// `LinkedProductArgs`.
///
/// A plain product of one row whose output is added up over all ranks: out = residual + sum.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkedProduct {
    pub product: Product,
    pub row: LinkedRow,
}

/// `RankLogitsArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RankLogits {
    pub meeting: Meeting,
    /// `[rows][n_vocab]`: logits of the other ranks, in the memory of rank 0.
    pub inbox: ConstPtr<f32>,
    /// `[rows][n_vocab]`, of rank 0.
    pub logits: Ptr<f32>,
    /// 0: nothing but the meeting.
    pub rows: u32,
    pub n_vocab: u32,
    /// Logits that are this rank's own.
    pub first: u32,
    pub end: u32,
}

/// `RankPackArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RankPack {
    /// `[rows][x_stride]`.
    pub x: ConstPtr<f32>,
    /// `[rows][out_stride]`.
    pub out: Ptr<f32>,
    pub rows: u32,
    pub len: u32,
    pub x_stride: u32,
    pub out_stride: u32,
}

/// `RankAddArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RankAdd {
    /// `[n_ranks][rows][len]`: what each rank has.
    pub x: ConstPtr<f32>,
    /// `[rows][stride]`, or NULL: what is added to the sum.
    pub base: ConstPtr<f32>,
    /// `[rows][stride]`; may be `base`.
    pub out: Ptr<f32>,
    pub n_ranks: u32,
    pub rows: u32,
    pub len: u32,
    pub stride: u32,
}

/// `RankPlaceArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RankPlace {
    /// `[n_ranks][rows][width]`: logits of each rank, of which the first ranks may have one more than the others.
    pub x: ConstPtr<f32>,
    /// `[rows][n_vocab]`.
    pub logits: Ptr<f32>,
    pub n_ranks: u32,
    pub rows: u32,
    pub width: u32,
    pub n_vocab: u32,
}

const _: () = {
    assert!(size_of::<Meeting>() == 104);
    assert!(size_of::<RankSum>() == 288);
    assert!(size_of::<LinkedRow>() == 176);
    assert!(size_of::<LinkedProduct>() == 528);
    assert!(size_of::<RankLogits>() == 136);
    assert!(size_of::<RankPack>() == 32);
    assert!(size_of::<RankAdd>() == 40);
    assert!(size_of::<RankPlace>() == 32);
};
