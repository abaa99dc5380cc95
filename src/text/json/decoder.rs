//! The `decoder` of a `tokenizer.json`: what bytes each token stands for.

use super::pretokenizer::{character, prepend};
use super::{boolean, check_count, kind, list, pattern, string, unknown};
use crate::budget::Budget;
use crate::error::{Result, fail};
use crate::text::byte_level::Alphabet;
use crate::text::normalizer::{Normalizer, Step};
use crate::text::pattern::Pattern;
use crate::text::pretokenizer::Prepend;
use crate::text::vocabulary::{MAX_TOKEN_BYTES, shorten, spelled_byte};
use crate::text::wordpiece::clean_up;
use serde_json::Value;

/// One step from the spelling of a token to its text.
enum Op {
    /// Characters are bytes.
    Alphabet(Box<Alphabet>),
    /// `<0x0A>` is a byte.
    Byte,
    Replace(Normalizer),
    /// So many times this goes at the start and the end.
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
    /// A space goes before tokens without this prefix.
    Words {
        prefix: String,
        clean: bool,
    },
}

/// How tokens become text.
#[derive(Default)]
pub(super) struct Rule {
    ops: Vec<Op>,
    /// The rest is about the whole text.
    fused: bool,
    /// A space at the start of the text goes.
    pub strips_space: bool,
    /// A space goes before special tokens.
    pub spaces_specials: bool,
    /// A space at the end of the text goes.
    pub strips_end_space: bool,
}

impl Rule {
    /// Writes the bytes that a token of this spelling stands for to `out`.
    /// Errors: those of the budget; `Unsupported` if they are too many.
    pub fn apply(&self, spelled: &str, budget: &Budget, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        let mut text = spelled.to_string();
        for op in &self.ops {
            budget.scan(text.len())?;
            match op {
                Op::Alphabet(alphabet) => {
                    if alphabet.decode(&text, out) {
                        return Ok(());
                    }
                }
                Op::Byte => {
                    if let Some(byte) = spelled_byte(&text) {
                        out.push(byte);
                        return Ok(());
                    }
                }
                Op::Replace(replace) => text = replace.apply(&text, budget)?.to_string(),
                Op::Strip {
                    content,
                    start,
                    stop,
                } => {
                    let mut rest = text.as_str();
                    for _ in 0..*start {
                        rest = rest.strip_prefix(*content).unwrap_or(rest);
                    }
                    for _ in 0..*stop {
                        rest = rest.strip_suffix(*content).unwrap_or(rest);
                    }
                    text = rest.to_string();
                }
                Op::Words { prefix, clean } => {
                    text = match text.strip_prefix(prefix.as_str()) {
                        Some(rest) if !prefix.is_empty() => rest.to_string(),
                        _ => format!(" {text}"),
                    };
                    if *clean {
                        text = clean_up(&text);
                    }
                }
            }
        }
        if text.len() > 2 * MAX_TOKEN_BYTES {
            fail!(
                Unsupported,
                "tokenizer.json: decoder: {:?} stands for {} bytes, which is too much",
                shorten(spelled),
                text.len()
            );
        }
        out.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// Compiles a component and what is in it.
pub(super) fn compile(component: &Value, place: &str, budget: &Budget) -> Result<Rule> {
    let mut rule = Rule::default();
    if component.is_null() {
        // Without a decoder there are spaces between tokens.
        rule.ops.push(Op::Words {
            prefix: String::new(),
            clean: false,
        });
        rule.strips_space = true;
        rule.spaces_specials = true;
        return Ok(rule);
    }
    add(component, place, budget, &mut rule)?;
    Ok(rule)
}

fn replace(pattern: Pattern, with: &str) -> Op {
    let with = with.to_string();
    Op::Replace(Normalizer {
        steps: vec![Step::Replace { pattern, with }],
    })
}

fn add(component: &Value, place: &str, budget: &Budget, rule: &mut Rule) -> Result<()> {
    let Some(kind) = kind(component, place)? else {
        return Ok(());
    };
    if rule.fused && !matches!(kind, "Fuse" | "Strip") {
        fail!(
            Unsupported,
            "tokenizer.json: {place}: {kind:?} after \"Fuse\" is not supported"
        );
    }
    match kind {
        "Sequence" => {
            for (index, part) in list(component, "decoders", place)?.iter().enumerate() {
                let place = format!("{place}.decoders[{index}]");
                add(part, &place, budget, rule)?;
                check_count(rule.ops.len(), "decoder")?;
            }
        }
        "ByteLevel" => rule.ops.push(Op::Alphabet(Box::new(Alphabet::new()))),
        "ByteFallback" => rule.ops.push(Op::Byte),
        "Fuse" => rule.fused = true,
        "Replace" => {
            let content = string(component, "content", place)?;
            let pattern = pattern(component, place, budget)?;
            rule.ops.push(replace(pattern, content));
        }
        "Metaspace" => {
            let space = character(component, "replacement", place)?.to_string();
            rule.ops.push(replace(Pattern::Text(space), " "));
            rule.strips_space = prepend(component, place)? != Prepend::Never;
        }
        "WordPiece" => {
            let clean = boolean(component, "cleanup", true, place)?;
            let prefix = string(component, "prefix", place)?.to_string();
            rule.ops.push(Op::Words { prefix, clean });
            rule.strips_space = true;
            rule.spaces_specials = true;
        }
        "BPEDecoder" => {
            let suffix = string(component, "suffix", place)?.to_string();
            rule.ops.push(replace(Pattern::Text(suffix), " "));
            rule.strips_end_space = true;
        }
        "Strip" => {
            let content = character(component, "content", place)?;
            let count = |name: &str| {
                let count = component.get(name).and_then(Value::as_u64);
                count
                    .and_then(|count| usize::try_from(count).ok())
                    .filter(|count| *count < 100)
            };
            match (count("start"), count("stop"), rule.fused, content) {
                (Some(0), Some(0), ..) => {}
                (Some(1), Some(0), true, ' ') => rule.strips_space = true,
                (Some(start), Some(stop), false, _) => rule.ops.push(Op::Strip {
                    content,
                    start,
                    stop,
                }),
                _ => fail!(
                    Unsupported,
                    "tokenizer.json: {place}: only one space can be stripped off the start of the text"
                ),
            }
        }
        other => return unknown(other, place),
    }
    Ok(())
}
