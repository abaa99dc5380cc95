//! Steps of a session: how they are launched, and how their results come back.

use super::{CudaRunner, EVALUATE, RESULT_SLOTS};
use crate::backend::cuda::driver::Stream;
use crate::backend::cuda::sampling::Stages;
use crate::backend::cuda::step::Ending;
use crate::backend::{MaskSource, Step};
use crate::error::{Result, fail};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

impl CudaRunner {
    /// Launches a step, and more that go on from it.
    pub(super) fn begin(
        &mut self,
        step: &Step,
        count: usize,
        interrupt: &AtomicBool,
    ) -> Result<()> {
        let context = self.weights.context().clone();
        let _current = context.enter()?;
        let stream = self.stream.clone();
        if count == 0 || count > RESULT_SLOTS as usize {
            fail!(Internal, "{count} steps started at once");
        }
        let stages = self.prepare(&stream, step, count, false, interrupt)?;
        let kind = |advance| Ending {
            advance,
            choose: true,
            stages,
        };
        self.launch(kind(step.token.is_some()))?;
        self.launched(step);
        self.has_logits &= step.token.is_none();
        for _ in 1..count {
            self.has_logits = false;
            if let Err(e) = self.launch(kind(true)) {
                let _ = stream.synchronize();
                self.abandon();
                return Err(e);
            }
            self.started = self.started.wrapping_add(1);
            self.in_flight += 1;
        }
        Ok(())
    }

    /// Launches a step whose mask is made while the device evaluates the token.
    pub(super) fn begin_masked(
        &mut self,
        step: &Step,
        mask: &mut MaskSource<'_>,
        interrupt: &AtomicBool,
    ) -> Result<()> {
        let context = self.weights.context().clone();
        let _current = context.enter()?;
        let stream = self.stream.clone();
        let stages = self.prepare(&stream, step, 1, true, interrupt)?;
        if step.token.is_some() {
            self.launch(EVALUATE)?;
            // Whatever the source does, the device has gone on.
            self.has_logits = false;
            self.mirror.position = None;
        }
        let launched = self.take_mask(&stream, mask).and_then(|()| {
            self.launch(Ending {
                advance: false,
                choose: true,
                stages,
            })
        });
        if let Err(e) = launched {
            // What comes next may be on another stream.
            let _ = stream.synchronize();
            return Err(e);
        }
        self.launched(step);
        Ok(())
    }

    /// Asks for the mask of a prepared step.
    pub(in crate::backend::cuda) fn take_mask(
        &mut self,
        stream: &Stream,
        mask: &mut MaskSource<'_>,
    ) -> Result<()> {
        // SAFETY: `Drop` waits for the runner's stream, and a batch for its results. The last masked
        // step has ended, and its copy with it.
        unsafe { self.sampling.mask(stream, mask) }
    }

    /// Brings the device-side state to where `step` begins, on `stream`, and says how it chooses.
    pub(in crate::backend::cuda) fn prepare(
        &mut self,
        stream: &Stream,
        step: &Step,
        count: usize,
        masked: bool,
        interrupt: &AtomicBool,
    ) -> Result<Stages> {
        if self.in_flight > 0 {
            fail!(DecodePending, "a step is under way");
        }
        if interrupt.load(Ordering::Relaxed) {
            fail!(Interrupted, "interrupted before the step");
        }
        let after = self.len + usize::from(step.token.is_some());
        self.grow(after + count - 1)?;
        self.written = self.written.max(after + count - 1);
        if let Some(token) = step.token {
            self.set_token(stream, token)?;
        } else if !self.has_logits {
            fail!(Internal, "there are no logits to choose from");
        }
        self.set_position(stream, self.len)?;
        let settings = self.sampling.settings(&step.sampling, masked);
        self.set_sampling(stream, settings, step.position.wrapping_sub(after as u64))?;
        Ok(Stages::of(&settings))
    }

    /// Notes that a prepared step is under way.
    pub(in crate::backend::cuda) fn launched(&mut self, step: &Step) {
        self.started = self.started.wrapping_add(1);
        self.in_flight = 1;
        self.appends = step.token.is_some();
        self.interrupt = None;
        self.mirror.position = None;
        self.mirror.token = None;
    }

    /// The result of the started step, which runs on `stream`.
    pub(in crate::backend::cuda) fn poll_on(
        &mut self,
        stream: &Stream,
        wait: bool,
    ) -> Result<Option<u32>> {
        if self.in_flight == 0 {
            fail!(NothingPending, "no step was started");
        }
        let context = self.weights.context().clone();
        let _current = context.enter().inspect_err(|_| self.abandon())?;
        let mut turns = 0u32;
        let value = loop {
            if let Some(value) = self.result() {
                break value;
            }
            if let Some(interrupt) = &self.interrupt
                && interrupt.load(Ordering::Relaxed)
            {
                let idle = stream.synchronize();
                self.abandon();
                idle?;
                fail!(Interrupted, "interrupted while deciding on a token");
            }
            // Errors show in the stream only; asking it costs more than a look at the ring.
            if turns.is_multiple_of(256) {
                let idle = stream.is_idle().inspect_err(|_| self.abandon())?;
                if idle && self.result().is_none() {
                    self.abandon();
                    fail!(Internal, "a step ended without a result");
                }
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
        };
        let token = value as u32;
        let outcome = (value >> 32) as u8;
        if outcome != 0 {
            // The device has gone on, and so have the steps behind this one.
            let idle = stream.synchronize();
            self.abandon();
            idle?;
        }
        match outcome {
            0 => {}
            1 => fail!(Numeric, "the logit of token {token} is not a number"),
            2 => fail!(Numeric, "the logit of token {token} is infinite"),
            _ if self
                .mirror
                .settings
                .is_some_and(|s| s.masked != 0 || s.bias != 0) =>
            {
                fail!(Numeric, "every logit that may be chosen is minus infinity")
            }
            _ => fail!(Numeric, "every logit is minus infinity"),
        }
        let reported = self.mirror.settings.is_some_and(|s| s.logprobs > 0);
        self.logprobs = reported.then(|| Box::new(self.sampling.logprobs(self.oldest_slot())));
        self.in_flight -= 1;
        self.len += usize::from(self.appends);
        self.appends = true;
        if self.in_flight == 0 {
            self.interrupt = None;
            self.mirror.position = Some(self.len as u32);
            self.mirror.token = Some(token);
            self.has_logits = true;
        }
        Ok(Some(token))
    }

    /// The number of the oldest step under way.
    fn oldest(&self) -> u32 {
        self.started.wrapping_sub(self.in_flight - 1)
    }

    /// Where it leaves its result.
    fn oldest_slot(&self) -> usize {
        (self.oldest().wrapping_sub(1) % RESULT_SLOTS) as usize
    }

    /// The result of the oldest step under way, if it is there.
    fn result(&self) -> Option<u64> {
        let number = self.oldest();
        let ring = self.results.pointer().cast::<u64>();
        // SAFETY: the ring has this entry, 8-byte aligned; the device writes entries as whole words.
        let entry = unsafe { AtomicU64::from_ptr(ring.add(self.oldest_slot())) };
        let value = entry.load(Ordering::Acquire);
        ((value >> 40) as u32 == number & 0xff_ffff).then_some(value)
    }

    /// Forgets started steps, after a failure. What the device holds is not known any more.
    pub(in crate::backend::cuda) fn abandon(&mut self) {
        self.in_flight = 0;
        self.interrupt = None;
        self.has_logits = false;
        self.mirror.position = None;
        self.mirror.token = None;
    }
}
