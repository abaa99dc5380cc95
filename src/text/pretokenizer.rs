//! How text is cut into pieces, which become tokens each for itself.

use super::byte_level::Alphabet;
use super::normalizer::SPACE;
use super::pattern::Pattern;
use crate::error::{Error, Result, fail};
use std::borrow::Cow;

/// What becomes of the matches of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behavior {
    /// They are left out.
    Removed,
    /// Each is a piece.
    Isolated,
    /// Each ends the piece before it.
    MergedWithPrevious,
    /// Each begins the piece behind it.
    MergedWithNext,
    /// Neighbours are one piece.
    Contiguous,
}

/// When a space goes before a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prepend {
    Always,
    /// Only at the start of all text.
    First,
    Never,
}

/// One step of cutting; each works on the pieces of the step before it, and sees nothing else.
pub(super) enum Cutter {
    /// Cuts at the matches of a pattern, or at what is between them if `invert`.
    Split {
        pattern: Pattern,
        behavior: Behavior,
        invert: bool,
    },
    /// Spaces are spelled otherwise, one goes before, and each begins a piece if `split`.
    Metaspace {
        replacement: char,
        prepend: Prepend,
        split: bool,
    },
    /// A space goes before a piece that does not start with one.
    PrefixSpace,
    /// Pieces begin where a space, spelled `\u{2581}`, follows anything else.
    SpaceStarts,
    /// Cuts of the text as byte-level vocabularies spell it.
    Spelled(Vec<Cutter>),
    /// Pieces of so many characters.
    FixedLength(usize),
    /// Runs of the bytes whose spelling is numeric become pieces, and their triples of ASCII digits
    /// again. Falcon looks for numbers after bytes have been spelled as characters, where the
    /// superscripts and fractions of Latin-1 stand for bytes of multi-byte characters.
    SpelledNumbers,
}

/// Steps in order.
#[derive(Default)]
pub(super) struct PreTokenizer {
    pub cutters: Vec<Cutter>,
}

impl PreTokenizer {
    /// Gives the pieces of `text` to `each`, in order. A piece may end inside a character. `first`
    /// at the start of all text. Errors: those of `each`; `OutOfMemory`; what a pattern gives.
    pub fn split(
        &self,
        text: &str,
        first: bool,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        cut(&self.cutters, text, first, each)
    }
}

/// What takes pieces.
type Each<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

fn cut(cutters: &[Cutter], text: &str, first: bool, each: &mut Each) -> Result<()> {
    let Some((cutter, rest)) = cutters.split_first() else {
        return match text.is_empty() {
            true => Ok(()),
            false => each(text.as_bytes()),
        };
    };
    let mut at_start = first;
    match cutter {
        Cutter::Split {
            pattern,
            behavior,
            invert,
        } => split(text, pattern, *behavior, *invert, &mut |start, end| {
            cut(rest, &text[start..end], first && start == 0, each)
        }),
        Cutter::Metaspace {
            replacement,
            prepend,
            split,
        } => {
            let spelled = metaspace(text, *replacement, *prepend, first)?;
            if !split {
                return cut(rest, &spelled, first, each);
            }
            let mut from = 0;
            for (start, _) in spelled.match_indices(*replacement) {
                cut(rest, &spelled[from..start], at_start, each)?;
                at_start &= start == 0;
                from = start;
            }
            cut(rest, &spelled[from..], at_start, each)
        }
        Cutter::PrefixSpace if text.is_empty() || text.starts_with(' ') => {
            cut(rest, text, first, each)
        }
        Cutter::PrefixSpace => {
            let mut spaced = with_room(text.len() + 1)?;
            spaced.push(' ');
            spaced.push_str(text);
            cut(rest, &spaced, first, each)
        }
        Cutter::SpaceStarts => {
            let mut from = 0;
            let mut space_end = 0;
            for (start, space) in text.match_indices(SPACE) {
                if start > space_end {
                    cut(rest, &text[from..start], at_start, each)?;
                    at_start = false;
                    from = start;
                }
                space_end = start + space.len();
            }
            cut(rest, &text[from..], at_start, each)
        }
        Cutter::Spelled(inner) => cut_spelled(inner, text, first, each),
        Cutter::FixedLength(length) => {
            let mut uncut = text;
            while !uncut.is_empty() {
                let end = uncut.char_indices().nth(*length);
                let (piece, tail) = uncut.split_at(end.map_or(uncut.len(), |at| at.0));
                cut(rest, piece, at_start, each)?;
                at_start = false;
                uncut = tail;
            }
            Ok(())
        }
        Cutter::SpelledNumbers => {
            let same = |a: &u8, b: &u8| is_spelled_numeric(*a) == is_spelled_numeric(*b);
            text.as_bytes()
                .chunk_by(same)
                .try_for_each(|run| cut_digit_triples(run, each))
        }
    }
}

/// Cuts `text` as byte-level vocabularies spell it, and gives the bytes of the pieces to `each`.
fn cut_spelled(inner: &[Cutter], text: &str, first: bool, each: &mut Each) -> Result<()> {
    let alphabet = Alphabet::new();
    let mut spelled = with_room(2 * text.len())?;
    spelled.extend(text.bytes().map(|byte| alphabet.character(byte)));
    let mut bytes = Vec::new();
    cut(inner, &spelled, first, &mut |piece| {
        bytes.clear();
        if bytes.try_reserve(piece.len()).is_err() {
            fail!(
                OutOfMemory,
                "no memory for a piece of {} bytes",
                piece.len()
            );
        }
        let piece = str::from_utf8(piece).unwrap_or_default();
        alphabet.decode(piece, &mut bytes);
        each(&bytes)
    })
}

fn with_room(bytes: usize) -> Result<String> {
    let mut text = String::new();
    if text.try_reserve(bytes).is_err() {
        fail!(OutOfMemory, "no memory to cut text: {bytes} bytes");
    }
    Ok(text)
}

/// Spells spaces as `replacement`, and adds one at the start if there is none.
fn metaspace(text: &str, replacement: char, prepend: Prepend, first: bool) -> Result<Cow<'_, str>> {
    let prefix = match prepend {
        Prepend::Always => true,
        Prepend::First => first,
        Prepend::Never => false,
    };
    let prefix = prefix && !text.is_empty() && !text.starts_with([' ', replacement]);
    if !prefix && !text.contains(' ') {
        return Ok(Cow::Borrowed(text));
    }
    let mut spelled = with_room(4 * text.len() + 4)?;
    if prefix {
        spelled.push(replacement);
    }
    let spell = |c| if c == ' ' { replacement } else { c };
    spelled.extend(text.chars().map(spell));
    Ok(Cow::Owned(spelled))
}

/// Gives start and end of the pieces to `each`.
fn split(
    text: &str,
    pattern: &Pattern,
    behavior: Behavior,
    invert: bool,
    each: &mut dyn FnMut(usize, usize) -> Result<()>,
) -> Result<()> {
    let mut joiner = Joiner {
        behavior,
        open: None,
        each,
        error: None,
    };
    let mut from = 0;
    pattern.find_all(text, &mut |start, end| {
        if from < start {
            joiner.part(from, start, invert);
        }
        joiner.part(start, end, !invert);
        from = end;
    })?;
    if from < text.len() {
        joiner.part(from, text.len(), invert);
    }
    joiner.finish()
}

/// Joins matches and the texts between them to pieces.
struct Joiner<'a> {
    behavior: Behavior,
    /// The piece that may still grow: start, end, whether it ends with a match.
    open: Option<(usize, usize, bool)>,
    each: &'a mut dyn FnMut(usize, usize) -> Result<()>,
    error: Option<Error>,
}

impl Joiner<'_> {
    fn part(&mut self, start: usize, end: usize, is_match: bool) {
        let joined = match (self.behavior, self.open) {
            (Behavior::Removed, _) if is_match => return,
            (Behavior::Removed | Behavior::Isolated, _) | (_, None) => false,
            (Behavior::Contiguous, Some((.., before))) => before == is_match,
            (Behavior::MergedWithPrevious, Some((.., before))) => is_match && !before,
            (Behavior::MergedWithNext, Some((.., before))) => before && !is_match,
        };
        match &mut self.open {
            Some((_, open_end, before)) if joined => {
                *open_end = end;
                *before = is_match;
            }
            _ => {
                self.flush();
                self.open = Some((start, end, is_match));
            }
        }
    }

    fn flush(&mut self) {
        if let Some((start, end, _)) = self.open.take()
            && self.error.is_none()
        {
            self.error = (self.each)(start, end).err();
        }
    }

    fn finish(mut self) -> Result<()> {
        self.flush();
        self.error.map_or(Ok(()), Err)
    }
}

/// Whether the character that spells this byte is numeric: ASCII digits and `²³¹¼½¾`.
fn is_spelled_numeric(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | 0xB2 | 0xB3 | 0xB9 | 0xBC..=0xBE)
}

fn cut_digit_triples(run: &[u8], each: &mut Each) -> Result<()> {
    let mut gap = 0;
    let mut at = 0;
    while at < run.len() {
        let triple = run[at..].first_chunk::<3>();
        if triple.is_some_and(|three| three.iter().all(u8::is_ascii_digit)) {
            if gap < at {
                each(&run[gap..at])?;
            }
            each(&run[at..at + 3])?;
            at += 3;
            gap = at;
        } else {
            at += 1;
        }
    }
    if gap < run.len() {
        each(&run[gap..])?;
    }
    Ok(())
}
