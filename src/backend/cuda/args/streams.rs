//! The structures of the kernels of several residual streams.

use super::Norm;

/// `StreamsArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Streams {
    pub streams: u64,
    pub x: u64,
    pub y: u64,
    pub norm: Norm,
    pub thin_norm: Norm,
    pub router: u64,
    pub coefficients: u64,
    pub scale: u64,
    pub count: u32,
    pub active: u32,
    pub len: u32,
    pub stride: u32,
    pub y_stride: u32,
    pub padding: u32,
}

/// `SparseGatesArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SparseGates {
    pub x: u64,
    pub len: u32,
    pub stride: u32,
    pub cutoff: f32,
    pub padding: u32,
}
