//! Ranks that NCCL brings together: it gathers what all have into the memory of each, which adds it up by itself.
//!
//! An all-reduce would move no fewer bytes between two GPUs, but adds in an order of its own.

use super::{Cut, Job, RANK_CHUNK};
use crate::backend::cuda::driver::nccl::{Communicator, Id, Watch};
use crate::backend::cuda::driver::{Buffer, Context, Stream};
use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::kernels::Kernels;
use crate::backend::{MAX_BATCH, Ranks};
use crate::error::{Result, fail};
use std::sync::Arc;
use std::time::Duration;

/// A piece of work moves gigabytes where GPUs meet in memory of the host, so it may take several times as long as a GPU waits for one
/// that it reaches.
const OF_WORK: u32 = 3;
/// NCCL looks for networks and ways between GPUs first, and others may do so at the same time.
const OF_CONNECTIONS: u32 = 6;

/// What is said about work that does not end.
pub(super) const WORK: &str = "work of a model that is split by tensors, by NCCL";

/// Where a rank gathers what all have.
pub(super) struct Gathered {
    communicator: Arc<Communicator>,
    cut: Cut,
    memory: Buffer,
}

/// Floats of memory for each rank.
fn capacity(cut: &Cut) -> u64 {
    let rows = RANK_CHUNK as u64 * u64::from(cut.hidden);
    let logits = MAX_BATCH as u64 * u64::from(width(cut));
    rows.max(logits)
}

/// The most logits that a rank makes of a row.
fn width(cut: &Cut) -> u32 {
    cut.n_vocab.div_ceil(cut.rank.count as u32)
}

/// Ranks of this process, and what watches over them.
pub(super) fn all(
    contexts: &[Arc<Context>],
    cuts: &[Cut],
    patience: Duration,
) -> Result<(Vec<Gathered>, Arc<dyn Ranks>)> {
    let id = Id::new()?;
    let mut communicators = Vec::new();
    for (context, cut) in contexts.iter().zip(cuts) {
        let patience = patience * OF_CONNECTIONS;
        communicators.push(Communicator::begin(context, &id, cut.rank, patience)?);
    }
    let ranks = connect(contexts, cuts, &communicators)?;
    let watch = Watch::new(communicators, patience * OF_WORK, WORK)?;
    Ok((ranks, Arc::new(watch)))
}

/// What the ranks of this process gather with, once all ranks have come.
pub(super) fn connect(
    contexts: &[Arc<Context>],
    cuts: &[Cut],
    communicators: &[Arc<Communicator>],
) -> Result<Vec<Gathered>> {
    let mut streams = Vec::new();
    for context in contexts {
        let _current = context.enter()?;
        streams.push(Stream::new(context, 0)?);
    }
    let mut ranks = Vec::new();
    let mut connect = || {
        for ((context, cut), communicator) in contexts.iter().zip(cuts).zip(communicators) {
            communicator.wait("bringing ranks together")?;
            ranks.push(Gathered::new(context, communicator, cut)?);
        }
        warm_up(&ranks, &streams)
    };
    if let Err(e) = connect() {
        // Memory and streams go behind that: NCCL may be about to use them, and the device may wait for ranks that never come.
        communicators.iter().for_each(|c| c.abort(&e.message));
        return Err(e);
    }
    Ok(ranks)
}

/// Gathers as much as there will be in any work, so that NCCL makes its connections now: that takes seconds, and the ranks of a
/// process have to do it at the same time.
fn warm_up(ranks: &[Gathered], streams: &[Stream]) -> Result<()> {
    let what = "connecting GPUs";
    let Some(first) = ranks.first() else {
        return Ok(());
    };
    let most = capacity(&first.cut);
    let mut floats = most;
    loop {
        for (rank, stream) in ranks.iter().zip(streams) {
            let _current = stream.context().enter()?;
            let (own, all) = rank.places(floats);
            let communicator = &rank.communicator;
            // SAFETY: the memory has room for as many floats of each rank, and stays until the streams are idle or its rank is
            // aborted; all ranks do the same.
            unsafe { communicator.begin_all_gather(stream, (own, all), floats as usize)? };
        }
        for rank in ranks {
            rank.communicator.wait(what)?;
        }
        if floats <= 16 {
            break;
        }
        floats /= 2;
    }
    for (rank, stream) in ranks.iter().zip(streams) {
        let _current = stream.context().enter()?;
        rank.communicator.wait_for(stream, what)?;
    }
    Ok(())
}

impl Gathered {
    /// Bytes of the memory of a rank, without NCCL's own.
    pub(super) fn bytes(cut: &Cut) -> u64 {
        capacity(cut) * cut.rank.count as u64 * 4
    }

    fn new(
        context: &Arc<Context>,
        communicator: &Arc<Communicator>,
        cut: &Cut,
    ) -> Result<Gathered> {
        let bytes = Gathered::bytes(cut) as usize;
        let memory = Buffer::new(context, bytes, "memory by which GPUs meet")?;
        memory.clear(0, bytes)?;
        Ok(Gathered {
            communicator: communicator.clone(),
            cut: cut.clone(),
            memory,
        })
    }

    /// Where this rank's floats go, so many of each, and those of all.
    fn places(&self, floats: u64) -> (u64, u64) {
        let all = self.memory.address();
        (all + self.cut.rank.index as u64 * floats * 4, all)
    }

    /// [`super::Link::logits`].
    pub(super) fn logits(&self, own: u64) -> u64 {
        own + u64::from(self.cut.logits.start) * 4
    }

    /// [`super::Link::sum`].
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn sum(
        &self,
        (kernels, stream): (&Kernels, &Stream),
        job: &Job,
    ) -> Result<()> {
        let floats = u64::from(job.rows) * u64::from(job.len);
        if floats > capacity(&self.cut) {
            let (rows, len) = (job.rows, job.len);
            fail!(Internal, "{rows} rows of {len} floats in a sum over GPUs");
        }
        let (own, all) = self.places(floats);
        let pack = args::RankPack {
            x: job.from.address,
            out: own,
            rows: job.rows,
            len: job.len,
            x_stride: job.from.stride,
            out_stride: job.len,
        };
        let add = args::RankAdd {
            x: all,
            base: job.base.map_or(0, |base| base.address),
            out: job.to.address,
            n_ranks: self.cut.rank.count as u32,
            rows: job.rows,
            len: job.len,
            stride: job.to.stride,
        };
        // SAFETY: by contract, addresses of the workspace; the others are of this memory, which has room for as many floats.
        unsafe {
            let send = match job.rows {
                // It lies together as it is.
                1 => job.from.address,
                _ => {
                    kernels.rank_pack(stream, &pack)?;
                    own
                }
            };
            self.communicator
                .all_gather(stream, (send, all), floats as usize)?;
            kernels.rank_add(stream, &add)
        }
    }

    /// [`super::Link::end`].
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn end(
        &self,
        (kernels, stream): (&Kernels, &Stream),
        (logits, rows): (u64, u32),
        takes: bool,
    ) -> Result<()> {
        if rows == 0 {
            // The last sum was a meeting.
            return Ok(());
        }
        let width = width(&self.cut);
        let floats = u64::from(rows) * u64::from(width);
        let (own, all) = self.places(floats);
        let pack = args::RankPack {
            x: self.logits(logits),
            out: own,
            rows,
            len: self.cut.logits.len() as u32,
            x_stride: self.cut.n_vocab,
            out_stride: width,
        };
        let place = args::RankPlace {
            x: all,
            logits,
            n_ranks: self.cut.rank.count as u32,
            rows,
            width,
            n_vocab: self.cut.n_vocab,
        };
        // SAFETY: as in `sum`.
        unsafe {
            kernels.rank_pack(stream, &pack)?;
            self.communicator
                .all_gather(stream, (own, all), floats as usize)?;
            match takes {
                true => kernels.rank_place(stream, &place),
                false => Ok(()),
            }
        }
    }
}
