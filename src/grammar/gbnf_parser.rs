//! The syntax of GBNF.

use crate::error::{Result, fail};
use std::collections::HashMap;

/// Levels of brackets.
const MAX_DEPTH: usize = 100;
/// Most repetitions that may be asked for.
const MAX_REPEAT: u32 = i32::MAX as u32 - 1;

/// A rule with what its name stands for.
pub(super) struct Rule {
    pub body: Node,
    /// The rules in it, once for each time.
    pub uses: Vec<usize>,
}

pub(super) enum Node {
    Literal(String),
    /// One character of these ranges, or of none of them.
    Class {
        ranges: Vec<(char, char)>,
        negated: bool,
    },
    Rule(usize),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    Repeat {
        part: Box<Node>,
        min: u32,
        max: Option<u32>,
    },
}

/// The rules of a grammar and the index of `root`.
///
/// Errors: `Grammar` with line and column.
pub(super) fn parse(text: &str) -> Result<(Vec<Rule>, usize)> {
    let mut parser = Parser {
        text,
        at: 0,
        names: HashMap::new(),
        uses: Vec::new(),
    };
    let mut bodies: Vec<Option<Rule>> = Vec::new();
    parser.skip(true);
    while parser.at < text.len() {
        let start = parser.at;
        let index = parser.name()?;
        parser.skip(false);
        if !parser.take("::=") {
            return parser.fail("\"::=\" is missing behind the name of a rule");
        }
        parser.skip(true);
        let body = parser.choice(0)?;
        let uses = std::mem::take(&mut parser.uses);
        bodies.resize_with(parser.names.len(), || None);
        if bodies[index].replace(Rule { body, uses }).is_some() {
            parser.at = start;
            return parser.fail("this rule is there already");
        }
        let end = parser.at;
        parser.skip(true);
        if parser.at < text.len() && !text[end..parser.at].contains('\n') {
            return parser.fail("what is here belongs to no rule");
        }
    }
    let mut names: Vec<(&str, (usize, usize))> =
        parser.names.iter().map(|(n, p)| (*n, *p)).collect();
    names.sort_by_key(|(_, (index, _))| *index);
    let mut rules = Vec::new();
    for (body, (name, (_, place))) in bodies.into_iter().zip(&names) {
        match body {
            Some(rule) => rules.push(rule),
            None => {
                parser.at = *place;
                return parser.fail(&format!("there is no rule {name}"));
            }
        }
    }
    match parser.names.get("root") {
        Some((root, _)) => Ok((rules, *root)),
        None => fail!(Grammar, "there is no rule root"),
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    /// The index of each rule, and where its name was first.
    names: HashMap<&'a str, (usize, usize)>,
    /// Rules used so far in the present one.
    uses: Vec<usize>,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.rest().starts_with(word);
        if found {
            self.at += word.len();
        }
        found
    }

    /// An error at the present place.
    fn fail<T>(&self, message: &str) -> Result<T> {
        let before = &self.text[..self.at.min(self.text.len())];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |l| l.chars().count()) + 1;
        let here: String = self
            .rest()
            .lines()
            .next()
            .unwrap_or("")
            .chars()
            .take(20)
            .collect();
        fail!(
            Grammar,
            "line {line}, column {column} ({here:?}): {message}"
        )
    }

    /// Skips white space and comments; line ends only if they mean nothing here.
    fn skip(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\r' | '\n' if lines => self.at += 1,
                '#' => self.at += self.rest().find('\n').unwrap_or(self.rest().len()),
                _ => break,
            }
        }
    }

    fn name(&mut self) -> Result<usize> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let rest = self.rest();
        let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        if length == 0 {
            return self.fail("the name of a rule is missing");
        }
        let (next, place) = (self.names.len(), self.at);
        self.at += length;
        let (index, _) = *self.names.entry(&rest[..length]).or_insert((next, place));
        Ok(index)
    }

    fn choice(&mut self, depth: usize) -> Result<Node> {
        if depth > MAX_DEPTH {
            return self.fail(&format!("brackets are nested more than {MAX_DEPTH} times"));
        }
        let mut options = vec![self.sequence(depth)?];
        loop {
            let end = self.at;
            self.skip(true);
            if !self.take("|") {
                self.at = end;
                break;
            }
            self.skip(true);
            options.push(self.sequence(depth)?);
        }
        Ok(match options.len() {
            1 => options.remove(0),
            _ => Node::Choice(options),
        })
    }

    fn sequence(&mut self, depth: usize) -> Result<Node> {
        // Within brackets, and behind a bar, lines may end anywhere.
        let lines = depth > 0;
        let mut parts = Vec::new();
        loop {
            self.skip(lines);
            let mut part = match self.peek() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.at += 1;
                    Node::Class {
                        ranges: vec![('\0', char::MAX)],
                        negated: false,
                    }
                }
                Some('(') => {
                    self.at += 1;
                    self.skip(true);
                    let inner = self.choice(depth + 1)?;
                    self.skip(true);
                    if !self.take(")") {
                        return self.fail("a bracket is not closed");
                    }
                    inner
                }
                Some('<' | '!') => {
                    return self.fail("tokens by number or name are not supported");
                }
                Some(c) if c.is_ascii_alphanumeric() || c == '-' || c == '_' => {
                    let rule = self.name()?;
                    self.uses.push(rule);
                    Node::Rule(rule)
                }
                _ => break,
            };
            while let Some((min, max)) = self.repetition()? {
                part = Node::Repeat {
                    part: Box::new(part),
                    min,
                    max,
                };
            }
            parts.push(part);
        }
        Ok(match parts.len() {
            1 => parts.remove(0),
            _ => Node::Sequence(parts),
        })
    }

    fn repetition(&mut self) -> Result<Option<(u32, Option<u32>)>> {
        let bounds = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => return self.bounds().map(Some),
            _ => return Ok(None),
        };
        self.at += 1;
        Ok(Some(bounds))
    }

    /// `{3}`, `{3,}`, `{,5}` or `{3,5}`.
    fn bounds(&mut self) -> Result<(u32, Option<u32>)> {
        let start = self.at;
        let inner = self.rest()[1..].split_once('}').map(|(inner, _)| inner);
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|n| *n <= MAX_REPEAT);
        let bounds = inner.and_then(|inner| match inner.split_once(',') {
            None => number(inner).map(|n| (n, Some(n))),
            Some((min, max)) => {
                let min = if min.trim().is_empty() {
                    0
                } else {
                    number(min)?
                };
                let max = if max.trim().is_empty() {
                    None
                } else {
                    Some(number(max)?)
                };
                (max.is_none_or(|max| max >= min)).then_some((min, max))
            }
        });
        match (bounds, inner) {
            (Some(bounds), Some(inner)) => {
                self.at = start + inner.len() + 2;
                Ok(bounds)
            }
            _ => self.fail("the number of repetitions is not valid"),
        }
    }

    fn literal(&mut self) -> Result<Node> {
        let start = self.at;
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                Some('"') => break,
                None | Some('\n') => {
                    self.at = start;
                    return self.fail("a text is not closed");
                }
                Some(_) => text.push(self.character()?),
            }
        }
        self.at += 1;
        Ok(Node::Literal(text))
    }

    fn class(&mut self) -> Result<Node> {
        let start = self.at;
        self.at += 1;
        let negated = self.take("^");
        let mut ranges = Vec::new();
        while !self.take("]") {
            if matches!(self.peek(), None | Some('\n')) {
                self.at = start;
                return self.fail("a \"[\" is not closed");
            }
            let first = self.character()?;
            let mut last = first;
            if self.rest().starts_with('-') && !self.rest().starts_with("-]") {
                self.at += 1;
                last = self.character()?;
            }
            if last < first {
                return self.fail("a range of characters runs backwards");
            }
            ranges.push((first, last));
        }
        if ranges.is_empty() {
            self.at = start;
            return self.fail("no character is between the brackets");
        }
        Ok(Node::Class { ranges, negated })
    }

    /// A character, which may be escaped.
    fn character(&mut self) -> Result<char> {
        let start = self.at;
        let digits = match (self.next(), self.peek()) {
            (Some('\\'), Some(escaped)) => {
                self.at += escaped.len_utf8();
                match escaped {
                    'n' => return Ok('\n'),
                    'r' => return Ok('\r'),
                    't' => return Ok('\t'),
                    '\\' | '"' | '[' | ']' | '-' | '^' => return Ok(escaped),
                    'x' => 2,
                    'u' => 4,
                    'U' => 8,
                    _ => {
                        self.at = start;
                        return self.fail("there is no such escape");
                    }
                }
            }
            (Some(c), _) if c != '\\' => return Ok(c),
            _ => return self.fail("a character is missing"),
        };
        let code = self.rest().get(..digits);
        let code = code.filter(|code| code.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = code.and_then(|code| u32::from_str_radix(code, 16).ok());
        match code.and_then(char::from_u32) {
            Some(c) => {
                self.at += digits;
                Ok(c)
            }
            None => {
                self.at = start;
                self.fail("this is not the number of a character")
            }
        }
    }
}
