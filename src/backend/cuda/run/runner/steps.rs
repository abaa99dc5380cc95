//! Steps of a session: how they are launched, and how their results come back.

use super::core::Core;
use crate::backend::MaskSource;
use crate::backend::cuda::driver::Stream;
use crate::backend::cuda::launch::attention::RowsOf;
use crate::backend::cuda::launch::sampling::{RESULT_SLOTS, Stages};
use crate::backend::cuda::network::step::Ending;
use crate::engine::sampling::{Logprobs, Sampling};
use crate::error::{Result, fail};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Steps that the device-side state is ready for.
pub struct Prepared {
    /// How they choose.
    pub stages: Stages,
    /// Whether the first of them appends a token.
    pub appends: bool,
}

/// Steps under way, whose tokens were not collected.
pub struct Steps {
    /// Where they run.
    stream: Arc<Stream>,
    in_flight: u32,
    /// Whether the oldest of them appends a token; all others do.
    appends: bool,
    /// Ends them early.
    interrupt: Option<Arc<AtomicBool>>,
}

/// A chosen token.
pub struct Chosen {
    /// Its id.
    pub token: u32,
    /// What there is to say about it, if that was asked for.
    pub logprobs: Option<Box<Logprobs>>,
}

/// What a row of steps asks for.
pub struct Request<'a> {
    pub token: Option<u32>,
    pub count: usize,
    pub sampling: &'a Sampling,
    pub interrupt: &'a AtomicBool,
}

impl Core {
    /// Launches steps that go on from each other.
    pub fn begin(&mut self, request: &Request<'_>) -> Result<Steps> {
        let device = self.weights.context().clone();
        let _current = device.enter()?;
        let stream = self.stream.clone();
        let &Request {
            token,
            count,
            sampling,
            interrupt,
        } = request;
        if count == 0 || count > RESULT_SLOTS as usize {
            fail!(Internal, "{count} steps started at once");
        }
        let prepared = self.prepare(&stream, token, count, sampling, false, interrupt)?;
        let stages = prepared.stages;
        let kind = |advance| Ending {
            advance,
            choose: true,
            stages,
            rows: RowsOf::Sessions,
        };
        self.launch(kind(prepared.appends))?;
        self.has_logits &= !prepared.appends;
        let mut steps = self.launched(prepared, &stream);
        self.notify(&stream);
        for _ in 1..count {
            self.has_logits = false;
            if let Err(e) = self.launch(kind(true)) {
                let _ = stream.synchronize();
                self.lose_track();
                return Err(e);
            }
            self.notify(&stream);
            self.started = self.started.wrapping_add(1);
            steps.in_flight += 1;
        }
        Ok(steps)
    }

    /// Has whoever waits for the session's event poll when a step is done. Without it, they poll when they have waited for
    /// long enough.
    pub(super) fn notify(&self, stream: &Stream) {
        if let Some(event) = self.event.as_ref().filter(|_| self.notifies) {
            let _ = stream.set_when_done(event);
        }
    }

    /// Launches a step whose mask is made while the device evaluates the token.
    pub fn begin_masked(
        &mut self,
        request: &Request<'_>,
        mask: &mut MaskSource<'_>,
    ) -> Result<Steps> {
        let device = self.weights.context().clone();
        let _current = device.enter()?;
        let stream = self.stream.clone();
        let &Request {
            token,
            sampling,
            interrupt,
            ..
        } = request;
        let prepared = self.prepare(&stream, token, 1, sampling, true, interrupt)?;
        if prepared.appends {
            self.launch(Ending::EVALUATE)?;
            // Whatever the source does, the device has gone on.
            self.has_logits = false;
            self.mirror.position = None;
        }
        let launched = self.take_mask(&stream, mask).and_then(|()| {
            self.launch(Ending {
                advance: false,
                choose: true,
                stages: prepared.stages,
                rows: RowsOf::Sessions,
            })
        });
        if let Err(e) = launched {
            // What comes next may be on another stream.
            let _ = stream.synchronize();
            return Err(e);
        }
        self.notify(&stream);
        Ok(self.launched(prepared, &stream))
    }

    /// Notes that a prepared step was launched on `stream`.
    pub fn launched(&mut self, prepared: Prepared, stream: &Arc<Stream>) -> Steps {
        self.started = self.started.wrapping_add(1);
        self.mirror.position = None;
        self.mirror.token = None;
        Steps {
            stream: stream.clone(),
            in_flight: 1,
            appends: prepared.appends,
            interrupt: None,
        }
    }
}

impl Steps {
    /// The same, ended early by `interrupt`.
    pub fn until(mut self, interrupt: &Arc<AtomicBool>) -> Steps {
        self.interrupt = Some(interrupt.clone());
        self
    }

    /// Whether all were collected.
    pub fn is_empty(&self) -> bool {
        self.in_flight == 0
    }

    /// The result of the oldest step, or `None` while it is not there. After an error there are no
    /// steps any more.
    pub fn poll(&mut self, core: &mut Core, wait: bool) -> Result<Option<Chosen>> {
        let result = self.try_poll(core, wait);
        if result.is_err() {
            self.in_flight = 0;
            core.lose_track();
            core.recover();
        }
        result
    }

    fn try_poll(&mut self, core: &mut Core, wait: bool) -> Result<Option<Chosen>> {
        if self.in_flight == 0 {
            fail!(NothingPending, "no step was started");
        }
        let device = core.weights.context().clone();
        let _current = device.enter()?;
        let (number, interrupt) = (self.oldest(core), self.interrupt.as_ref());
        let Some(value) = core.await_result(number, &self.stream, interrupt, wait)? else {
            return Ok(None);
        };
        let chosen = match core.chosen(number, value) {
            Ok(chosen) => chosen,
            Err(e) => {
                // The device has gone on, and so have the steps behind this one.
                self.stream.synchronize()?;
                return Err(e);
            }
        };
        self.in_flight -= 1;
        core.set_len(core.len() + usize::from(self.appends));
        self.appends = true;
        if self.in_flight == 0 {
            core.mirror.position = Some(core.len() as u32);
            core.mirror.token = Some(chosen.token);
            core.has_logits = true;
            core.settle(false)?;
        }
        Ok(Some(chosen))
    }

    /// The number of the oldest step.
    fn oldest(&self, core: &Core) -> u32 {
        core.started.wrapping_sub(self.in_flight - 1)
    }
}

/// Where a step leaves its result.
fn slot(number: u32) -> usize {
    (number.wrapping_sub(1) % RESULT_SLOTS) as usize
}

impl Core {
    /// The result of the step of a number, which runs on `stream`, or `None` while it is not there.
    pub(super) fn await_result(
        &self,
        number: u32,
        stream: &Stream,
        interrupt: Option<&Arc<AtomicBool>>,
        wait: bool,
    ) -> Result<Option<u64>> {
        let mut turns = 0u32;
        loop {
            if let Some(value) = self.result(number) {
                return Ok(Some(value));
            }
            if let Some(interrupt) = interrupt
                && interrupt.load(Ordering::Relaxed)
            {
                stream.synchronize()?;
                fail!(Interrupted, "interrupted while deciding on a token");
            }
            // Errors show in the stream only; asking it costs more than a look at the ring.
            if turns.is_multiple_of(256) && stream.is_idle()? && self.result(number).is_none() {
                fail!(Internal, "a step ended without a result");
            }
            if !wait {
                return Ok(None);
            }
            turns = turns.wrapping_add(1);
            if turns > 4096 {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// The result of the step of a number, if it is there.
    pub(super) fn result(&self, number: u32) -> Option<u64> {
        let ring = self.results().pointer().cast::<u64>();
        // SAFETY: the ring has this entry, 8-byte aligned; the device writes entries as whole words.
        let entry = unsafe { AtomicU64::from_ptr(ring.add(slot(number))) };
        let value = entry.load(Ordering::Acquire);
        ((value >> 40) as u32 == number & 0xff_ffff).then_some(value)
    }

    /// The token of a step's result, or why it has none.
    pub(super) fn chosen(&self, number: u32, value: u64) -> Result<Chosen> {
        let token = value as u32;
        let settings = self.mirror.settings;
        if (value >> 32) as u8 != 0 {
            // What the host could not evaluate is not a number.
            self.buffers.check_host()?;
        }
        match (value >> 32) as u8 {
            0 => {}
            1 => fail!(Numeric, "the logit of token {token} is not a number"),
            2 => fail!(Numeric, "the logit of token {token} is infinite"),
            _ if settings.is_some_and(|s| s.masked != 0 || s.bias != 0) => {
                fail!(Numeric, "every logit that may be chosen is minus infinity")
            }
            _ => fail!(Numeric, "every logit is minus infinity"),
        }
        let reported = settings.is_some_and(|s| s.logprobs > 0);
        let entry = || self.sampling.logprobs(slot(number));
        let logprobs = reported.then(|| self.logprob_boxes.fill(entry()));
        Ok(Chosen { token, logprobs })
    }
}
