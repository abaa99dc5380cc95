//! Vectors and scores of texts: settings, tokens of texts and pairs, and what becomes of a device's
//! results.

use super::{Interrupts, Model, WantedAdapter, adapter};
use crate::backend::{EmbedderOptions as DeviceOptions, Output, TextTokens};
use crate::budget::Budget;
use crate::error::{Error, Result, Status, fail, try_vec};
use crate::memory;
use crate::model::Pooling;
use crate::text::{EncodeOptions, Tokenizer};
use std::sync::Arc;

/// Tokens of a text at most, if neither the options nor the file say so.
const DEFAULT_MAX_TOKENS: usize = super::model::DEFAULT_CONTEXT;
/// What a model that was trained for it is asked to judge, unless the options say so.
const INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";
const BEFORE: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the \
     Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n";
const BEHIND: &str = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/// What an embedder makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// Vectors.
    Vectors(Pooling),
    /// Scores.
    Scores,
}

/// What an embedder is made with.
#[derive(Clone, Default)]
pub struct EmbedderOptions<'a> {
    /// What is made; `None` as the file says.
    pub product: Option<Product>,
    /// Whether vectors get the length 1; `None` as the file says.
    pub normalize: Option<bool>,
    /// Elements of a vector that are kept, 0 for all.
    pub dimension: usize,
    /// Tokens of the longest text; 0 for the default.
    pub max_tokens: usize,
    /// Tokens that are evaluated together; 0 for the default.
    pub batch_tokens: usize,
    /// Cuts longer texts instead of refusing them.
    pub truncate: bool,
    /// What a model judges documents by that answers in words; empty for the usual.
    pub instruction: String,
    /// What it adds to the model's matrices, as long as it lives.
    pub adapters: &'a [WantedAdapter<'a>],
}

/// Facts about an embedder.
#[derive(Clone, Copy, Debug)]
pub struct EmbedderDetails {
    /// What it makes.
    pub product: Product,
    /// Elements of a vector, or scores of a text.
    pub dimension: usize,
    /// Whether vectors have the length 1.
    pub normalized: bool,
    /// Tokens of the longest text.
    pub max_tokens: usize,
    /// Tokens that are evaluated together.
    pub batch_tokens: usize,
    /// Bytes of its memory.
    pub bytes: u64,
}

/// Makes vectors or scores of texts. Used by one thread at a time; several may use one model.
pub struct Embedder {
    model: Arc<Model>,
    device: Box<dyn crate::backend::Embedder>,
    output: Output,
    details: EmbedderDetails,
    truncate: bool,
    instruction: String,
    interrupts: Arc<Interrupts>,
}

/// Tokens of texts, one behind the other.
#[derive(Default)]
pub struct Texts {
    tokens: Vec<u32>,
    /// The end of each, and where the second of a pair begins, both from the first text's start on.
    ends: Vec<(usize, usize)>,
}

impl Texts {
    fn end(&mut self, second: usize) -> Result<()> {
        if self.ends.try_reserve(1).is_err() {
            fail!(OutOfMemory, "no memory for {} texts", self.ends.len() + 1);
        }
        self.ends.push((self.tokens.len(), second));
        Ok(())
    }

    fn all(&self) -> Result<Vec<TextTokens<'_>>> {
        let none = TextTokens {
            tokens: &[],
            second: 0,
        };
        let mut all = try_vec(self.ends.len(), none, "texts")?;
        let mut start = 0;
        for (text, &(end, second)) in all.iter_mut().zip(&self.ends) {
            *text = TextTokens {
                tokens: &self.tokens[start..end],
                second: second - start,
            };
            start = end;
        }
        Ok(all)
    }
}

impl Embedder {
    /// Reserves all memory that the device needs.
    ///
    /// Errors: `InvalidArgument` names the option; `Unsupported` names what the model or the device
    /// lacks; `OutOfMemory`. Those about an adapter have its index.
    pub fn create(model: Arc<Model>, options: EmbedderOptions<'_>) -> Result<Embedder> {
        model.check_alone()?;
        model.check_files()?;
        let adapters = adapter::set_of(&model, options.adapters)?;
        let facts = *model.readout();
        let product = options
            .product
            .unwrap_or(match (facts.pooling, facts.scores) {
                (Some(pooling), _) => Product::Vectors(pooling),
                (None, Some(_)) => Product::Scores,
                (None, None) if facts.encoder => Product::Vectors(Pooling::Mean),
                (None, None) => Product::Vectors(Pooling::Last),
            });
        let trained = model.details().context_length;
        let max_tokens = match options.max_tokens {
            0 => facts.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS).min(trained),
            n if n > trained => fail!(
                InvalidArgument,
                "max_tokens is {n}, but the model was trained for {trained} positions"
            ),
            n => n,
        };
        let batch_tokens = match options.batch_tokens {
            0 => model.weights().embedder_tokens().max(max_tokens),
            n if n < max_tokens => fail!(
                InvalidArgument,
                "batch_tokens is {n}, less than the {max_tokens} tokens of a text"
            ),
            n => n,
        };
        let judged_by = match (product, facts.scores) {
            (Product::Scores, None) => Some(judges(&model)?),
            _ => None,
        };
        let device = model.weights().clone().create_embedder(&DeviceOptions {
            max_tokens,
            batch_tokens,
            judged_by,
            adapters,
        })?;
        let output = match product {
            Product::Vectors(pooling) => Output::Vectors(pooling),
            Product::Scores => Output::Scores,
        };
        let width = device.width(output);
        if options.dimension > width {
            fail!(
                InvalidArgument,
                "dimension is {}, but the model's vectors have {width} elements",
                options.dimension
            );
        }
        let normalized = match product {
            Product::Scores | Product::Vectors(Pooling::None) => options.normalize,
            _ => options.normalize.or(facts.normalized).or(Some(true)),
        };
        if product == Product::Scores && (options.normalize.is_some() || options.dimension > 0) {
            fail!(
                InvalidArgument,
                "scores are neither normalized nor cut to a dimension"
            );
        }
        Ok(Embedder {
            details: EmbedderDetails {
                product,
                dimension: match options.dimension {
                    0 => width,
                    n => n,
                },
                normalized: normalized.unwrap_or(false),
                max_tokens,
                batch_tokens,
                bytes: device.bytes(),
            },
            model,
            device,
            output,
            truncate: options.truncate,
            instruction: options.instruction,
            interrupts: Arc::default(),
        })
    }

    /// Facts about it.
    pub fn details(&self) -> &EmbedderDetails {
        &self.details
    }

    /// What other threads end its calls with.
    pub fn interrupts(&self) -> &Arc<Interrupts> {
        &self.interrupts
    }

    /// The tokens of texts as they are given, `counts` of each.
    ///
    /// Errors: `InvalidArgument` where the counts are not those of the tokens.
    pub fn given(&self, tokens: &[u32], counts: &[usize]) -> Result<Texts> {
        let total = counts.iter().copied().fold(0, usize::saturating_add);
        if total != tokens.len() {
            fail!(
                InvalidArgument,
                "there are {} tokens, but the texts have {total} together",
                tokens.len()
            );
        }
        let mut texts = Texts {
            tokens: try_vec(total, 0, "tokens of texts")?,
            ends: Vec::new(),
        };
        texts.tokens.copy_from_slice(tokens);
        let mut end = 0;
        let mut ends = try_vec(counts.len(), (0, 0), "texts")?;
        for (place, count) in ends.iter_mut().zip(counts) {
            end += count;
            *place = (end, end);
        }
        texts.ends = ends;
        Ok(texts)
    }

    /// The tokens of texts.
    ///
    /// Errors name the text: those of the tokenizer; `ContextFull` for a text that is too long, unless it
    /// may be cut.
    pub fn tokenized(&self, texts: &[&str]) -> Result<Texts> {
        let tokenizer = self.model.tokenizer()?;
        let mut all = Texts::default();
        for (i, text) in texts.iter().enumerate() {
            self.append(tokenizer, text, &mut all)
                .map_err(|e| Error::at(e, i))?;
        }
        memory::check()?;
        Ok(all)
    }

    fn append(&self, tokenizer: &Tokenizer, text: &str, all: &mut Texts) -> Result<()> {
        let start = all.tokens.len();
        encode(tokenizer, text, true, false, &mut all.tokens)?;
        let (len, most) = (all.tokens.len() - start, self.details.max_tokens);
        let suffix = tokenizer.suffix();
        if len > most && self.truncate && suffix.len() <= most {
            all.tokens.truncate(start + most - suffix.len());
            all.tokens.extend_from_slice(suffix);
        }
        all.end(all.tokens.len())
    }

    /// The tokens of a query with each of some documents, as the model was trained for.
    ///
    /// Errors: as of [`tokenized`](Self::tokenized); `Unsupported` for models that have no form for
    /// pairs here.
    pub fn pairs(&self, query: &str, documents: &[&str]) -> Result<Texts> {
        if self.details.product != Product::Scores {
            fail!(
                InvalidArgument,
                "the embedder makes vectors; one that scores is made with EMBER_POOLING_SCORE"
            );
        }
        let tokenizer = self.model.tokenizer()?;
        let pair = match self.model.readout() {
            facts if facts.encoder => {
                let mut before = Vec::new();
                before.extend_from_slice(tokenizer.prefix());
                encode(tokenizer, query, false, false, &mut before)?;
                before.extend_from_slice(&tokenizer.separator());
                Pair {
                    second: before.len(),
                    before,
                    text_before: String::new(),
                    behind: tokenizer.suffix().to_vec(),
                }
            }
            facts if facts.scores == Some(false) => fail!(
                Unsupported,
                "the model scores texts, but how it was trained for pairs is not known; score tokens instead"
            ),
            _ => self.judged(tokenizer, query)?,
        };
        let mut all = Texts::default();
        for (i, document) in documents.iter().enumerate() {
            let appended = self.append_pair(tokenizer, &pair, document, &mut all);
            appended.map_err(|e| Error::at(e, i))?;
        }
        memory::check()?;
        Ok(all)
    }

    /// A question to a model that answers yes or no.
    fn judged(&self, tokenizer: &Tokenizer, query: &str) -> Result<Pair> {
        if tokenizer.special("<|im_start|>").is_none() {
            fail!(
                Unsupported,
                "the model answers in words, but not in the form of Qwen's rerankers, which is the one that is known"
            );
        }
        let (mut before, mut behind) = (Vec::new(), Vec::new());
        encode(tokenizer, BEFORE, false, true, &mut before)?;
        encode(tokenizer, BEHIND, false, true, &mut behind)?;
        let instruction = match self.instruction.as_str() {
            "" => INSTRUCTION,
            own => own,
        };
        Ok(Pair {
            before,
            second: usize::MAX,
            text_before: format!("<Instruct>: {instruction}\n<Query>: {query}\n<Document>: "),
            behind,
        })
    }

    fn append_pair(
        &self,
        tokenizer: &Tokenizer,
        pair: &Pair,
        document: &str,
        all: &mut Texts,
    ) -> Result<()> {
        let start = all.tokens.len();
        push_all(&mut all.tokens, &pair.before)?;
        match pair.text_before.as_str() {
            "" => encode(tokenizer, document, false, false, &mut all.tokens)?,
            before => {
                let text = format!("{before}{document}");
                encode(tokenizer, &text, false, false, &mut all.tokens)?;
            }
        }
        let most = self.details.max_tokens;
        let room = most.saturating_sub(pair.behind.len());
        if self.truncate && room > pair.before.len() {
            all.tokens.truncate(start + room);
        }
        push_all(&mut all.tokens, &pair.behind)?;
        let end = all.tokens.len();
        all.end(start.saturating_add(pair.second).min(end))
    }

    /// Floats of the result of these texts.
    ///
    /// Errors name the text: `NoInput`, `ContextFull`, `InvalidToken`.
    pub fn result_len(&self, texts: &Texts) -> Result<usize> {
        let mut rows = 0;
        let mut start = 0;
        for (i, &(end, _)) in texts.ends.iter().enumerate() {
            let tokens = &texts.tokens[start..end];
            start = end;
            self.check(tokens).map_err(|e| Error::at(e, i))?;
            rows += match self.output {
                Output::Vectors(Pooling::None) => tokens.len(),
                _ => 1,
            };
        }
        match rows.checked_mul(self.device.width(self.output)) {
            Some(_) => Ok(rows * self.details.dimension),
            None => fail!(OutOfMemory, "{rows} vectors are beyond all memory"),
        }
    }

    fn check(&self, tokens: &[u32]) -> Result<()> {
        let most = self.details.max_tokens;
        if tokens.is_empty() {
            fail!(NoInput, "a text of no tokens");
        }
        if tokens.len() > most {
            fail!(
                ContextFull,
                "a text of {} tokens; the embedder takes {most} at most",
                tokens.len()
            );
        }
        self.model.check_tokens(tokens)
    }

    /// The vectors or scores of texts that [`result_len`](Self::result_len) has checked.
    ///
    /// Errors: `Interrupted`; `OutOfMemory`; `Numeric` for a vector of no length, or with a NaN; those of
    /// the device.
    pub fn run(&mut self, texts: &Texts) -> Result<Vec<f32>> {
        let result = self.try_run(texts);
        if let Err(e) = &result
            && e.status == Status::Interrupted
        {
            self.interrupts.clear();
        }
        result
    }

    fn try_run(&mut self, texts: &Texts) -> Result<Vec<f32>> {
        if self.interrupts.is_asked() {
            fail!(Interrupted, "interrupted before the call");
        }
        self.model.check_files()?;
        let len = self.result_len(texts)?;
        let width = self.device.width(self.output);
        let rows = len / self.details.dimension.max(1);
        let mut out = try_vec(rows * width, 0.0, "vectors of texts")?;
        let all = texts.all()?;
        let (mut rest, mut at) = (&all[..], 0);
        while !rest.is_empty() {
            let work = self.interrupts.work();
            let n = self.device.run(rest, self.output, &mut out[at..], work)?;
            let done = &rest[..n];
            at += width
                * match self.output {
                    Output::Vectors(Pooling::None) => done.iter().map(|t| t.tokens.len()).sum(),
                    _ => n,
                };
            rest = &rest[n..];
        }
        self.finish(&mut out, width)?;
        Ok(out)
    }

    /// Cuts and normalizes rows in place.
    fn finish(&self, out: &mut Vec<f32>, width: usize) -> Result<()> {
        let dimension = self.details.dimension;
        let rows = out.len() / width.max(1);
        for row in 0..rows {
            let (from, to) = (row * width, row * dimension);
            out.copy_within(from..from + dimension, to);
            let vector = &mut out[to..to + dimension];
            let square: f64 = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
            if !square.is_finite() {
                fail!(Numeric, "vector {row} has elements that are no numbers");
            }
            if self.details.normalized {
                let length = square.sqrt().max(1e-12);
                for x in vector {
                    *x = (f64::from(*x) / length) as f32;
                }
            }
        }
        out.truncate(rows * dimension);
        Ok(())
    }
}

/// How a query goes before a document.
struct Pair {
    before: Vec<u32>,
    /// Where the second text begins.
    second: usize,
    /// What is read together with the document.
    text_before: String,
    behind: Vec<u32>,
}

/// The tokens of the answers no and yes.
fn judges(model: &Model) -> Result<[u32; 2]> {
    if model.readout().encoder {
        fail!(Unsupported, "the model has no layer that scores texts");
    }
    let tokenizer = model.tokenizer()?;
    let token = |word: &str| -> Result<u32> {
        let mut tokens = Vec::new();
        encode(tokenizer, word, false, false, &mut tokens)?;
        match tokens[..] {
            [token] => Ok(token),
            _ => fail!(
                Unsupported,
                "the model has no layer that scores texts, and no token for the answer {word:?}"
            ),
        }
    };
    Ok([token("no")?, token("yes")?])
}

fn encode(
    tokenizer: &Tokenizer,
    text: &str,
    whole: bool,
    parse_special: bool,
    out: &mut Vec<u32>,
) -> Result<()> {
    let options = EncodeOptions {
        add_special: whole,
        parse_special,
    };
    tokenizer.encode_within(&Budget::for_text(text.len()), text, options, out)
}

fn push_all(out: &mut Vec<u32>, tokens: &[u32]) -> Result<()> {
    if out.try_reserve(tokens.len()).is_err() {
        fail!(OutOfMemory, "no memory for {} more tokens", tokens.len());
    }
    out.extend_from_slice(tokens);
    Ok(())
}
