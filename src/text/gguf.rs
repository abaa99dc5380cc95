//! The tokenizer that the `tokenizer.ggml.*` keys of a model file describe.

use super::automaton::Automaton;
use super::bpe::{Bpe, Merges, NONE, Units};
use super::byte_level::Alphabet;
use super::charset::CharSet;
use super::charsmap::Charsmap;
use super::keys::{
    MERGES, Metadata, TOKENS, boolean, charsmap, kinds, scores, string, strings, token_id,
};
use super::model::Model;
use super::normalizer::{Bert, Normalizer, SPACE, SentencePiece, Step};
use super::pattern::Pattern;
use super::plamo::Plamo;
use super::pretokenizer::{Behavior, Cutter, PreTokenizer};
use super::rules::Rule;
use super::sentencepiece::Scores;
use super::specials::{Special, Specials};
use super::tokenizer::{Parts, Tokenizer};
use super::unigram::Unigram;
use super::vocabulary::{
    Builder, Entry, MAX_TOKEN_BYTES, TokenKind, Vocabulary, shorten, spelled_byte,
};
use super::wordpiece::{WordPiece, clean_up};
use crate::budget::Budget;
use crate::error::{Result, fail};
use crate::format::{Array, Value};

/// Punctuation marks and accents of Unicode 8, whose tables the tokenizers library has.
pub(super) const PUNCTUATION: &str = r"[[\p{P}&&\p{Age=8.0}]!-/:-@\[-`{-~]";
pub(super) const ACCENT: &str = r"[\p{Mn}&&\p{Age=8.0}]";
/// How text is cut; says also which vocabularies that are called byte-level are none.
const PRE: &str = "tokenizer.ggml.pre";
const OF_CHARACTERS: [&str; 2] = ["granite-embed-multi-311m", "sarvam-moe"];
/// Longest word that WordPiece cuts.
const MAX_WORD: usize = 100;

/// The tokenizer of a file; see [`Tokenizer::from_metadata`].
pub(super) fn tokenizer(metadata: &Metadata) -> Result<Tokenizer> {
    let bytes = match metadata.get(TOKENS) {
        Some(Value::Array(Array::String(list))) => list.text_bytes(),
        _ => 0,
    };
    let budget = &Budget::for_vocabulary(bytes);
    match string(metadata, "tokenizer.ggml.model")? {
        Some("gpt2") => match string(metadata, PRE)? {
            Some(pre) if OF_CHARACTERS.contains(&pre) => characters(metadata, budget, false),
            Some("whitespace") => words_of_characters(metadata, budget),
            _ => byte_level(metadata, budget),
        },
        Some("llama") => sentencepiece(metadata, budget),
        Some("gemma4") => characters(metadata, budget, true),
        Some("t5") => unigram(metadata, budget),
        Some("bert") => wordpiece(metadata, budget),
        Some("plamo2") => plamo(metadata, budget),
        Some(other) => {
            let other: String = other.chars().take(100).collect();
            fail!(
                Unsupported,
                "tokenizer.ggml.model: tokenizer {other:?} is not supported, only \"gpt2\" (byte-level BPE), \"llama\" (SentencePiece), \"gemma4\", \"t5\" (Unigram), \"bert\" (WordPiece) and \"plamo2\""
            )
        }
        None => fail!(MissingKey, "metadata key tokenizer.ggml.model is missing"),
    }
}

/// How the texts of tokens are spelled.
enum Spelling {
    /// A character for each byte; texts are what lookups go by.
    Bytes(Box<Alphabet>),
    /// `\u{2581}` is a space.
    Spaces,
    /// `\u{2581}` begins a word.
    Words,
    /// As they are.
    Plain,
}

/// The id of a kind of special token, from its key.
fn id(metadata: &Metadata, name: &str, vocabulary: &Vocabulary) -> Result<Option<u32>> {
    let key = format!("tokenizer.ggml.{name}_token_id");
    token_id(metadata, &key, vocabulary.len())
}

/// The same, or else the id that such tokens usually have, if there is one of its kind.
fn usual_id(
    metadata: &Metadata,
    name: &str,
    vocabulary: &Vocabulary,
    (usual, kind): (u32, TokenKind),
) -> Result<Option<u32>> {
    let is_usual = (usual as usize) < vocabulary.len() && vocabulary.kind(usual) == kind;
    Ok(id(metadata, name, vocabulary)?.or(is_usual.then_some(usual)))
}

/// Reads and checks tokens and their kinds.
fn vocabulary(metadata: &Metadata, spelling: &Spelling) -> Result<Vocabulary> {
    let tokens = strings(metadata, TOKENS)?;
    if tokens.is_empty() {
        fail!(FileCorrupt, "metadata key {TOKENS} has no tokens");
    }
    let total = tokens.text_bytes();
    if tokens.len() >= (1 << 30) || u32::try_from(total).is_err() {
        fail!(
            Unsupported,
            "metadata key {TOKENS}: {} tokens of {total} bytes are too many",
            tokens.len()
        );
    }
    let kinds = kinds(metadata, tokens.len())?;
    let separate = !matches!(spelling, Spelling::Bytes(_));
    let mut builder = Builder::new(tokens.len(), total, separate)?;
    let mut buffer = Vec::new();
    for (index, text) in tokens.iter().enumerate() {
        if text.len() > MAX_TOKEN_BYTES {
            fail!(
                FileCorrupt,
                "metadata key {TOKENS}, entry {index}: a token of {} bytes, {MAX_TOKEN_BYTES} are allowed",
                text.len()
            );
        }
        let kind = kinds[index];
        buffer.clear();
        if kind == TokenKind::Byte {
            match spelled_byte(text) {
                Some(byte) => buffer.push(byte),
                None => fail!(
                    FileCorrupt,
                    "metadata key {TOKENS}, entry {index}: {:?} is not a byte token such as \"<0x0A>\"",
                    shorten(text)
                ),
            }
        }
        let ordinary = matches!(kind, TokenKind::Normal | TokenKind::Unused);
        let mut reachable = ordinary || kind == TokenKind::UserDefined;
        match spelling {
            _ if kind == TokenKind::Byte => reachable = !separate,
            // Files whose converter did not mark added tokens have ordinary ones outside the
            // alphabet; they mean their own text, as in the tokenizers library.
            Spelling::Bytes(alphabet) if ordinary => {
                reachable = alphabet.decode(text, &mut buffer);
                if !reachable {
                    buffer.extend_from_slice(text.as_bytes());
                }
            }
            Spelling::Bytes(_) => {
                reachable = text.bytes().all(|byte| byte.is_ascii_graphic());
                buffer.extend_from_slice(text.as_bytes());
            }
            _ if kind.is_control() => buffer.extend_from_slice(text.as_bytes()),
            Spelling::Plain => buffer.extend_from_slice(text.as_bytes()),
            Spelling::Spaces => {
                buffer.extend_from_slice(text.replace(SPACE, " ").as_bytes());
            }
            Spelling::Words => {
                buffer.extend_from_slice(clean_up(&text.replace(SPACE, " ")).as_bytes())
            }
        }
        builder.push(&Entry {
            text: &buffer,
            spelled: text.as_bytes(),
            kind,
            reachable: reachable && !text.is_empty(),
        })?;
    }
    builder.finish()
}

/// Reads and checks the merges, each two spelled tokens with a space between.
fn merges(metadata: &Metadata, spelling: &Spelling, vocabulary: &Vocabulary) -> Result<Merges> {
    let list = strings(metadata, MERGES)?;
    let mut merges = Merges::with_room(list.len())?;
    let mut bytes = Vec::new();
    for (index, text) in list.iter().enumerate() {
        bytes.clear();
        let mut middle = 0;
        let mut push = |part: &str| {
            middle = bytes.len();
            let good = match spelling {
                Spelling::Bytes(alphabet) => alphabet.decode(part, &mut bytes),
                _ => {
                    bytes.extend_from_slice(part.as_bytes());
                    true
                }
            };
            good && bytes.len() > middle
        };
        let parts = text
            .split_once(' ')
            .filter(|_| text.len() <= 2 * MAX_TOKEN_BYTES + 1);
        if !parts.is_some_and(|(left, right)| push(left) && push(right)) {
            fail!(
                FileCorrupt,
                "metadata key {MERGES}, entry {index}: {:?} is not two spelled tokens",
                shorten(text)
            );
        }
        let find = |bytes: &[u8], part: &str| -> Result<u32> {
            match vocabulary.find(bytes) {
                Some(id) => Ok(id),
                None => fail!(
                    FileCorrupt,
                    "metadata key {MERGES}, entry {index}: {part} of {:?} is not a token",
                    shorten(text)
                ),
            }
        };
        let left = find(&bytes[..middle], "the left part")?;
        let right = find(&bytes[middle..], "the right part")?;
        let token = find(&bytes, "the result")?;
        merges.add(left, right, index as u32, token);
    }
    Ok(merges)
}

/// What is the same in all kinds: special tokens, BOS and EOS.
fn finish(
    (metadata, budget): (&Metadata, &Budget),
    vocabulary: Vocabulary,
    model: Model,
    normalizer: Normalizer,
    pretokenizer: PreTokenizer,
    (bos, eos): (EndToken, EndToken),
) -> Result<Tokenizer> {
    let mut parts = Parts {
        specials: Specials::new(specials(metadata, &vocabulary)?, budget)?,
        unknown: id(metadata, "unknown", &vocabulary)?,
        padding: id(metadata, "padding", &vocabulary)?,
        bos: bos.id,
        eos: eos.id,
        ..Parts::new(vocabulary, model)?
    };
    parts.spaces_specials = matches!(parts.model, Model::WordPiece(_));
    parts.strips_space = matches!(parts.model, Model::WordPiece(_))
        || matches!(normalizer.steps.first(), Some(Step::SentencePiece(s)) if s.add_space_prefix);
    parts.normalizer = normalizer;
    parts.pretokenizer = pretokenizer;
    for (name, end, added) in [
        ("bos", &bos, &mut parts.prefix),
        ("eos", &eos, &mut parts.suffix),
    ] {
        let key = format!("tokenizer.ggml.add_{name}_token");
        let asked = boolean(metadata, &key)?;
        if asked == Some(true) && end.id.is_none() {
            fail!(
                MissingKey,
                "{key} is set, but there is no tokenizer.ggml.{name}_token_id"
            );
        }
        if asked.unwrap_or(end.added) {
            added.extend(end.id);
        }
    }
    for name in ["eos", "eot", "eom"] {
        parts.ends.extend(id(metadata, name, &parts.vocabulary)?);
    }
    parts.ends.extend(eos.id);
    parts.build()
}

/// A token that begins or ends a text.
struct EndToken {
    id: Option<u32>,
    /// Whether it is added where the file does not say.
    added: bool,
}

/// The tokens that are recognized in text before anything else happens to it.
fn specials(metadata: &Metadata, vocabulary: &Vocabulary) -> Result<Vec<Special>> {
    // What the files do not say: these models' own tokenizers take white space along.
    let name = string(metadata, "general.name")?
        .unwrap_or_default()
        .to_lowercase();
    let phi3 = name.contains("phi-3") || name.contains("phi3");
    let phi3 = phi3 && string(metadata, "tokenizer.ggml.model")? == Some("llama");
    let keeps_space: [&[u8]; 3] = [b"<unk>", b"<s>", b"<|endoftext|>"];
    let architecture = string(metadata, "general.architecture")?.unwrap_or_default();
    let mask_strips = ["nomic-bert-moe", "jina-bert-v3"].contains(&architecture);
    let special = |id: u32| {
        let kind = vocabulary.kind(id);
        let text = vocabulary.token(id);
        (kind.is_control() || kind == TokenKind::UserDefined).then(|| Special {
            text: text.into(),
            id,
            control: kind.is_control(),
            takes_left: mask_strips && text == b"<mask>",
            takes_right: phi3 && !keeps_space.contains(&text),
            single_word: false,
        })
    };
    Ok((0..vocabulary.len() as u32).filter_map(special).collect())
}

fn byte_level(metadata: &Metadata, budget: &Budget) -> Result<Tokenizer> {
    let rule = Rule::of(string(metadata, PRE)?.unwrap_or("default"))?;
    let spelling = Spelling::Bytes(Box::new(Alphabet::new()));
    let vocabulary = vocabulary(metadata, &spelling)?;
    let merges = merges(metadata, &spelling, &vocabulary)?;
    let mut units = Box::new([NONE; 256]);
    for (byte, token) in units.iter_mut().enumerate() {
        *token = vocabulary.find(&[byte as u8]).unwrap_or(NONE);
    }
    let bpe = Bpe::new(
        merges,
        Units::Bytes(units),
        rule.whole_pieces,
        vocabulary.len(),
    )?;
    let bpe = bpe.with_unknown(id(metadata, "unknown", &vocabulary)?, false);
    let mut normalizer = Normalizer::default();
    if rule.nfc {
        normalizer.steps.push(Step::Nfc);
    }
    let bos = id(metadata, "bos", &vocabulary)?;
    let eos = id(metadata, "eos", &vocabulary)?;
    let ends = (
        EndToken {
            id: bos,
            added: rule.add_bos,
        },
        EndToken {
            id: eos,
            added: false,
        },
    );
    finish(
        (metadata, budget),
        vocabulary,
        Model::Bpe(bpe),
        normalizer,
        rule.compile(budget)?,
        ends,
    )
}

/// Merges of characters, as Gemma 4 has them: with spaces spelled and bytes for what has no token.
fn characters(metadata: &Metadata, budget: &Budget, add_bos: bool) -> Result<Tokenizer> {
    let vocabulary = vocabulary(metadata, &Spelling::Spaces)?;
    let merges = merges(metadata, &Spelling::Spaces, &vocabulary)?;
    let units = Units::Characters(Some(vocabulary.byte_tokens()));
    let bpe = Bpe::new(merges, units, false, vocabulary.len())?;
    let bpe = bpe.with_unknown(id(metadata, "unknown", &vocabulary)?, true);
    let model = Model::Bpe(bpe);
    let settings = spaces(metadata, false)?;
    let ends = (
        EndToken {
            id: id(metadata, "bos", &vocabulary)?,
            added: add_bos,
        },
        EndToken {
            id: id(metadata, "eos", &vocabulary)?,
            added: false,
        },
    );
    spelled_spaces((metadata, budget), vocabulary, model, settings, ends)
}

/// Merges of characters within words, between which white space is left out.
fn words_of_characters(metadata: &Metadata, budget: &Budget) -> Result<Tokenizer> {
    let vocabulary = vocabulary(metadata, &Spelling::Plain)?;
    let merges = merges(metadata, &Spelling::Plain, &vocabulary)?;
    let bpe = Bpe::new(merges, Units::Characters(None), false, vocabulary.len())?;
    let bpe = bpe.with_unknown(id(metadata, "unknown", &vocabulary)?, false);
    let mut normalizer = Normalizer::default();
    if boolean(metadata, "tokenizer.ggml.normalizer.lowercase")?.unwrap_or(false) {
        normalizer.steps.push(Step::Lowercase);
    }
    let pretokenizer = PreTokenizer {
        cutters: vec![Cutter::Split {
            pattern: Pattern::Character(CharSet::new(r"\s")),
            behavior: Behavior::Removed,
            invert: false,
        }],
    };
    let end = |name| {
        let id = id(metadata, name, &vocabulary)?;
        Ok::<_, crate::Error>(EndToken { id, added: false })
    };
    let ends = (end("bos")?, end("eos")?);
    finish(
        (metadata, budget),
        vocabulary,
        Model::Bpe(bpe),
        normalizer,
        pretokenizer,
        ends,
    )
}

/// A tokenizer whose tokens spell spaces.
fn spelled_spaces(
    source: (&Metadata, &Budget),
    vocabulary: Vocabulary,
    model: Model,
    settings: SentencePiece,
    ends: (EndToken, EndToken),
) -> Result<Tokenizer> {
    let normalizer = Normalizer {
        steps: vec![Step::SentencePiece(settings)],
    };
    let cutter = space_starts(&vocabulary);
    finish(source, vocabulary, model, normalizer, cutter, ends)
}

/// The settings of SentencePiece's normalization.
fn spaces(metadata: &Metadata, add_space_prefix: bool) -> Result<SentencePiece> {
    let flag = |name: &str| boolean(metadata, &format!("tokenizer.ggml.{name}"));
    let charsmap = match charsmap(metadata)? {
        Some(bytes) => Some(Charsmap::new(
            &bytes,
            "tokenizer.ggml.precompiled_charsmap",
        )?),
        None => None,
    };
    Ok(SentencePiece {
        charsmap,
        add_space_prefix: flag("add_space_prefix")?.unwrap_or(add_space_prefix),
        remove_extra_spaces: flag("remove_extra_whitespaces")?.unwrap_or(false),
        space_is_suffix: false,
    })
}

/// Cuts before spaces, if no token goes on behind one: then no merge does either.
pub(super) fn space_starts(vocabulary: &Vocabulary) -> PreTokenizer {
    let crosses = |id: u32| {
        let Ok(text) = str::from_utf8(vocabulary.spelling(id)) else {
            return true;
        };
        text.trim_start_matches(SPACE).contains(SPACE) && !vocabulary.kind(id).is_control()
    };
    let one_space = vocabulary.find(SPACE.as_bytes()).is_some();
    let cutters = match one_space && !(0..vocabulary.len() as u32).any(crosses) {
        true => vec![Cutter::SpaceStarts],
        false => Vec::new(),
    };
    PreTokenizer { cutters }
}

fn sentencepiece(metadata: &Metadata, budget: &Budget) -> Result<Tokenizer> {
    let vocabulary = vocabulary(metadata, &Spelling::Spaces)?;
    let scores = scores(metadata, vocabulary.len())?;
    // Ids that SentencePiece gives where nothing is said.
    let usual = |name, id, kind| usual_id(metadata, name, &vocabulary, (id, kind));
    let unknown = usual("unknown", 0, TokenKind::Unknown)?;
    let ends = (
        EndToken {
            id: usual("bos", 1, TokenKind::Control)?,
            added: true,
        },
        EndToken {
            id: usual("eos", 2, TokenKind::Control)?,
            added: false,
        },
    );
    let model = Model::Scores(Scores::new(&vocabulary, &scores, unknown)?);
    let settings = spaces(metadata, true)?;
    spelled_spaces((metadata, budget), vocabulary, model, settings, ends)
}

fn unigram(metadata: &Metadata, budget: &Budget) -> Result<Tokenizer> {
    let vocabulary = vocabulary(metadata, &Spelling::Spaces)?;
    let mut all: Vec<f64> = Vec::new();
    for score in scores(metadata, vocabulary.len())? {
        all.push(f64::from(score));
    }
    let mut lowest = f64::INFINITY;
    let mut pieces = Vec::new();
    for id in 0..vocabulary.len() as u32 {
        let spelling = vocabulary.spelling(id);
        match vocabulary.kind(id) {
            TokenKind::Normal => lowest = lowest.min(all[id as usize]),
            // Nothing is likelier.
            TokenKind::UserDefined => all[id as usize] = 0.0,
            _ => continue,
        }
        if !spelling.is_empty() {
            pieces.push((spelling, id));
        }
    }
    let by_kind =
        || (0..vocabulary.len() as u32).find(|id| vocabulary.kind(*id) == TokenKind::Unknown);
    let Some(unknown) = id(metadata, "unknown", &vocabulary)?.or_else(by_kind) else {
        fail!(
            MissingKey,
            "metadata key tokenizer.ggml.unknown_token_id is missing, and no token is for unknown text"
        );
    };
    let pieces = Automaton::new(&mut pieces, budget)?;
    let lowest = if lowest.is_finite() { lowest } else { 0.0 };
    let bytes = vocabulary
        .kinds()
        .contains(&TokenKind::Byte)
        .then(|| vocabulary.byte_tokens());
    let model = Model::Unigram(Unigram::new(pieces, all, lowest, unknown, bytes));
    let ends = (
        EndToken {
            id: id(metadata, "bos", &vocabulary)?,
            added: false,
        },
        EndToken {
            id: id(metadata, "eos", &vocabulary)?,
            added: true,
        },
    );
    let settings = spaces(metadata, true)?;
    spelled_spaces((metadata, budget), vocabulary, model, settings, ends)
}

fn plamo(metadata: &Metadata, budget: &Budget) -> Result<Tokenizer> {
    let vocabulary = vocabulary(metadata, &Spelling::Plain)?;
    let scores = scores(metadata, vocabulary.len())?;
    let bytes = vocabulary.byte_tokens();
    if let Some(byte) = bytes.iter().position(|token| *token == NONE) {
        fail!(
            FileCorrupt,
            "metadata key {TOKENS} has no token <0x{byte:02X}> for a byte"
        );
    }
    let ordinary = |id: &u32| {
        let kind = vocabulary.kind(*id);
        matches!(kind, TokenKind::Normal | TokenKind::UserDefined)
    };
    let ids = (0..vocabulary.len() as u32).filter(ordinary);
    let pieces: Vec<(&[u8], u32)> = ids.map(|id| (vocabulary.spelling(id), id)).collect();
    let model = Model::Plamo(Plamo::new(&pieces, &scores, bytes, budget)?);
    let usual = |name, id| -> Result<EndToken> {
        let id = usual_id(metadata, name, &vocabulary, (id, TokenKind::Control))?;
        Ok(EndToken { id, added: false })
    };
    let ends = (usual("bos", 1)?, usual("eos", 2)?);
    let whole = PreTokenizer {
        cutters: Vec::new(),
    };
    finish(
        (metadata, budget),
        vocabulary,
        model,
        Normalizer::default(),
        whole,
        ends,
    )
}

fn wordpiece(metadata: &Metadata, budget: &Budget) -> Result<Tokenizer> {
    let vocabulary = vocabulary(metadata, &Spelling::Words)?;
    let Some(unknown) = id(metadata, "unknown", &vocabulary)? else {
        fail!(
            MissingKey,
            "metadata key tokenizer.ggml.unknown_token_id is missing"
        );
    };
    let flag = |name: &str| boolean(metadata, &format!("tokenizer.ggml.normalizer.{name}"));
    let lowercase = flag("lowercase")?.unwrap_or(true);
    let mut steps = vec![Step::Bert(Bert::new(true, true))];
    if flag("strip_accents")?.unwrap_or(lowercase) {
        steps.extend([Step::Nfd, Step::Remove(CharSet::new(ACCENT))]);
    }
    if lowercase {
        steps.push(Step::Lowercase);
    }
    let first = |names: [&str; 2]| -> Result<Option<u32>> {
        Ok(id(metadata, names[0], &vocabulary)?.or(id(metadata, names[1], &vocabulary)?))
    };
    let ends = (
        EndToken {
            id: first(["cls", "bos"])?,
            added: true,
        },
        EndToken {
            id: first(["seperator", "eos"])?,
            added: true,
        },
    );
    let model = Model::WordPiece(WordPiece::new(SPACE, "", unknown, MAX_WORD));
    let pretokenizer = PreTokenizer {
        cutters: bert_words(),
    };
    finish(
        (metadata, budget),
        vocabulary,
        model,
        Normalizer { steps },
        pretokenizer,
        ends,
    )
}

/// Words as BERT cuts them: at white space, and each punctuation mark for itself.
pub(super) fn bert_words() -> Vec<Cutter> {
    let at = |class, behavior| Cutter::Split {
        pattern: Pattern::Character(CharSet::new(class)),
        behavior,
        invert: false,
    };
    vec![
        at(r"\s", Behavior::Removed),
        at(PUNCTUATION, Behavior::Isolated),
    ]
}
