//! Sequence breakers that are given as text.

use super::Model;
use crate::error::{Result, fail};
use crate::text::EncodeOptions;

/// What ends repetitions if nothing else is said: line ends and the signs of dialogue and markup.
pub const DEFAULT_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// The longest text of a breaker, in bytes.
pub const MAX_BREAKER_BYTES: usize = 64;

impl Model {
    /// The token sequences in which a text can occur: every token that contains all of it; and every
    /// token that ends with its beginning, followed by the tokens of the rest.
    ///
    /// Errors: `InvalidArgument` for an empty text and for one of more than [`MAX_BREAKER_BYTES`];
    /// `Unsupported` if the model has no tokenizer; those of the tokenizer.
    pub fn breaker_sequences(&self, text: &str, out: &mut Vec<Vec<u32>>) -> Result<()> {
        if text.is_empty() || text.len() > MAX_BREAKER_BYTES {
            fail!(
                InvalidArgument,
                "a sequence breaker has 1 to {MAX_BREAKER_BYTES} bytes, but this one has {}",
                text.len()
            );
        }
        let tokenizer = self.tokenizer()?;
        let bytes = text.as_bytes();
        // The tokens of what follows each beginning of the text.
        let mut rests: Vec<(usize, Vec<u32>)> = Vec::new();
        for (at, _) in text.char_indices().skip(1) {
            let mut rest = Vec::new();
            tokenizer.encode(&text[at..], EncodeOptions::default(), &mut rest)?;
            rests.push((at, rest));
        }
        for id in 0..tokenizer.n_vocab().min(self.details().n_vocab) as u32 {
            let token = tokenizer.token_bytes(id)?;
            if token.windows(bytes.len()).any(|part| part == bytes) {
                out.push(vec![id]);
                continue;
            }
            for (at, rest) in &rests {
                if token.ends_with(&bytes[..*at]) {
                    out.push([&[id], &rest[..]].concat());
                }
            }
        }
        Ok(())
    }
}
