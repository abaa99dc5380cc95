//! The structures of the kernels that do what few networks have to heads, before and behind attention.

use super::{ConstPtr, Norm, Ptr};

/// Heads of a `ready_heads` block, one a warp.
pub const READY_HEADS: u32 = 8;

/// `ReadyHeadsArgs`.
///
/// Queries, keys and values of rows, in place: their limit, norms with weights of each head, and the factor on values. Values that are
/// shorter than keys get zeros behind them, at another place of the row.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadyHeads {
    /// `[rows][stride]`: queries, keys, then values.
    pub qkv: Ptr<f32>,
    /// `[n_heads][head_dim]` weights, and so many biases; weight NULL: none.
    pub q_norm: Norm,
    /// `[n_kv_heads][head_dim]`, likewise.
    pub k_norm: Norm,
    pub stride: u32,
    pub n_heads: u32,
    /// 0: there are queries alone.
    pub n_kv_heads: u32,
    pub head_dim: u32,
    /// Elements of a value, at most head_dim.
    pub value_dim: u32,
    /// Where values begin in a row,
    pub values: u32,
    /// and where they go, head_dim elements each: there, if they have so many.
    pub padded_values: u32,
    /// What is beyond it, or below its negative, becomes it; 0: none.
    pub limit: f32,
    /// Factor on the values.
    pub value_scale: f32,
    pub padding: u32,
}

/// `FinishHeadsArgs`.
///
/// The heads' results, as many elements of each as values have, times their gates.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FinishHeads {
    /// `[rows][x_stride]`: head_dim elements of each head.
    pub x: ConstPtr<f32>,
    /// `[rows][gate_stride]`: of each head or of each element of the result; or NULL.
    pub gate: ConstPtr<f32>,
    /// `[rows][out_stride]`: value_dim elements of each head.
    pub out: Ptr<f32>,
    pub x_stride: u32,
    pub gate_stride: u32,
    pub out_stride: u32,
    pub n_heads: u32,
    pub head_dim: u32,
    pub value_dim: u32,
    /// Gates are of heads.
    pub per_head: u32,
    /// Gates are factors by their softplus and not by their sigmoid.
    pub softplus: u32,
}

// The kernels assert the same.
const _: () = {
    assert!(size_of::<ReadyHeads>() == 96);
    assert!(size_of::<FinishHeads>() == 56);
};
