//! The parts of a network on their devices, and steps of several sessions through all of them.

use super::core::{Core, Done};
use super::pipeline::{PIECE, Slots};
use super::rank_states::FixedLayer;
use super::ranks;
use super::runner::PartsRunner;
use crate::backend::row::{Parts, RowWork, submit_parts};
use crate::backend::{
    Embedder, EmbedderOptions, KvType, MAX_BATCH, MAX_DRAFTS, MaskSource, Ranks, Residual, Row,
    RowError, RowResult, Runner, RunnerOptions, Taken, Want, Weights, When,
};
use crate::error::{Result, fail, try_vec};
use crate::memory;
use crate::model::{Adapter, KvShape, Network};
use crate::threads::Placement;
use arrayvec::ArrayVec;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A network of which each part is somewhere.
pub struct PartsWeights {
    /// First to last; two at least.
    parts: Vec<Arc<dyn Weights>>,
    hidden: usize,
    n_vocab: usize,
    kv_layers: Vec<KvShape>,
    /// What layers keep of fixed size, where each part has a share of every layer and all of them are here.
    fixed_layers: Vec<FixedLayer>,
    devices: Devices,
    /// Where parts are not one behind the other but have shares of the same layers.
    ranks: Option<Arc<dyn Ranks>>,
    /// Where threads run that do started work.
    placement: Placement,
    /// Memory for the residual streams of a batch, while nobody uses it.
    spare: Mutex<Vec<Streams>>,
    /// Memory for the residual streams of prompts, likewise.
    spare_slots: Mutex<Vec<Slots>>,
}

/// What kinds of devices have the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Devices {
    /// Pieces of prompts are short.
    Cpus,
    /// Long pieces of prompts are faster than short ones.
    Gpus,
    /// Some of either kind.
    Both,
}

/// Memory for the residual streams of some tokens.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// In front of a part.
    pub before: Vec<f32>,
    /// Behind it.
    pub behind: Vec<f32>,
}

impl Streams {
    /// So many floats each.
    pub fn new(floats: usize) -> Result<Streams> {
        let what = "the residual stream between parts";
        Ok(Streams {
            before: try_vec(floats, 0.0, what)?,
            behind: try_vec(floats, 0.0, what)?,
        })
    }
}

/// Memory that goes back when this is dropped.
pub(super) struct Borrowed<'a, T: Default> {
    memory: T,
    spare: &'a Mutex<Vec<T>>,
}

impl<'a, T: Default> Borrowed<'a, T> {
    /// Memory that nobody uses, if it `fits`, or that is made.
    fn of(
        spare: &'a Mutex<Vec<T>>,
        fits: impl FnOnce(&T) -> bool,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Borrowed<'a, T>> {
        let left = lock(spare).pop();
        let memory = match left.filter(fits) {
            Some(memory) => memory,
            None => make()?,
        };
        Ok(Borrowed { memory, spare })
    }
}

impl<T: Default> Deref for Borrowed<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.memory
    }
}

impl<T: Default> DerefMut for Borrowed<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.memory
    }
}

impl<T: Default> Drop for Borrowed<'_, T> {
    fn drop(&mut self) {
        let mut spare = lock(self.spare);
        if spare.try_reserve(1).is_ok() {
            spare.push(std::mem::take(&mut self.memory));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Memory without a meaning between two uses.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PartsWeights {
    /// Of the parts of a network, first to last.
    pub fn new(
        network: &Network,
        parts: Vec<Arc<dyn Weights>>,
        devices: Devices,
        placement: Placement,
    ) -> Arc<PartsWeights> {
        let kv_layers = parts.iter().flat_map(|part| part.kv_layers()).copied();
        let kv_layers = kv_layers.collect();
        PartsWeights::of(
            network,
            parts,
            (devices, None),
            (kv_layers, Vec::new()),
            placement,
        )
    }

    /// Of parts that each have a share of every layer; the first one has the logits. Errors: `Unsupported` where such shares cannot be.
    pub fn of_ranks(
        network: &Network,
        parts: Vec<Arc<dyn Weights>>,
        ranks: Arc<dyn Ranks>,
        placement: Placement,
    ) -> Result<Arc<PartsWeights>> {
        let kv_layers = network.blocks.iter().map(|block| {
            let state = block.mixer.state(network.context_length);
            state.kv()
        });
        let fixed_layers = match ranks.apart() {
            None => FixedLayer::of(network, parts.len())?,
            Some(_) => Vec::new(),
        };
        let (layers, kind) = (
            (kv_layers.collect(), fixed_layers),
            (Devices::Gpus, Some(ranks)),
        );
        Ok(PartsWeights::of(network, parts, kind, layers, placement))
    }

    fn of(
        network: &Network,
        parts: Vec<Arc<dyn Weights>>,
        (devices, ranks): (Devices, Option<Arc<dyn Ranks>>),
        (kv_layers, fixed_layers): (Vec<KvShape>, Vec<FixedLayer>),
        placement: Placement,
    ) -> Arc<PartsWeights> {
        Arc::new(PartsWeights {
            hidden: network.hidden,
            n_vocab: network.n_vocab,
            kv_layers,
            fixed_layers,
            parts,
            devices,
            ranks,
            placement,
            spare: Mutex::default(),
            spare_slots: Mutex::default(),
        })
    }

    /// What the parts have together, if each has a share of every layer.
    pub(super) fn ranks(&self) -> Option<&dyn Ranks> {
        self.ranks.as_deref()
    }

    /// Whether other parts are loaded by themselves.
    pub(super) fn are_apart(&self) -> bool {
        self.ranks().is_some_and(|ranks| ranks.apart().is_some())
    }

    /// What layers keep of fixed size, of which each part has a share.
    pub(super) fn fixed_layers(&self) -> &[FixedLayer] {
        &self.fixed_layers
    }

    /// The part that has the logits.
    pub(super) fn speaker(&self) -> usize {
        match self.ranks {
            Some(_) => 0,
            None => self.parts.len() - 1,
        }
    }

    /// First to last.
    pub(super) fn parts(&self) -> &[Arc<dyn Weights>] {
        &self.parts
    }

    /// Tokens of a piece of a prompt of so many. Short ones keep more parts at work.
    pub(super) fn piece(&self, tokens: usize) -> usize {
        match self.devices {
            Devices::Gpus => (tokens / 4).next_multiple_of(PIECE).clamp(PIECE, 4 * PIECE),
            _ => PIECE,
        }
    }

    /// Width of the residual stream.
    pub(super) fn hidden(&self) -> usize {
        self.hidden
    }

    /// Number of logits.
    pub(super) fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// Where threads run that do started work.
    pub(super) fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Memory for the streams of a batch. Errors: `OutOfMemory`.
    pub(super) fn streams(&self) -> Result<Borrowed<'_, Streams>> {
        let make = || Streams::new(MAX_BATCH.max(MAX_DRAFTS + 1) * self.hidden);
        Borrowed::of(&self.spare, |_| true, make)
    }

    /// Memory for the streams of pieces of so many tokens. Errors: `OutOfMemory`.
    pub(super) fn slots(&self, tokens: usize) -> Result<Borrowed<'_, Slots>> {
        let fits = |slots: &Slots| slots.have_room(tokens * self.hidden);
        // That of short prompts is made for those behind, too.
        let tokens = tokens.next_power_of_two();
        let make = || Slots::new(&self.parts, tokens * self.hidden);
        Borrowed::of(&self.spare_slots, fits, make)
    }

    fn sum(&self, of: impl Fn(&dyn Weights) -> u64) -> u64 {
        let parts = self.parts.iter().map(|part| of(&**part));
        parts.fold(0, u64::saturating_add)
    }

    /// Does the work of rows. After an error, some of them may be under way.
    fn submit_apart(&self, (runners, works): &mut Parts<PartsRunner>, when: When) -> RowResult<()> {
        let is_step = |work: &RowWork| when == When::Now && work.want.is_one_choice();
        let steps = works.iter().filter(|work| is_step(work)).count();
        let mut members = ArrayVec::<usize, MAX_BATCH>::new();
        for (i, (runner, work)) in runners.iter_mut().zip(works.iter_mut()).enumerate() {
            if steps > 1 && is_step(work) {
                members.push(i);
            } else {
                runner.submit(work, when).map_err(|e| RowError::of(i, e))?;
            }
        }
        if members.is_empty() {
            return Ok(());
        }
        let done = self.step_together(runners, works, &members)?;
        for (&i, done) in members.iter().zip(done) {
            runners[i].keep(done);
        }
        Ok(())
    }

    /// Steps of several sessions, through each part together. After an error, all are where they were.
    fn step_together(
        &self,
        runners: &[&mut PartsRunner],
        works: &mut [RowWork<'_, '_>],
        members: &[usize],
    ) -> RowResult<ArrayVec<Done, MAX_BATCH>> {
        let mut cores = ArrayVec::<MutexGuard<Core>, MAX_BATCH>::new();
        for &i in members {
            cores.push(runners[i].idle_core().map_err(|e| RowError::of(i, e))?);
        }
        let before: ArrayVec<usize, MAX_BATCH> = cores.iter().map(|core| core.len()).collect();
        let done = self.step_cores(&mut cores, works, members);
        if done.is_err() {
            for (core, before) in cores.iter_mut().zip(before) {
                core.go_back(before);
            }
        }
        done
    }

    fn step_cores(
        &self,
        cores: &mut [MutexGuard<Core>],
        works: &mut [RowWork<'_, '_>],
        members: &[usize],
    ) -> RowResult<ArrayVec<Done, MAX_BATCH>> {
        // What comes before the last token of each, one after another.
        for (core, &i) in cores.iter_mut().zip(members) {
            let work = &works[i];
            let mut evaluate = || {
                core.check(work.tokens)?;
                match work.tokens.split_last() {
                    Some((_, first)) if !first.is_empty() => {
                        core.extend(first, Want::Logits, work.interrupt).map(drop)
                    }
                    _ => Ok(()),
                }
            };
            evaluate().map_err(|e| RowError::of(i, e))?;
        }
        if let Some(ranks) = &self.ranks {
            return self.step_ranks(&**ranks, cores, works, members);
        }
        let mut borrowed = self.streams()?;
        let (streams, width) = (&mut *borrowed, self.hidden);
        let (last, earlier) = match self.parts.split_last() {
            Some((last, earlier)) => (last, earlier),
            None => return Ok(ArrayVec::new()),
        };
        for (index, weights) in earlier.iter().enumerate() {
            let of = (index, &**weights);
            evaluate_part(of, (cores, works, members), streams, width)?;
            std::mem::swap(&mut streams.before, &mut streams.behind);
        }
        choose_behind(&**last, (cores, works, members), &streams.before, width)?;
        let mut done = ArrayVec::new();
        let mut failed = Ok(());
        for (core, &i) in cores.iter_mut().zip(members) {
            match core.chosen() {
                Ok((chosen, _)) => done.push(chosen),
                Err(e) => failed = failed.and(Err(RowError::of(i, e))),
            }
            core.note_progress();
        }
        failed.map(|()| done)
    }
}
/// The cores of a step, the works of all rows, and which of these are the cores'.
type Members<'s, 'g, 'w, 'a> = (
    &'s mut [MutexGuard<'g, Core>],
    &'s mut [RowWork<'w, 'a>],
    &'s [usize],
);

/// Has a part evaluate the last token of each that has one, from the streams before it to those behind it.
///
/// Apart from its caller for the sake of the stack, as its list of rows is long.
#[inline(never)]
fn evaluate_part(
    (index, weights): (usize, &dyn Weights),
    (cores, works, members): Members<'_, '_, '_, '_>,
    streams: &mut Streams,
    width: usize,
) -> RowResult<()> {
    let mut rows = ArrayVec::<Row, MAX_BATCH>::new();
    let mut rows_of = ArrayVec::<usize, MAX_BATCH>::new();
    let places = streams
        .before
        .chunks(width)
        .zip(streams.behind.chunks_mut(width));
    let with_token = cores.iter_mut().zip(members);
    let with_token = with_token.filter(|(_, i)| !works[**i].tokens.is_empty());
    for ((core, &i), (input, output)) in with_token.zip(places) {
        let work = &works[i];
        rows_of.push(i);
        rows.push(Row {
            runner: &mut *core.parts[index],
            tokens: &work.tokens[work.tokens.len() - 1..],
            want: Want::Evaluated,
            mask: None,
            interrupt: work.interrupt,
            residual: Residual {
                input: (index > 0).then_some(input).into(),
                output: Some(output),
            },
        });
    }
    let of = |e: RowError| RowError {
        row: e.row.map(|row| rows_of[row]),
        error: e.error,
    };
    if !rows.is_empty() {
        weights.submit(&mut rows, When::Now).map_err(of)?;
    }
    for (row, &i) in rows.iter_mut().zip(&rows_of) {
        row.runner.poll(true).map_err(|e| RowError::of(i, e))?;
    }
    Ok(())
}

/// Has the last part do what is wanted of each, from the streams before it. The outcomes are to be polled.
///
/// Apart from its caller, as [`evaluate_part`].
#[inline(never)]
fn choose_behind(
    weights: &dyn Weights,
    (cores, works, members): Members<'_, '_, '_, '_>,
    streams: &[f32],
    width: usize,
) -> RowResult<()> {
    let mut rows = ArrayVec::<Row, MAX_BATCH>::new();
    let mut inputs = streams.chunks(width);
    let mut all = works.iter_mut().enumerate();
    for (core, &i) in cores.iter_mut().zip(members) {
        let Some((_, work)) = all.find(|(at, _)| *at == i) else {
            continue;
        };
        let first = work.tokens.len().saturating_sub(1);
        let input = match work.tokens {
            [] => None,
            _ => inputs.next(),
        };
        let Some(runner) = core.parts.last_mut() else {
            continue;
        };
        rows.push(Row {
            runner: &mut **runner,
            tokens: &work.tokens[first..],
            want: *work.want,
            mask: work.mask.take().map(|mask| mask as &mut MaskSource<'_>),
            interrupt: work.interrupt,
            residual: Residual {
                input: input.into(),
                output: None,
            },
        });
    }
    let of = |e: RowError| RowError {
        row: e.row.map(|row| members[row]),
        error: e.error,
    };
    weights.submit(&mut rows, When::Now).map_err(of)
}

impl PartsWeights {
    /// The steps of sessions whose earlier tokens are evaluated, through all ranks: those with a token and caches of one type
    /// together.
    fn step_ranks(
        &self,
        ranks: &dyn Ranks,
        cores: &mut [MutexGuard<Core>],
        works: &mut [RowWork<'_, '_>],
        members: &[usize],
    ) -> RowResult<ArrayVec<Done, MAX_BATCH>> {
        let mut done: ArrayVec<Option<Done>, MAX_BATCH> = members.iter().map(|_| None).collect();
        let mut of_members = ArrayVec::<(usize, &mut Core, &mut RowWork<'_, '_>), MAX_BATCH>::new();
        let works = works.iter_mut().enumerate();
        let works = works.filter(|(i, _)| members.contains(i));
        for ((at, core), (_, work)) in cores.iter_mut().enumerate().zip(works) {
            of_members.push((at, &mut **core, work));
        }
        while let Some((_, first, _)) = of_members.first() {
            let kv_type = first.kv_type;
            let mut together = ArrayVec::<_, MAX_BATCH>::new();
            let mut others = ArrayVec::<_, MAX_BATCH>::new();
            for member in of_members.drain(..) {
                match member.1.kv_type == kv_type {
                    true => together.push(member),
                    false => others.push(member),
                }
            }
            of_members = others;
            let with_token = together
                .iter()
                .filter(|(_, _, work)| !work.tokens.is_empty());
            if together.len() > 1 && with_token.count() == together.len() {
                let mut places = ArrayVec::<usize, MAX_BATCH>::new();
                let (mut cores, mut works) = (Vec::new(), Vec::new());
                for (at, core, work) in &mut together {
                    places.push(*at);
                    cores.push(&mut **core);
                    works.push(&mut **work);
                }
                memory::check()?;
                let stepped = ranks::step(self, ranks, &mut cores, &mut works);
                stepped.map_err(|e| RowError {
                    row: e.row.map(|row| members[places[row]]),
                    error: e.error,
                })?;
                let mut failed = Ok(());
                for (at, core) in places.into_iter().zip(cores) {
                    match core.chosen() {
                        Ok((chosen, _)) => done[at] = Some(chosen),
                        Err(e) => failed = failed.and(Err(RowError::of(members[at], e))),
                    }
                    core.note_progress();
                }
                failed?;
                continue;
            }
            for (at, core, work) in &mut together {
                let Want::Choices { sampling, .. } = *work.want else {
                    continue;
                };
                let first = work.tokens.len().saturating_sub(1);
                let mask = work.mask.take().map(|mask| mask as &mut MaskSource<'_>);
                let chosen = core.choose(&work.tokens[first..], &sampling, mask, work.interrupt);
                let (chosen, _) = chosen.map_err(|e| RowError::of(members[*at], e))?;
                done[*at] = Some(chosen);
            }
        }
        Ok(done.into_iter().flatten().collect())
    }
}

impl Weights for PartsWeights {
    fn create_runner(self: Arc<Self>, options: &RunnerOptions) -> Result<Box<dyn Runner>> {
        let create = |part: &Arc<dyn Weights>| part.clone().create_runner(options);
        let parts = self.parts.iter().map(create).collect::<Result<Vec<_>>>()?;
        let core = Core::new(self, parts, (options.context, options.kv_type))?;
        Ok(Box::new(PartsRunner::new(core)))
    }

    fn create_embedder(self: Arc<Self>, _options: &EmbedderOptions) -> Result<Box<dyn Embedder>> {
        fail!(
            Unsupported,
            "vectors and scores of texts are not supported for a model in parts; they are where it is on a CPU as a whole"
        )
    }

    fn resident_bytes(&self) -> u64 {
        self.sum(|part| part.resident_bytes())
    }

    fn taken(&self) -> Taken {
        Taken {
            model: self.sum(|part| part.taken().model),
            sessions: self.sum(|part| part.taken().sessions),
        }
    }

    fn taken_by(&self, part: usize) -> Taken {
        let part = self.parts.get(part);
        part.map_or_else(Taken::default, |part| part.taken())
    }

    fn kv_layers(&self) -> &[KvShape] {
        &self.kv_layers
    }

    fn fixed_len(&self) -> usize {
        if self.ranks.is_some() && !self.are_apart() {
            // Several ranks may have the same channels.
            return self.fixed_layers.iter().map(FixedLayer::len).sum();
        }
        self.parts.iter().map(|part| part.fixed_len()).sum()
    }

    fn takes_kv_type(&self, kv_type: KvType) -> bool {
        self.parts.iter().all(|part| part.takes_kv_type(kv_type))
    }

    fn kv_bytes_per_token(&self, kv_type: KvType) -> u64 {
        self.sum(|part| part.kv_bytes_per_token(kv_type))
    }

    fn kv_bytes(&self, options: &RunnerOptions) -> u64 {
        self.sum(|part| part.kv_bytes(options))
    }

    fn check_adapters(&self) -> Result<()> {
        self.parts.iter().try_for_each(|part| part.check_adapters())
    }

    fn take_adapter(&self, adapter: &mut Adapter) -> Result<()> {
        let mut parts = self.parts.iter();
        parts.try_for_each(|part| part.take_adapter(adapter))?;
        if self.ranks.is_some() {
            // Each has taken its share of all pairs.
            let all: Vec<_> = adapter.pairs.keys().copied().collect();
            adapter.leave(all.into_iter());
        }
        Ok(())
    }

    fn max_drafts(&self) -> usize {
        let least = self.parts.iter().map(|part| part.max_drafts()).min();
        least.unwrap_or(0)
    }

    fn answers_interrupts(&self) -> bool {
        self.are_apart()
    }

    fn submit(&self, rows: &mut [Row<'_>], when: When) -> RowResult<()> {
        submit_parts(
            rows,
            |runner: &mut PartsRunner| runner.takes_work(self),
            |_| Ok(()),
            |runner, work| runner.submit(work, when),
            |parts| self.submit_apart(parts, when),
        )
    }

    fn evict(&self) -> Result<()> {
        for (i, part) in self.parts.iter().enumerate() {
            if let Err(e) = part.evict() {
                // Whatever does not come back now does so with the next work.
                self.parts[..i].iter().for_each(|part| {
                    let _ = part.resume();
                });
                return Err(e);
            }
        }
        Ok(())
    }

    fn resume(&self) -> Result<()> {
        self.parts.iter().try_for_each(|part| part.resume())
    }
}
