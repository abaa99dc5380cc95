//! What a session has on the device: its state, memory, and a graph per kind of step.

use super::drafts::DraftSpace;
use super::steps::Prepared;
use crate::backend::cuda::driver::{Buffer, Graph, Pinned, Stream};
use crate::backend::cuda::launch::adapters::{Adapters, Reach};
use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::attention::RowsOf;
use crate::backend::cuda::launch::sampling::{RESULT_SLOTS, Stages};
use crate::backend::cuda::network::adapters::SessionAdapters;
use crate::backend::cuda::network::crossing;
use crate::backend::cuda::network::evaluation::Evaluation;
use crate::backend::cuda::network::hidden::{Keeps, StateRing};
use crate::backend::cuda::network::step::{Ending, StepBuffers};
use crate::backend::cuda::run::sampling::SamplingState;
use crate::backend::cuda::run::state::{FixedState, State};
use crate::backend::cuda::run::weights::CudaWeights;
use crate::backend::state::{StateInfo, StateLayout};
use crate::backend::{
    HiddenStates, MaskSource, Residual, RunnerOptions, StateSink, StateSource, TokenInput,
};
use crate::engine::sampling::{LogprobBoxes, Sampling};
use crate::error::{Result, fail};
use crate::model::AdapterSet;
use crate::threads::event::Event;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A kind of step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// What it does besides evaluating.
    pub ending: Ending,
    /// What the adapters of its sessions add to.
    pub adapted: Reach,
    /// Hidden states that they keep.
    pub keeps: Keeps,
}

/// Tokens to append.
pub struct Extension<'a> {
    /// One at least.
    pub tokens: &'a [u32],
    /// Of a part of a network.
    pub residual: Residual<'a>,
    /// Whether the last one is evaluated as steps do it and leaves its logits, if the weights end their network.
    pub with_logits: bool,
    /// Whether nobody waits for it.
    pub is_background: bool,
}

impl<'a> Extension<'a> {
    /// Tokens for which somebody waits, of a whole network.
    pub fn of(tokens: &'a [u32]) -> Extension<'a> {
        Extension {
            tokens,
            residual: Residual::default(),
            with_logits: true,
            is_background: false,
        }
    }
}

/// A session on the device. Nothing is under way between two calls of its functions but steps that
/// [`super::steps::Steps`] stands for.
pub struct Core {
    // Dropped in this order: what the device may still use goes last.
    /// One per kind of step, captured when it is first needed.
    graphs: Vec<(Kind, Graph)>,
    /// What drafts need, once it is reserved.
    pub(super) drafts: Option<Box<DraftSpace>>,
    /// What it runs.
    pub weights: Arc<CudaWeights>,
    /// Memory of a step.
    pub buffers: StepBuffers,
    /// The device-side state, and behind it a table with its address.
    session: Buffer,
    /// What it adds to products.
    adapters: Option<SessionAdapters>,
    /// What it is about to add, made by [`Core::reserve_adapters`].
    coming_adapters: Option<SessionAdapters>,
    /// Where the hidden states of its positions go.
    states: Option<Arc<HiddenStates>>,
    /// The index of a draw, less the position of its token.
    draw_offset: u64,
    /// Memory of choices.
    pub sampling: SamplingState,
    /// Where its choices' log-probabilities go.
    pub logprob_boxes: LogprobBoxes,
    results: Pinned,
    /// Keys and values.
    pub state: State,
    /// Where its work runs, unless it is part of a batch.
    pub stream: Arc<Stream>,
    stream_priority: i32,
    /// Positions in the state.
    len: usize,
    /// Whether the logits of the last position are in `buffers`.
    pub has_logits: bool,
    /// What the device-side state holds.
    pub mirror: Mirror,
    /// Steps started so far; their results carry this number.
    pub started: u32,
    /// Positions evaluated by now, for other threads.
    progress: Arc<AtomicUsize>,
    /// Set by outcomes of work in the background.
    pub event: Option<Arc<Event>>,
    /// Whether the work that begins is that.
    pub notifies: bool,
}

/// What the host last wrote to, or knows of, the device-side state.
pub struct Mirror {
    /// `None` where it is not known.
    pub position: Option<u32>,
    /// Likewise.
    pub token: Option<u32>,
    /// Likewise.
    pub settings: Option<args::Settings>,
}

/// Where the table is behind the device-side state.
const TABLE: usize = size_of::<args::Session>().next_multiple_of(256);

impl Core {
    /// An empty session with everything reserved that a step needs.
    pub fn new(weights: Arc<CudaWeights>, options: &RunnerOptions) -> Result<Core> {
        let device = weights.sessions().clone();
        let _current = device.enter()?;
        let plan = weights.plan().kv(options.kv_type)?;
        let n_vocab = weights.plan().logits_len() as usize;
        let fixed = FixedState::new(&device, &weights.plan().fixed, n_vocab, options.marks())?;
        let state = State::new(&device, plan, fixed, options.context)?;
        let mut core = Core::on(weights, state, options.stream_priority)?;
        core.capture_graphs()?;
        Ok(core)
    }

    /// Captures the graphs of the most frequent steps.
    pub fn capture_graphs(&mut self) -> Result<()> {
        let device = self.weights.sessions().clone();
        let _current = device.enter()?;
        let ends = self.weights.plan().ends.1;
        for (advance, choose) in [(true, true), (true, false), (false, true)] {
            if choose && !ends {
                continue;
            }
            self.graph(Ending {
                advance,
                choose,
                stages: Stages::default(),
                rows: RowsOf::Sessions,
            })?;
        }
        Ok(())
    }

    /// A session on a state, without graphs.
    fn on(weights: Arc<CudaWeights>, state: State, stream_priority: i32) -> Result<Core> {
        let device = weights.sessions().clone();
        let buffers = StepBuffers::new(&device, weights.network(), 1)?;
        let results = Pinned::new(&device, RESULT_SLOTS as usize * 8, "results")?;
        let n_vocab = weights.plan().n_vocab as usize;
        let slots = RESULT_SLOTS as usize;
        let sampling = SamplingState::new(&device, n_vocab, state.context(), slots)?;
        let session = Buffer::new(&device, TABLE + size_of::<u64>(), "session")?;
        session.write(TABLE, &[session.address()])?;
        let core = Core {
            graphs: Vec::new(),
            drafts: None,
            stream: Arc::new(Stream::new(&device, stream_priority.saturating_neg())?),
            weights,
            buffers,
            session,
            adapters: None,
            coming_adapters: None,
            states: None,
            draw_offset: 0,
            sampling,
            logprob_boxes: LogprobBoxes::new(),
            results,
            state,
            stream_priority,
            len: 0,
            has_logits: false,
            mirror: Mirror {
                position: Some(0),
                token: None,
                settings: None,
            },
            started: 0,
            progress: Arc::default(),
            event: None,
            notifies: false,
        };
        core.session.write(0, &[core.device_session()])?;
        Ok(core)
    }

    /// The device-side state of an empty session.
    pub(super) fn device_session(&self) -> args::Session {
        let [kv, kv_ring] = self.state.addresses();
        let mut session = args::Session {
            kv,
            kv_ring,
            fixed: self.state.fixed.address(),
            before: self.state.fixed.address(),
            chain: 1,
            context: self.state.context() as u32,
            results: self.results.address(),
            result_slots: RESULT_SLOTS,
            ..Default::default()
        };
        self.sampling.enter(&mut session);
        if let Some(adapters) = &self.adapters {
            adapters.enter(&mut session);
        }
        session
    }

    /// The products that its adapters add to.
    pub fn reach(&self) -> Reach {
        let adapters = self.adapters.as_ref();
        adapters.map_or(Reach::None, SessionAdapters::reach)
    }

    /// Readies memory for adapters that [`Core::set_adapters`] is to add; none gives it back.
    pub fn reserve_adapters(&mut self, set: Option<&Arc<AdapterSet>>) -> Result<()> {
        self.coming_adapters = None;
        let Some(set) = set else {
            return Ok(());
        };
        if !self.adapters.as_ref().is_some_and(|a| a.holds(set)) {
            let (device, plan) = (self.weights.sessions(), self.weights.plan());
            let _current = device.enter()?;
            self.coming_adapters = Some(SessionAdapters::new(device, plan, set.clone())?);
        }
        Ok(())
    }

    /// Adds this to products from now on. Nothing is under way.
    pub fn set_adapters(&mut self, set: Option<Arc<AdapterSet>>) -> Result<()> {
        let weights = self.weights.clone();
        let (device, plan) = (weights.sessions(), weights.plan());
        let _current = device.enter()?;
        // The last step is collected, but its kernels may not have ended.
        self.stream.synchronize()?;
        let coming = self.coming_adapters.take();
        let adapters = match (set, &mut self.adapters) {
            (Some(set), Some(adapters)) if adapters.holds(&set) => {
                return adapters.change(plan, set);
            }
            (Some(set), _) => match coming.filter(|coming| Arc::ptr_eq(&coming.set, &set)) {
                Some(coming) => Some(coming),
                None => Some(SessionAdapters::new(device, plan, set)?),
            },
            (None, _) => None,
        };
        let mut session = args::Session::default();
        if let Some(adapters) = &adapters {
            adapters.enter(&mut session);
        }
        let addresses = [session.adapters, session.thin];
        self.session
            .write(offset_of!(args::Session, adapters), &addresses)?;
        let numbers = [session.adapter_uses, session.thin_stride];
        self.session
            .write(offset_of!(args::Session, adapter_uses), &numbers)?;
        self.adapters = adapters;
        // They have the addresses of those before.
        self.graphs.retain(|(kind, _)| kind.adapted == Reach::None);
        if let Some(drafts) = &mut self.drafts {
            drafts.forget_adapters();
        }
        Ok(())
    }

    /// The hidden states that it keeps.
    pub fn keeps(&self) -> Keeps {
        Keeps::of(self.states.as_deref())
    }

    /// Keeps hidden states there from now on. Nothing is under way.
    pub fn keep_states(&mut self, states: Option<Arc<HiddenStates>>) -> Result<()> {
        let device = self.weights.sessions().clone();
        let _current = device.enter()?;
        let (address, rows) = match &states {
            Some(states) => StateRing::of(states, &device)?.place(),
            None => (0, 0),
        };
        // The last step is collected, but its kernels may not have ended.
        self.stream.synchronize()?;
        let session = &self.session;
        session.write(offset_of!(args::Session, states), &[address])?;
        session.write(offset_of!(args::Session, states_rows), &[rows])?;
        self.states = states;
        Ok(())
    }

    /// Adds this to the position of a token for the index of its draw. Nothing is under way.
    pub fn set_draw_offset(&mut self, offset: u64) -> Result<()> {
        if self.draw_offset == offset {
            return Ok(());
        }
        let device = self.weights.sessions().clone();
        let _current = device.enter()?;
        self.stream.synchronize()?;
        let at = offset_of!(args::Session, draw_offset);
        self.session.write(at, &[offset])?;
        self.draw_offset = offset;
        Ok(())
    }

    /// Positions in the state.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the state is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Notes that positions were evaluated up to this one, or that those from it on are gone.
    pub fn set_len(&mut self, len: usize) {
        if let Some(states) = &self.states {
            match len.checked_sub(self.len) {
                Some(count) => states.evaluated(self.len, count),
                None => states.keep(len),
            }
        }
        self.note_len(len);
    }

    /// Notes how many positions are in the state.
    fn note_len(&mut self, len: usize) {
        self.len = len;
        self.progress.store(len, Ordering::Relaxed);
    }

    /// Positions evaluated by now.
    pub fn progress(&self) -> &Arc<AtomicUsize> {
        &self.progress
    }

    /// Tells the device where the states of fixed size are.
    pub(super) fn place_fixed(&self) -> Result<()> {
        let address = self.state.fixed.address();
        let at = offset_of!(args::Session, fixed);
        const _: () =
            assert!(offset_of!(args::Session, before) == offset_of!(args::Session, fixed) + 8);
        self.session.write(at, &[address, address])
    }

    /// The address of the device-side state.
    pub fn address(&self) -> u64 {
        self.session.address()
    }

    /// The ring of results.
    pub fn results(&self) -> &Pinned {
        &self.results
    }

    /// The address of a table of sessions with this one alone.
    pub fn table(&self) -> u64 {
        self.session.address() + TABLE as u64
    }

    fn capture(&self, kind: Ending) -> Result<Graph> {
        let eval = self.evaluation(&self.stream);
        self.stream.capture(|| {
            // SAFETY: *weights*: this structure holds an `Arc` of them. *sessions* and *workspace*: the
            // graph lives in this structure beside them, its stream keeps launches apart, and the cache
            // is prepared before each.
            unsafe { self.buffers.enqueue(&eval, 1, kind) }
        })
    }

    /// What evaluates tokens of this session on a stream.
    pub fn evaluation<'a>(&'a self, stream: &'a Stream) -> Evaluation<'a> {
        Evaluation {
            kernels: self.weights.kernels(),
            plan: self.weights.plan(),
            kv: self.state.plan(),
            stream,
            sessions: self.table(),
            adapters: match &self.adapters {
                Some(adapters) => Adapters::One(adapters.alone()),
                None => Adapters::None,
            },
            link: self.weights.link(),
            keeps: self.keeps(),
            guests: self.weights.guests(),
        }
    }

    /// The kind of its steps with this ending.
    pub(super) fn kind(&self, ending: Ending) -> Kind {
        Kind {
            ending,
            adapted: self.reach(),
            keeps: self.keeps(),
        }
    }

    /// The graph of a kind of step.
    fn graph(&mut self, kind: Ending) -> Result<&Graph> {
        let kind = self.kind(kind);
        let at = match self.graphs.iter().position(|(k, _)| *k == kind) {
            Some(at) => at,
            None => {
                let graph = self.capture(kind.ending)?;
                self.graphs.push((kind, graph));
                self.graphs.len() - 1
            }
        };
        Ok(&self.graphs[at].1)
    }

    /// Launches a step of a kind.
    pub fn launch(&mut self, kind: Ending) -> Result<()> {
        let (stream, weights) = (self.stream.clone(), self.weights.clone());
        if kind.advance {
            self.evaluation(&stream).begin()?;
        }
        let graph = self.graph(kind)?;
        // SAFETY: as in `capture`; `Drop` waits for the stream.
        weights
            .gate()
            .step(&stream, || unsafe { stream.launch_graph(graph) })
    }

    fn set32(&self, stream: &Stream, offset: usize, value: u32) -> Result<()> {
        // SAFETY: a field of the device-side state; stream order keeps it from running steps.
        unsafe { stream.fill32(self.session.address() + offset as u64, value, 1) }
    }

    /// Brings the device's position to the host's.
    pub(super) fn set_position(&mut self, stream: &Stream, position: usize) -> Result<()> {
        let position = position as u32;
        if self.mirror.position != Some(position) {
            self.mirror.position = None;
            self.set32(stream, offset_of!(args::Session, position), position)?;
            self.mirror.position = Some(position);
        }
        Ok(())
    }

    fn set_token(&mut self, stream: &Stream, token: u32) -> Result<()> {
        if self.mirror.token != Some(token) {
            self.mirror.token = None;
            self.set32(stream, offset_of!(args::Session, token), token)?;
            self.mirror.token = Some(token);
        }
        Ok(())
    }

    pub(super) fn set_sampling(&mut self, stream: &Stream, settings: args::Settings) -> Result<()> {
        if self.mirror.settings != Some(settings) {
            self.mirror.settings = None;
            let at = self.session.address() + offset_of!(args::Session, settings) as u64;
            let from = std::ptr::from_ref(&settings).cast();
            // SAFETY: a field of the device-side state; the source is read before this returns, as
            // it is not pinned; stream order keeps it from running steps.
            unsafe { stream.copy_in(at, from, size_of::<args::Settings>())? };
            self.mirror.settings = Some(settings);
        }
        Ok(())
    }

    /// Brings the device-side state to where `count` steps begin, on `stream`, the first of which
    /// appends `token`, and says how they choose.
    pub fn prepare(
        &mut self,
        stream: &Stream,
        token: Option<u32>,
        count: usize,
        sampling: &Sampling,
        masked: bool,
        interrupt: &AtomicBool,
    ) -> Result<Prepared> {
        if interrupt.load(Ordering::Relaxed) {
            fail!(Interrupted, "interrupted before the step");
        }
        let after = self.len + usize::from(token.is_some());
        self.state.prepare(self.len, after + count - 1, stream)?;
        if let Some(token) = token {
            self.set_token(stream, token)?;
        } else if !self.has_logits {
            fail!(Internal, "there are no logits to choose from");
        }
        self.set_position(stream, self.len)?;
        let settings = self.sampling.settings(sampling, masked);
        self.set_sampling(stream, settings)?;
        if token.is_some() || count > 1 {
            self.state.fixed.begin(stream)?;
        }
        Ok(Prepared {
            stages: Stages::of(&settings),
            appends: token.is_some(),
        })
    }

    /// Asks for the mask of a prepared step.
    pub fn take_mask(&mut self, stream: &Stream, mask: &mut MaskSource<'_>) -> Result<()> {
        // SAFETY: `Drop` waits for the session's stream, and a batch for its results. The last masked
        // step has ended, and its copy with it.
        unsafe { self.sampling.mask(stream, mask) }
    }

    /// What the device holds is not known any more, after a failure.
    pub fn lose_track(&mut self) {
        self.has_logits = false;
        self.mirror.position = None;
        self.mirror.token = None;
    }

    /// Keeps `len` positions, or fewer if the ring has lost what the next one sees, or states of fixed
    /// size are there for fewer alone.
    pub fn forget(&mut self, len: usize) {
        let mut kept = self.state.reachable(len);
        if kept < self.len {
            self.has_logits = false;
        }
        if kept > 0 {
            match self.go_back(kept) {
                Ok(has_logits) => self.has_logits |= has_logits,
                Err(_) => (kept, self.has_logits) = (0, false),
            }
        }
        if kept == 0 {
            self.state.clear();
        }
        self.set_len(kept);
    }

    /// Brings the states of fixed size back to `len` positions. Whether the logits are there again.
    fn go_back(&mut self, len: usize) -> Result<bool> {
        let device = self.weights.context().clone();
        let _current = device.enter()?;
        let logits = self.buffers.logits(0);
        let of_row = match self.state.fixed.goes_to_row(len) {
            true => self.logits_of_row(len),
            false => None,
        };
        let has_logits = self.state.fixed.go_back(len, logits, &self.stream)?;
        match of_row {
            Some(from) => self.take_logits(from).map(|()| true),
            None => Ok(has_logits),
        }
    }

    /// Has logits at an address be those of the last position.
    pub(super) fn take_logits(&mut self, from: u64) -> Result<()> {
        let (to, bytes) = (
            self.buffers.logits(0),
            self.weights.plan().logits_len() as usize * 4,
        );
        // SAFETY: memory of this session's steps, which follow each other on its stream.
        unsafe { self.stream.copy(to, from, bytes) }
    }

    /// Goes back to where the state is in order, after work that has failed.
    pub fn recover(&mut self) {
        if self.state.fixed.is_moving() {
            self.forget(self.len);
        }
    }

    /// Notes that the state is that of the positions by now, and marks it if that is `due` or the last
    /// mark is far. Nothing is under way.
    pub fn settle(&mut self, due: bool) -> Result<()> {
        self.state.fixed.settle(self.len);
        if due || self.state.fixed.is_due(self.len) {
            let logits = self.has_logits.then(|| self.buffers.logits(0));
            self.state.fixed.mark(self.len, logits, &self.stream)?;
        }
        Ok(())
    }

    /// Appends tokens.
    pub fn extend(&mut self, extension: Extension<'_>, interrupt: &AtomicBool) -> Result<()> {
        let tokens = extension.tokens;
        let with_logits = extension.with_logits && self.weights.plan().ends.1;
        let device = self.weights.context().clone();
        let _current = device.enter()?;
        let had_logits = std::mem::replace(&mut self.has_logits, false);
        match self.evaluate(extension, interrupt) {
            Ok(()) => {
                self.set_len(self.len + tokens.len());
                self.has_logits = with_logits;
                self.settle(tokens.len() > 1)
            }
            Err(e) => {
                // It may read the residual stream of the caller's.
                let _ = self.stream.synchronize();
                // The logits are still those of the last position unless the last launch ran.
                self.has_logits = had_logits && self.mirror.position.is_some();
                self.forget(self.len);
                Err(e)
            }
        }
    }

    /// Launches a step that appends a token and chooses nothing, as all ranks of a group do. Nobody waits for it.
    pub fn follow(&mut self, token: u32) -> Result<()> {
        let weights = self.weights.clone();
        let _resident = weights.resident()?;
        let device = weights.context().clone();
        let _current = device.enter()?;
        let stream = self.stream.clone();
        // Once others have begun, nothing but the device ends it.
        let interrupt = AtomicBool::new(false);
        self.prepare(
            &stream,
            Some(token),
            1,
            &Sampling::GREEDY,
            false,
            &interrupt,
        )?;
        let launched = self.launch(Ending::EVALUATE);
        self.lose_track();
        launched
    }

    /// Notes whether all ranks have launched it.
    pub fn followed(&mut self, is_there: bool, has_logits: bool) -> Result<()> {
        let device = self.weights.context().clone();
        let _current = device.enter()?;
        if !is_there {
            return self.stream.synchronize();
        }
        self.advanced()?;
        self.has_logits = has_logits;
        Ok(())
    }

    /// Backs the caches for so many more positions.
    pub fn reserve_tokens(&mut self, tokens: usize) -> Result<()> {
        let device = self.weights.context().clone();
        let _current = device.enter()?;
        let stream = self.stream.clone();
        self.state.prepare(self.len, self.len + tokens, &stream)
    }

    /// Notes that a batch has evaluated a token behind the last one, without logits for the session.
    pub fn advanced(&mut self) -> Result<()> {
        self.set_len(self.len + 1);
        self.has_logits = false;
        self.mirror.position = Some(self.len as u32);
        self.settle(false)
    }

    /// Puts what a token at a position has in place of an embedding, or beside it, where a step begins with it.
    pub fn enter(&mut self, input: TokenInput<'_>, position: usize) -> Result<()> {
        let device = self.weights.context().clone();
        let _current = device.enter()?;
        match (input, &self.states) {
            (TokenInput::Embeddings, _) => Ok(()),
            (TokenInput::Stream(input), _) => {
                let to = self.buffers.at().rows.residual;
                // SAFETY: the memory of the session's steps, which follow each other on its stream. Rows of one token alone, as a
                // batch has and a choice, are in no pinned memory (`Weights::host_floats`); those of others are awaited by `extend`.
                unsafe { crossing::enter(&self.stream, input, input.len(), to) }
            }
            (TokenInput::States(from), Some(states)) => {
                let own = StateRing::of(states, &device)?;
                let theirs = StateRing::of(from.states, &device)?;
                let plan = self.weights.plan();
                if let Some(entry) = &plan.entry
                    && let Some(fusion) = &entry.fusion
                    && theirs.width() == fusion.width as usize
                {
                    let rows = (theirs.row(from.position), own.row_before(position));
                    let eval = self.evaluation(&self.stream);
                    // SAFETY: *weights*: this structure holds an `Arc` of them. *sessions* and *workspace*: of this structure, whose
                    // steps follow each other on its stream. The rows: as below.
                    return unsafe { self.buffers.fuse(&eval, (entry, fusion), rows) };
                }
                // SAFETY: whoever submits the row has their states until it is polled, and this structure has its own, which
                // nobody uses but its steps.
                unsafe { own.take(&from, position, &self.stream) }
            }
            (TokenInput::States(_), None) => fail!(Internal, "a head that keeps no hidden states"),
        }
    }

    /// Takes the residual stream of a token from where a step of a part has left it. Waits for that.
    fn leave(&mut self, output: Option<&mut [f32]>) -> Result<()> {
        let from = self.buffers.at().rows.residual;
        match output {
            // SAFETY: as in `enter`.
            Some(output) => unsafe { crossing::leave(&self.stream, from, output.len(), output) },
            None => self.stream.synchronize(),
        }
    }

    /// Evaluates all tokens but the last as matrix products, and the last as a decode step does, so
    /// that its logits do not depend on how it came in. Where more follow, all are evaluated as products, unless it is one.
    fn evaluate(&mut self, extension: Extension<'_>, interrupt: &AtomicBool) -> Result<()> {
        let Extension {
            tokens,
            mut residual,
            with_logits,
            is_background,
        } = extension;
        // A step of a head is for the most part its product with the output matrix.
        let is_head = self.weights.plan().entry.is_some();
        let (first, last) = match tokens {
            [] => fail!(NoInput, "nothing to evaluate"),
            [first @ .., last] if with_logits || first.is_empty() && !is_head => {
                (first, Some(*last))
            }
            _ => (tokens, None),
        };
        let width = self.weights.plan().hidden as usize;
        let start = self.len;
        let stream = self.stream.clone();
        self.state.prepare(start, start + tokens.len(), &stream)?;
        self.state.fixed.begin(&stream)?;
        // SAFETY: `Drop` waits for the stream.
        unsafe { self.sampling.remember(&stream, start, tokens)? };
        if !first.is_empty() {
            let weights = self.weights.clone();
            let mut prompt = weights.gate().prompt(&stream, interrupt, is_background)?;
            let (mut at, mut rest) = (start, first);
            while !rest.is_empty() {
                let piece = self.state.fixed.piece(at, weights.chunk()).min(rest.len());
                let (chunk, behind) = rest.split_at(piece);
                rest = behind;
                self.set_position(&stream, at)?;
                let mut workspace = weights.prefill()?;
                let eval = self.evaluation(&self.stream);
                let buffers = workspace.get()?;
                let ends = residual.split(chunk.len(), width);
                if let Some(states) = &self.states {
                    // Whatever comes of it, those are gone whose places it takes.
                    states.evaluated(at, chunk.len());
                }
                buffers.until(interrupt, || {
                    // SAFETY: *weights*: held by an `Arc`. *sessions*: the cache is prepared, and this call
                    // has the session for itself. *workspace*: locked until the stream is idle.
                    let result =
                        unsafe { buffers.enqueue(&eval, chunk, ends, &mut || prompt.pause()) };
                    // One chunk at a time, so that an interrupt is noticed soon, and the workspace is free
                    // for others only when the device is done with it.
                    result.and(self.stream.synchronize())
                })?;
                drop(workspace);
                at += chunk.len();
                if at < start + first.len() {
                    self.state.fixed.mark(at, None, &stream)?;
                }
                self.progress.store(at, Ordering::Relaxed);
            }
        }
        if interrupt.load(Ordering::Relaxed) {
            fail!(
                Interrupted,
                "interrupted while evaluating {} tokens",
                tokens.len()
            );
        }
        let Some(last) = last else {
            return Ok(());
        };
        self.set_position(&stream, start + first.len())?;
        self.set_token(&stream, last)?;
        self.mirror.position = None;
        self.enter(residual.input, start + first.len())?;
        self.launch(Ending::EVALUATE)?;
        self.leave(residual.output)?;
        self.buffers.check_host()?;
        self.mirror.position = Some((start + tokens.len()) as u32);
        Ok(())
    }

    /// The logits of the last position.
    pub fn logits(&mut self, out: &mut [f32]) -> Result<()> {
        let device = self.weights.context().clone();
        let _current = device.enter()?;
        if !self.has_logits {
            fail!(Internal, "there are no logits");
        }
        let n = out.len().min(self.weights.plan().logits_len() as usize);
        // SAFETY: `out` is valid until the stream is idle, which is awaited; sizes as allocated.
        unsafe {
            self.stream
                .copy_out(out.as_mut_ptr().cast(), self.buffers.logits(0), n * 4)?
        };
        self.stream.synchronize()
    }

    /// A session with the same state and logits.
    pub fn fork(&self) -> Result<Core> {
        let device = self.weights.sessions().clone();
        let _current = device.enter()?;
        let state = self.state.fork(&device, self.len, &self.stream)?;
        // Its graphs are captured when they are first needed: that takes longer than all the rest.
        let mut other = Core::on(self.weights.clone(), state, self.stream_priority)?;
        let logits = self.weights.plan().logits_len() as usize * 4;
        // SAFETY: both sides are allocated that far; the copies are awaited before anything can free
        // or change either.
        let copied = unsafe {
            let (to, from) = (other.buffers.logits(0), self.buffers.logits(0));
            let copied = self.stream.copy(to, from, logits);
            copied.and(
                other
                    .sampling
                    .follow(&self.stream, &self.sampling, self.len),
            )
        };
        let idle = self.stream.synchronize();
        copied.and(idle)?;
        if let Some(adapters) = &self.adapters {
            other.set_adapters(Some(adapters.set.clone()))?;
        }
        other.set_len(self.len);
        other.has_logits = self.has_logits;
        Ok(other)
    }

    fn logits_place(&self, layout: &StateLayout) -> (u64, usize) {
        (self.buffers.logits(0), layout.logits_bytes())
    }

    /// Writes the state to a stream.
    pub fn save(&mut self, sink: &mut dyn StateSink) -> Result<()> {
        let device = self.weights.context().clone();
        let _current = device.enter()?;
        let info = StateInfo {
            kv_type: self.state.plan().kv_type,
            len: self.len,
            has_logits: self.has_logits,
            windows: self.state.windows().to_vec(),
        };
        sink.begin(&info)?;
        let n_vocab = self.weights.plan().n_vocab as usize;
        let layout = StateLayout::new(self.state.plan().shapes(), &info, n_vocab)?;
        let logits = self.logits_place(&layout);
        let weights = self.weights.clone();
        let mut staging = weights.staging()?;
        let staging = staging.get()?;
        self.state
            .save(&layout, logits, staging, &self.stream, sink)?;
        match self.len {
            0 => Ok(()),
            len => self.state.fixed.save(len, &self.stream, sink),
        }
    }

    /// Takes the state over from a stream.
    pub fn load(
        &mut self,
        info: &StateInfo,
        tokens: &[u32],
        source: &mut dyn StateSource,
    ) -> Result<()> {
        let device = self.weights.context().clone();
        let _current = device.enter()?;
        let stream = self.stream.clone();
        self.has_logits = false;
        self.state.prepare(0, info.len, &stream)?;
        self.state.set_windows(&info.windows);
        let n_vocab = self.weights.plan().n_vocab as usize;
        let shapes = self.state.plan().shapes().to_vec();
        let layout = StateLayout::new(&shapes, info, n_vocab)?;
        let logits = self.logits_place(&layout);
        let weights = self.weights.clone();
        let mut staging = weights.staging()?;
        let staging = staging.get()?;
        // SAFETY: `Drop` waits for the stream; the tokens fit the context.
        unsafe { self.sampling.remember(&stream, 0, tokens)? };
        let loaded = self.state.load(&layout, logits, staging, &stream, source);
        loaded?;
        if info.len > 0 {
            self.state.fixed.load(info.len, &stream, source)?;
        }
        self.note_len(info.len);
        self.has_logits = info.has_logits;
        Ok(())
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if let Ok(_current) = self.weights.context().enter() {
            // The memory goes when the device is done with it; errors are reported elsewhere.
            let _ = self.stream.synchronize();
        }
    }
}
