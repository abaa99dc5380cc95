//! Where the time of a decode goes.

use super::boundary::{Out, OutStructs, Sized32, call};
use super::error::{copy_text, ember_error, ember_status};
use super::session::{ember_session, with_session};
use crate::backend::Work;
use crate::error::fail;
use std::ffi::c_char;

/// What one kind of work took in a decode. Kinds are told apart by their names: `embed` (the token's embedding), `norm` (norms, and
/// encoding of what the products read), `qkv` (queries, keys and values), `attention` (rope, appending to the KV cache,
/// attention), `output` (its output projection), `gate_up` (the first products of the feed-forward, and the activation), `down` (its
/// last product), `head` (final norm and logits) and `sample` (choosing the token). Later versions may have others.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_profile_entry {
    /// `sizeof(ember_profile_entry)`, set by the caller in the first element of the array.
    pub struct_size: u32,
    /// How often it was done, over all layers.
    pub calls: u32,
    /// Time of all calls together, in microseconds.
    pub microseconds: f64,
    /// Bytes of weights and KV cache that they read together; by `microseconds`, 1000 of them are
    /// a GB/s.
    pub bytes: u64,
    /// The kind of work, for example `gate_up`, ended by a NUL.
    pub name: [c_char; 16],
}

// SAFETY: `repr(C)`; two u32, two numbers of 8 bytes and 16 bytes have no padding; numbers only; the size comes first.
unsafe impl Sized32 for ember_profile_entry {
    const NAME: &'static str = "ember_profile_entry";
}

/// Evaluates the last token of the context again, more slowly than a decode does, and writes how long each kind of
/// work took to `entries`, and the number of entries to `count`. `capacity` is the number of elements that `entries`
/// has room for; they are as far apart as `struct_size` of the first one says. With a `capacity` of 0, the call only writes the
/// number that is enough. Work that a device does at the same time is counted as the kind that
/// reads more memory. The session is unchanged, and decodes that are not profiled are not slowed down.
///
/// Errors: `EMBER_BUFFER_TOO_SMALL` if there may be more entries than `capacity`; `EMBER_NO_INPUT` for an empty
/// context; `EMBER_UNSUPPORTED` by devices that cannot; `EMBER_BUSY`; `EMBER_DECODE_PENDING`; `EMBER_INTERRUPTED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_profile(
    session: *mut ember_session,
    entries: *mut ember_profile_entry,
    capacity: usize,
    count: *mut usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `count` and `entries` are as the header demands.
        let (count, entries) = unsafe {
            (
                Out::new(count, "count")?,
                match capacity {
                    0 => None,
                    _ => Some(OutStructs::new(entries, capacity)?),
                },
            )
        };
        with_session(session, |session| {
            let most = Work::ALL.len();
            let Some(entries) = entries.filter(|_| capacity >= most) else {
                count.set(most);
                fail!(
                    BufferTooSmall,
                    "entries has room for {capacity}, but {most} are needed"
                );
            };
            let profile = session.profile()?;
            let mut written = 0;
            for (work, from) in profile.done() {
                let mut entry = ember_profile_entry::zeroed();
                entry.calls = from.calls;
                entry.microseconds = from.microseconds;
                entry.bytes = from.bytes;
                copy_text(work.name(), &mut entry.name);
                entries.set(written, &entry);
                written += 1;
            }
            count.set(written);
            Ok(())
        })
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}
