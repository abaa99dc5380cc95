//! Tensors whose bytes are not reached in the file: because the file is read and not mapped, or has
//! them in another type, another order, or spread over several. They are described when the file
//! is opened, and come to memory when it is loaded.

use super::input::Input;
use super::tensor::Data;
use super::{ModelFile, Tensor};
use crate::error::{Error, Result, Status};
use crate::memory::{MODEL, Pages};
use crate::{memory, panics, threads};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};

/// About how many bytes are made at once by one thread.
pub(super) const CHUNK_BYTES: usize = 1 << 20;
/// About how many bytes are read at once by one thread.
const READ_BYTES: usize = 4 << 20;
/// The name of the threads.
const THREAD: &str = "ember-make";

/// Makes the rows of a tensor, any of them in any order, on any thread.
pub(super) trait MakeRows: Send + Sync {
    /// Writes whole rows to `out`, from row `first` on.
    fn make(&self, first: usize, out: &mut [u8]) -> Result<()>;

    /// About how many bytes it is best at making at once.
    fn chunk_bytes(&self) -> usize {
        CHUNK_BYTES
    }
}

/// Where the bytes come from.
pub(super) enum Source {
    /// They are those of a file, from `offset` on.
    File {
        input: Arc<Input>,
        /// For messages.
        tensor: Arc<str>,
        offset: usize,
    },
    /// They are computed.
    Rows(Box<dyn MakeRows>),
}

impl Source {
    /// Writes bytes to `out`, from byte `start` on.
    fn read(&self, start: usize, row_bytes: usize, out: &mut [u8]) -> Result<()> {
        match self {
            Source::File {
                input,
                tensor,
                offset,
            } => input.read_of(tensor, offset + start, out),
            Source::Rows(rows) => {
                debug_assert!(start.is_multiple_of(row_bytes));
                rows.make(start / row_bytes, out)
            }
        }
    }

    fn chunk_bytes(&self) -> usize {
        match self {
            Source::File { .. } => READ_BYTES,
            Source::Rows(rows) => rows.chunk_bytes(),
        }
    }
}

/// The bytes of a tensor that come to memory of their own.
pub(super) struct Made {
    /// Given up when the bytes are there, and with it the files that it needs.
    source: RwLock<Option<Source>>,
    len: usize,
    bytes: OnceLock<Pages>,
}

impl Made {
    pub(super) fn new(len: usize, source: Source) -> Made {
        Made {
            source: RwLock::new(Some(source)),
            len,
            bytes: OnceLock::new(),
        }
    }

    /// The bytes, if they are made.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        self.bytes.get().map(Pages::bytes)
    }

    /// Writes bytes to `out`, from byte `start` on: a copy, or made for this call alone. Unless they
    /// are those of a file, they must be whole rows.
    pub(super) fn read(&self, start: usize, row_bytes: usize, out: &mut [u8]) -> Result<()> {
        if self.bytes().is_none()
            && let Some(source) = &*self.source()
        {
            return source.read(start, row_bytes, out);
        }
        let bytes = self.bytes().expect("made before the source was given up");
        out.copy_from_slice(&bytes[start..start + out.len()]);
        Ok(())
    }

    fn source(&self) -> RwLockReadGuard<'_, Option<Source>> {
        self.source.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, memory: Pages) {
        // Another thread may have made it from a clone meanwhile; its bytes are the same.
        let _ = self.bytes.set(memory);
        *self.source.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn is_in_file(&self) -> bool {
        matches!(&*self.source(), Some(Source::File { .. }))
    }

    /// Which file it is in, and where.
    fn place(&self) -> (usize, usize) {
        match &*self.source() {
            Some(Source::File { input, offset, .. }) => (Arc::as_ptr(input).addr(), *offset),
            _ => (usize::MAX, 0),
        }
    }

    fn chunk_bytes(&self) -> usize {
        self.source()
            .as_ref()
            .map_or(CHUNK_BYTES, Source::chunk_bytes)
    }
}

/// A tensor to be made, and the memory for it.
struct Task {
    made: Arc<Made>,
    row_bytes: usize,
    memory: Pages,
}

/// Rows to be made.
struct Job<'a> {
    made: &'a Made,
    start: usize,
    row_bytes: usize,
    out: &'a mut [u8],
}

impl ModelFile {
    /// Whether all tensors are in memory or mapped.
    pub fn is_ready(&self) -> bool {
        self.to_make(|_| true).is_empty()
    }

    /// Bytes of memory, beyond mapped files, of the tensors among some that are made.
    pub fn made_bytes(&self, wanted: impl Fn(&Tensor) -> bool) -> u64 {
        let made = |tensor: &Tensor| match &tensor.data {
            Data::Made(made) => made.len as u64,
            Data::Input(_) => 0,
        };
        let wanted = self.tensors.values().filter(|tensor| wanted(tensor));
        wanted.map(made).sum()
    }

    /// Brings every tensor to memory whose bytes are not there nor mapped, on `threads` threads.
    /// `progress` hears, on this thread, which share is done; an error of it ends the work.
    ///
    /// Errors: `OutOfMemory`, those of the files and of what the tensors are made of, and
    /// `progress`'s. Nothing is kept then.
    pub fn make(&self, threads: usize, progress: &mut dyn FnMut(f32) -> Result<()>) -> Result<()> {
        make(self.to_make(|_| true), threads, progress)
    }

    /// The same for some tensors alone.
    pub fn make_some(
        &self,
        wanted: impl Fn(&Tensor) -> bool,
        threads: usize,
        progress: &mut dyn FnMut(f32) -> Result<()>,
    ) -> Result<()> {
        make(self.to_make(wanted), threads, progress)
    }

    /// The same for those tensors alone whose bytes the files do not have. The others are still to be
    /// read, once, by a device with memory of its own.
    pub fn make_converted(
        &self,
        threads: usize,
        progress: &mut dyn FnMut(f32) -> Result<()>,
    ) -> Result<()> {
        let mut tensors = self.to_make(|_| true);
        tensors.retain(|(made, _)| !made.is_in_file());
        make(tensors, threads, progress)
    }

    /// The tensors to be made, each once, and their bytes per row.
    fn to_make(&self, wanted: impl Fn(&Tensor) -> bool) -> Vec<(Arc<Made>, usize)> {
        let mut found: Vec<(Arc<Made>, usize)> = Vec::new();
        let mut seen = HashSet::new();
        for tensor in self.tensors.values().filter(|tensor| wanted(tensor)) {
            if let Data::Made(made) = &tensor.data
                && made.bytes().is_none()
                && seen.insert(Arc::as_ptr(made).addr())
            {
                found.push((Arc::clone(made), tensor.row_bytes()));
            }
        }
        // As they lie in the files, which disks like.
        found.sort_by_key(|(made, _)| made.place());
        found
    }
}

fn make(
    tensors: Vec<(Arc<Made>, usize)>,
    threads: usize,
    progress: &mut dyn FnMut(f32) -> Result<()>,
) -> Result<()> {
    let mut tasks = Vec::new();
    for (made, row_bytes) in tensors {
        let memory = Pages::new(made.len, MODEL)?;
        tasks.push(Task {
            made,
            row_bytes,
            memory,
        });
    }
    if tasks.is_empty() {
        return Ok(());
    }
    make_all(&mut tasks, threads, progress)?;
    for task in tasks {
        task.made.set(task.memory);
    }
    Ok(())
}

/// Writes whole rows of a tensor to `out`, from row `first` on, on `threads` threads.
///
/// Panics unless `out` is a whole number of rows that the tensor has.
pub fn read_rows(tensor: &Tensor, first: usize, out: &mut [u8], threads: usize) -> Result<()> {
    let row_bytes = tensor.row_bytes();
    let rows = (out.len() / row_bytes).div_ceil(threads.max(1)).max(1);
    let chunks = Mutex::new(out.chunks_mut(rows * row_bytes).enumerate());
    let result = Mutex::new(Ok(()));
    let work = || {
        let made = panics::catch(|| {
            while let Some((i, out)) = lock(&chunks).next() {
                tensor.read_rows(first + i * rows, out)?;
            }
            memory::check()
        });
        if made.is_err() {
            *lock(&result) = made;
        }
    };
    // This thread takes chunks, too.
    threads::beside(THREAD, threads.saturating_sub(1), &work, |_| work());
    result.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the threads that make rows have done.
#[derive(Default)]
struct Reports {
    /// Bytes, since it was looked at last.
    bytes: usize,
    failure: Option<Error>,
    ended: usize,
}

fn make_all(
    tasks: &mut [Task],
    threads: usize,
    progress: &mut dyn FnMut(f32) -> Result<()>,
) -> Result<()> {
    let total: usize = tasks.iter().map(|task| task.made.len).sum();
    let jobs = tasks.iter_mut().flat_map(|task| {
        let (made, row_bytes) = (&*task.made, task.row_bytes);
        let step = (made.chunk_bytes() / row_bytes).max(1) * row_bytes;
        let chunks = task.memory.bytes_mut().chunks_mut(step);
        chunks.enumerate().map(move |(i, out)| Job {
            made,
            start: i * step,
            row_bytes,
            out,
        })
    });
    let jobs = Mutex::new(jobs);
    let stop = AtomicBool::new(false);
    let (reports, changed) = (Mutex::new(Reports::default()), Condvar::new());
    let report = |change: &dyn Fn(&mut Reports)| {
        change(&mut lock(&reports));
        changed.notify_one();
    };
    let work = || {
        let result = panics::catch(|| {
            while !stop.load(Ordering::Relaxed) {
                let next = lock(&jobs).next();
                let Some(job) = next else { break };
                job.made.read(job.start, job.row_bytes, job.out)?;
                memory::check()?;
                report(&|reports| reports.bytes += job.out.len());
            }
            Ok(())
        });
        report(&|reports| {
            reports.ended += 1;
            if let Err(e) = &result {
                reports.failure.get_or_insert_with(|| e.clone());
            }
        });
    };
    threads::beside(THREAD, threads.max(1), &work, |started| {
        if started == 0 && total > 0 {
            return Err(Error::new(
                Status::OutOfMemory,
                "no thread could be started to convert the weights",
            ));
        }
        let mut finished = 0;
        let mut result = Ok(());
        loop {
            let mut seen = lock(&reports);
            while seen.bytes == 0 && seen.failure.is_none() && seen.ended < started {
                seen = changed.wait(seen).unwrap_or_else(PoisonError::into_inner);
            }
            finished += std::mem::take(&mut seen.bytes);
            if let Some(e) = seen.failure.take() {
                result = Err(e);
            }
            let ended = seen.ended == started;
            drop(seen);
            if result.is_ok() && finished > 0 {
                result = progress(finished as f32 / total as f32);
            }
            if result.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            if ended || result.is_err() {
                return result;
            }
        }
    })
}
