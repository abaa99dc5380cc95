//! A session of a network in parts, and what is under way with it.

use super::core::{Core, Done};
use super::weights::PartsWeights;
use super::{rank_states, stream};
use crate::backend::driver::{Driver, Job, check_idle, next_done, start_work};
use crate::backend::row::RowWork;
use crate::backend::{
    Mark, Outcome, Runner, StateInfo, StateSink, StateSource, Want, When, fill_mask,
};
use crate::engine::sampling::{LogprobBoxes, Logprobs, TokenRules};
use crate::error::{Result, fail};
use crate::model::AdapterSet;
use crate::threads::Thread;
use crate::threads::event::Event;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A runner made of runners.
pub(super) struct PartsRunner {
    // Dropped in this order: the core before the weights, as in it.
    /// Made by the first work in the background.
    driver: Option<Driver<Core>>,
    core: Arc<Mutex<Core>>,
    weights: Arc<PartsWeights>,
    /// Positions evaluated by now.
    progress: Arc<AtomicUsize>,
    /// Outcomes of work that the caller waited for, not yet collected.
    ready: VecDeque<Result<Done>>,
    /// Set by outcomes of work in the background.
    event: Option<Arc<Event>>,
    /// Whether the outcomes are those of a row with drafts, of which some were handed out.
    verifying: bool,
    /// Whether what is left of them is not wanted.
    dropping: bool,
    /// Of the choice that was returned last.
    logprobs: Option<Box<Logprobs>>,
    /// The core's.
    logprob_boxes: LogprobBoxes,
}

fn lock(core: &Mutex<Core>) -> MutexGuard<'_, Core> {
    // A panic on the way is an `Internal` error of that work; the state is as valid as before it.
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PartsRunner {
    pub fn new(core: Core) -> PartsRunner {
        PartsRunner {
            weights: core.weights.clone(),
            progress: core.progress.clone(),
            logprob_boxes: core.logprob_boxes.clone(),
            core: Arc::new(Mutex::new(core)),
            driver: None,
            ready: VecDeque::with_capacity(1),
            event: None,
            verifying: false,
            dropping: false,
            logprobs: None,
        }
    }

    /// Whether it takes work of these weights: they are its own, and nothing is under way.
    pub fn takes_work(&self, weights: &PartsWeights) -> Result<()> {
        if !std::ptr::eq(&*self.weights, weights) {
            fail!(Internal, "it has other weights");
        }
        self.check_idle()
    }

    /// `DecodePending` while work that was started is not collected.
    fn check_idle(&self) -> Result<()> {
        check_idle(&self.ready, &self.driver)
    }

    /// The core, if nothing is under way.
    pub fn idle_core(&self) -> Result<MutexGuard<'_, Core>> {
        self.check_idle()?;
        Ok(lock(&self.core))
    }

    /// Keeps an outcome for `poll`.
    pub fn keep(&mut self, done: Done) {
        self.ready.push_back(Ok(done));
    }

    /// Does or starts the work of a row by itself.
    pub fn submit(&mut self, row: &mut RowWork<'_, '_>, when: When) -> Result<()> {
        (self.verifying, self.dropping) = (false, false);
        match when {
            When::Now => self.run(row),
            When::Background => self.start(row),
        }
    }

    fn run(&mut self, row: &mut RowWork<'_, '_>) -> Result<()> {
        self.check_idle()?;
        // It is empty, but has its capacity.
        let mut outcomes = std::mem::take(&mut self.ready);
        let done = run(&mut lock(&self.core), row, &mut outcomes);
        if done.is_err() {
            outcomes.clear();
        }
        self.ready = outcomes;
        done
    }

    /// Has the parts do what comes with an outcome of a row with drafts when it is handed out.
    fn settle(&mut self, done: &Result<Option<Done>>) -> Result<()> {
        let position = match done {
            Ok(Some(Done::Verified(_, _, position))) => {
                self.verifying = true;
                match position {
                    Some(position) => Some(*position),
                    None => return Ok(()),
                }
            }
            Err(_) if self.verifying => None,
            _ => return Ok(()),
        };
        if self.dropping {
            return Ok(());
        }
        let settled = lock(&self.core).settle_drafts(position);
        if settled.is_err() {
            // Nothing is left of the row.
            while let Ok(Some(_)) = next_done(&mut self.ready, &mut self.driver, true) {}
        }
        settled
    }

    /// Starts the work of a row in the background.
    fn start(&mut self, row: &mut RowWork<'_, '_>) -> Result<()> {
        let mut guard = self.idle_core()?;
        let core = &mut *guard;
        core.check(row.tokens)?;
        let masked = match row.mask.take() {
            Some(source) => {
                fill_mask(source, core.weights.n_vocab(), &mut core.mask)?;
                true
            }
            None => false,
        };
        drop(guard);
        let job = Job {
            want: *row.want,
            masked,
        };
        start_work(
            &mut self.driver,
            &self.core,
            (row.tokens, job),
            self.weights.placement(),
            (row.interrupt, self.event.as_ref()),
        )
    }
}

/// Does the work of a row in this thread.
fn run(
    core: &mut Core,
    row: &mut RowWork<'_, '_>,
    outcomes: &mut VecDeque<Result<Done>>,
) -> Result<()> {
    let mask = row.mask.take();
    let (count, sampling) = match *row.want {
        Want::Logits | Want::Evaluated => {
            let done = core.extend(row.tokens, *row.want, row.interrupt)?;
            outcomes.push_back(Ok(done));
            return Ok(());
        }
        Want::Verified { drafts, sampling } => {
            let tokens = (row.tokens, drafts);
            return core.verify(tokens, &sampling, mask, row.interrupt, outcomes);
        }
        Want::Choices { count, sampling } => (count, sampling),
        Want::Drafted { .. } => fail!(Internal, "parts of a part"),
    };
    let (done, mut last) = core.choose(row.tokens, &sampling, mask, row.interrupt)?;
    outcomes.push_back(Ok(done));
    for _ in 1..count {
        let next = core.choose(&[last], &sampling, None, row.interrupt);
        let failed = next.is_err();
        outcomes.push_back(next.map(|(done, token)| {
            last = token;
            done
        }));
        if failed {
            break;
        }
    }
    Ok(())
}

impl Runner for PartsRunner {
    fn as_any(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }

    fn len(&self) -> usize {
        lock(&self.core).len()
    }

    fn poll(&mut self, wait: bool) -> Result<Option<Outcome>> {
        let done = next_done(&mut self.ready, &mut self.driver, wait);
        self.settle(&done)?;
        Ok(done?.map(|done| match done {
            Done::Logits => Outcome::Logits,
            Done::Evaluated => Outcome::Evaluated,
            Done::Token(token, logprobs) | Done::Verified(token, logprobs, _) => {
                let last = std::mem::replace(&mut self.logprobs, logprobs);
                self.logprob_boxes.put_back(last);
                Outcome::Token(token)
            }
        }))
    }

    fn progress(&self) -> usize {
        self.progress.load(Ordering::Relaxed)
    }

    fn queue_limit(&self) -> usize {
        usize::MAX
    }

    fn has_logits(&self) -> bool {
        lock(&self.core).has_logits()
    }

    fn logits(&mut self, out: &mut [f32]) -> Result<()> {
        self.idle_core()?.speaker()?.logits(out)
    }

    fn logprobs(&self) -> Option<&Logprobs> {
        self.logprobs.as_deref()
    }

    fn set_event(&mut self, event: Option<Arc<Event>>) {
        self.event = event;
    }

    fn retire(&mut self) -> Option<Thread> {
        self.driver.as_mut().and_then(|driver| driver.retire())
    }

    fn set_rules(&mut self, rules: Option<Arc<TokenRules>>) -> Result<()> {
        self.idle_core()?.speaker()?.set_rules(rules)
    }

    fn set_adapters(&mut self, adapters: Option<Arc<AdapterSet>>) -> Result<()> {
        self.idle_core()?.set_adapters(adapters)
    }

    fn mark_before(&self, position: usize) -> Mark {
        let core = lock(&self.core);
        core.mark_before(position.min(core.len()))
    }

    fn rollback(&mut self, mark: Mark) {
        lock(&self.core).go_back(mark.position());
    }

    fn drop_outcomes(&mut self) {
        self.dropping = true;
        lock(&self.core).drop_drafts();
    }

    fn reserve_drafts(&mut self, drafts: usize) -> Result<()> {
        self.idle_core()?.reserve_drafts(drafts)
    }

    fn save(&mut self, sink: &mut dyn StateSink) -> Result<()> {
        let mut core = self.idle_core()?;
        match self.weights.ranks() {
            Some(_) => rank_states::save(&mut core, sink),
            None => stream::save(&mut core, sink),
        }
    }

    fn load(
        &mut self,
        info: &StateInfo,
        tokens: &[u32],
        source: &mut dyn StateSource,
    ) -> Result<()> {
        let mut core = self.idle_core()?;
        let loaded = match self.weights.ranks() {
            Some(_) => rank_states::load(&mut core, info, tokens, source),
            None => stream::load(&mut core, info, tokens, source),
        };
        if loaded.is_err() {
            core.go_back(0);
        }
        core.note_progress();
        loaded
    }

    fn fork(&mut self) -> Result<Box<dyn Runner>> {
        let mut core = self.idle_core()?;
        let parts = core.parts.iter_mut().map(|part| part.fork());
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let mut other = Core::new(core.weights.clone(), parts, (core.context, core.kv_type))?;
        other.adapters = core.adapters.clone();
        other.remember(&core);
        Ok(Box::new(PartsRunner::new(other)))
    }
}
