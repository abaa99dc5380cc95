//! Whole texts without a session.

use super::{ConstPtr, Flash, Half, Ptr};

/// Texts of a `dense_texts` block.
pub const DENSE_TEXTS: u32 = 8;

/// Outputs of it, one a warp.
pub const DENSE_OUTPUTS: u32 = 4;

/// `TextTile`.
///
/// Queries that a block attends with: those of a text from one on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextTile {
    /// The text's first row.
    pub start: u32,
    /// Its rows.
    pub len: u32,
    /// The first query, counted from `start`.
    pub first: u32,
    pub padding: u32,
}

/// `TextFlashArgs`.
///
/// Attention of whole texts. Of `flash`, `sessions`, `first_row` and `rows` are not used.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct TextFlash {
    pub flash: Flash,
    /// One for each block of a head.
    pub tiles: ConstPtr<TextTile>,
    /// Keys and values of `kv_rows` rows.
    pub kv: ConstPtr<u8>,
    /// `[rows][n_heads * head_dim]`, tiled, in place of `out`; or NULL. Whole tiles, heads of a multiple of 8.
    pub f16: Ptr<Half>,
    /// `[rows]` becomes ones.
    pub f16_scale: Ptr<f32>,
    pub kv_rows: u32,
    /// Position p sees p - window + 1 to p + ahead - 1.
    pub ahead: u32,
}

/// `TextSpan`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextSpan {
    /// The text's first row.
    pub start: u32,
    /// Its rows.
    pub len: u32,
}

/// `PoolingKind` of `PoolArgs`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolingKind {
    Mean = 0,
    First = 1,
    Last = 2,
}

/// `PoolArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Pool {
    /// `[rows][x_stride]`.
    pub x: ConstPtr<f32>,
    pub texts: ConstPtr<TextSpan>,
    /// `[texts][out_stride]`.
    pub out: Ptr<f32>,
    pub x_stride: u32,
    pub out_stride: u32,
    /// Elements of a row.
    pub len: u32,
    pub pooling: u32,
}

/// `DenseKind` of `DenseArgs`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenseKind {
    Plain = 0,
    Tanh = 1,
    Gelu = 2,
}

/// `DenseArgs`.
///
/// out = activation(w x + bias), all in f32.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Dense {
    /// `[outputs][inputs]`.
    pub w: ConstPtr<f32>,
    /// `[outputs]` or NULL.
    pub bias: ConstPtr<f32>,
    /// `[count][x_stride]`.
    pub x: ConstPtr<f32>,
    /// `[count][out_stride]`.
    pub out: Ptr<f32>,
    pub x_stride: u32,
    pub out_stride: u32,
    pub inputs: u32,
    pub outputs: u32,
    pub count: u32,
    pub activation: u32,
}

const _: () = {
    assert!(size_of::<TextTile>() == 16);
    assert!(size_of::<TextFlash>() == 144);
    assert!(size_of::<TextSpan>() == 8);
    assert!(size_of::<Pool>() == 40);
    assert!(size_of::<Dense>() == 56);
};
