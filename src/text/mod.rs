//! Text in and out of token ids. Needs no backend.
//!
//! A `Tokenizer` recognizes special tokens (`specials`), changes the text between them
//! (`normalizer`), cuts it into pieces (`pretokenizer`), and gives each to a `model`. It is built
//! from the metadata of a model file (`gguf`) or from a `tokenizer.json` (`json`).

mod automaton;
mod backtracking;
mod bpe;
mod byte_level;
mod charset;
mod charsmap;
mod chat;
mod gguf;
mod hash;
#[cfg(test)]
mod hostile_tests;
mod jinja;
mod json;
mod keys;
mod model;
mod normalizer;
mod pattern;
mod plamo;
mod pretokenizer;
pub(crate) mod rules;
mod sentencepiece;
mod specials;
mod splitter;
mod stops;
mod stream;
mod token_stream;
mod tokenizer;
mod unigram;
mod vocabulary;
mod wordpiece;

pub(crate) use charsmap::base64;
pub use chat::{ChatOptions, ChatTemplates};
pub use jinja::{Environment, Origin, Rendered, render};
pub use keys::Metadata;
pub use stops::StopFilter;
pub use stream::TextStream;
pub use token_stream::TokenStream;
pub use tokenizer::{DecodeOptions, EncodeOptions, Tokenizer};
pub use vocabulary::TokenKind;
