//! Modules, streams, events, graphs and launches.

use super::{Context, sys};
use crate::error::{Error, Result};
use crate::threads::event::Event as HostEvent;
use std::ffi::{CStr, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Loaded kernels of one file.
pub struct Module {
    context: Arc<Context>,
    raw: sys::CUmodule,
}

// SAFETY: handles may be used from any thread while their context is current.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads a fat binary. `NoDevice` if it has nothing for this device, or the driver is too old
    /// for it.
    pub fn load(context: &Arc<Context>, image: &[u8]) -> Result<Module> {
        let _current = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `image` is a whole fat binary made by nvcc, which carries its own length.
        let code = unsafe { sys::cuModuleLoadData(&mut raw, image.as_ptr().cast()) };
        context.check(code, "loading the kernels").map_err(|e| {
            let (major, minor) = context.properties.capability;
            let driver = context.properties.driver;
            let message = format!(
                "{} (compute capability {major}.{minor}, driver for CUDA {}.{})",
                e.message,
                driver / 1000,
                driver % 1000 / 10
            );
            Error::new(e.status, message)
        })?;
        Ok(Module {
            context: context.clone(),
            raw,
        })
    }

    /// The kernel of this name, which may use `shared_bytes` of dynamic shared memory.
    pub fn kernel(&self, name: &CStr, shared_bytes: usize) -> Result<Kernel> {
        let _current = self.context.enter()?;
        let mut raw = std::ptr::null_mut();
        let what = name.to_string_lossy();
        // SAFETY: the module is loaded, the name NUL-terminated, the place valid.
        let code = unsafe { sys::cuModuleGetFunction(&mut raw, self.raw, name.as_ptr()) };
        self.context.check(code, &what)?;
        // 48 KiB need no leave, but static shared memory counts as well.
        if shared_bytes > 32 * 1024 {
            let attribute =
                sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: `raw` is a function of the loaded module.
            let code = unsafe { sys::cuFuncSetAttribute(raw, attribute, shared_bytes as i32) };
            self.context.check(code, &what)?;
        }
        // One division of the multiprocessors' memory for all kernels: they could not overlap while it
        // is changed, which costs 6 % of a decode step on an H200.
        let attribute =
            sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        // SAFETY: `raw` is a function of the loaded module.
        let code = unsafe { sys::cuFuncSetAttribute(raw, attribute, 100) };
        self.context.check(code, &what)?;
        Ok(Kernel(raw))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if let Some(_current) = self.context.enter_to_free() {
            // SAFETY: loaded once; its kernels are kept beside it and go with it.
            unsafe { sys::cuModuleUnload(self.raw) };
        }
    }
}

/// A kernel of a module, valid as long as that.
#[derive(Clone, Copy)]
pub struct Kernel(sys::CUfunction);

// SAFETY: handles may be used from any thread while their context is current.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// Shape of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Blocks.
    pub grid: (u32, u32, u32),
    /// Threads per block.
    pub block: u32,
    /// Bytes of dynamic shared memory per block.
    pub shared: u32,
    /// May start before the kernel in front of it has ended; the kernel waits where it needs to.
    pub programmatic: bool,
}

/// An ordered queue of work.
pub struct Stream {
    context: Arc<Context>,
    raw: sys::CUstream,
    /// Somebody else may still use it.
    stays: AtomicBool,
}

// SAFETY: handles may be used from any thread while their context is current.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream that does not wait for the default stream. `priority`: 0 normal, negative sooner.
    pub fn new(context: &Arc<Context>, priority: i32) -> Result<Stream> {
        let _current = context.enter()?;
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current and the place valid; priorities out of range are clamped.
        let code = unsafe { sys::cuStreamCreateWithPriority(&mut raw, flags, priority) };
        context.check(code, "creating a stream")?;
        Ok(Stream {
            context: context.clone(),
            raw,
            stays: AtomicBool::new(false),
        })
    }

    /// The context of the stream.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The driver's handle (a `CUstream`), for libraries that enqueue work.
    pub fn raw(&self) -> *mut c_void {
        self.raw.cast()
    }

    /// Leaves the driver's handle as it is at the end: a library that has failed may still be about to use it.
    pub fn stay(&self) {
        self.stays.store(true, Ordering::Relaxed);
    }

    /// Enqueues a kernel whose only parameter is a structure.
    ///
    /// # Safety
    /// `args` must be what the kernel expects, and every address in it valid until the work is done.
    pub unsafe fn launch<T: Copy>(&self, kernel: Kernel, launch: &Launch, args: &T) -> Result<()> {
        use sys::CUlaunchAttributeID as Id;
        // SAFETY: plain data of which all zeros is a value; the union's field is set with its id.
        let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        attribute.id = Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let config = sys::CUlaunchConfig {
            gridDimX: launch.grid.0,
            gridDimY: launch.grid.1,
            gridDimZ: launch.grid.2,
            blockDimX: launch.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared,
            hStream: self.raw,
            attrs: &mut attribute,
            numAttrs: u32::from(launch.programmatic),
        };
        let mut params = [std::ptr::from_ref(args).cast_mut().cast::<c_void>()];
        // SAFETY: the driver copies the parameters before it returns; by contract, they are what the kernel expects.
        let code = unsafe {
            sys::cuLaunchKernelEx(&config, kernel.0, params.as_mut_ptr(), std::ptr::null_mut())
        };
        self.context.check(code, "kernel launch")
    }

    /// Enqueues `n` times the 32-bit `value` from `address` on.
    ///
    /// # Safety
    /// The range must be device memory, valid until the work is done.
    pub unsafe fn fill32(&self, address: u64, value: u32, n: usize) -> Result<()> {
        // SAFETY: by contract, the range is device memory that stays valid until the work is done.
        let code = unsafe { sys::cuMemsetD32Async(address, value, n, self.raw) };
        self.context.check(code, "fill")
    }

    /// Enqueues a copy from host memory, which must stay as it is until the copy is done if it is
    /// pinned; other memory is read before this returns.
    ///
    /// # Safety
    /// Both ranges must be valid until the work is done.
    pub unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize) -> Result<()> {
        // SAFETY: by contract, both ranges stay valid until the work is done.
        let code = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, self.raw) };
        self.context.check(code, "copy to the device")
    }

    /// Enqueues a copy to host memory.
    ///
    /// # Safety
    /// Both ranges must be valid until the work is done.
    pub unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize) -> Result<()> {
        // SAFETY: by contract, both ranges stay valid until the work is done.
        let code = unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, self.raw) };
        self.context.check(code, "copy from the device")
    }

    /// Enqueues a copy from device memory to device memory.
    ///
    /// # Safety
    /// Both ranges must be valid until the work is done, and must not overlap.
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        // SAFETY: by contract, both ranges stay valid until the work is done and do not overlap.
        let code = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.raw) };
        self.context.check(code, "copy on the device")
    }

    /// Later work waits for what `event` has recorded.
    pub fn wait(&self, event: &Event) -> Result<()> {
        // SAFETY: both handles are alive.
        let code = unsafe { sys::cuStreamWaitEvent(self.raw, event.raw, 0) };
        self.context.check(code, "cuStreamWaitEvent")
    }

    /// Blocks until all work is done; reports its errors.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the handle is alive.
        let code = unsafe { sys::cuStreamSynchronize(self.raw) };
        self.context.check(code, "waiting for the device")
    }

    /// Has the driver set an event of the host's when all work until now is done, unless that has failed.
    pub fn set_when_done(&self, event: &Arc<HostEvent>) -> Result<()> {
        /// # Safety
        /// `event` is a pointer that `Arc::into_raw` has given, which nobody else takes back.
        unsafe extern "C" fn set(event: *mut c_void) {
            // SAFETY: by contract, `Arc::into_raw` has given `event`, and nobody else takes it back.
            let event = unsafe { Arc::from_raw(event.cast_const().cast::<HostEvent>()) };
            event.set();
        }
        let raw = Arc::into_raw(event.clone());
        // SAFETY: the handle is alive, and the driver calls the function once, if at all.
        let code = unsafe { sys::cuLaunchHostFunc(self.raw, Some(set), raw.cast_mut().cast()) };
        if code != sys::CUresult::CUDA_SUCCESS {
            // SAFETY: the driver has not taken it.
            drop(unsafe { Arc::from_raw(raw) });
        }
        self.context.check(code, "cuLaunchHostFunc")
    }

    /// Enqueues a call of a function of the host's, which must not use the device. Work behind it waits for its end.
    ///
    /// # Safety
    /// `function` may be called with `data` until the work is done, on a thread of the driver.
    pub unsafe fn call(
        &self,
        function: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
    ) -> Result<()> {
        // SAFETY: the handle is alive; by contract, the function may be called with `data`.
        let code = unsafe { sys::cuLaunchHostFunc(self.raw, Some(function), data) };
        self.context.check(code, "cuLaunchHostFunc")
    }

    /// Whether all work is done; reports its errors.
    pub fn is_idle(&self) -> Result<bool> {
        // SAFETY: the handle is alive.
        let code = unsafe { sys::cuStreamQuery(self.raw) };
        if code == sys::CUresult::CUDA_ERROR_NOT_READY {
            return Ok(false);
        }
        self.context.check(code, "asking the device")?;
        Ok(true)
    }

    /// Records what `enqueue` enqueues here as a graph instead of running it. Other threads may use
    /// the device meanwhile.
    pub fn capture(&self, enqueue: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the handle is alive; the capture ends below whatever `enqueue` returns.
        let code = unsafe { sys::cuStreamBeginCapture_v2(self.raw, mode) };
        self.context.check(code, "beginning a capture")?;
        let enqueued = enqueue();
        let mut graph = std::ptr::null_mut();
        // SAFETY: the capture began above.
        let ended = unsafe { sys::cuStreamEndCapture(self.raw, &mut graph) };
        let result = enqueued
            .and_then(|()| self.context.check(ended, "ending a capture"))
            .and_then(|()| {
                let mut raw = std::ptr::null_mut();
                // SAFETY: `graph` is the captured graph; places are valid.
                let code = unsafe { sys::cuGraphInstantiateWithFlags(&mut raw, graph, 0) };
                self.context.allocated(code, 0, "making a graph")?;
                Ok(Graph {
                    context: self.context.clone(),
                    raw,
                })
            });
        if !graph.is_null() {
            // SAFETY: made by the capture; the executable graph does not need it.
            unsafe { sys::cuGraphDestroy(graph) };
        }
        result
    }

    /// Enqueues a graph.
    ///
    /// # Safety
    /// Every address that the graph uses must be valid until the work is done.
    pub unsafe fn launch_graph(&self, graph: &Graph) -> Result<()> {
        // SAFETY: both handles are alive; by contract, the graph's addresses stay valid until the work is done.
        let code = unsafe { sys::cuGraphLaunch(graph.raw, self.raw) };
        self.context.check(code, "graph launch")
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.stays.load(Ordering::Relaxed) {
            return;
        }
        if let Some(_current) = self.context.enter_to_free() {
            // SAFETY: made in `new`, destroyed once; work still queued runs on.
            unsafe { sys::cuStreamDestroy_v2(self.raw) };
        }
    }
}

/// An executable graph.
pub struct Graph {
    context: Arc<Context>,
    raw: sys::CUgraphExec,
}

// SAFETY: handles may be used from any thread while their context is current; launches of one graph
// are serialized by its owner's stream.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Some(_current) = self.context.enter_to_free() {
            // SAFETY: made by `capture`, destroyed once.
            unsafe { sys::cuGraphExecDestroy(self.raw) };
        }
    }
}

/// A mark in a stream.
pub struct Event {
    context: Arc<Context>,
    raw: sys::CUevent,
}

// SAFETY: handles may be used from any thread while their context is current.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event whose waiters sleep.
    pub fn sleeping(context: &Arc<Context>) -> Result<Event> {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32
            | sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        Event::with_flags(context, flags)
    }

    /// An event; with `timing` it can be subtracted from others.
    pub fn new(context: &Arc<Context>, timing: bool) -> Result<Event> {
        let flags = if timing {
            sys::CUevent_flags::CU_EVENT_DEFAULT
        } else {
            sys::CUevent_flags::CU_EVENT_DISABLE_TIMING
        };
        Event::with_flags(context, flags as u32)
    }

    fn with_flags(context: &Arc<Context>, flags: u32) -> Result<Event> {
        let _current = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the context is current and the place valid.
        let code = unsafe { sys::cuEventCreate(&mut raw, flags) };
        context.check(code, "creating an event")?;
        Ok(Event {
            context: context.clone(),
            raw,
        })
    }

    /// Marks the end of what is in `stream` now.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both handles are alive.
        let code = unsafe { sys::cuEventRecord(self.raw, stream.raw) };
        self.context.check(code, "cuEventRecord")
    }

    /// Blocks until the mark is reached.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the handle is alive.
        let code = unsafe { sys::cuEventSynchronize(self.raw) };
        self.context.check(code, "waiting for the device")
    }

    /// Milliseconds from `start` to this mark; both must be reached and made with timing.
    pub fn since(&self, start: &Event) -> Result<f32> {
        let mut ms = 0.0;
        // SAFETY: both handles are alive and the place valid.
        let code = unsafe { sys::cuEventElapsedTime(&mut ms, start.raw, self.raw) };
        self.context.check(code, "cuEventElapsedTime")?;
        Ok(ms)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Some(_current) = self.context.enter_to_free() {
            // SAFETY: made in `new`, destroyed once.
            unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}
