//! The life of a session: tokens seen, what is cached, what is pending. Knows no backend.

pub(crate) mod batch;
pub mod breakers;
pub mod device;
#[cfg(test)]
pub(crate) mod fake;
mod fingerprint;
mod grammar;
mod interrupt;
mod metadata;
pub mod model;
mod queue;
mod residence;
pub mod sampling;
pub mod session;
pub mod state;
mod sync;

pub use interrupt::Interrupts;
pub use metadata::Metadata;
pub use model::{Details, Model};
pub use session::{Session, SessionOptions};
