//! Where the time of a decode goes.

use super::boundary::{Out, call, slice_mut};
use super::error::{copy_text, ember_error, ember_status};
use super::session::{ember_session, with_session};
use crate::backend::Work;
use crate::error::fail;
use std::ffi::c_char;

/// Kinds of work in a decode. Later versions may have more.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_work {
    /// Looking up the token's embedding.
    EMBER_WORK_EMBED = 0,
    /// Norms, and encoding of what the products read.
    EMBER_WORK_NORM = 1,
    /// Queries, keys and values.
    EMBER_WORK_QKV = 2,
    /// Rope, appending to the KV cache, attention.
    EMBER_WORK_ATTENTION = 3,
    /// Output projection of attention.
    EMBER_WORK_OUTPUT = 4,
    /// The first products of the feed-forward, and the activation.
    EMBER_WORK_GATE_UP = 5,
    /// The last product of the feed-forward.
    EMBER_WORK_DOWN = 6,
    /// Final norm and logits.
    EMBER_WORK_HEAD = 7,
    /// Choosing the token.
    EMBER_WORK_SAMPLE = 8,
}

// The numbers of the header are those of the backends.
const _: () = {
    assert!(ember_work::EMBER_WORK_EMBED as u32 == Work::Embed as u32);
    assert!(ember_work::EMBER_WORK_NORM as u32 == Work::Norm as u32);
    assert!(ember_work::EMBER_WORK_QKV as u32 == Work::Qkv as u32);
    assert!(ember_work::EMBER_WORK_ATTENTION as u32 == Work::Attention as u32);
    assert!(ember_work::EMBER_WORK_OUTPUT as u32 == Work::Output as u32);
    assert!(ember_work::EMBER_WORK_GATE_UP as u32 == Work::GateUp as u32);
    assert!(ember_work::EMBER_WORK_DOWN as u32 == Work::Down as u32);
    assert!(ember_work::EMBER_WORK_HEAD as u32 == Work::Head as u32);
    assert!(ember_work::EMBER_WORK_SAMPLE as u32 == Work::Sample as u32);
};

/// What one kind of work took in a decode. Its size and layout never change.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_profile_entry {
    /// A value of `enum ember_work`.
    pub work: u32,
    /// How often it was done, over all layers.
    pub calls: u32,
    /// Time of all calls together, in microseconds.
    pub microseconds: f64,
    /// Bytes of weights and KV cache that they read together; by `microseconds`, 1000 of them are
    /// a GB/s.
    pub bytes: u64,
    /// A short name, for example `gate_up`, ended by a NUL.
    pub name: [c_char; 16],
}

/// Evaluates the last token of the context again, more slowly than a decode does, and writes how long each kind of
/// work took to `entries`, and the number of entries to `count`. `capacity` is the number of elements that `entries`
/// has room for; 16 are enough for this version. Work that a device does at the same time is counted as the kind that
/// reads more memory. The session is unchanged, and decodes that are not profiled are not slowed down.
///
/// Errors: `EMBER_BUFFER_TOO_SMALL` if there may be more entries than `capacity`; `EMBER_NO_TOKENS` for an empty
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
                slice_mut(entries, capacity, "entries")?,
            )
        };
        with_session(session, |session| {
            let most = Work::ALL.len();
            if capacity < most {
                count.set(most);
                fail!(
                    BufferTooSmall,
                    "entries has room for {capacity}, but {most} are needed"
                );
            }
            let profile = session.profile()?;
            let mut written = 0;
            for (entry, (work, from)) in entries.iter_mut().zip(profile.done()) {
                let mut name = [0; 16];
                copy_text(work.name(), &mut name);
                *entry = ember_profile_entry {
                    work: work as u32,
                    calls: from.calls,
                    microseconds: from.microseconds,
                    bytes: from.bytes,
                    name,
                };
                written += 1;
            }
            count.set(written);
            Ok(())
        })
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}
