//! EmberLM runs quantized language models inside another program's process.
//!
//! The public interface is the C ABI in `include/emberlm.h`; the Rust modules below it are the
//! engine that the ABI, the tests and the benchmark share.

#[cfg(not(any(target_pointer_width = "64", target_pointer_width = "32")))]
compile_error!("EmberLM needs 32- or 64-bit pointers");

pub mod backend;
pub mod budget;
pub mod engine;
pub mod error;
pub mod ffi;
pub mod float_env;
pub mod format;
pub mod grammar;
pub mod log;
pub mod memory;
pub mod model;
pub mod panics;
pub mod quant;
mod status;
pub mod text;
mod threads;

pub use error::{Error, Result, Status};
