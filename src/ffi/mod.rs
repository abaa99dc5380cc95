//! The C ABI. Each function checks its arguments, calls one function of the engine and translates
//! the result; the documentation here becomes `include/emberlm.h`.
//!
//! One file per noun, around `boundary` (panics, pointers, option structs), `error` and `handle`.

// The names are C's, and the header's text states what callers owe every function.
#![allow(non_camel_case_types, clippy::missing_safety_doc)]

mod boundary;
mod decode;
mod device;
mod error;
mod handle;
mod log;
mod model;
mod session;
mod text;
mod version;

pub use decode::*;
pub use device::*;
pub use error::*;
pub use log::*;
pub use model::*;
pub use session::*;
pub use text::*;
pub use version::*;
