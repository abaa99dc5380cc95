//! Vectors and scores of texts.

use super::adapter::{Used, ember_adapter_use};
use super::boundary::{
    Out, OutStruct, Sized32, call, call_always, check_flags, check_reserved, read_struct, slice,
    slice_mut, text,
};
use super::error::{ember_error, ember_status};
use super::handle::{Kind, Table, take_unused};
use super::model::{ember_model, model};
use crate::engine::embedder::{Product, Texts};
use crate::engine::{Embedder, EmbedderDetails, EmbedderOptions, Interrupts};
use crate::error::{Error, Result, fail};
use crate::memory;
use crate::model::Pooling;
use std::ffi::c_char;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// Computes vectors or scores of texts, for search, clustering, classification and reranking. It has no context: each text is
/// evaluated by itself. One thread at a time may use it; a call from a second thread meanwhile returns `EMBER_BUSY`
/// and changes nothing. To embed on several threads at once, create an embedder for each. It keeps its model alive.
pub struct ember_embedder {
    _opaque: [u8; 0],
}

/// How an embedder combines the hidden states of a text, of which there is one for each token: values of
/// `ember_embedder_options.pooling`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr)]
pub enum ember_pooling {
    /// As the model's files say; if they do not, the mean for an encoder, the last for other models.
    EMBER_POOLING_DEFAULT = 0,
    /// One vector, their mean.
    EMBER_POOLING_MEAN = 1,
    /// One vector, that of the first token.
    EMBER_POOLING_FIRST = 2,
    /// One vector, that of the last token.
    EMBER_POOLING_LAST = 3,
    /// A vector for each token.
    EMBER_POOLING_NONE = 4,
    /// The scores of the model's classification head. For a model without one that has the tokens "yes" and "no"
    /// (Qwen3-Reranker), one score: the probability of "yes" of the two as the next token.
    EMBER_POOLING_SCORE = 5,
}

/// Values of `ember_embedder_options.normalize`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr)]
pub enum ember_normalize {
    /// As the model's files say; if they do not, pooled vectors are normalized and those of single tokens are not.
    EMBER_NORMALIZE_DEFAULT = 0,
    /// Vectors get the length 1, so that a dot product is the cosine.
    EMBER_NORMALIZE_ON = 1,
    /// Vectors stay as they are.
    EMBER_NORMALIZE_OFF = 2,
}

/// Flags of `ember_embedder_options`, to be or-ed.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_embedder_flags {
    /// Cut texts that have more than `max_tokens` tokens, instead of refusing them. Of a pair, the document is cut.
    EMBER_EMBEDDER_TRUNCATE = 1,
}

/// A text of a call that takes several.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_text {
    /// UTF-8; may be NULL if `len` is 0.
    pub text: *const c_char,
    /// Bytes of `text`.
    pub len: usize,
}

/// How to create an embedder. Zero in every field but `struct_size` means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_embedder_options {
    /// `sizeof(ember_embedder_options)`.
    pub struct_size: u32,
    /// Values of `enum ember_embedder_flags`.
    pub flags: u32,
    /// A value of `enum ember_pooling`.
    pub pooling: u32,
    /// A value of `enum ember_normalize`.
    pub normalize: u32,
    /// Keep only this many of the first elements of a vector, and normalize after that (Matryoshka embeddings); 0 keeps all.
    pub dimension: u32,
    /// The most tokens of one text, up to the model's `context_length`; 0 means what the model's files say, else
    /// `context_length`, but at most 4096.
    pub max_tokens: u32,
    /// The most tokens of several texts that are evaluated together; 0 means 512 on a CPU, 2048 to 16384 on a GPU (fewer for larger
    /// models), or `max_tokens` if that is more. The results do not depend on it. A GPU takes up to 65535.
    pub batch_tokens: u32,
    /// Must be 0.
    pub reserved: u32,
    /// For models that answer "yes" or "no": the task that `ember_rerank` names to the model, UTF-8, which is copied. NULL
    /// for "Given a web search query, retrieve relevant passages that answer the query".
    pub instruction: *const c_char,
    /// Bytes of `instruction`.
    pub instruction_len: usize,
    /// Adapters of the model, at most 16, which are added to its matrices as `ember_session_set_adapters` has them; may be
    /// NULL if there are none. The embedder uses them as long as it lives, also when their handles are freed.
    pub adapters: *const ember_adapter_use,
    /// Number of `adapters`.
    pub adapter_count: usize,
}

// SAFETY: `repr(C)`; 8 u32 and four words have no padding; numbers and the caller's pointers; the size
// comes first.
unsafe impl Sized32 for ember_embedder_options {
    const NAME: &'static str = "ember_embedder_options";
}

/// Facts about an embedder. The caller sets `struct_size`, `ember_embedder_info` the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_embedder_details {
    /// `sizeof(ember_embedder_details)`, set by the caller.
    pub struct_size: u32,
    /// What it computes: a value of `enum ember_pooling` other than `EMBER_POOLING_DEFAULT`.
    pub pooling: u32,
    /// Elements of a vector, or scores of a text.
    pub dimension: u32,
    /// 1 if vectors have the length 1, else 0.
    pub normalized: u32,
    /// The most tokens of one text.
    pub max_tokens: u32,
    /// The most tokens that are evaluated together.
    pub batch_tokens: u32,
    /// Bytes of memory that it has reserved. Their pages become resident when they are used for the first time.
    pub memory_bytes: u64,
}

// SAFETY: `repr(C)`; 6 u32 and a u64 have no padding; numbers only; the size comes first.
unsafe impl Sized32 for ember_embedder_details {
    const NAME: &'static str = "ember_embedder_details";
}

/// What an embedder's handle stands for.
struct Cell {
    /// `None` once freed.
    embedder: Mutex<Option<Embedder>>,
    interrupts: Arc<Interrupts>,
    /// A copy that can be read while a call is running.
    details: EmbedderDetails,
}

static EMBEDDERS: Table<Cell> = Table::new(Kind::Embedder);

impl Cell {
    fn lock(&self) -> Result<MutexGuard<'_, Option<Embedder>>> {
        match self.embedder.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::WouldBlock) => {
                fail!(Busy, "another thread is inside a call with this embedder")
            }
            Err(TryLockError::Poisoned(_)) => fail!(
                Internal,
                "a bug in the library ended an earlier call with this embedder; free it"
            ),
        }
    }
}

fn with_embedder<R>(
    handle: *mut ember_embedder,
    work: impl FnOnce(&mut Embedder) -> Result<R>,
) -> Result<R> {
    let cell = EMBEDDERS.get(handle.addr())?;
    let mut guard = cell.lock()?;
    match guard.as_mut() {
        Some(embedder) => work(embedder),
        None => fail!(InvalidHandle, "the embedder was freed by another thread"),
    }
}

fn pooling(product: Product) -> ember_pooling {
    match product {
        Product::Vectors(Pooling::Mean) => ember_pooling::EMBER_POOLING_MEAN,
        Product::Vectors(Pooling::First) => ember_pooling::EMBER_POOLING_FIRST,
        Product::Vectors(Pooling::Last) => ember_pooling::EMBER_POOLING_LAST,
        Product::Vectors(Pooling::None) => ember_pooling::EMBER_POOLING_NONE,
        Product::Scores => ember_pooling::EMBER_POOLING_SCORE,
    }
}

/// Reads the caller's options, but for adapters.
///
/// # Safety
/// `instruction` is as the header demands.
unsafe fn options(options: &ember_embedder_options) -> Result<EmbedderOptions<'static>> {
    use ember_pooling as P;
    let truncate = ember_embedder_flags::EMBER_EMBEDDER_TRUNCATE as u32;
    check_flags(options.flags, truncate)?;
    check_reserved(options.reserved, ember_embedder_options::NAME)?;
    let vectors = |pooling| Some(Product::Vectors(pooling));
    let product = match P::from_repr(options.pooling) {
        Some(P::EMBER_POOLING_DEFAULT) => None,
        Some(P::EMBER_POOLING_MEAN) => vectors(Pooling::Mean),
        Some(P::EMBER_POOLING_FIRST) => vectors(Pooling::First),
        Some(P::EMBER_POOLING_LAST) => vectors(Pooling::Last),
        Some(P::EMBER_POOLING_NONE) => vectors(Pooling::None),
        Some(P::EMBER_POOLING_SCORE) => Some(Product::Scores),
        None => fail!(
            InvalidArgument,
            "pooling is {}, which is no value of enum ember_pooling",
            options.pooling
        ),
    };
    let normalize = match ember_normalize::from_repr(options.normalize) {
        Some(ember_normalize::EMBER_NORMALIZE_DEFAULT) => None,
        Some(ember_normalize::EMBER_NORMALIZE_ON) => Some(true),
        Some(ember_normalize::EMBER_NORMALIZE_OFF) => Some(false),
        None => fail!(
            InvalidArgument,
            "normalize is {}, which is no value of enum ember_normalize",
            options.normalize
        ),
    };
    // SAFETY: by contract, `instruction` is as the header demands.
    let instruction = unsafe { text(options.instruction, options.instruction_len, "instruction") }?;
    Ok(EmbedderOptions {
        product,
        normalize,
        dimension: options.dimension as usize,
        max_tokens: options.max_tokens as usize,
        batch_tokens: options.batch_tokens as usize,
        truncate: options.flags & truncate != 0,
        instruction: instruction.to_owned(),
        adapters: &[],
    })
}

/// Creates an embedder for a model: an encoder (BERT and its relatives), or a decoder whose layers all attend to all
/// positions or to a window of them. `options` may be NULL for the defaults. All memory that evaluation needs is
/// reserved here. The new handle is written to `out` and has to be freed with `ember_embedder_free`. Any thread may
/// call it.
///
/// Errors: `EMBER_INVALID_ARGUMENT` names the option; `EMBER_INVALID_UTF8` in `instruction`; `EMBER_UNSUPPORTED` for a model
/// with layers that it cannot be made for (recurrent layers, for example; on a GPU, heads of more than 256 elements), for one whose layers
/// are on several devices, for more `batch_tokens` than the device takes, for scores of a model that has none, and for scores by "yes"
/// and "no" with an adapter of the head; `EMBER_INVALID_HANDLE` and `EMBER_INVALID_ARGUMENT` for adapters are as of
/// `ember_session_set_adapters`; `EMBER_FILE_TRUNCATED` and `EMBER_FILE_CORRUPT` if the model's file has changed; `EMBER_OUT_OF_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_embedder_create(
    model: *const ember_model,
    options: *const ember_embedder_options,
    out: *mut *mut ember_embedder,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        let model = self::model(model)?;
        // SAFETY: `out` and `options` are as the header demands.
        let (out, options) = unsafe { (Out::new(out, "out")?, read_struct(options)?) };
        // SAFETY: as above.
        let (settings, used) = unsafe {
            (
                self::options(&options)?,
                Used::read(options.adapters, options.adapter_count)?,
            )
        };
        let embedder = Embedder::create(
            model,
            EmbedderOptions {
                adapters: &used.wanted(),
                ..settings
            },
        )?;
        let cell = Cell {
            interrupts: embedder.interrupts().clone(),
            details: *embedder.details(),
            embedder: Mutex::new(Some(embedder)),
        };
        out.set(without_provenance_mut(EMBEDDERS.insert(Arc::new(cell))?));
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Writes facts about an embedder to `out`, whose `struct_size` the caller has set. Any thread may call it, also while
/// another call with the embedder is running.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_embedder_info(
    embedder: *const ember_embedder,
    out: *mut ember_embedder_details,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `out` is as the header demands.
        let out = unsafe { OutStruct::new(out) }?;
        let details = &EMBEDDERS.get(embedder.addr())?.details;
        let mut d = ember_embedder_details::zeroed();
        d.pooling = pooling(details.product) as u32;
        d.dimension = details.dimension as u32;
        d.normalized = u32::from(details.normalized);
        d.max_tokens = details.max_tokens as u32;
        d.batch_tokens = details.batch_tokens as u32;
        d.memory_bytes = details.bytes;
        out.set(&d);
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Evaluates texts and copies the result to the caller's buffer.
fn run(
    embedder: &mut Embedder,
    texts: &Texts,
    (out, written): (&mut [f32], &Out<usize>),
) -> Result<()> {
    let needed = embedder.result_len(texts)?;
    if needed > out.len() {
        written.set(needed);
        fail!(
            BufferTooSmall,
            "out has room for {}, but {needed} are needed",
            out.len()
        );
    }
    let result = embedder.run(texts)?;
    // What was computed with memory of the reserve is freed; nothing of it is kept.
    memory::check()?;
    out[..needed].copy_from_slice(&result);
    written.set(needed);
    Ok(())
}

/// The caller's texts.
///
/// # Safety
/// They are as the header demands.
unsafe fn texts<'a>(texts: *const ember_text, count: usize, name: &str) -> Result<Vec<&'a str>> {
    // SAFETY: by contract, the arguments are as the header demands.
    let texts = unsafe { slice(texts, count, name) }?;
    let mut all = Vec::new();
    if all.try_reserve_exact(count).is_err() {
        fail!(OutOfMemory, "no memory for {count} texts");
    }
    for (i, text) in texts.iter().enumerate() {
        // SAFETY: by contract, the arguments are as the header demands.
        let text = unsafe { self::text(text.text, text.len, "a text") };
        all.push(text.map_err(|e| {
            let message = format!("text {i}: {}", e.message);
            Error::new(e.status, message).at(i)
        })?);
    }
    Ok(all)
}

/// Computes the vectors of `count` texts. Each is tokenized as `ember_tokenize` does it without flags, with the tokens that the model
/// expects at the beginning and end of a text. `out` receives the vectors one after another, `dimension` floats each (see
/// `ember_embedder_info`); without pooling, a vector for each token. `written` receives their number of floats, also when `capacity`, the
/// room in `out` in floats, is too small for them: `EMBER_BUFFER_TOO_SMALL`, with nothing written to `out`. Either array may be NULL if
/// it has no elements.
///
/// Several texts are evaluated together, up to `batch_tokens` tokens. The bits of a vector do not depend on the texts beside it,
/// on the number of threads, or on other calls. An embedder that scores writes scores in place of vectors.
///
/// Errors: `EMBER_INVALID_UTF8`; `EMBER_NO_INPUT` for a text of no tokens; `EMBER_CONTEXT_FULL` for one of more than `max_tokens`; all
/// name the text and set `index` of `err`. `EMBER_BUFFER_TOO_SMALL`; `EMBER_BUSY`; `EMBER_INTERRUPTED`; `EMBER_INVALID_ARGUMENT` for a
/// text for which the tokenizer takes far more work than is usual; `EMBER_INVALID_TOKEN` if the tokenizer has more tokens than the model;
/// `EMBER_UNSUPPORTED` if the tokenizer is not supported; `EMBER_NUMERIC` if the model produces a value that is not a number;
/// `EMBER_FILE_TRUNCATED` and `EMBER_FILE_CORRUPT` if the model's file has changed; `EMBER_OUT_OF_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_embed(
    embedder: *mut ember_embedder,
    texts: *const ember_text,
    count: usize,
    out: *mut f32,
    capacity: usize,
    written: *mut usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `texts`, `out` and `written` are as the header demands.
        let (texts, out, written) = unsafe {
            (
                self::texts(texts, count, "texts")?,
                slice_mut(out, capacity, "out")?,
                Out::new(written, "written")?,
            )
        };
        with_embedder(embedder, |embedder| {
            let texts = embedder.tokenized(&texts)?;
            run(embedder, &texts, (out, &written))
        })
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// `ember_embed` for tokens. `tokens` has the tokens of all `count` texts one after another, `token_count` in all, and `counts` the
/// number of tokens of each text. No tokens are added.
///
/// Errors: those of `ember_embed`; `EMBER_INVALID_TOKEN` names the text; `EMBER_INVALID_ARGUMENT` if the `counts` together are
/// not `token_count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_embed_tokens(
    embedder: *mut ember_embedder,
    tokens: *const u32,
    token_count: usize,
    counts: *const usize,
    count: usize,
    out: *mut f32,
    capacity: usize,
    written: *mut usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `tokens`, `counts`, `out` and `written` are as the header demands.
        let (tokens, counts, out, written) = unsafe {
            (
                slice(tokens, token_count, "tokens")?,
                slice(counts, count, "counts")?,
                slice_mut(out, capacity, "out")?,
                Out::new(written, "written")?,
            )
        };
        with_embedder(embedder, |embedder| {
            let texts = embedder.given(tokens, counts)?;
            run(embedder, &texts, (out, &written))
        })
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Scores how well each of `count` documents answers a query: higher is better. The embedder was made with
/// `EMBER_POOLING_SCORE`. `scores` receives what the model's classification head gives for the pair of query and document,
/// `dimension` floats for each document (mostly one, a logit); of a model that answers "yes" or "no", the probability of
/// "yes". `written` and `capacity` are those of `ember_embed`.
///
/// Errors: those of `ember_embed`; `EMBER_INVALID_ARGUMENT` if the embedder makes vectors; `EMBER_UNSUPPORTED` if the library does not
/// know how the model expects pairs: build their tokens yourself and call `ember_embed_tokens`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_rerank(
    embedder: *mut ember_embedder,
    query: *const c_char,
    query_len: usize,
    documents: *const ember_text,
    count: usize,
    scores: *mut f32,
    capacity: usize,
    written: *mut usize,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `query`, `documents`, `scores` and `written` are as the header demands.
        let (query, documents, scores, written) = unsafe {
            (
                text(query, query_len, "query")?,
                self::texts(documents, count, "documents")?,
                slice_mut(scores, capacity, "scores")?,
                Out::new(written, "written")?,
            )
        };
        with_embedder(embedder, |embedder| {
            let texts = embedder.pairs(query, &documents)?;
            run(embedder, &texts, (scores, &written))
        })
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Ends the call that is running with the embedder soon, with `EMBER_INTERRUPTED`, or else the next one that evaluates texts.
/// Any thread may call it at any time.
///
/// Errors: `EMBER_INVALID_HANDLE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_embedder_interrupt(embedder: *mut ember_embedder) -> ember_status {
    let work = || {
        EMBEDDERS.get(embedder.addr())?.interrupts.ask();
        Ok(())
    };
    // SAFETY: no error struct.
    unsafe { call_always(null_mut(), work) }
}

/// Frees an embedder: the handle becomes invalid at once, and a call with it that is running on another thread is interrupted. The
/// memory is freed when that call returns. NULL is allowed and does nothing.
///
/// Errors: `EMBER_INVALID_HANDLE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_embedder_free(embedder: *mut ember_embedder) -> ember_status {
    let work = || {
        if embedder.is_null() {
            return Ok(());
        }
        let cell = EMBEDDERS.remove(embedder.addr())?;
        cell.interrupts.ask();
        drop(take_unused(&cell.embedder));
        Ok(())
    };
    // SAFETY: no error struct.
    unsafe { call_always(null_mut(), work) }
}
