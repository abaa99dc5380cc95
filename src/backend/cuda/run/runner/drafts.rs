//! Drafts of a session: a step in which a token and the drafts behind it are rows.
//!
//! On the device each row is a session of its own, which shares the caches and the history of the one that it belongs to
//! (`kernels/drafts.cu`). So every kernel of a step does for a row what it does for a session of a batch, and a row has the bits of
//! the step that it saves. Two kernels around these ready the rows, and count the choices that are the next row's token.
//!
//! Of a network in parts, the last one verifies, and the others evaluate the same rows: they choose nothing, and [`Core::keep_drafts`] tells
//! them which rows were right. What a step marks, each part does when the choices are handed out ([`Core::settle_drafts`]).

use super::core::{Core, Extension, Kind};
use super::steps::{Chosen, Request};
use crate::backend::cuda::driver::arena::{Arena, Placed};
use crate::backend::cuda::driver::{Buffer, Graph, Pinned, Stream};
use crate::backend::cuda::launch::adapters::Reach;
use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::attention::RowsOf;
use crate::backend::cuda::launch::sampling::{RESULT_SLOTS, Stages};
use crate::backend::cuda::network::crossing;
use crate::backend::cuda::network::evaluation::Evaluation;
use crate::backend::cuda::network::step::{Ending, StepBuffers};
use crate::backend::row::Front;
use crate::backend::{MaskSource, Residual, TokenInput, fill_mask};
use crate::engine::sampling::Sampling;
use crate::error::{Error, Result, fail};
use crate::panics::catch;
use arrayvec::ArrayVec;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Rows of a step that verifies drafts: the known token, and drafts.
pub const MAX_ROWS: usize = 16;
/// Words of `asked` before its tokens.
const ASKED_TOKENS: usize = args::ASKED_TOKENS as usize;

/// What a session has on the device for its drafts.
pub struct DraftSpace {
    // Dropped in this order: what the device may still use goes last.
    /// By number of rows and kind of step, captured when they are first needed.
    graphs: Vec<(usize, Kind, Graph)>,
    buffers: StepBuffers,
    memory: Placed<Buffer, Places>,
    /// What the rows are told, and a mask of each behind that.
    pinned: Pinned,
    /// Rows that there is room for.
    most: usize,
    n_vocab: usize,
    /// The step under way.
    flight: Option<Flight>,
    /// What was chosen and not polled yet.
    outcomes: ArrayVec<Result<Chosen>, { MAX_ROWS + 1 }>,
    /// Of them, those in front of which no row was evaluated: a choice by logits that were there.
    at_hand: usize,
    /// Positions before the rows of the last step, and behind those whose choices were polled.
    first: usize,
    polled: usize,
    /// Whether the logits of these rows are here.
    has_logits: bool,
    /// Whether what is polled now is not wanted.
    dropping: bool,
}

/// Addresses of the parts of the device's memory.
#[derive(Clone, Copy)]
struct Places {
    drafts: u64,
    /// A table of the address of `drafts`.
    drafts_table: u64,
    rows: u64,
    /// Of the addresses of `rows`.
    rows_table: u64,
    results: u64,
    /// Of each row, `n_vocab` elements.
    adjusted: u64,
    counts: u64,
    lengths: u64,
    masks: u64,
}

impl Places {
    fn place(arena: &mut Arena, rows: usize, n_vocab: usize) -> Places {
        let n = rows as u64;
        let tokens = n * n_vocab as u64;
        Places {
            drafts: arena.array::<args::Drafts>(1),
            drafts_table: arena.array::<u64>(1),
            rows: arena.array::<args::Session>(n),
            rows_table: arena.array::<u64>(n),
            results: arena.array::<u64>(u64::from(RESULT_SLOTS)),
            adjusted: arena.array::<f32>(tokens),
            counts: arena.array::<u32>(tokens),
            lengths: arena.array::<u32>(tokens),
            masks: arena.array::<u32>(n * mask_words(n_vocab) as u64),
        }
    }
}

fn mask_words(n_vocab: usize) -> usize {
    n_vocab.div_ceil(32)
}

/// Bytes in front of the masks.
fn asked_bytes(rows: usize) -> usize {
    ((ASKED_TOKENS + rows) * 4).next_multiple_of(256)
}

/// A session that is ready for a step of drafts.
pub struct Rows {
    /// How it chooses.
    pub stages: Stages,
    /// The address of its first row's session; the others follow.
    pub first: u64,
    /// The address of what the kernels around the step know of it.
    pub drafts: u64,
    /// What the step is to be collected by.
    pub flight: Flight,
}

impl Rows {
    /// The addresses of the rows' sessions.
    pub fn addresses(&self) -> impl Iterator<Item = u64> {
        let size = size_of::<args::Session>() as u64;
        let first = self.first;
        (0..self.flight.tokens.len() as u64).map(move |row| first + row * size)
    }
}

/// A step that was launched and not collected.
pub struct Flight {
    stream: Arc<Stream>,
    /// The tokens of its rows.
    tokens: ArrayVec<u32, MAX_ROWS>,
    /// Rows whose choices count, and why not that of the next one.
    counted: usize,
    behind: Option<Error>,
    /// Ends it early.
    interrupt: Option<Arc<AtomicBool>>,
}

impl DraftSpace {
    fn new(core: &Core, rows: usize) -> Result<DraftSpace> {
        let context = core.weights.sessions();
        // A part that does not end its network chooses nothing.
        let n_vocab = core.weights.plan().logits_len() as usize;
        let what = "memory of drafts";
        let memory = Placed::new(
            |arena| Places::place(arena, rows, n_vocab),
            |bytes| Buffer::new(context, bytes, what),
        )?;
        let at = *memory.at();
        let offset = |address: u64| (address - memory.memory().address()) as usize;
        // Counts and lengths are zeros between any two steps.
        for part in [at.counts, at.lengths].into_iter().filter(|_| n_vocab > 0) {
            memory.memory().clear(offset(part), rows * n_vocab * 4)?;
        }
        let pinned_bytes = asked_bytes(rows) + rows * mask_words(n_vocab) * 4;
        let pinned = Pinned::new(context, pinned_bytes, what)?;
        let masks = match core.sampling.reads_host_mask() {
            true => pinned.address() + asked_bytes(rows) as u64,
            false => at.masks,
        };
        let mut addresses = ArrayVec::<u64, MAX_ROWS>::new();
        for row in 0..rows as u64 {
            let tokens = row * n_vocab as u64 * 4;
            let mut session = core.device_session();
            session.fixed = core.state.fixed.row(row as usize);
            session.results = at.results;
            session.adjusted = at.adjusted + tokens;
            session.counts = at.counts + tokens;
            session.lengths = at.lengths + tokens;
            session.mask = masks + row * mask_words(n_vocab) as u64 * 4;
            let address = at.rows + row * size_of::<args::Session>() as u64;
            memory.memory().write(offset(address), &[session])?;
            addresses.push(address);
        }
        memory.memory().write(offset(at.rows_table), &addresses)?;
        let drafts = args::Drafts {
            session: core.address(),
            rows: at.rows,
            results: at.results,
            asked: pinned.address(),
        };
        memory.memory().write(offset(at.drafts), &[drafts])?;
        memory
            .memory()
            .write(offset(at.drafts_table), &[at.drafts])?;
        Ok(DraftSpace {
            graphs: Vec::new(),
            buffers: StepBuffers::new(context, core.weights.network(), rows as u32)?,
            memory,
            pinned,
            most: rows,
            n_vocab,
            flight: None,
            outcomes: ArrayVec::new(),
            at_hand: 0,
            first: 0,
            polled: 0,
            has_logits: false,
            dropping: false,
        })
    }

    /// The session's adapters are elsewhere now.
    pub fn forget_adapters(&mut self) {
        self.graphs
            .retain(|(_, kind, _)| kind.adapted == Reach::None);
    }

    /// Tells the rows their tokens. Nothing is under way.
    fn ask(&mut self, tokens: &[u32]) {
        let n = tokens.len() as u32;
        for (i, word) in [n, n].iter().chain(tokens).enumerate() {
            self.write_asked(i, *word);
        }
    }

    fn write_asked(&mut self, index: usize, word: u32) {
        assert!(
            index < ASKED_TOKENS + self.most,
            "within what rows are told"
        );
        // SAFETY: pinned memory of so many words; the kernels read it as whole words.
        unsafe {
            self.pinned
                .pointer()
                .cast::<u32>()
                .add(index)
                .write_volatile(word)
        };
    }

    /// Asks for the mask of a row, and enqueues its copy.
    ///
    /// # Safety
    /// The memory must live until the work is done. No earlier copy of this row's mask may be under way.
    unsafe fn take_mask(
        &mut self,
        row: usize,
        is_read_here: bool,
        stream: &Stream,
        source: &mut MaskSource<'_>,
    ) -> Result<()> {
        let words = mask_words(self.n_vocab);
        let from = asked_bytes(self.most) + row * words * 4;
        let pointer = self.pinned.pointer().wrapping_add(from);
        // SAFETY: pinned memory of so many words, which only this function and the copies that it enqueues use.
        let host = unsafe { std::slice::from_raw_parts_mut(pointer.cast::<u32>(), words) };
        // A panic would leave the device at work on what the caller holds to be idle.
        catch(|| fill_mask(source, self.n_vocab, host))?;
        if is_read_here {
            return Ok(());
        }
        let to = self.memory.at().masks + (row * words * 4) as u64;
        // SAFETY: both ranges are of this size, and live until the work is done, as the caller promises.
        unsafe { stream.copy_in(to, pointer, words * 4) }
    }
}

impl Core {
    /// Reserves what a step of so many rows needs.
    pub fn reserve_drafts(&mut self, rows: usize) -> Result<()> {
        if rows > MAX_ROWS {
            fail!(Internal, "{rows} rows of drafts");
        }
        if self.drafts.as_ref().is_some_and(|space| space.most >= rows) {
            return Ok(());
        }
        let device = self.weights.sessions().clone();
        let _current = device.enter()?;
        self.stream.synchronize()?;
        self.state.fixed.reserve_rows(&device, rows, &self.stream)?;
        self.place_fixed()?;
        self.drafts = Some(Box::new(DraftSpace::new(self, rows)?));
        Ok(())
    }

    /// The same for a step that begins. What is left of one whose batch has failed is not wanted.
    pub fn reserve_step(&mut self, rows: usize) -> Result<()> {
        self.reserve_drafts(rows)?;
        let space = self.space()?;
        (space.flight, space.at_hand) = (None, 0);
        space.outcomes.clear();
        Ok(())
    }

    /// Whether there is something to poll.
    pub fn has_drafts(&self) -> bool {
        let space = self.drafts.as_ref();
        space.is_some_and(|space| space.flight.is_some() || !space.outcomes.is_empty())
    }

    /// Whether a step is under way.
    pub fn has_flight(&self) -> bool {
        let space = self.drafts.as_ref();
        space.is_some_and(|space| space.flight.is_some())
    }

    /// Lets an interrupt end the step under way.
    pub fn end_drafts_by(&mut self, interrupt: &Arc<AtomicBool>) {
        if let Some(flight) = self.drafts.as_mut().and_then(|space| space.flight.as_mut()) {
            flight.interrupt = Some(interrupt.clone());
        }
    }

    fn space(&mut self) -> Result<&mut DraftSpace> {
        match &mut self.drafts {
            Some(space) => Ok(space),
            None => fail!(Internal, "no memory for drafts"),
        }
    }

    /// Whether it is the part of a network that chooses, the last one or the first rank: what its step has chosen is polled at once, and
    /// handed out later.
    fn is_speaker(&self) -> bool {
        self.weights.plan().ends.0 == Front::Stream || self.weights.link().is_some()
    }

    /// Starts to evaluate `tokens`, of which the last `drafts` are guesses, and to choose as [`Want::Verified`] says.
    ///
    /// [`Want::Verified`]: crate::backend::Want::Verified
    pub fn verify(
        &mut self,
        (tokens, drafts): (&[u32], usize),
        mut residual: Residual<'_>,
        sampling: &Sampling,
        mut mask: Option<&mut MaskSource<'_>>,
        interrupt: &AtomicBool,
    ) -> Result<()> {
        self.reserve_step(drafts + 1)?;
        let known = tokens.len() - drafts;
        if known > 0 {
            let (first, rows) = tokens.split_at(known - 1);
            if !first.is_empty() {
                let width = self.weights.plan().hidden as usize;
                let extension = Extension {
                    residual: residual.split(first.len(), width),
                    ..Extension::of(first)
                };
                self.extend(extension, interrupt)?;
            }
            return self.begin_drafts((rows, residual.input), sampling, mask, interrupt);
        }
        // The first choice is by the logits at hand.
        let request = Request {
            token: None,
            count: 1,
            sampling,
            interrupt,
        };
        let mut steps = match &mut mask {
            Some(mask) => self.begin_masked(&request, &mut **mask)?,
            None => self.begin(&request)?,
        };
        let Some(chosen) = steps.poll(self, true)? else {
            fail!(Internal, "no token after a wait for it");
        };
        let is_right = chosen.token == tokens[0];
        let space = self.space()?;
        space.outcomes.push(Ok(chosen));
        (space.at_hand, space.dropping) = (1, false);
        let rows = (tokens, residual.input);
        if is_right && let Err(e) = self.begin_drafts(rows, sampling, mask, interrupt) {
            self.space()?.outcomes.push(Err(e));
        }
        Ok(())
    }

    /// Launches the step whose rows have these tokens, and what a part has in place of their embeddings.
    fn begin_drafts(
        &mut self,
        (tokens, input): (&[u32], TokenInput<'_>),
        sampling: &Sampling,
        mask: Option<&mut MaskSource<'_>>,
        interrupt: &AtomicBool,
    ) -> Result<()> {
        let device = self.weights.context().clone();
        let _current = device.enter()?;
        let stream = self.stream.clone();
        let masked = mask.is_some();
        let ready = self.prepare_rows(&stream, tokens, sampling, masked, interrupt)?;
        let Rows {
            stages, mut flight, ..
        } = ready;
        self.space()?.has_logits = true;
        let ending = Ending {
            advance: true,
            choose: true,
            stages,
            rows: RowsOf::OneSession,
        };
        let n = tokens.len();
        let launched = self.enter_rows(input).and_then(|()| match mask {
            None => self.launch_drafts(n, ending),
            Some(mask) => self.launch_masked_drafts(n, ending, mask, &mut flight),
        });
        if let Err(e) = launched {
            let _ = stream.synchronize();
            self.lose_track();
            self.recover();
            return Err(e);
        }
        self.notify(&stream);
        self.space()?.flight = Some(flight);
        Ok(())
    }

    /// Evaluates a token and drafts behind it, or drafts alone, as [`Want::Drafted`] says. The state is that behind all of them then, and can
    /// go back to behind any of them ([`Core::keep_drafts`]).
    ///
    /// [`Want::Drafted`]: crate::backend::Want::Drafted
    pub fn draft(
        &mut self,
        tokens: &[u32],
        residual: Residual<'_>,
        interrupt: &AtomicBool,
    ) -> Result<()> {
        self.reserve_step(tokens.len())?;
        let device = self.weights.context().clone();
        let _current = device.enter()?;
        self.has_logits = false;
        let evaluated = self.evaluate_drafts(tokens, residual, interrupt);
        if evaluated.is_err() {
            // It may write to the residual stream of the caller's.
            let _ = self.stream.synchronize();
            self.lose_track();
            if !self.state.fixed.is_at(self.len()) {
                self.state.fixed.lose();
            }
            self.recover();
        }
        evaluated
    }

    fn evaluate_drafts(
        &mut self,
        tokens: &[u32],
        residual: Residual<'_>,
        interrupt: &AtomicBool,
    ) -> Result<()> {
        let (n, before) = (tokens.len(), self.len());
        let stream = self.stream.clone();
        self.prepare_rows(&stream, tokens, &Sampling::GREEDY, false, interrupt)?;
        self.enter_rows(residual.input)?;
        let evaluate = Ending {
            rows: RowsOf::OneSession,
            ..Ending::EVALUATE
        };
        self.launch_drafts(n, evaluate)?;
        let width = self.weights.plan().hidden as usize;
        let space = self.space()?;
        let from = space.buffers.at().rows.residual;
        match residual.output {
            // SAFETY: the launch makes the rows, and the next one is behind this on the same stream.
            Some(output) => unsafe { crossing::leave(&stream, from, width, output)? },
            None => stream.synchronize()?,
        }
        space.buffers.check_host()?;
        // No kernel has: it is not known how many are right.
        self.state.fixed.take_rows(before, n);
        self.place_row(n - 1, self.state.fixed.row(n - 1))?;
        self.set_len(before + n);
        Ok(())
    }

    /// Puts what a part's rows have in place of embeddings where their step begins with it.
    fn enter_rows(&mut self, input: TokenInput<'_>) -> Result<()> {
        let TokenInput::Stream(rows) = input else {
            return Ok(());
        };
        let (stream, width) = (self.stream.clone(), self.weights.plan().hidden as usize);
        let to = self.space()?.buffers.at().rows.residual;
        // SAFETY: memory of the session's steps with drafts, which follow each other on its stream. Whoever submits rows has what
        // they begin with until they are polled.
        unsafe { crossing::enter(&stream, rows, width, to) }
    }

    /// Tells the device where the state of fixed size is, and the place of a row that has been left for it.
    fn place_row(&mut self, row: usize, place: u64) -> Result<()> {
        if self.state.fixed.is_empty() {
            return Ok(());
        }
        self.stream.synchronize()?;
        self.place_fixed()?;
        let space = self.space()?;
        let session = space.memory.at().rows + (row * size_of::<args::Session>()) as u64;
        let memory = space.memory.memory();
        let at = session + offset_of!(args::Session, fixed) as u64 - memory.address();
        memory.write(at as usize, &[place])
    }

    /// Goes back to the first `len` positions, behind those rows of the last step that were right.
    pub fn keep_drafts(&mut self, len: usize) -> Result<()> {
        let device = self.weights.context().clone();
        let _current = device.enter()?;
        if len < self.len() {
            self.has_logits = false;
        }
        self.lose_track();
        if !self.state.fixed.is_at(len) {
            let placed = match self.state.fixed.take_row(len) {
                Some((row, place)) => self.place_row(row, place),
                None => fail!(Internal, "a state of {len} positions that no row has left"),
            };
            if let Err(e) = placed {
                self.state.fixed.lose();
                self.forget(len);
                return Err(e);
            }
        }
        if self.state.reachable(len) < len {
            self.forget(len);
            return Ok(());
        }
        self.state.fixed.forget_behind(len);
        self.set_len(len);
        Ok(())
    }

    /// What becomes of the rows of the last step: see [`Runner::settle_drafts`].
    ///
    /// [`Runner::settle_drafts`]: crate::backend::Runner::settle_drafts
    pub fn settle_drafts(&mut self, position: Option<usize>) -> Result<()> {
        match position {
            Some(len) if len > self.len() => Ok(()),
            Some(len) => self.settle_row(len),
            None => {
                self.state.fixed.lose();
                Ok(())
            }
        }
    }

    /// Readies the session, and what its rows are told, for a step on `stream` in which they have these tokens. There is room for
    /// so many.
    pub fn prepare_rows(
        &mut self,
        stream: &Arc<Stream>,
        tokens: &[u32],
        sampling: &Sampling,
        masked: bool,
        interrupt: &AtomicBool,
    ) -> Result<Rows> {
        let (n, len) = (tokens.len(), self.len());
        let space = self.space()?;
        (space.first, space.polled) = (len, len);
        (space.has_logits, space.dropping) = (false, false);
        if interrupt.load(Ordering::Relaxed) {
            fail!(Interrupted, "interrupted before the step");
        }
        self.state.prepare(len, len + n, stream)?;
        self.set_position(stream, len)?;
        let settings = self.sampling.settings(sampling, masked);
        self.set_sampling(stream, settings)?;
        self.state.fixed.begin_rows(stream)?;
        let space = self.space()?;
        space.ask(tokens);
        let at = space.memory.at();
        let (first, drafts) = (at.rows, at.drafts);
        // Whatever comes, the device goes on.
        self.lose_track();
        Ok(Rows {
            stages: Stages::of(&settings),
            first,
            drafts,
            flight: Flight {
                stream: stream.clone(),
                tokens: tokens.iter().copied().collect(),
                counted: n,
                behind: None,
                interrupt: None,
            },
        })
    }

    /// Asks for the masks of the rows of a step under way, and tells these how many of their choices count.
    pub fn take_row_masks(&mut self, flight: &mut Flight, mask: &mut MaskSource<'_>) -> Result<()> {
        let is_read_here = self.sampling.reads_host_mask();
        for row in 0..flight.tokens.len() {
            let space = self.space()?;
            // SAFETY: `Drop` waits for the stream, and a batch for its results. The last masked step has ended, and its copies with
            // it.
            let taken = unsafe { space.take_mask(row, is_read_here, &flight.stream, mask) };
            match taken {
                Ok(()) => {}
                Err(e) if row == 0 => return Err(e),
                Err(e) => {
                    // It counts if all choices before it are right.
                    (flight.counted, flight.behind) = (row, Some(e));
                    break;
                }
            }
        }
        // The kernel that reads it comes with the next launch.
        self.space()?.write_asked(1, flight.counted as u32);
        Ok(())
    }

    /// The same with masks, which are made while the device evaluates the tokens.
    fn launch_masked_drafts(
        &mut self,
        n: usize,
        ending: Ending,
        mask: &mut MaskSource<'_>,
        flight: &mut Flight,
    ) -> Result<()> {
        let evaluate = Ending {
            rows: RowsOf::OneSession,
            ..Ending::EVALUATE
        };
        self.launch_drafts(n, evaluate)?;
        self.take_row_masks(flight, mask)?;
        self.launch_drafts(
            n,
            Ending {
                advance: false,
                ..ending
            },
        )
    }

    fn launch_drafts(&mut self, n: usize, ending: Ending) -> Result<()> {
        let (stream, weights) = (self.stream.clone(), self.weights.clone());
        if ending.advance {
            self.evaluation(&stream).begin()?;
        }
        let kind = self.kind(ending);
        let same = |(rows, k, _): &(usize, Kind, Graph)| (*rows, *k) == (n, kind);
        let space = self.space()?;
        let at = match space.graphs.iter().position(same) {
            Some(at) => at,
            None => {
                let graph = self.capture_drafts(n, ending)?;
                let space = self.space()?;
                space.graphs.push((n, kind, graph));
                space.graphs.len() - 1
            }
        };
        let graph = &self.space()?.graphs[at].2;
        // SAFETY: as in `capture_drafts`; `Drop` waits for the stream.
        let launch = || unsafe { stream.launch_graph(graph) };
        weights.gate().step(&stream, launch)
    }

    fn capture_drafts(&mut self, n: usize, ending: Ending) -> Result<Graph> {
        let stream = self.stream.clone();
        let Some(space) = &self.drafts else {
            fail!(Internal, "no memory for drafts");
        };
        let at = space.memory.at();
        let eval = Evaluation {
            sessions: at.rows_table,
            ..self.evaluation(&stream)
        };
        stream.capture(|| {
            // SAFETY: *weights*: this structure holds an `Arc` of them. *sessions* and *workspace*: the graph lives in
            // this structure beside them, its stream keeps launches apart, and the cache is prepared before each.
            unsafe {
                if ending.advance {
                    eval.kernels.drafts(&stream, at.drafts_table, 1, false)?;
                }
                space.buffers.enqueue(&eval, n as u32, ending)?;
                if ending.choose {
                    eval.kernels.drafts(&stream, at.drafts_table, 1, true)?;
                }
            }
            Ok(())
        })
    }

    /// The next choice of the step under way, or `None` while it is not there. After an error nothing of the step is left.
    pub fn poll_drafts(&mut self, wait: bool) -> Result<Option<Chosen>> {
        let space = self.space()?;
        if space.outcomes.is_empty() {
            let Some(flight) = space.flight.take() else {
                fail!(NothingPending, "no step was started");
            };
            if !self.collect(&flight, wait)? {
                self.space()?.flight = Some(flight);
                return Ok(None);
            }
        }
        let space = self.space()?;
        let Some(outcome) = space.outcomes.pop_at(0) else {
            fail!(Internal, "a step of drafts without a choice");
        };
        let (at_hand, dropping) = (space.at_hand > 0, space.dropping);
        space.at_hand = space.at_hand.saturating_sub(1);
        if outcome.is_ok() && !at_hand && !dropping {
            space.polled += 1;
        }
        let (first, polled) = (space.first, space.polled);
        match &outcome {
            Ok(_) if at_hand || dropping || self.is_speaker() => {}
            Ok(_) => self.settle_row(polled)?,
            // The choices before this one are yet to be handed out.
            Err(_) if self.is_speaker() && polled > first => self.keep_drafts(polled)?,
            Err(_) => self.leave_rows(polled, dropping),
        }
        outcome.map(Some)
    }

    /// Takes the results of a step, if they are there, for [`poll_drafts`](Core::poll_drafts). After an error nothing of it is left.
    pub fn collect(&mut self, flight: &Flight, wait: bool) -> Result<bool> {
        let collected = self.collect_drafts(flight, wait);
        if collected.is_err() {
            self.space()?.outcomes.clear();
            self.lose_track();
            self.state.fixed.lose();
            self.recover();
        }
        collected
    }

    /// The choice behind so many positions was polled: what a step does that was polled.
    fn settle_row(&mut self, len: usize) -> Result<()> {
        if self.state.fixed.is_empty() {
            return Ok(());
        }
        let device = self.weights.context().clone();
        let _current = device.enter()?;
        let logits = self.logits_of_row(len);
        if self.state.fixed.is_due(len) {
            let stream = self.stream.clone();
            self.state.fixed.mark(len, logits, &stream)?;
        }
        if let Some(logits) = logits.filter(|_| len == self.len()) {
            self.take_logits(logits)?;
            self.has_logits = true;
        }
        Ok(())
    }

    /// The choice behind the next row has failed, whose state is that of the session: it goes back. With `dropping`, to where it was
    /// without the rows whose choices nobody wanted.
    fn leave_rows(&mut self, polled: usize, dropping: bool) {
        let len = polled.min(self.len());
        if self.state.fixed.is_at(len) {
            return;
        }
        if !dropping {
            self.state.fixed.lose();
        }
        self.forget(len);
    }

    /// Where the logits of the last of so many positions are, if it is one of the last step's rows.
    pub(super) fn logits_of_row(&self, len: usize) -> Option<u64> {
        let space = self.drafts.as_ref()?;
        let row = len.checked_sub(space.first + 1)?;
        space.has_logits.then(|| space.buffers.logits(row as u32))
    }

    /// What is polled from now on is not wanted: the state may go back behind the choices before.
    pub fn drop_drafts(&mut self) {
        if let Some(space) = &mut self.drafts {
            space.dropping = true;
            self.state.fixed.allow_back();
        }
    }

    /// Takes the results of a step, if they are there.
    fn collect_drafts(&mut self, flight: &Flight, wait: bool) -> Result<bool> {
        let device = self.weights.context().clone();
        let _current = device.enter()?;
        let first = self.started.wrapping_add(1);
        match self.await_result(first, &flight.stream, flight.interrupt.as_ref(), wait) {
            Ok(None) => Ok(false),
            Ok(Some(value)) => self.take_results(flight, value).map(|()| true),
            Err(e) => {
                // The step may have ended all the same: the next one's number is behind its results.
                if let Some(value) = self.result(first) {
                    let before = self.len();
                    self.take_results(flight, value)?;
                    self.set_len(before);
                }
                Err(e)
            }
        }
    }

    /// Takes the results of a step whose first one is this; the others came before it.
    fn take_results(&mut self, flight: &Flight, first: u64) -> Result<()> {
        let before = self.len();
        for row in 0..flight.counted {
            let number = self.started.wrapping_add(1);
            let value = match row {
                0 => Some(first),
                _ => self.result(number),
            };
            let Some(value) = value else {
                fail!(Internal, "a step of drafts without a result");
            };
            self.started = number;
            let chosen = self.chosen(number, value);
            let token = chosen.as_ref().ok().map(|chosen| chosen.token);
            self.space()?.outcomes.push(chosen);
            let is_right = row + 1 < flight.counted && flight.tokens.get(row + 1) == token.as_ref();
            if !is_right {
                self.state.fixed.take_rows(before, row + 1);
            }
            let Some(token) = token else {
                // The device has gone on.
                flight.stream.synchronize()?;
                self.lose_track();
                return Ok(());
            };
            self.set_len(before + row + 1);
            self.mirror.position = Some(self.len() as u32);
            self.mirror.token = Some(token);
            if flight.tokens.get(row + 1) != Some(&token) {
                return Ok(());
            }
        }
        if let Some(e) = &flight.behind {
            self.space()?.outcomes.push(Err(e.clone()));
        }
        Ok(())
    }
}
