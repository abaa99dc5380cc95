//! Where the state of a session is: on its device, or moved to host memory.

use super::Session;
use crate::backend::state::StateLayout;
use crate::backend::{Runner, StateInfo, StateSink, StateSource, Weights};
use crate::engine::sampling::Logprobs;
use crate::error::{Result, fail};
use crate::memory::Pages;
use crate::model::KvShape;

/// Where a state is.
pub(super) enum Residence {
    /// On the device, with everything that evaluates.
    Device(Box<dyn Runner>),
    /// In host memory; nothing of it is on the device.
    Host(Box<Evicted>),
    /// With work in the background, which gives it back. The log-probabilities are those of the last choice.
    Lent(Option<Box<Logprobs>>),
}

/// A state in host memory.
pub(super) struct Evicted {
    state: SavedState,
    /// The tokens of its positions.
    tokens: Vec<u32>,
    /// Positions that are still wanted of it.
    wanted: usize,
    /// Of the last choice.
    logprobs: Option<Logprobs>,
}

impl Residence {
    /// The runner, of a state that is on the device.
    pub fn runner(&mut self) -> Result<&mut dyn Runner> {
        match self {
            Residence::Device(runner) => Ok(&mut **runner),
            Residence::Host(_) | Residence::Lent(_) => {
                fail!(Internal, "the state is not on the device")
            }
        }
    }

    /// Goes back to the last mark within the first `position` positions, if the state is beyond
    /// them.
    pub fn roll_back_to(&mut self, position: usize) {
        match self {
            Residence::Device(runner) => {
                if runner.len() > position {
                    let mark = runner.mark_before(position);
                    runner.rollback(mark);
                }
            }
            Residence::Host(evicted) => evicted.wanted = evicted.wanted.min(position),
            // Whoever takes it back goes back, too.
            Residence::Lent(_) => {}
        }
    }

    /// The log-probabilities of the last choice.
    pub fn logprobs(&self) -> Option<&Logprobs> {
        match self {
            Residence::Device(runner) => runner.logprobs(),
            Residence::Host(evicted) => evicted.logprobs.as_ref(),
            Residence::Lent(logprobs) => logprobs.as_deref(),
        }
    }
}

impl Session {
    /// Moves the state to host memory and gives the device's back. The next call that needs it
    /// brings it back.
    ///
    /// Errors: `DecodePending`; `OutOfMemory`; those of the device. The state is where it was then.
    pub fn evict(&mut self) -> Result<()> {
        self.begin()?;
        let Residence::Device(runner) = &mut self.residence else {
            return Ok(());
        };
        let n_vocab = self.model.details().n_vocab;
        let state = SavedState::of(&mut **runner, &**self.model.weights(), n_vocab)?;
        let len = state.info.len;
        let evicted = Evicted {
            tokens: self.tokens[..len].to_vec(),
            wanted: len,
            state,
            logprobs: runner.logprobs().cloned(),
        };
        let evicted = Box::new(evicted);
        // Nothing that is kept was made with memory of the reserve.
        crate::memory::check()?;
        if let Some(speculation) = &mut self.speculation {
            speculation.evict()?;
            if let Err(e) = crate::memory::check() {
                let back = speculation.resume();
                let back = back.and_then(|()| runner.keep_states(speculation.states()));
                return back.and(Err(e));
            }
        }
        self.residence = Residence::Host(evicted);
        Ok(())
    }

    /// Brings an evicted state back to the device. Nothing happens to one that is there.
    ///
    /// Errors: `OutOfMemory`; those of the device. The state is still evicted then.
    pub fn resume(&mut self) -> Result<()> {
        let Residence::Host(evicted) = &mut self.residence else {
            return Ok(());
        };
        let weights = self.model.weights().clone();
        let mut runner = weights.create_runner(&self.options)?;
        runner.set_rules(self.rules.clone())?;
        runner.set_adapters(self.adapters.clone())?;
        runner.set_event(self.event.clone());
        if let Some(speculation) = &mut self.speculation {
            speculation.resume()?;
            runner.reserve_drafts(speculation.most())?;
        }
        evicted.state.load(&mut *runner, &evicted.tokens)?;
        if let Some(speculation) = &self.speculation {
            runner.keep_states(speculation.states())?;
        }
        crate::memory::check()?;
        let wanted = evicted.wanted;
        self.residence = Residence::Device(runner);
        self.residence.roll_back_to(wanted);
        Ok(())
    }
}

/// A runner's state as a stream in host memory.
pub(super) struct SavedState {
    info: StateInfo,
    stream: Stored,
}

impl SavedState {
    /// The state of a runner of these weights. Errors: `OutOfMemory`; those of the device.
    pub fn of(
        runner: &mut dyn Runner,
        weights: &dyn Weights,
        n_vocab: usize,
    ) -> Result<SavedState> {
        let mut memory = Memory {
            layers: weights.kv_layers(),
            fixed_len: weights.fixed_len(),
            n_vocab,
            info: None,
            stream: None,
        };
        runner.save(&mut memory)?;
        let (Some(info), Some(stream)) = (memory.info, memory.stream) else {
            fail!(Internal, "a saved state without a beginning");
        };
        Ok(SavedState { info, stream })
    }

    /// Positions in it.
    pub fn len(&self) -> usize {
        self.info.len
    }

    /// Makes it that of a new runner, whose positions have these tokens. Errors: `OutOfMemory`; those of the device.
    pub fn load(&self, runner: &mut dyn Runner, tokens: &[u32]) -> Result<()> {
        runner.load(&self.info, tokens, &mut self.stream.bytes())
    }
}

/// A stream in memory that has room for all of it.
struct Stored {
    memory: Pages,
    /// Bytes that were written.
    len: usize,
}

impl Stored {
    fn bytes(&self) -> &[u8] {
        &self.memory.bytes()[..self.len]
    }
}

/// Takes a stream in.
struct Memory<'a> {
    layers: &'a [KvShape],
    fixed_len: usize,
    n_vocab: usize,
    info: Option<StateInfo>,
    stream: Option<Stored>,
}

impl StateSink for Memory<'_> {
    fn begin(&mut self, info: &StateInfo) -> Result<()> {
        let bytes = StateLayout::new(self.layers, info, self.n_vocab)?;
        let bytes = bytes.with_fixed(self.fixed_len).bytes();
        let room = bytes.and_then(|b| usize::try_from(b).ok());
        let room = room.unwrap_or(usize::MAX).max(1);
        self.stream = Some(Stored {
            memory: Pages::new(room, "host memory for the state")?,
            len: 0,
        });
        self.info = Some(info.clone());
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(stream) = &mut self.stream else {
            fail!(Internal, "a saved state without a beginning");
        };
        let free = &mut stream.memory.bytes_mut()[stream.len..];
        let Some(place) = free.get_mut(..bytes.len()) else {
            fail!(Internal, "a state that is longer than its layout");
        };
        place.copy_from_slice(bytes);
        stream.len += bytes.len();
        Ok(())
    }
}

impl StateSource for &[u8] {
    fn read(&mut self, bytes: &mut [u8]) -> Result<()> {
        let Some((now, later)) = self.split_at_checked(bytes.len()) else {
            fail!(Internal, "a state that is shorter than its layout");
        };
        bytes.copy_from_slice(now);
        *self = later;
        Ok(())
    }
}
