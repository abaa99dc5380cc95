//! NCCL, NVIDIA's library for collective communication: what brings GPUs together that cannot reach each other's memory.
//!
//! It is opened when it is first needed, as the driver is. The library links to nothing of it.

mod communicator;
mod library;
mod watch;

pub use communicator::{Communicator, Id};
pub use library::library;
pub use watch::Watch;
