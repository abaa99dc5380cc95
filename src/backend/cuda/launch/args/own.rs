//! The structure of the kernel of layers' own inputs.

use super::{Activation, ConstPtr, Norm, Ptr, RowSum};

/// Blocks of the cluster.
pub const OWN_BLOCKS: u32 = 8;

/// `OwnMatrix`.
///
/// A matrix of one type, as `slices_of` cuts it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnMatrix {
    pub matrix: ConstPtr<u8>,
    pub rows: u32,
    pub n_slices: u32,
    /// Groups of a slice.
    pub full: u32,
    /// Groups of a slice.
    pub last: u32,
    /// Of a record.
    pub full_bytes: u32,
    /// Of a record.
    pub last_bytes: u32,
}

/// `OwnInputArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnInput {
    /// From the residual stream, and to it.
    pub gate: OwnMatrix,
    pub projection: OwnMatrix,
    /// `[groups * 32]`: what is added to the residual stream first, or that.
    pub x: ConstPtr<f32>,
    /// `sum` NULL: it is not kept.
    pub added: RowSum,
    /// `[gate.rows]`: the layer's input.
    pub own: ConstPtr<f32>,
    /// Of the projection; weight NULL: none.
    pub norm: Norm,
    /// `[groups * 32]`: may be what is added to, or x.
    pub out: Ptr<f32>,
    pub scale: f32,
    pub out_scale: f32,
    pub inverse_len: f32,
    /// Of a row of the residual stream.
    pub groups: u32,
    /// Where parts of a block's shared memory begin.
    pub projection_at: u32,
    pub input_at: u32,
    pub inner_at: u32,
    pub own_at: u32,
    pub activation: Activation,
    pub padding: u32,
}

const _: () = {
    assert!(size_of::<OwnMatrix>() == 32);
    assert!(size_of::<OwnInput>() == 208);
};
