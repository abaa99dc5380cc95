//! The printable alphabet of byte-level vocabularies.
//!
//! Such a vocabulary spells each byte as one character: printable Latin-1 stands for itself, the 68
//! other bytes are U+0100 onwards in byte order (so a space is `Ġ`, a line feed `Ċ`).

/// First character of the 68 bytes that do not stand for themselves.
const SHIFTED: u32 = 0x100;

/// Bytes that stand for themselves.
fn is_plain(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The byte that a character of the alphabet stands for, at `char as usize`.
pub(super) struct Alphabet {
    bytes: [Option<u8>; 0x144],
    characters: [char; 256],
}

impl Alphabet {
    /// The one alphabet that there is.
    pub fn new() -> Self {
        let mut bytes = [None; 0x144];
        let mut characters = ['\0'; 256];
        let mut next = SHIFTED;
        for byte in 0..=255u8 {
            let spelled = if is_plain(byte) {
                u32::from(byte)
            } else {
                next
            };
            next += u32::from(!is_plain(byte));
            bytes[spelled as usize] = Some(byte);
            characters[byte as usize] = char::from_u32(spelled).unwrap_or_default();
        }
        Alphabet { bytes, characters }
    }

    /// The character that stands for a byte.
    pub fn character(&self, byte: u8) -> char {
        self.characters[usize::from(byte)]
    }

    /// Appends the bytes that `text` spells; false (and nothing appended) if a character of it is
    /// not in the alphabet.
    pub fn decode(&self, text: &str, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        for c in text.chars() {
            match self.bytes.get(c as usize) {
                Some(Some(byte)) => out.push(*byte),
                _ => {
                    out.truncate(start);
                    return false;
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_spellings() {
        let alphabet = Alphabet::new();
        let mut out = Vec::new();
        assert!(alphabet.decode("ĠHiĊÃ¤ĢŃ", &mut out));
        assert_eq!(out, b" Hi\n\xc3\xa4\x80\xad");
        assert!(!alphabet.decode("a b", &mut out));
        assert!(!alphabet.decode("a▁", &mut out));
        assert_eq!(out.len(), 8);
    }

    #[test]
    fn every_byte_once() {
        let mut seen: Vec<u8> = Alphabet::new().bytes.iter().flatten().copied().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..=255).collect::<Vec<u8>>());
    }
}
