//! Whether this process was forked from one that has loaded a model. Such a child has a copy of the
//! library's memory but none of its threads, and no GPU; whatever waits for them would hang.

pub(super) use system::{check, remember};

#[cfg(unix)]
mod system {
    use crate::error::{Result, fail};
    use std::sync::atomic::{AtomicU32, Ordering};

    /// The process that loaded a model first; 0 before.
    static OWNER: AtomicU32 = AtomicU32::new(0);

    /// Called when a model has been loaded, before it gets its handle.
    pub(crate) fn remember() {
        let _ = OWNER.compare_exchange(0, std::process::id(), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// `Forked` in a child of the process that has loaded a model. Takes no lock, because a thread
    /// that the child does not have may hold it. Costs a system call, some 100 ns.
    pub(crate) fn check() -> Result<()> {
        let owner = OWNER.load(Ordering::Relaxed);
        if owner != 0 && owner != std::process::id() {
            fail!(
                Forked,
                "this process was forked from process {owner}, which has loaded a model; \
                 load models in the child only, or exec before using the library"
            );
        }
        Ok(())
    }
}

#[cfg(not(unix))]
mod system {
    use crate::error::Result;

    /// Nothing: processes are not forked here.
    pub(crate) fn remember() {}

    /// Always fine.
    pub(crate) fn check() -> Result<()> {
        Ok(())
    }
}
