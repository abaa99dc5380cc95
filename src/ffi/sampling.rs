//! How a session's tokens are chosen.

use super::boundary::{Out, Sized32, call, fill, read_struct, slice, slice_mut, text};
use super::error::{ember_error, ember_status};
use super::session::{ember_session, with_session};
use crate::engine::Model;
use crate::engine::breakers::DEFAULT_BREAKERS;
use crate::engine::sampling::{Breakers, Dry, MAX_LOGPROBS, Sampling, TokenRules};
use crate::error::{Error, Result, fail};
use crate::memory::{self, Room};
use arrayvec::ArrayVec;
use std::ffi::c_char;
use std::sync::Arc;

/// As many as there are log-probabilities.
type Few<T> = ArrayVec<T, MAX_LOGPROBS>;

/// What is added to the logit of a token: an element of `ember_sampling_options.logit_bias`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_logit_bias {
    /// The token's id.
    pub token: u32,
    /// Any number but NaN and plus infinity; minus infinity bans the token.
    pub bias: f32,
}

/// A sequence breaker for DRY (`ember_sampling_options.dry_breakers`): a repetition does not extend across it. Set
/// either `text` or `tokens`; the other must be NULL.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_dry_breaker {
    /// UTF-8 of 1 to 64 bytes, or NULL. It matches every token that contains it, and every sequence of tokens that
    /// spells it across token boundaries.
    pub text: *const c_char,
    /// Length of `text` in bytes.
    pub text_len: usize,
    /// Token ids, or NULL.
    pub tokens: *const u32,
    /// Number of `tokens`.
    pub token_count: usize,
}

/// How the next token is chosen. Zero in every field but `struct_size` means the default, which is
/// to take the most probable token.
///
/// The stages, in this order. Later versions may add stages between them that are off by default:
///
/// 1. `logit_bias` is added to the model's logits.
/// 2. Tokens among the last `penalty_window` tokens of the context, prompt and output, are penalized:
///    a positive logit is divided by `repeat_penalty`, another one multiplied by it; then
///    `frequency_penalty` times the number of occurrences is taken from it, then `presence_penalty`.
/// 3. DRY: tokens that would lengthen a repetition are penalized, see `dry_multiplier`.
/// 4. Tokens in `banned`, and tokens that are not in a non-empty `allowed` list, are removed.
/// 5. A `temperature` of 0 takes the largest logit (of equal ones the smaller id) and ends here.
/// 6. `top_k` keeps the tokens of the k largest logits.
/// 7. `typical_p` keeps those whose surprise, minus the logarithm of their probability, is closest
///    to the entropy, until their probabilities sum to it.
/// 8. `top_p` keeps the most probable ones, until their probabilities sum to it.
/// 9. `min_p` keeps those with at least that share of the largest probability that is left.
/// 10. One of what is left is drawn, in proportion to `exp(logit / temperature)`.
///
/// Each of stages 6 to 9 looks at the probabilities of what the one before left (softmax at
/// temperature 1), and leaves one token at least. The choice depends on nothing but the logits, these
/// settings, the tokens of the context and the position, so rewinding and decoding again gives the
/// same tokens. Sums are exact, so that every device makes the same choice from the same logits.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_sampling_options {
    /// `sizeof(ember_sampling_options)`.
    pub struct_size: u32,
    /// Keep only this many of the best tokens; 0 keeps all.
    pub top_k: u32,
    /// 0 always takes the best token (greedy); 1 follows the model's probabilities.
    pub temperature: f32,
    /// Keep the best tokens that reach this probability together; 0 and 1 keep all.
    pub top_p: f32,
    /// Keep tokens of at least this share of the best token's probability; 0 keeps all.
    pub min_p: f32,
    /// Keep the most typical tokens that reach this probability together; 0 and 1 keep all.
    pub typical_p: f32,
    /// How many of the last tokens the three penalties look at; 0 means 64, `UINT32_MAX` the whole
    /// context.
    pub penalty_window: u32,
    /// More than 1 makes repetitions less probable; 0 and 1 are off.
    pub repeat_penalty: f32,
    /// Taken once from tokens that occur; 0 is off; less than 0 favours them.
    pub presence_penalty: f32,
    /// Taken from tokens as often as they occur; 0 is off; less than 0 favours them.
    pub frequency_penalty: f32,
    /// DRY ("don't repeat yourself"): if the last n tokens occur earlier in the window, n being the
    /// largest such number, not beyond a breaker, and at least `dry_allowed_length`, then
    /// `dry_multiplier * dry_base^(n - dry_allowed_length)` is taken from the token that followed them
    /// there. 0 is off.
    pub dry_multiplier: f32,
    /// 1 or more; 0 means 1.75.
    pub dry_base: f32,
    /// 0 means 2.
    pub dry_allowed_length: u32,
    /// How many of the last tokens DRY looks at; 0 means the whole context.
    pub dry_window: u32,
    /// Without `dry_breakers`, a line end, a colon, a double quote and an asterisk are breakers; 1
    /// means that there are none then. Models without a tokenizer have none of their own.
    pub dry_no_breakers: u32,
    /// Number of most probable tokens, up to 64, that `ember_session_logprobs` returns after each decode besides the
    /// chosen one. 0 turns log-probabilities off.
    pub logprobs: u32,
    /// Seed of the draws. 0 is a seed like any other.
    pub seed: u64,
    /// Values to add to the logits of single tokens. If a token occurs twice, the sum is added.
    pub logit_bias: *const ember_logit_bias,
    /// Number of elements.
    pub logit_bias_count: usize,
    /// Ids of tokens that are never chosen.
    pub banned: *const u32,
    /// Number of ids.
    pub banned_count: usize,
    /// If the list is not empty, only these tokens can be chosen, except those that are banned as well. A single
    /// token is always chosen.
    pub allowed: *const u32,
    /// Number of ids.
    pub allowed_count: usize,
    /// Sequences that a repetition does not extend across. A token that is a breaker by itself is not penalized.
    pub dry_breakers: *const ember_dry_breaker,
    /// Number of elements.
    pub dry_breaker_count: usize,
}

// SAFETY: `repr(C)`; 16 * 4 + 8 bytes and 8 words without padding; numbers and the caller's pointers;
// the size comes first.
unsafe impl Sized32 for ember_sampling_options {
    const NAME: &'static str = "ember_sampling_options";
}

/// `value`, or what 0 stands for.
fn or<T: Default + PartialEq>(value: T, default: T) -> T {
    if value == T::default() {
        default
    } else {
        value
    }
}

impl ember_sampling_options {
    /// The settings, which [`Sampling::check`] has not seen.
    pub(super) fn settings(&self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: or(self.top_p, 1.0),
            min_p: self.min_p,
            typical_p: or(self.typical_p, 1.0),
            penalty_window: or(self.penalty_window, 64),
            repeat_penalty: or(self.repeat_penalty, 1.0),
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            dry: Dry {
                multiplier: self.dry_multiplier,
                base: or(self.dry_base, Dry::OFF.base),
                allowed_length: or(self.dry_allowed_length, Dry::OFF.allowed_length),
                window: or(self.dry_window, u32::MAX),
            },
            logprobs: self.logprobs,
            seed: self.seed,
        }
    }

    /// The rules for single tokens of a model, if there are any.
    ///
    /// # Safety
    /// The arrays must be as the header demands.
    pub(super) unsafe fn rules(&self, model: &Model) -> Result<Option<Arc<TokenRules>>> {
        // SAFETY: by contract, the arrays are as the header demands.
        let (bias, banned, allowed, breakers) = unsafe {
            (
                slice(self.logit_bias, self.logit_bias_count, "logit_bias")?,
                slice(self.banned, self.banned_count, "banned")?,
                slice(self.allowed, self.allowed_count, "allowed")?,
                slice(self.dry_breakers, self.dry_breaker_count, "dry_breakers")?,
            )
        };
        if self.dry_no_breakers > 1 {
            fail!(
                InvalidArgument,
                "dry_no_breakers is {}, but must be 0 or 1",
                self.dry_no_breakers
            );
        }
        let mut sequences = Vec::new();
        for (i, breaker) in breakers.iter().enumerate() {
            // SAFETY: by contract, the arrays are as the header demands.
            unsafe { breaker.sequences(model, &mut sequences) }.map_err(|e| {
                Error::new(
                    e.status,
                    format!("dry_breakers of index {i}: {}", e.message),
                )
                .at(i)
            })?;
        }
        // They take a walk through the vocabulary, so only where they can matter.
        let defaults = breakers.is_empty() && self.dry_no_breakers == 0;
        if defaults && self.settings().dries() && model.tokenizer().is_ok() {
            for text in DEFAULT_BREAKERS {
                model.breaker_sequences(text, &mut sequences)?;
            }
        }
        if bias.is_empty() && banned.is_empty() && allowed.is_empty() && sequences.is_empty() {
            return Ok(None);
        }
        let n_vocab = model.details().n_vocab;
        let room = Room::new((4 << 20) + 64 * n_vocab)?;
        let _in_room = room.enter();
        let breakers = match &sequences[..] {
            [] => Breakers::default(),
            sequences => Breakers::new(n_vocab, sequences.iter().map(|s| &s[..]))?,
        };
        let bias = bias.iter().map(|b| (b.token, b.bias));
        TokenRules::new(n_vocab, bias, banned, allowed, breakers).map(|rules| Some(Arc::new(rules)))
    }
}

impl ember_dry_breaker {
    /// Adds what the breaker stands for.
    ///
    /// # Safety
    /// The arrays must be as the header demands.
    unsafe fn sequences(&self, model: &Model, out: &mut Vec<Vec<u32>>) -> Result<()> {
        // SAFETY: by contract, the arrays are as the header demands.
        let (text, tokens) = unsafe {
            (
                text(self.text, self.text_len, "text")?,
                slice(self.tokens, self.token_count, "tokens")?,
            )
        };
        match (text, tokens) {
            ("", []) => fail!(InvalidArgument, "neither text nor tokens"),
            ("", tokens) => {
                model.check_tokens(tokens)?;
                out.push(tokens.to_vec());
                Ok(())
            }
            (text, []) => model.breaker_sequences(text, out),
            _ => fail!(InvalidArgument, "both text and tokens"),
        }
    }
}

/// Changes how the next tokens are chosen. `options` may be NULL for the defaults. Arrays are copied.
///
/// Errors: `EMBER_INVALID_ARGUMENT` names the option; `EMBER_INVALID_TOKEN` names the list and the
/// token; `EMBER_INVALID_UTF8` in a breaker of text, `EMBER_UNSUPPORTED` for one if the model has no
/// tokenizer; `EMBER_BUSY`;
/// `EMBER_DECODE_PENDING`; `EMBER_OUT_OF_MEMORY`. After each of them the settings are as before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_set_sampling(
    session: *mut ember_session,
    options: *const ember_sampling_options,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `options` is as the header demands.
        let options = unsafe { read_struct(options) }?;
        with_session(session, |session| {
            let settings = options.settings();
            settings.check()?;
            // SAFETY: the arrays of `options` are as the header demands.
            let rules = unsafe { options.rules(session.model()) }?;
            memory::check()?;
            session.set_sampling(settings, rules)
        })
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Returns the log-probability of the token that the last decode returned (`ember_decode`, `ember_decode_poll`,
/// `ember_decode_batch`), and those of the most probable tokens, as many as `ember_sampling_options.logprobs` asks
/// for, in descending order. They are natural logarithms of the probabilities at temperature 1, before any sampling
/// option changes them. The value of the returned token is written to `chosen`; ids are written to `tokens` and their
/// values to `logprobs`, both arrays of `capacity` elements, and their number to `count`.
///
/// Errors: `EMBER_NOTHING_PENDING` if no token was decoded yet, or the options of the last one did
/// not ask for it; `EMBER_BUFFER_TOO_SMALL`; `EMBER_BUSY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_session_logprobs(
    session: *mut ember_session,
    chosen: *mut f32,
    tokens: *mut u32,
    logprobs: *mut f32,
    capacity: usize,
    count: *mut usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: the places and arrays are as the header demands.
        let (chosen, tokens, values, count) = unsafe {
            (
                Out::new(chosen, "chosen")?,
                slice_mut(tokens, capacity, "tokens")?,
                slice_mut(logprobs, capacity, "logprobs")?,
                Out::new(count, "count")?,
            )
        };
        with_session(session, |session| {
            let Some(found) = session.logprobs() else {
                fail!(
                    NothingPending,
                    "the last decode did not report log-probabilities"
                );
            };
            let (ids, logs): (Few<u32>, Few<f32>) = found.top.iter().copied().unzip();
            fill(&ids, tokens, &count, "tokens")?;
            fill(&logs, values, &count, "logprobs")?;
            chosen.set(found.chosen);
            Ok(())
        })
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}
