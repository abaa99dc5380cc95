//! Tensors that the file does not have as they are needed: in another type, another order, or
//! spread over several. They are described when the file is opened and made when it is loaded.

use super::tensor::Data;
use super::{ModelFile, Tensor, map};
use crate::error::{Error, Result, Status};
use crate::{memory, panics, threads};
use memmap2::{Mmap, MmapMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// About how many bytes are made at once by one thread.
const CHUNK_BYTES: usize = 1 << 20;
/// The name of the threads.
const THREAD: &str = "ember-make";

/// Makes the rows of a tensor, any of them in any order, on any thread.
pub(super) trait MakeRows: Send + Sync {
    /// Writes whole rows to `out`, from row `first` on.
    fn make(&self, first: usize, out: &mut [u8]) -> Result<()>;
}

/// The bytes of a tensor that are made rather than mapped.
pub(super) struct Made {
    pub(super) rows: Box<dyn MakeRows>,
    len: usize,
    bytes: OnceLock<Mmap>,
}

impl Made {
    pub(super) fn new(len: usize, rows: Box<dyn MakeRows>) -> Made {
        Made {
            rows,
            len,
            bytes: OnceLock::new(),
        }
    }

    /// The bytes, if they are made.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        self.bytes.get().map(|map| &map[..])
    }
}

/// Rows to be made.
struct Job<'a> {
    made: &'a Made,
    first: usize,
    out: &'a mut [u8],
}

impl ModelFile {
    /// Whether tensors have to be made before they can be used.
    pub fn is_ready(&self) -> bool {
        self.to_make().next().is_none()
    }

    /// Bytes of memory, beyond the mapped file, of the tensors that are made.
    pub fn made_bytes(&self) -> u64 {
        let made = |tensor: &Tensor| match &tensor.data {
            Data::Made(made) => made.len as u64,
            Data::Mapped(_) => 0,
        };
        self.tensors.values().map(made).sum()
    }

    /// Makes every tensor whose bytes are not those of the file, on `threads` threads. `progress`
    /// hears, on this thread, which share is done; an error of it ends the work.
    ///
    /// Errors: `OutOfMemory`, those of the tensors' sources, and `progress`'s. Nothing is kept then.
    pub fn make(&self, threads: usize, progress: &mut dyn FnMut(f32) -> Result<()>) -> Result<()> {
        let mut todo = Vec::new();
        for (made, row_bytes) in self.to_make() {
            let map = map::anonymous(made.len)?;
            todo.push((made, row_bytes, map));
        }
        let total: usize = todo.iter().map(|(made, ..)| made.len).sum();
        make_all(&mut todo, total, threads, progress)?;
        for (made, _, map) in todo {
            // Another thread may have made it from a clone meanwhile; its bytes are the same.
            let _ = made.bytes.set(map::read_only(map)?);
        }
        Ok(())
    }

    /// The tensors to be made, each once, and their bytes per row.
    fn to_make(&self) -> impl Iterator<Item = (Arc<Made>, usize)> {
        let mut found: Vec<Arc<Made>> = Vec::new();
        self.tensors.values().filter_map(move |tensor| {
            let Data::Made(made) = &tensor.data else {
                return None;
            };
            if made.bytes().is_some() || found.iter().any(|other| Arc::ptr_eq(other, made)) {
                return None;
            }
            found.push(Arc::clone(made));
            Some((Arc::clone(made), tensor.row_bytes()))
        })
    }
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
    todo: &mut [(Arc<Made>, usize, MmapMut)],
    total: usize,
    threads: usize,
    progress: &mut dyn FnMut(f32) -> Result<()>,
) -> Result<()> {
    let jobs = todo.iter_mut().flat_map(|(made, row_bytes, map)| {
        let (made, row_bytes) = (&**made, *row_bytes);
        let rows = (CHUNK_BYTES / row_bytes).max(1);
        let chunks = map.chunks_mut(rows * row_bytes);
        chunks.enumerate().map(move |(i, out)| Job {
            made,
            first: i * rows,
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
                job.made.rows.make(job.first, job.out)?;
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
