//! The layout of a saved session, version 1. All numbers are little endian.
//!
//! A header of [`HEADER_BYTES`] bytes, then three sections: settings, tokens (`u32` each), and the
//! state's stream ([`crate::backend::state`]). A section is cut into parts of [`PART_BYTES`] bytes,
//! the last of which may be shorter. A part is preceded by its section's number, its index in the
//! section (`u32` each) and a checksum of its bytes (`u64`: XXH3 with a seed made of the two numbers
//! and the length). So each byte of a file is under a checksum, and all lengths follow from the
//! header.

use super::super::grammar::SavedGrammar;
use super::super::sampling::{Breakers, Dry, Sampling, TokenRules};
use super::super::{MAX_ADAPTERS, Model};
use super::input::Input;
use crate::backend::state::WindowState;
use crate::backend::{KvType, StateInfo};
use crate::error::{Result, fail, try_vec};
use crate::grammar::{GrammarKind, JsonSpacing};
use twox_hash::XxHash3_64;

/// What every saved session begins with.
const MAGIC: [u8; 8] = *b"EMBERSES";
/// The versions that are written, without adapters and with. Older ones are read.
const VERSIONS: [u32; 2] = [1, 2];
const VERSION: u32 = VERSIONS[1];
/// Bytes of the header.
pub(super) const HEADER_BYTES: usize = 96;
/// Bytes of a part, at most.
pub(super) const PART_BYTES: usize = 1 << 20;
/// Bytes before a part.
pub(super) const PART_HEADER_BYTES: usize = 16;
/// The most bytes that settings can have: a grammar, and a number for each token of a vocabulary.
const MAX_SETTINGS_BYTES: u64 = 64 << 20;
/// The most tokens.
const MAX_TOKENS: u64 = 1 << 32;

/// What is saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// All of it: restored without evaluating anything.
    #[default]
    Everything,
    /// Tokens and settings: few bytes per token, which are evaluated when the session is restored.
    Tokens,
}

/// A run of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Settings = 1,
    Tokens = 2,
    Stream = 3,
}

/// The checksum of a part.
pub(super) fn checksum(section: Section, index: u32, bytes: &[u8]) -> u64 {
    let seed = (section as u64) << 56 ^ u64::from(index) << 24 ^ bytes.len() as u64;
    XxHash3_64::oneshot_with_seed(seed, bytes)
}

/// Bytes of a section with its parts' headers.
fn stored_bytes(bytes: u64) -> u64 {
    bytes + bytes.div_ceil(PART_BYTES as u64) * PART_HEADER_BYTES as u64
}

/// The header of a saved session.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub kind: Kind,
    /// Of the model and of its tokenizer.
    pub fingerprints: [u64; 2],
    pub settings_bytes: u64,
    pub n_tokens: usize,
    pub stream_bytes: u64,
    pub kv_type: KvType,
    /// Positions in the state.
    pub len: usize,
    /// The session's context.
    pub context: usize,
    pub version: u32,
}

fn kv_number(kv_type: KvType) -> u32 {
    match kv_type {
        KvType::F16 => 1,
        KvType::F32 => 2,
        KvType::Q8_0 => 3,
    }
}

impl Header {
    /// The header of a session that is saved; the rest of the lengths comes when they are known.
    pub fn new(model: &Model, kind: Kind, context: usize, n_tokens: usize) -> Header {
        Header {
            kind,
            fingerprints: model.fingerprints(),
            settings_bytes: 0,
            n_tokens,
            stream_bytes: 0,
            kv_type: KvType::F16,
            len: 0,
            context,
            version: VERSIONS[0],
        }
    }

    /// The same of a session with adapters, if it has any.
    pub fn with_adapters(mut self, any: bool) -> Header {
        self.version = VERSIONS[usize::from(any)];
        self
    }

    /// Bytes of the whole file.
    pub fn total_bytes(&self) -> u64 {
        let sections = [
            self.settings_bytes,
            self.n_tokens as u64 * 4,
            self.stream_bytes,
        ];
        HEADER_BYTES as u64 + sections.into_iter().map(stored_bytes).sum::<u64>()
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = Encoder(Vec::with_capacity(HEADER_BYTES));
        out.0.extend_from_slice(&MAGIC);
        out.u32(self.version);
        out.u32(self.kind as u32);
        out.u64(self.total_bytes());
        self.fingerprints.into_iter().for_each(|f| out.u64(f));
        out.u64(self.settings_bytes);
        out.u64(self.n_tokens as u64);
        out.u64(self.stream_bytes);
        out.u32(PART_BYTES as u32);
        out.u32(kv_number(self.kv_type));
        out.u64(self.len as u64);
        out.u64(self.context as u64);
        let sum = XxHash3_64::oneshot(&out.0);
        out.u64(sum);
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(&out.0);
        bytes
    }

    /// Reads and checks the header, and the length of the file where that is known.
    ///
    /// Errors: `NotState`, `StateVersion`, `StateChecksum`, `FileTruncated`, `FileCorrupt`.
    pub fn read(input: &mut Input<'_>) -> Result<Header> {
        let mut bytes = [0u8; HEADER_BYTES];
        let found = input.raw(&mut bytes)?;
        let start = &bytes[..found.min(MAGIC.len())];
        if found == 0 || start != &MAGIC[..start.len()] {
            fail!(NotState, "not a saved session");
        }
        if found < HEADER_BYTES {
            fail!(
                FileTruncated,
                "the saved session ends at byte {found}, within its header"
            );
        }
        let mut from = Decoder {
            bytes: &bytes,
            at: MAGIC.len(),
        };
        let version = from.u32()?;
        if !VERSIONS.contains(&version) {
            fail!(
                StateVersion,
                "the session was saved in version {version} of the format; this library reads up to {VERSION}"
            );
        }
        let sum = u64::from_le_bytes(*bytes.last_chunk().unwrap_or(&[0; 8]));
        if XxHash3_64::oneshot(&bytes[..HEADER_BYTES - 8]) != sum {
            fail!(
                StateChecksum,
                "the header of the saved session has changed since it was written"
            );
        }
        let kind = match from.u32()? {
            0 => Kind::Everything,
            1 => Kind::Tokens,
            n => fail!(FileCorrupt, "the saved session is of unknown kind {n}"),
        };
        let total = from.u64()?;
        let fingerprints = [from.u64()?, from.u64()?];
        let settings_bytes = from.u64()?;
        let n_tokens = from.u64()?;
        let stream_bytes = from.u64()?;
        let part_bytes = from.u32()?;
        let kv_type = match from.u32()? {
            1 => KvType::F16,
            2 => KvType::F32,
            3 => KvType::Q8_0,
            n => fail!(FileCorrupt, "the saved KV cache is of unknown type {n}"),
        };
        let (len, context) = (from.u64()?, from.u64()?);
        let possible = settings_bytes <= MAX_SETTINGS_BYTES
            && n_tokens <= context
            && context <= MAX_TOKENS
            && len <= n_tokens
            && stream_bytes < 1 << 50
            && part_bytes as usize == PART_BYTES;
        let header = Header {
            kind,
            fingerprints,
            settings_bytes,
            n_tokens: n_tokens as usize,
            stream_bytes,
            kv_type,
            len: len as usize,
            context: context as usize,
            version,
        };
        if !possible || header.total_bytes() != total {
            fail!(
                FileCorrupt,
                "the lengths in the header of the saved session contradict each other"
            );
        }
        input.expect(total)?;
        Ok(header)
    }

    /// `StateForeign` if this is not a session of that model.
    pub fn check_model(&self, model: &Model) -> Result<()> {
        let [network, tokenizer] = model.fingerprints();
        if self.fingerprints[0] != network {
            fail!(
                StateForeign,
                "the session was saved with another model: its fingerprint is {:016x}, the model's {network:016x}",
                self.fingerprints[0]
            );
        }
        if self.fingerprints[1] != tokenizer {
            fail!(
                StateForeign,
                "the session was saved with another tokenizer: its fingerprint is {:016x}, the model's {tokenizer:016x}",
                self.fingerprints[1]
            );
        }
        Ok(())
    }

    /// Checks the state's length against what its layout asks for.
    pub fn check_stream(&self, info: &StateInfo, layout_bytes: Option<u64>) -> Result<()> {
        let expected = match self.kind {
            Kind::Everything => layout_bytes,
            Kind::Tokens => Some(0),
        };
        if expected != Some(self.stream_bytes) || info.len != self.len {
            fail!(
                FileCorrupt,
                "the saved state has {} bytes for {} positions, which is not what they take",
                self.stream_bytes,
                self.len
            );
        }
        Ok(())
    }

    /// Reads the tokens.
    pub fn read_tokens(&self, input: &mut Input<'_>) -> Result<Vec<u32>> {
        input.section(Section::Tokens, self.n_tokens as u64 * 4);
        let mut tokens = Vec::new();
        let mut buffer = [0u8; 4096];
        while tokens.len() < self.n_tokens {
            let n = (self.n_tokens - tokens.len()).min(buffer.len() / 4);
            let bytes = &mut buffer[..n * 4];
            input.next(bytes)?;
            if tokens.try_reserve(n).is_err() {
                fail!(OutOfMemory, "no memory for {} tokens", self.n_tokens);
            }
            let token = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            tokens.extend(bytes.chunks_exact(4).map(token));
        }
        Ok(tokens)
    }
}

/// What a saved session is.
#[derive(Clone, Debug)]
pub struct StateDetails {
    /// Version of its format.
    pub version: u32,
    /// What is saved.
    pub kind: Kind,
    /// Element type of its KV cache.
    pub kv_type: KvType,
    /// The session's context.
    pub context: usize,
    /// Tokens in the context.
    pub position: usize,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// What tells the model and its tokenizer from others.
    pub fingerprints: [u64; 2],
    /// Of the model.
    pub architecture: String,
    /// The model's name; may be empty.
    pub name: String,
    /// Fingerprints and scales of its adapters.
    pub adapters: Vec<(u64, f32)>,
}

impl StateDetails {
    pub(super) fn new(header: &Header, settings: &Settings) -> StateDetails {
        StateDetails {
            version: header.version,
            kind: header.kind,
            kv_type: header.kv_type,
            context: header.context,
            position: header.n_tokens,
            file_bytes: header.total_bytes(),
            fingerprints: header.fingerprints,
            architecture: settings.architecture.clone(),
            name: settings.name.clone(),
            adapters: settings.adapters.clone(),
        }
    }
}

/// Rules for single tokens, without a vocabulary.
#[derive(Default)]
pub(super) struct SavedRules {
    bias: Vec<(u32, f32)>,
    breakers: Vec<Vec<u32>>,
}

impl SavedRules {
    /// What rules say.
    pub fn of(rules: &TokenRules) -> SavedRules {
        let biased = rules.bias().iter().enumerate().filter(|(_, b)| **b != 0.0);
        let breakers = rules.breakers();
        let single = breakers.single_tokens().map(|token| vec![token]);
        let longer = breakers.sequences().iter().map(|s| s.to_vec());
        SavedRules {
            bias: biased.map(|(id, bias)| (id as u32, *bias)).collect(),
            breakers: single.chain(longer).collect(),
        }
    }

    /// The rules for a vocabulary of `n_vocab` tokens.
    pub fn make(self, n_vocab: usize) -> Result<TokenRules> {
        let breakers = Breakers::new(n_vocab, self.breakers.iter().map(|s| &s[..]))?;
        TokenRules::new(n_vocab, self.bias.into_iter(), &[], &[], breakers)
    }
}

/// What is saved beside tokens, keys and values.
pub(super) struct Settings {
    /// What the stream holds.
    pub info: Option<StateInfo>,
    pub sampling: Sampling,
    pub rules: Option<SavedRules>,
    pub grammar: Option<SavedGrammar>,
    /// Fingerprints and scales.
    pub adapters: Vec<(u64, f32)>,
    pub architecture: String,
    pub name: String,
}

impl Settings {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder(Vec::new());
        out.text(&self.architecture);
        out.text(&self.name);
        let windows = self.info.as_ref().map_or(&[][..], |info| &info.windows);
        out.u32(u32::from(self.info.as_ref().is_some_and(|i| i.has_logits)));
        out.u32(windows.len() as u32);
        for w in windows {
            out.u64(w.window as u64);
            out.u64(w.from as u64);
        }
        let s = &self.sampling;
        for number in [s.temperature, s.top_p, s.min_p, s.typical_p] {
            out.f32(number);
        }
        for number in [s.repeat_penalty, s.presence_penalty, s.frequency_penalty] {
            out.f32(number);
        }
        out.f32(s.dry.multiplier);
        out.f32(s.dry.base);
        for number in [s.top_k, s.penalty_window, s.dry.allowed_length] {
            out.u32(number);
        }
        out.u32(s.dry.window);
        out.u32(s.logprobs);
        out.u64(s.seed);
        out.u32(u32::from(self.rules.is_some()));
        if let Some(rules) = &self.rules {
            out.rules(rules);
        }
        out.u32(u32::from(self.grammar.is_some()));
        if let Some(grammar) = &self.grammar {
            out.grammar(grammar);
        }
        if !self.adapters.is_empty() {
            out.u64(self.adapters.len() as u64);
        }
        for (fingerprint, scale) in &self.adapters {
            out.u64(*fingerprint);
            out.f32(*scale);
        }
        out.0
    }

    /// Reads them.
    pub fn read(input: &mut Input<'_>, header: &Header) -> Result<Settings> {
        input.section(Section::Settings, header.settings_bytes);
        let mut bytes = Vec::new();
        // Grows as far as there are parts in order, so that a length alone takes no memory.
        while (bytes.len() as u64) < header.settings_bytes {
            let n = PART_BYTES.min((header.settings_bytes - bytes.len() as u64) as usize);
            let at = bytes.len();
            if bytes.try_reserve_exact(n).is_err() {
                fail!(OutOfMemory, "no memory for the settings of a saved session");
            }
            bytes.resize(at + n, 0);
            input.next(&mut bytes[at..])?;
        }
        let mut from = Decoder {
            bytes: &bytes,
            at: 0,
        };
        let settings = from.settings(header)?;
        if from.at != bytes.len() {
            fail!(
                FileCorrupt,
                "the settings of the saved session are too long"
            );
        }
        Ok(settings)
    }
}

/// Appends numbers.
struct Encoder(Vec<u8>);

impl Encoder {
    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn f32(&mut self, value: f32) {
        self.u32(value.to_bits());
    }

    fn text(&mut self, text: &str) {
        self.u64(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    fn tokens(&mut self, tokens: &[u32]) {
        self.u64(tokens.len() as u64);
        tokens.iter().for_each(|t| self.u32(*t));
    }

    fn rules(&mut self, rules: &SavedRules) {
        self.u64(rules.bias.len() as u64);
        for (id, bias) in &rules.bias {
            self.u32(*id);
            self.f32(*bias);
        }
        self.u64(rules.breakers.len() as u64);
        rules.breakers.iter().for_each(|s| self.tokens(s));
    }

    fn grammar(&mut self, grammar: &SavedGrammar) {
        self.u32(match grammar.source.kind {
            GrammarKind::JsonSchema => 1,
            GrammarKind::Regex => 2,
            GrammarKind::Lark => 3,
            GrammarKind::Gbnf => 4,
        });
        self.u32(match grammar.source.spacing {
            JsonSpacing::Spaced => 0,
            JsonSpacing::Compact => 1,
            JsonSpacing::Free => 2,
        });
        self.text(&grammar.source.text);
        self.u64(grammar.origins.len() as u64);
        for (origin, count) in &grammar.origins {
            self.u32(*origin);
            self.u64(*count as u64);
        }
        self.tokens(&grammar.pending);
    }
}

/// Reads numbers from the front.
struct Decoder<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Decoder<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let Some(taken) = self.bytes.get(self.at..).and_then(|rest| rest.get(..n)) else {
            fail!(
                FileCorrupt,
                "the settings of the saved session end at byte {}",
                self.bytes.len()
            );
        };
        self.at += n;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32> {
        let b = self.take(4)?;
        Ok(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from(self.u32()?) | u64::from(self.u32()?) << 32)
    }

    fn f32(&mut self) -> Result<f32> {
        Ok(f32::from_bits(self.u32()?))
    }

    /// A number of things, of which each takes at least `least` bytes of what is left.
    fn count(&mut self, least: usize) -> Result<usize> {
        let n = self.u64()?;
        let most = (self.bytes.len() - self.at) / least.max(1);
        if n > most as u64 {
            fail!(
                FileCorrupt,
                "the settings of the saved session count {n} things where {most} fit"
            );
        }
        Ok(n as usize)
    }

    fn flag(&mut self) -> Result<bool> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            n => fail!(FileCorrupt, "a flag of the saved session is {n}"),
        }
    }

    fn text(&mut self) -> Result<String> {
        let n = self.count(1)?;
        match std::str::from_utf8(self.take(n)?) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => fail!(FileCorrupt, "a text of the saved session is not UTF-8"),
        }
    }

    fn tokens(&mut self) -> Result<Vec<u32>> {
        let n = self.count(4)?;
        let mut tokens = try_vec(n, 0u32, "tokens of a saved session")?;
        for token in &mut tokens {
            *token = self.u32()?;
        }
        Ok(tokens)
    }

    fn settings(&mut self, header: &Header) -> Result<Settings> {
        let (architecture, name) = (self.text()?, self.text()?);
        let has_logits = self.flag()?;
        let n_windows = self.u32()? as usize;
        let mut windows = Vec::new();
        for _ in 0..n_windows {
            let (window, from) = (self.u64()? as usize, self.u64()? as usize);
            windows.push(WindowState { window, from });
        }
        let info = StateInfo {
            kv_type: header.kv_type,
            len: header.len,
            has_logits,
            windows,
        };
        let [temperature, top_p, min_p, typical_p] =
            [self.f32()?, self.f32()?, self.f32()?, self.f32()?];
        let [repeat_penalty, presence_penalty, frequency_penalty] =
            [self.f32()?, self.f32()?, self.f32()?];
        let (multiplier, base) = (self.f32()?, self.f32()?);
        let [top_k, penalty_window, allowed_length] = [self.u32()?, self.u32()?, self.u32()?];
        let sampling = Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            typical_p,
            penalty_window,
            repeat_penalty,
            presence_penalty,
            frequency_penalty,
            dry: Dry {
                multiplier,
                base,
                allowed_length,
                window: self.u32()?,
            },
            logprobs: self.u32()?,
            seed: self.u64()?,
        };
        let rules = match self.flag()? {
            true => Some(self.rules()?),
            false => None,
        };
        let grammar = match self.flag()? {
            true => Some(self.grammar(header.n_tokens)?),
            false => None,
        };
        let mut adapters = Vec::new();
        if header.version == VERSIONS[1] {
            let n = self.count(12)?;
            if !(1..=MAX_ADAPTERS).contains(&n) {
                fail!(FileCorrupt, "the saved session has {n} adapters");
            }
            for _ in 0..n {
                adapters.push((self.u64()?, self.f32()?));
            }
        }
        Ok(Settings {
            info: Some(info),
            sampling,
            rules,
            grammar,
            adapters,
            architecture,
            name,
        })
    }

    fn rules(&mut self) -> Result<SavedRules> {
        let mut rules = SavedRules::default();
        for _ in 0..self.count(8)? {
            rules.bias.push((self.u32()?, self.f32()?));
        }
        for _ in 0..self.count(8)? {
            rules.breakers.push(self.tokens()?);
        }
        Ok(rules)
    }

    fn grammar(&mut self, n_tokens: usize) -> Result<SavedGrammar> {
        let kind = match self.u32()? {
            1 => GrammarKind::JsonSchema,
            2 => GrammarKind::Regex,
            3 => GrammarKind::Lark,
            4 => GrammarKind::Gbnf,
            n => fail!(FileCorrupt, "the saved grammar is of unknown kind {n}"),
        };
        let spacing = match self.u32()? {
            0 => JsonSpacing::Spaced,
            1 => JsonSpacing::Compact,
            2 => JsonSpacing::Free,
            n => fail!(FileCorrupt, "the saved grammar has unknown spacing {n}"),
        };
        let text = self.text()?;
        let n = self.count(12)?;
        let mut origins = Vec::new();
        let mut total = 0usize;
        for _ in 0..n {
            let (origin, count) = (self.u32()?, self.u64()? as usize);
            total = total.saturating_add(count);
            origins.push((origin, count));
        }
        if total != n_tokens {
            fail!(
                FileCorrupt,
                "the saved grammar knows {total} tokens of {n_tokens}"
            );
        }
        Ok(SavedGrammar::new(
            kind,
            spacing,
            text,
            origins,
            self.tokens()?,
        ))
    }
}
