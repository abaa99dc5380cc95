//! Prompt in, text out: the loop of decodes that every program needs.

use super::boundary::{
    Out, OutStruct, Sized32, call, check_flags, fill, read_struct, slice, slice_mut,
};
use super::error::{NO_INDEX, ember_error, ember_status};
use super::session::{ember_session, with_session};
use super::text_stream::{ember_stop, stop_strings};
use super::token::ember_token;
use super::tokenizer::NO_TOKEN;
use crate::engine::{End, GenerateOptions, Generated, Session};
use crate::error::{Error, Result, Status, fail};
use std::ffi::{c_char, c_void};

/// Flags of `ember_generate_options`, to be or-ed.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_generate_flags {
    /// Spell the names of control tokens in the text instead of leaving them out.
    EMBER_GENERATE_SHOW_SPECIAL = 1,
    /// Continue after tokens that end an answer.
    EMBER_GENERATE_IGNORE_END = 2,
    /// The output is a separate text, such as an answer in a chat, not a continuation of the prompt: leave out the
    /// space that SentencePiece tokenizers put before every text.
    EMBER_GENERATE_NEW_TEXT = 4,
}

/// Why a generation ended: values of `ember_generate_details.end`. Later versions may have more.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_generate_end {
    /// `max_tokens` of the options were generated.
    EMBER_END_LIMIT = 1,
    /// The last token ends an answer (`ember_token_is_end`). It is in the context; the callback did not get it.
    EMBER_END_TOKEN = 2,
    /// A stop string is complete. Its tokens are in the context, nothing of it is in the text.
    EMBER_END_STOP = 3,
    /// The callback returned a value other than 0, or `ember_generate_finish` came before any other reason.
    EMBER_END_CALLBACK = 4,
    /// `ember_session_interrupt`. The tokens generated before it are in the context.
    EMBER_END_INTERRUPTED = 5,
    /// The context has no room for another token.
    EMBER_END_CONTEXT_FULL = 6,
}

/// Receives a piece of the text: `len` bytes of UTF-8, whole characters, and the token that was generated last. Both are valid during
/// the call; the token has the `struct_size` of the library.
/// It is called once for each token, in order, also where that token makes no text yet (`len` is 0) because it ends within
/// a character or a stop string could begin with it. It is called once more, with the id `EMBER_NO_TOKEN`, if text was held back until
/// the end.
///
/// Return 0 to continue and 1 to end the generation. Every other value ends it, too, but a later version may give it another meaning.
/// Called on the thread that called `ember_generate`. It may call every function of the library, but those that need this session for
/// themselves return `EMBER_BUSY`. It must return normally: no `longjmp`, no exception.
pub type ember_piece_fn = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        text: *const c_char,
        len: usize,
        token: *const ember_token,
    ) -> i32,
>;

/// What to generate, and when to end. Zero in every field but `struct_size` means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_generate_options {
    /// `sizeof(ember_generate_options)`.
    pub struct_size: u32,
    /// Values of `enum ember_generate_flags`.
    pub flags: u32,
    /// The most tokens to generate; 0 means as many as the context has room for.
    pub max_tokens: u64,
    /// Tokens that are appended to the context first. There may be none if the context has some.
    pub prompt: *const u32,
    /// Number of tokens in `prompt`.
    pub prompt_count: usize,
    /// Strings at which the text ends, at most 256.
    pub stops: *const ember_stop,
    /// Number of `stops`.
    pub stop_count: usize,
    /// Receives the text; may be NULL.
    pub piece: ember_piece_fn,
    /// Passed to `piece`; may be NULL.
    pub user: *mut c_void,
}

// SAFETY: `repr(C)`; two u32, a u64 and six words have no padding; zero is a value of each (no function, NULL
// pointers); the size comes first.
unsafe impl Sized32 for ember_generate_options {
    const NAME: &'static str = "ember_generate_options";
}

/// What was generated. The caller sets `struct_size`, `ember_generate` the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_generate_details {
    /// `sizeof(ember_generate_details)`, set by the caller.
    pub struct_size: u32,
    /// Why it ended, a value of `enum ember_generate_end`.
    pub end: u32,
    /// Index of the stop string that was met, else `EMBER_NO_INDEX`.
    pub stop: u32,
    /// The last token that was generated, for `EMBER_END_TOKEN` the one that ends the answer; `EMBER_NO_TOKEN` if there is none.
    pub token: u32,
    /// Where the tokens begin in the context: `ember_session_tokens` from here on writes them all.
    pub position: u64,
    /// Number of tokens that were generated.
    pub token_count: u64,
    /// Bytes of text that the callback got, or would have got.
    pub text_bytes: u64,
}

// SAFETY: `repr(C)`; four u32 and three u64 have no padding; numbers only; the size comes first.
unsafe impl Sized32 for ember_generate_details {
    const NAME: &'static str = "ember_generate_details";
}

/// Appends the prompt, if there is one, to the context, then decodes tokens until there is a reason to end, and
/// passes the text to a callback as it is generated. The tokens are the same as those of `ember_prefill` and
/// `ember_decode` in a loop, and the text is that of an `ember_text_stream`. All tokens are in the context
/// afterwards, so the next call continues from there. `options` may be NULL for the defaults. The reason of the end
/// and the amount of output are written to `out`, whose `struct_size` the caller has set; it may be NULL. If one
/// token gives several reasons, an end token takes precedence over a stop string, and a stop string over the
/// callback.
///
/// Text that is still held back when the callback ends the generation is not passed to it; its tokens are in the
/// context.
///
/// `ember_session_interrupt` ends it with `EMBER_OK` and the reason `EMBER_END_INTERRUPTED`. While the prompt is
/// evaluated, it ends with the error `EMBER_INTERRUPTED` instead, and nothing was done.
///
/// Errors: those of `ember_prefill` and `ember_decode`; `EMBER_NO_INPUT` if there are neither a prompt nor a
/// context; `EMBER_CONTEXT_FULL` if the prompt does not fit; those of `ember_text_stream_create`, `EMBER_UNSUPPORTED`
/// if the model's tokenizer is not supported among them. After an error, the session is as it was before the call,
/// even if the callback already received text: the same call generates the same tokens again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_generate(
    session: *mut ember_session,
    options: *const ember_generate_options,
    out: *mut ember_generate_details,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `out` is as the header demands.
        let out = unsafe { OutStruct::optional(out) }?;
        // SAFETY: `options` is as the header demands, and so are its arrays.
        let (options, prompt, stops) = unsafe { read_options(options) }?;
        let wanted = options.for_engine(prompt, &stops)?;
        let mut piece = |session: &Session, text: &str, id: Option<u32>| {
            let Some(callback) = options.piece else {
                return true;
            };
            let token = token_of(session, id);
            // SAFETY: the caller's function and its own pointer; the text and the token live during the call.
            unsafe { callback(options.user, text.as_ptr().cast(), text.len(), &token) == 0 }
        };
        let made = with_session(session, |session| session.generate(&wanted, &mut piece))?;
        if let Some(out) = out {
            out.set(&ember_generate_details::of(&made));
        }
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// The token that a session has just generated, or none with the text that was held back until the end.
fn token_of(session: &Session, id: Option<u32>) -> ember_token {
    match id {
        Some(id) => ember_token::of(session, id),
        None => ember_token::none(Status::Ok),
    }
}

impl ember_generate_details {
    fn of(made: &Generated) -> ember_generate_details {
        use ember_generate_end as E;
        let mut d = ember_generate_details::zeroed();
        d.stop = NO_INDEX;
        d.end = match made.end {
            End::Limit => E::EMBER_END_LIMIT,
            End::EndToken => E::EMBER_END_TOKEN,
            End::Stop(index) => {
                d.stop = index as u32;
                E::EMBER_END_STOP
            }
            End::Callback => E::EMBER_END_CALLBACK,
            End::Interrupted => E::EMBER_END_INTERRUPTED,
            End::ContextFull => E::EMBER_END_CONTEXT_FULL,
        } as u32;
        d.token = made.last.unwrap_or(NO_TOKEN);
        d.position = made.position as u64;
        d.token_count = made.n_tokens as u64;
        d.text_bytes = made.text_bytes as u64;
        d
    }
}

/// The caller's options, its prompt and its stop strings.
///
/// # Safety
/// All of them are as the header demands.
unsafe fn read_options<'a>(
    options: *const ember_generate_options,
) -> Result<(ember_generate_options, &'a [u32], Vec<&'a str>)> {
    // SAFETY: by contract, the arguments are as the header demands.
    unsafe {
        let options = read_struct(options)?;
        let prompt = slice(options.prompt, options.prompt_count, "prompt")?;
        let stops = slice(options.stops, options.stop_count, "stops")?;
        Ok((options, prompt, stop_strings(stops)?))
    }
}

impl ember_generate_options {
    fn for_engine<'a>(
        &self,
        prompt: &'a [u32],
        stops: &'a [&'a str],
    ) -> Result<GenerateOptions<'a>> {
        let special = ember_generate_flags::EMBER_GENERATE_SHOW_SPECIAL as u32;
        let ignore_end = ember_generate_flags::EMBER_GENERATE_IGNORE_END as u32;
        let new_text = ember_generate_flags::EMBER_GENERATE_NEW_TEXT as u32;
        check_flags(self.flags, special | ignore_end | new_text)?;
        Ok(GenerateOptions {
            prompt,
            limit: usize::try_from(self.max_tokens).unwrap_or(usize::MAX),
            stops,
            show_special: self.flags & special != 0,
            ignore_end: self.flags & ignore_end != 0,
            new_text: self.flags & new_text != 0,
        })
    }
}

/// Flags of `ember_generate_next`, to be or-ed.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_next_flags {
    /// Return `EMBER_PENDING` instead of waiting for the next token. The work goes on in the background, and the session's event
    /// (`ember_session_set_event`) is set when the next call returns something else.
    EMBER_NEXT_NO_WAIT = 1,
}

/// Starts what `ember_generate` does without a callback: `ember_generate_next` returns the text piece by piece, on the caller's
/// thread. The prompt and the stop strings are copied, and the prompt is evaluated by the first `ember_generate_next`. `piece` of
/// the options must be NULL. Until `ember_generate_finish`, every other function that changes the session returns
/// `EMBER_DECODE_PENDING`, except for `ember_session_interrupt`, `ember_session_rewind`, which ends the generation, and
/// `ember_session_free`.
///
/// Errors: those of `ember_generate` that are known before any work is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_generate_start(
    session: *mut ember_session,
    options: *const ember_generate_options,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `options` is as the header demands, and so are its arrays.
        let (options, prompt, stops) = unsafe { read_options(options) }?;
        if options.piece.is_some() {
            fail!(
                InvalidArgument,
                "piece is set, but a generation that was started calls nothing; ember_generate_next has the text"
            );
        }
        let wanted = options.for_engine(prompt, &stops)?;
        with_session(session, |session| session.generate_start(&wanted))
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Generates the next token and writes the text that is certain then: whole characters that cannot be the start of a stop
/// string, often none. `flags` are values of `enum ember_next_flags`. The number of bytes is written to `len`, and the token
/// to `token`, whose `struct_size` the caller has set. `token->id` is `EMBER_NO_TOKEN` when the generation is over; the text
/// that was held back until then comes with it, and later calls return an empty text with it. `text` may be NULL if `capacity`
/// is 0. The pieces are those that `ember_generate` passes to its callback.
///
/// If `capacity` is too small, the result is `EMBER_BUFFER_TOO_SMALL`, only `len` is written, and the next call returns the same
/// piece. After another error, what was generated before is in the context, and the next call tries again. An interrupt
/// ends the generation, but while the prompt is evaluated, it is the error `EMBER_INTERRUPTED`.
///
/// Errors: `EMBER_PENDING` with `EMBER_NEXT_NO_WAIT`; `EMBER_NOTHING_PENDING` if no generation was started;
/// `EMBER_INVALID_ARGUMENT` for unknown flags; `EMBER_BUFFER_TOO_SMALL`; those of `ember_prefill` and `ember_decode`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_generate_next(
    session: *mut ember_session,
    flags: u32,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
    token: *mut ember_token,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `text`, `len` and `token` are as the header demands.
        let (text, len, token) = unsafe {
            (
                slice_mut(text.cast::<u8>(), capacity, "text")?,
                Out::new(len, "len")?,
                OutStruct::new(token)?,
            )
        };
        let no_wait = ember_next_flags::EMBER_NEXT_NO_WAIT as u32;
        check_flags(flags, no_wait)?;
        let mut take = |session: &Session, piece: &str, id: Option<u32>| {
            fill(piece.as_bytes(), text, &len, "text")?;
            token.set(&token_of(session, id));
            Ok(())
        };
        let wait = flags & no_wait == 0;
        match with_session(session, |session| session.generate_next(wait, &mut take))? {
            true => Ok(()),
            false => Err(Error::new(Status::Pending, "")),
        }
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Ends a generation that was started, at any time. Work that is under way is interrupted and waited for. All tokens that were returned
/// are in the context, and so are those of an end token and of a stop string. The reason of the end and the amount of output are written
/// to `out`, whose `struct_size` the caller has set; it may be NULL.
///
/// Errors: `EMBER_NOTHING_PENDING` if no generation was started; `EMBER_BUSY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_generate_finish(
    session: *mut ember_session,
    out: *mut ember_generate_details,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `out` is as the header demands.
        let out = unsafe { OutStruct::optional(out) }?;
        let made = with_session(session, |session| session.generate_end())?;
        if let Some(out) = out {
            out.set(&ember_generate_details::of(&made));
        }
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}
