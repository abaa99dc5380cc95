//! Text to token ids and back, as the model file describes it.

use super::gguf;
use super::json;
use super::keys::Metadata;
use super::model::{Model, Scratch, push_all};
use super::normalizer::Normalizer;
use super::pretokenizer::PreTokenizer;
use super::specials::{Allow, Part, Special, Specials};
use super::vocabulary::{TokenKind, Vocabulary};
use crate::budget::Budget;
use crate::error::{Result, fail, try_vec};
use crate::format::ModelFile;
use crate::memory::Room;

/// Texts of control tokens that end an answer, whatever else the file says.
const END_MARKERS: [&str; 19] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<turn|>",
    // What the host has to say next.
    "<|tool_response>",
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
    /// The tokens go on where other text ends: keep the space that tokenizers of the SentencePiece
    /// kind put before a text, and that is otherwise taken off its start.
    pub continued: bool,
}

/// A tokenizer. May be used from many threads at once.
pub struct Tokenizer {
    parts: Parts,
    /// Per token: whether it ends an answer.
    ends: Vec<bool>,
    /// Those that do.
    end_tokens: Vec<u32>,
}

/// What a tokenizer is made of. Text goes through it in this order.
pub(super) struct Parts {
    /// Recognized in the text as it is.
    pub specials: Specials,
    pub normalizer: Normalizer,
    /// Recognized in what the normalizer makes of the rest.
    pub normalized_specials: Specials,
    pub pretokenizer: PreTokenizer,
    pub model: Model,
    pub vocabulary: Vocabulary,
    /// What `add_special` adds before and behind.
    pub prefix: Vec<u32>,
    pub suffix: Vec<u32>,
    /// Whether the suffix stands twice between the texts of a pair.
    pub pair_doubles: bool,
    /// A space at the start of decoded text comes from the tokenizer.
    pub strips_space: bool,
    /// A space goes before special tokens, as before words.
    pub spaces_specials: bool,
    /// A space at the end of decoded text comes from the tokenizer.
    pub strips_end_space: bool,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unknown: Option<u32>,
    pub padding: Option<u32>,
    /// Tokens that end an answer, besides those that are known by their texts.
    pub ends: Vec<u32>,
}

impl Parts {
    /// A tokenizer that is nothing but a model.
    /// Errors: `OutOfMemory`.
    pub fn new(vocabulary: Vocabulary, model: Model) -> Result<Self> {
        let none = || Specials::new(Vec::new(), &Budget::for_vocabulary(0));
        Ok(Parts {
            specials: none()?,
            normalizer: Normalizer::default(),
            normalized_specials: none()?,
            pretokenizer: PreTokenizer::default(),
            model,
            vocabulary,
            prefix: Vec::new(),
            suffix: Vec::new(),
            pair_doubles: false,
            strips_space: false,
            spaces_specials: false,
            strips_end_space: false,
            bos: None,
            eos: None,
            unknown: None,
            padding: None,
            ends: Vec::new(),
        })
    }

    /// The tokenizer. Errors: `OutOfMemory`.
    pub fn build(mut self) -> Result<Tokenizer> {
        // As RoBERTa's relatives were trained.
        self.pair_doubles |= matches!(self.model, Model::Unigram(_));
        let mut ends = try_vec(self.vocabulary.len(), false, "end-of-answer flags")?;
        for end in &self.ends {
            ends[*end as usize] = true;
        }
        mark_ends(&self.vocabulary, &mut ends);
        let marked = ends.iter().enumerate().filter(|(_, end)| **end);
        let end_tokens = marked.map(|(id, _)| id as u32).collect();
        Ok(Tokenizer {
            parts: self,
            ends,
            end_tokens,
        })
    }
}

impl Tokenizer {
    /// The tokenizer of a model file; see [`from_metadata`](Self::from_metadata), and
    /// [`from_json`](Self::from_json) for a folder. `InvalidModel` if the folder's has more tokens
    /// than the model.
    pub fn from_file(file: &ModelFile) -> Result<Self> {
        let Some(files) = &file.text_files else {
            return Self::from_metadata(&file.metadata);
        };
        let tokenizer = json::folder(files)?;
        let n_vocab = file.u32(&format!("{}.vocab_size", file.str("general.architecture")?))?;
        if tokenizer.n_vocab() > n_vocab as usize {
            fail!(
                InvalidModel,
                "tokenizer.json has {} tokens, but vocab_size in config.json is {n_vocab}",
                tokenizer.n_vocab()
            );
        }
        Ok(tokenizer)
    }

    /// The tokenizer that the `tokenizer.ggml.*` keys describe: byte-level BPE (`gpt2`), SentencePiece
    /// (`llama`), Gemma 4's (`gemma4`), Unigram (`t5`) or WordPiece (`bert`).
    ///
    /// Errors: `MissingKey` for a key that is absent or has another type; `FileCorrupt` for lists
    /// that contradict each other, naming key and entry; `Unsupported` for other kinds of tokenizer
    /// and for a pre-tokenizer that is not known, naming it; `OutOfMemory`.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self> {
        gguf::tokenizer(metadata)
    }

    /// The tokenizer that a `tokenizer.json` of Hugging Face's tokenizers library describes, and the
    /// `tokenizer_config.json` beside it, which names the special tokens and says which of them are
    /// added.
    ///
    /// Errors: `FileCorrupt` for JSON that is malformed or contradicts itself, and `Unsupported` for
    /// a component that is not known, both naming the place; `OutOfMemory`.
    pub fn from_json(tokenizer: &[u8], config: Option<&[u8]>) -> Result<Self> {
        json::tokenizer(tokenizer, config)
    }

    /// Appends the tokens of `text` to `out`; on an error `out` is as it was. Bytes that the
    /// vocabulary lacks become the unknown token, or nothing if there is none.
    /// Errors: `OutOfMemory`; `InvalidArgument` if text without a cut is 4 GiB or longer, or if the
    /// tokenizer takes too much work or memory for it.
    pub fn encode(&self, text: &str, options: EncodeOptions, out: &mut Vec<u32>) -> Result<()> {
        self.encode_within(&Budget::for_text(text.len()), text, options, out)
    }

    /// As [`encode`](Self::encode) with a budget of the caller's. Errors: those of the budget, too.
    pub fn encode_within(
        &self,
        budget: &Budget,
        text: &str,
        options: EncodeOptions,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let length = out.len();
        let result = self.encode_all(budget, text, options, out);
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
        budget: &Budget,
        text: &str,
        may_parse: &dyn Fn(usize, usize, u32) -> Result<bool>,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let length = out.len();
        let may = |start: usize, end: usize, special: &Special| may_parse(start, end, special.id);
        let encoded = self.encode_where(budget, text, &Allow::Where(&may), out);
        let result = encoded.and_then(|()| {
            let (prefix, suffix) = (&self.parts.prefix, &self.parts.suffix);
            if !out[length..].starts_with(prefix) {
                push_all(out, prefix)?;
                out[length..].rotate_right(prefix.len());
            }
            if !out[length..].ends_with(suffix) {
                push_all(out, suffix)?;
            }
            Ok(())
        });
        if result.is_err() {
            out.truncate(length);
        }
        result
    }

    fn encode_all(
        &self,
        budget: &Budget,
        text: &str,
        options: EncodeOptions,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        if options.add_special {
            push_all(out, &self.parts.prefix)?;
        }
        let allow = match options.parse_special {
            true => Allow::All,
            false => Allow::Ordinary,
        };
        self.encode_where(budget, text, &allow, out)?;
        if options.add_special {
            push_all(out, &self.parts.suffix)?;
        }
        Ok(())
    }

    /// Encodes a text in which `allow` says which special tokens count.
    fn encode_where(
        &self,
        budget: &Budget,
        text: &str,
        allow: &Allow,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let room = Room::for_input(text.len())?;
        let _in_room = room.enter();
        let parts = &self.parts;
        let mut scratch = Scratch::default();
        parts
            .specials
            .split(text, allow, budget, &mut |part| match part {
                Part::Token(id) => push_all(out, &[id]),
                Part::Text(text, start) => {
                    let normal = parts.normalizer.apply(text, budget)?;
                    let mut plain = |text: &str, first: bool, out: &mut Vec<u32>| {
                        parts.pretokenizer.split(text, first, budget, &mut |piece| {
                            let model = &parts.model;
                            model.encode(&parts.vocabulary, piece, &mut scratch, budget, out)
                        })
                    };
                    if parts.normalized_specials.is_empty() {
                        return plain(&normal, start == 0, out);
                    }
                    // Places in the normalized text say nothing unless it is the text itself.
                    let same = *normal == *text;
                    let may_here = |from: usize, to: usize, special: &Special| match allow {
                        Allow::Where(may) if same => may(start + from, start + to, special),
                        Allow::Where(may) => may(start, start + text.len(), special),
                        Allow::All => Ok(true),
                        Allow::Ordinary => Ok(!special.control),
                    };
                    let allow = match allow {
                        Allow::All => Allow::All,
                        Allow::Ordinary => Allow::Ordinary,
                        Allow::Where(_) => Allow::Where(&may_here),
                    };
                    let specials = &parts.normalized_specials;
                    specials.split(&normal, &allow, budget, &mut |part| match part {
                        Part::Token(id) => push_all(out, &[id]),
                        Part::Text(text, offset) => plain(text, start + offset == 0, out),
                    })
                }
            })
    }

    /// Appends the bytes of the tokens to `out`; on an error `out` is as it was. The bytes are
    /// UTF-8 as far as the tokens make whole characters; see [`TextStream`](super::TextStream).
    /// Errors: `InvalidToken` for an id that is not in the vocabulary; `OutOfMemory`.
    pub fn decode(&self, ids: &[u32], options: DecodeOptions, out: &mut Vec<u8>) -> Result<()> {
        let mut total = 0usize;
        for (index, id) in ids.iter().enumerate() {
            let bytes = self.token_bytes(*id).map_err(|e| e.at(index))?;
            total = total.saturating_add(bytes.len() + 1);
        }
        if out.try_reserve(total).is_err() {
            fail!(OutOfMemory, "text of {total} bytes could not be allocated");
        }
        let vocabulary = &self.parts.vocabulary;
        let mut strips = self.parts.strips_space && !options.continued;
        for id in ids {
            if vocabulary.kind(*id).is_control() && options.skip_special {
                continue;
            }
            let mut bytes = vocabulary.token(*id);
            let special =
                vocabulary.kind(*id).is_control() || vocabulary.kind(*id) == TokenKind::UserDefined;
            if special && self.parts.spaces_specials && (!strips || options.continued) {
                out.push(b' ');
            }
            if strips && !bytes.is_empty() {
                bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
                strips = false;
            }
            out.extend_from_slice(bytes);
        }
        if self.parts.strips_end_space && out.last() == Some(&b' ') && !ids.is_empty() {
            out.pop();
        }
        Ok(())
    }

    /// The bytes of one token, of which text consists that goes on; control tokens give their names. `InvalidToken` if there is no such
    /// token.
    pub fn token_bytes(&self, id: u32) -> Result<&[u8]> {
        self.check(id)?;
        Ok(self.parts.vocabulary.token(id))
    }

    /// What a token is for; `InvalidToken` if there is no such token.
    pub fn kind(&self, id: u32) -> Result<TokenKind> {
        self.check(id)?;
        Ok(self.parts.vocabulary.kind(id))
    }

    /// Whether this token ends an answer (end of text, turn or message). False for ids that are not
    /// in the vocabulary.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.get(id as usize).copied().unwrap_or(false)
    }

    /// All tokens that end an answer, in ascending order.
    pub fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    /// Number of tokens.
    pub fn n_vocab(&self) -> usize {
        self.parts.vocabulary.len()
    }

    /// Whether a space at the start of decoded text comes from the tokenizer.
    pub(super) fn strips_space(&self) -> bool {
        self.parts.strips_space
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.parts.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.parts.eos
    }

    /// The token for text that has none.
    pub fn unknown(&self) -> Option<u32> {
        self.parts.unknown
    }

    /// The token that fills up batches.
    pub fn padding(&self) -> Option<u32> {
        self.parts.padding
    }

    /// What `add_special` adds before a text.
    pub fn prefix(&self) -> &[u32] {
        &self.parts.prefix
    }

    /// What `add_special` adds behind a text.
    pub fn suffix(&self) -> &[u32] {
        &self.parts.suffix
    }

    /// What stands between the texts of a pair, which are one behind the other with a prefix and a
    /// suffix as one text has: the suffix, and where the model was trained so, once more.
    pub fn separator(&self) -> Vec<u32> {
        let suffix = &self.parts.suffix;
        match self.parts.pair_doubles {
            true => suffix.iter().chain(suffix).copied().collect(),
            false => suffix.clone(),
        }
    }

    /// The control token or added token of this text.
    pub fn special(&self, text: &str) -> Option<u32> {
        let all = 0..self.n_vocab() as u32;
        let vocabulary = &self.parts.vocabulary;
        let special = |id: &u32| {
            let kind = vocabulary.kind(*id);
            kind.is_control() || kind == TokenKind::UserDefined
        };
        all.filter(special)
            .find(|id| vocabulary.token(*id) == text.as_bytes())
    }

    /// Whether `add_special` adds a BOS token.
    pub fn adds_bos(&self) -> bool {
        self.parts
            .bos
            .is_some_and(|bos| self.parts.prefix.contains(&bos))
    }

    /// Whether `add_special` adds an EOS token.
    pub fn adds_eos(&self) -> bool {
        self.parts
            .eos
            .is_some_and(|eos| self.parts.suffix.contains(&eos))
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
    // Some converters call these tokens of Gemma 4 ordinary added ones.
    let is_turn = |id: &u32| matches!(vocabulary.token(*id), b"<turn|>" | b"<|tool_response>");
    let is_control = |id: &u32| match vocabulary.kind(*id) {
        TokenKind::Control => true,
        TokenKind::UserDefined => is_turn(id),
        _ => false,
    };
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
