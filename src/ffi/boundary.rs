//! What every exported function does with its arguments and its result.

use super::error::{ember_error, ember_status, store, store_text};
use super::{cancel, forked};
use crate::budget::Interrupt;
use crate::error::{Result, Status, fail};
use crate::memory;
use crate::panics;
use crate::threads;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// The body of an exported function: runs `work` unless memory has run out or this is a forked process, turns a panic into
/// an error, reports to `err`.
///
/// # Safety
/// `err` is NULL or points to an `ember_error` that nobody else uses now.
pub(super) unsafe fn call(
    err: *mut ember_error,
    work: impl FnOnce() -> Result<()>,
) -> ember_status {
    if memory::is_low() {
        // SAFETY: by contract, `err` is NULL or points to an `ember_error` that nobody else uses now.
        return unsafe { store_text(err, Status::OutOfMemory, memory::IS_LOW) };
    }
    // SAFETY: by contract, `err` is NULL or points to an `ember_error` that nobody else uses now.
    unsafe { call_always(err, work) }
}

/// As [`call`], for functions that free memory or need next to none: they are not refused when memory has run out, but for the
/// first call of a thread in a library that was opened with `dlopen`.
///
/// # Safety
/// As [`call`].
pub(super) unsafe fn call_always(
    err: *mut ember_error,
    work: impl FnOnce() -> Result<()>,
) -> ember_status {
    if !threads::has_variables() {
        // SAFETY: by contract, `err` is NULL or points to an `ember_error` that nobody else uses now.
        return unsafe { store_text(err, Status::OutOfMemory, memory::NONE_TO_BEGIN) };
    }
    let _held = cancel::hold();
    let result = forked::enter().and_then(|_inside| panics::catch(work));
    // SAFETY: by contract, `err` is NULL or points to an `ember_error` that nobody else uses now.
    unsafe { store(err, result) }
}

/// Refuses bits that no version so far has given a meaning.
pub(super) fn check_flags(flags: u32, known: u32) -> Result<()> {
    if flags & !known != 0 {
        fail!(
            InvalidArgument,
            "flags has unknown bits {:#x}",
            flags & !known
        );
    }
    Ok(())
}

/// Refuses a field of `owner` that no version so far has given a meaning.
pub(super) fn check_reserved(reserved: u32, owner: &str) -> Result<()> {
    if reserved != 0 {
        fail!(InvalidArgument, "reserved of {owner} is {reserved}, not 0");
    }
    Ok(())
}

/// A place for a result, checked before the work and written after it.
pub(super) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// `NullPointer` or `InvalidArgument`, naming the argument.
    ///
    /// # Safety
    /// `pointer` is NULL or valid for a write of `T` for the rest of the exported function.
    pub(super) unsafe fn new(pointer: *mut T, name: &str) -> Result<Out<T>> {
        Ok(Out(non_null(pointer, name)?))
    }

    /// Of a pointer that may be NULL: none then.
    ///
    /// # Safety
    /// As for `new`.
    pub(super) unsafe fn optional(pointer: *mut T, name: &str) -> Result<Option<Out<T>>> {
        match pointer.is_null() {
            true => Ok(None),
            // SAFETY: by contract, the pointer is as `new` demands.
            false => unsafe { Out::new(pointer, name) }.map(Some),
        }
    }

    pub(super) fn set(&self, value: T) {
        // SAFETY: valid for writes by `new`'s contract; not NULL and aligned, as checked there.
        unsafe { self.0.as_ptr().write(value) }
    }
}

fn non_null<T>(pointer: *const T, name: &str) -> Result<NonNull<T>> {
    match NonNull::new(pointer.cast_mut()) {
        None => fail!(NullPointer, "{name} is NULL"),
        Some(p) if !p.is_aligned() => fail!(
            InvalidArgument,
            "{name} is not aligned to {} bytes",
            align_of::<T>()
        ),
        Some(p) => Ok(p),
    }
}

/// The caller's array. NULL is allowed with a length of 0.
///
/// # Safety
/// `pointer` is NULL or valid for reads of `len` elements, which nobody changes, for the rest of
/// the exported function.
pub(super) unsafe fn slice<'a, T>(pointer: *const T, len: usize, name: &str) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    let pointer = array(pointer, len, name)?;
    // SAFETY: valid by the contract; not NULL, aligned and of a possible size by `array`.
    Ok(unsafe { std::slice::from_raw_parts(pointer.as_ptr(), len) })
}

/// The caller's buffer. NULL is allowed with a length of 0.
///
/// # Safety
/// `pointer` is NULL or valid for reads and writes of `len` elements, which nobody else uses, for
/// the rest of the exported function. `T` is a number type, so that any bytes are a value.
pub(super) unsafe fn slice_mut<'a, T: Copy>(
    pointer: *mut T,
    len: usize,
    name: &str,
) -> Result<&'a mut [T]> {
    if len == 0 {
        return Ok(&mut []);
    }
    let pointer = array(pointer, len, name)?;
    // SAFETY: valid by the contract; not NULL, aligned and of a possible size by `array`.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), len) })
}

fn array<T>(pointer: *const T, len: usize, name: &str) -> Result<NonNull<T>> {
    let pointer = non_null(pointer, name)?;
    if len > isize::MAX as usize / size_of::<T>() {
        fail!(
            InvalidArgument,
            "{name} has {len} elements, more than memory can hold"
        );
    }
    Ok(pointer)
}

/// The caller's text.
///
/// # Safety
/// As [`slice`] with bytes.
pub(super) unsafe fn text<'a>(
    pointer: *const std::ffi::c_char,
    len: usize,
    name: &str,
) -> Result<&'a str> {
    // SAFETY: by contract, the bytes are readable, and nobody changes them; a `c_char` is a byte.
    let bytes = unsafe { slice(pointer.cast::<u8>(), len, name) }?;
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(e) => fail!(
            InvalidUtf8,
            "{name} is not valid UTF-8 at byte {}",
            e.valid_up_to()
        ),
    }
}

/// A number of the caller's that asks a call to end when it is not 0.
struct Flag(NonNull<u32>);

// SAFETY: the number is only read, and atomically, which any thread may do while the contract of
// `interrupt` holds.
unsafe impl Send for Flag {}
// SAFETY: as above.
unsafe impl Sync for Flag {}

impl Flag {
    fn is_set(&self) -> bool {
        // SAFETY: valid for atomic reads by the contract of `interrupt`, and aligned, as checked there.
        let number = unsafe { AtomicU32::from_ptr(self.0.as_ptr()) };
        number.load(Ordering::Relaxed) != 0
    }
}

/// The caller's way to end a call. It must not be kept for longer than the call.
///
/// # Safety
/// `pointer` is NULL, or valid for atomic reads and not written otherwise than atomically for the rest
/// of the exported function.
pub(super) unsafe fn interrupt(pointer: *const u32) -> Result<Interrupt> {
    if pointer.is_null() {
        return Ok(Interrupt::default());
    }
    let flag = Flag(non_null(pointer, "interrupt")?);
    Ok(Interrupt::new(move || flag.is_set()))
}

/// A struct that crosses the border and may grow: options and details.
///
/// # Safety
/// `repr(C)` without padding, all bytes zero is a value, any bytes in a number are a value, and the
/// first field is `struct_size: u32`.
pub(super) unsafe trait Sized32: Copy {
    /// The C name, for messages.
    const NAME: &'static str;

    /// All zero but for the size.
    fn zeroed() -> Self {
        let mut zeroed = MaybeUninit::<Self>::zeroed();
        // SAFETY: all zero is a value, and the first field is the size (contract of the trait).
        unsafe {
            zeroed
                .as_mut_ptr()
                .cast::<u32>()
                .write(size_of::<Self>() as u32);
            zeroed.assume_init()
        }
    }
}

/// No struct of this library will ever be this large, so a larger size is garbage.
const SIZE_LIMIT: usize = 1 << 16;

/// The alignment that structs of a caller need: that of their first field. A later version may append a field that is aligned to more
/// bytes, and the structs of programs compiled before it must stay valid. So structs are copied byte by byte.
const STRUCT_ALIGN: usize = align_of::<u32>();

/// The caller's struct, which need not be aligned for `T`.
fn sized<T: Sized32>(pointer: *const T) -> Result<NonNull<T>> {
    non_null(pointer.cast::<u32>(), T::NAME).map(NonNull::cast)
}

/// Reads the size that the caller wrote into the struct, and checks that it can be one.
///
/// # Safety
/// `pointer` is valid for reads of a `u32`, and aligned for it.
unsafe fn struct_size<T: Sized32>(pointer: NonNull<T>) -> Result<usize> {
    // SAFETY: by contract, `pointer` is valid for reads of a `u32` and aligned for it.
    let size = unsafe { pointer.cast::<u32>().read() } as usize;
    if size < STRUCT_ALIGN || !size.is_multiple_of(STRUCT_ALIGN) || size > SIZE_LIMIT {
        fail!(
            InvalidArgument,
            "struct_size is {size}; set it to sizeof({})",
            T::NAME
        );
    }
    Ok(size)
}

/// Reads an option struct of any version. Fields that an older caller does not know are zero;
/// fields that only a newer caller knows must be.
///
/// # Safety
/// `pointer` is NULL (all defaults) or valid for reads of as many bytes as its first field says.
pub(super) unsafe fn read_struct<T: Sized32>(pointer: *const T) -> Result<T> {
    if pointer.is_null() {
        return Ok(T::zeroed());
    }
    let pointer = sized(pointer)?;
    // SAFETY: by contract, `pointer` is valid for reads of as many bytes as its first field says,
    // the first field among them.
    let size = unsafe { struct_size(pointer) }?;
    // SAFETY: `size` bytes are readable by contract, padding included.
    let bytes = unsafe { std::slice::from_raw_parts(pointer.as_ptr().cast::<u8>(), size) };
    let known = size.min(size_of::<T>());
    if let Some(i) = bytes[known..].iter().position(|&b| b != 0) {
        fail!(
            InvalidArgument,
            "{} sets an option at byte {} that this version of the library does not have",
            T::NAME,
            known + i
        );
    }
    let mut value = T::zeroed();
    // SAFETY: `known` bytes fit into `value`; any bytes are a value of its number fields, and the
    // pointers among them are the caller's own.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut value).cast::<u8>(), known);
    }
    Ok(value)
}

/// A details struct of any version, to be filled.
pub(super) struct OutStruct<T> {
    pointer: NonNull<T>,
    size: usize,
}

impl<T: Sized32> OutStruct<T> {
    /// # Safety
    /// `pointer` is NULL or valid for reads and writes of as many bytes as its first field says,
    /// for the rest of the exported function.
    pub(super) unsafe fn new(pointer: *mut T) -> Result<OutStruct<T>> {
        let pointer = sized(pointer)?;
        // SAFETY: by contract, `pointer` is valid for as many bytes as its first field says, the
        // first field among them.
        let size = unsafe { struct_size(pointer) }?;
        Ok(OutStruct { pointer, size })
    }

    /// Of a pointer that may be NULL: none then.
    ///
    /// # Safety
    /// As for `new`.
    pub(super) unsafe fn optional(pointer: *mut T) -> Result<Option<OutStruct<T>>> {
        match pointer.is_null() {
            true => Ok(None),
            // SAFETY: by contract, the pointer is as `new` demands.
            false => unsafe { OutStruct::new(pointer) }.map(Some),
        }
    }

    /// Writes the fields that the caller knows, and zeros where it knows more. The caller's
    /// `struct_size` stays.
    pub(super) fn set(&self, value: &T) {
        let skip = size_of::<u32>();
        let known = self.size.min(size_of::<T>());
        let to = self.pointer.as_ptr().cast::<u8>();
        // SAFETY: `size` bytes are writable by `new`'s contract, and `known` are readable from
        // `value`, which has no padding.
        unsafe {
            let from = std::ptr::from_ref(value).cast::<u8>();
            std::ptr::copy_nonoverlapping(from.add(skip), to.add(skip), known - skip);
            std::ptr::write_bytes(to.add(known), 0, self.size - known);
        }
    }
}

/// An array of structs of any version, to be filled. Its elements are as far apart as the first one says it is large.
pub(super) struct OutStructs<T> {
    first: OutStruct<T>,
    count: usize,
}

impl<T: Sized32> OutStructs<T> {
    /// # Safety
    /// `pointer` is NULL or valid for reads and writes of `count` times as many bytes as its first field says, one at least, for
    /// the rest of the exported function.
    pub(super) unsafe fn new(pointer: *mut T, count: usize) -> Result<OutStructs<T>> {
        // SAFETY: by contract, `pointer` is NULL or valid for at least one element.
        let first = unsafe { OutStruct::new(pointer) }?;
        Ok(OutStructs { first, count })
    }

    /// Writes an element, with its size.
    pub(super) fn set(&self, index: usize, value: &T) {
        assert!(index < self.count);
        let size = self.first.size;
        let to = self.first.pointer.as_ptr().wrapping_byte_add(index * size);
        let Some(pointer) = NonNull::new(to) else {
            return;
        };
        // SAFETY: the element lies in the array by `new`'s contract, and is aligned for a `u32` because the size is a multiple of
        // its alignment; it begins with its size.
        unsafe { pointer.cast::<u32>().write(size as u32) };
        OutStruct { pointer, size }.set(value);
    }
}

/// Copies a result into a caller's buffer. The number of elements is written in any case but an
/// error of the pointers; `BufferTooSmall` if they do not fit, with nothing else written.
pub(super) fn fill<T: Copy>(
    values: &[T],
    buffer: &mut [T],
    count: &Out<usize>,
    name: &str,
) -> Result<()> {
    count.set(values.len());
    match buffer.get_mut(..values.len()) {
        Some(part) => part.copy_from_slice(values),
        None => fail!(
            BufferTooSmall,
            "{name} has room for {}, but {} are needed",
            buffer.len(),
            values.len()
        ),
    }
    Ok(())
}

#[cfg(test)]
#[path = "boundary_tests.rs"]
mod tests;
