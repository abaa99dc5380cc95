//! Options that only some devices have, behind those that all have.

use super::boundary::{Sized32, read_struct};
use crate::error::{Result, fail};
use std::ffi::c_void;

/// Kinds of structs that `next` of an option struct may point to. Later versions may have more. A kind that the library does not know is
/// `EMBER_INVALID_ARGUMENT`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_chain_kind {
    /// `ember_cuda_model_options`, behind `ember_model_options`.
    EMBER_CHAIN_CUDA_MODEL = 1,
    /// `ember_cuda_session_options`, behind `ember_session_options` and `ember_restore_options`.
    EMBER_CHAIN_CUDA_SESSION = 2,
}

/// How to load a model onto an NVIDIA GPU. Zero in every field but `struct_size` and `kind` means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_cuda_model_options {
    /// `sizeof(ember_cuda_model_options)`.
    pub struct_size: u32,
    /// `EMBER_CHAIN_CUDA_MODEL`.
    pub kind: u32,
    /// The next struct of the chain, or NULL.
    pub next: *const c_void,
    /// A `CUcontext` of yours on the device, which the library then shares instead of using the
    /// device's primary one; it must outlive the model and its sessions. NULL means the primary
    /// one. A CPU refuses any other.
    pub context: *mut c_void,
}

// SAFETY: `repr(C)`; two u32 and two words have no padding; zero is a value of each; the size comes first.
unsafe impl Sized32 for ember_cuda_model_options {
    const NAME: &'static str = "ember_cuda_model_options";
}

/// How to create a session on an NVIDIA GPU. Zero in every field but `struct_size` and `kind` means the default. A CPU ignores it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_cuda_session_options {
    /// `sizeof(ember_cuda_session_options)`.
    pub struct_size: u32,
    /// `EMBER_CHAIN_CUDA_SESSION`.
    pub kind: u32,
    /// The next struct of the chain, or NULL.
    pub next: *const c_void,
    /// Priority of the session's work: higher values run first. GPUs support few levels and use the nearest one.
    pub stream_priority: i32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: `repr(C)`; two u32, a word and two numbers of 4 bytes have no padding; zero is a value of each; the size comes first.
unsafe impl Sized32 for ember_cuda_session_options {
    const NAME: &'static str = "ember_cuda_session_options";
}

/// A struct that `next` may point to.
pub(super) trait Chained: Sized32 {
    /// What its field `kind` has.
    const KIND: ember_chain_kind;

    /// What comes behind it.
    fn next(&self) -> *const c_void;
}

impl Chained for ember_cuda_model_options {
    const KIND: ember_chain_kind = ember_chain_kind::EMBER_CHAIN_CUDA_MODEL;

    fn next(&self) -> *const c_void {
        self.next
    }
}

impl Chained for ember_cuda_session_options {
    const KIND: ember_chain_kind = ember_chain_kind::EMBER_CHAIN_CUDA_SESSION;

    fn next(&self) -> *const c_void {
        self.next
    }
}

/// What all structs of a chain begin with.
#[repr(C)]
#[derive(Clone, Copy)]
struct Head {
    struct_size: u32,
    kind: u32,
}

/// The struct of this type behind the options named `owner`, which take no other.
///
/// # Safety
/// `next` is NULL or points to a chain of structs that are each as large as they say.
pub(super) unsafe fn read_chain<T: Chained>(
    mut next: *const c_void,
    owner: &str,
) -> Result<Option<T>> {
    let mut found = None;
    while !next.is_null() {
        if !next.cast::<Head>().is_aligned() {
            fail!(InvalidArgument, "next of {owner} is not aligned");
        }
        // SAFETY: every struct of a chain begins with these.
        let head = unsafe { next.cast::<Head>().read() };
        if head.kind != T::KIND as u32 || (head.struct_size as usize) < size_of::<Head>() {
            fail!(
                InvalidArgument,
                "next of {owner} has a struct of kind {} and {} bytes, which this version of the library does not know there",
                head.kind,
                head.struct_size
            );
        }
        if found.is_some() {
            fail!(InvalidArgument, "next of {owner} has two {}", T::NAME);
        }
        // SAFETY: by contract, `next` is NULL or a chain of structs that are each as large as they say.
        let value = unsafe { read_struct(next.cast::<T>()) }?;
        next = value.next();
        found = Some(value);
    }
    Ok(found)
}
