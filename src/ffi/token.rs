//! A token that was decoded, and what is known of it.

use super::boundary::Sized32;
use super::error::ember_status;
use super::tokenizer::NO_TOKEN;
use crate::engine::Session;
use crate::error::Status;

/// Flags of `ember_token`. Later versions may have more.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_token_flags {
    /// The token ends an answer (`ember_token_is_end`).
    EMBER_TOKEN_ENDS = 1,
    /// The session's grammar allowed no other token, so it was not sampled.
    EMBER_TOKEN_FORCED = 2,
    /// `logprob` is set.
    EMBER_TOKEN_HAS_LOGPROB = 4,
    /// The token was an accepted draft (`ember_session_set_speculation`).
    EMBER_TOKEN_DRAFTED = 8,
}

/// A token that was decoded. The caller sets `struct_size`, the function that decodes the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_token {
    /// `sizeof(ember_token)`, set by the caller; of an array of tokens, in its first element.
    pub struct_size: u32,
    /// The token's id.
    pub id: u32,
    /// Values of `enum ember_token_flags`.
    pub flags: u32,
    /// In a batch, the status of this session; otherwise `EMBER_OK`.
    pub status: ember_status,
    /// The natural logarithm of the token's probability in the model's own distribution, before sampling settings change it, if
    /// `ember_sampling_options.logprobs` is not 0. `ember_session_logprobs` has those of other tokens.
    pub logprob: f32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: `repr(C)`; six numbers of 4 bytes have no padding; zero is a value of each; the size comes first.
unsafe impl Sized32 for ember_token {
    const NAME: &'static str = "ember_token";
}

impl ember_token {
    /// The token that a session has decoded last.
    pub(super) fn of(session: &Session, id: u32) -> ember_token {
        let mut token = ember_token::zeroed();
        token.id = id;
        let tokenizer = session.model().tokenizer();
        if tokenizer.is_ok_and(|tokenizer| tokenizer.is_end(id)) {
            token.flags |= ember_token_flags::EMBER_TOKEN_ENDS as u32;
        }
        if session.is_last_forced() {
            token.flags |= ember_token_flags::EMBER_TOKEN_FORCED as u32;
        }
        if session.is_last_drafted() {
            token.flags |= ember_token_flags::EMBER_TOKEN_DRAFTED as u32;
        }
        if let Some(logprobs) = session.logprobs_asked() {
            token.flags |= ember_token_flags::EMBER_TOKEN_HAS_LOGPROB as u32;
            token.logprob = logprobs.chosen;
        }
        token
    }

    /// No token, of a session that has failed or a text that is over.
    pub(super) fn none(status: Status) -> ember_token {
        let mut token = ember_token::zeroed();
        token.id = NO_TOKEN;
        token.status = status as ember_status;
        token
    }
}
