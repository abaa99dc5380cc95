//! From the text of a template to its tree.

use crate::error::{Error, Result, Status, fail};
use minijinja::Error as SyntaxError;
use minijinja::machinery::{Token, ast, parse as parse_source, tokenize};
use minijinja::syntax::SyntaxConfig;
use std::borrow::Cow;

/// The largest template, in bytes. Published ones stay under 50,000.
const MAX_SOURCE: usize = 1 << 20;
/// Most tokens between two delimiters, and most `elif` of a template: what the parser recurses
/// over without a limit of its own.
const MAX_TOKENS: usize = 4000;
const MAX_ELIF: usize = 1000;

/// Makes the template one that the parser knows: one kind of line end, and the tag `generation` of
/// the transformers library as a call of a function of that name.
pub(super) fn prepare(source: &str) -> Result<Cow<'_, str>> {
    if source.len() > MAX_SOURCE {
        fail!(
            TemplateFailed,
            "the chat template has {} bytes, {MAX_SOURCE} are allowed",
            source.len()
        );
    }
    let mut prepared = Cow::Borrowed(source);
    if prepared.contains('\r') {
        prepared = Cow::Owned(prepared.replace("\r\n", "\n").replace('\r', "\n"));
    }
    if prepared.contains("generation") {
        let tags = [
            ("generation", "call _generation()"),
            ("endgeneration", "endcall"),
        ];
        for (tag, call) in tags {
            prepared = Cow::Owned(replace_tag(&prepared, tag, call));
        }
    }
    if ESCAPES.iter().any(|escape| prepared.contains(escape)) {
        prepared = Cow::Owned(respell_escapes(&prepared));
    }
    if prepared.contains('+') {
        prepared = Cow::Owned(respell_plus(&prepared)?);
    }
    Ok(prepared)
}

/// Writes a sign that stands for nothing, `+x`, as `--x`, which the parser knows and which is the same
/// for numbers and an error for all else.
fn respell_plus(source: &str) -> Result<String> {
    let mut out = String::with_capacity(source.len() + 16);
    let mut done = 0;
    let mut behind_value = false;
    for token in tokenize(source, false, syntax()?) {
        // What is wrong is told when it is parsed.
        let Ok((token, span)) = token else { break };
        if matches!(token, Token::Plus) && !behind_value {
            let (start, end) = (span.start_offset as usize, span.end_offset as usize);
            out.push_str(source.get(done..start).unwrap_or_default());
            out.push_str("--");
            done = end;
        }
        let word_operators = ["in", "not", "and", "or", "if", "else", "is"];
        behind_value = match token {
            Token::Ident(name) => !word_operators.contains(&name),
            Token::Str(_)
            | Token::String(_)
            | Token::Int(_)
            | Token::Int128(_)
            | Token::Float(_)
            | Token::ParenClose
            | Token::BracketClose
            | Token::BraceClose => true,
            _ => false,
        };
    }
    out.push_str(source.get(done..).unwrap_or_default());
    Ok(out)
}

fn syntax() -> Result<SyntaxConfig> {
    let mut builder = SyntaxConfig::builder();
    builder.trim_blocks(true).lstrip_blocks(true);
    builder.build().map_err(failed)
}

/// Escapes of Python's strings that the parser reads in another way or not at all.
const ESCAPES: [&str; 4] = ["\\/", "\\a", "\\v", "\\U"];

/// Writes those escapes in strings of the template as ones that the parser knows. Text outside of
/// tags has no escapes, and comments do not matter.
fn respell_escapes(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut inside = false;
    let mut quote = None;
    while let Some(c) = rest.chars().next() {
        let mut length = c.len_utf8();
        let mut spelled = None;
        if !inside {
            inside = rest.starts_with("{{") || rest.starts_with("{%");
        } else if let Some(open) = quote {
            if c == '\\' {
                length += rest[1..].chars().next().map_or(0, char::len_utf8);
                spelled = match rest.as_bytes().get(1) {
                    Some(b'/') => Some("\\\\/".to_owned()),
                    Some(b'a') => Some("\\x07".to_owned()),
                    Some(b'v') => Some("\\x0b".to_owned()),
                    Some(b'U') => {
                        let code = rest
                            .get(2..10)
                            .and_then(|code| u32::from_str_radix(code, 16).ok());
                        let named = code.and_then(char::from_u32);
                        length += if named.is_some() { 8 } else { 0 };
                        named.map(String::from)
                    }
                    _ => None,
                };
            } else if c == open {
                quote = None;
            }
        } else if c == '\'' || c == '"' {
            quote = Some(c);
        } else if rest.starts_with("}}") || rest.starts_with("%}") {
            inside = false;
        }
        match spelled {
            Some(spelled) => out.push_str(&spelled),
            None => out.push_str(&rest[..length]),
        }
        rest = &rest[length..];
    }
    out
}

/// Replaces the statement `tag` without arguments, whatever space and marks are around it.
fn replace_tag(source: &str, tag: &str, by: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, inside) = rest.split_at(start + 2);
        out.push_str(before);
        rest = inside;
        let name = rest.trim_start_matches(['-', '+']).trim_start();
        let Some(after) = name.strip_prefix(tag) else {
            continue;
        };
        let end = after.trim_start().trim_start_matches(['-', '+']);
        if end.starts_with("%}") {
            out.push_str(&rest[..rest.len() - name.len()]);
            out.push_str(by);
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

/// Parses a prepared template.
pub(super) fn parse(source: &str) -> Result<ast::Stmt<'_>> {
    let syntax = syntax()?;
    let (mut tokens, mut elifs) = (0, 0);
    for token in tokenize(source, false, syntax.clone()) {
        match token.map_err(failed)? {
            (Token::BlockStart | Token::VariableStart, _) => tokens = 0,
            (Token::Ident("elif"), _) => elifs += 1,
            (_, span) if tokens > MAX_TOKENS || elifs > MAX_ELIF => fail!(
                TemplateFailed,
                "chat template, line {}: the statement is too long",
                span.start_line
            ),
            _ => tokens += 1,
        }
    }
    parse_source(source, "chat template", syntax).map_err(failed)
}

fn failed(error: SyntaxError) -> Error {
    let line = error
        .line()
        .map_or(String::new(), |n| format!(", line {n}"));
    let what = error
        .detail()
        .map_or_else(|| error.to_string(), str::to_owned);
    Error::new(
        Status::TemplateFailed,
        format!("chat template{line}: {what}"),
    )
}
