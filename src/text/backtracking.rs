//! Regular expressions that no table can follow: those with look-around and with repetitions that give
//! nothing back. The syntax is read by the fancy-regex crate; its own search does not tell what it
//! takes, so the search is here, and the budget pays for each step of it.

use super::charset::CharSet;
use crate::budget::Budget;
use crate::error::{Result, fail};
use fancy_regex::{Assertion, Expr, LookAround};
use regex_syntax::hir::{Class, HirKind};
use std::collections::HashMap;

/// Most instructions of a pattern.
const MAX_PROGRAM: usize = 20_000;
/// Most places that a search may have to come back to.
const MAX_STACK: usize = 4 << 20;

/// A compiled pattern.
pub(super) struct Backtracking {
    program: Vec<Step>,
    sets: Vec<CharSet>,
    /// Places of the sets by their classes.
    known: HashMap<String, usize>,
    word: CharSet,
}

enum Step {
    /// A character of a set.
    Set(usize),
    /// On at the first, or else at the second.
    Split(usize, usize),
    Jump(usize),
    Assert(Assertion),
    /// What begins behind this step, up to its own `Done`, matches here or does not; then on at `next`.
    Ahead {
        negated: bool,
        next: usize,
    },
    /// The same so many characters before this place.
    Behind {
        negated: bool,
        characters: usize,
        next: usize,
    },
    /// The first match of what begins behind this step, whatever comes then.
    Atomic {
        next: usize,
    },
    Done,
}

impl Backtracking {
    /// Compiles a pattern, in which `^` and `$` are at lines. Errors: what is wrong with it or not
    /// supported, in words.
    pub fn new(pattern: &str) -> std::result::Result<Self, String> {
        let tree = Expr::parse_tree(&format!("(?m:{pattern})")).map_err(|e| e.to_string())?;
        let mut compiled = Backtracking {
            program: Vec::new(),
            sets: Vec::new(),
            known: HashMap::new(),
            word: CharSet::new(r"\w"),
        };
        compiled.add(&tree.expr)?;
        compiled.program.push(Step::Done);
        Ok(compiled)
    }

    fn push(&mut self, step: Step) -> std::result::Result<usize, String> {
        if self.program.len() >= MAX_PROGRAM {
            return Err("it is too large".into());
        }
        self.program.push(step);
        Ok(self.program.len() - 1)
    }

    /// A character of a class as the regex crate writes it.
    fn class(&mut self, class: &str, ignore_case: bool) -> std::result::Result<(), String> {
        let flag = if ignore_case { "(?i)" } else { "" };
        let class = format!("{flag}{class}");
        if let Some(set) = self.known.get(&class) {
            let set = *set;
            return self.push(Step::Set(set)).map(|_| ());
        }
        let hir = regex_syntax::parse(&class).map_err(|e| e.to_string())?;
        let ranges = match hir.kind() {
            HirKind::Class(Class::Unicode(class)) => {
                class.iter().map(|r| (r.start(), r.end())).collect()
            }
            HirKind::Literal(literal) => {
                let text = str::from_utf8(&literal.0).unwrap_or_default();
                let mut chars = text.chars();
                match (chars.next(), chars.next()) {
                    (Some(c), None) => vec![(c, c)],
                    _ => return Err(format!("{class} is not one character")),
                }
            }
            // Nothing is in it.
            HirKind::Class(_) => Vec::new(),
            _ => return Err(format!("{class} is not one character")),
        };
        self.sets.push(CharSet::of(ranges));
        let set = self.sets.len() - 1;
        self.known.insert(class, set);
        self.push(Step::Set(set)).map(|_| ())
    }

    fn literal(&mut self, text: &str, ignore_case: bool) -> std::result::Result<(), String> {
        for c in text.chars() {
            let class = regex_syntax::escape(c.encode_utf8(&mut [0; 4]));
            self.class(&class, ignore_case)?;
        }
        Ok(())
    }

    fn add(&mut self, expression: &Expr) -> std::result::Result<(), String> {
        match expression {
            Expr::Empty => Ok(()),
            Expr::Any { newline, crlf } => match (newline, crlf) {
                (true, _) => self.class(r"(?s:.)", false),
                (false, true) => self.class(r"[^\r\n]", false),
                (false, false) => self.class(r"[^\n]", false),
            },
            Expr::Assertion(Assertion::EndTextIgnoreTrailingNewlines { .. }) => {
                Err("\\Z is not supported".into())
            }
            Expr::Assertion(assertion) => self.push(Step::Assert(*assertion)).map(|_| ()),
            Expr::Literal { val, casei } => self.literal(val, *casei),
            Expr::Delegate { inner, casei } => self.class(inner, *casei),
            Expr::Concat(parts) => parts.iter().try_for_each(|part| self.add(part)),
            Expr::Alt(ways) => self.alternatives(ways),
            Expr::Group(inner) => self.add(inner),
            Expr::AtomicGroup(inner) => {
                let at = self.push(Step::Atomic { next: 0 })?;
                let next = self.inner(inner)?;
                self.program[at] = Step::Atomic { next };
                Ok(())
            }
            Expr::LookAround(inner, kind) => self.look(inner, *kind),
            Expr::Repeat {
                child,
                lo,
                hi,
                greedy,
            } => self.repeat(child, *lo, *hi, *greedy),
            _ => Err("it has something that is not supported".into()),
        }
    }

    /// Adds an expression that ends for itself; gives where it goes on behind it.
    fn inner(&mut self, inner: &Expr) -> std::result::Result<usize, String> {
        self.add(inner)?;
        Ok(self.push(Step::Done)? + 1)
    }

    fn alternatives(&mut self, ways: &[Expr]) -> std::result::Result<(), String> {
        let mut ends = Vec::new();
        for (index, way) in ways.iter().enumerate() {
            if index + 1 == ways.len() {
                self.add(way)?;
                break;
            }
            let split = self.push(Step::Split(0, 0))?;
            self.add(way)?;
            ends.push(self.push(Step::Jump(0))?);
            self.program[split] = Step::Split(split + 1, self.program.len());
        }
        for end in ends {
            self.program[end] = Step::Jump(self.program.len());
        }
        Ok(())
    }

    fn look(&mut self, inner: &Expr, kind: LookAround) -> std::result::Result<(), String> {
        let negated = matches!(kind, LookAround::LookAheadNeg | LookAround::LookBehindNeg);
        let at = self.push(Step::Done)?;
        let next = self.inner(inner)?;
        self.program[at] = match kind {
            LookAround::LookAhead | LookAround::LookAheadNeg => Step::Ahead { negated, next },
            LookAround::LookBehind | LookAround::LookBehindNeg => match length(inner) {
                Some(characters) => Step::Behind {
                    negated,
                    characters,
                    next,
                },
                None => return Err("it looks back over texts of several lengths".into()),
            },
        };
        Ok(())
    }

    fn repeat(
        &mut self,
        child: &Expr,
        lo: usize,
        hi: usize,
        greedy: bool,
    ) -> std::result::Result<(), String> {
        let split = |body: usize, next: usize| match greedy {
            true => Step::Split(body, next),
            false => Step::Split(next, body),
        };
        for _ in 0..lo {
            let before = self.program.len();
            self.add(child)?;
            if self.program.len() == before {
                return Ok(());
            }
        }
        if hi == usize::MAX {
            if can_be_empty(child) {
                return Err("it repeats what may be nothing".into());
            }
            let at = self.push(Step::Split(0, 0))?;
            self.add(child)?;
            let next = self.push(Step::Jump(at))? + 1;
            self.program[at] = split(at + 1, next);
            return Ok(());
        }
        let mut splits = Vec::new();
        for _ in lo..hi {
            splits.push(self.push(Step::Split(0, 0))?);
            self.add(child)?;
        }
        for at in splits {
            self.program[at] = split(at + 1, self.program.len());
        }
        Ok(())
    }

    /// Gives start and end of all matches in `text` to `each`, in order; they do not overlap. Errors:
    /// those of the budget and of `each`; `InvalidArgument` for a search with too many ways.
    pub fn find_all(
        &self,
        text: &str,
        budget: &Budget,
        each: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<()> {
        let mut start = 0;
        let mut last_end = None;
        let mut stack = Vec::new();
        while start <= text.len() {
            budget.work(1)?;
            let after = start + text[start..].chars().next().map_or(1, char::len_utf8);
            match self.run(0, text, start, budget, &mut stack)? {
                Some(end) if end > start => {
                    each(start, end)?;
                    last_end = Some(end);
                    start = end;
                }
                // As the regex crate has it: nothing behind a match is none.
                Some(end) => {
                    if last_end != Some(end) {
                        each(start, end)?;
                    }
                    start = after;
                }
                None => start = after,
            }
        }
        Ok(())
    }

    /// The end of the first match that begins at a place. Calls itself for what stands in brackets of
    /// the pattern, whose depth its reader limits.
    fn run(
        &self,
        entry: usize,
        text: &str,
        start: usize,
        budget: &Budget,
        stack: &mut Vec<(usize, usize)>,
    ) -> Result<Option<usize>> {
        let base = stack.len();
        let (mut step, mut at) = (entry, start);
        let mut steps = 0;
        let found = loop {
            steps += 1;
            if steps == 1024 {
                budget.work(steps)?;
                steps = 0;
            }
            let goes_on = match &self.program[step] {
                Step::Done => break Some(at),
                Step::Set(set) => match text[at..].chars().next() {
                    Some(c) if self.sets[*set].contains(c) => {
                        at += c.len_utf8();
                        step += 1;
                        true
                    }
                    _ => false,
                },
                Step::Split(first, second) => {
                    if stack.len() >= MAX_STACK || stack.try_reserve(1).is_err() {
                        fail!(
                            InvalidArgument,
                            "text: a pattern of the tokenizer has too many ways to match it"
                        );
                    }
                    stack.push((*second, at));
                    step = *first;
                    true
                }
                Step::Jump(to) => {
                    step = *to;
                    true
                }
                Step::Assert(assertion) => {
                    step += 1;
                    self.holds(*assertion, text, at)
                }
                Step::Ahead { negated, next } => {
                    let inner = self.run(step + 1, text, at, budget, stack)?;
                    step = *next;
                    inner.is_some() != *negated
                }
                Step::Behind {
                    negated,
                    characters,
                    next,
                } => {
                    let mut before = text[..at].char_indices().rev();
                    let from = match characters {
                        0 => Some(at),
                        n => before.nth(n - 1).map(|(from, _)| from),
                    };
                    steps += *characters as u64;
                    let inner = match from {
                        Some(from) => self.run(step + 1, text, from, budget, stack)?,
                        None => None,
                    };
                    step = *next;
                    (inner == Some(at)) != *negated
                }
                Step::Atomic { next } => {
                    let inner = self.run(step + 1, text, at, budget, stack)?;
                    at = inner.unwrap_or(at);
                    step = *next;
                    inner.is_some()
                }
            };
            if goes_on {
                continue;
            }
            match stack.len() > base {
                true => (step, at) = stack.pop().unwrap_or_default(),
                false => break None,
            }
        };
        stack.truncate(base);
        budget.work(steps)?;
        Ok(found)
    }

    fn holds(&self, assertion: Assertion, text: &str, at: usize) -> bool {
        let (before, behind) = (&text[..at], &text[at..]);
        let is_word = |c: Option<char>| c.is_some_and(|c| self.word.contains(c));
        let word_before = is_word(before.chars().next_back());
        let word_behind = is_word(behind.chars().next());
        match assertion {
            Assertion::StartText => at == 0,
            Assertion::EndText => behind.is_empty(),
            // Refused when the pattern is compiled.
            Assertion::EndTextIgnoreTrailingNewlines { .. } => false,
            Assertion::StartLine { .. } => at == 0 || before.ends_with('\n'),
            Assertion::StartLineOniguruma { .. } => {
                at == 0 || (before.ends_with('\n') && !behind.is_empty())
            }
            Assertion::EndLine { .. } => behind.is_empty() || behind.starts_with('\n'),
            Assertion::LeftWordBoundary => !word_before && word_behind,
            Assertion::LeftWordHalfBoundary => !word_before,
            Assertion::RightWordBoundary => word_before && !word_behind,
            Assertion::RightWordHalfBoundary => !word_behind,
            Assertion::WordBoundary => word_before != word_behind,
            Assertion::NotWordBoundary => word_before == word_behind,
        }
    }
}

/// Characters of every text that an expression matches, if they are as many.
fn length(expression: &Expr) -> Option<usize> {
    match expression {
        Expr::Empty | Expr::Assertion(_) | Expr::LookAround(..) => Some(0),
        Expr::Any { .. } | Expr::Delegate { .. } => Some(1),
        Expr::Literal { val, .. } => Some(val.chars().count()),
        Expr::Concat(parts) => parts
            .iter()
            .try_fold(0, |sum, part| Some(sum + length(part)?)),
        Expr::Alt(ways) => {
            let mut lengths = ways.iter().map(length);
            let first = lengths.next()??;
            lengths.all(|other| other == Some(first)).then_some(first)
        }
        Expr::Group(inner) => length(inner),
        Expr::AtomicGroup(inner) => length(inner),
        Expr::Repeat { child, lo, hi, .. } if lo == hi => length(child)?.checked_mul(*lo),
        _ => None,
    }
}

fn can_be_empty(expression: &Expr) -> bool {
    match expression {
        Expr::Any { .. } | Expr::Delegate { .. } => false,
        Expr::Literal { val, .. } => val.is_empty(),
        Expr::Concat(parts) => parts.iter().all(can_be_empty),
        Expr::Alt(ways) => ways.iter().any(can_be_empty),
        Expr::Group(inner) => can_be_empty(inner),
        Expr::AtomicGroup(inner) => can_be_empty(inner),
        Expr::Repeat { child, lo, .. } => *lo == 0 || can_be_empty(child),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        let budget = Budget::for_text(text.len());
        let mut each = |start, end| {
            found.push((start, end));
            Ok(())
        };
        let compiled = Backtracking::new(pattern).unwrap();
        compiled.find_all(text, &budget, &mut each).unwrap();
        found
    }

    /// The patterns of published tokenizers, and one for each thing that there is.
    #[test]
    fn matches_are_those_of_the_crate() {
        let patterns = [
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
            r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))|\p{L}+",
            r"(?<=a)b|(?<!a)c+",
            r"a(?=b)|b(?!a)|(?>a|ab)c",
            r"\b\w+\b|\B-",
            r"(?:a{2,3}?|b{1,2})c?|^x|y$",
            r"(?i)ABC|ſ+",
            r"(a|b)*?c|.",
            r"x*(?=a)",
            r"\s+(?=\s[a-z])|\s",
        ];
        let mut state = 11u64;
        let mut random = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % below
        };
        let letters: Vec<char> = "aabbccxyABC 1234\n\n\t  -'sé٣ſ".chars().collect();
        for pattern in patterns {
            let mut builder = fancy_regex::RegexBuilder::new(pattern);
            let reference = builder.multi_line(true).build().unwrap();
            for _ in 0..400 {
                let length = random(24);
                let text: String = (0..length)
                    .map(|_| letters[random(letters.len())])
                    .collect();
                let expected = reference.find_iter(&text).map(|found| found.unwrap());
                let expected: Vec<_> = expected.map(|m| (m.start(), m.end())).collect();
                assert_eq!(matches(pattern, &text), expected, "{pattern} in {text:?}");
            }
        }
    }

    #[test]
    fn what_is_not_supported_is_said() {
        for pattern in [r"(a)\1", r"(a*)*", r"(?<=a+)b", "(", r"(?:a{1000}){1000}"] {
            assert!(Backtracking::new(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn steps_are_paid_for() {
        for (pattern, letter) in [("a++b", "a"), ("(?=a*b)a", "a"), ("(a|aa)+(?=b)", "a")] {
            let compiled = Backtracking::new(pattern).unwrap();
            let text = letter.repeat(20_000);
            let budget = Budget::for_text(text.len());
            let error = compiled.find_all(&text, &budget, &mut |_, _| Ok(()));
            let error = error.unwrap_err();
            assert_eq!(error.status, crate::Status::InvalidArgument, "{pattern}");
        }
    }
}
