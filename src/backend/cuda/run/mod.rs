//! What lives on a device: weights, the runners that use them, with their states, batches and embedders.
//!
//! The engine knows them by the traits of `backend`. This layer uses all others.

pub mod batch;
pub mod device;
pub mod embedder;
mod gate;
mod residency;
pub mod runner;
pub mod sampling;
pub mod state;
pub mod weights;
