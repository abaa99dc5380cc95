//! The CPU backend.

pub mod matmul;
mod device;
pub mod host;

pub use device::{BACKEND, CpuBackend};
