//! Text to token ids and back, as the model file describes it.

use super::bpe::{Merger, NONE};
use super::byte_level::Alphabet;
use super::pretokenizer::PreTokenizer;
use super::specials::{Special, Specials};
use super::vocabulary::{Merges, Metadata, TokenKind, Vocabulary, boolean, string, token_id};
use crate::error::{Error, Result, fail, try_vec};
use crate::format::ModelFile;
use std::sync::atomic::{AtomicU8, Ordering};

/// Texts of control tokens that end an answer, whatever else the file says.
const END_MARKERS: [&str; 17] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<|return|>",
    "<|call|>",
    "<end_of_utterance>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "</s>",
    "<eos>",
    "<｜end▁of▁sentence｜>",
];

/// How to read text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Add the BOS token before and the EOS token behind where the file asks for them.
    pub add_special: bool,
    /// Recognize control tokens spelled out in the text. Leave it off for text from outside, which
    /// could forge roles with them.
    pub parse_special: bool,
}

/// How to write tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Leave out control and unknown tokens.
    pub skip_special: bool,
}

/// A byte-level BPE tokenizer. May be used from many threads at once.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    merges: Merges,
    pretokenizer: PreTokenizer,
    specials: Specials,
    /// The token of each byte, [`NONE`] if there is none.
    byte_tokens: [u32; 256],
    /// Per token: whether merging its own bytes ends with it ([`UNTRIED`], [`WHOLE`], [`PARTS`]).
    whole: Vec<AtomicU8>,
    /// Per token: whether it ends an answer.
    ends: Vec<bool>,
    bos: Option<u32>,
    eos: Option<u32>,
    unknown: Option<u32>,
    padding: Option<u32>,
    add_bos: bool,
    add_eos: bool,
}

const UNTRIED: u8 = 0;
const WHOLE: u8 = 1;
const PARTS: u8 = 2;

impl Tokenizer {
    /// The tokenizer of a model file; see [`from_metadata`](Self::from_metadata).
    pub fn from_file(file: &ModelFile) -> Result<Self> {
        Self::from_metadata(&file.metadata)
    }

    /// The tokenizer that the `tokenizer.ggml.*` keys describe. `add_space_prefix` does not apply
    /// to byte-level BPE and is not read.
    ///
    /// Errors: `MissingKey` for a key that is absent or has another type; `FileCorrupt` for lists
    /// that contradict each other, naming key and entry; `Unsupported` for other kinds of tokenizer
    /// and for a pre-tokenizer that is not known, naming it; `OutOfMemory`.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self> {
        match string(metadata, "tokenizer.ggml.model")? {
            Some("gpt2") => {}
            Some(other) => {
                let other: String = other.chars().take(100).collect();
                fail!(
                    Unsupported,
                    "tokenizer.ggml.model: tokenizer {other:?} is not supported, only \"gpt2\" (byte-level BPE)"
                )
            }
            None => fail!(MissingKey, "metadata key tokenizer.ggml.model is missing"),
        }
        let pre = string(metadata, "tokenizer.ggml.pre")?.unwrap_or("default");
        let pretokenizer = PreTokenizer::new(pre)?;
        let alphabet = Alphabet::new();
        let vocabulary = Vocabulary::new(metadata, &alphabet)?;
        let merges = Merges::new(metadata, &alphabet, &vocabulary)?;
        let n_vocab = vocabulary.len();
        let id = |name: &str| {
            token_id(
                metadata,
                &format!("tokenizer.ggml.{name}_token_id"),
                n_vocab,
            )
        };
        let (bos, eos) = (id("bos")?, id("eos")?);

        let asked_bos = boolean(metadata, "tokenizer.ggml.add_bos_token")?;
        let asked_eos = boolean(metadata, "tokenizer.ggml.add_eos_token")?;
        for (asked, token, name) in [(asked_bos, bos, "bos"), (asked_eos, eos, "eos")] {
            if asked == Some(true) && token.is_none() {
                fail!(
                    MissingKey,
                    "tokenizer.ggml.add_{name}_token is set, but there is no tokenizer.ggml.{name}_token_id"
                );
            }
        }

        let mut ends = try_vec(n_vocab, false, "end-of-answer flags")?;
        for end in [eos, id("eot")?, id("eom")?].into_iter().flatten() {
            ends[end as usize] = true;
        }
        mark_ends(&vocabulary, &mut ends);

        let special = |kind| {
            matches!(
                kind,
                TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined
            )
        };
        let specials = Specials::new(
            (0..n_vocab as u32)
                .filter(|id| special(vocabulary.kind(*id)))
                .map(|id| {
                    let control = vocabulary.kind(id) != TokenKind::UserDefined;
                    (vocabulary.token(id), id, control)
                }),
        );
        let mut byte_tokens = [NONE; 256];
        for (byte, token) in byte_tokens.iter_mut().enumerate() {
            *token = vocabulary.find(&[byte as u8]).unwrap_or(NONE);
        }
        let mut whole = Vec::new();
        if whole.try_reserve_exact(n_vocab).is_err() {
            fail!(
                OutOfMemory,
                "tokenizer: {n_vocab} bytes could not be allocated"
            );
        }
        whole.resize_with(n_vocab, || AtomicU8::new(UNTRIED));
        Ok(Tokenizer {
            add_bos: asked_bos.unwrap_or(pretokenizer.add_bos && bos.is_some()),
            add_eos: asked_eos.unwrap_or(false),
            unknown: id("unknown")?,
            padding: id("padding")?,
            vocabulary,
            merges,
            pretokenizer,
            specials,
            byte_tokens,
            whole,
            ends,
            bos,
            eos,
        })
    }

    /// Appends the tokens of `text` to `out`; on an error `out` is as it was. Bytes that the
    /// vocabulary lacks become the unknown token, or nothing if there is none.
    /// Errors: `OutOfMemory`; `InvalidArgument` if text without a cut is 4 GiB or longer.
    pub fn encode(&self, text: &str, options: EncodeOptions, out: &mut Vec<u32>) -> Result<()> {
        let length = out.len();
        let result = self.encode_all(text, options, out);
        if result.is_err() {
            out.truncate(length);
        }
        result
    }

    /// Appends the tokens of a whole conversation to `out`; on an error `out` is as it was. Special
    /// tokens are recognized where `may_parse(start, end, id)` says so. BOS and EOS are added as the
    /// file asks, unless the text has them already. Errors: as [`encode`](Self::encode).
    pub(super) fn encode_chat(
        &self,
        text: &str,
        may_parse: &dyn Fn(usize, usize, u32) -> bool,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let length = out.len();
        let may = |start: usize, special: &Special| {
            may_parse(start, start + special.text.len(), special.id)
        };
        let result = self.encode_where(text, &may, out).and_then(|()| {
            if self.add_bos && self.bos.is_some() && out.get(length) != self.bos.as_ref() {
                push_all(out, self.bos.as_slice())?;
                out[length..].rotate_right(1);
            }
            if self.add_eos && out[length..].last() != self.eos.as_ref() {
                push_all(out, self.eos.as_slice())?;
            }
            Ok(())
        });
        if result.is_err() {
            out.truncate(length);
        }
        result
    }

    fn encode_all(&self, text: &str, options: EncodeOptions, out: &mut Vec<u32>) -> Result<()> {
        if options.add_special && self.add_bos {
            push_all(out, self.bos.as_slice())?;
        }
        let may = |_, special: &Special| options.parse_special || !special.control;
        self.encode_where(text, &may, out)?;
        if options.add_special && self.add_eos {
            push_all(out, self.eos.as_slice())?;
        }
        Ok(())
    }

    /// Encodes a text in which `may` says which special tokens count.
    fn encode_where(
        &self,
        text: &str,
        may: &dyn Fn(usize, &Special) -> bool,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let mut merger = Merger::default();
        let mut from = 0;
        while let Some(found) = self.specials.find(text.as_bytes(), from, may) {
            self.encode_plain(&text[from..found.start], &mut merger, out)?;
            push_all(out, &[found.id])?;
            from = found.end;
        }
        self.encode_plain(&text[from..], &mut merger, out)
    }

    /// Encodes text in which no special token is left.
    fn encode_plain(&self, text: &str, merger: &mut Merger, out: &mut Vec<u32>) -> Result<()> {
        let mut error: Option<Error> = None;
        self.pretokenizer.split(text, &mut |piece| {
            if error.is_none() {
                error = self.encode_piece(piece, merger, out).err();
            }
        })?;
        error.map_or(Ok(()), Err)
    }

    fn encode_piece(&self, piece: &[u8], merger: &mut Merger, out: &mut Vec<u32>) -> Result<()> {
        let known = self.vocabulary.find(piece);
        if let Some(token) = known {
            let ordinary = !matches!(
                self.vocabulary.kind(token),
                TokenKind::Control | TokenKind::Unknown
            );
            let whole = match self.whole[token as usize].load(Ordering::Relaxed) {
                _ if self.pretokenizer.whole_pieces => ordinary,
                tried => tried == WHOLE,
            };
            if whole {
                return push_all(out, &[token]);
            }
        }
        let tokens = merger.merge(&self.merges, piece, &self.byte_tokens)?;
        if let Some(token) = known {
            // What the bytes of a token merge to never changes: remember it for the next time.
            let whole = if tokens == [token] { WHOLE } else { PARTS };
            self.whole[token as usize].store(whole, Ordering::Relaxed);
        }
        if !tokens.contains(&NONE) {
            return push_all(out, tokens);
        }
        for token in tokens {
            match (*token, self.unknown) {
                (NONE, Some(unknown)) => push_all(out, &[unknown])?,
                (NONE, None) => {}
                (token, _) => push_all(out, &[token])?,
            }
        }
        Ok(())
    }

    /// Appends the bytes of the tokens to `out`; on an error `out` is as it was. The bytes are
    /// UTF-8 as far as the tokens make whole characters; see [`TextStream`](super::TextStream).
    /// Errors: `InvalidToken` for an id that is not in the vocabulary; `OutOfMemory`.
    pub fn decode(&self, ids: &[u32], options: DecodeOptions, out: &mut Vec<u8>) -> Result<()> {
        let mut total = 0usize;
        for id in ids {
            total = total.saturating_add(self.token_bytes(*id)?.len());
        }
        if out.try_reserve(total).is_err() {
            fail!(OutOfMemory, "text of {total} bytes could not be allocated");
        }
        for id in ids {
            let kind = self.vocabulary.kind(*id);
            let special = matches!(kind, TokenKind::Control | TokenKind::Unknown);
            if !(special && options.skip_special) {
                out.extend_from_slice(self.vocabulary.token(*id));
            }
        }
        Ok(())
    }

    /// The bytes of one token; control tokens give their names. `InvalidToken` if there is no such
    /// token.
    pub fn token_bytes(&self, id: u32) -> Result<&[u8]> {
        self.check(id)?;
        Ok(self.vocabulary.token(id))
    }

    /// What a token is for; `InvalidToken` if there is no such token.
    pub fn kind(&self, id: u32) -> Result<TokenKind> {
        self.check(id)?;
        Ok(self.vocabulary.kind(id))
    }

    /// Whether this token ends an answer (end of text, turn or message). False for ids that are not
    /// in the vocabulary.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.get(id as usize).copied().unwrap_or(false)
    }

    /// Number of tokens.
    pub fn n_vocab(&self) -> usize {
        self.vocabulary.len()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// The token for text that has none.
    pub fn unknown(&self) -> Option<u32> {
        self.unknown
    }

    /// The token that fills up batches.
    pub fn padding(&self) -> Option<u32> {
        self.padding
    }

    /// Whether `add_special` adds a BOS token.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether `add_special` adds an EOS token.
    pub fn adds_eos(&self) -> bool {
        self.add_eos
    }

    fn check(&self, id: u32) -> Result<()> {
        if id as usize >= self.n_vocab() {
            fail!(
                InvalidToken,
                "token {id} is not in the vocabulary of {}",
                self.n_vocab()
            );
        }
        Ok(())
    }
}

/// Marks control tokens whose text is known to end answers.
fn mark_ends(vocabulary: &Vocabulary, ends: &mut [bool]) {
    let is_control = |id: &u32| vocabulary.kind(*id) == TokenKind::Control;
    let controls: Vec<u32> = (0..ends.len() as u32).filter(is_control).collect();
    let has = |text: &str| {
        controls
            .iter()
            .any(|id| vocabulary.token(*id) == text.as_bytes())
    };
    // Where answers end with these two, "<|end|>" only separates the messages of one answer.
    let harmony = has("<|return|>") && has("<|call|>");
    for id in &controls {
        let text = vocabulary.token(*id);
        if harmony && text == b"<|end|>" {
            continue;
        }
        if END_MARKERS.iter().any(|end| end.as_bytes() == text) {
            ends[*id as usize] = true;
        }
    }
}

fn push_all(out: &mut Vec<u32>, tokens: &[u32]) -> Result<()> {
    if out.try_reserve(tokens.len()).is_err() {
        fail!(OutOfMemory, "no memory for {} more tokens", tokens.len());
    }
    out.extend_from_slice(tokens);
    Ok(())
}
