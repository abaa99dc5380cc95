//! `tokenizer.json` as GGUF metadata, for files that other programs read: byte-level BPE (`gpt2`),
//! BPE over text with bytes as a fallback (`llama`), and what `pieces` has.

use super::json::object;
use super::pieces;
use super::presplit;
use super::{TextFiles, within};
use crate::error::{Error, Result, Status, fail};
use crate::format::{Array, ModelFile, Value};
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use std::collections::{HashMap, HashSet};

/// Kinds of tokens, as GGUF numbers them.
pub(super) mod kind {
    pub const NORMAL: i64 = 1;
    pub const UNKNOWN: i64 = 2;
    pub const CONTROL: i64 = 3;
    pub const USER_DEFINED: i64 = 4;
    pub const UNUSED: i64 = 5;
    pub const BYTE: i64 = 6;
}

/// What sentencepiece writes for a space.
pub(super) const SPACE: char = '\u{2581}';
/// The score of a token that no merge ends with; lower than any rank.
const UNMERGED: f32 = -1e6;
/// The largest vocabulary that is taken seriously.
const MAX_VOCAB: u64 = 1 << 24;

pub(super) type Metadata = Vec<(String, Value)>;

/// `tokenizer.json`, as far as it matters here.
#[derive(Deserialize)]
pub(super) struct Tokenizer {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    pub normalizer: Json,
    #[serde(default)]
    pub pre_tokenizer: Json,
    #[serde(default)]
    post_processor: Json,
    #[serde(default)]
    decoder: Json,
    pub model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
pub(super) struct Model {
    /// The oldest files name no type.
    #[serde(default)]
    r#type: Option<String>,
    #[serde(default)]
    pub vocab: Vocabulary,
    #[serde(default)]
    merges: Vec<Merge>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    unk_token: Option<String>,
    unk_id: Option<usize>,
    pub continuing_subword_prefix: Option<String>,
    pub max_input_chars_per_word: Option<u64>,
}

/// Tokens with their ids, or in the order of their ids with scores.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Vocabulary {
    Ids(HashMap<String, u32>),
    Scores(Vec<(String, f64)>),
}

impl Default for Vocabulary {
    fn default() -> Vocabulary {
        Vocabulary::Ids(HashMap::new())
    }
}

impl Vocabulary {
    fn entries(&self) -> Box<dyn Iterator<Item = (&str, u32)> + '_> {
        match self {
            Vocabulary::Ids(ids) => Box::new(ids.iter().map(|(text, id)| (text.as_str(), *id))),
            Vocabulary::Scores(all) => {
                let texts = all.iter().map(|(text, _)| text.as_str());
                Box::new(texts.zip(0u32..))
            }
        }
    }

    /// The scores by id; none where there are no scores.
    pub fn scores(&self) -> impl Iterator<Item = f64> {
        let scores = match self {
            Vocabulary::Ids(_) => &[][..],
            Vocabulary::Scores(all) => all,
        };
        scores.iter().map(|(_, score)| *score)
    }
}

/// Two pieces that become one; older files have a space between them.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Text(String),
}

impl Merge {
    fn pair(&self) -> Option<(&str, &str)> {
        match self {
            Merge::Pair(a, b) => Some((a, b)),
            Merge::Text(text) => text.split_once(' '),
        }
    }
}

impl ModelFile {
    /// What a GGUF file has in its metadata for the text layer of this folder, beside the chat
    /// template; nothing for a model that is a GGUF file itself.
    ///
    /// Errors: `Unsupported` for kinds of tokenizers and for pre-tokenizers that GGUF has no name
    /// for, `FileCorrupt` for files that contradict themselves.
    pub fn text_metadata(&self) -> Result<Metadata> {
        let Some(architecture) = self.find::<&str>("general.architecture")? else {
            return Ok(Vec::new());
        };
        if let Some(files) = &self.text_files {
            let n_vocab = self.get(&format!("{architecture}.vocab_size"))?;
            let mut metadata = describe(files, n_vocab)?;
            if let Some(types) = self.tensors.get("token_types.weight") {
                metadata.push(key("token_type_count", types.rows() as u64));
            }
            return Ok(metadata);
        }
        match self.metadata.contains_key("tokenizer.ggml.model") {
            true => Ok(Vec::new()),
            false => Ok(vec![key("model", "no_vocab")]),
        }
    }
}

pub(super) fn key(name: &str, value: impl Into<Value>) -> (String, Value) {
    (format!("tokenizer.ggml.{name}"), value.into())
}

fn describe(files: &TextFiles, n_vocab: u64) -> Result<Metadata> {
    const NAME: &str = "tokenizer.json";
    let in_file = |e| within(NAME, e);
    if n_vocab > MAX_VOCAB {
        fail!(
            InvalidModel,
            "vocab_size is {n_vocab}; at most {MAX_VOCAB} work"
        );
    }
    let tokenizer = parse(&files.tokenizer).map_err(in_file)?;
    let mut tokens = tokens(&tokenizer, n_vocab as usize).map_err(in_file)?;
    let mut metadata = match tokenizer.kind() {
        Kind::Unigram => pieces::unigram(&tokenizer, &tokens),
        Kind::WordPiece => pieces::wordpiece(&tokenizer, &mut tokens),
        Kind::Bpe if tokenizer.is_byte_level() => byte_level(&tokenizer, &tokens),
        Kind::Bpe => with_fallback(&tokenizer, &tokens),
    }
    .map_err(in_file)?;
    let ids: HashMap<&str, u64> = tokens
        .texts
        .iter()
        .enumerate()
        .map(|(id, text)| (text.as_str(), id as u64))
        .collect();
    metadata.extend(special_tokens(files, &tokenizer, &ids)?);
    metadata.push(key("token_type", Value::Array(Array::I64(tokens.kinds))));
    metadata.push(key("tokens", tokens.texts));
    Ok(metadata)
}

/// Kinds of models.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Bpe,
    Unigram,
    WordPiece,
}

/// Reads the file. `Unsupported` for other models than those of [`Kind`].
fn parse(text: &[u8]) -> Result<Tokenizer> {
    #[derive(Deserialize)]
    struct OfModel {
        model: OfType,
    }
    #[derive(Deserialize)]
    struct OfType {
        r#type: Option<String>,
    }
    let invalid = |e: serde_json::Error| {
        Error::new(Status::FileCorrupt, format!("is no valid tokenizer: {e}"))
    };
    let of: OfModel = serde_json::from_slice(text).map_err(invalid)?;
    if let Some(kind) = of.model.r#type
        && !["BPE", "Unigram", "WordPiece"].contains(&kind.as_str())
    {
        let kind: String = kind.chars().take(100).collect();
        fail!(
            Unsupported,
            "model.type is {kind:?}; BPE, Unigram and WordPiece can be converted"
        );
    }
    serde_json::from_slice(text).map_err(invalid)
}

impl Tokenizer {
    fn kind(&self) -> Kind {
        match (self.model.r#type.as_deref(), &self.model.vocab) {
            (Some("Unigram"), _) | (None, Vocabulary::Scores(_)) => Kind::Unigram,
            (Some("WordPiece"), _) => Kind::WordPiece,
            _ => Kind::Bpe,
        }
    }

    /// The token of unknown text.
    fn unknown(&self) -> Option<&str> {
        let by_id = || match &self.model.vocab {
            Vocabulary::Scores(all) => Some(all.get(self.model.unk_id?)?.0.as_str()),
            Vocabulary::Ids(_) => None,
        };
        self.model.unk_token.as_deref().or_else(by_id)
    }

    fn is_byte_level(&self) -> bool {
        presplit::steps(&self.pre_tokenizer).any(|step| step["type"] == "ByteLevel")
            || self.decoder["type"] == "ByteLevel"
    }
}

/// All tokens by id.
pub(super) struct Tokens {
    pub texts: Vec<String>,
    pub kinds: Vec<i64>,
}

fn tokens(tokenizer: &Tokenizer, n_vocab: usize) -> Result<Tokens> {
    let mut texts: Vec<Option<&str>> = vec![None; n_vocab];
    let mut kinds = vec![kind::UNUSED; n_vocab];
    let mut put = |id: u32, text, kind, replace| match texts.get_mut(id as usize) {
        Some(slot) if slot.is_none_or(|old| replace || old == text) => {
            *slot = Some(text);
            kinds[id as usize] = kind;
            Ok(())
        }
        Some(old) => fail!(
            FileCorrupt,
            "token {id} is {:?} and {text:?}",
            old.unwrap_or_default()
        ),
        None => fail!(
            FileCorrupt,
            "token {id} ({text:?}) is not in the vocabulary of {n_vocab} that config.json has"
        ),
    };
    let unknown = tokenizer.unknown();
    for (text, id) in tokenizer.model.vocab.entries() {
        let kind = match text {
            text if Some(text) == unknown => kind::UNKNOWN,
            text if tokenizer.model.byte_fallback && is_byte(text) => kind::BYTE,
            _ => kind::NORMAL,
        };
        put(id, text, kind, false)?;
    }
    let keeps_unknown = tokenizer.model.byte_fallback || tokenizer.kind() != Kind::Bpe;
    for added in &tokenizer.added_tokens {
        let kind = match &added.content {
            text if Some(text.as_str()) == unknown && keeps_unknown => kind::UNKNOWN,
            text if added.special || looks_special(text) => kind::CONTROL,
            _ => kind::USER_DEFINED,
        };
        put(added.id, &added.content, kind, true)?;
    }
    let texts = texts.iter().zip(&kinds).enumerate();
    let texts = texts.map(|(id, (text, kind))| match text {
        // Added tokens mean their own text.
        Some(text) if *kind == kind::USER_DEFINED => text.replace(SPACE, " "),
        Some(text) => (*text).to_owned(),
        None => format!("[PAD{id}]"),
    });
    Ok(Tokens {
        texts: texts.collect(),
        kinds,
    })
}

/// `<0x00>` to `<0xFF>`.
fn is_byte(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|t| t.strip_suffix('>'));
    digits.is_some_and(|d| d.len() == 2 && d.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Whether a token is one of structure, though the file does not call it special.
fn looks_special(text: &str) -> bool {
    matches!(text, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || text.starts_with("<|") && text.ends_with("|>")
        || text.starts_with("<\u{FF5C}") && text.ends_with("\u{FF5C}>")
        || text.starts_with("<unused") && text.ends_with('>')
}

fn byte_level(tokenizer: &Tokenizer, tokens: &Tokens) -> Result<Metadata> {
    let pre = presplit::name(tokenizer, tokenizer.model.ignore_merges)?;
    let known: HashSet<&str> = tokens.texts.iter().map(String::as_str).collect();
    let mut merges = Vec::with_capacity(tokenizer.model.merges.len());
    for (i, merge) in tokenizer.model.merges.iter().enumerate() {
        let pair = merge.pair().filter(|(a, b)| {
            let both = [a, b].iter().all(|part| known.contains(**part));
            // GGUF has a space between them.
            both && !a.contains(' ') && !b.contains(' ')
        });
        let Some((a, b)) = pair else {
            fail!(FileCorrupt, "merge {i} is not of two tokens");
        };
        merges.push(format!("{a} {b}"));
    }
    Ok(vec![
        key("model", "gpt2"),
        key("pre", pre),
        key("merges", merges),
    ])
}

/// Tokens with scores, of which the highest is merged first: minus the rank of the merge.
fn with_fallback(tokenizer: &Tokenizer, tokens: &Tokens) -> Result<Metadata> {
    if !tokenizer.model.byte_fallback {
        fail!(
            Unsupported,
            "the model is neither byte-level nor has bytes to fall back to"
        );
    }
    let mut ranks = HashMap::new();
    for (i, merge) in tokenizer.model.merges.iter().enumerate() {
        let Some((a, b)) = merge.pair() else {
            fail!(FileCorrupt, "merge {i} is not of two tokens");
        };
        ranks.entry(format!("{a}{b}")).or_insert(i);
    }
    let scores: Vec<f32> = tokens
        .texts
        .iter()
        .zip(&tokens.kinds)
        .map(|(text, kind)| match (*kind, ranks.get(text)) {
            (kind::NORMAL, Some(rank)) => -(*rank as f32),
            (kind::NORMAL, None) => UNMERGED,
            _ => 0.0,
        })
        .collect();
    Ok(vec![
        key("model", "llama"),
        key("pre", "default"),
        key("scores", scores),
        key("add_space_prefix", presplit::adds_space(tokenizer)?),
    ])
}

/// The ids of special tokens, and which of them go around a text.
fn special_tokens(
    files: &TextFiles,
    tokenizer: &Tokenizer,
    ids: &HashMap<&str, u64>,
) -> Result<Metadata> {
    let parse = |name, text: &Option<Vec<u8>>| match text {
        Some(text) => object(text).map_err(|e| within(name, e)),
        None => Ok(Map::new()),
    };
    let own = parse("tokenizer_config.json", &files.tokenizer_config)?;
    let generation = parse("generation_config.json", &files.generation_config)?;
    let config = parse("config.json", &Some(files.config.clone()))?;
    // By text in the tokenizer's own file, by number in the others.
    let find = |role: &str| -> Option<u64> {
        let named = match own.get(&format!("{role}_token")) {
            Some(Json::String(text)) => ids.get(text.as_str()),
            Some(Json::Object(token)) => ids.get(token.get("content")?.as_str()?),
            _ => None,
        };
        named.copied().or_else(|| {
            let id = format!("{role}_token_id");
            let number = |from: &Map<String, Json>| match from.get(&id)? {
                Json::Array(several) => several.first()?.as_u64(),
                one => one.as_u64(),
            };
            let id = number(&generation).or_else(|| number(&config))?;
            (id < ids.len() as u64).then_some(id)
        })
    };
    let mut metadata = Vec::new();
    let roles = [
        ("bos", "bos"),
        ("eos", "eos"),
        ("unk", "unknown"),
        ("pad", "padding"),
        ("cls", "cls"),
        // As GGUF spells it.
        ("sep", "seperator"),
        ("mask", "mask"),
    ];
    let kind = tokenizer.kind();
    let (begins, ends) = around(&tokenizer.post_processor);
    // What Unigram's texts begin and end with, by whatever name.
    let around = |text: Option<&str>| match kind {
        Kind::Unigram => ids.get(text?).copied(),
        Kind::Bpe | Kind::WordPiece => None,
    };
    let id = |role: &str| match role {
        "bos" => around(begins).or_else(|| find(role)),
        "eos" => around(ends).or_else(|| find(role)),
        "unk" if kind != Kind::Bpe => find(role).or_else(|| ids.get(tokenizer.unknown()?).copied()),
        "cls" | "sep" | "mask" if kind == Kind::Bpe => None,
        _ => find(role),
    };
    for (role, name) in roles {
        if let Some(id) = id(role) {
            metadata.push(key(&format!("{name}_token_id"), id));
        }
    }
    let (bos, eos) = match kind {
        Kind::WordPiece => (id("cls"), id("sep")),
        Kind::Bpe | Kind::Unigram => (id("bos"), id("eos")),
    };
    // Other tokens that end an answer.
    if let Some(Json::Array(ends)) = generation.get("eos_token_id") {
        let ends = ends.iter().filter_map(Json::as_u64);
        let others = ends.filter(|id| Some(*id) != eos && *id < ids.len() as u64);
        for (name, id) in ["eot", "eom"].iter().zip(others) {
            metadata.push(key(&format!("{name}_token_id"), id));
        }
    }
    for (name, token, text) in [("bos", bos, begins), ("eos", eos, ends)] {
        let asked = match (text, own.get(&format!("add_{name}_token"))) {
            (Some(text), _) => token.is_some() && ids.get(text).copied() == token,
            (None, Some(Json::Bool(asked))) => *asked && token.is_some(),
            _ => false,
        };
        metadata.push(key(&format!("add_{name}_token"), asked));
    }
    Ok(metadata)
}

/// The tokens that the post-processor puts before and behind a text.
fn around(post_processor: &Json) -> (Option<&str>, Option<&str>) {
    let steps = || presplit::parts(post_processor, "processors");
    // Pairs of a text and an id.
    let kinds = ["BertProcessing", "RobertaProcessing"];
    if let Some(pairs) = steps().find(|step| kinds.iter().any(|kind| step["type"] == *kind)) {
        let token = |name: &str| pairs[name][0].as_str();
        return (token("cls"), token("sep"));
    }
    let template = steps().find(|step| step["type"] == "TemplateProcessing");
    let single = template.and_then(|t| t["single"].as_array());
    let Some(single) = single else {
        return (None, None);
    };
    fn token(step: Option<&Json>) -> Option<&str> {
        step?.get("SpecialToken")?.get("id")?.as_str()
    }
    (token(single.first()), token(single.last()))
}
