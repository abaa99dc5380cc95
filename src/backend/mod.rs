//! Backends run a network: whole steps, not single operations, so that each fuses as it likes.
//!
//! `Weights` is a network resident on a device, `Runner` the state of one session there. The engine
//! is written against these traits alone.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod device;
mod driver;
mod embedder;
pub mod group;
mod hidden;
mod marks;
pub mod parts;
mod profile;
pub(crate) mod row;
pub mod state;

pub use device::{
    Backend, DeviceInfo, DeviceKind, Estimate, LoadOptions, MAX_SPLIT, Placement, Progress, Share,
    Taken,
};
pub use embedder::{Embedder, EmbedderOptions, Output, TextTokens};
pub use hidden::{DeviceStates, HiddenStates};
pub use profile::{Profile, ProfileEntry, Work};
pub use row::{
    MAX_BATCH, MAX_DRAFTED, MAX_DRAFTS, Outcome, Residual, Row, RowError, RowResult, StatesFrom,
    TokenInput, Want, When,
};
pub use state::{Mark, StateInfo, StateSink, StateSource};

use crate::engine::sampling::{Logprobs, Sampling, TokenRules};
use crate::error::{Error, Result, fail, try_vec};
use crate::model::{Adapter, AdapterSet, KvShape, Network};
use crate::threads::Thread;
use crate::threads::event::Event;
use marks::MarkPlan;
use std::any::Any;
use std::ops::DerefMut;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// Element type of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// Half precision.
    #[default]
    F16,
    /// Single precision. CPU only.
    F32,
    /// 8-bit values with a half-precision scale per 32. GPU only.
    Q8_0,
}

/// What a runner is made with.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunnerOptions {
    /// Positions that the KV cache must be able to hold.
    pub context: usize,
    /// Element type of the KV cache.
    pub kv_type: KvType,
    /// Priority among the sessions of a GPU: positive goes first, negative last. Devices have few
    /// levels and take the nearest. Ignored by CPUs.
    pub stream_priority: i32,
    /// Positions from a copy of states of fixed size to the next one at most; 0 for a few copies.
    pub mark_interval: usize,
}

impl RunnerOptions {
    /// How states of fixed size are marked.
    fn marks(&self) -> MarkPlan {
        MarkPlan::new(self.mark_interval, self.context)
    }
}

/// What the ranks of a network have together, each of which has a share of every layer. They work at the same time, so one piece
/// of work of one group is under way in the process at most.
pub trait Ranks: Send + Sync {
    /// Begins work that all ranks do. `DeviceLost` after one did not come.
    fn begin(&self) -> Result<()>;

    /// Work that was begun is over, whatever has become of it.
    fn end(&self) {}

    /// `DeviceLost` if a rank did not do its work in time.
    fn check(&self) -> Result<()>;

    /// Ranks that are apart, which have to agree on what they do; none where one call has all of them work.
    fn apart(&self) -> Option<&dyn Apart> {
        None
    }
}

/// Ranks of which each is loaded by itself.
pub trait Apart: Send + Sync {
    /// Held by one piece of work at a time.
    fn turn(&self) -> &Mutex<()>;

    /// Waits until all are ready for the same work ([`group::Meeting::agree`]).
    fn agree(&self, ready: Result<&group::Work>) -> Result<()>;

    /// This one has failed in the middle of work: the others are not to wait for it.
    fn fail(&self, e: &Error);
}

/// The weights of each rank, and what the ranks have together.
pub type RankedWeights = (Vec<Arc<dyn Weights>>, Arc<dyn Ranks>);

/// Parts of layers that the host evaluates for another device ([`crate::model::Network::experts_apart`]).
pub trait HostLayers: Send + Sync {
    /// Readies what [`HostLayers::run`] works in for up to so many rows. Errors: `OutOfMemory`.
    fn reserve(&self, rows: usize) -> Result<()>;

    /// Evaluates a layer: each of the rows of the residual stream, `stride` floats apart, becomes that behind it. The bits of a row
    /// do not depend on the others. Waits for others that run here. Errors: `OutOfMemory`, `Internal`; the rows are anything then.
    fn run(&self, layer: usize, rows: &mut [f32], stride: usize) -> Result<()>;
}

/// [`HostLayers`] among the options of a load.
#[derive(Clone)]
pub struct HostPart(pub Arc<dyn HostLayers>);

impl std::fmt::Debug for HostPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostPart")
    }
}

/// Floats in memory of the host.
pub type HostFloats = Box<dyn DerefMut<Target = [f32]> + Send>;

/// So many zeros on the heap. Errors: `OutOfMemory`, which says what they were for.
pub(crate) fn heap_floats(floats: usize, what: &str) -> Result<HostFloats> {
    Ok(Box::new(try_vec(floats, 0.0f32, what)?))
}

/// What devices say that run no heads that guess further tokens.
const NO_PREDICTORS: &str = "drafts of a model's own heads are not supported on this device";

/// What devices say that hand out no hidden states between layers.
pub(crate) const NO_PLACES: &str =
    "drafts of EAGLE-3 need a model that is on one device as a whole";

/// What devices say that have no adapters.
const NO_ADAPTERS: &str = "adapters are not supported on this device";

/// A network's weights on a device. Shared by all its runners.
pub trait Weights: Send + Sync {
    /// Whether all work with them looks for interrupts by itself, because others have to learn of each.
    fn answers_interrupts(&self) -> bool {
        false
    }

    /// Makes a runner with an empty state and everything reserved that a step needs.
    fn create_runner(self: Arc<Self>, options: &RunnerOptions) -> Result<Box<dyn Runner>>;

    /// So many zeros in memory of the host that this device copies from and to the fastest, if there is any such memory: for the
    /// residual streams of rows of several tokens.
    ///
    /// Errors: `OutOfMemory`; those of the device.
    fn host_floats(&self, floats: usize) -> Result<Option<HostFloats>> {
        let _ = floats;
        Ok(None)
    }

    /// What another device has evaluated here, if this one is the host.
    fn host_layers(self: Arc<Self>) -> Option<HostPart> {
        None
    }

    /// Makes an embedder, with all memory reserved that it needs.
    ///
    /// Errors: `Unsupported` names what the model or the device lacks; `OutOfMemory`.
    fn create_embedder(self: Arc<Self>, options: &EmbedderOptions) -> Result<Box<dyn Embedder>> {
        let _ = options;
        fail!(
            Unsupported,
            "vectors and scores of texts are not supported on this device; they are on a CPU"
        )
    }

    /// Tokens of texts that an embedder evaluates together, where nobody says how many.
    fn embedder_tokens(&self) -> usize {
        512
    }

    /// Bytes of memory that the weights hold beyond the mapped file (on a GPU, device memory).
    fn resident_bytes(&self) -> u64;

    /// Memory that is taken now, where a limit could be set.
    fn taken(&self) -> Taken {
        Taken::default()
    }

    /// The same of a part of a network in parts.
    fn taken_by(&self, part: usize) -> Taken {
        let _ = part;
        self.taken()
    }

    /// What each layer keeps of a position.
    fn kv_layers(&self) -> &[KvShape];

    /// Floats of fixed size that all layers keep together.
    fn fixed_len(&self) -> usize {
        0
    }

    /// Whether a KV cache can have this element type here.
    fn takes_kv_type(&self, kv_type: KvType) -> bool;

    /// Bytes of KV cache that a further position takes: those of the layers without a sliding
    /// window.
    fn kv_bytes_per_token(&self, kv_type: KvType) -> u64;

    /// Bytes of the state of a session of so many positions: KV cache, and what layers keep of fixed
    /// size, with the copies that the session can go back to.
    fn kv_bytes(&self, options: &RunnerOptions) -> u64 {
        self.kv_bytes_per_token(options.kv_type)
            .saturating_mul(options.context as u64)
    }

    /// `Unsupported` where the device cannot add adapters to products.
    fn check_adapters(&self) -> Result<()> {
        fail!(Unsupported, "{NO_ADAPTERS}")
    }

    /// Readies an adapter for the runners of these weights; its memory is charged to that of sessions, as long as anybody has it.
    ///
    /// Errors: those of [`Weights::check_adapters`]; `OutOfMemory`; those of the device. The adapter is of no use then.
    fn take_adapter(&self, adapter: &mut Adapter) -> Result<()> {
        let _ = adapter;
        self.check_adapters()
    }

    /// The most drafts of a row, up to [`MAX_DRAFTS`]; 0 where the device or the network cannot verify any.
    fn max_drafts(&self) -> usize {
        0
    }

    /// Whether rows of several runners may have drafts. They are dearest to the device within [`MAX_DRAFTED`] tokens of a pass:
    /// one of each row, and the drafts of all.
    fn drafts_in_batches(&self) -> bool {
        false
    }

    /// Loads a head that guesses further tokens beside this network, whose it is (`Network::predictor`) or for which it is: its rows have
    /// hidden states of this one beside their tokens ([`TokenInput::States`]). A head without an embedding of its own
    /// (`Fusion::own_embedding`) has this one's.
    ///
    /// Errors: `Unsupported` where the device cannot; `OutOfMemory`; those of the device.
    fn load_predictor(self: Arc<Self>, network: &Network) -> Result<Arc<dyn Weights>> {
        let _ = network;
        fail!(Unsupported, "{NO_PREDICTORS}")
    }

    /// Room for the hidden states of so many positions of a runner ([`Runner::keep_states`]).
    ///
    /// Errors: `Unsupported` where the device does not hand them out; `OutOfMemory`.
    fn hidden_states(&self, rows: usize) -> Result<Arc<HiddenStates>> {
        let _ = rows;
        fail!(Unsupported, "{NO_PREDICTORS}")
    }

    /// The same of what the residual stream is at these places: before the layer of that number, or behind the last one.
    ///
    /// Errors: as above.
    fn states_at(&self, places: &[usize], rows: usize) -> Result<Arc<HiddenStates>> {
        let _ = (places, rows);
        fail!(Unsupported, "{NO_PLACES}")
    }

    /// Gives the device's memory back and keeps the weights in host memory, where they are not
    /// anyway. Handles and sessions stay good; the next work brings the weights back.
    ///
    /// Errors: `Busy` while work is under way; `OutOfMemory` for host memory; those of the device.
    /// The weights are where they were then.
    fn evict(&self) -> Result<()> {
        Ok(())
    }

    /// Brings evicted weights back.
    ///
    /// Errors: `OutOfMemory`; those of the device. The weights are still evicted then.
    fn resume(&self) -> Result<()> {
        Ok(())
    }

    /// Starts the work of 1 to [`MAX_BATCH`] rows of different runners of these weights, in as few
    /// passes over the weights as the device can. [`Runner::poll`] has the results of each row. The
    /// bits of what a runner answers do not depend on the others.
    ///
    /// An error ends the work of all rows, and nothing is to be polled then. Runners whose work had
    /// been done already stay ahead; those that have failed are as they were, but may have lost
    /// their logits: mark them before, and roll them back.
    ///
    /// Errors name the row that they are about: `Interrupted`; `OutOfMemory`; `Numeric` where the
    /// choice fails; those of the mask and of the device.
    fn submit(&self, rows: &mut [Row<'_>], when: When) -> RowResult<()>;
}

/// Fills the mask of a choice, of `n_vocab / 32` words, rounded up: bit `id % 32` of word `id / 32`
/// says that token `id` may be chosen. Bits beyond the vocabulary do not matter, and the words hold
/// anything before. An error ends the step.
pub type MaskSource<'a> = dyn FnMut(&mut [u32]) -> Result<()> + 'a;

/// Calls a source and checks that its mask allows one of `n_vocab` tokens.
///
/// Errors: those of the source; `InvalidArgument` if nothing is allowed.
pub fn fill_mask(source: &mut MaskSource, n_vocab: usize, words: &mut [u32]) -> Result<()> {
    source(words)?;
    let (whole, rest) = (n_vocab / 32, n_vocab % 32);
    if words[..whole].iter().any(|w| *w != 0) || rest > 0 && words[whole] << (32 - rest) != 0 {
        return Ok(());
    }
    fail!(InvalidArgument, "the mask allows no token");
}

/// The state of one session on a device: KV cache, scratch memory, logits.
///
/// Work that fails leaves the state as it was before, or at an earlier mark, or empty: after many
/// positions of layers with a sliding window, or where layers keep a state of fixed size. While a row of it is under way (from `submit` to the last outcome or the
/// error of `poll`), only `poll`, `len`, `progress`, `queue_limit` and `drop_outcomes` may be called.
pub trait Runner: Send {
    /// The runner itself, for a backend that looks for its own.
    fn as_any(&mut self) -> Option<&mut dyn Any> {
        None
    }

    /// Number of positions in the state.
    fn len(&self) -> usize;

    /// Whether the state is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next outcome of the runner's row, or `None` while it is not there. Never blocks unless
    /// `wait`. After an error nothing of the row is left: the state is as it was before what
    /// failed.
    fn poll(&mut self, wait: bool) -> Result<Option<Outcome>>;

    /// Positions evaluated, those of the row under way included as far as it has come.
    fn progress(&self) -> usize {
        self.len()
    }

    /// The most choices of a row without a mask, at least 1. A caller that wants more submits them
    /// when these were collected.
    fn queue_limit(&self) -> usize {
        1
    }

    /// Whether logits of the last position are at hand.
    fn has_logits(&self) -> bool;

    /// Writes the logits of the last position, `n_vocab` of them.
    fn logits(&mut self, out: &mut [f32]) -> Result<()>;

    /// The log-probabilities of the choice that `poll` returned last, if its settings asked for
    /// them.
    fn logprobs(&self) -> Option<&Logprobs>;

    /// What is set by each outcome of work in the background from the next submission on, so that whoever waits for it
    /// polls. A failure of the device may set nothing.
    fn set_event(&mut self, event: Option<Arc<Event>>) {
        let _ = event;
    }

    /// The last call before the runner is dropped: has what is under way end soon. A thread that does it is not waited for
    /// but handed out, to be joined before whatever the caller has lent to the weights goes; none where dropping the runner
    /// waits.
    fn retire(&mut self) -> Option<Thread> {
        None
    }

    /// Reserves what so many more tokens need, so that appending them allocates nothing.
    ///
    /// Errors: `OutOfMemory`; those of the device.
    fn reserve_tokens(&mut self, tokens: usize) -> Result<()> {
        let _ = tokens;
        Ok(())
    }

    /// Begins to append a token, of a network of which others have shares of every layer, and waits for nothing.
    /// [`followed`](Self::followed) comes next.
    fn follow(&mut self, token: u32) -> Result<()> {
        let _ = token;
        fail!(Internal, "a runner that has no ranks beside it")
    }

    /// Whether all others have begun to append the token, too. If so it counts as appended, and with `has_logits` its logits
    /// are at hand.
    fn followed(&mut self, is_there: bool, has_logits: bool) -> Result<()> {
        let _ = (is_there, has_logits);
        Ok(())
    }

    /// The outcomes of the row that are left are polled to be dropped, and the state goes back then to one behind those that were polled
    /// before. May be called while a row is under way.
    fn drop_outcomes(&mut self) {}

    /// Goes back to the first `len` positions, behind those drafts of the last row that were right ([`Want::Drafted`]): exactly, whatever the
    /// layers keep.
    ///
    /// Errors: those of the device. The state goes back to a mark then.
    fn keep_drafts(&mut self, len: usize) -> Result<()> {
        let _ = len;
        fail!(Internal, "a runner that leaves no drafts")
    }

    /// Of a part of a network whose last row had drafts, which were verified: the choice behind the first `position` positions was
    /// handed out, and a step that ends there would mark its state; or, without a position, the choice behind those that were handed out has
    /// failed, and the state is what a step that fails leaves. [`drop_outcomes`](Self::drop_outcomes) has it go back to behind one of the drafts
    /// that were right.
    ///
    /// Errors: those of the device.
    fn settle_drafts(&mut self, position: Option<usize>) -> Result<()> {
        let _ = position;
        Ok(())
    }

    /// Reserves what rows of up to so many drafts need, so that these allocate nothing.
    ///
    /// Errors: `OutOfMemory`; those of the device.
    fn reserve_drafts(&mut self, drafts: usize) -> Result<()> {
        let _ = drafts;
        Ok(())
    }

    /// Where the hidden states of all positions go that are evaluated from now on; none keeps none. States of positions that the
    /// runner goes back from are forgotten.
    ///
    /// Errors: `Unsupported` where the device does not hand them out.
    fn keep_states(&mut self, states: Option<Arc<HiddenStates>>) -> Result<()> {
        match states {
            None => Ok(()),
            Some(_) => fail!(Unsupported, "{NO_PREDICTORS}"),
        }
    }

    /// The draw for a token has its position plus this as its index, from the next choice on. Errors: those of the device.
    fn set_draw_offset(&mut self, offset: usize) -> Result<()> {
        let _ = offset;
        Ok(())
    }

    /// What is said about single tokens, from the next choice on. Errors: `OutOfMemory`, with the
    /// rules as before.
    fn set_rules(&mut self, rules: Option<Arc<TokenRules>>) -> Result<()>;

    /// Readies the memory that [`Runner::set_adapters`] with the same adapters needs, so that it allocates nothing; none gives
    /// that back.
    ///
    /// Errors: `OutOfMemory`; those of the device.
    fn reserve_adapters(&mut self, adapters: Option<&Arc<AdapterSet>>) -> Result<()> {
        let _ = adapters;
        Ok(())
    }

    /// What is added to products, from the next work on; none adds nothing. What was evaluated stays.
    ///
    /// Errors: `Unsupported` by devices that cannot; `OutOfMemory`. The adapters are as before then.
    fn set_adapters(&mut self, adapters: Option<Arc<AdapterSet>>) -> Result<()> {
        match adapters {
            None => Ok(()),
            Some(_) => fail!(Unsupported, "{NO_ADAPTERS}"),
        }
    }

    /// Marks the end of the state, to come back to it.
    fn mark(&mut self) -> Mark {
        Mark::at(self.len())
    }

    /// The last mark that the state can go back to and that has at most `position` positions. A
    /// state of keys and values has one at every position that its windows reach back to: the one
    /// before the last position always.
    fn mark_before(&self, position: usize) -> Mark;

    /// Goes back to a mark of this state, and forgets what came after it, the logits included. A state
    /// that has lost it goes to the last one before. Nothing happens where nothing came after it.
    fn rollback(&mut self, mark: Mark);

    /// Writes the state to a stream (see [`state`]). It stays as it is.
    fn save(&mut self, sink: &mut dyn StateSink) -> Result<()>;

    /// Takes the state over from a stream, in place of the empty one that it has. `tokens` are
    /// those of its positions. `info` has the runner's own element type and is in order
    /// ([`state::StateLayout::new`]), and the positions fit the context.
    ///
    /// After an error the state is empty.
    fn load(
        &mut self,
        info: &StateInfo,
        tokens: &[u32],
        source: &mut dyn StateSource,
    ) -> Result<()>;

    /// A runner with the same state and logits, which goes its own way from here: a save into
    /// another one that shares what both only read.
    fn fork(&mut self) -> Result<Box<dyn Runner>> {
        fail!(Unsupported, "this device cannot fork a session")
    }

    /// Appends `token`, chooses the next one, which is not wanted, and adds up the time that each
    /// kind of work took in it; a choice that fails is no error. Slower than a row of the same
    /// work, and with the same result.
    fn profile(
        &mut self,
        token: u32,
        sampling: &Sampling,
        interrupt: &AtomicBool,
    ) -> Result<Profile> {
        let _ = (token, sampling, interrupt);
        fail!(Unsupported, "this device cannot profile a session")
    }
}
