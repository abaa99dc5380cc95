//! GPUs that share the layers of a network. Twice a layer, each adds up what all have, in the order of the ranks, so that all have the
//! same bits.
//!
//! Where the GPUs reach each other's memory, they do that by themselves ([`peers`], kernels/ranks.cu). Elsewhere NCCL gathers what
//! all have, and each adds that up ([`gathered`]), with the same bits; that is also the way of ranks in other processes ([`apart`]).

mod apart;
mod gathered;
mod peers;

use crate::backend::Ranks;
use crate::backend::cuda::driver::nccl::library;
use crate::backend::cuda::driver::{Context, Stream};
use crate::backend::cuda::launch::args::{self, MAX_RANKS};
use crate::backend::cuda::launch::kernels::Kernels;
use crate::backend::cuda::launch::span::Span;
use crate::backend::group;
use crate::error::{Result, fail};
use crate::model::{Network, Rank};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gathered::Gathered;
use peers::Peer;

/// Most tokens of a prompt that are evaluated together.
pub const RANK_CHUNK: usize = 2048;

/// How long a GPU waits for another one, in nanoseconds.
static PATIENCE: AtomicU64 = AtomicU64::new(10_000_000_000);

/// Bytes from which on a sum reads what the others have where it is: with fewer, one more meeting costs more than it saves.
static PULLED: AtomicU64 = AtomicU64::new(2 << 20);

/// Has sums of at least so many bytes read what the others have where it is, for tests.
#[cfg(feature = "test-hooks")]
pub fn set_pulled(bytes: u64) {
    PULLED.store(bytes, Ordering::Relaxed);
}

/// Has GPUs of groups that are made from now on wait so long for each other, for tests.
#[cfg(feature = "test-hooks")]
pub fn set_patience(ns: u64) {
    PATIENCE.store(ns, Ordering::Relaxed);
}

fn patience() -> Duration {
    Duration::from_nanos(PATIENCE.load(Ordering::Relaxed))
}

/// A rank's share of a network.
#[derive(Clone, Debug)]
pub struct Cut {
    /// Which one it is.
    pub rank: Rank,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Logits of all ranks together.
    pub n_vocab: u32,
    /// Those that this one makes.
    pub logits: Range<u32>,
}

impl Cut {
    /// The share of a rank.
    pub fn of(network: &Network, rank: Rank) -> Cut {
        let first = |index: usize| network.first_logit(Rank { index, ..rank }) as u32;
        Cut {
            rank,
            hidden: network.hidden as u32,
            n_vocab: network.n_vocab as u32,
            logits: first(rank.index)..first(rank.index + 1),
        }
    }
}

/// A sum over ranks: `to = base + sum of from over all ranks`, for `rows` rows of `len` floats.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub from: Span,
    pub base: Option<Span>,
    pub to: Span,
    pub rows: u32,
    pub len: u32,
}

/// How the ranks of a process come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// Each in the others' memory.
    Peers,
    /// By NCCL.
    Nccl,
}

impl Meeting {
    /// Of GPUs of this process: by NCCL where that is wanted, or where one of them does not reach another one's memory.
    ///
    /// Errors: `Unsupported` without NCCL where it is needed, and for too many GPUs.
    pub fn of(contexts: &[Arc<Context>], nccl: bool) -> Result<Meeting> {
        let count = contexts.len();
        if count > MAX_RANKS {
            fail!(
                Unsupported,
                "at most {MAX_RANKS} GPUs can share a model by tensors, not {count}"
            );
        }
        let apart = unreachable(contexts)?;
        if !nccl && apart.is_none() {
            return Ok(Meeting::Peers);
        }
        match (library(), apart) {
            (Ok(_), _) => Ok(Meeting::Nccl),
            (Err(e), None) => Err(e),
            (Err(e), Some((a, b))) => fail!(
                Unsupported,
                "GPU {a} cannot reach the memory of GPU {b}, so a model that is split by tensors goes by NCCL, and split by layers it needs none. {}",
                e.message
            ),
        }
    }
}

/// What a rank has to do with the others.
pub struct Link {
    /// Which one it is.
    pub rank: Rank,
    way: Way,
    /// The others are in other processes, each of which chooses.
    is_apart: bool,
}

enum Way {
    Peers(Box<Peer>),
    Gathered(Gathered),
}

impl Link {
    /// Bytes of the memory of a rank, which ever way it goes.
    pub fn bytes(cut: &Cut) -> u64 {
        Peer::bytes(cut).max(Gathered::bytes(cut))
    }

    /// Links of GPUs of this process, and what these have together.
    pub fn all(
        contexts: &[Arc<Context>],
        cuts: &[Cut],
        meeting: Meeting,
    ) -> Result<(Vec<Link>, Arc<dyn Ranks>)> {
        let Some(first) = contexts.first() else {
            fail!(Internal, "a group of no GPUs");
        };
        if meeting == Meeting::Nccl {
            let (ways, ranks) = gathered::all(contexts, cuts, patience())?;
            let links = ways.into_iter().zip(cuts).map(|(way, cut)| Link {
                rank: cut.rank,
                way: Way::Gathered(way),
                is_apart: false,
            });
            return Ok((links.collect(), ranks));
        }
        let group = peers::Group::new(first)?;
        let mut links = Vec::new();
        for (context, cut) in contexts.iter().zip(cuts) {
            links.push(Peer::new(context, &group, cut)?);
        }
        Peer::connect(&mut links)?;
        let links = links.into_iter().zip(cuts).map(|(link, cut)| Link {
            rank: cut.rank,
            way: Way::Peers(Box::new(link)),
            is_apart: false,
        });
        Ok((links.collect(), group))
    }

    /// The link of a rank that is loaded by itself, and what it has together with the others. All ranks do this at the same time.
    pub fn apart(
        context: &Arc<Context>,
        cut: &Cut,
        meeting: &Arc<group::Meeting>,
        stop: &mut group::Stop<'_>,
    ) -> Result<(Link, Arc<dyn Ranks>)> {
        let (way, ranks) = apart::rank(context, cut, meeting, stop)?;
        let link = Link {
            rank: cut.rank,
            way: Way::Gathered(way),
            is_apart: true,
        };
        Ok((link, ranks))
    }

    /// Whether the others are in other processes, or loaded by themselves in this one.
    pub fn is_apart(&self) -> bool {
        self.is_apart
    }

    /// Whether this rank has all logits, and chooses.
    pub fn chooses(&self) -> bool {
        self.is_apart || self.rank.index == 0
    }

    /// Where the logits that this rank makes go, as rows of all logits, of which `own` are the ones of the step.
    pub fn logits(&self, own: u64) -> u64 {
        match &self.way {
            Way::Peers(peer) => peer.logits(own),
            Way::Gathered(gathered) => gathered.logits(own),
        }
    }

    /// Enqueues what has to be in front of work that meets. All ranks number their launches alike.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        match &self.way {
            Way::Peers(peer) => peer.launch(stream),
            Way::Gathered(_) => Ok(()),
        }
    }

    /// Enqueues a sum, the meeting `index` of the launch.
    ///
    /// # Safety
    /// The rows are of a workspace that is valid and that no other work uses, and all ranks enqueue the same.
    pub(super) unsafe fn sum(
        &self,
        with: (&Kernels, &Stream),
        index: u32,
        job: &Job,
    ) -> Result<()> {
        // SAFETY: by contract.
        unsafe {
            match &self.way {
                Way::Peers(peer) => peer.sum(with, index, job),
                Way::Gathered(gathered) => gathered.sum(with, job),
            }
        }
    }

    /// Whether kernels add up what ranks have, which other work may come beside.
    pub(super) fn is_peer(&self) -> bool {
        matches!(self.way, Way::Peers(_))
    }

    /// What a product of one row needs that is the sum of the meeting `index` itself, where there are such.
    pub(super) fn linked(&self, index: u32) -> Option<args::LinkedRow> {
        match &self.way {
            Way::Peers(peer) => Some(peer.linked(index)),
            Way::Gathered(_) => None,
        }
    }

    /// Enqueues the last meeting of a launch, with `rows` rows of logits, or none.
    ///
    /// # Safety
    /// As for [`Link::sum`].
    pub unsafe fn end(
        &self,
        with: (&Kernels, &Stream),
        index: u32,
        logits: u64,
        rows: u32,
    ) -> Result<()> {
        // SAFETY: by contract.
        unsafe {
            match &self.way {
                Way::Peers(peer) => peer.end(with, index, logits, rows),
                Way::Gathered(gathered) => gathered.end(with, (logits, rows), self.chooses()),
            }
        }
    }
}

/// Two GPUs of which one cannot reach the other's memory, if there are any.
fn unreachable(contexts: &[Arc<Context>]) -> Result<Option<(i32, i32)>> {
    for from in contexts {
        for to in contexts.iter().filter(|to| !Arc::ptr_eq(from, to)) {
            if !from.can_reach(to)? {
                return Ok(Some((from.number(), to.number())));
            }
        }
    }
    Ok(None)
}
