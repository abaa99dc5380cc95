//! The structures of `kernels/predictor.cu`.

use super::{ConstPtr, Norm, Ptr, Session};

/// `KeepArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Keep {
    /// Row i is of session i, or, of a chunk, at the i-th position from session 0's on.
    pub sessions: ConstPtr<ConstPtr<Session>>,
    /// `[rows][x_stride]`: the residual stream behind the last layer.
    pub x: ConstPtr<f32>,
    /// The network's last one.
    pub norm: Norm,
    pub x_stride: u32,
    pub len: u32,
    /// Rows of a chunk; 0 in a step.
    pub chunk: u32,
    pub padding: u32,
}

/// `EnterArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Enter {
    pub sessions: ConstPtr<ConstPtr<Session>>,
    /// `[rows][x_stride]`: embeddings of the rows' tokens.
    pub x: ConstPtr<f32>,
    /// A ring of hidden states, of which row i has that of row first + i; NULL: of the position before its own in session i's ring.
    pub states: ConstPtr<f32>,
    /// `[rows][out_stride]`: the norm of the embedding, and behind it that of the state.
    pub out: Ptr<f32>,
    pub norms: [Norm; 2],
    pub x_stride: u32,
    pub out_stride: u32,
    pub len: u32,
    pub states_rows: u32,
    pub first: u32,
    pub padding: u32,
}

const _: () = {
    assert!(size_of::<Keep>() == 56);
    assert!(size_of::<Enter>() == 104);
};
