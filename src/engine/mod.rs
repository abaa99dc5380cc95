//! The life of a session: tokens seen, what is cached, what is pending. Knows no backend.

mod adapter;
mod background;
pub(crate) mod batch;
pub mod breakers;
pub mod device;
pub mod embedder;
#[cfg(test)]
pub(crate) mod fake;
mod fingerprint;
mod generate;
mod grammar;
mod interrupt;
mod metadata;
pub mod model;
mod placement;
mod queue;
mod residence;
pub mod sampling;
pub mod session;
pub mod speculate;
pub mod state;
mod sync;

pub use adapter::{
    Adapter, MAX_ADAPTERS, Wanted as WantedAdapter, check_count as check_adapter_count,
};
pub use embedder::{Embedder, EmbedderDetails, EmbedderOptions};
pub use generate::{End, GenerateOptions, Generated, Piece};
pub use interrupt::Interrupts;
pub use metadata::Metadata;
pub use model::{Details, Model};
pub use placement::{PartDetails, PlacedEstimate};
pub use session::{Session, SessionOptions};
