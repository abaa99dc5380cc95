//! Threads by the standard library, where threads get no signals.

use super::Work;
use std::io;
use std::thread::{Builder, JoinHandle};

/// What [`join`] waits for.
#[derive(Debug)]
pub(super) struct Handle(JoinHandle<()>);

/// Starts a thread.
pub(super) fn start(name: &str, stack_bytes: usize, work: Work) -> io::Result<Handle> {
    let thread = Builder::new()
        .name(name.to_owned())
        .stack_size(stack_bytes)
        .spawn(work)?;
    Ok(Handle(thread))
}

/// Waits for a thread's end.
pub(super) fn join(handle: Handle) {
    // Its work catches its own panics.
    let _ = handle.0.join();
}
