//! The structures of the kernels of latent attention.

use super::{ConstPtr, Half, KvLayout, Norm, Ptr, Rotation, Session};

/// Longest key of latent attention.
pub const MAX_LATENT_KEY: u32 = 768;

/// Rows of input that a block of the `head_product` kernels takes.
pub const HEAD_ROWS: u32 = 64;

/// `LatentArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Latent {
    pub sessions: ConstPtr<ConstPtr<Session>>,
    /// `[rows][kv_stride]`: the latent vector, then the part of a key that is rotated.
    pub kv: ConstPtr<f32>,
    /// `[rows][q_stride]`: of each head the plain part, which gets the position's factor, then the rotated one.
    pub q: Ptr<f32>,
    /// `[rows][n_heads * head_dim]`: rotated parts are written behind the `rank` other elements.
    pub q16: Ptr<Half>,
    /// Of all of a rotated part.
    pub rotation: Rotation,
    /// Of the latent vector; weight NULL: none.
    pub norm: Norm,
    pub layout: KvLayout,
    pub q_scale: f32,
    pub kv_stride: u32,
    pub q_stride: u32,
    pub n_heads: u32,
    pub rank: u32,
    /// Elements of a plain part.
    pub plain: u32,
    /// Rows are positions of session 0.
    pub prefill: u32,
    pub padding: u32,
}

/// `HeadProductArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadProduct {
    /// `[n_heads][rows][groups * 32]`, one below the other.
    pub matrix: ConstPtr<u8>,
    /// `[count][x_stride]`, head h's from h * x_head on.
    pub x: ConstPtr<f32>,
    /// `[count][out_stride]`, head h's from h * out_head on; or NULL.
    pub f32: Ptr<f32>,
    /// The same as `f32`, times scale; or NULL.
    pub f16: Ptr<Half>,
    pub ty: u32,
    pub groups: u32,
    /// Of all heads.
    pub matrix_rows: u32,
    /// Outputs of a head.
    pub rows: u32,
    pub count: u32,
    /// Elements of a head's input.
    pub len: u32,
    pub x_stride: u32,
    pub x_head: u32,
    pub out_stride: u32,
    pub out_head: u32,
    pub scale: f32,
    pub padding: u32,
}

const _: () = {
    assert!(size_of::<Latent>() == 184);
    assert!(size_of::<HeadProduct>() == 80);
};
