//! A thread's variables of this library. glibc makes those of a library that was opened with `dlopen` when the thread first uses
//! one, and ends the process if there is no memory for it. So the first call of each thread sees to it that there is.

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::ptr::{NonNull, from_ref, without_provenance};
use std::sync::atomic::{AtomicU32, Ordering};

/// More than the variables and what glibc keeps about them take. Not so little that glibc keeps it for requests of its size alone
/// once it is freed.
const ROOM_BYTES: usize = 8 << 10;

/// The key of a mark in each thread whose variables are there, plus 1; 0 before there is one. glibc has room for the marks of a
/// process's first keys.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Whether this thread can use its variables. Touches none of them. Costs a few nanoseconds but for a thread's first call.
pub(crate) fn can_be_used() -> bool {
    let key = key();
    // SAFETY: a key that was made and is never deleted.
    if key.is_some_and(|key| unsafe { !libc::pthread_getspecific(key).is_null() }) {
        return true;
    }
    if !are_there() && !can_be_made() {
        return false;
    }
    if let Some(key) = key {
        // SAFETY: as above. If there is no room for the mark, the next call looks again.
        unsafe { libc::pthread_setspecific(key, without_provenance(1)) };
    }
    true
}

fn key() -> Option<libc::pthread_key_t> {
    let known = KEY.load(Ordering::Acquire);
    if known > 0 {
        return Some(known - 1);
    }
    let mut key = 0;
    // SAFETY: a place for a key.
    if unsafe { libc::pthread_key_create(&mut key, None) } != 0 {
        return None;
    }
    match KEY.compare_exchange(0, key + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(key),
        Err(known) => {
            // SAFETY: made above, and known to nobody.
            unsafe { libc::pthread_key_delete(key) };
            Some(known - 1)
        }
    }
}

/// Whether the system has memory for them. What was had and given back is had again by the next request of this thread.
fn can_be_made() -> bool {
    // SAFETY: any size may be asked for, and what was given is freed once.
    unsafe {
        // Compilers take a pair of these out, and say that there was memory.
        let room = NonNull::new(black_box(libc::malloc(ROOM_BYTES)));
        if let Some(room) = room {
            libc::free(room.as_ptr());
        }
        room.is_some()
    }
}

/// Whether they were made already, as they are from a thread's start if the program is linked to the library.
fn are_there() -> bool {
    let mut there = false;
    // SAFETY: `look` is called before this returns, with the place as its data.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut there).cast::<c_void>()) };
    there
}

/// Looks whether a module of the process is the one that this is in; then at its variables.
///
/// # Safety
/// As `dl_iterate_phdr` calls it, with a `bool` as data.
unsafe extern "C" fn look(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    there: *mut c_void,
) -> c_int {
    // SAFETY: valid during the call.
    let info = unsafe { &*info };
    let headers = match NonNull::new(info.dlpi_phdr.cast_mut()) {
        // SAFETY: the module's headers, as many as it says.
        Some(first) => unsafe {
            std::slice::from_raw_parts(first.as_ptr(), usize::from(info.dlpi_phnum))
        },
        None => &[],
    };
    let here = from_ref(&KEY).addr() as u64;
    let is_here = headers.iter().any(|header| {
        #[allow(clippy::useless_conversion)]
        let (at, len) = (
            u64::from(info.dlpi_addr).wrapping_add(u64::from(header.p_vaddr)),
            u64::from(header.p_memsz),
        );
        header.p_type == libc::PT_LOAD && here.wrapping_sub(at) < len
    });
    if is_here {
        // SAFETY: the caller of `dl_iterate_phdr` has given a place for it.
        unsafe { *there.cast::<bool>() = !info.dlpi_tls_data.is_null() };
    }
    c_int::from(is_here)
}
