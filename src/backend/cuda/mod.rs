//! The CUDA backend: everything of a step runs on an NVIDIA GPU, through the driver alone.

mod adapters;
pub mod arena;
pub mod args;
pub mod attention;
pub mod batch;
mod crossing;
mod device;
pub mod driver;
pub mod embedder;
pub mod evaluation;
pub mod experts;
mod gate;
mod hidden;
pub mod host_layers;
pub mod kernels;
pub mod matrix;
mod matvec_batch;
pub mod mixer;
pub mod nccl;
pub mod plan;
mod predictor;
pub mod prefill;
mod product;
pub mod ranks;
pub mod record;
mod recurrent;
mod residency;
pub mod runner;
pub mod sampling;
pub mod state;
pub mod step;
mod streams;
mod upload;
mod walk;
pub mod weights;

pub use device::{BACKEND, CudaBackend};
