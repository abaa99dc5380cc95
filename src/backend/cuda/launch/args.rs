//! The structures that kernels take. `make header` writes kernels/args_*.h from the files of this
//! module. Each structure that ends in `Args` there is the only parameter of its kernels. Addresses
//! are on the device; 0 stands for NULL.

#![expect(
    missing_docs,
    reason = "names of fields say what the kernels do with them"
)]

mod adapters;
mod batch_f16;
mod common;
mod experts;
mod heads;
mod latent;
mod own;
mod predictor;
mod ranks;
mod recurrent;
mod sparse;
mod streams;
mod texts;

pub use adapters::*;
pub use batch_f16::*;
pub use common::*;
pub use experts::*;
pub use heads::*;
pub use latent::*;
pub use own::*;
pub use predictor::*;
pub use ranks::*;
pub use recurrent::*;
pub use sparse::*;
pub use streams::*;
pub use texts::*;

use crate::backend::cuda::driver::Pod;

/// The address of a `T` on the device, which kernels write to: `T*` there.
pub type Ptr<T> = <T as OnDevice>::Address;

/// The address of a `T` on the device, which kernels only read: `const T*` there.
pub type ConstPtr<T> = <T as OnDevice>::Address;

/// Says that an address has 64 bits, whatever is there.
pub trait OnDevice {
    type Address;
}

impl<T> OnDevice for T {
    type Address = u64;
}

/// `__half`, an f16 number, of which the host has only addresses.
pub enum Half {}

// SAFETY: numbers without padding: 14 * 8 + 8 * 4 bytes, and settings of 4 * 8 + 16 * 4.
unsafe impl Pod for Session {}

// SAFETY: 32 numbers.
unsafe impl Pod for StateRing {}

const _: () = assert!(MAX_STREAMS as usize == crate::model::MAX_STREAMS);
const _: () = assert!(ENTRY_LOGPROBS == crate::engine::sampling::MAX_LOGPROBS);
