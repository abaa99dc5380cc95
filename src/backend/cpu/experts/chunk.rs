//! Experts for many tokens: sorted by expert, and each expert's tokens multiplied together.

use super::super::adapters::StackAdapters;
use super::super::layer::Product;
use super::super::matmul::{Activations, Encodings, Isa, Matrix};
use super::super::pages::{Pages, Span};
use super::super::pass::{Pass, product_cost};
use super::super::pool::Work;
use super::{Expert, ExpertLayer, ExpertSizes, Which, add_bias};
use crate::error::{Result, try_vec};
use std::ops::Range;

const BLOCK: usize = Matrix::ROW_QUANTUM;

/// Memory of a chunk's experts. A pair is a token and one of its experts; pairs sorted by expert,
/// those of an expert by token, are slots. The work on slots is done in windows of as many slots as
/// the chunk may have tokens.
pub(in super::super) struct ExpertChunkSpace {
    scores: Pages,
    weights: Pages,
    keys: Vec<f32>,
    /// Expert of each pair.
    ids: Vec<u32>,
    /// First slot of each expert, and the end.
    starts: Vec<u32>,
    /// Experts that have slots.
    active: Vec<u32>,
    /// Slot of each pair.
    slots: Vec<u32>,
    /// Token of each slot.
    tokens: Vec<u32>,
    /// Of a window's slots: inputs, activations, outputs.
    input: Activations,
    inner: Pages,
    out: Pages,
    max_tokens: usize,
}

impl ExpertChunkSpace {
    /// For chunks of up to `tokens` on so many threads. Errors: `OutOfMemory`.
    pub fn new(s: &ExpertSizes, threads: usize, tokens: usize) -> Result<ExpertChunkSpace> {
        let pages = |width: usize| Pages::floats(tokens.saturating_mul(width), "experts' scratch");
        let pairs = tokens.saturating_mul(s.n_used);
        let list = |len| try_vec(len, 0u32, "experts' scratch");
        Ok(ExpertChunkSpace {
            scores: pages(s.scores)?,
            weights: pages(s.parts)?,
            keys: try_vec(s.n_experts * threads, 0.0, "experts' scratch")?,
            ids: list(pairs)?,
            starts: list(s.n_experts + 1)?,
            active: list(s.n_experts)?,
            slots: list(pairs)?,
            tokens: list(pairs)?,
            input: Activations::new(tokens, s.n_ff.max(s.hidden), s.encodings)?,
            inner: pages(s.n_ff)?,
            out: pages(s.hidden)?,
            max_tokens: tokens,
        })
    }

    /// Bytes of [`ExpertChunkSpace::new`].
    pub fn bytes_for(s: &ExpertSizes, threads: usize, tokens: usize) -> usize {
        let once = s.n_experts * (threads + 2);
        let floats = s.scores + s.parts + 3 * s.n_used + s.n_ff + s.hidden;
        let input = Activations::bytes_for(tokens, s.n_ff.max(s.hidden), s.encodings);
        (once + tokens * floats) * size_of::<f32>() + input
    }

    /// For the threads of a pass. `up` has a block of [`Matrix::ROW_QUANTUM`] rows for each thread
    /// and token.
    pub fn chunk<'a>(&'a mut self, isa: Isa, up: Span<'a>) -> ExpertChunk<'a> {
        ExpertChunk {
            isa,
            scores: self.scores.span(),
            weights: self.weights.span(),
            keys: Span::new(&mut self.keys),
            ids: Span::new(&mut self.ids),
            starts: Span::new(&mut self.starts),
            active: Span::new(&mut self.active),
            slots: Span::new(&mut self.slots),
            tokens: Span::new(&mut self.tokens),
            input: &self.input,
            inner: self.inner.span(),
            out: self.out.span(),
            up,
            max_tokens: self.max_tokens,
        }
    }
}

/// A chunk's experts, as each thread sees them.
#[derive(Clone, Copy)]
pub(in super::super) struct ExpertChunk<'a> {
    isa: Isa,
    scores: Span<'a>,
    weights: Span<'a>,
    keys: Span<'a>,
    ids: Span<'a, u32>,
    starts: Span<'a, u32>,
    active: Span<'a, u32>,
    slots: Span<'a, u32>,
    tokens: Span<'a, u32>,
    input: &'a Activations,
    inner: Span<'a>,
    out: Span<'a>,
    up: Span<'a>,
    max_tokens: usize,
}

/// What adapters add to the products of some runs.
#[derive(Clone, Copy)]
enum Added<'a> {
    /// To a shared expert's, whose rows are tokens.
    Shared,
    /// To those of experts that a router chose, if there are any; of a window of slots from this one on.
    Chosen(Option<StackAdapters<'a>>, usize),
}

/// Tokens of a chunk that one expert multiplies: rows `tokens` of its input.
struct Run<'l> {
    expert: Expert<'l>,
    tokens: Range<usize>,
}

impl ExpertChunk<'_> {
    /// Writes the layer's output of all tokens to `y`, rows of `layer.hidden`, by their scores; the pass has
    /// encoded the normed input.
    pub fn run(&self, pass: &Pass, layer: &ExpertLayer) -> Result<()> {
        let (n, y) = (pass.tokens.count, pass.tokens.buffers.y);
        assert!(n <= self.max_tokens);
        let pairs = n * layer.routing.n_used;
        let input = pass.tokens.input;
        self.choose(pass, layer)?;
        // SAFETY: no phase runs, so nobody else uses the lists; later phases only read them.
        unsafe { self.sort(layer, n) };
        let adapters = layer.experts.adapters(pass.tokens);
        let mut next_run = 0;
        for from in (0..pairs).step_by(self.max_tokens) {
            let window = from..(from + self.max_tokens).min(pairs);
            let added = Added::Chosen(adapters, window.start);
            self.gather(pass, layer, &window, adapters)?;
            // SAFETY: nobody writes the lists.
            let runs = unsafe { self.runs(layer, &window, &mut next_run) };
            // SAFETY: as above.
            let run = |i: usize| unsafe { self.run_at(layer, &window, runs.start + i) };
            let slots = (runs.len(), window.len());
            let factor = |slot: usize| self.input_factor(layer, window.start + slot);
            self.lora_down(pass, slots, run, added, &[Which::First, Which::Up])?;
            self.gate_up(pass, slots, run, self.input, factor, added)?;
            let enc = layer.experts.down.matrix.encodings();
            self.encode(pass, window.len(), layer.experts.n_ff, enc, added)?;
            self.lora_down(pass, slots, run, added, &[Which::Down])?;
            self.down(pass, slots, run, layer.hidden, added)?;
            self.add_window(pass, layer, &window, y)?;
        }
        if let Some(shared) = &layer.shared {
            let expert = shared.products.expert(0, self.isa);
            let run = |_| Run {
                expert,
                tokens: 0..n,
            };
            shared.products.lora_down_first(pass)?;
            self.gate_up(pass, (1, n), run, input, |_| 1.0, Added::Shared)?;
            let enc = shared.products.down.matrix.encodings();
            self.encode(pass, n, shared.products.n_ff, enc, Added::Shared)?;
            pass.lora_down(&[&shared.products.down])?;
            self.down(pass, (1, n), run, layer.hidden, Added::Shared)?;
            self.add_shared(pass, layer, expert, y)?;
        }
        Ok(())
    }

    /// Scores of all tokens.
    pub fn score(&self, pass: &Pass, layer: &ExpertLayer) -> Result<()> {
        let (n, stride, input) = (pass.tokens.count, layer.n_scores(), pass.tokens.input);
        let mut products = arrayvec::ArrayVec::<&Product, 2>::new();
        products.extend(layer.scorers());
        pass.lora_down(&products)?;
        let (all, tokens) = (products.clone(), pass.tokens);
        pass.rows(products, move |me, i, rows| {
            let at = if i == 0 { 0 } else { layer.routing.n_experts };
            let product = all[i];
            // SAFETY: each thread has rows of its own, of all tokens.
            unsafe {
                let (out, unpacked) = (self.scores.base().add(at), &mut me.unpacked);
                let matrix = &product.matrix;
                matrix.mul(input, 0..n, rows.clone(), out, stride, unpacked);
                for t in 0..n {
                    let out = self.scores.part(t * stride + at + rows.start, rows.len());
                    tokens.lora_up(t, (i, product), rows.clone(), || &mut *out);
                    add_bias(out, product.bias.as_ref().map(|b| &b[rows.clone()]));
                }
            }
        })
    }

    /// Experts and weights of all tokens.
    fn choose(&self, pass: &Pass, layer: &ExpertLayer) -> Result<()> {
        let (routing, stride) = (&layer.routing, layer.n_scores());
        let (n_experts, used) = (routing.n_experts, routing.n_used);
        let parts = used + usize::from(layer.shared.is_some());
        let work = Work::even(pass.tokens.count, (n_experts * used) as u64);
        pass.phase(work, |me, tokens| {
            for t in tokens {
                // SAFETY: each token is one thread's, and so is a share of the keys.
                unsafe {
                    let scores = &*self.scores.part(t * stride, stride);
                    let keys = self.keys.part(me.index * n_experts, n_experts);
                    let ids = self.ids.part(t * used, used);
                    let weights = self.weights.part(t * parts, parts);
                    routing.choose(&scores[..n_experts], keys, ids, &mut weights[..used]);
                    if parts > used {
                        weights[used] = layer.shared_weight(scores);
                    }
                }
            }
        })
    }

    /// Sorts the pairs by expert.
    ///
    /// # Safety
    /// Nobody else uses the lists.
    unsafe fn sort(&self, layer: &ExpertLayer, n: usize) {
        let used = layer.routing.n_used;
        let (n_experts, pairs) = (layer.routing.n_experts, n * used);
        // SAFETY: by contract, nobody else uses the lists.
        let (ids, starts, active, slots, tokens) = unsafe {
            (
                &*self.ids.part(0, pairs),
                self.starts.part(0, n_experts + 1),
                self.active.part(0, n_experts),
                self.slots.part(0, pairs),
                self.tokens.part(0, pairs),
            )
        };
        starts.fill(0);
        for id in ids {
            starts[*id as usize + 1] += 1;
        }
        let mut n_active = 0;
        for e in 0..n_experts {
            if starts[e + 1] > 0 {
                active[n_active] = e as u32;
                n_active += 1;
            }
            starts[e + 1] += starts[e];
        }
        // While placing, the start of an expert is its next free slot; in the end that is the start
        // of the one after it.
        for (pair, id) in ids.iter().enumerate() {
            let next = &mut starts[*id as usize];
            slots[pair] = *next;
            tokens[*next as usize] = (pair / used) as u32;
            *next += 1;
        }
        starts.copy_within(0..n_experts, 1);
        starts[0] = 0;
    }

    /// Indices into the active experts of those with slots in a window. `next` is the first that may
    /// be, and becomes that for the next window.
    ///
    /// # Safety
    /// Nobody writes the lists.
    unsafe fn runs(
        &self,
        layer: &ExpertLayer,
        window: &Range<usize>,
        next: &mut usize,
    ) -> Range<usize> {
        let n_experts = layer.routing.n_experts;
        // SAFETY: by contract, nobody writes the lists.
        let (starts, active) = unsafe {
            (
                &*self.starts.part(0, n_experts + 1),
                &*self.active.part(0, n_experts),
            )
        };
        let first = *next;
        let mut i = first;
        loop {
            let end = starts[active[i] as usize + 1] as usize;
            i += 1;
            if end >= window.end {
                // One that goes on beyond the window is the next one's first.
                *next = if end == window.end { i } else { i - 1 };
                return first..i;
            }
        }
    }

    /// The slots of an active expert in a window, counted from the window's start.
    ///
    /// # Safety
    /// Nobody writes the lists.
    unsafe fn run_at<'l>(
        &self,
        layer: &'l ExpertLayer,
        window: &Range<usize>,
        i: usize,
    ) -> Run<'l> {
        // SAFETY: by contract, nobody writes the lists.
        let (e, starts) = unsafe {
            let e = self.active.part(i, 1)[0] as usize;
            (e, &*self.starts.part(e, 2))
        };
        let from = (starts[0] as usize).max(window.start) - window.start;
        let to = (starts[1] as usize).min(window.end) - window.start;
        Run {
            expert: layer.experts.expert(e, self.isa),
            tokens: from..to,
        }
    }

    /// Brings the inputs of a window's slots together.
    fn gather(
        &self,
        pass: &Pass,
        layer: &ExpertLayer,
        window: &Range<usize>,
        adapters: Option<StackAdapters>,
    ) -> Result<()> {
        let encodings = layer.experts.inputs().map(|p| p.matrix.encodings());
        let enc = encodings.fold(Encodings::default(), Encodings::union);
        let work = Work::even(window.len(), layer.hidden as u64 / 8);
        let input = pass.tokens.input;
        pass.phase(work, |_, slots| {
            for slot in slots {
                // SAFETY: each slot is one thread's; the input is only read.
                unsafe {
                    let token = self.token(window.start + slot);
                    self.input.copy_row(slot, input, token, layer.hidden, enc);
                    if let Some(adapters) = &adapters {
                        adapters.take(slot, token, layer.hidden);
                    }
                }
            }
        })
    }

    /// The token of a slot.
    ///
    /// # Safety
    /// Nobody writes the lists.
    unsafe fn token(&self, slot: usize) -> usize {
        // SAFETY: by contract, nobody writes the lists.
        unsafe { self.tokens.part(slot, 1)[0] as usize }
    }

    /// Readies what adapters add to some matrices of runs with so many slots together: to those of the layer's input, or to the last
    /// ones.
    fn lora_down<'l>(
        &self,
        pass: &Pass,
        (n_runs, slots): (usize, usize),
        run: impl Fn(usize) -> Run<'l> + Sync,
        added: Added,
        matrices: &[Which],
    ) -> Result<()> {
        let Added::Chosen(Some(adapters), start) = added else {
            return Ok(());
        };
        let each = 100 + (slots / n_runs.max(1) * self.input.max_cols()) as u64;
        pass.phase(Work::even(n_runs, each), |me, runs| {
            for Run { expert, tokens } in runs.map(&run) {
                for which in matrices {
                    let rows = tokens.clone();
                    // SAFETY: each run's rows are one thread's; the lists are only read.
                    unsafe {
                        let token = |slot| self.token(start + slot);
                        let unpacked = &mut me.unpacked;
                        expert.lora_down_chosen(&adapters, *which, rows, token, unpacked);
                    }
                }
            }
        })
    }

    /// What a slot's weight is to its expert's input. In a phase that only reads the lists.
    fn input_factor(&self, layer: &ExpertLayer, slot: usize) -> f32 {
        if !layer.weighs_inputs {
            return 1.0;
        }
        let used = layer.routing.n_used;
        let parts = used + usize::from(layer.shared.is_some());
        // SAFETY: nobody writes the lists and the weights while gates and ups are worked out.
        unsafe {
            let token = self.token(slot);
            let slots = &*self.slots.part(token * used, used);
            let place = slots.iter().position(|s| *s as usize == slot);
            let weights = &*self.weights.part(token * parts, used);
            layer.factors(place.map_or(f32::NAN, |i| weights[i])).0
        }
    }

    /// Gate and up (or up alone) of runs with so many slots together, activated, in `inner`, with a factor on what each slot reads.
    fn gate_up<'l>(
        &self,
        pass: &Pass,
        (n_runs, slots): (usize, usize),
        run: impl Fn(usize) -> Run<'l> + Sync,
        input: &Activations,
        factor: impl Fn(usize) -> f32 + Sync,
        added: Added,
    ) -> Result<()> {
        let p = run(0).expert.products;
        let (n_ff, blocks) = (p.n_ff, p.n_ff.div_ceil(BLOCK));
        let work = work(p.inputs().count(), &p.first, (n_runs, slots), blocks);
        let of_pass = pass.tokens;
        pass.phase(work, |me, tasks| {
            for task in tasks {
                let Run { expert, tokens } = run(task / blocks);
                let rows = task % blocks * BLOCK..(task % blocks * BLOCK + BLOCK).min(n_ff);
                let n = rows.len();
                let mine = me.index * self.max_tokens * BLOCK;
                // SAFETY: each thread has rows of its own of a run's tokens, and its own block of up.
                unsafe {
                    let unpacked = &mut me.unpacked;
                    let out = self.inner.base().add(rows.start);
                    let view = expert.rows(Which::First, rows.clone());
                    view.mul(input, tokens.clone(), 0..n, out, n_ff, unpacked);
                    let gated = expert.products.up.is_some();
                    if gated {
                        let up = self.up.base().add(mine);
                        let view = expert.rows(Which::Up, rows.clone());
                        view.mul(input, tokens.clone(), 0..n, up, BLOCK, unpacked);
                    }
                    for t in tokens {
                        let first = self.inner.part(t * n_ff + rows.start, n);
                        let mut up = gated.then(|| self.up.part(mine + t * BLOCK, n));
                        match added {
                            Added::Shared => {
                                let up = up.as_deref_mut();
                                expert.lora_up(of_pass, t, rows.clone(), first, up);
                            }
                            Added::Chosen(None, _) => {}
                            Added::Chosen(Some(a), start) => {
                                let row = (t, self.token(start + t));
                                expert.lora_up_chosen(&a, Which::First, row, rows.clone(), first);
                                if let Some(up) = up.as_deref_mut() {
                                    expert.lora_up_chosen(&a, Which::Up, row, rows.clone(), up);
                                }
                            }
                        }
                        expert.activate(rows.clone(), factor(t), first, up);
                    }
                }
            }
        })
    }

    /// Encodes `n` rows of activations as inputs of the last products.
    fn encode(
        &self,
        pass: &Pass,
        n: usize,
        n_ff: usize,
        enc: Encodings,
        added: Added,
    ) -> Result<()> {
        let tokens = pass.tokens;
        pass.phase(Work::even(n, 50 + n_ff as u64 / 4), |_, rows| {
            for row in rows {
                // SAFETY: each row is one thread's.
                unsafe {
                    let inner = self.inner.part(row * n_ff, n_ff);
                    self.input.set_row(self.isa, row, inner, enc);
                    match added {
                        Added::Shared => tokens.keep(row, inner),
                        Added::Chosen(None, _) => {}
                        Added::Chosen(Some(adapters), _) => adapters.keep(self.isa, row, inner),
                    }
                }
            }
        })
    }

    /// Outputs of runs with so many slots together, without bias.
    fn down<'l>(
        &self,
        pass: &Pass,
        (n_runs, slots): (usize, usize),
        run: impl Fn(usize) -> Run<'l> + Sync,
        hidden: usize,
        added: Added,
    ) -> Result<()> {
        let blocks = hidden.div_ceil(BLOCK);
        let work = work(1, &run(0).expert.products.down, (n_runs, slots), blocks);
        let of_pass = pass.tokens;
        pass.phase(work, |me, tasks| {
            for task in tasks {
                let Run { expert, tokens } = run(task / blocks);
                let rows = task % blocks * BLOCK..(task % blocks * BLOCK + BLOCK).min(hidden);
                let n = rows.len();
                // SAFETY: each thread has rows of its own of a run's tokens.
                unsafe {
                    let out = self.out.base().add(rows.start);
                    let view = expert.rows(Which::Down, rows.clone());
                    let unpacked = &mut me.unpacked;
                    view.mul(self.input, tokens.clone(), 0..n, out, hidden, unpacked);
                    let out = |t: usize| self.out.part(t * hidden + rows.start, n);
                    match added {
                        Added::Shared => {
                            let down = (0, &expert.products.down);
                            for t in tokens {
                                of_pass.lora_up(t, down, rows.clone(), || out(t));
                            }
                        }
                        Added::Chosen(None, _) => {}
                        Added::Chosen(Some(a), start) => {
                            for t in tokens {
                                let (row, rows) = ((t, self.token(start + t)), rows.clone());
                                expert.lora_up_chosen(&a, Which::Down, row, rows, out(t));
                            }
                        }
                    }
                }
            }
        })
    }

    /// Adds the outputs of a window to those of the windows before.
    fn add_window(
        &self,
        pass: &Pass,
        layer: &ExpertLayer,
        window: &Range<usize>,
        y: Span,
    ) -> Result<()> {
        let (used, hidden) = (layer.routing.n_used, layer.hidden);
        let parts = used + usize::from(layer.shared.is_some());
        let work = Work::even(pass.tokens.count, (used * hidden) as u64 / 8);
        pass.phase(work, |_, tokens| {
            for t in tokens {
                // SAFETY: each token is one thread's; all else is only read.
                unsafe {
                    let y = y.part(t * hidden, hidden);
                    if window.start == 0 {
                        layer.begin_sum(0..hidden, y);
                    }
                    let ids = &*self.ids.part(t * used, used);
                    let slots = &*self.slots.part(t * used, used);
                    let weights = &*self.weights.part(t * parts, used);
                    for ((id, slot), weight) in ids.iter().zip(slots).zip(weights) {
                        let slot = *slot as usize;
                        if window.contains(&slot) {
                            let out = &*self.out.part((slot - window.start) * hidden, hidden);
                            let expert = layer.experts.expert(*id as usize, self.isa);
                            expert.add_output(0..hidden, layer.factors(*weight).1, out, y);
                        }
                    }
                }
            }
        })
    }

    /// Adds the outputs of the shared expert.
    fn add_shared(&self, pass: &Pass, layer: &ExpertLayer, shared: Expert, y: Span) -> Result<()> {
        let (used, hidden) = (layer.routing.n_used, layer.hidden);
        let work = Work::even(pass.tokens.count, hidden as u64 / 8);
        pass.phase(work, |_, tokens| {
            for t in tokens {
                // SAFETY: each token is one thread's; all else is only read.
                unsafe {
                    let y = y.part(t * hidden, hidden);
                    let out = &*self.out.part(t * hidden, hidden);
                    let weight = self.weights.part(t * (used + 1) + used, 1)[0];
                    shared.add_output(0..hidden, weight, out, y);
                }
            }
        })
    }
}

/// The work of `matrices` like `product`, by blocks of rows of each run's expert.
fn work(
    matrices: usize,
    product: &Product,
    (n_runs, slots): (usize, usize),
    blocks: usize,
) -> Work {
    let bytes = matrices * BLOCK * product.tensor.row_bytes();
    let each = product_cost(bytes, slots.div_ceil(n_runs.max(1)));
    Work::even(n_runs * blocks, each)
}
