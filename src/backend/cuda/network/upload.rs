//! Weights from the file to the device: several threads read pieces into pinned memory, from where
//! the device fetches them and repacks them, all at the same time. Nothing is mapped, and no other
//! memory of the host is needed.

use super::jobs::{Jobs, MatrixJob, RowsJob};
use crate::backend::Progress;
use crate::backend::cuda::driver::{Buffer, Event, Pinned, Range, Stream};
use crate::backend::cuda::launch::kernels::Kernels;
use crate::backend::cuda::launch::matrix::{largest_args, repack_args};
use crate::backend::cuda::launch::record;
use crate::error::{Error, Result, try_vec};
use crate::quant::dequantize_row;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Bytes of one piece.
const PIECE: usize = 4 << 20;
/// Pieces of a thread that are under way.
const SLOTS: usize = 2;
/// Most threads.
const THREADS: usize = 8;

/// A piece of work: some rows of a job.
struct Piece<'a> {
    job: &'a MatrixJob,
    row: usize,
    rows: usize,
}

/// Uploads everything; calls `progress` in this thread. An error of `progress` stops the upload and
/// is returned.
pub fn upload(
    kernels: &Kernels,
    jobs: &Jobs,
    memory: &Range,
    progress: &mut Progress<'_>,
) -> Result<()> {
    vectors(jobs, |offset, values| memory.write(offset as usize, values))?;
    let total: usize = jobs.matrices.iter().map(|job| job.tensor.byte_len()).sum();
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = Uploader::threads(total as u64, cores.min(THREADS));
    let uploader = Uploader::new(kernels, std::slice::from_ref(jobs), threads)?;
    uploader.matrices(kernels, jobs, progress)
}

/// What threads need that bring matrices to the device.
pub struct Uploader {
    threads: Vec<Mutex<Lane>>,
    codebooks: Option<Buffer>,
}

/// What one of them has for itself.
struct Lane {
    stream: Stream,
    slots: Vec<(Pinned, Buffer, Event)>,
}

impl Uploader {
    /// Bytes of a slot for matrices of these jobs.
    fn slot_bytes(jobs: &[Jobs]) -> usize {
        let all = jobs.iter().flat_map(|jobs| &jobs.matrices);
        let most = |job: &MatrixJob| {
            let (row, whole) = (job.tensor.row_bytes(), job.tensor.byte_len());
            whole.min(PIECE.max(row))
        };
        all.map(most).max().unwrap_or(0)
    }

    /// Threads that bring so many bytes.
    pub fn threads(bytes: u64, most: usize) -> usize {
        most.min((bytes >> 24) as usize + 1)
    }

    /// Bytes on the device of one for these jobs.
    pub fn bytes(jobs: &[Jobs], threads: usize) -> u64 {
        let codebooks = match jobs.iter().flat_map(|jobs| &jobs.matrices).any(with_grid) {
            true => size_of_val(&record::codebooks()[..]),
            false => 0,
        };
        (threads * SLOTS * Uploader::slot_bytes(jobs) + codebooks) as u64
    }

    /// For matrices of these jobs, by so many threads.
    pub fn new(kernels: &Kernels, jobs: &[Jobs], threads: usize) -> Result<Uploader> {
        let context = kernels.context();
        let _current = context.enter()?;
        let all = || jobs.iter().flat_map(|jobs| &jobs.matrices);
        let slot_bytes = Uploader::slot_bytes(jobs);
        let what = "staging memory";
        let mut lanes = Vec::new();
        for _ in 0..threads {
            let mut slots = Vec::new();
            for _ in 0..SLOTS {
                slots.push((
                    Pinned::new(context, slot_bytes, what)?,
                    Buffer::new(context, slot_bytes, what)?,
                    Event::new(context, false)?,
                ));
            }
            let stream = Stream::new(context, 0)?;
            lanes.push(Mutex::new(Lane { stream, slots }));
        }
        Ok(Uploader {
            threads: lanes,
            codebooks: codebooks(kernels, all())?,
        })
    }

    /// Brings vectors and short rows to the device, in the order of a stream.
    ///
    /// # Safety
    /// What the jobs lay out is memory that is valid until the work is done, and that no other work uses.
    pub unsafe fn vectors(&self, stream: &Stream, jobs: &Jobs) -> Result<()> {
        vectors(jobs, |offset, values| {
            let from = values.as_ptr().cast();
            // SAFETY: by contract, the memory is valid until the work is done; the values are read before this returns, as
            // they are not pinned.
            unsafe { stream.copy_in(jobs.base() + offset, from, size_of_val(values)) }
        })
    }

    /// Brings the matrices to the device, and waits for that.
    pub fn matrices(
        &self,
        kernels: &Kernels,
        jobs: &Jobs,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        let mut pieces = Vec::new();
        let mut total = 0u64;
        for job in &jobs.matrices {
            let row_bytes = job.tensor.row_bytes();
            total += job.tensor.byte_len() as u64;
            let step = (PIECE / row_bytes.max(1)).max(1);
            for row in (0..job.tensor.rows()).step_by(step) {
                let rows = step.min(job.tensor.rows() - row);
                pieces.push(Piece { job, row, rows });
            }
        }
        let at = self.codebooks.as_ref().map_or(0, Buffer::address);
        let threads = self.threads.len();
        let (next, lane) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let done = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        let failure: Mutex<Option<Error>> = Mutex::new(None);
        let running = AtomicUsize::new(threads);
        let work = || {
            let lane = lane.fetch_add(1, Ordering::Relaxed) % threads;
            let lane = self.threads[lane].lock();
            let mut lane = lane.unwrap_or_else(|e| e.into_inner());
            let result = run(kernels, at, &pieces, &mut lane, &next, &done, &stop);
            drop(lane);
            if let Err(e) = result {
                stop.store(true, Ordering::Relaxed);
                failure
                    .lock()
                    .unwrap_or_else(|e| e.into_inner())
                    .get_or_insert(e);
            }
            running.fetch_sub(1, Ordering::Release);
        };
        let mut cancelled = Ok(());
        crate::threads::beside("ember-upload", threads, &work, |started| {
            running.fetch_sub(threads - started, Ordering::Release);
            if started == 0 {
                running.store(1, Ordering::Release);
                work();
            }
            while running.load(Ordering::Acquire) > 0 {
                std::thread::sleep(std::time::Duration::from_micros(500));
                if cancelled.is_ok() {
                    let share = done.load(Ordering::Relaxed) as f64 / total.max(1) as f64;
                    cancelled = progress(share as f32);
                    if cancelled.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            }
        });
        cancelled?;
        match failure.into_inner().unwrap_or_else(|e| e.into_inner()) {
            Some(e) => Err(e),
            None => Ok(()),
        }
    }
}

/// Writes vectors and short rows to their offsets.
fn vectors(jobs: &Jobs, mut write: impl FnMut(u64, &[f32]) -> Result<()>) -> Result<()> {
    for vector in &jobs.vectors {
        write(vector.offset, &vector.values)?;
    }
    for job in &jobs.rows {
        write(job.offset, &plain_rows(job)?)?;
    }
    Ok(())
}

/// The values of a tensor's rows, each as wide as they are wanted.
fn plain_rows(job: &RowsJob) -> Result<Vec<f32>> {
    let (tensor, len) = (&job.tensor, job.tensor.row_len());
    let mut raw = try_vec(tensor.byte_len(), 0u8, &tensor.name)?;
    tensor.read_rows(0, &mut raw)?;
    let mut values = try_vec(tensor.rows() * job.width, 0.0, &tensor.name)?;
    let rows = raw.chunks_exact(tensor.row_bytes());
    for (from, to) in rows.zip(values.chunks_exact_mut(job.width)) {
        dequantize_row(tensor.ty, from, &mut to[..len]);
    }
    Ok(values)
}

fn with_grid(job: &MatrixJob) -> bool {
    record::Grid::of(job.tensor.ty) != record::Grid::default()
}

/// The codebooks on the device, where a tensor needs one.
fn codebooks<'a>(
    kernels: &Kernels,
    mut jobs: impl Iterator<Item = &'a MatrixJob>,
) -> Result<Option<Buffer>> {
    if !jobs.any(with_grid) {
        return Ok(None);
    }
    let books = record::codebooks();
    let buffer = Buffer::new(kernels.context(), size_of_val(&books[..]), "codebooks")?;
    buffer.write(0, &books)?;
    Ok(Some(buffer))
}

/// One thread's share: takes pieces until none is left.
fn run(
    kernels: &Kernels,
    codebooks: u64,
    pieces: &[Piece<'_>],
    Lane { stream, slots }: &mut Lane,
    next: &AtomicUsize,
    done: &AtomicU64,
    stop: &AtomicBool,
) -> Result<()> {
    let context = kernels.context();
    let _current = context.enter()?;
    // Whatever happens, the device must be done with the slots before they are freed.
    let result = (|| {
        for turn in 0.. {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = pieces.get(i) else { break };
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let (host, device, event) = &slots[turn % SLOTS];
            if turn >= SLOTS {
                event.synchronize()?;
            }
            let tensor = &piece.job.tensor;
            let row_bytes = tensor.row_bytes();
            // SAFETY: the pinned memory has `slot_bytes`, which a piece of at most `PIECE` bytes or one
            // row fits; nothing but this thread uses it, and the device has finished with it, by the
            // event above.
            let staged =
                unsafe { std::slice::from_raw_parts_mut(host.pointer(), piece.rows * row_bytes) };
            tensor.read_rows(piece.row, staged)?;
            let first_row = piece.job.first_row + piece.row as u32;
            let args = repack_args(
                &piece.job.segment,
                tensor.ty,
                codebooks,
                piece.job.groups,
                device.address(),
                tensor.row_len(),
                first_row,
                piece.rows as u32,
            );
            let (job, rows) = (piece.job, piece.rows as u32);
            let largest = largest_args(&job.segment, job.groups, first_row, rows);
            let bytes = staged.len();
            // SAFETY: the piece fits the slot, which nothing uses before the event; the segment lies
            // within the weights' memory, and both outlive the synchronization below.
            unsafe {
                stream.copy_in(device.address(), host.pointer(), bytes)?;
                kernels.repack(stream, &args)?;
                if job.segment.largest != 0 && kernels.has_wgmma() {
                    kernels.largest_weight(stream, &largest)?;
                }
            }
            event.record(stream)?;
            done.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        Ok(())
    })();
    let finished = stream.synchronize();
    result.and(finished)
}
