//! Kernels: the structures that they take, the matrices that they read, and their launches.
//!
//! A launch turns shapes into arguments and a grid. Which launch follows which is decided in layers above. This one uses `driver`.

pub mod adapters;
pub mod args;
pub mod attention;
pub mod batch_f16;
mod drafts;
pub mod experts;
pub mod feed_forward;
mod fusion;
mod heads;
pub(in crate::backend::cuda) mod kernel_id;
pub mod kernels;
pub mod matrix;
mod matvec;
mod matvec_batch;
pub mod own_input;
mod predictor;
pub mod product;
mod product_path;
pub mod record;
pub mod recurrent;
pub mod sampling;
#[cfg(all(test, target_os = "linux"))]
mod shapes;
pub mod span;
mod streams;
pub mod texts;
