//! A network on a device: the plan of where everything of it lies, and its operations in their order, for a step and for a chunk.
//!
//! Whose tokens are evaluated, and when, is decided in `run`. This layer uses `launch` and `driver`.

pub mod adapters;
pub mod crossing;
pub mod evaluation;
pub mod experts;
pub mod fixed_plan;
mod fusion;
pub mod hidden;
pub mod host_layers;
pub mod jobs;
pub mod kv_plan;
pub mod linears;
pub mod mixer;
pub mod plan;
mod predictor;
pub mod prefill;
pub mod ranks;
pub mod readout;
pub mod rows;
pub mod step;
pub mod streams;
pub mod texts;
pub mod upload;
pub mod walk;
