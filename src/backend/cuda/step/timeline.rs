//! Where the time of a step goes: marks between its kernels.

use super::persistent::Times;
use crate::backend::cuda::driver::{Context, Event, Stream};
use crate::backend::{Profile, Work};
use crate::error::Result;
use std::cell::RefCell;
use std::sync::Arc;

/// The end of a kernel.
struct Mark {
    event: Event,
    /// What it did, and the bytes that it read: several operations where it has their times.
    work: Vec<(Work, u64)>,
    times: Option<Times>,
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
        self.push(stream, vec![(work, bytes)], None)
    }

    pub(super) fn mark_phases(
        &self,
        stream: &Stream,
        work: Vec<(Work, u64)>,
        times: Times,
    ) -> Result<()> {
        self.push(stream, work, Some(times))
    }

    fn push(&self, stream: &Stream, work: Vec<(Work, u64)>, times: Option<Times>) -> Result<()> {
        let event = Event::new(&self.context, true)?;
        event.record(stream)?;
        self.marks.borrow_mut().push(Mark { event, work, times });
        Ok(())
    }

    /// The times between the marks, all of which must be reached.
    pub fn profile(&self) -> Result<Profile> {
        let mut profile = Profile::default();
        let marks = self.marks.borrow();
        let mut before = &self.start;
        for mark in marks.iter() {
            let microseconds = f64::from(mark.event.since(before)?) * 1e3;
            let parts = match &mark.times {
                Some(times) => times.parts()?,
                None => vec![1.0],
            };
            for ((work, bytes), part) in mark.work.iter().zip(parts) {
                profile.add(*work, part * microseconds, *bytes);
            }
            before = &mark.event;
        }
        Ok(profile)
    }
}
