//! A session's source of drafts, which work in the background may ask.

use super::{DraftContext, DraftSource, SourceKind};
use crate::backend::HiddenStates;
use crate::engine::Session;
use crate::error::{Result, fail};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The source of a session. Dropping it drops the source, once nobody asks it any more.
pub struct Source {
    shared: SharedSource,
    kind: SourceKind,
    is_quick: bool,
}

/// A source that belongs to somebody else. Work in the background has such a one: a source may own a model, which must not end
/// on its own thread.
#[derive(Clone)]
pub struct SharedSource(Arc<Mutex<Option<Box<dyn DraftSource>>>>);

/// What a source was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Drafts that it had.
    pub count: usize,
    /// Tokens of the context that it had to read first.
    pub lacked: usize,
    /// How long all that took.
    pub took: Duration,
}

impl Source {
    pub fn new(source: Box<dyn DraftSource>) -> Source {
        Source {
            kind: source.kind(),
            is_quick: source.is_quick(),
            shared: SharedSource(Arc::new(Mutex::new(Some(source)))),
        }
    }

    pub fn kind(&self) -> SourceKind {
        self.kind
    }

    pub fn is_quick(&self) -> bool {
        self.is_quick
    }

    pub fn states(&self) -> Option<Arc<HiddenStates>> {
        let source = self.shared.lock();
        source.as_ref().and_then(|source| source.states())
    }

    pub fn evict(&mut self) -> Result<()> {
        match &mut *self.shared.lock() {
            Some(source) => source.evict(),
            None => Ok(()),
        }
    }

    pub fn resume(&mut self) -> Result<()> {
        match &mut *self.shared.lock() {
            Some(source) => source.resume(),
            None => Ok(()),
        }
    }

    /// For work in the background.
    pub fn shared(&self) -> SharedSource {
        self.shared.clone()
    }

    pub fn lacks(&self, context: &DraftContext<'_>) -> usize {
        let source = self.shared.lock();
        source.as_ref().map_or(0, |source| source.lacks(context))
    }

    pub fn look(&mut self, context: &DraftContext<'_>) -> Result<Option<usize>> {
        match &mut *self.shared.lock() {
            Some(source) => source.look(context),
            None => Ok(None),
        }
    }

    pub fn ask(&mut self, context: &DraftContext<'_>, drafts: &mut [u32]) -> Result<Asked> {
        self.shared.ask(context, drafts)
    }

    pub fn fork(&mut self, fork: &Session) -> Result<Box<dyn DraftSource>> {
        match &mut *self.shared.lock() {
            Some(source) => source.fork(fork),
            None => fail!(Internal, "a source that has ended"),
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let source = self.shared.lock().take();
        drop(source);
    }
}

impl SharedSource {
    fn lock(&self) -> MutexGuard<'_, Option<Box<dyn DraftSource>>> {
        // Whatever state a panic has left it in, its guesses are checked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for drafts of what follows a context that the source has looked at, up to the end of the answer. It has none when its
    /// owner is gone.
    ///
    /// Errors: those of the source.
    pub fn ask(&self, context: &DraftContext<'_>, drafts: &mut [u32]) -> Result<Asked> {
        let begun = Instant::now();
        let mut source = self.lock();
        let (count, lacked) = match &mut *source {
            Some(source) => {
                let lacked = source.lacks(context);
                let count = source.draft(context, drafts)?.min(drafts.len());
                let end = drafts[..count].iter().position(|d| context.is_end(*d));
                (end.map_or(count, |end| end + 1), lacked)
            }
            None => (0, 0),
        };
        Ok(Asked {
            count,
            lacked,
            took: begun.elapsed(),
        })
    }
}
