//! A regular expression compiled to a table: finds the leftmost-first match, one table look-up per
//! character, with the one look-ahead that pre-tokenizers use.
//!
//! Pre-tokenizer patterns tell characters apart by a few dozen sets only (letters, digits, spaces).
//! So each character is first mapped to its *class*, the characters that no set of the pattern
//! separates, and an automaton runs over classes. An automaton state is an ordered list of threads
//! of the pattern, best first, taken *before* empty steps are followed: these are followed when the
//! next class is known, which makes the assertion `(?!\S)` a plain question about that class.

use crate::budget::Budget;
use crate::error::{Result, fail};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look};
use std::collections::HashMap;

/// Characters per page of the class map.
const PAGE: usize = 256;
const N_PAGES: usize = 0x11_0000 / PAGE;
/// Set in a table entry if the pattern matches up to the current position.
const MATCH: u16 = 0x8000;
/// The state without threads.
const DEAD: u16 = 0;
const START: u16 = 1;
/// No pattern in use needs more than about 600 states; a pattern beyond this is refused.
const MAX_STATES: usize = 8192;

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct Splitter {
    ascii: [u8; 128],
    page_of: Vec<u16>,
    pages: Vec<u8>,
    /// Class of the end of the text; also the last class.
    end: u8,
    /// Next state and [`MATCH`] at `state * n_classes + class`.
    table: Vec<u16>,
}

impl Splitter {
    /// Compiles `pattern`: the syntax of the regex crate plus `(?!\S)`. Errors: `Unsupported` for
    /// other look-around, patterns that match nothing at all, and patterns that are too large; those
    /// of the budget.
    pub fn new(pattern: &str, budget: &Budget) -> Result<Self> {
        // The parser knows no look-ahead; this assertion, otherwise unused, carries it through.
        let rewritten = pattern.replace(r"(?!\S)", r"(?:\b{end-half})");
        let parsed = ParserBuilder::new().build().parse(&rewritten);
        let hir = match parsed {
            Ok(hir) => hir,
            Err(error) => fail!(Unsupported, "pattern {pattern:?}: {error}"),
        };
        if hir.properties().minimum_len().unwrap_or(0) == 0 {
            fail!(Unsupported, "pattern {pattern:?} matches the empty text");
        }
        let mut program = Program::default();
        let accept = program.push(Node::Match);
        let Some(entry) = program.compile(&hir, accept) else {
            fail!(
                Unsupported,
                "pattern {pattern:?} has an assertion or a size that is not supported"
            );
        };
        let Some(classes) = Classes::new(&program.sets) else {
            fail!(Unsupported, "pattern {pattern:?} has too many classes");
        };
        // The map of all characters, and the look at each of its pages.
        budget.work(1 << 17)?;
        let Some(table) = determinize(&program, entry, &classes, budget)? else {
            fail!(Unsupported, "pattern {pattern:?} has too many states");
        };
        let mut ascii = [0; 128];
        for (c, class) in ascii.iter_mut().enumerate() {
            *class = classes.pages[classes.page_of[0] as usize * PAGE + c];
        }
        Ok(Splitter {
            ascii,
            page_of: classes.page_of,
            pages: classes.pages,
            end: classes.members.len() as u8,
            table,
        })
    }

    /// Gives start and end of all matches in `text` to `each`, in order. A match that ends before
    /// the place where it was known makes the search go back; the budget pays for every look at a
    /// character. Errors: those of the budget and of `each`.
    pub fn find_all(
        &self,
        text: &str,
        budget: &Budget,
        each: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<()> {
        let mut start = 0;
        while start < text.len() {
            let (length, looked) = self.match_length(&text[start..]);
            budget.work(looked as u64 / 4 + 1)?;
            if length == 0 {
                start += text[start..].chars().next().map_or(1, char::len_utf8);
                continue;
            }
            each(start, start + length)?;
            start += length;
        }
        Ok(())
    }

    /// Bytes of the match at the start of `text`, 0 if there is none, and bytes that were looked at.
    fn match_length(&self, text: &str) -> (usize, usize) {
        let stride = self.end as usize + 1;
        let bytes = text.as_bytes();
        let mut state = START;
        let mut at = 0;
        let mut length = 0;
        loop {
            let (class, width) = match bytes.get(at) {
                Some(&b) if b < 128 => (self.ascii[b as usize], 1),
                Some(_) => match text[at..].chars().next() {
                    Some(c) => (self.class(c), c.len_utf8()),
                    None => (self.end, 0),
                },
                None => (self.end, 0),
            };
            let entry = self.table[state as usize * stride + class as usize];
            if entry & MATCH != 0 {
                length = at;
            }
            state = entry & !MATCH;
            if state == DEAD {
                return (length, at);
            }
            at += width;
        }
    }

    fn class(&self, c: char) -> u8 {
        let page = self.page_of[c as usize / PAGE] as usize;
        self.pages[page * PAGE + c as usize % PAGE]
    }
}

/// One step of the pattern as a graph.
enum Node {
    /// A character of the set, then on.
    Set { set: usize, next: usize },
    /// Any of these ways, best first.
    Fork(Vec<usize>),
    /// On if the text ends here or the next character is in the set.
    EndOr { set: usize, next: usize },
    /// The pattern has matched.
    Match,
}

#[derive(Default)]
struct Program {
    nodes: Vec<Node>,
    sets: Vec<ClassUnicode>,
}

impl Program {
    fn push(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn set(&mut self, set: ClassUnicode) -> usize {
        if let Some(known) = self.sets.iter().position(|s| *s == set) {
            return known;
        }
        self.sets.push(set);
        self.sets.len() - 1
    }

    /// Adds nodes for `hir` that go on to `next`; gives their entry. None: not supported.
    fn compile(&mut self, hir: &Hir, next: usize) -> Option<usize> {
        if self.nodes.len() > MAX_STATES {
            return None;
        }
        match hir.kind() {
            HirKind::Empty => Some(next),
            HirKind::Literal(literal) => {
                let mut next = next;
                for c in str::from_utf8(&literal.0).ok()?.chars().rev() {
                    let set = self.set(ClassUnicode::new([ClassUnicodeRange::new(c, c)]));
                    next = self.push(Node::Set { set, next });
                }
                Some(next)
            }
            HirKind::Class(Class::Unicode(class)) => {
                let set = self.set(class.clone());
                Some(self.push(Node::Set { set, next }))
            }
            HirKind::Class(Class::Bytes(_)) => None,
            HirKind::Look(Look::WordEndHalfUnicode) => {
                let set = self.set(whitespace());
                Some(self.push(Node::EndOr { set, next }))
            }
            HirKind::Look(_) => None,
            HirKind::Capture(capture) => self.compile(&capture.sub, next),
            HirKind::Concat(parts) => parts
                .iter()
                .rev()
                .try_fold(next, |next, part| self.compile(part, next)),
            HirKind::Alternation(ways) => {
                let ways = ways.iter().map(|way| self.compile(way, next));
                let ways = ways.collect::<Option<Vec<_>>>()?;
                Some(self.push(Node::Fork(ways)))
            }
            HirKind::Repetition(repetition) => {
                let fork = |body, next| match repetition.greedy {
                    true => Node::Fork(vec![body, next]),
                    false => Node::Fork(vec![next, body]),
                };
                let mut entry = next;
                match repetition.max {
                    None => {
                        let again = self.push(Node::Fork(Vec::new()));
                        let body = self.compile(&repetition.sub, again)?;
                        self.nodes[again] = fork(body, next);
                        entry = again;
                    }
                    Some(max) => {
                        for _ in repetition.min..max {
                            let body = self.compile(&repetition.sub, entry)?;
                            entry = self.push(fork(body, next));
                        }
                    }
                }
                for _ in 0..repetition.min {
                    entry = self.compile(&repetition.sub, entry)?;
                }
                Some(entry)
            }
        }
    }
}

/// The characters of `\s`: Unicode's White_Space.
fn whitespace() -> ClassUnicode {
    let ranges = [
        ('\t', '\r'),
        (' ', ' '),
        ('\u{85}', '\u{85}'),
        ('\u{A0}', '\u{A0}'),
        ('\u{1680}', '\u{1680}'),
        ('\u{2000}', '\u{200A}'),
        ('\u{2028}', '\u{2029}'),
        ('\u{202F}', '\u{202F}'),
        ('\u{205F}', '\u{205F}'),
        ('\u{3000}', '\u{3000}'),
    ];
    ClassUnicode::new(ranges.map(|(first, last)| ClassUnicodeRange::new(first, last)))
}

/// The partition of all characters that a list of sets makes.
struct Classes {
    page_of: Vec<u16>,
    pages: Vec<u8>,
    /// Per class: which sets hold its characters.
    members: Vec<Vec<bool>>,
}

impl Classes {
    /// None if there are more than 254 classes.
    fn new(sets: &[ClassUnicode]) -> Option<Self> {
        // Where membership changes: the first character, the set, and whether it starts there.
        let mut edges = Vec::new();
        for (index, set) in sets.iter().enumerate() {
            for range in set.ranges() {
                edges.push((range.start() as u32, index, true));
                edges.push((range.end() as u32 + 1, index, false));
            }
        }
        edges.sort_unstable();
        let mut classes = HashMap::new();
        let mut members = Vec::new();
        let mut map = vec![0u8; N_PAGES * PAGE];
        let mut inside = vec![0u32; sets.len()];
        let mut from = 0;
        let last = map.len();
        let mut edges = edges.into_iter().peekable();
        loop {
            let to = edges.peek().map_or(last, |edge| edge.0 as usize);
            if from < to {
                let holders: Vec<bool> = inside.iter().map(|n| *n > 0).collect();
                let class = *classes.entry(holders).or_insert_with_key(|holders| {
                    members.push(holders.clone());
                    members.len() - 1
                });
                map[from..to].fill(u8::try_from(class).ok().filter(|class| *class < 254)?);
                from = to;
            }
            match edges.next() {
                Some((_, set, true)) => inside[set] += 1,
                Some((_, set, false)) => inside[set] -= 1,
                None => break,
            }
        }
        let mut known: HashMap<&[u8], u16> = HashMap::new();
        let mut page_of = Vec::with_capacity(N_PAGES);
        let mut pages = Vec::new();
        for page in map.chunks_exact(PAGE) {
            let index = *known.entry(page).or_insert_with(|| {
                pages.extend_from_slice(page);
                (pages.len() / PAGE - 1) as u16
            });
            page_of.push(index);
        }
        Some(Classes {
            page_of,
            pages,
            members,
        })
    }
}

/// Follows empty steps from `node`, best first, given the class that comes next (None: the end of
/// the text). Pushes the threads behind that class to `threads`; true once the pattern matched,
/// after which worse threads do not count.
fn follow(
    program: &Program,
    node: usize,
    class: Option<&[bool]>,
    seen: &mut [bool],
    threads: &mut Vec<usize>,
) -> bool {
    if std::mem::replace(&mut seen[node], true) {
        return false;
    }
    match &program.nodes[node] {
        Node::Match => true,
        Node::Set { set, next } => {
            if class.is_some_and(|members| members[*set]) && !threads.contains(next) {
                threads.push(*next);
            }
            false
        }
        Node::EndOr { set, next } => {
            class.is_none_or(|members| members[*set])
                && follow(program, *next, class, seen, threads)
        }
        Node::Fork(ways) => ways
            .iter()
            .any(|way| follow(program, *way, class, seen, threads)),
    }
}

/// The transition table. None if it has too many states.
fn determinize(
    program: &Program,
    entry: usize,
    classes: &Classes,
    budget: &Budget,
) -> Result<Option<Vec<u16>>> {
    let stride = classes.members.len() + 1;
    let mut states: Vec<Vec<usize>> = vec![Vec::new(), vec![entry]];
    let mut known: HashMap<Vec<usize>, u16> = HashMap::new();
    known.insert(Vec::new(), DEAD);
    known.insert(vec![entry], START);
    let mut table = vec![DEAD; stride];
    let mut state = START as usize;
    while state < states.len() {
        for class in 0..stride {
            let members = classes.members.get(class).map(Vec::as_slice);
            let mut seen = vec![false; program.nodes.len()];
            // Threads are compared with each other, and visit nodes.
            let n_threads = states[state].len() as u64;
            budget.work(n_threads * n_threads / 8 + program.nodes.len() as u64 / 4 + 1)?;
            let mut threads = Vec::new();
            let matched = states[state]
                .iter()
                .any(|node| follow(program, *node, members, &mut seen, &mut threads));
            let next = match known.get(&threads) {
                Some(next) => *next,
                None if states.len() == MAX_STATES => return Ok(None),
                None => {
                    let next = states.len() as u16;
                    known.insert(threads.clone(), next);
                    states.push(threads);
                    next
                }
            };
            table.push(next | if matched { MATCH } else { 0 });
        }
        state += 1;
    }
    Ok(Some(table))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(pattern: &str, text: &str) -> Vec<String> {
        let mut out = Vec::new();
        let budget = Budget::for_text(text.len());
        let splitter = Splitter::new(pattern, &budget).unwrap();
        let mut gap = 0;
        let mut each = |start, end| {
            out.extend([&text[gap..start], &text[start..end]].map(str::to_string));
            gap = end;
            Ok(())
        };
        splitter.find_all(text, &budget, &mut each).unwrap();
        out.push(text[gap..].to_string());
        out.retain(|piece| !piece.is_empty());
        out
    }

    #[test]
    fn first_alternative_wins() {
        assert_eq!(pieces("a|ab|c", "abc"), ["a", "b", "c"]);
        assert_eq!(pieces("ab|a|c", "abac"), ["ab", "a", "c"]);
        assert_eq!(pieces("a+?b?|x", "aab"), ["a", "ab"]);
        assert_eq!(
            pieces("(?:ab){2,3}|b", "ababababb"),
            ["ababab", "a", "b", "b"]
        );
    }

    #[test]
    fn lookahead_gives_the_last_space_to_the_word() {
        let pattern = r" ?\p{L}+|\s+(?!\S)|\s+";
        assert_eq!(pieces(pattern, "a   b  "), ["a", "  ", " b", "  "]);
        assert_eq!(
            pieces(pattern, "a \u{3000}\u{85}b"),
            ["a", " \u{3000}", "\u{85}", "b"]
        );
        assert_eq!(pieces(pattern, "\u{200b}"), ["\u{200b}"]);
    }

    #[test]
    fn unmatched_text_is_kept_together() {
        assert_eq!(
            pieces(r"\p{N}{1,3}", "ab12345é6"),
            ["ab", "123", "45", "é", "6"]
        );
    }

    #[test]
    fn case_folding_includes_the_long_s() {
        assert_eq!(pieces(r"(?i:'s)|\p{L}", "'S'ſa"), ["'S", "'ſ", "a"]);
    }

    #[test]
    fn refused() {
        for pattern in ["a*", "(?=a)b", r"\bword", "(a", "a{9000}"] {
            assert_eq!(
                Splitter::new(pattern, &Budget::for_text(0))
                    .unwrap_err()
                    .status,
                crate::Status::Unsupported,
                "{pattern}"
            );
        }
    }
}
