//! GBNF to llguidance's Lark.
//!
//! A rule that does not lead back to itself becomes a terminal, which is an ordinary regular
//! expression; the others become rules. So a grammar without recursion is matched exactly. In one
//! with recursion, text is divided into the longest possible terminals first, as in Lark.

use super::gbnf_parser::{Node, Rule, parse};
use crate::error::{Result, fail};
use std::fmt::Write;

/// Most literal text that a terminal may have.
const MAX_LITERAL_BYTES: usize = 64 << 10;

/// The same grammar in Lark.
///
/// Errors: `Grammar` with line and column.
pub(super) fn to_lark(text: &str) -> Result<String> {
    let (rules, root) = parse(text)?;
    let recursive = recursive_rules(&rules);
    check_sizes(&rules, &recursive)?;
    let used = reachable(&rules, root);
    let mut lark = format!("start: {}\n", name(root, &recursive));
    for (index, rule) in rules.iter().enumerate().filter(|(index, _)| used[*index]) {
        let _ = write!(lark, "{}: ", name(index, &recursive));
        write_node(&rule.body, &recursive, &mut lark);
        lark.push('\n');
    }
    Ok(lark)
}

/// Lark tells rules from terminals by the case of their names.
fn name(rule: usize, recursive: &[bool]) -> String {
    match recursive[rule] {
        true => format!("r{rule}"),
        false => format!("T{rule}"),
    }
}

/// Which rules lead back to themselves, or to one that does.
fn recursive_rules(rules: &[Rule]) -> Vec<bool> {
    // A rule is not recursive once all that it uses are known not to be.
    let mut missing: Vec<usize> = Vec::new();
    let mut users = vec![Vec::new(); rules.len()];
    for (index, rule) in rules.iter().enumerate() {
        missing.push(rule.uses.len());
        for used in &rule.uses {
            users[*used].push(index);
        }
    }
    let mut recursive = vec![true; rules.len()];
    let mut done: Vec<usize> = (0..rules.len()).filter(|i| missing[*i] == 0).collect();
    while let Some(index) = done.pop() {
        recursive[index] = false;
        for user in &users[index] {
            missing[*user] -= 1;
            if missing[*user] == 0 {
                done.push(*user);
            }
        }
    }
    recursive
}

/// Refuses terminals that have too much literal text once the rules that they use are put in.
fn check_sizes(rules: &[Rule], recursive: &[bool]) -> Result<()> {
    let mut sizes: Vec<Option<usize>> = vec![None; rules.len()];
    for rule in (0..rules.len()).filter(|rule| !recursive[*rule]) {
        let mut todo = vec![rule];
        while let Some(rule) = todo.last().copied() {
            let before = todo.len();
            todo.extend(
                rules[rule]
                    .uses
                    .iter()
                    .filter(|used| sizes[**used].is_none()),
            );
            if todo.len() > before {
                continue;
            }
            todo.pop();
            let size = literal_bytes(&rules[rule].body, &sizes);
            if size > MAX_LITERAL_BYTES {
                fail!(
                    Grammar,
                    "it is too large: a rule stands for {size} bytes of text, {MAX_LITERAL_BYTES} are \
                     allowed"
                );
            }
            sizes[rule] = Some(size);
        }
    }
    Ok(())
}

fn literal_bytes(node: &Node, sizes: &[Option<usize>]) -> usize {
    match node {
        Node::Literal(text) => text.len(),
        Node::Class { .. } => 1,
        Node::Rule(rule) => sizes[*rule].unwrap_or(0),
        Node::Sequence(parts) | Node::Choice(parts) => parts.iter().fold(0, |sum, part| {
            sum.saturating_add(literal_bytes(part, sizes))
        }),
        Node::Repeat { part, .. } => literal_bytes(part, sizes),
    }
}

fn reachable(rules: &[Rule], root: usize) -> Vec<bool> {
    let mut seen = vec![false; rules.len()];
    let mut todo = vec![root];
    while let Some(index) = todo.pop() {
        if !std::mem::replace(&mut seen[index], true) {
            todo.extend(&rules[index].uses);
        }
    }
    seen
}

fn write_node(node: &Node, recursive: &[bool], out: &mut String) {
    match node {
        Node::Literal(text) => write_string(text, out),
        Node::Class { ranges, negated } => write_class(ranges, *negated, out),
        Node::Rule(rule) => out.push_str(&name(*rule, recursive)),
        Node::Sequence(parts) if parts.is_empty() => out.push_str("\"\""),
        Node::Sequence(parts) => write_list(parts, " ", recursive, out),
        Node::Choice(parts) => write_list(parts, " | ", recursive, out),
        Node::Repeat { part, min, max } => {
            out.push('(');
            write_node(part, recursive, out);
            out.push(')');
            let _ = match (min, max) {
                (0, None) => write!(out, "*"),
                (1, None) => write!(out, "+"),
                (0, Some(1)) => write!(out, "?"),
                (min, None) => write!(out, "{{{min},}}"),
                (min, Some(max)) => write!(out, "{{{min},{max}}}"),
            };
        }
    }
}

fn write_list(parts: &[Node], between: &str, recursive: &[bool], out: &mut String) {
    out.push('(');
    for (i, part) in parts.iter().enumerate() {
        if i > 0 {
            out.push_str(between);
        }
        write_node(part, recursive, out);
    }
    out.push(')');
}

fn write_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\0'..='\x1f' | '\x7f' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            _ => out.push(c),
        }
    }
    out.push('"');
}

fn write_class(ranges: &[(char, char)], negated: bool, out: &mut String) {
    let _ = write!(out, "/[{}", if negated { "^" } else { "" });
    for (first, last) in ranges {
        let _ = write!(out, "\\x{{{:x}}}-\\x{{{:x}}}", *first as u32, *last as u32);
    }
    out.push_str("]/");
}
