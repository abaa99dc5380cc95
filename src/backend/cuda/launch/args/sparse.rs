//! The structure of the kernel that weighs experts as SparseMixer does.

use super::Ptr;

/// `SparseMixerArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SparseMixer {
    /// `[rows][score_stride]`: of all experts, two at least.
    pub scores: Ptr<f32>,
    pub score_stride: u32,
    pub n_experts: u32,
    /// How near to the largest score others are that count, twice, as a share of it.
    pub nearness: f32,
    pub padding: u32,
}

// The kernel asserts the same.
const _: () = {
    assert!(size_of::<SparseMixer>() == 24);
};
