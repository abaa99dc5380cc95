//! The CUDA backend: everything of a step runs on an NVIDIA GPU, through the driver alone.
//!
//! Its folders are layers. Each uses only itself and those below it in this list.
//!
//! | folder | holds |
//! |---|---|
//! | `run` | what lives on a device: weights, runners, batches, embedders, the states of sessions |
//! | `network` | the plan of where a network lies, and its operations in order |
//! | `launch` | kernels: their arguments, the matrices that they read, and their launches |
//! | `driver` | contexts, memory, streams, graphs; NCCL |

pub mod driver;
pub mod launch;
pub mod network;
pub mod run;

pub use run::device::{BACKEND, CudaBackend};
