//! Text in and out of token ids. Needs no backend.

mod bpe;
mod byte_level;
mod chat;
mod hash;
#[cfg(test)]
mod hostile_tests;
mod jinja;
mod pretokenizer;
mod specials;
mod splitter;
mod stops;
mod stream;
mod token_stream;
mod tokenizer;
mod vocabulary;

pub use chat::{ChatOptions, ChatTemplates};
pub use jinja::{Environment, Origin, Rendered, render};
pub use stops::StopFilter;
pub use stream::TextStream;
pub use token_stream::TokenStream;
pub use tokenizer::{DecodeOptions, EncodeOptions, Tokenizer};
pub use vocabulary::{Metadata, TokenKind};
