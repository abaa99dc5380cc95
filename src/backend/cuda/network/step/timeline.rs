//! Where the time of a step goes: marks between its kernels.

use crate::backend::cuda::driver::{Context, Event, Stream};
use crate::backend::{Profile, Work};
use crate::error::Result;
use std::cell::RefCell;
use std::sync::Arc;

/// The end of a kernel.
struct Mark {
    event: Event,
    work: Work,
    /// What it read.
    bytes: u64,
}

/// Marks between the kernels of a step that is profiled.
pub struct Timeline {
    context: Arc<Context>,
    start: Event,
    marks: RefCell<Vec<Mark>>,
    /// Positions that attention reads.
    pub(super) positions: u64,
}

impl Timeline {
    /// A timeline of a step that makes the context `positions` long, which begins here.
    pub fn start(stream: &Stream, positions: usize) -> Result<Timeline> {
        let context = stream.context().clone();
        let start = Event::new(&context, true)?;
        start.record(stream)?;
        Ok(Timeline {
            context,
            start,
            marks: RefCell::new(Vec::new()),
            positions: positions as u64,
        })
    }

    pub(super) fn mark(&self, stream: &Stream, work: Work, bytes: u64) -> Result<()> {
        let event = Event::new(&self.context, true)?;
        event.record(stream)?;
        self.marks.borrow_mut().push(Mark { event, work, bytes });
        Ok(())
    }

    /// The times between the marks, all of which must be reached.
    pub fn profile(&self) -> Result<Profile> {
        let mut profile = Profile::default();
        let marks = self.marks.borrow();
        let mut before = &self.start;
        for mark in marks.iter() {
            let microseconds = f64::from(mark.event.since(before)?) * 1e3;
            profile.add(mark.work, microseconds, mark.bytes);
            before = &mark.event;
        }
        Ok(profile)
    }
}
