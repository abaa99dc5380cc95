//! Whole texts without a session.

use super::Flash;

/// `TextTile`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextTile {
    pub start: u32,
    pub len: u32,
    pub first: u32,
    pub padding: u32,
}

/// `TextFlashArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct TextFlash {
    pub flash: Flash,
    pub tiles: u64,
    pub kv: u64,
    pub slopes: u64,
    pub f16: u64,
    pub f16_scale: u64,
    pub kv_rows: u32,
    pub ahead: u32,
}

/// `TextSpan`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextSpan {
    pub start: u32,
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
    pub x: u64,
    pub texts: u64,
    pub out: u64,
    pub x_stride: u32,
    pub out_stride: u32,
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
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Dense {
    pub w: u64,
    pub bias: u64,
    pub x: u64,
    pub out: u64,
    pub x_stride: u32,
    pub out_stride: u32,
    pub inputs: u32,
    pub outputs: u32,
    pub count: u32,
    pub activation: u32,
}

// As the kernels assert of their twins.
const _: () = {
    assert!(size_of::<TextTile>() == 16);
    assert!(size_of::<TextFlash>() == 144);
    assert!(size_of::<TextSpan>() == 8);
    assert!(size_of::<Pool>() == 40);
    assert!(size_of::<Dense>() == 56);
};
