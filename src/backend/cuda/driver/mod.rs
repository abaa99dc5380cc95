//! The NVIDIA driver: the one place that names cudarc. This layer uses none of the others.
//!
//! The driver's library is opened at run time. cudarc's raw functions panic where the library or a
//! function is missing, so [`init`] asks first, and demands a driver new enough to have them all.
//! Nothing of cudarc but the raw functions is used: its wrappers park errors of `Drop`, track
//! events, and own the context.

use crate::error::{Error, Result, Status, fail};
use crate::memory::{Account, Charge};
use cudarc::driver::sys;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

/// The oldest driver that has every function used here, as `cuDriverGetVersion` counts.
const OLDEST_DRIVER: i32 = 12000;
/// From here on, graphs keep programmatic dependent launches.
const PROGRAMMATIC_GRAPHS: i32 = 12030;

/// Starts the driver, once per process. The error says why there is none.
pub fn init() -> Result<i32> {
    static STATE: OnceLock<(u32, Result<i32>)> = OnceLock::new();
    let (pid, state) = STATE.get_or_init(|| (std::process::id(), start()));
    if *pid != std::process::id() {
        fail!(
            DeviceLost,
            "the driver does not work in a forked child of the process that started it"
        );
    }
    state.clone()
}

fn start() -> Result<i32> {
    // SAFETY: loads the driver's library, whose initializers are the vendor's.
    if !unsafe { sys::is_culib_present() } {
        fail!(
            NoDevice,
            "there is no NVIDIA driver (libcuda was not found)"
        );
    }
    let mut version = 0;
    // SAFETY: both functions exist in every driver; `version` is a valid place for an int.
    let (code, init) = unsafe { (sys::cuDriverGetVersion(&mut version), sys::cuInit(0)) };
    check(code, "cuDriverGetVersion").map_err(no_device)?;
    if version < OLDEST_DRIVER {
        let (major, minor) = (version / 1000, version % 1000 / 10);
        fail!(
            NoDevice,
            "the NVIDIA driver is too old: it supports CUDA {major}.{minor}, 12.0 is needed"
        );
    }
    check(init, "cuInit").map_err(no_device)?;
    Ok(version)
}

fn no_device(e: Error) -> Error {
    Error::new(Status::NoDevice, e.message)
}

/// An error for a driver's code; `what` names the call or the purpose.
fn check(code: sys::CUresult, what: &str) -> Result<()> {
    use sys::CUresult as R;
    if code == R::CUDA_SUCCESS {
        return Ok(());
    }
    let status = match code {
        R::CUDA_ERROR_OUT_OF_MEMORY => Status::OutOfMemory,
        R::CUDA_ERROR_NO_DEVICE
        | R::CUDA_ERROR_INVALID_DEVICE
        | R::CUDA_ERROR_NO_BINARY_FOR_GPU
        | R::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => Status::NoDevice,
        R::CUDA_ERROR_ILLEGAL_ADDRESS
        | R::CUDA_ERROR_LAUNCH_FAILED
        | R::CUDA_ERROR_LAUNCH_TIMEOUT
        | R::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | R::CUDA_ERROR_MISALIGNED_ADDRESS
        | R::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | R::CUDA_ERROR_INVALID_PC
        | R::CUDA_ERROR_HARDWARE_STACK_ERROR
        | R::CUDA_ERROR_ASSERT
        | R::CUDA_ERROR_ECC_UNCORRECTABLE
        | R::CUDA_ERROR_NVLINK_UNCORRECTABLE
        | R::CUDA_ERROR_DEVICE_UNAVAILABLE
        | R::CUDA_ERROR_CONTEXT_IS_DESTROYED
        | R::CUDA_ERROR_EXTERNAL_DEVICE
        | R::CUDA_ERROR_DEINITIALIZED
        | R::CUDA_ERROR_UNKNOWN => Status::DeviceLost,
        _ => Status::DeviceError,
    };
    Err(Error::new(status, format!("{what}: {}", code_text(code))))
}

fn code_text(code: sys::CUresult) -> String {
    let mut text: *const std::ffi::c_char = std::ptr::null();
    // SAFETY: the driver sets `text` to a static string, or leaves NULL for an unknown code.
    unsafe {
        if sys::cuGetErrorString(code, &mut text) == sys::CUresult::CUDA_SUCCESS && !text.is_null()
        {
            return std::ffi::CStr::from_ptr(text)
                .to_string_lossy()
                .into_owned();
        }
    }
    format!("error {code:?}")
}

/// What a device is.
#[derive(Clone, Debug)]
pub struct Properties {
    /// The maker's name.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of shared memory that a block may ask for.
    pub shared_bytes: usize,
    /// CUDA version that the driver supports, 13000 for 13.0.
    pub driver: i32,
}

impl Properties {
    /// Whether there are warpgroup products, which only compute capability 9.0 has.
    pub fn has_wgmma(&self) -> bool {
        self.capability == (9, 0)
    }
}

/// Number of devices that the driver shows.
pub fn device_count() -> Result<usize> {
    init()?;
    let mut n = 0;
    // SAFETY: the driver is initialized; `n` is a valid place.
    check(unsafe { sys::cuDeviceGetCount(&mut n) }, "cuDeviceGetCount")?;
    Ok(n as usize)
}

/// Describes device number `index`.
pub fn properties(index: usize) -> Result<Properties> {
    let driver = init()?;
    let mut device = 0;
    let mut name = [0 as std::ffi::c_char; 256];
    let mut memory = 0usize;
    // SAFETY: the driver is initialized and all places are valid; the name is NUL-terminated.
    let name = unsafe {
        check(sys::cuDeviceGet(&mut device, index as i32), "cuDeviceGet")?;
        check(
            sys::cuDeviceGetName(name.as_mut_ptr(), 255, device),
            "cuDeviceGetName",
        )?;
        check(
            sys::cuDeviceTotalMem_v2(&mut memory, device),
            "cuDeviceTotalMem",
        )?;
        std::ffi::CStr::from_ptr(name.as_ptr())
            .to_string_lossy()
            .into_owned()
    };
    let get = |attribute| {
        let mut value = 0;
        // SAFETY: `device` is valid and so is the place.
        check(
            unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) },
            "cuDeviceGetAttribute",
        )?;
        Ok::<i32, Error>(value)
    };
    use sys::CUdevice_attribute as A;
    let capability = (
        get(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        get(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    let shared_bytes = get(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize;
    #[cfg(feature = "test-hooks")]
    let (capability, shared_bytes) = test_hooks::older(capability, shared_bytes)?;
    Ok(Properties {
        name,
        capability,
        multiprocessors: get(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        memory: memory as u64,
        shared_bytes,
        driver,
    })
}

/// A device's context. The primary one, which the host program may use as well; every call makes it
/// current for its own duration only. Device memory that is allocated with it is charged to its account.
pub struct Context {
    raw: sys::CUcontext,
    device: sys::CUdevice,
    properties: Properties,
    pid: u32,
    /// The message of the error after which nothing works any more.
    lost: Arc<OnceLock<String>>,
    programmatic: bool,
    account: Arc<Account>,
}

// SAFETY: a CUcontext may be used from any thread that makes it current.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks internally.
unsafe impl Sync for Context {}

/// While it lives, a context is current in this thread; after it, the one before is.
pub struct Current<'a> {
    _context: PhantomData<&'a Context>,
    _thread: PhantomData<Cell<*const ()>>,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut popped = std::ptr::null_mut();
        // SAFETY: `enter` pushed a context in this thread, and guards end in reverse order.
        unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
    }
}

impl Context {
    /// Whether both are the same one of the driver's, whoever is charged for what is allocated there.
    pub fn is(&self, other: &Context) -> bool {
        self.raw == other.raw
    }

    /// The primary context of device `index`.
    pub fn new(index: usize) -> Result<Arc<Context>> {
        let properties = properties(index)?;
        let mut device = 0;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the driver is initialized; places are valid; `Drop` releases what is retained.
        unsafe {
            check(sys::cuDeviceGet(&mut device, index as i32), "cuDeviceGet")?;
            check(
                sys::cuDevicePrimaryCtxRetain(&mut raw, device),
                "opening the device",
            )?;
        }
        Ok(Arc::new(Context {
            raw,
            device,
            pid: std::process::id(),
            lost: Arc::default(),
            account: Account::unlimited(),
            programmatic: properties.capability.0 >= 9 && properties.driver >= PROGRAMMATIC_GRAPHS,
            properties,
        }))
    }

    /// The same context with another account.
    pub fn charging(&self, account: Arc<Account>) -> Result<Arc<Context>> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the driver is initialized; the place is valid; `Drop` releases what is retained. Of a
        // host's context, the primary one is retained as well, so that dropping is the same for both.
        let code = unsafe { sys::cuDevicePrimaryCtxRetain(&mut raw, self.device) };
        self.check(code, "opening the device")?;
        Ok(Arc::new(Context {
            raw: self.raw,
            device: self.device,
            properties: self.properties.clone(),
            pid: self.pid,
            lost: self.lost.clone(),
            programmatic: self.programmatic,
            account,
        }))
    }

    /// What device memory is charged to.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// A context that the host made on device `index`; `raw` is its `CUcontext`, which must stay
    /// valid as long as anything made here lives.
    pub fn shared(index: usize, raw: usize) -> Result<Arc<Context>> {
        let mut context = Context::new(index)?;
        let mut device = 0;
        let mut popped = std::ptr::null_mut();
        let raw = raw as sys::CUcontext;
        // SAFETY: the caller of the library vouches for `raw`; what is pushed is popped.
        unsafe {
            check(sys::cuCtxPushCurrent_v2(raw), "the host's CUcontext")?;
            let asked = check(sys::cuCtxGetDevice(&mut device), "the host's CUcontext");
            sys::cuCtxPopCurrent_v2(&mut popped);
            asked?;
        }
        let own = Arc::get_mut(&mut context).expect("just made");
        if device != own.device {
            fail!(
                InvalidArgument,
                "the host's CUcontext is of another device than {index}"
            );
        }
        // The primary context stays retained, so that dropping is the same for both.
        own.raw = raw;
        Ok(context)
    }

    /// Free bytes of device `index` if its primary context is open in this process.
    pub fn free_if_open(index: usize) -> Option<u64> {
        let mut device = 0;
        let (mut flags, mut active) = (0, 0);
        // SAFETY: the driver is initialized by the caller's earlier calls; places are valid.
        unsafe {
            check(sys::cuDeviceGet(&mut device, index as i32), "").ok()?;
            check(
                sys::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active),
                "",
            )
            .ok()?;
        }
        if active == 0 {
            return None;
        }
        Some(Context::new(index).ok()?.memory().ok()?.0)
    }

    /// What the device is.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Whether captured graphs may hold programmatic dependent launches.
    pub fn programmatic(&self) -> bool {
        self.programmatic
    }

    /// Makes the context current in this thread. `DeviceLost` after a sticky error, and in a forked
    /// child.
    pub fn enter(&self) -> Result<Current<'_>> {
        if let Some(message) = self.lost.get() {
            fail!(DeviceLost, "{message}");
        }
        if !self.is_alive() {
            fail!(
                DeviceLost,
                "the device does not work in a forked child of the process that opened it"
            );
        }
        // SAFETY: `raw` is retained as long as `self` lives.
        let code = unsafe { sys::cuCtxPushCurrent_v2(self.raw) };
        self.check(code, "making the device current")?;
        Ok(Current {
            _context: PhantomData,
            _thread: PhantomData,
        })
    }

    /// For `Drop`: whether calls make sense, in this process, and the context if they do.
    pub(super) fn enter_to_free(&self) -> Option<Current<'_>> {
        if !self.is_alive() {
            return None;
        }
        // SAFETY: as in `enter`. After a sticky error the calls that follow fail without harm.
        let code = unsafe { sys::cuCtxPushCurrent_v2(self.raw) };
        (code == sys::CUresult::CUDA_SUCCESS).then_some(Current {
            _context: PhantomData,
            _thread: PhantomData,
        })
    }

    fn is_alive(&self) -> bool {
        self.pid == std::process::id()
    }

    fn check(&self, code: sys::CUresult, what: &str) -> Result<()> {
        let result = check(code, what);
        if let Err(e) = &result
            && e.status == Status::DeviceLost
        {
            let _ = self.lost.set(e.message.clone());
        }
        result
    }

    /// Free and total bytes of memory.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let _current = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the context is current; places are valid.
        self.check(
            unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) },
            "cuMemGetInfo",
        )?;
        Ok((free as u64, total as u64))
    }

    /// The driver's number of the device.
    pub fn number(&self) -> i32 {
        self.device
    }

    /// Whether kernels of this context can use memory of another device's.
    pub fn can_reach(&self, other: &Context) -> Result<bool> {
        let _current = self.enter()?;
        let mut can = 0;
        // SAFETY: the driver is initialized; the place is valid.
        let code = unsafe { sys::cuDeviceCanAccessPeer(&mut can, self.device, other.device) };
        self.check(code, "asking for the way to another GPU")?;
        Ok(can != 0)
    }

    /// Lets kernels of this context use memory of another device's that it can reach; that stays so.
    pub fn reach(&self, other: &Context) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the context is current, and the other one is retained as long as `other` lives. What is enabled stays so.
        match unsafe { sys::cuCtxEnablePeerAccess(other.raw, 0) } {
            sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            code => self.check(code, "the way to another GPU"),
        }
    }

    /// Blocks until all work of the context is done; reports its errors.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the context is current.
        self.check(unsafe { sys::cuCtxSynchronize() }, "waiting for the device")
    }

    /// Lets the n-th allocation from now (0 is the next) fail with `OutOfMemory`; negative: none.
    #[cfg(feature = "test-hooks")]
    pub fn fail_allocation(&self, n: i64) {
        test_hooks::fail_allocation(n);
    }

    /// Whether the allocation that is about to be made has to fail, for a test.
    fn fails_now(&self) -> bool {
        #[cfg(feature = "test-hooks")]
        return test_hooks::fails_now();
        #[cfg(not(feature = "test-hooks"))]
        false
    }

    fn out_of_memory(&self, bytes: usize, what: &str) -> Error {
        let free = self.memory().map_or(0, |(free, _)| free);
        let message = format!("{what}: {bytes} bytes of device memory wanted, {free} free");
        Error::new(Status::OutOfMemory, message)
    }

    fn allocated(&self, code: sys::CUresult, bytes: usize, what: &str) -> Result<()> {
        match self.check(code, what) {
            Err(e) if e.status == Status::OutOfMemory => Err(self.out_of_memory(bytes, what)),
            other => other,
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.is_alive() {
            // SAFETY: retained in `new`, released once; nothing made from it is left, because all of
            // it holds an `Arc` of the context.
            unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
        }
    }
}

/// Device memory.
pub struct Buffer {
    context: Arc<Context>,
    address: u64,
    bytes: usize,
    _charge: Charge,
}

impl Buffer {
    /// Uninitialized memory of at least one byte; `what` goes into the error.
    pub fn new(context: &Arc<Context>, bytes: usize, what: &str) -> Result<Buffer> {
        let _current = context.enter()?;
        if context.fails_now() {
            return Err(context.out_of_memory(bytes, what));
        }
        let charge = context.account.charge(bytes.max(1), what)?;
        let mut address = 0;
        // SAFETY: the context is current and the place valid.
        let code = unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1)) };
        context.allocated(code, bytes, what)?;
        Ok(Buffer {
            context: context.clone(),
            address,
            bytes,
            _charge: charge,
        })
    }

    /// Memory that holds `data`. Waits for the copy.
    pub fn from_slice<T: Copy>(context: &Arc<Context>, data: &[T], what: &str) -> Result<Buffer> {
        let buffer = Buffer::new(context, size_of_val(data), what)?;
        buffer.write(0, data)?;
        Ok(buffer)
    }

    /// Where it was allocated.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies `data` to byte `at` and waits for it.
    pub fn write<T: Copy>(&self, at: usize, data: &[T]) -> Result<()> {
        assert!(
            at + size_of_val(data) <= self.bytes,
            "write within the buffer"
        );
        write(&self.context, self.address + at as u64, data)
    }

    /// Zeroes `bytes` bytes from byte `at` on, and waits for it.
    pub fn clear(&self, at: usize, bytes: usize) -> Result<()> {
        let _current = self.context.enter()?;
        assert!(at + bytes <= self.bytes, "zeros within the buffer");
        // SAFETY: the range lies within the allocation. NULL is the default stream, where the
        // filling is.
        let code = unsafe {
            match sys::cuMemsetD8_v2(self.address + at as u64, 0, bytes) {
                sys::CUresult::CUDA_SUCCESS => sys::cuStreamSynchronize(std::ptr::null_mut()),
                failed => failed,
            }
        };
        self.context.check(code, "zeros on the device")
    }

    /// Copies from byte `at` to `out` and waits for it.
    pub fn read<T: Pod>(&self, at: usize, out: &mut [T]) -> Result<()> {
        let _current = self.context.enter()?;
        assert!(
            at + size_of_val(out) <= self.bytes,
            "read within the buffer"
        );
        // SAFETY: the range lies within the allocation; `out` is writable and any bytes are a `T`.
        let code = unsafe {
            sys::cuMemcpyDtoH_v2(
                out.as_mut_ptr().cast(),
                self.address + at as u64,
                size_of_val(out),
            )
        };
        self.context.check(code, "copy from the device")
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(_current) = self.context.enter_to_free() {
            // SAFETY: allocated in `new`, freed once. The driver waits for work that uses it.
            unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

/// Copies `data` to device memory of at least as many bytes, and waits for it.
fn write<T: Copy>(context: &Context, address: u64, data: &[T]) -> Result<()> {
    let _current = context.enter()?;
    // SAFETY: the callers, `Buffer` and `Range`, have checked that the memory is theirs; `data` is
    // readable.
    let code = unsafe { sys::cuMemcpyHtoD_v2(address, data.as_ptr().cast(), size_of_val(data)) };
    context.check(code, "copy to the device")?;
    // The call returns when `data` is read; streams of ours would not wait for the rest.
    // SAFETY: NULL is the default stream, where the copy is.
    let code = unsafe { sys::cuStreamSynchronize(std::ptr::null_mut()) };
    context.check(code, "copy to the device")
}

/// Types of which any bytes are a value.
///
/// # Safety
/// Every bit pattern must be valid, without padding.
pub unsafe trait Pod: Copy {}
// SAFETY: plain numbers.
unsafe impl Pod for u8 {}
// SAFETY: as above.
unsafe impl Pod for i8 {}
// SAFETY: as above.
unsafe impl Pod for u16 {}
// SAFETY: as above.
unsafe impl Pod for u32 {}
// SAFETY: as above.
unsafe impl Pod for u64 {}
// SAFETY: as above.
unsafe impl Pod for f32 {}

/// Page-locked host memory that the device can read and write.
pub struct Pinned {
    context: Arc<Context>,
    pointer: *mut u8,
    address: u64,
    bytes: usize,
}

// SAFETY: plain memory; shared access goes through raw pointers with their own rules.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Zeroed memory; `what` goes into the error.
    pub fn new(context: &Arc<Context>, bytes: usize, what: &str) -> Result<Pinned> {
        let _current = context.enter()?;
        if context.fails_now() {
            return Err(context.out_of_memory(bytes, what));
        }
        let mut pointer = std::ptr::null_mut();
        let mut address = 0;
        // SAFETY: the context is current and places are valid; the memory is `bytes` long.
        unsafe {
            let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
            context.allocated(
                sys::cuMemHostAlloc(&mut pointer, bytes.max(1), flags),
                bytes,
                what,
            )?;
            std::ptr::write_bytes(pointer.cast::<u8>(), 0, bytes.max(1));
            let code = sys::cuMemHostGetDevicePointer_v2(&mut address, pointer, 0);
            if let Err(e) = context.check(code, what) {
                sys::cuMemFreeHost(pointer);
                return Err(e);
            }
        }
        Ok(Pinned {
            context: context.clone(),
            pointer: pointer.cast(),
            address,
            bytes,
        })
    }

    /// The address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The address on the host, of `bytes` bytes.
    pub fn pointer(&self) -> *mut u8 {
        self.pointer
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(_current) = self.context.enter_to_free() {
            // SAFETY: allocated in `new`, freed once, after the owner has waited for its streams.
            unsafe { sys::cuMemFreeHost(self.pointer.cast()) };
        }
    }
}

/// Floats in page-locked host memory, which only one side uses at a time: the device does so within calls that wait for it.
pub struct PinnedFloats(Pinned);

impl PinnedFloats {
    /// So many zeros; `what` goes into the error.
    pub fn new(context: &Arc<Context>, floats: usize, what: &str) -> Result<PinnedFloats> {
        Ok(PinnedFloats(Pinned::new(context, floats * 4, what)?))
    }
}

impl Deref for PinnedFloats {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        // SAFETY: that many floats, which begin at a page, and are zeros at least; a borrow of this structure is one of them.
        unsafe { std::slice::from_raw_parts(self.0.pointer().cast(), self.0.bytes() / 4) }
    }
}

impl DerefMut for PinnedFloats {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.0.pointer().cast(), self.0.bytes() / 4) }
    }
}

pub mod arena;
pub mod nccl;
mod range;
#[cfg(feature = "test-hooks")]
mod test_hooks;
mod work;

pub use range::{Range, granularity};
pub use work::{Event, Graph, Kernel, Launch, Module, Stream};
