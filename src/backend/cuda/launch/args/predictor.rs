//! The structures of `kernels/predictor.cu` and `kernels/fusion.cu`.

use super::{ConstPtr, Norm, Ptr, Session};

/// Most places between layers whose hidden states a ring has.
pub const MAX_PLACES: usize = 3;

/// `StateRing`.
///
/// What a ring of hidden states begins with; its rows, of floats, are behind it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct StateRing {
    /// A row has the residual stream before the layers of these numbers, one behind the other; as many as there are stands for behind the
    /// last one.
    pub places: [u32; MAX_PLACES],
    /// 0: a row has the residual stream behind the final norm.
    pub n_places: u32,
    pub padding: [u32; 28],
}

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
    /// Row i has the state of row first + i of this ring; NULL: that of the position before its own in session i's ring.
    pub states: ConstPtr<StateRing>,
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

/// `KeepPlaceArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct KeepPlace {
    /// As of `KeepArgs`.
    pub sessions: ConstPtr<ConstPtr<Session>>,
    /// `[rows][x_stride]`: the residual stream before a layer.
    pub x: ConstPtr<f32>,
    pub x_stride: u32,
    pub len: u32,
    /// Rows of a chunk; 0 in a step.
    pub chunk: u32,
    /// The number of that layer.
    pub place: u32,
    /// Factor on the rows.
    pub unit: f32,
    pub padding: u32,
}

/// `GatherStatesArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GatherStates {
    pub ring: ConstPtr<StateRing>,
    /// `[rows][out_stride]`: row i is row first + i of the ring.
    pub out: Ptr<f32>,
    pub ring_rows: u32,
    pub first: u32,
    /// Floats of a row.
    pub width: u32,
    pub out_stride: u32,
}

/// `JoinArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Join {
    pub sessions: ConstPtr<ConstPtr<Session>>,
    /// `[rows][x_stride]`: embeddings of the rows' tokens, or hidden states; what the layer adds to comes in place of them.
    pub x: Ptr<f32>,
    /// `[rows][out_stride]`: the norm of the embedding, and behind it that of the state.
    pub out: Ptr<f32>,
    pub norms: [Norm; 2],
    pub x_stride: u32,
    pub out_stride: u32,
    pub len: u32,
    /// 0: both norms, of embeddings and of the states of the positions before the sessions' in their own rings; 1: that of embeddings
    /// alone, which stay; 2: that of states alone, which are `x`.
    pub half: u32,
    /// What the layer adds to is the norm of the state.
    pub normed: u32,
    pub padding: u32,
}

/// `SpreadLogitsArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SpreadLogits {
    /// `[rows][n_known]`.
    pub known: ConstPtr<f32>,
    /// `[n_vocab]`: a token's place among the known ones; n_known of others.
    pub place_of: ConstPtr<u32>,
    /// `[rows][n_vocab]`.
    pub logits: Ptr<f32>,
    pub n_known: u32,
    pub n_vocab: u32,
}

const _: () = {
    assert!(size_of::<StateRing>() == 128);
    assert!(size_of::<Keep>() == 56);
    assert!(size_of::<Enter>() == 104);
    assert!(size_of::<KeepPlace>() == 40);
    assert!(size_of::<GatherStates>() == 32);
    assert!(size_of::<Join>() == 96);
    assert!(size_of::<SpreadLogits>() == 32);
};
