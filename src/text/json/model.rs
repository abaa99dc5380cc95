//! The `model` of a `tokenizer.json`.

use super::decoder::Rule;
use super::document::{ModelPart, Number, Place};
use super::{Added, unknown};
use crate::budget::Budget;
use crate::error::{Result, fail, try_vec};
use crate::text::automaton::Automaton;
use crate::text::bpe::{Bpe, Merges, NONE, Units};
use crate::text::byte_level::Alphabet;
use crate::text::model::Model;
use crate::text::tokenizer::Parts;
use crate::text::unigram::Unigram;
use crate::text::vocabulary::{
    Builder, Entry, MAX_TOKEN_BYTES, TokenKind, Vocabulary, shorten, spelled_byte,
};
use crate::text::wordpiece::WordPiece;
use serde_json::Value;

/// A model and its vocabulary.
pub(super) struct Built {
    pub parts: Parts,
    /// The text may be cut before spaces without a change of the result, if no token has one inside.
    pub cuts_at_spaces: bool,
}

/// What stays behind when a tokenizer is taken.
pub(super) fn nothing() -> Result<Parts> {
    let vocabulary = Builder::new(0, 0, false)?.finish()?;
    Parts::new(vocabulary, Model::Words { unknown: None })
}

impl ModelPart {
    fn text(&self, name: &str) -> Result<Option<&str>> {
        match self.fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => fail!(FileCorrupt, "tokenizer.json: model.{name} is not a string"),
        }
    }

    fn flag(&self, name: &str) -> Result<bool> {
        match self.fields.get(name) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(value)) => Ok(*value),
            Some(_) => fail!(FileCorrupt, "tokenizer.json: model.{name} is not a boolean"),
        }
    }

    /// The kind of the model. Old files do not say it.
    fn kind(&self) -> Result<&str> {
        if let Some(kind) = self.text("type")? {
            return Ok(kind);
        }
        Ok(match (&self.merges, self.tokens.first()) {
            (Some(_), _) => "BPE",
            (_, Some((_, Number::Score(_)))) => "Unigram",
            _ if self.fields.contains_key("continuing_subword_prefix") => "WordPiece",
            _ => "WordLevel",
        })
    }
}

/// Builds the model. `byte_level` if it sees bytes that are spelled as characters. Errors:
/// `FileCorrupt` and `Unsupported`, naming the field; `OutOfMemory`.
pub(super) fn build(
    mut model: ModelPart,
    added: &[Added],
    byte_level: bool,
    rule: &Rule,
    budget: &Budget,
) -> Result<Built> {
    let kind = model.kind()?.to_string();
    if !matches!(kind.as_str(), "BPE" | "Unigram" | "WordPiece" | "WordLevel") {
        return unknown(&kind, "model");
    }
    if byte_level && kind != "BPE" {
        fail!(
            Unsupported,
            "tokenizer.json: model {kind:?} behind \"ByteLevel\" is not supported"
        );
    }
    let scored = kind == "Unigram";
    let mut scores = Vec::new();
    for (index, (_, number)) in model.tokens.iter_mut().enumerate() {
        match number {
            Number::Score(score) if scored && score.is_finite() => scores.push(*score),
            Number::Id(_) if !scored => {}
            _ => fail!(
                FileCorrupt,
                "tokenizer.json: model.vocab, entry {index}: not what a {kind} model needs"
            ),
        }
        if scored {
            *number = Number::Id(index as u32);
        }
    }
    let alphabet = byte_level.then(|| Box::new(Alphabet::new()));
    let vocabulary = vocabulary(&model, added, alphabet.as_deref(), (rule, budget))?;
    let unknown_token = match (scored, model.text("unk_token")?) {
        (false, Some(text)) => match find_any(&vocabulary, text) {
            Some(id) => Some(id),
            None => fail!(
                FileCorrupt,
                "tokenizer.json: model.unk_token {:?} is not a token",
                shorten(text)
            ),
        },
        _ => None,
    };
    let needed = || match unknown_token {
        Some(id) => Ok(id),
        None => fail!(FileCorrupt, "tokenizer.json: model.unk_token is missing"),
    };
    let mut cuts_at_spaces = false;
    let built = match kind.as_str() {
        "BPE" => {
            let bpe = bpe(&model, &vocabulary, alphabet.as_deref())?;
            cuts_at_spaces = !byte_level && !model.flag("ignore_merges")?;
            Model::Bpe(bpe.with_unknown(unknown_token, model.flag("fuse_unk")?))
        }
        "Unigram" => unigram(&model, &vocabulary, scores, budget)?,
        "WordPiece" => {
            let prefix = model.text("continuing_subword_prefix")?.unwrap_or("##");
            let most = match model.fields.get("max_input_chars_per_word") {
                None => Some(100),
                Some(number) => number.as_u64().and_then(|most| usize::try_from(most).ok()),
            };
            let Some(most) = most else {
                fail!(
                    FileCorrupt,
                    "tokenizer.json: model.max_input_chars_per_word is not a number"
                );
            };
            Model::WordPiece(WordPiece::new("", prefix, needed()?, most))
        }
        _ => Model::Words {
            unknown: unknown_token,
        },
    };
    let unknown = match &built {
        Model::Unigram(model) => Some(model.unknown()),
        _ => unknown_token,
    };
    Ok(Built {
        parts: Parts {
            unknown,
            ..Parts::new(vocabulary, built)?
        },
        cuts_at_spaces,
    })
}

/// The token of this text, whatever it is for.
fn find_any(vocabulary: &Vocabulary, text: &str) -> Option<u32> {
    let same = |id: &u32| vocabulary.spelling(*id) == text.as_bytes();
    vocabulary
        .find(text.as_bytes())
        .or_else(|| (0..vocabulary.len() as u32).find(same))
}

/// The model's tokens and the added ones.
fn vocabulary(
    model: &ModelPart,
    added: &[Added],
    alphabet: Option<&Alphabet>,
    (rule, budget): (&Rule, &Budget),
) -> Result<Vocabulary> {
    let id = |number: Number| match number {
        Number::Id(id) => id,
        Number::Score(_) => 0,
    };
    let ids = model.tokens.iter().map(|(_, number)| id(*number));
    let count = ids
        .chain(added.iter().map(|token| token.id))
        .max()
        .map_or(0, |id| id as usize + 1);
    if count == 0 {
        fail!(FileCorrupt, "tokenizer.json: model.vocab has no tokens");
    }
    let mut places: Vec<Option<Place>> = try_vec(count, None, "tokens")?;
    for (place, number) in &model.tokens {
        let (text, id) = (model.vocabulary.get(*place), id(*number));
        if text.len() > MAX_TOKEN_BYTES {
            fail!(
                FileCorrupt,
                "tokenizer.json: model.vocab, id {id}: a token of {} bytes, {MAX_TOKEN_BYTES} are allowed",
                text.len()
            );
        }
        if let Some(other) = places[id as usize].replace(*place) {
            let (a, b) = (shorten(model.vocabulary.get(other)), shorten(text));
            fail!(
                FileCorrupt,
                "tokenizer.json: model.vocab: {a:?} and {b:?} have the same id {id}"
            );
        }
    }
    let mut extra: Vec<Option<&Added>> = try_vec(count, None, "tokens")?;
    for token in added {
        let place = places[token.id as usize];
        if let Some(text) = place.map(|place| model.vocabulary.get(place))
            && text != token.content
        {
            let (a, b) = (shorten(text), shorten(&token.content));
            fail!(
                FileCorrupt,
                "tokenizer.json: added_tokens: {b:?} has the id {} of {a:?}",
                token.id
            );
        }
        extra[token.id as usize] = Some(token);
    }
    let fallback = model.flag("byte_fallback")?;
    let unknown = (
        model.text("unk_token")?,
        model.fields.get("unk_id").and_then(Value::as_u64),
    );
    let is_unknown = |text, id| unknown.0 == Some(text) || unknown.1 == Some(id);
    let mut builder = Builder::new(count, model.vocabulary.bytes() / 2, alphabet.is_none())?;
    let mut bytes = Vec::new();
    for ((id, place), token) in (0u64..).zip(&places).zip(extra) {
        let spelled = place.map(|place| model.vocabulary.get(place));
        let (kind, text) = match (token, spelled) {
            (_, Some(text)) if fallback && spelled_byte(text).is_some() => (TokenKind::Byte, text),
            (_, Some(text)) if is_unknown(text, id) => (TokenKind::Unknown, text),
            (Some(token), _) if token.special => (TokenKind::Control, token.content.as_str()),
            (Some(token), _) => (TokenKind::UserDefined, token.content.as_str()),
            (None, Some(text)) => (TokenKind::Normal, text),
            (None, None) => (TokenKind::Unused, ""),
        };
        let mut reachable = spelled.is_some();
        bytes.clear();
        match alphabet {
            _ if kind != TokenKind::Byte && (token.is_some() || kind.is_control()) => {
                // Its bytes may be spelled and merged as those of any other token.
                reachable &= alphabet.is_none() || text.bytes().all(|byte| byte.is_ascii_graphic());
                bytes.extend_from_slice(text.as_bytes());
            }
            Some(alphabet) => {
                reachable &= alphabet.decode(text, &mut bytes);
                if !reachable {
                    bytes.extend_from_slice(text.as_bytes());
                }
            }
            None if kind == TokenKind::Byte => bytes.extend(spelled_byte(text)),
            None => rule.apply(text, budget, &mut bytes)?,
        }
        builder.push(&Entry {
            text: &bytes,
            spelled: text.as_bytes(),
            kind,
            reachable: reachable && !text.is_empty(),
        })?;
    }
    builder.finish()
}

fn bpe(model: &ModelPart, vocabulary: &Vocabulary, alphabet: Option<&Alphabet>) -> Result<Bpe> {
    match model.fields.get("dropout") {
        None | Some(Value::Null) => {}
        Some(dropout) if dropout.as_f64() == Some(0.0) => {}
        Some(_) => fail!(
            Unsupported,
            "tokenizer.json: model.dropout makes tokens random"
        ),
    }
    let prefix = model.text("continuing_subword_prefix")?.unwrap_or_default();
    let suffix = model.text("end_of_word_suffix")?.unwrap_or_default();
    let affixed = !prefix.is_empty() || !suffix.is_empty();
    if affixed && (alphabet.is_some() || model.flag("byte_fallback")?) {
        fail!(
            Unsupported,
            "tokenizer.json: model.continuing_subword_prefix and end_of_word_suffix are not supported with bytes"
        );
    }
    let Some(list) = &model.merges else {
        fail!(FileCorrupt, "tokenizer.json: model.merges is missing");
    };
    let mut merges = Merges::with_room(list.len())?;
    let mut bytes = Vec::new();
    for (index, (left, right)) in list.iter().enumerate() {
        let (left, right) = (model.vocabulary.get(*left), model.vocabulary.get(*right));
        let joined = right.strip_prefix(prefix).unwrap_or(right);
        let mut find = |first: &str, second: &str| -> Result<u32> {
            bytes.clear();
            let spelled = match alphabet {
                Some(alphabet) => {
                    alphabet.decode(first, &mut bytes) && alphabet.decode(second, &mut bytes)
                }
                None => {
                    bytes.extend_from_slice(first.as_bytes());
                    bytes.extend_from_slice(second.as_bytes());
                    true
                }
            };
            match vocabulary.find(&bytes).filter(|_| spelled) {
                Some(id) => Ok(id),
                None => fail!(
                    FileCorrupt,
                    "tokenizer.json: model.merges[{index}]: {:?} is not a token",
                    shorten(&format!("{first}{second}"))
                ),
            }
        };
        let (left_id, right_id) = (find(left, "")?, find(right, "")?);
        merges.replace(left_id, right_id, index as u32, find(left, joined)?);
    }
    let units = match alphabet {
        Some(_) => {
            let mut units = Box::new([NONE; 256]);
            for (byte, token) in units.iter_mut().enumerate() {
                *token = vocabulary.find(&[byte as u8]).unwrap_or(NONE);
            }
            Units::Bytes(units)
        }
        None if affixed => Units::Affixed {
            prefix: prefix.to_string(),
            suffix: suffix.to_string(),
        },
        None => {
            let fallback = model.flag("byte_fallback")?;
            Units::Characters(fallback.then(|| vocabulary.byte_tokens()))
        }
    };
    Bpe::new(
        merges,
        units,
        model.flag("ignore_merges")?,
        vocabulary.len(),
    )
}

fn unigram(
    model: &ModelPart,
    vocabulary: &Vocabulary,
    mut scores: Vec<f64>,
    budget: &Budget,
) -> Result<Model> {
    let unknown = model.fields.get("unk_id").and_then(Value::as_u64);
    let Some(unknown) = unknown.filter(|id| *id < scores.len() as u64) else {
        fail!(
            FileCorrupt,
            "tokenizer.json: model.unk_id is not a token of the model"
        );
    };
    let lowest = scores.iter().copied().fold(f64::INFINITY, f64::min);
    let mut pieces = Vec::new();
    for id in 0..scores.len() as u32 {
        let spelling = vocabulary.spelling(id);
        // Text from outside must not become a control token.
        if !spelling.is_empty() && !vocabulary.kind(id).is_control() {
            pieces.push((spelling, id));
        }
    }
    scores.resize(vocabulary.len(), 0.0);
    let fallback = model
        .flag("byte_fallback")?
        .then(|| vocabulary.byte_tokens());
    let pieces = Automaton::new(&mut pieces, budget)?;
    Ok(Model::Unigram(Unigram::new(
        pieces,
        scores,
        lowest,
        unknown as u32,
        fallback,
    )))
}
