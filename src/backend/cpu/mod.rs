//! The CPU backend.

mod device;
pub mod host;

pub use device::{BACKEND, CpuBackend};
