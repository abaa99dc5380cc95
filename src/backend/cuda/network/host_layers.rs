//! Parts of layers that the host evaluates: rows of the residual stream go to its memory, and come back changed.
//!
//! The device stores the rows into pinned memory, the driver calls a function of ours in the order of the stream, and the device
//! fetches the rows. Graphs have these calls in them like kernels. Such a function cannot fail, so what goes wrong is kept for
//! whoever waits for the work, and the rows become NaN, of which no token can be chosen.
//!
//! A long piece of a prompt takes the host longer than its weights take to the device. So it stays there, and the weights of one layer after the
//! other come, as guests.

use super::jobs::Jobs;
use super::plan::Plan;
use super::upload::Uploader;
use crate::backend::HostLayers;
use crate::backend::cuda::driver::{Context, Pinned, Stream};
use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::kernels::Kernels;
use crate::backend::cuda::launch::span::Span;
use crate::error::{Error, Result, Status, fail};
use crate::panics;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most rows of a prompt that go to the host together. The host evaluates them layer by layer, and nothing interrupts a layer.
pub const HOST_CHUNK: usize = 512;

/// Pinned memory of a workspace, by which rows cross.
pub struct HostRows {
    /// What the calls of captured graphs point to. Each is alone in its vector, so that it stays where it is.
    calls: Mutex<Vec<Vec<Call>>>,
    shared: Arc<Shared>,
    /// Rows that there is room for.
    most: u32,
}

/// What calls share.
struct Shared {
    layers: Arc<dyn HostLayers>,
    memory: Pinned,
    stride: u32,
    /// The first error since one was taken.
    failed: Mutex<Option<Error>>,
    /// Ends calls early, while it is not null.
    interrupt: AtomicPtr<AtomicBool>,
}

/// Fewest rows of a piece of a prompt for which the weights come to the device, in place of the rows to the host.
pub const GUEST_ROWS: u32 = 256;
/// Most threads that bring them.
const GUEST_THREADS: usize = 4;

/// Layers of the host's whose weights visit the device, one at a time, all in the same place of the allocation of the weights.
pub struct Guests {
    jobs: Vec<Jobs>,
    uploader: Uploader,
}

impl Guests {
    fn threads(jobs: &[Jobs]) -> usize {
        let bytes = |jobs: &Jobs| {
            jobs.matrices
                .iter()
                .map(|job| job.tensor.byte_len() as u64)
                .sum()
        };
        Uploader::threads(jobs.iter().map(bytes).max().unwrap_or(0), GUEST_THREADS)
    }

    /// Bytes on the device beside their place.
    pub fn bytes(jobs: &[Jobs]) -> u64 {
        match jobs {
            [] => 0,
            jobs => Uploader::bytes(jobs, Guests::threads(jobs)),
        }
    }

    /// Of layers that are laid out so; none if there are none.
    pub fn new(kernels: &Kernels, jobs: Vec<Jobs>) -> Result<Option<Guests>> {
        if jobs.is_empty() {
            return Ok(None);
        }
        let uploader = Uploader::new(kernels, &jobs, Guests::threads(&jobs))?;
        Ok(Some(Guests { jobs, uploader }))
    }

    /// Brings a layer to its place, once all work of the stream is done.
    ///
    /// # Safety
    /// The allocation of the weights is valid; no other work than that of the stream uses the guests' place.
    pub unsafe fn bring(&self, (kernels, stream): (&Kernels, &Stream), layer: usize) -> Result<()> {
        let Some(jobs) = self.jobs.get(layer) else {
            fail!(Internal, "the host has no layer {layer}");
        };
        stream.synchronize()?;
        // SAFETY: by contract, the place is valid, and all work that uses it is done.
        unsafe { self.uploader.vectors(stream, jobs)? };
        self.uploader.matrices(kernels, jobs, &mut |_| Ok(()))
    }
}

impl Shared {
    fn failed(&self) -> MutexGuard<'_, Option<Error>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_interrupted(&self) -> bool {
        let interrupt = self.interrupt.load(Ordering::Acquire);
        // SAFETY: `HostRows::until` has set it, and takes it back when no call is under way any more, before the flag goes.
        !interrupt.is_null() && unsafe { (*interrupt).load(Ordering::Relaxed) }
    }
}

/// A call that the driver makes.
struct Call {
    shared: Arc<Shared>,
    layer: usize,
    rows: u32,
}

impl Call {
    fn run(&self) {
        let shared = &self.shared;
        let stride = shared.stride as usize;
        let (first, floats) = (shared.memory.pointer().cast(), self.rows as usize * stride);
        // SAFETY: the memory has that many floats, of which those of the device's kernels are done that the stream has in front of
        // the call, and those behind it have not begun.
        let rows = unsafe { std::slice::from_raw_parts_mut(first, floats) };
        let done = match shared.is_interrupted() {
            true => Err(Error::new(
                Status::Interrupted,
                "interrupted while the CPU evaluated experts",
            )),
            false => panics::catch(|| shared.layers.run(self.layer, rows, stride)),
        };
        if let Err(e) = done {
            rows.fill(f32::NAN);
            shared.failed().get_or_insert(e);
        }
    }
}

/// # Safety
/// `data` points to a `Call` that lives.
unsafe extern "C" fn run(data: *mut c_void) {
    // SAFETY: by contract, `data` points to a `Call` that lives.
    unsafe { (*data.cast_const().cast::<Call>()).run() }
}

impl HostRows {
    /// Memory for `most` rows of the network's width.
    pub fn new(
        context: &Arc<Context>,
        layers: &Arc<dyn HostLayers>,
        (most, stride): (u32, u32),
    ) -> Result<HostRows> {
        let bytes = most as usize * stride as usize * 4;
        layers.reserve(most as usize)?;
        Ok(HostRows {
            calls: Mutex::default(),
            shared: Arc::new(Shared {
                layers: layers.clone(),
                memory: Pinned::new(context, bytes, "rows for the host")?,
                stride,
                failed: Mutex::default(),
                interrupt: AtomicPtr::default(),
            }),
            most,
        })
    }

    /// Enqueues that the host brings `count` rows of the residual stream of a network behind a layer.
    ///
    /// # Safety
    /// The rows at `residual` and this memory are valid, and no other work uses them until this is done.
    pub(super) unsafe fn enqueue(
        &self,
        (kernels, stream): (&Kernels, &Stream),
        plan: &Plan,
        layer: usize,
        residual: Span,
        count: u32,
    ) -> Result<()> {
        if count > self.most || residual.stride != self.shared.stride {
            fail!(
                Internal,
                "{count} rows for the host, with memory for {}",
                self.most
            );
        }
        let there = args::ResidualAdd {
            x: residual.address,
            out: self.shared.memory.address(),
            ..plan.residual_add(residual.stride, None, 1.0)
        };
        let back = args::ResidualAdd {
            x: self.shared.memory.address(),
            out: residual.address,
            ..there
        };
        // SAFETY: by contract, the rows and this memory are valid; the call lives as long as this structure.
        unsafe {
            kernels.residual_add(stream, &there, count)?;
            stream.call(run, self.call(layer, count)?)?;
            kernels.residual_add(stream, &back, count)
        }
    }

    /// What the driver is to be told for a call.
    fn call(&self, layer: usize, rows: u32) -> Result<*mut c_void> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let known = calls
            .iter()
            .flatten()
            .find(|c| (c.layer, c.rows) == (layer, rows));
        if let Some(call) = known {
            return Ok(std::ptr::from_ref(call).cast_mut().cast());
        }
        let mut call = Vec::new();
        if call.try_reserve_exact(1).is_err() || calls.try_reserve(1).is_err() {
            fail!(OutOfMemory, "calls of the host");
        }
        call.push(Call {
            shared: self.shared.clone(),
            layer,
            rows,
        });
        let pointer = std::ptr::from_ref(&call[0]).cast_mut().cast();
        calls.push(call);
        Ok(pointer)
    }

    /// Has calls that `work` enqueues and awaits end early when `interrupt` is set.
    pub fn until<T>(&self, interrupt: &AtomicBool, work: impl FnOnce() -> T) -> T {
        struct Until<'a>(&'a Shared);
        impl Drop for Until<'_> {
            fn drop(&mut self) {
                self.0
                    .interrupt
                    .store(std::ptr::null_mut(), Ordering::Release);
            }
        }
        let interrupt = std::ptr::from_ref(interrupt).cast_mut();
        self.shared.interrupt.store(interrupt, Ordering::Release);
        let _until = Until(&self.shared);
        work()
    }

    /// What has gone wrong since this was asked for the last time.
    pub fn check(&self) -> Result<()> {
        self.shared.failed().take().map_or(Ok(()), Err)
    }
}
