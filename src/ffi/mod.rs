//! The C ABI. Each function checks its arguments, calls one function of the engine and translates
//! the result; the documentation here becomes `include/emberlm.h`.
//!
//! One file per noun, around `boundary` (panics, pointers, option structs), `error` and `handle`.

// The names are C's, and the header's text states what callers owe every function.
#![allow(non_camel_case_types, clippy::missing_safety_doc)]

mod boundary;
mod cancel;
mod forked;
mod handle;

// The header has the items in the order of these lines; the empty ones keep rustfmt from sorting.
mod version;

mod error;

mod log;

mod device;

mod supported;

mod group;

mod model;

mod source;

mod metadata;

mod sampling;

mod chain;

mod session;

mod context;

mod token;

mod event;

mod load;

mod decode;

mod batch;

mod state;

mod grammar;

mod speculation;

mod estimate;

mod profile;

mod text;

mod tokenizer;

mod text_stream;

mod generate;

mod embedder;

mod adapter;

mod chat;

pub use adapter::*;
pub use batch::*;
pub use chain::{ember_chain_kind, ember_cuda_model_options, ember_cuda_session_options};
pub use chat::*;
pub use context::*;
pub use decode::*;
pub use device::*;
pub use embedder::*;
pub use error::*;
pub use estimate::*;
pub use event::*;
pub use generate::*;
pub use grammar::*;
pub use group::*;
pub use load::*;
pub use log::*;
pub use metadata::*;
pub use model::*;
pub use profile::*;
pub use sampling::*;
pub use session::*;
pub use source::*;
pub use speculation::*;
pub use state::*;
pub use supported::*;
pub use text::*;
pub use text_stream::*;
pub use token::*;
pub use tokenizer::*;
pub use version::*;

#[cfg(test)]
use crate::Status;

#[cfg(test)]
mod lifecycle_tests;
