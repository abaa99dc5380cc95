//! How text is cut into pieces, which become tokens each for itself.

use super::byte_level::Alphabet;
use super::charset::CharSet;
use super::normalizer::SPACE;
use super::pattern::Pattern;
use crate::budget::{Budget, Output};
use crate::error::{Result, fail};

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
    /// Runs of characters of a set are cut into threes, counted from their end. If `isolated`, runs are pieces apart
    /// from what is before and behind them.
    Thousands { digits: CharSet, isolated: bool },
}

/// Steps in order.
#[derive(Default)]
pub(super) struct PreTokenizer {
    pub cutters: Vec<Cutter>,
}

impl PreTokenizer {
    /// Gives the pieces of `text` to `each`, in order. A piece may end inside a character. `first`
    /// at the start of all text. Errors: those of `each` and of the budget; `OutOfMemory`; what a
    /// pattern gives.
    pub fn split(
        &self,
        text: &str,
        first: bool,
        budget: &Budget,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        cut(&self.cutters, text, first, budget, each)
    }
}

/// What takes pieces.
type Each<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

fn cut(
    cutters: &[Cutter],
    text: &str,
    first: bool,
    budget: &Budget,
    each: &mut Each,
) -> Result<()> {
    budget.scan(text.len())?;
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
        } => split(
            text,
            pattern,
            *behavior,
            *invert,
            budget,
            &mut |start, end| cut(rest, &text[start..end], first && start == 0, budget, each),
        ),
        Cutter::Metaspace {
            replacement,
            prepend,
            split,
        } => {
            let changed = metaspace(text, *replacement, *prepend, first, budget)?;
            let spelled = changed.as_ref().map_or(text, Output::as_str);
            if !split {
                return cut(rest, spelled, first, budget, each);
            }
            let mut from = 0;
            for (start, _) in spelled.match_indices(*replacement) {
                cut(rest, &spelled[from..start], at_start, budget, each)?;
                at_start &= start == 0;
                from = start;
            }
            cut(rest, &spelled[from..], at_start, budget, each)
        }
        Cutter::PrefixSpace if text.is_empty() || text.starts_with(' ') => {
            cut(rest, text, first, budget, each)
        }
        Cutter::PrefixSpace => {
            let mut spaced = Output::with_room(budget, text.len() + 1)?;
            spaced.push(" ")?;
            spaced.push(text)?;
            cut(rest, spaced.as_str(), first, budget, each)
        }
        Cutter::SpaceStarts => {
            let mut from = 0;
            let mut space_end = 0;
            for (start, space) in text.match_indices(SPACE) {
                if start > space_end {
                    cut(rest, &text[from..start], at_start, budget, each)?;
                    at_start = false;
                    from = start;
                }
                space_end = start + space.len();
            }
            cut(rest, &text[from..], at_start, budget, each)
        }
        Cutter::Spelled(inner) => cut_spelled(inner, text, first, budget, each),
        Cutter::FixedLength(length) => {
            let mut uncut = text;
            while !uncut.is_empty() {
                let end = uncut.char_indices().nth(*length);
                let (piece, tail) = uncut.split_at(end.map_or(uncut.len(), |at| at.0));
                cut(rest, piece, at_start, budget, each)?;
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
        Cutter::Thousands { digits, isolated } => {
            let mut from = 0;
            thousands(text, digits, *isolated, &mut |at| {
                let piece = &text[from..at];
                let is_first = first && from == 0;
                from = at;
                cut(rest, piece, is_first, budget, each)
            })?;
            cut(rest, &text[from..], first && from == 0, budget, each)
        }
    }
}

/// Calls `at` with the places where [`Cutter::Thousands`] cuts, in order.
fn thousands(
    text: &str,
    digits: &CharSet,
    isolated: bool,
    at: &mut dyn FnMut(usize) -> Result<()>,
) -> Result<()> {
    let mut chars = text.char_indices().peekable();
    while let Some((start, c)) = chars.next() {
        if !digits.contains(c) {
            continue;
        }
        let mut count = 1;
        while chars.next_if(|(_, c)| digits.contains(*c)).is_some() {
            count += 1;
        }
        let end = chars.peek().map_or(text.len(), |(end, _)| *end);
        let run = text[start..end].char_indices().enumerate();
        for (i, (place, _)) in run {
            let whole = (count - i) % 3 == 0;
            if start + place > 0 && (whole || isolated && i == 0) {
                at(start + place)?;
            }
        }
        if isolated && end < text.len() {
            at(end)?;
        }
    }
    Ok(())
}

/// Cuts `text` as byte-level vocabularies spell it, and gives the bytes of the pieces to `each`.
fn cut_spelled(
    inner: &[Cutter],
    text: &str,
    first: bool,
    budget: &Budget,
    each: &mut Each,
) -> Result<()> {
    let alphabet = Alphabet::new();
    let mut spelled = Output::with_room(budget, text.len())?;
    for byte in text.bytes() {
        spelled.push_char(alphabet.character(byte))?;
    }
    let mut bytes = Vec::new();
    cut(inner, spelled.as_str(), first, budget, &mut |piece| {
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

/// Spells spaces as `replacement`, and adds one at the start if there is none. None if that changes
/// nothing.
fn metaspace<'b>(
    text: &str,
    replacement: char,
    prepend: Prepend,
    first: bool,
    budget: &'b Budget,
) -> Result<Option<Output<'b>>> {
    let prefix = match prepend {
        Prepend::Always => true,
        Prepend::First => first,
        Prepend::Never => false,
    };
    let prefix = prefix && !text.is_empty() && !text.starts_with([' ', replacement]);
    if !prefix && !text.contains(' ') {
        return Ok(None);
    }
    let mut spelled = Output::with_room(budget, text.len() + 4)?;
    if prefix {
        spelled.push_char(replacement)?;
    }
    for c in text.chars() {
        spelled.push_char(if c == ' ' { replacement } else { c })?;
    }
    Ok(Some(spelled))
}

/// Gives start and end of the pieces to `each`.
fn split(
    text: &str,
    pattern: &Pattern,
    behavior: Behavior,
    invert: bool,
    budget: &Budget,
    each: &mut dyn FnMut(usize, usize) -> Result<()>,
) -> Result<()> {
    let mut joiner = Joiner {
        behavior,
        open: None,
        each,
    };
    let mut from = 0;
    pattern.find_all(text, budget, &mut |start, end| {
        if from < start {
            joiner.part(from, start, invert)?;
        }
        from = end;
        joiner.part(start, end, !invert)
    })?;
    if from < text.len() {
        joiner.part(from, text.len(), invert)?;
    }
    joiner.flush()
}

/// Joins matches and the texts between them to pieces.
struct Joiner<'a> {
    behavior: Behavior,
    /// The piece that may still grow: start, end, whether it ends with a match.
    open: Option<(usize, usize, bool)>,
    each: &'a mut dyn FnMut(usize, usize) -> Result<()>,
}

impl Joiner<'_> {
    fn part(&mut self, start: usize, end: usize, is_match: bool) -> Result<()> {
        let joined = match (self.behavior, self.open) {
            (Behavior::Removed, _) if is_match => return Ok(()),
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
                self.flush()?;
                self.open = Some((start, end, is_match));
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        match self.open.take() {
            Some((start, end, _)) => (self.each)(start, end),
            None => Ok(()),
        }
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
