//! Ranks that reach each other's memory: how they meet there.
//!
//! The kernels of all ranks have to run at the same time. So the host launches the same work on all of them, one piece of work at a
//! time ([`Group::begin`]), and all pieces end with a meeting: what comes behind may use the same memory again.

use super::{Cut, Job, PULLED, RANK_CHUNK, patience};
use crate::backend::cuda::driver::{Buffer, Context, Pinned, Stream};
use crate::backend::cuda::launch::args::{self, MAX_RANKS, MAX_SUM_PIECES, Meeting, SUM_FLAGS};
use crate::backend::cuda::launch::kernels::Kernels;
use crate::backend::{MAX_BATCH, Ranks};
use crate::error::{Result, fail};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Threads of a block of a sum.
const THREADS: u32 = 512;
/// Most blocks that send, and most that add up.
const BLOCKS: u32 = 128;
/// Threads of a block of a sum of one row.
const ROW_THREADS: u32 = 64;

/// What the ranks of a network have together.
pub(super) struct Group {
    /// u32 for the device: a rank that waited for another one in vain says so.
    failed: Pinned,
    /// Work that was begun.
    works: AtomicU64,
    patience: u64,
}

impl Group {
    /// Of ranks of which this is the first one's device.
    pub(super) fn new(context: &Arc<Context>) -> Result<Arc<Group>> {
        Ok(Arc::new(Group {
            failed: Pinned::new(context, 64, "memory of a group")?,
            works: AtomicU64::new(0),
            patience: patience().as_nanos() as u64,
        }))
    }

    /// The rank that did not come, if one did not.
    fn missing(&self) -> Option<u32> {
        // SAFETY: the memory has a word there, which the devices write as a whole.
        let failed = unsafe { AtomicU32::from_ptr(self.failed.pointer().cast()) };
        failed.load(Ordering::Acquire).checked_sub(1)
    }
}

impl Ranks for Group {
    fn begin(&self) -> Result<()> {
        self.check()?;
        self.works.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn check(&self) -> Result<()> {
        if let Some(rank) = self.missing() {
            fail!(
                DeviceLost,
                "part {rank} of a model that is split by tensors did not do its work within {} ms; the model has to be loaded again",
                self.patience / 1_000_000
            );
        }
        Ok(())
    }
}

/// Memory of a rank by which it meets the others.
pub(super) struct Peer {
    group: Arc<Group>,
    cut: Cut,
    memory: Buffer,
    launches: Mutex<Launches>,
    places: Places,
    /// Of all ranks, once they are connected.
    peers: Peers,
}

/// What was launched.
#[derive(Debug, Default)]
struct Launches {
    work: u64,
    /// Launches of the last work.
    count: u64,
    /// The upper half of the launch's number on the device.
    upper: u32,
}

/// Addresses in the memory of all ranks.
#[derive(Clone, Copy, Debug, Default)]
struct Peers {
    flags: [u64; MAX_RANKS],
    tagged: [u64; MAX_RANKS],
    inboxes: [u64; MAX_RANKS],
    /// Of rank 0.
    logits: u64,
}

/// Where everything is in the memory of a rank, in bytes.
struct Places {
    /// The number of the launch, behind the flags.
    launch: u64,
    /// Rows of one token that others store, with tags.
    tagged: u64,
    /// What others store of several tokens.
    inbox: u64,
    /// Logits that others make, on rank 0.
    logits: u64,
    bytes: u64,
    /// Floats of a row with tags, and of what a rank stores of several tokens.
    capacities: (u32, u64),
}

impl Places {
    fn of(cut: &Cut) -> Places {
        let Cut {
            rank,
            hidden,
            n_vocab,
            ..
        } = *cut;
        let count = rank.count as u64;
        let row = hidden.next_multiple_of(64);
        let rows = (RANK_CHUNK as u64 * u64::from(hidden)).next_multiple_of(64);
        let flags = 2 * MAX_RANKS as u64 * u64::from(SUM_FLAGS) * 8;
        let launch = flags.next_multiple_of(256);
        let tagged = launch + 256;
        let inbox = tagged + 2 * count * u64::from(row) * 8;
        let logits = inbox + 2 * count * rows * 4;
        let of_rank_0 = if rank.index == 0 { 1 } else { 0 };
        Places {
            launch,
            tagged,
            inbox,
            logits,
            bytes: logits + of_rank_0 * MAX_BATCH as u64 * u64::from(n_vocab) * 4,
            capacities: (row, rows),
        }
    }
}

impl Peer {
    /// Bytes of the memory of a rank.
    pub(super) fn bytes(cut: &Cut) -> u64 {
        Places::of(cut).bytes
    }

    /// Memory for a rank on its device, which is to be connected with the others.
    pub(super) fn new(context: &Arc<Context>, group: &Arc<Group>, cut: &Cut) -> Result<Peer> {
        let places = Places::of(cut);
        let bytes = places.bytes as usize;
        let memory = Buffer::new(context, bytes, "memory by which GPUs meet")?;
        memory.clear(0, places.inbox as usize)?;
        Ok(Peer {
            group: group.clone(),
            cut: cut.clone(),
            memory,
            launches: Mutex::default(),
            places,
            peers: Peers::default(),
        })
    }

    /// Lets all ranks of a group reach each other's memory.
    ///
    /// Errors: `Unsupported` where two of the devices cannot.
    pub(super) fn connect(links: &mut [Peer]) -> Result<()> {
        let mut peers = Peers::default();
        for (i, link) in links.iter().enumerate() {
            peers.flags[i] = link.memory.address();
            peers.tagged[i] = link.memory.address() + link.places.tagged;
            peers.inboxes[i] = link.memory.address() + link.places.inbox;
            if i == 0 {
                peers.logits = link.memory.address() + link.places.logits;
            }
            for other in links.iter().filter(|other| other.cut.rank != link.cut.rank) {
                link.memory.context().reach(other.memory.context())?;
            }
        }
        links.iter_mut().for_each(|link| link.peers = peers);
        Ok(())
    }

    /// Where the logits that this rank makes go, as rows of all logits, of which `own` are the ones of the step.
    pub(super) fn logits(&self, own: u64) -> u64 {
        let rows = if self.cut.rank.index == 0 {
            own
        } else {
            self.peers.logits
        };
        rows + u64::from(self.cut.logits.start) * 4
    }

    fn launch_address(&self) -> u64 {
        self.memory.address() + self.places.launch
    }

    /// Enqueues what has to be in front of work that meets. All ranks number their launches alike.
    pub(super) fn launch(&self, stream: &Stream) -> Result<()> {
        let work = self.group.works.load(Ordering::Relaxed);
        let mut launches = self.launches.lock().unwrap_or_else(PoisonError::into_inner);
        if launches.work != work {
            (launches.work, launches.count) = (work, 0);
        }
        launches.count += 1;
        // Many prompts of a work are some hundred pieces.
        let number = work << 16 | launches.count;
        let (upper, lower) = ((number >> 32) as u32, number as u32);
        let at = self.launch_address();
        // SAFETY: a word of memory of this structure, which lives as long as the weights do. Fills of four bytes take the host less
        // time than a copy.
        unsafe {
            if launches.upper != upper {
                stream.fill32(at + 4, upper, 1)?;
                launches.upper = upper;
            }
            stream.fill32(at, lower, 1)
        }
    }

    fn meeting(&self, index: u32) -> Meeting {
        Meeting {
            flags: self.peers.flags,
            launch: self.launch_address(),
            failed: self.group.failed.address(),
            patience: self.group.patience,
            rank: self.cut.rank.index as u32,
            n_ranks: self.cut.rank.count as u32,
            index,
            padding: 0,
        }
    }

    /// What a product needs that is the sum of the meeting `index` of the launch itself.
    pub(super) fn linked(&self, index: u32) -> args::LinkedRow {
        args::LinkedRow {
            meeting: self.meeting(index),
            tagged: self.peers.tagged,
            tagged_capacity: self.places.capacities.0,
            padding: 0,
        }
    }

    /// [`super::Link::sum`], the meeting `index` of the launch.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn sum(
        &self,
        (kernels, stream): (&Kernels, &Stream),
        index: u32,
        job: &Job,
    ) -> Result<()> {
        let Job {
            from,
            base,
            to,
            rows,
            len,
        } = *job;
        let (tagged_capacity, capacity) = self.places.capacities;
        if u64::from(rows) * u64::from(len) > capacity {
            fail!(Internal, "{rows} rows of {len} floats in a sum over GPUs");
        }
        let units = (u64::from(rows) * u64::from(len)).div_ceil(4);
        let fours = [len, from.stride, to.stride];
        let has_fours = fours.iter().all(|n| n.is_multiple_of(4));
        let pulled = rows > 1
            && has_fours
            && from.address != to.address
            && units * 16 >= PULLED.load(Ordering::Relaxed);
        let pieces = units.div_ceil(THREADS.into());
        let pieces = pieces.clamp(1, MAX_SUM_PIECES.into()) as u32;
        let sum = args::RankSum {
            meeting: self.meeting(index),
            inboxes: self.peers.inboxes,
            tagged: self.peers.tagged,
            x: from.address,
            base: base.map_or(0, |base| base.address),
            out: to.address,
            capacity,
            tagged_capacity,
            pieces,
            rows,
            len,
            x_stride: from.stride,
            stride: to.stride,
        };
        let (blocks, threads) = match rows {
            // One row goes with tags, four elements a thread, spread over many small blocks.
            1 if has_fours => (len.div_ceil(4 * ROW_THREADS), ROW_THREADS),
            _ if pulled => (2 * BLOCKS, THREADS),
            _ => (2 * pieces.min(BLOCKS), THREADS),
        };
        // SAFETY: by contract, addresses of the workspace; the others are of memory of all ranks, which the group keeps.
        unsafe { kernels.rank_sum(stream, &sum, (blocks, threads), pulled) }
    }

    /// Enqueues the last meeting of a launch, with `rows` rows of logits, or none.
    ///
    /// # Safety
    /// As for [`Peer::sum`].
    pub(super) unsafe fn end(
        &self,
        (kernels, stream): (&Kernels, &Stream),
        index: u32,
        logits: u64,
        rows: u32,
    ) -> Result<()> {
        let end = args::RankLogits {
            meeting: self.meeting(index),
            inbox: self.peers.logits,
            logits,
            rows,
            n_vocab: self.cut.n_vocab,
            first: self.cut.logits.start,
            end: self.cut.logits.end,
        };
        let others = u64::from(self.cut.n_vocab) * u64::from(rows);
        let blocks = others.div_ceil(u64::from(THREADS) * 8).clamp(1, 64);
        // SAFETY: as in `sum`.
        unsafe { kernels.rank_logits(stream, &end, blocks as u32, THREADS) }
    }
}
