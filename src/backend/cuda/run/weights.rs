//! A network resident on a GPU.

use super::batch::{Batch, Member};
use super::embedder::{CudaEmbedder, usual_rows};
use super::gate::Gate;
use super::residency::{HostCopy, Residency};
use super::runner::{CudaRunner, MAX_ROWS};
use super::state::Staging;
use crate::backend::cuda::driver::nccl::library;
use crate::backend::cuda::driver::{Context, PinnedFloats, Range};
use crate::backend::cuda::launch::args::MAX_PLACES;
use crate::backend::cuda::launch::kernels::Kernels;
use crate::backend::cuda::network::adapters::DeviceAdapter;
use crate::backend::cuda::network::hidden::{Keeps, StateRing};
use crate::backend::cuda::network::host_layers::{Guests, HOST_CHUNK};
use crate::backend::cuda::network::plan::Plan;
use crate::backend::cuda::network::prefill::PrefillBuffers;
use crate::backend::cuda::network::ranks::{Cut, Link, Meeting};
use crate::backend::cuda::network::upload::upload;
use crate::backend::embedder::NO_SESSIONS;
use crate::backend::group;
use crate::backend::row::{Front, Parts, RowWork, submit_parts};
use crate::backend::{
    Embedder, EmbedderOptions, HiddenStates, HostFloats, HostPart, KvType, LoadOptions, MAX_BATCH,
    NO_PLACES, NO_PREDICTORS, Progress, Ranks, Row, RowError, RowResult, Runner, RunnerOptions,
    Taken, Want, Weights, When,
};
use crate::error::{Result, fail};
use crate::memory::Account;
use crate::model::{Adapter, KvShape, Network, Rank};
use arrayvec::ArrayVec;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

/// Weights, kernels and the shared workspace of a model on one device.
pub struct CudaWeights {
    // Dropped in this order: graphs before what they have captured work of.
    /// One per type of KV cache, made when first needed.
    batches: Mutex<Vec<Batch>>,
    /// Where other ranks have shares of the same layers.
    link: Option<Link>,
    kernels: Arc<Kernels>,
    /// The network whose head this is, with which it shares what is the same.
    of: Option<Arc<CudaWeights>>,
    /// What the host evaluates of layers.
    host: Option<HostPart>,
    /// Layers of it that can come to the device.
    guests: Option<Guests>,
    /// For what sessions allocate.
    sessions: Arc<Context>,
    plan: Plan,
    kv_layers: Vec<KvShape>,
    /// Where the weights are.
    residency: RwLock<Residency>,
    /// Rows under way.
    busy: AtomicUsize,
    /// Given back while the weights are not on the device.
    prefill: Mutex<Option<PrefillBuffers>>,
    /// For states that are saved or loaded, made when first needed.
    staging: Mutex<Option<Staging>>,
    gate: Gate,
}

/// The weights of each rank, and what the ranks have together.
pub type LoadedRanks = (Vec<Arc<CudaWeights>>, Arc<dyn Ranks>);

/// A workspace of the model, locked.
pub struct Workspace<'a, T>(MutexGuard<'a, Option<T>>);

impl<'a, T> Workspace<'a, T> {
    /// The one in `place`, made if there is none.
    fn lock(
        place: &'a Mutex<Option<T>>,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Workspace<'a, T>> {
        // A workspace holds addresses only, so a panic cannot have left it half-changed.
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        if place.is_none() {
            *place = Some(make()?);
        }
        Ok(Workspace(place))
    }

    /// The workspace.
    pub fn get(&mut self) -> Result<&mut T> {
        match &mut *self.0 {
            Some(workspace) => Ok(workspace),
            None => fail!(Internal, "a workspace that was not made"),
        }
    }
}

/// Keeps the weights on the device while work with them is under way.
pub struct Busy(Arc<CudaWeights>);

impl Busy {
    /// Begins work.
    pub fn new(weights: &Arc<CudaWeights>) -> Busy {
        for weights in weights.all() {
            weights.busy.fetch_add(1, Ordering::AcqRel);
        }
        Busy(weights.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for weights in self.0.all() {
            weights.busy.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Holds weights on the device, and those of which they share some.
pub struct Resident<'a> {
    _guards: ArrayVec<RwLockReadGuard<'a, Residency>, 2>,
}

impl CudaWeights {
    /// Brings a network onto device `index`.
    ///
    /// Errors: `Unsupported` for what the kernels cannot do; `OutOfMemory` with the bytes wanted and
    /// free; `NoDevice`; those of the device; whatever `progress` fails with.
    pub fn load(
        index: usize,
        network: &Network,
        options: &LoadOptions,
        progress: &mut Progress<'_>,
    ) -> Result<Arc<CudaWeights>> {
        let (of_model, of_sessions) = contexts(index, options)?;
        let sessions = (of_sessions, options.host_part.clone());
        let mut weights = CudaWeights::load_charging(&of_model, sessions, network, progress)?;
        weights.choose_batches(options);
        Ok(Arc::new(weights))
    }

    /// Brings a network onto several devices, each of which has a share of every layer.
    ///
    /// Errors: as for [`CudaWeights::load`]; `Unsupported` also for networks that cannot be shared so, and for devices that cannot
    /// reach each other's memory where there is no NCCL.
    pub fn load_ranks(
        indices: &[usize],
        network: &Network,
        options: &LoadOptions,
        progress: &mut Progress<'_>,
    ) -> Result<LoadedRanks> {
        let count = indices.len();
        let ranks = (0..count).map(|index| Rank { index, count });
        let cuts: Vec<Cut> = ranks.map(|rank| Cut::of(network, rank)).collect();
        let mut contexts = Vec::new();
        for &device in indices {
            let account = Account::new(options.memory_limit, "memory_limit");
            contexts.push(Context::new(device)?.charging(account)?);
        }
        let meeting = Meeting::of(&contexts, options.nccl)?;
        let mut ranks = Vec::new();
        for (i, of_model) in contexts.iter().enumerate() {
            let share = network.rank(cuts[i].rank)?;
            let account = Account::new(options.session_memory_limit, "session_memory_limit");
            let of_sessions = of_model.charging(account)?;
            let (before, part) = (i as f32 / count as f32, 1.0 / count as f32);
            let mut progress = |done: f32| progress(before + part * done.clamp(0.0, 1.0));
            let mut weights =
                CudaWeights::load_charging(of_model, (of_sessions, None), &share, &mut progress)?;
            weights.choose_batches(options);
            ranks.push(weights);
        }
        let (links, group) = Link::all(&contexts, &cuts, meeting)?;
        for (weights, link) in ranks.iter_mut().zip(links) {
            weights.link = Some(link);
        }
        Ok((ranks.into_iter().map(Arc::new).collect(), group))
    }

    /// Brings a rank of a network onto a device; the others are loaded by themselves at the same time, and are met already.
    ///
    /// Errors: as for [`CudaWeights::load_ranks`]; `DeviceLost` where another rank does not come, or its own error where one fails.
    pub fn load_rank(
        index: usize,
        network: &Network,
        (meeting, options): (&Arc<group::Meeting>, &LoadOptions),
        progress: &mut Progress<'_>,
    ) -> Result<LoadedRanks> {
        library()?;
        let cut = Cut::of(network, meeting.rank());
        let share = network.rank(cut.rank)?;
        let (of_model, of_sessions) = contexts(index, options)?;
        // What is left is the wait for the others.
        const LOADED: f32 = 0.99;
        let mut weights =
            CudaWeights::load_charging(&of_model, (of_sessions, None), &share, &mut |done| {
                progress(done * LOADED)
            })?;
        let (link, ranks) = Link::apart(&of_model, &cut, meeting, &mut || progress(LOADED))?;
        weights.link = Some(link);
        weights.choose_batches(options);
        Ok((vec![Arc::new(weights)], ranks))
    }

    /// Decides how batches are evaluated.
    fn choose_batches(&mut self, options: &LoadOptions) {
        self.plan.f16_batches = options.f16_batches && self.kernels.has_wgmma();
    }

    /// The same with an opened device.
    pub fn load_into(
        context: &Arc<Context>,
        network: &Network,
        progress: &mut Progress<'_>,
    ) -> Result<Arc<CudaWeights>> {
        let sessions = context.charging(Account::unlimited())?;
        CudaWeights::load_charging(context, (sessions, None), network, progress).map(Arc::new)
    }

    /// The same, with the device as sessions use it.
    fn load_charging(
        context: &Arc<Context>,
        sessions_and_host: (Arc<Context>, Option<HostPart>),
        network: &Network,
        progress: &mut Progress<'_>,
    ) -> Result<CudaWeights> {
        // What is wrong with it is known without a device.
        Plan::new(network, 0)?;
        let kernels = Arc::new(Kernels::load(context)?);
        CudaWeights::load_with(kernels, None, sessions_and_host, network, progress)
    }

    /// The same with kernels that are there, of a network or of the head of one.
    fn load_with(
        kernels: Arc<Kernels>,
        of: Option<Arc<CudaWeights>>,
        (sessions, host): (Arc<Context>, Option<HostPart>),
        network: &Network,
        progress: &mut Progress<'_>,
    ) -> Result<CudaWeights> {
        let context = &kernels.context().clone();
        let beside = of.as_ref().map(|of| &of.plan);
        let bytes = Plan::beside(beside, network, 0)?.0.bytes as usize;
        // The addresses are in graphs, so they stay when the memory goes for a while.
        let mut memory = Range::reserve(context, bytes, bytes)?;
        memory.grow(bytes, "weights")?;
        let (plan, mut jobs) = Plan::beside(beside, network, memory.address())?;
        // Memory of the upload goes back before that of prefills is taken; a limit that has no room for
        // that is not to show at the end.
        let account = context.account();
        let prefills = plan.prefills();
        let prefill_bytes = if prefills {
            PrefillBuffers::bytes(&plan)
        } else {
            0
        };
        drop(account.charge(prefill_bytes as usize, "memory of the prefill")?);
        upload(&kernels, &jobs, &memory, progress)?;
        let guests = Guests::new(&kernels, std::mem::take(&mut jobs.guests))?;
        let prefill = match prefills {
            true => Some(PrefillBuffers::new(context, (&plan, host.as_ref()))?),
            false => None,
        };
        Ok(CudaWeights {
            kernels,
            of,
            link: None,
            host,
            guests,
            sessions,
            kv_layers: plan.kv(KvType::F16)?.shapes().to_vec(),
            plan,
            residency: RwLock::new(Residency::new(memory)),
            busy: AtomicUsize::new(0),
            prefill: Mutex::new(prefill),
            batches: Mutex::new(Vec::new()),
            staging: Mutex::new(None),
            gate: Gate::new(),
        })
    }

    /// Where other ranks have shares of the same layers.
    pub fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    /// The kernels.
    pub fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// The context that everything lives in.
    pub fn context(&self) -> &Arc<Context> {
        self.kernels.context()
    }

    /// The same context, with the account of the sessions.
    pub fn sessions(&self) -> &Arc<Context> {
        &self.sessions
    }

    /// What is where.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What is where, and what the host evaluates of it.
    pub fn network(&self) -> (&Plan, Option<&HostPart>) {
        (&self.plan, self.host.as_ref())
    }

    /// Layers of the host's that can come to the device.
    pub fn guests(&self) -> Option<&Guests> {
        self.guests.as_ref()
    }

    /// Most tokens of a prompt that are evaluated together.
    pub fn chunk(&self) -> usize {
        match (&self.host, &self.guests) {
            (Some(_), None) => HOST_CHUNK,
            _ => self.plan.chunk(),
        }
    }

    /// How prompts and decodes share the device.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The prefill's workspace, for one chunk at a time.
    pub fn prefill(&self) -> Result<Workspace<'_, PrefillBuffers>> {
        Workspace::lock(&self.prefill, || {
            PrefillBuffers::new(self.context(), self.network())
        })
    }

    /// Pinned memory for states, one session at a time.
    pub fn staging(&self) -> Result<Workspace<'_, Staging>> {
        let tiles = [KvType::F16, KvType::Q8_0].map(|kv_type| {
            let plan = self.plan.kv(kv_type);
            plan.map_or(0, |plan| plan.tile_bytes()[0])
        });
        let largest = tiles.into_iter().max().unwrap_or(0);
        Workspace::lock(&self.staging, || Staging::new(self.context(), largest))
    }

    /// These, and those of which they share some.
    fn all(&self) -> impl Iterator<Item = &CudaWeights> {
        [Some(self), self.of.as_deref()].into_iter().flatten()
    }

    /// Holds the weights on the device, where they are brought first if they are not there.
    pub fn resident(&self) -> Result<Resident<'_>> {
        let guards = self.all().map(CudaWeights::resident_alone);
        Ok(Resident {
            _guards: guards.collect::<Result<_>>()?,
        })
    }

    fn resident_alone(&self) -> Result<RwLockReadGuard<'_, Residency>> {
        loop {
            let residency = self
                .residency
                .read()
                .unwrap_or_else(PoisonError::into_inner);
            if residency.is_on_device() {
                return Ok(residency);
            }
            drop(residency);
            self.resume()?;
        }
    }

    /// Steps of rows that have caches of one type, in one pass.
    fn step_together(
        &self,
        runners: &mut [&mut CudaRunner],
        works: &mut [RowWork<'_, '_>],
        rows: &[usize],
        kv_type: KvType,
    ) -> RowResult<()> {
        let mut members = ArrayVec::<Member, MAX_BATCH>::new();
        let all = runners.iter_mut().zip(works.iter_mut()).enumerate();
        for (i, (runner, work)) in all.filter(|(i, _)| rows.contains(i)) {
            let member = member(runner, work).map_err(|e| RowError::of(i, e))?;
            members.push(member);
        }
        let n = members.iter().map(Member::rows).sum();
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        // What has too little memory gives it back first: estimates count that of the largest batch once.
        batches.retain(|b| !b.is_for(kv_type) || b.has_room(n));
        let at = match batches.iter().position(|b| b.is_for(kv_type)) {
            Some(at) => at,
            None => {
                let rows = if self.link.is_some() { MAX_BATCH } else { n };
                batches.push(Batch::new(self, kv_type, rows)?);
                batches.len() - 1
            }
        };
        let chosen = batches[at].step(self, &mut members);
        drop(members);
        let chosen = chosen.map_err(|e| RowError {
            row: e.row.map(|member| rows[member]),
            error: e.error,
        })?;
        let mut chosen = chosen.into_iter();
        for &i in rows {
            let kept = match chosen.next() {
                Some(Some(chosen)) => runners[i].keep(chosen),
                Some(None) => runners[i].keep_verified(),
                None => runners[i].keep_evaluated(),
            };
            kept.map_err(|e| RowError::of(i, e))?;
        }
        Ok(())
    }

    /// Does the work of rows. After an error, some of them may be under way.
    fn submit_apart(&self, (runners, works): &mut Parts<CudaRunner>, when: When) -> RowResult<()> {
        let _resident = self.resident()?;
        // Steps with caches of one type go together, and drafts with them as long as rows are free; rows that choose again, or have
        // more to do, go alone.
        let mut spare = MAX_BATCH - works.len();
        let mut kinds = ArrayVec::<Option<(KvType, bool)>, MAX_BATCH>::new();
        for (i, work) in works.iter().enumerate() {
            let drafts = drafts_of(work);
            let chooses = match *work.want {
                // Those of a part go alone.
                Want::Verified { .. } => {
                    let fits = work.tokens.len() > drafts && drafts <= spare;
                    fits && self.drafts_in_batches()
                }
                want => want.is_one_choice() && !work.tokens.is_empty(),
            };
            let evaluates = matches!(work.want, Want::Evaluated) && work.tokens.len() == 1;
            kinds.push(None);
            if when == When::Now && (chooses || evaluates) && self.of.is_none() {
                let kv_type = runners[i].kv_type().map_err(|e| RowError::of(i, e))?;
                kinds[i] = Some((kv_type, chooses));
                spare -= drafts;
            }
        }
        let kinds = &kinds[..];
        let alike = |kind| (0..kinds.len()).filter(move |i| kinds[*i] == kind);
        let together = |kind: &Option<_>| kind.is_some() && alike(*kind).nth(1).is_some();
        for (i, _) in kinds.iter().enumerate().filter(|(_, k)| !together(k)) {
            let submitted = runners[i].submit(&mut works[i], when);
            submitted.map_err(|e| RowError::of(i, e))?;
        }
        for (i, kind) in kinds.iter().enumerate().filter(|(_, k)| together(k)) {
            if let Some((kv_type, _)) = *kind
                && !kinds[..i].contains(kind)
            {
                let group: ArrayVec<usize, MAX_BATCH> = alike(*kind).collect();
                self.step_together(runners, works, &group, kv_type)?;
            }
        }
        Ok(())
    }
}

/// A device as a model uses it, and as its sessions do.
fn contexts(index: usize, options: &LoadOptions) -> Result<(Arc<Context>, Arc<Context>)> {
    let context = match options.cuda_context {
        0 => Context::new(index)?,
        raw => Context::shared(index, raw)?,
    };
    let account = Account::new(options.memory_limit, "memory_limit");
    let of_model = context.charging(account)?;
    let account = Account::new(options.session_memory_limit, "session_memory_limit");
    let of_sessions = of_model.charging(account)?;
    Ok((of_model, of_sessions))
}

/// The drafts of a row.
fn drafts_of(work: &RowWork<'_, '_>) -> usize {
    match *work.want {
        Want::Verified { drafts, .. } => drafts,
        _ => 0,
    }
}

/// A row of a batch.
fn member<'c, 'w: 'c, 'm>(
    runner: &'c mut CudaRunner,
    work: &mut RowWork<'w, 'm>,
) -> Result<Member<'c, 'm>> {
    let sampling = match work.want {
        Want::Choices { sampling, .. } | Want::Verified { sampling, .. } => Some(sampling),
        _ => None,
    };
    let core = runner.core()?;
    let (known, drafts) = work.tokens.split_at(work.tokens.len() - drafts_of(work));
    let residual = &mut *work.residual;
    let Some(token) = core.all_but_last(known, residual, work.interrupt)? else {
        fail!(Internal, "a step of a batch without a token");
    };
    Ok(Member {
        core,
        token,
        drafts,
        sampling,
        mask: work.mask.take(),
        interrupt: work.interrupt,
        residual: std::mem::take(work.residual),
    })
}

impl Weights for CudaWeights {
    fn create_runner(self: Arc<Self>, options: &RunnerOptions) -> Result<Box<dyn Runner>> {
        if self.plan.encoder.is_some() {
            fail!(Unsupported, "{NO_SESSIONS}");
        }
        if self.link.is_some() {
            // What fails when work has begun leaves other ranks waiting, as does memory that is given back.
            let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
            if !batches.iter().any(|b| b.is_for(options.kv_type)) {
                batches.push(Batch::new(&self, options.kv_type, MAX_BATCH)?);
            }
        }
        Ok(Box::new(CudaRunner::new(self, options)?))
    }

    fn host_floats(&self, floats: usize) -> Result<Option<HostFloats>> {
        let what = "memory of the residual stream";
        let floats = PinnedFloats::new(self.context(), floats, what)?;
        Ok(Some(Box::new(floats)))
    }

    fn create_embedder(self: Arc<Self>, options: &EmbedderOptions) -> Result<Box<dyn Embedder>> {
        if self.host.is_some() {
            fail!(
                Unsupported,
                "vectors and scores of texts are not supported with experts on the CPU"
            );
        }
        Ok(Box::new(CudaEmbedder::new(self, options)?))
    }

    fn embedder_tokens(&self) -> usize {
        usual_rows(&self.plan)
    }

    fn resident_bytes(&self) -> u64 {
        self.plan.bytes
    }

    fn taken(&self) -> Taken {
        Taken {
            model: self.context().account().taken(),
            sessions: self.sessions.account().taken(),
        }
    }

    fn kv_layers(&self) -> &[KvShape] {
        &self.kv_layers
    }

    fn takes_kv_type(&self, kv_type: KvType) -> bool {
        self.plan.kv(kv_type).is_ok()
    }

    fn kv_bytes_per_token(&self, kv_type: KvType) -> u64 {
        if self.plan.encoder.is_some() {
            return 0;
        }
        self.plan.kv(kv_type).map_or(0, |kv| kv.bytes_per_token())
    }

    fn kv_bytes(&self, options: &RunnerOptions) -> u64 {
        let kv = self.plan.kv(options.kv_type);
        let kv = kv.map_or(0, |kv| kv.all_bytes(options.context));
        let n_vocab = self.plan.logits_len() as usize;
        kv.saturating_add(self.plan.fixed.session_bytes(n_vocab, options.marks()))
    }

    fn fixed_len(&self) -> usize {
        self.plan.fixed.floats()
    }

    fn check_adapters(&self) -> Result<()> {
        Ok(())
    }

    fn take_adapter(&self, adapter: &mut Adapter) -> Result<()> {
        let taken = DeviceAdapter::take(&self.sessions, &self.plan, adapter)?;
        if self.link.is_none() {
            adapter.leave(taken.pairs());
        }
        adapter.device.push(Box::new(taken));
        Ok(())
    }

    fn max_drafts(&self) -> usize {
        // Ranks that are apart would each have to guess the same, and as much.
        let is_apart = self.link.as_ref().is_some_and(Link::is_apart);
        match self.plan.ends.0 != Front::States && !is_apart {
            true => MAX_ROWS - 1,
            false => 0,
        }
    }

    fn drafts_in_batches(&self) -> bool {
        self.plan.ends == (Front::Embeddings, true) && self.link.is_none()
    }

    fn load_predictor(self: Arc<Self>, network: &Network) -> Result<Arc<dyn Weights>> {
        if self.plan.ends != (Front::Embeddings, true) || self.link.is_some() {
            fail!(Unsupported, "{NO_PREDICTORS}");
        }
        let (kernels, sessions) = (self.kernels.clone(), (self.sessions.clone(), None));
        let of = Some(self);
        let head = CudaWeights::load_with(kernels, of, sessions, network, &mut |_| Ok(()))?;
        Ok(Arc::new(head))
    }

    fn hidden_states(&self, rows: usize) -> Result<Arc<HiddenStates>> {
        if !self.plan.ends.1 || self.link.is_some() || self.plan.streams.is_some() {
            fail!(Unsupported, "{NO_PREDICTORS}");
        }
        let hidden = self.plan.hidden as usize;
        let states = StateRing::states(&self.sessions, hidden, &[], rows)?;
        Ok(Arc::new(states))
    }

    fn states_at(&self, places: &[usize], rows: usize) -> Result<Arc<HiddenStates>> {
        let (front, ends) = self.plan.ends;
        if !ends || front == Front::Stream || self.link.is_some() {
            fail!(Unsupported, "{NO_PLACES}");
        }
        let most = self.plan.layers.len().min(Keeps::MOST - 1);
        let able = self.plan.streams.is_none() && places.len() <= MAX_PLACES;
        if !able || places.iter().any(|place| *place > most) {
            fail!(
                Unsupported,
                "the network's layers have no hidden states at {places:?} on this device"
            );
        }
        let hidden = self.plan.hidden as usize;
        let states = StateRing::states(&self.sessions, hidden, places, rows)?;
        Ok(Arc::new(states))
    }

    fn submit(&self, rows: &mut [Row<'_>], when: When) -> RowResult<()> {
        let accepts = |runner: &mut CudaRunner| {
            if !std::ptr::eq(Arc::as_ptr(runner.weights()), self) {
                fail!(Internal, "it has other weights");
            }
            runner.core().map(drop)
        };
        let (ends, width) = (self.plan.ends, self.plan.hidden as usize);
        submit_parts(
            rows,
            accepts,
            |work| work.residual.check(ends, work.tokens.len(), width),
            |runner, work| {
                let _resident = self.resident()?;
                runner.submit(work, when)
            },
            |parts| self.submit_apart(parts, when),
        )
    }

    fn evict(&self) -> Result<()> {
        let mut residency = self
            .residency
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if !residency.is_on_device() {
            return Ok(());
        }
        if self.busy.load(Ordering::Acquire) > 0 {
            fail!(Busy, "work with a session of the model is under way");
        }
        self.context().synchronize()?;
        let copy = HostCopy::of(self.context(), residency.memory())?;
        residency.leave(copy)?;
        let workspaces = self.prefill.lock();
        *workspaces.unwrap_or_else(PoisonError::into_inner) = None;
        let staging = self.staging.lock();
        *staging.unwrap_or_else(PoisonError::into_inner) = None;
        let batches = self.batches.lock();
        batches.unwrap_or_else(PoisonError::into_inner).clear();
        Ok(())
    }

    fn resume(&self) -> Result<()> {
        let mut residency = self
            .residency
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        residency.come_back(self.context())?;
        // What a prompt needs is there again, too, before a call is promised that it can do its work.
        if self.plan.prefills() {
            drop(self.prefill()?);
        }
        Ok(())
    }
}
