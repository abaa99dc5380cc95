//! How prompts and decodes of different sessions share a device.
//!
//! A prompt is evaluated in pieces. While other sessions decode, a piece and a step take turns, so
//! that a step waits for no more than one piece. A prompt in the background is enqueued no further
//! than [`AHEAD`] pieces, which is what the first step beside it waits for.

use crate::backend::cuda::driver::{Event, Stream};
use crate::error::{Result, fail};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Pieces that are enqueued before the first of them has ended, where somebody may want to decode.
const AHEAD: usize = 3;
/// A session that has decoded this long ago goes on with it, as far as prompts know.
const RECENT: Duration = Duration::from_millis(100);

/// What steps and prompts know of each other.
pub struct Gate {
    /// Prompts that are being evaluated.
    prompts: AtomicUsize,
    /// Steps launched while there were prompts.
    steps: AtomicU64,
    last: LastStep,
    marks: Mutex<Marks>,
}

/// Whose step was launched last, and when.
struct LastStep {
    start: Instant,
    /// Milliseconds from `start`.
    at: AtomicU64,
    /// A number of its stream.
    stream: AtomicUsize,
}

impl LastStep {
    fn note(&self, stream: &Stream) {
        let now = self.start.elapsed().as_millis() as u64;
        self.at.store(now, Ordering::Relaxed);
        self.stream.store(number(stream), Ordering::Relaxed);
    }

    /// Whether another than `stream` has recently decoded.
    fn is_recent(&self, stream: &Stream) -> bool {
        let stepped = self.stream.load(Ordering::Relaxed);
        let at = Duration::from_millis(self.at.load(Ordering::Relaxed));
        stepped != 0 && stepped != number(stream) && self.start.elapsed() < at + RECENT
    }
}

/// Tells streams apart that exist at the same time.
fn number(stream: &Stream) -> usize {
    std::ptr::from_ref(stream).addr()
}

/// Ends of the work that was enqueued last.
#[derive(Default)]
struct Marks {
    step: Option<Event>,
    piece: Option<Event>,
}

impl Gate {
    /// Nobody is there.
    pub fn new() -> Gate {
        Gate {
            prompts: AtomicUsize::new(0),
            steps: AtomicU64::new(0),
            last: LastStep {
                start: Instant::now(),
                at: AtomicU64::new(0),
                stream: AtomicUsize::new(0),
            },
            marks: Mutex::default(),
        }
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        // Nothing that panics runs under this mutex.
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a prompt is being evaluated.
    pub fn has_prompts(&self) -> bool {
        self.prompts.load(Ordering::Acquire) > 0
    }

    /// Launches a step on `stream`, behind the last piece of a prompt if there is one.
    pub fn step(&self, stream: &Stream, launch: impl FnOnce() -> Result<()>) -> Result<()> {
        self.last.note(stream);
        if !self.has_prompts() {
            return launch();
        }
        let mut marks = self.marks();
        if let Some(piece) = &marks.piece {
            stream.wait(piece)?;
        }
        launch()?;
        let step = match &mut marks.step {
            Some(step) => step,
            none => none.insert(Event::sleeping(stream.context())?),
        };
        step.record(stream)?;
        self.steps.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Begins the evaluation of a prompt on a stream.
    pub fn prompt<'a>(
        &'a self,
        stream: &'a Stream,
        interrupt: &'a AtomicBool,
        is_background: bool,
    ) -> Result<Prompt<'a>> {
        let mut ends = Vec::new();
        for _ in 0..AHEAD {
            ends.push(Event::sleeping(stream.context())?);
        }
        self.prompts.fetch_add(1, Ordering::AcqRel);
        Ok(Prompt {
            gate: self,
            stream,
            interrupt,
            is_background,
            ends,
            pieces: 0,
            steps: self.steps.load(Ordering::Acquire),
        })
    }
}

/// A prompt that is being evaluated.
pub struct Prompt<'a> {
    gate: &'a Gate,
    stream: &'a Stream,
    interrupt: &'a AtomicBool,
    /// Nobody waits for it, so that pieces need not be enqueued far ahead.
    is_background: bool,
    /// Ends of the last pieces, by turns.
    ends: Vec<Event>,
    pieces: usize,
    /// Steps that were launched before the last piece.
    steps: u64,
}

impl Prompt<'_> {
    /// Called between two pieces.
    ///
    /// Errors: `Interrupted`; those of the device.
    pub fn pause(&mut self) -> Result<()> {
        if self.interrupt.load(Ordering::Relaxed) {
            fail!(Interrupted, "interrupted while evaluating tokens");
        }
        let steps = self.gate.steps.load(Ordering::Acquire);
        let stepped = std::mem::replace(&mut self.steps, steps) != steps;
        let others = stepped || self.gate.last.is_recent(self.stream);
        if !others && !self.is_background {
            return Ok(());
        }
        let at = self.pieces % AHEAD;
        self.pieces += 1;
        self.ends[at].record(self.stream)?;
        {
            let mut marks = self.gate.marks();
            let piece = match &mut marks.piece {
                Some(piece) => piece,
                none => none.insert(Event::sleeping(self.stream.context())?),
            };
            piece.record(self.stream)?;
        }
        if others {
            // This piece ends before the next is enqueued, behind the steps that were launched by then.
            // The step that follows a step is launched while the piece between them runs, so that the
            // device goes from one to the other without a pause.
            self.ends[at].synchronize()?;
            if let Some(step) = &self.gate.marks().step {
                self.stream.wait(step)?;
            }
        } else if self.pieces >= AHEAD {
            self.ends[self.pieces % AHEAD].synchronize()?;
        }
        Ok(())
    }
}

impl Drop for Prompt<'_> {
    fn drop(&mut self) {
        self.gate.prompts.fetch_sub(1, Ordering::AcqRel);
    }
}
