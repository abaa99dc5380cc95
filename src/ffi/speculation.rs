//! Several tokens a step: drafts that are verified.

use super::boundary::{OutStruct, Sized32, call, check_reserved, read_struct};
use super::error::{ember_error, ember_status};
use super::model::{ember_model, model};
use super::session::{ember_session, with_session};
use crate::engine::speculate::DraftOptions;
use crate::error::{Result, fail};

/// Values of `ember_speculation_options.source`: where drafts come from.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_draft_source {
    /// No drafts: every token takes a step.
    EMBER_DRAFTS_NONE = 0,
    /// What followed the last tokens where they occurred earlier in the context. Good for text that repeats parts of
    /// its prompt, such as code, JSON and summaries. Needs no model.
    EMBER_DRAFTS_NGRAM = 1,
    /// A smaller model with the same vocabulary, or an EAGLE-3 head that was trained for the session's model: `draft_model`.
    EMBER_DRAFTS_MODEL = 2,
    /// The model's own head for multi-token prediction (MTP), loaded by `EMBER_MODEL_DRAFT_HEADS`: one layer that reads the hidden
    /// states of the model. Not for a model that is split, by layers or by tensors.
    EMBER_DRAFTS_HEADS = 3,
}

/// How a session drafts. Zero in every field but `struct_size` means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_speculation_options {
    /// `sizeof(ember_speculation_options)`.
    pub struct_size: u32,
    /// A value of `enum ember_draft_source`.
    pub source: u32,
    /// The most drafts in a step, up to 31 on a CPU and 15 on a GPU; 0 means 16, or 15 on a GPU.
    pub max_drafts: u32,
    /// 0 chooses the number of drafts in each step, from none to `max_drafts`, by how many were right so far and
    /// by how long steps have taken. 1 verifies `max_drafts` whenever the source has as many.
    pub always: u32,
    /// For `EMBER_DRAFTS_NGRAM`: how many tokens must match, up to 32; 0 means 2.
    pub min_match: u32,
    /// Must be 0.
    pub reserved: u32,
    /// For `EMBER_DRAFTS_MODEL`: the model; NULL otherwise. The session keeps it alive and has a session of it beside
    /// its own, with a context of the same length. An EAGLE-3 head (a folder that `ember_model_load` has loaded) has no sessions: it
    /// reads the hidden states of the session's model, and both must be on the same device, the model as a whole. On a CPU it runs on
    /// the threads of the model. On a GPU its weights are beside the model's from the first session that is given the head until one of the two models
    /// is freed; they count to the `memory_limit` of the session's model, and are evicted and resumed with that.
    pub draft_model: *const ember_model,
}

// SAFETY: `repr(C)`; 6 * 4 bytes and a word, without padding but at the end of 32-bit builds' structs; zero is a value of
// each; the size comes first.
unsafe impl Sized32 for ember_speculation_options {
    const NAME: &'static str = "ember_speculation_options";
}

/// Counts of a session's drafts since `ember_session_set_speculation`. The caller sets `struct_size`,
/// `ember_session_speculation_info` the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_speculation_details {
    /// `sizeof(ember_speculation_details)`, set by the caller.
    pub struct_size: u32,
    /// A value of `enum ember_draft_source`.
    pub source: u32,
    /// The most drafts in a step.
    pub max_drafts: u32,
    /// Number of drafts chosen for the last step; 0 if drafting was not worthwhile.
    pub depth: u32,
    /// Steps in which drafts were verified.
    pub steps: u64,
    /// Drafts that were verified.
    pub drafted: u64,
    /// Drafts that were accepted. Each saved the session one step.
    pub accepted: u64,
}

// SAFETY: `repr(C)`; 4 * 4 + 3 * 8 bytes without padding; numbers only; the size comes first.
unsafe impl Sized32 for ember_speculation_details {
    const NAME: &'static str = "ember_speculation_details";
}

/// Makes a session draft (speculative decoding): a step evaluates several tokens, drafts of what comes next, and keeps those that would
/// have been chosen anyway. Drafts change the speed and nothing else. Tokens, log-probabilities and logits are the same with and without
/// them, for greedy and for sampled tokens, with penalties, lists of tokens and grammars. `options` may be NULL, which ends drafting, as
/// `EMBER_DRAFTS_NONE` does.
///
/// `ember_decode` and `ember_generate` draft. `ember_decode` still returns one token; the ones that a step has chosen
/// beyond it are returned by the following calls at once, and are dropped by a call that changes the session in another
/// way. Started decodes draft where no grammar is set; they never wait, so a draft model, or a head, is asked on a thread of the session's model; where
/// that is in parts, they draft from the context only. Forks draft as their origin does; a restored session does not.
///
/// Batches draft, too, unless the model is in parts: the drafts of all sessions share the pass, which has room for 32 tokens in all. Because a batch
/// returns one token of each session, it saves a pass only where all of its sessions have a token that was chosen ahead; the number of
/// drafts is chosen by that. Started batches ask no draft model, and no head, for a session with a grammar.
///
/// On a GPU, drafts take memory of their own (16 rows of logits, and of what lies between the layers of a step), which is reserved here.
/// Those of a model with recurrent layers take a state of these layers for each draft of a step, and one more. A head takes
/// a KV cache of one layer, and room for the hidden states of as many positions as the context has, up to 4096. What follows a prompt longer
/// than that, or one that was read before this call, is drafted from the last 4096 positions, or from those that follow. An EAGLE-3 head
/// takes room for up to 2048 positions, three hidden states each; the first session of a model that is given it on a GPU brings its weights
/// there.
///
/// A model that is in parts, on any devices, drafts as one on a single device does. So does one that is split by tensors over GPUs of
/// this process; one of a group (`ember_group_create`) does not.
///
/// Errors: `EMBER_UNSUPPORTED` if the session's model is one of a group, and for `EMBER_DRAFTS_HEADS` if
/// the model has no heads, or they were not loaded, or it is in parts, and for an EAGLE-3 head if the session's model is not on one device as a whole;
/// `EMBER_INVALID_ARGUMENT` names the field, the token in which the vocabulary of `draft_model` differs, or what makes it an EAGLE-3 head
/// for another model or on another device; for `EMBER_DRAFTS_MODEL` those of
/// `ember_session_create`; `EMBER_BUSY`; `EMBER_DECODE_PENDING`; `EMBER_OUT_OF_MEMORY`. After each of them the session
/// drafts as before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_set_speculation(
    session: *mut ember_session,
    options: *const ember_speculation_options,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `options` is as the header demands.
        let given = unsafe { read_struct(options) }?;
        let options = engine_options(&given)?;
        match given.source {
            0 => with_session(session, |session| session.clear_drafts()),
            1 => with_session(session, |session| {
                session.set_ngram_drafts(given.min_match as usize, &options)
            }),
            3 => with_session(session, |session| session.set_head_drafts(&options)),
            _ => {
                let drafts = model(given.draft_model)?;
                with_session(session, |session| {
                    session.set_model_drafts(&drafts, &options)
                })
            }
        }
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

fn engine_options(given: &ember_speculation_options) -> Result<DraftOptions> {
    if given.source > 3 {
        fail!(
            InvalidArgument,
            "source is {}, which is no ember_draft_source",
            given.source
        );
    }
    let only = |field, value: usize, source| {
        if value != 0 && given.source != source {
            fail!(
                InvalidArgument,
                "{field} is set, but source is {}",
                given.source
            );
        }
        Ok(())
    };
    only("min_match", given.min_match as usize, 1)?;
    only("draft_model", given.draft_model.addr(), 2)?;
    check_reserved(given.reserved, ember_speculation_options::NAME)?;
    if given.always > 1 {
        fail!(InvalidArgument, "always is {}, not 0 or 1", given.always);
    }
    Ok(DraftOptions {
        most: given.max_drafts as usize,
        always: given.always == 1,
    })
}

/// Writes counts of a session's drafts to `out`, whose `struct_size` the caller has set.
///
/// Errors: `EMBER_BUSY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_speculation_info(
    session: *mut ember_session,
    out: *mut ember_speculation_details,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `out` is as the header demands.
        let out = unsafe { OutStruct::new(out) }?;
        let speculation = with_session(session, |session| Ok(session.speculation()))?;
        let mut d = ember_speculation_details::zeroed();
        if let Some(s) = speculation {
            d.source = s.source as u32;
            d.max_drafts = s.most as u32;
            d.depth = s.depth as u32;
            d.steps = s.stats.steps;
            d.drafted = s.stats.drafted;
            d.accepted = s.stats.accepted;
        }
        out.set(&d);
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}
