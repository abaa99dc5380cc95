//! Reads the JSON of a `tokenizer.json`. The vocabulary and the merges, which are nearly all of it,
//! are read without a value for each text.

use super::{MAX_BYTES, MAX_ID};
use crate::error::{Result, fail};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;

/// The parts of the file.
#[derive(Default)]
pub(super) struct Document {
    pub added_tokens: Value,
    pub normalizer: Value,
    pub pre_tokenizer: Value,
    pub model: ModelPart,
    pub post_processor: Value,
    pub decoder: Value,
}

/// The model.
#[derive(Default)]
pub(super) struct ModelPart {
    /// All but vocabulary and merges.
    pub fields: Map<String, Value>,
    pub vocabulary: Texts,
    /// Text and id of each token; or, for Unigram, its score, in the order of ids.
    pub tokens: Vec<(Place, Number)>,
    pub merges: Option<Vec<(Place, Place)>>,
}

/// An id or a score.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Id(u32),
    Score(f64),
}

/// Texts end to end.
#[derive(Default)]
pub(super) struct Texts(String);

/// Where a text lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    start: u32,
    end: u32,
}

impl Texts {
    /// A text.
    pub fn get(&self, place: Place) -> &str {
        &self.0[place.start as usize..place.end as usize]
    }

    /// Bytes of all texts.
    pub fn bytes(&self) -> usize {
        self.0.len()
    }

    fn push<E: Error>(&mut self, text: &str) -> std::result::Result<Place, E> {
        if self.0.try_reserve(text.len()).is_err() {
            return Err(E::custom("no memory for the vocabulary"));
        }
        let start = self.0.len() as u32;
        self.0.push_str(text);
        // The file is smaller than 4 GiB, and so are its texts.
        let end = self.0.len() as u32;
        Ok(Place { start, end })
    }
}

impl Document {
    /// Reads a file. Errors: `FileCorrupt` with line and column; `Unsupported` for one that is too
    /// large.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > MAX_BYTES {
            fail!(
                Unsupported,
                "tokenizer.json has {} bytes, {MAX_BYTES} are allowed",
                bytes.len()
            );
        }
        let mut parser = serde_json::Deserializer::from_slice(bytes);
        let parsed = parser.deserialize_map(DocumentVisitor);
        match parsed.and_then(|document| parser.end().map(|()| document)) {
            Ok(document) => Ok(document),
            Err(error) => fail!(FileCorrupt, "tokenizer.json: {error}"),
        }
    }
}

struct DocumentVisitor;

impl<'de> Visitor<'de> for DocumentVisitor {
    type Value = Document;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Document, A::Error> {
        let mut document = Document::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "added_tokens" => document.added_tokens = map.next_value()?,
                "normalizer" => document.normalizer = map.next_value()?,
                "pre_tokenizer" => document.pre_tokenizer = map.next_value()?,
                "post_processor" => document.post_processor = map.next_value()?,
                "decoder" => document.decoder = map.next_value()?,
                "model" => document.model = map.next_value_seed(ModelSeed)?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(document)
    }
}

struct ModelSeed;

impl<'de> DeserializeSeed<'de> for ModelSeed {
    type Value = ModelPart;

    fn deserialize<D: Deserializer<'de>>(
        self,
        parser: D,
    ) -> std::result::Result<ModelPart, D::Error> {
        parser.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ModelSeed {
    type Value = ModelPart;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a model")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<ModelPart, A::Error> {
        let mut part = ModelPart::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "vocab" => {
                    let (texts, tokens) = (&mut part.vocabulary, &mut part.tokens);
                    map.next_value_seed(Vocabulary { texts, tokens })?;
                }
                "merges" => {
                    let texts = &mut part.vocabulary;
                    part.merges = Some(map.next_value_seed(Merges { texts })?);
                }
                _ => {
                    part.fields.insert(key, map.next_value()?);
                }
            }
        }
        Ok(part)
    }
}

/// A string that goes to the texts.
struct Text<'a>(&'a mut Texts);

impl<'de> DeserializeSeed<'de> for Text<'_> {
    type Value = Place;

    fn deserialize<D: Deserializer<'de>>(self, parser: D) -> std::result::Result<Place, D::Error> {
        parser.deserialize_str(self)
    }
}

impl Visitor<'_> for Text<'_> {
    type Value = Place;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a token's text")
    }

    fn visit_str<E: Error>(self, text: &str) -> std::result::Result<Place, E> {
        self.0.push(text)
    }
}

/// An object of texts and ids, or a list of texts and scores.
struct Vocabulary<'a> {
    texts: &'a mut Texts,
    tokens: &'a mut Vec<(Place, Number)>,
}

impl<'de> DeserializeSeed<'de> for Vocabulary<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, parser: D) -> std::result::Result<(), D::Error> {
        parser.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Vocabulary<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a vocabulary")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        while let Some(text) = map.next_key_seed(Text(self.texts))? {
            let id: u64 = map.next_value()?;
            if id >= MAX_ID {
                return Err(A::Error::custom(format!(
                    "model.vocab: id {id} is out of range"
                )));
            }
            self.tokens.push((text, Number::Id(id as u32)));
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<(), A::Error> {
        while let Some((text, score)) = list.next_element_seed(Scored(self.texts))? {
            self.tokens.push((text, Number::Score(score)));
        }
        Ok(())
    }
}

/// A text and its score.
struct Scored<'a>(&'a mut Texts);

impl<'de> DeserializeSeed<'de> for Scored<'_> {
    type Value = (Place, f64);

    fn deserialize<D: Deserializer<'de>>(
        self,
        parser: D,
    ) -> std::result::Result<Self::Value, D::Error> {
        parser.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Scored<'_> {
    type Value = (Place, f64);

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a text and its score")
    }

    fn visit_seq<A: SeqAccess<'de>>(
        self,
        mut list: A,
    ) -> std::result::Result<Self::Value, A::Error> {
        let text = list.next_element_seed(Text(self.0))?;
        let score = list.next_element()?;
        match (text, score, list.next_element::<IgnoredAny>()?) {
            (Some(text), Some(score), None) => Ok((text, score)),
            _ => Err(A::Error::custom(
                "model.vocab: an entry is not a text and a score",
            )),
        }
    }
}

/// A list of merges.
struct Merges<'a> {
    texts: &'a mut Texts,
}

impl<'de> DeserializeSeed<'de> for Merges<'_> {
    type Value = Vec<(Place, Place)>;

    fn deserialize<D: Deserializer<'de>>(
        self,
        parser: D,
    ) -> std::result::Result<Self::Value, D::Error> {
        parser.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Merges<'_> {
    type Value = Vec<(Place, Place)>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of merges")
    }

    fn visit_seq<A: SeqAccess<'de>>(
        self,
        mut list: A,
    ) -> std::result::Result<Self::Value, A::Error> {
        let mut merges = Vec::new();
        while let Some(merge) = list.next_element_seed(Merge {
            index: merges.len(),
            texts: self.texts,
        })? {
            merges.push(merge);
        }
        Ok(merges)
    }
}

/// Two texts: a list, or one string with a space between.
struct Merge<'a> {
    index: usize,
    texts: &'a mut Texts,
}

impl<'de> DeserializeSeed<'de> for Merge<'_> {
    type Value = (Place, Place);

    fn deserialize<D: Deserializer<'de>>(
        self,
        parser: D,
    ) -> std::result::Result<Self::Value, D::Error> {
        parser.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Merge<'_> {
    type Value = (Place, Place);

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "two tokens in model.merges[{}]", self.index)
    }

    fn visit_str<E: Error>(self, text: &str) -> std::result::Result<Self::Value, E> {
        match text
            .split_once(' ')
            .filter(|(_, right)| !right.contains(' '))
        {
            Some((left, right)) => Ok((self.texts.push(left)?, self.texts.push(right)?)),
            None => Err(E::custom(format!(
                "model.merges[{}] is not two tokens",
                self.index
            ))),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(
        self,
        mut list: A,
    ) -> std::result::Result<Self::Value, A::Error> {
        let left = list.next_element_seed(Text(self.texts))?;
        let right = list.next_element_seed(Text(self.texts))?;
        match (left, right, list.next_element::<IgnoredAny>()?) {
            (Some(left), Some(right), None) => Ok((left, right)),
            _ => Err(A::Error::custom(format!(
                "model.merges[{}] is not two tokens",
                self.index
            ))),
        }
    }
}
