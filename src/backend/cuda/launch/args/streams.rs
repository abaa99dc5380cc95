//! The structures of the kernels of several residual streams.

use super::{ConstPtr, Norm, Ptr};

/// Most streams.
pub const MAX_STREAMS: u32 = 16;

/// `StreamsArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Streams {
    /// `[rows][count][stride]`.
    pub streams: Ptr<f32>,
    /// `[rows][stride]`: the residual stream.
    pub x: Ptr<f32>,
    /// `[rows][y_stride]`: what products have left.
    pub y: Ptr<f32>,
    /// Weight NULL: none.
    pub norm: Norm,
    pub thin_norm: Norm,
    /// `[count][len]`.
    pub router: ConstPtr<f32>,
    /// Of predictions `[count][count][count]`, of corrections `[count][count]`.
    pub coefficients: ConstPtr<f32>,
    /// `[len]`.
    pub scale: ConstPtr<f32>,
    pub count: u32,
    pub active: u32,
    pub len: u32,
    pub stride: u32,
    pub y_stride: u32,
    pub padding: u32,
}

/// `SparseGatesArgs`.
///
/// Gates, in place, by as much as they are so many standard deviations above their mean; 0 below.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SparseGates {
    /// `[rows][stride]`.
    pub x: Ptr<f32>,
    pub len: u32,
    pub stride: u32,
    pub cutoff: f32,
    pub padding: u32,
}
