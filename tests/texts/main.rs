//! Tokenizers, text streams, chat templates. In one binary, because each takes seconds to build.

mod chat_tokens;
mod hostile_text;
mod text;
mod tokenizer_json;
#[path = "../common/xz.rs"]
mod xz;
