//! What a Lark grammar must not have, found before it is compiled.

use super::limits::MAX_LEVELS;
use super::schema;
use crate::budget::Budget;
use crate::error::{Result, fail};
use serde_json::Value;
use std::collections::HashMap;

/// Most literal text that a terminal may have.
const MAX_LITERAL_BYTES: usize = 256 << 10;

/// Refuses a grammar that would take the compiler too much stack or time, and special tokens, which
/// are no text. Errors: `Grammar`; those of the budget.
pub(super) fn check(text: &str, budget: &Budget) -> Result<()> {
    // Each level of nesting and each step from rule to rule needs one of these.
    let levels = text.bytes().filter(|b| b"([{:".contains(b)).count();
    if levels > MAX_LEVELS {
        fail!(
            Grammar,
            "it is too large: {levels} rules and brackets, {MAX_LEVELS} are allowed"
        );
    }
    let mut sizes = Sizes::default();
    let mut rest = text;
    let mut line_starts = true;
    while let Some(c) = rest.chars().next() {
        budget.work(1)?;
        let before = rest;
        rest = match c {
            '"' => behind(&rest[1..], '"'),
            '#' => rest.find('\n').map_or("", |end| &rest[end..]),
            '/' if rest.starts_with("//") => rest.find('\n').map_or("", |end| &rest[end..]),
            '/' => behind(&rest[1..], '/'),
            '%' => embedded(rest, budget)?,
            '<' => {
                let before = &text[..text.len() - rest.len()];
                let line = before.matches('\n').count() + 1;
                let token = rest.split_inclusive('>').next().unwrap_or(rest);
                let token: String = token.chars().take(40).collect();
                fail!(
                    Grammar,
                    "line {line}: {token}: an answer has no special tokens; what ends it is allowed \
                     behind it anyway"
                )
            }
            _ if c.is_alphanumeric() || c == '_' => {
                let end = rest.find(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | '-'));
                let (name, rest) = rest.split_at(end.unwrap_or(rest.len()));
                let is_defined = line_starts && rest.trim_start().starts_with([':', '.', '[', '{']);
                sizes.name(name, is_defined);
                rest
            }
            _ => &rest[c.len_utf8()..],
        };
        line_starts = c == '\n' || (line_starts && c.is_whitespace());
        if matches!(c, '"' | '/') {
            sizes.literal(before.len() - rest.len());
        }
    }
    sizes.check(budget)
}

/// How much literal text the terminals have, once those that they name are put in.
#[derive(Default)]
struct Sizes<'t> {
    /// By name: bytes of its own, and the terminals that it names.
    terminals: HashMap<&'t str, (usize, Vec<&'t str>)>,
    present: &'t str,
}

fn is_terminal(name: &str) -> bool {
    let first = name.trim_start_matches('_').chars().next();
    first.is_some_and(char::is_uppercase)
}

impl<'t> Sizes<'t> {
    fn name(&mut self, name: &'t str, is_defined: bool) {
        if is_defined {
            self.present = name;
        } else if is_terminal(name) && is_terminal(self.present) {
            self.terminals.entry(self.present).or_default().1.push(name);
        }
    }

    fn literal(&mut self, bytes: usize) {
        if is_terminal(self.present) {
            self.terminals.entry(self.present).or_default().0 += bytes;
        }
    }

    fn check(&self, budget: &Budget) -> Result<()> {
        // None while it is being found out.
        let mut known: HashMap<&str, Option<usize>> = HashMap::new();
        for name in self.terminals.keys() {
            let mut todo = vec![*name];
            while let Some(name) = todo.last().copied() {
                let Some((own, named)) = self.terminals.get(name) else {
                    known.insert(name, Some(0));
                    todo.pop();
                    continue;
                };
                budget.work(named.len() as u64 + 1)?;
                match known.get(name) {
                    None => {
                        known.insert(name, None);
                        todo.extend(named.iter().filter(|name| !known.contains_key(**name)));
                    }
                    Some(None) => {
                        let sizes = named.iter().map(|name| known.get(*name).copied().flatten());
                        let size =
                            sizes.fold(*own, |sum, size| sum.saturating_add(size.unwrap_or(0)));
                        if size > MAX_LITERAL_BYTES {
                            fail!(
                                Grammar,
                                "it is too large: {name} stands for {size} bytes of text, \
                                 {MAX_LITERAL_BYTES} are allowed"
                            );
                        }
                        known.insert(name, Some(size));
                        todo.pop();
                    }
                    Some(Some(_)) => {
                        todo.pop();
                    }
                }
            }
        }
        Ok(())
    }
}

/// What is left behind a string or an expression that ends with `end`.
fn behind(text: &str, end: char) -> &str {
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => {
                chars.next();
            }
            _ if c == end => return &text[at + c.len_utf8()..],
            _ => {}
        }
    }
    ""
}

/// What is left behind a directive and the JSON that it may have.
fn embedded<'t>(text: &'t str, budget: &Budget) -> Result<&'t str> {
    for directive in ["%json", "%regex", "%llguidance"] {
        let Some(rest) = text.strip_prefix(directive) else {
            continue;
        };
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        // What is not JSON is an error of the compiler.
        if let Some(Ok(value)) = values.next() {
            if directive == "%json" {
                schema::check(&value, budget)?;
            }
            return Ok(&rest[values.byte_offset()..]);
        }
    }
    Ok(&text[1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_tokens_are_told_from_text() {
        let check = |text: &str| check(text, &Budget::for_grammar(text.len()));
        for text in [
            "start: \"<a>\" /<b>/ // <c>\n # <d>\n",
            r#"start: "\"<a>" /\/<b>/"#,
            r#"start: %json {"enum": ["<a>"]} "x""#,
            "start: A\nA: %regex {\"substring_words\": \"<a>\"}",
        ] {
            check(text).unwrap();
        }
        for text in [
            "start: \"a\" <|im_end|>",
            "start: \"a\" <[1-4]>",
            r#"start: %json {"type": "null"} <a>"#,
            "start: \"a\n\" x\nx: \"\\\\\" <a>",
        ] {
            let error = check(text).unwrap_err();
            assert!(error.message.contains("special token"), "{error}");
        }
    }

    #[test]
    fn terminals_that_double_are_told() {
        let doubling = |n: usize| {
            let rules = (0..n).map(|i| format!("T{}: T{i}\n  | \"-\" T{i}\n", i + 1));
            let rules: String = rules.collect();
            format!("T0: \"some text\"\n{rules}start: T{n}")
        };
        let check = |text: &str| check(text, &Budget::for_grammar(text.len()));
        check(&doubling(10)).unwrap();
        let error = check(&doubling(20)).unwrap_err();
        assert!(error.message.contains("too large"), "{error}");
        // One that names itself is an error of the compiler.
        check("A: B\nB: A \"x\" | A A A\nstart: A").unwrap();
    }
}
