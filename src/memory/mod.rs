//! Memory that runs out is a status, whichever allocation fails, those of dependencies included.
//!
//! Rust's collections end the process when an allocation fails that nobody asked for fallibly, and
//! most of those are in dependencies. So the C library (feature `c-library`) has an allocator of its
//! own over the system's ([`allocator`]). Where the system has nothing, a small request is served
//! from a **reserve**, and the thread is *marked*. From then on:
//!
//! - [`check`] fails. Long loops call it, so that a call ends soon; and whatever is kept beyond a call
//!   (a handle, a grammar, a cache) calls it before it is kept, so that nothing that lives on lies in
//!   the reserve, and nothing is kept that was made with half of its memory.
//! - What the call held goes back to the reserve when the call returns.
//! - A call that finds the reserve low at its entry is refused at once ([`is_low`]), for which no
//!   memory is needed.
//!
//! Large requests get nothing from the reserve, so they have to be fallible (`try_reserve`). Where a
//! dependency, or code that is not worth it, makes large ones infallibly, a [`Room`] of address space
//! is taken before, which can fail, and out of which its requests are served if the system fails
//! meanwhile. A room costs two system calls and takes no memory while nothing fails.
//!
//! Rust programs that use this crate bring an allocator of their own; without the feature nothing
//! here does anything.

mod account;
#[cfg_attr(not(feature = "c-library"), allow(dead_code))]
mod allocator;
mod buddy;
mod pages;
mod reserve;
mod room;

pub use account::{Account, Charge};
pub use pages::{MODEL, Pages};
pub use room::{Entered, Room};

use crate::error::{Error, Result, Status};
use std::cell::Cell;

/// What a call says that ran out of memory.
const RAN_OUT: &str = "memory ran out during the call";
/// What a call says that was refused.
pub(crate) const IS_LOW: &str =
    "memory has run out, and calls that are running use what was set aside for that";

/// What a call says that had no memory for its thread's variables.
pub(crate) const NONE_TO_BEGIN: &str = "there was no memory to begin the call";

#[cfg(feature = "c-library")]
#[global_allocator]
static ALLOCATOR: allocator::Allocator<std::alloc::System> =
    allocator::Allocator::new(std::alloc::System);

thread_local! {
    /// Whether the system has refused this thread memory since its call began. Without a destructor,
    /// whose registration would need memory.
    static MARKED: Cell<bool> = const { Cell::new(false) };
}

/// Notes that the system had no memory for this thread.
fn mark() {
    let _ = MARKED.try_with(|marked| marked.set(true));
}

/// `OutOfMemory` if the system has refused this thread memory since its call began.
pub fn check() -> Result<()> {
    match MARKED.try_with(Cell::get) {
        Ok(true) => Err(Error::new(Status::OutOfMemory, RAN_OUT)),
        _ => Ok(()),
    }
}

/// Whether so much of the reserve is in use that no call should begin.
pub(crate) fn is_low() -> bool {
    reserve::is_low()
}

/// Takes so much of the reserve that calls are refused, for tests in a process of their own.
#[cfg(test)]
pub(crate) fn use_up() {
    let block = std::alloc::Layout::from_size_align(64 << 10, 8).unwrap();
    while !is_low() {
        assert!(reserve::take(block).is_some());
    }
}

/// The marks of one call: of an exported function, or of a thread's work for one. A call within a
/// call (from a callback) does not see the outer one's marks, nor the outer one its.
pub(crate) struct Call {
    outer: bool,
}

impl Call {
    pub(crate) fn begin() -> Call {
        let outer = MARKED.try_with(|marked| marked.replace(false));
        Call {
            outer: outer.unwrap_or(false),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let _ = MARKED.try_with(|marked| marked.set(self.outer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_belong_to_a_call_and_a_thread() {
        let outer = Call::begin();
        assert_eq!(check(), Ok(()));
        {
            let _inner = Call::begin();
            mark();
            assert_eq!(check().unwrap_err().status, Status::OutOfMemory);
            std::thread::scope(|scope| {
                scope.spawn(|| assert_eq!(check(), Ok(())));
            });
        }
        assert_eq!(check(), Ok(()));
        mark();
        drop(Call::begin());
        assert!(check().is_err());
        drop(outer);
        assert_eq!(check(), Ok(()));
    }
}
