//! A runner with its weights, and single rows of work for it.

use emberlm::Result;
use emberlm::backend::{
    KvType, MaskSource, Outcome, Profile, Residual, Row, RowResult, Runner, RunnerOptions, Want,
    Weights, When,
};
use emberlm::engine::sampling::Sampling;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// One decode step to do.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The token to append first, or `None` to choose from the logits at hand.
    pub token: Option<u32>,
    pub sampling: Sampling,
}

impl Step {
    /// The token to append, as a slice.
    fn tokens(&self) -> &[u32] {
        self.token.as_slice()
    }

    fn want(&self, count: usize) -> Want {
        let sampling = self.sampling;
        Want::Choices { count, sampling }
    }
}

/// A runner and its weights.
pub struct Driven {
    pub weights: Arc<dyn Weights>,
    pub runner: Box<dyn Runner>,
}

impl Driven {
    pub fn new(weights: &Arc<dyn Weights>, options: &RunnerOptions) -> Result<Driven> {
        let runner = weights.clone().create_runner(options)?;
        let weights = weights.clone();
        Ok(Driven { weights, runner })
    }

    /// With as much context as a test names, and all else as usual.
    pub fn with_context(weights: &Arc<dyn Weights>, context: usize, kv_type: KvType) -> Driven {
        let options = RunnerOptions {
            context,
            kv_type,
            ..Default::default()
        };
        Driven::new(weights, &options).unwrap()
    }

    fn submit(
        &mut self,
        tokens: &[u32],
        want: Want,
        mask: Option<&mut MaskSource<'_>>,
        interrupt: &Arc<AtomicBool>,
        when: When,
    ) -> Result<()> {
        let row = Row {
            runner: &mut *self.runner,
            tokens,
            want,
            mask: mask.map(|mask| mask as &mut MaskSource<'_>),
            interrupt,
            residual: Residual::default(),
        };
        self.weights.submit(&mut [row], when).map_err(|e| e.error)
    }

    /// Appends tokens and waits for the logits of the last one.
    pub fn extend(&mut self, tokens: &[u32], interrupt: &Arc<AtomicBool>) -> Result<()> {
        self.submit(tokens, Want::Logits, None, interrupt, When::Now)?;
        assert_eq!(self.runner.poll(true)?, Some(Outcome::Logits));
        Ok(())
    }

    /// Does a step and waits for its token.
    pub fn step(&mut self, step: &Step, interrupt: &Arc<AtomicBool>) -> Result<u32> {
        self.submit(step.tokens(), step.want(1), None, interrupt, When::Now)?;
        Ok(self.step_poll(true)?.expect("waited for"))
    }

    /// Does a step whose choice is masked.
    pub fn step_masked(
        &mut self,
        step: &Step,
        mask: &mut MaskSource<'_>,
        interrupt: &Arc<AtomicBool>,
    ) -> Result<u32> {
        self.submit(
            step.tokens(),
            step.want(1),
            Some(mask),
            interrupt,
            When::Now,
        )?;
        Ok(self.step_poll(true)?.expect("waited for"))
    }

    /// Starts a step whose choice is masked.
    pub fn step_start_masked(
        &mut self,
        step: &Step,
        mask: &mut MaskSource<'_>,
        interrupt: &Arc<AtomicBool>,
    ) -> Result<()> {
        let want = step.want(1);
        self.submit(step.tokens(), want, Some(mask), interrupt, When::Background)
    }

    /// Starts a step, and more that go on from it.
    pub fn steps_start(
        &mut self,
        step: &Step,
        count: usize,
        interrupt: &Arc<AtomicBool>,
    ) -> Result<()> {
        self.submit(
            step.tokens(),
            step.want(count),
            None,
            interrupt,
            When::Background,
        )
    }

    /// The next token of started steps.
    pub fn step_poll(&mut self, wait: bool) -> Result<Option<u32>> {
        Ok(match self.runner.poll(wait)? {
            None => None,
            Some(Outcome::Token(token)) => Some(token),
            Some(other) => panic!("{other:?} for a token"),
        })
    }

    /// Goes back to the first `len` positions, as far as that is possible.
    pub fn truncate(&mut self, len: usize) -> usize {
        if self.runner.len() > len {
            let mark = self.runner.mark_before(len);
            self.runner.rollback(mark);
        }
        self.runner.len()
    }

    pub fn fork(&mut self) -> Result<Driven> {
        let runner = self.runner.fork()?;
        let weights = self.weights.clone();
        Ok(Driven { weights, runner })
    }

    pub fn profile(&mut self, step: &Step, interrupt: &AtomicBool) -> Result<Profile> {
        let token = step.token.expect("a token to append");
        self.runner.profile(token, &step.sampling, interrupt)
    }
}

impl Deref for Driven {
    type Target = dyn Runner;
    fn deref(&self) -> &Self::Target {
        &*self.runner
    }
}

impl DerefMut for Driven {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.runner
    }
}

/// Steps of several runners in one submission. After an error, all are where they were.
pub fn step_batch(
    runners: &mut [&mut Driven],
    steps: &[Step],
    interrupts: &[&Arc<AtomicBool>],
    tokens: &mut [u32],
) -> RowResult<()> {
    step_batch_masked(runners, steps, &mut [], interrupts, tokens)
}

/// The same, the choice of `runners[i]` masked where `masks[i]` is there.
pub fn step_batch_masked(
    runners: &mut [&mut Driven],
    steps: &[Step],
    masks: &mut [Option<&mut MaskSource<'_>>],
    interrupts: &[&Arc<AtomicBool>],
    tokens: &mut [u32],
) -> RowResult<()> {
    let weights = runners[0].weights.clone();
    let marks: Vec<_> = runners.iter_mut().map(|r| r.runner.mark()).collect();
    let mut masks = masks.iter_mut();
    let mut rows = Vec::new();
    for ((driven, step), interrupt) in runners.iter_mut().zip(steps).zip(interrupts) {
        let mask = match masks.next() {
            Some(Some(mask)) => Some(&mut **mask as &mut MaskSource<'_>),
            _ => None,
        };
        rows.push(Row {
            runner: &mut *driven.runner,
            tokens: step.tokens(),
            want: step.want(1),
            mask,
            interrupt,
            residual: Residual::default(),
        });
    }
    let submitted = weights.submit(&mut rows, When::Now);
    let mut chosen = vec![0; rows.len()];
    let result = submitted.and_then(|()| {
        let mut result = Ok(());
        for (i, (row, token)) in rows.iter_mut().zip(&mut chosen).enumerate() {
            match row.runner.poll(true) {
                Ok(Some(Outcome::Token(id))) => *token = id,
                Ok(other) => panic!("{other:?} for a token"),
                Err(e) => result = result.and(Err(emberlm::backend::RowError::of(i, e))),
            }
        }
        result
    });
    match result {
        Ok(()) => tokens.copy_from_slice(&chosen),
        Err(_) => {
            for (driven, mark) in runners.iter_mut().zip(marks) {
                driven.runner.rollback(mark);
            }
        }
    }
    result
}
