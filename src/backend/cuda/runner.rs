//! One session on a GPU: KV cache, device-side state, and a graph per kind of step.

mod steps;

use super::args;
use super::driver::{Buffer, Graph, Pinned, Range, Stream};
use super::evaluation::Evaluation;
use super::kv::KvPlan;
use super::prefill::CHUNK;
use super::sampling::{SamplingState, Stages};
use super::step::{Ending, StepBuffers, Timeline};
use super::weights::CudaWeights;
use crate::backend::{KvType, MaskSource, Profile, Runner, RunnerOptions, Step};
use crate::engine::sampling::{Logprobs, TokenRules};
use crate::error::{Result, Status, fail};
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Entries of the ring of chosen tokens: steps that can be under way.
const RESULT_SLOTS: u32 = 64;

/// A step that chooses nothing.
pub(super) const EVALUATE: Ending = Ending {
    advance: true,
    choose: false,
    stages: Stages {
        adjust: false,
        penalize: false,
        draw: false,
        logprobs: false,
    },
};

/// The state of one session.
pub struct CudaRunner {
    // Dropped in this order: what the device may still use goes last.
    /// One per kind of step, captured when it is first needed.
    graphs: Vec<(Ending, Graph)>,
    pub(super) weights: Arc<CudaWeights>,
    pub(super) buffers: StepBuffers,
    session: Buffer,
    pub(super) sampling: SamplingState,
    table: Buffer,
    results: Pinned,
    /// The cache that grows with the context, and the ring.
    pub(super) caches: [Range; 2],
    pub(super) stream: Arc<Stream>,
    pub(super) kv: KvPlan,
    pub(super) context: usize,
    pub(super) stream_priority: i32,
    /// Positions in the cache.
    pub(super) len: usize,
    /// Positions that were ever written, as far as the ring is concerned.
    pub(super) written: usize,
    pub(super) has_logits: bool,
    /// What the device-side state holds.
    mirror: Mirror,
    /// Steps started so far; their results carry this number.
    started: u32,
    /// Steps that are under way and not collected.
    pub(super) in_flight: u32,
    /// Whether the oldest of them appends a token; all others do.
    appends: bool,
    /// The started steps' interrupt.
    interrupt: Option<Arc<AtomicBool>>,
    /// Of the choice that was returned last.
    logprobs: Option<Box<Logprobs>>,
}

/// What the host last wrote to, or knows of, the device-side state.
struct Mirror {
    /// `None` where it is not known.
    position: Option<u32>,
    token: Option<u32>,
    draw_offset: Option<u64>,
    settings: Option<args::Settings>,
}

impl CudaRunner {
    /// An empty session with everything reserved that a step needs.
    pub fn new(weights: Arc<CudaWeights>, options: &RunnerOptions) -> Result<CudaRunner> {
        let context = weights.context().clone();
        let _current = context.enter()?;
        let kv = weights.plan().kv(options.kv_type)?;
        let [all, ring] = kv.bytes(options.context)?;
        let mut caches = [
            Range::reserve(&context, all)?,
            Range::reserve(&context, ring)?,
        ];
        for (cache, bytes) in caches.iter_mut().zip(kv.bytes(options.context.min(1))?) {
            cache.grow(bytes, "KV cache")?;
        }
        let buffers = StepBuffers::new(&context, weights.plan(), 1)?;
        let results = Pinned::new(&context, RESULT_SLOTS as usize * 8, "results")?;
        let n_vocab = weights.plan().n_vocab as usize;
        let slots = RESULT_SLOTS as usize;
        let sampling = SamplingState::new(&context, n_vocab, options.context, slots)?;
        let mut state = args::Session {
            kv: caches[0].address(),
            kv_ring: caches[1].address(),
            context: options.context as u32,
            results: results.address(),
            result_slots: RESULT_SLOTS,
            ..Default::default()
        };
        sampling.enter(&mut state);
        let session = Buffer::from_slice(&context, &[state], "session")?;
        let table = Buffer::from_slice(&context, &[session.address()], "session")?;
        let mut runner = CudaRunner {
            graphs: Vec::new(),
            stream: Arc::new(Stream::new(
                &context,
                options.stream_priority.saturating_neg(),
            )?),
            weights,
            buffers,
            session,
            sampling,
            table,
            results,
            caches,
            kv,
            context: options.context,
            stream_priority: options.stream_priority,
            len: 0,
            written: 0,
            has_logits: false,
            mirror: Mirror {
                position: Some(0),
                token: None,
                draw_offset: Some(0),
                settings: None,
            },
            started: 0,
            in_flight: 0,
            appends: false,
            interrupt: None,
            logprobs: None,
        };
        let greedy = Stages::default();
        for (advance, choose) in [(true, true), (true, false), (false, true)] {
            runner.graph(Ending {
                advance,
                choose,
                stages: greedy,
            })?;
        }
        Ok(runner)
    }

    /// What evaluates tokens of this session, on `stream`.
    fn evaluation<'a>(&'a self, stream: &'a Stream) -> Evaluation<'a> {
        Evaluation {
            kernels: self.weights.kernels(),
            plan: self.weights.plan(),
            kv: &self.kv,
            stream,
            sessions: self.table.address(),
        }
    }

    fn capture(&self, kind: Ending) -> Result<Graph> {
        self.stream.capture(|| {
            // SAFETY: the graph lives in this structure beside all memory that it names but the
            // weights, which it holds an `Arc` of. The cache is grown before each launch.
            unsafe {
                self.buffers
                    .enqueue(&self.evaluation(&self.stream), 1, kind)
            }
        })
    }

    /// The graph of a kind of step.
    fn graph(&mut self, kind: Ending) -> Result<&Graph> {
        let at = match self.graphs.iter().position(|(k, _)| *k == kind) {
            Some(at) => at,
            None => {
                let graph = self.capture(kind)?;
                self.graphs.push((kind, graph));
                self.graphs.len() - 1
            }
        };
        Ok(&self.graphs[at].1)
    }

    fn launch(&mut self, kind: Ending) -> Result<()> {
        let stream = self.stream.clone();
        let graph = self.graph(kind)?;
        // SAFETY: as in `capture`; `Drop` waits for the stream.
        unsafe { stream.launch_graph(graph) }
    }

    fn set32(&self, stream: &Stream, offset: usize, value: u32) -> Result<()> {
        // SAFETY: a field of the device-side state; stream order keeps it from running steps.
        unsafe { stream.fill32(self.session.address() + offset as u64, value, 1) }
    }

    fn set64(&self, stream: &Stream, offset: usize, value: u64) -> Result<()> {
        self.set32(stream, offset, value as u32)?;
        self.set32(stream, offset + 4, (value >> 32) as u32)
    }

    /// Brings the device's position to the host's.
    fn set_position(&mut self, stream: &Stream, position: usize) -> Result<()> {
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

    fn set_sampling(
        &mut self,
        stream: &Stream,
        settings: args::Settings,
        draw_offset: u64,
    ) -> Result<()> {
        if self.mirror.settings != Some(settings) {
            self.mirror.settings = None;
            let at = self.session.address() + offset_of!(args::Session, settings) as u64;
            let from = std::ptr::from_ref(&settings).cast();
            // SAFETY: a field of the device-side state; the source is read before this returns, as
            // it is not pinned; stream order keeps it from running steps.
            unsafe { stream.copy_in(at, from, size_of::<args::Settings>())? };
            self.mirror.settings = Some(settings);
        }
        if self.mirror.draw_offset != Some(draw_offset) {
            self.mirror.draw_offset = None;
            self.set64(stream, offset_of!(args::Session, draw_offset), draw_offset)?;
            self.mirror.draw_offset = Some(draw_offset);
        }
        Ok(())
    }

    /// Backs the cache for `positions` positions.
    fn grow(&mut self, positions: usize) -> Result<()> {
        if positions > self.context {
            fail!(
                ContextFull,
                "{positions} positions do not fit a context of {}",
                self.context
            );
        }
        self.back(self.kv.bytes(positions)?)
    }

    /// Backs that many bytes of each cache.
    pub(super) fn back(&mut self, bytes: [usize; 2]) -> Result<()> {
        for (cache, bytes) in self.caches.iter_mut().zip(bytes) {
            cache.grow(bytes, "KV cache")?;
        }
        Ok(())
    }

    /// Evaluates all tokens but the last as matrix products, and the last as a decode step does, so
    /// that its logits do not depend on how it came in.
    fn evaluate(&mut self, tokens: &[u32], interrupt: &AtomicBool) -> Result<()> {
        let Some((&last, first)) = tokens.split_last() else {
            fail!(NoTokens, "nothing to evaluate");
        };
        let start = self.len;
        let stream = self.stream.clone();
        self.grow(start + tokens.len())?;
        // SAFETY: `Drop` waits for the stream.
        unsafe { self.sampling.remember(&stream, start, tokens)? };
        if !first.is_empty() {
            let weights = self.weights.clone();
            let workspace = weights.prefill();
            let mut at = start;
            let mut result = Ok(());
            for chunk in first.chunks(CHUNK) {
                self.written = self.written.max(at + chunk.len());
                result = self.set_position(&stream, at).and_then(|()| {
                    // SAFETY: the cache is grown; the workspace is locked until the stream is idle.
                    unsafe { workspace.enqueue(&self.evaluation(&self.stream), chunk, interrupt) }
                });
                // One chunk at a time, so that an interrupt is noticed soon.
                result = result.and(self.stream.synchronize());
                if result.is_err() {
                    break;
                }
                at += chunk.len();
            }
            // The workspace is free for others only when the device is done with it.
            let idle = self.stream.synchronize();
            drop(workspace);
            result.and(idle)?;
        }
        if interrupt.load(Ordering::Relaxed) {
            fail!(
                Interrupted,
                "interrupted while evaluating {} tokens",
                tokens.len()
            );
        }
        self.set_position(&stream, start + first.len())?;
        self.set_token(&stream, last)?;
        self.written = self.written.max(start + tokens.len());
        self.mirror.position = None;
        self.launch(EVALUATE)?;
        self.stream.synchronize()?;
        self.mirror.position = Some((start + tokens.len()) as u32);
        Ok(())
    }
}

impl Runner for CudaRunner {
    fn len(&self) -> usize {
        self.len
    }

    fn extend(&mut self, tokens: &[u32], interrupt: &AtomicBool) -> Result<()> {
        let context = self.weights.context().clone();
        let _current = context.enter()?;
        let had_logits = std::mem::replace(&mut self.has_logits, false);
        match self.evaluate(tokens, interrupt) {
            Ok(()) => {
                self.len += tokens.len();
                self.has_logits = true;
                Ok(())
            }
            Err(e) => {
                // The logits are still those of the last position unless the last launch ran.
                self.has_logits = had_logits && self.mirror.position.is_some();
                self.forget(self.len);
                Err(e)
            }
        }
    }

    fn truncate(&mut self, len: usize) -> usize {
        self.forget(self.len.min(len));
        self.has_logits = false;
        self.len
    }

    fn has_logits(&self) -> bool {
        self.has_logits
    }

    fn logits(&mut self, out: &mut [f32]) -> Result<()> {
        let context = self.weights.context().clone();
        let _current = context.enter()?;
        if !self.has_logits {
            fail!(Internal, "there are no logits");
        }
        let n = out.len().min(self.weights.plan().n_vocab as usize);
        // SAFETY: `out` is valid until the stream is idle, which is awaited; sizes as allocated.
        unsafe {
            self.stream
                .copy_out(out.as_mut_ptr().cast(), self.buffers.logits(0), n * 4)?
        };
        self.stream.synchronize()
    }

    fn set_rules(&mut self, rules: Option<Arc<TokenRules>>) -> Result<()> {
        let context = self.weights.context().clone();
        let _current = context.enter()?;
        if self.in_flight > 0 {
            fail!(DecodePending, "a step is under way");
        }
        // The last step is collected, but its kernels may not have ended.
        self.stream.synchronize()?;
        self.sampling.set_rules(&context, rules.as_deref())
    }

    fn logprobs(&self) -> Option<&Logprobs> {
        self.logprobs.as_deref()
    }

    fn step_masked(
        &mut self,
        step: &Step,
        mask: Option<&mut MaskSource<'_>>,
        interrupt: &AtomicBool,
    ) -> Result<u32> {
        match mask {
            Some(mask) => self.begin_masked(step, mask, interrupt)?,
            None => self.begin(step, 1, interrupt)?,
        }
        match self.step_poll(true)? {
            Some(token) => Ok(token),
            None => fail!(Internal, "a step that was waited for has no result"),
        }
    }

    fn step_start_masked(
        &mut self,
        step: &Step,
        mask: &mut MaskSource<'_>,
        interrupt: &Arc<AtomicBool>,
    ) -> Result<()> {
        self.begin_masked(step, mask, interrupt)?;
        self.interrupt = Some(interrupt.clone());
        Ok(())
    }

    fn step_start(&mut self, step: &Step, interrupt: &Arc<AtomicBool>) -> Result<()> {
        self.steps_start(step, 1, interrupt)
    }

    fn queue_limit(&self) -> usize {
        RESULT_SLOTS as usize
    }

    fn steps_start(
        &mut self,
        step: &Step,
        count: usize,
        interrupt: &Arc<AtomicBool>,
    ) -> Result<()> {
        self.begin(step, count, interrupt)?;
        self.interrupt = Some(interrupt.clone());
        Ok(())
    }

    fn step_poll(&mut self, wait: bool) -> Result<Option<u32>> {
        let stream = self.stream.clone();
        self.poll_on(&stream, wait)
    }

    fn fork(&mut self) -> Result<Box<dyn Runner>> {
        Ok(Box::new(self.forked()?))
    }

    fn profile(&mut self, step: &Step, interrupt: &AtomicBool) -> Result<Profile> {
        if step.token.is_none() {
            fail!(Internal, "a profile of a step without a token");
        }
        let context = self.weights.context().clone();
        let _current = context.enter()?;
        let stream = self.stream.clone();
        let stages = self.prepare(&stream, step, 1, false, interrupt)?;
        stream.synchronize()?;
        let timeline = Timeline::start(&stream, self.len + 1)?;
        // SAFETY: as in `capture`; the results are awaited below.
        let enqueued = unsafe {
            self.buffers
                .enqueue_profiled(&self.evaluation(&stream), stages, &timeline)
        };
        if let Err(e) = enqueued {
            // Some of the kernels may have run.
            let _ = stream.synchronize();
            self.abandon();
            return Err(e);
        }
        self.launched(step);
        // The time counts, not the token; what there is to say about its failure, a decode says.
        match self.step_poll(true) {
            Ok(_) => {}
            Err(e) if e.status == Status::Numeric => {
                self.len += 1;
                self.has_logits = true;
            }
            Err(e) => return Err(e),
        }
        stream.synchronize()?;
        timeline.profile()
    }

    fn as_any(&mut self) -> Option<&mut dyn std::any::Any> {
        Some(self)
    }
}

impl CudaRunner {
    /// Notes that the logits of the last position are not in this runner's memory.
    pub(super) fn lose_logits(&mut self) {
        self.has_logits = false;
    }

    /// The address of the device-side state.
    pub(super) fn session_address(&self) -> u64 {
        self.session.address()
    }

    /// Element type of the caches.
    pub(super) fn kv_type(&self) -> KvType {
        self.kv.kv_type
    }

    /// Keeps `len` positions, or none if the ring has lost what the next one sees.
    fn forget(&mut self, len: usize) {
        self.len = if self.kv.keeps(len, self.written) {
            len
        } else {
            0
        };
        if self.len == 0 {
            self.written = 0;
        }
    }

    /// The weights that it runs.
    pub(super) fn weights(&self) -> &Arc<CudaWeights> {
        &self.weights
    }
}

impl Drop for CudaRunner {
    fn drop(&mut self) {
        if let Ok(_current) = self.weights.context().enter() {
            // The memory goes when the device is done with it; errors are reported elsewhere.
            let _ = self.stream.synchronize();
        }
    }
}
