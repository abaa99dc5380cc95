//! A larger stack for a while. A thread of its own would have one, too, but whoever waits for a thread waits for the system to
//! run it, which beside a busy host takes a time slice of others for each of its own.

use crate::error::{Error, Result};
use crate::panics;
use std::ffi::c_void;

/// Runs `work` on this thread, on a stack of its own.
///
/// Errors: those of `work`, also `OutOfMemory` if memory ran out in it; `Internal` if it panics; `OutOfMemory` if there is no stack.
pub(super) fn run<T>(
    what: &str,
    stack_bytes: usize,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    struct Call<T, W> {
        work: Option<W>,
        result: Option<Result<T>>,
    }

    /// # Safety
    /// `call` points to a `Call` of these types that nobody else uses.
    unsafe extern "C" fn run_call<T, W: FnOnce() -> Result<T>>(call: *mut c_void) {
        // SAFETY: by contract, `call` points to a `Call` of these types that nobody else uses.
        let call = unsafe { &mut *call.cast::<Call<T, W>>() };
        if let Some(work) = call.work.take() {
            // No panic goes beyond this stack.
            call.result = Some(panics::catch(|| {
                let value = work()?;
                crate::memory::check()?;
                Ok(value)
            }));
        }
    }

    fn entry<T, W: FnOnce() -> Result<T>>(_: &Call<T, W>) -> unsafe extern "C" fn(*mut c_void) {
        run_call::<T, W>
    }

    let stack = Stack::new(stack_bytes).map_err(|e| {
        let message = format!("{what}: no memory for a stack of {stack_bytes} bytes: {e}");
        Error::new(crate::Status::OutOfMemory, message)
    })?;
    let mut call = Call {
        work: Some(work),
        result: None,
    };
    let function = entry(&call);
    // SAFETY: the stack is this call's alone; the function takes a pointer to a `Call` of its types, and returns.
    unsafe { switch(stack.top(), function, (&raw mut call).cast()) };
    drop(stack);
    call.result.unwrap_or_else(|| {
        let message = format!("{what} ended without a result");
        Err(Error::new(crate::Status::Internal, message))
    })
}

// Calls `rsi` with `rdx` on the stack that ends at `rdi`. The frame is found by `rbp`, which functions keep, so that a backtrace goes on
// where the call came from.
std::arch::global_asm!(
    ".pushsection .text.emberlm_switch_stack, \"ax\", @progbits",
    ".hidden emberlm_switch_stack",
    ".globl emberlm_switch_stack",
    ".type emberlm_switch_stack, @function",
    "emberlm_switch_stack:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "mov rsp, rdi",
    "mov rdi, rdx",
    "call rsi",
    "mov rsp, rbp",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size emberlm_switch_stack, . - emberlm_switch_stack",
    ".popsection",
);

// cbindgen:ignore
unsafe extern "C" {
    /// Calls `function` with `data` on the stack that ends at `top`.
    ///
    /// # Safety
    /// `top` is the 16-byte aligned end of memory that nobody else uses and that is large enough. `function` may be called with
    /// `data`, and returns.
    #[link_name = "emberlm_switch_stack"]
    fn switch(top: *mut u8, function: unsafe extern "C" fn(*mut c_void), data: *mut c_void);
}

/// Memory for a stack, below which there is a page that nobody can touch.
struct Stack {
    base: *mut u8,
    bytes: usize,
}

/// Bytes that are not accessible: a page, or several.
const GUARD: usize = 64 << 10;

impl Stack {
    fn new(bytes: usize) -> std::io::Result<Stack> {
        let bytes = bytes.next_multiple_of(1 << 16) + GUARD;
        // SAFETY: asks for new memory wherever there is room.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let stack = Stack {
            base: base.cast(),
            bytes,
        };
        // SAFETY: the lowest part of memory of this object's own.
        if unsafe { libc::mprotect(base, GUARD, libc::PROT_NONE) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(stack)
    }

    fn top(&self) -> *mut u8 {
        self.base.wrapping_add(self.bytes)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, unmapped once; nothing runs on it any more.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}
