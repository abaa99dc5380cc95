//! Text from tokens as they come: a token may end inside a character.

/// Collects bytes and gives back whole characters. What it gives in all is what
/// [`String::from_utf8_lossy`] gives for all the bytes at once: U+FFFD for each invalid sequence.
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    /// The bytes of a character that is not complete yet; three at most.
    held: Vec<u8>,
}

impl TextStream {
    /// A stream that holds nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the bytes of the next token and appends to `out` every character that is complete now.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        self.held.extend_from_slice(bytes);
        let mut rest = self.held.as_slice();
        loop {
            match str::from_utf8(rest) {
                Ok(text) => {
                    out.push_str(text);
                    rest = &[];
                }
                Err(error) => {
                    let (valid, bad) = rest.split_at(error.valid_up_to());
                    out.push_str(str::from_utf8(valid).unwrap_or_default());
                    rest = bad;
                    if let Some(length) = error.error_len() {
                        out.push(char::REPLACEMENT_CHARACTER);
                        rest = &rest[length..];
                        continue;
                    }
                }
            }
            break;
        }
        let done = self.held.len() - rest.len();
        self.held.drain(..done);
    }

    /// Ends the text: a character that is still incomplete becomes U+FFFD. The stream is empty then
    /// and may be used again.
    pub fn finish(&mut self, out: &mut String) {
        if !self.held.is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
            self.held.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_back_incomplete_characters() {
        let mut stream = TextStream::new();
        let mut out = String::new();
        stream.push(b"a\xf0\x9f", &mut out);
        assert_eq!(out, "a");
        stream.push(b"\xa6", &mut out);
        assert_eq!(out, "a");
        stream.push(b"\x99!", &mut out);
        assert_eq!(out, "a🦙!");
        stream.push(b"\xc3", &mut out);
        stream.push(b"b\xff\xe2\x82", &mut out);
        assert_eq!(out, "a🦙!\u{FFFD}b\u{FFFD}");
        stream.finish(&mut out);
        stream.finish(&mut out);
        assert_eq!(out, "a🦙!\u{FFFD}b\u{FFFD}\u{FFFD}");
    }

    #[test]
    fn cut_anywhere_it_is_the_lossy_text() {
        let sample: Vec<u8> = (0..60_000u32)
            .map(|i| {
                (i.wrapping_mul(2_654_435_761) >> 13) as u8 | if i % 3 == 0 { 0x80 } else { 0 }
            })
            .chain("äöü€🦙x".bytes().cycle().take(9_001))
            .collect();
        for step in [1, 2, 3, 7, 70_000] {
            let mut stream = TextStream::new();
            let mut out = String::new();
            for part in sample.chunks(step) {
                stream.push(part, &mut out);
            }
            stream.finish(&mut out);
            assert_eq!(out, String::from_utf8_lossy(&sample), "step {step}");
        }
    }
}
