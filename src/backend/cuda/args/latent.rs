//! The structures of the kernels of latent attention.

use super::{KvLayout, Norm, Rotation};

/// `LatentArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Latent {
    pub sessions: u64,
    pub kv: u64,
    pub q: u64,
    pub q16: u64,
    pub rotation: Rotation,
    pub norm: Norm,
    pub layout: KvLayout,
    pub q_scale: f32,
    pub kv_stride: u32,
    pub q_stride: u32,
    pub n_heads: u32,
    pub rank: u32,
    pub plain: u32,
    pub prefill: u32,
    pub padding: u32,
}

/// `HeadProductArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadProduct {
    pub matrix: u64,
    pub x: u64,
    pub f32: u64,
    pub f16: u64,
    pub ty: u32,
    pub groups: u32,
    pub matrix_rows: u32,
    pub rows: u32,
    pub count: u32,
    pub len: u32,
    pub x_stride: u32,
    pub x_head: u32,
    pub out_stride: u32,
    pub out_head: u32,
    pub scale: f32,
    pub padding: u32,
}

// The kernels assert the same sizes of their twins.
const _: () = {
    assert!(size_of::<Latent>() == 184);
    assert!(size_of::<HeadProduct>() == 80);
};
