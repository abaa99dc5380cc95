//! The structures of `kernels/predictor.cu`.

use super::Norm;

/// `KeepArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Keep {
    pub sessions: u64,
    pub x: u64,
    pub norm: Norm,
    pub x_stride: u32,
    pub len: u32,
    pub chunk: u32,
    pub padding: u32,
}

/// `EnterArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Enter {
    pub sessions: u64,
    pub x: u64,
    pub states: u64,
    pub out: u64,
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
