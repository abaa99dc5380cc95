//! The structures of products of batches in f16.

use super::{Activation, ConstPtr, Half, MAX_SEGMENTS, Ptr, Segment};

/// Elements of a row that a stage of inputs has for a part of k.
pub const F16_BATCH_K: u32 = 128;
/// Stages at most.
pub const F16_BATCH_STAGES: u32 = 8;
/// Warpgroups of a block.
pub const F16_BATCH_WARPGROUPS: u32 = 4;
/// Rows of the matrix that a warpgroup has.
pub const F16_BATCH_ROWS: u32 = 64;

/// `BatchF16Args`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchF16 {
    /// Blocks are a multiple of `shares`.
    pub segments: [Segment; MAX_SEGMENTS],
    /// What LargestArgs says, of each segment.
    pub largest: [ConstPtr<f32>; MAX_SEGMENTS],
    /// `[columns][groups * 32]`, arranged as QuantizeInputArgs says.
    pub x: ConstPtr<Half>,
    /// `[batch]`: value = x * scale.
    pub x_scale: ConstPtr<f32>,
    /// `[batch][out_stride]`.
    pub out: Ptr<f32>,
    /// `[batch][out_stride]`, added to the result, or NULL; may be `out`.
    pub residual: ConstPtr<f32>,
    /// `[batch]`: of a gate with what it lets through, what is there and the largest result without its sign; else NULL. The matrix is one
    /// segment then, gates before ups, and results are as many as gates.
    pub largest_out: Ptr<f32>,
    pub n_segments: u32,
    pub groups: u32,
    pub out_stride: u32,
    /// Input rows, at most the kernel's columns.
    pub batch: u32,
    /// Parts of k that warpgroups of a block have: 1, 2 or 4. They have as many tiles of rows as are left.
    pub parts: u32,
    /// Parts of k that blocks of a cluster have: 1 or 2.
    pub shares: u32,
    pub stages: u32,
    /// Where sums begin in shared memory, where `parts` or `shares` are more than 1.
    pub sums_at: u32,
    pub activation: Activation,
    pub padding: u32,
}

/// `LargestArgs`.
///
/// Keeps a bound of what decoders make of a segment's records: of each scale times the largest number of its group, plus the subtrahend.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Largest {
    pub matrix: ConstPtr<u8>,
    /// What there was is kept if it is larger.
    pub largest: Ptr<f32>,
    pub ty: u32,
    pub groups: u32,
    pub matrix_rows: u32,
    /// Of the rows to look at.
    pub first_row: u32,
    pub rows: u32,
    pub padding: u32,
}

const _: () = {
    assert!(size_of::<BatchF16>() == 280);
    assert!(size_of::<Largest>() == 40);
};
