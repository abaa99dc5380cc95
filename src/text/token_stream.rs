//! Text from token ids as they come, up to a stop string.

use super::stops::StopFilter;
use super::stream::TextStream;
use super::tokenizer::Tokenizer;
use super::vocabulary::TokenKind;
use crate::error::Result;

/// Turns token ids into whole characters, and ends at a stop string.
#[derive(Clone, Debug, Default)]
pub struct TokenStream {
    characters: TextStream,
    stops: StopFilter,
    skip_special: bool,
    n_tokens: u64,
    /// Whether there has been text.
    begun: bool,
}

impl TokenStream {
    /// A stream that ends at one of these strings and, if told so, leaves out control and unknown
    /// tokens. Errors: those of [`StopFilter::new`].
    pub fn new(stops: &[&str], skip_special: bool) -> Result<Self> {
        Ok(TokenStream {
            stops: StopFilter::new(stops)?,
            skip_special,
            ..TokenStream::default()
        })
    }

    /// The same for text that goes on where other text ends: a space at its start belongs to it.
    pub fn continued(self) -> Self {
        TokenStream {
            begun: true,
            ..self
        }
    }

    /// Takes the next tokens and appends to `out` the text that is certain now. After a stop string
    /// tokens are not even looked at. Errors: `InvalidToken`; the stream is as it was then.
    pub fn push(&mut self, tokenizer: &Tokenizer, ids: &[u32], out: &mut String) -> Result<()> {
        for (index, id) in ids.iter().enumerate() {
            tokenizer.kind(*id).map_err(|e| e.at(index))?;
        }
        let mut text = String::new();
        for id in ids {
            if self.stopped().is_some() {
                break;
            }
            self.n_tokens += 1;
            let kind = tokenizer.kind(*id)?;
            let special = matches!(kind, TokenKind::Control | TokenKind::Unknown);
            if special && self.skip_special {
                continue;
            }
            let mut bytes = tokenizer.token_bytes(*id)?;
            // As in whole texts, a first space that the tokenizer adds is none of the text.
            if !self.begun && !bytes.is_empty() {
                self.begun = true;
                if tokenizer.strips_space() {
                    bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
                }
            }
            text.clear();
            self.characters.push(bytes, &mut text);
            self.stops.push(&text, out);
        }
        Ok(())
    }

    /// Ends the text: appends what was held back. An incomplete character becomes U+FFFD. The stream
    /// is as new then.
    pub fn finish(&mut self, out: &mut String) {
        let mut text = String::new();
        self.characters.finish(&mut text);
        self.stops.push(&text, out);
        self.stops.finish(out);
        self.n_tokens = 0;
        self.begun = false;
    }

    /// The stop string that ended the text.
    pub fn stopped(&self) -> Option<usize> {
        self.stops.stopped()
    }

    /// Tokens taken so far: all, or those up to the one that completed the stop string.
    pub fn n_tokens(&self) -> u64 {
        self.n_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Array, Value};
    use crate::text::Metadata;

    #[test]
    fn a_text_that_goes_on_keeps_its_first_space() {
        let tokens = ["<unk>", "<s>", "</s>", "\u{2581}a", "\u{2581}b"];
        let tokens = tokens.into_iter().collect();
        let mut metadata = Metadata::new();
        for (key, value) in [
            ("model", Value::from("llama")),
            ("tokens", Value::Array(Array::String(tokens))),
            ("scores", vec![0.0f32; 5].into()),
            ("token_type", vec![2i64, 3, 3, 1, 1].into()),
        ] {
            metadata.insert(format!("tokenizer.ggml.{key}"), value);
        }
        let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
        let text = |stream: TokenStream| {
            let (mut stream, mut out) = (stream, String::new());
            stream.push(&tokenizer, &[3, 4], &mut out).unwrap();
            stream.finish(&mut out);
            out
        };
        let stream = || TokenStream::new(&[], true).unwrap();
        assert_eq!(text(stream()), "a b");
        assert_eq!(text(stream().continued()), " a b");
    }
}
