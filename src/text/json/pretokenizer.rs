//! The `pre_tokenizer` of a `tokenizer.json`.

use super::{boolean, check_count, kind, list, pattern, string, unknown};
use crate::budget::Budget;
use crate::error::{Result, fail};
use crate::text::charset::CharSet;
use crate::text::gguf::{PUNCTUATION, bert_words};
use crate::text::pattern::Pattern;
use crate::text::pretokenizer::{Behavior, Cutter, Prepend};
use crate::text::rules::{GPT2, THOUSANDS};
use serde_json::Value;

/// Compiled steps.
#[derive(Default)]
pub(super) struct Cuts {
    pub cutters: Vec<Cutter>,
    /// The model sees bytes, spelled as characters.
    pub byte_level: bool,
}

impl Cuts {
    /// Spells the text as bytes before all steps.
    pub fn spell(&mut self) {
        self.byte_level = true;
        if !self.cutters.is_empty() {
            self.cutters = vec![Cutter::Spelled(std::mem::take(&mut self.cutters))];
        }
    }
}

/// Compiles a component and what is in it.
pub(super) fn compile(component: &Value, place: &str, budget: &Budget) -> Result<Cuts> {
    let Some(kind) = kind(component, place)? else {
        return Ok(Cuts::default());
    };
    let one = |cutter| {
        Ok(Cuts {
            cutters: vec![cutter],
            byte_level: false,
        })
    };
    let flag = |name: &str, default| boolean(component, name, default, place);
    let at = |pattern, behavior, invert| {
        one(Cutter::Split {
            pattern,
            behavior,
            invert,
        })
    };
    let class = |class| Pattern::Character(CharSet::new(class));
    match kind {
        "Sequence" => {
            let parts = list(component, "pretokenizers", place)?;
            let mut cuts = Cuts::default();
            // What follows the byte level sees characters that stand for bytes.
            for (index, part) in parts.iter().enumerate().rev() {
                let place_of = format!("{place}.pretokenizers[{index}]");
                let part = compile(part, &place_of, budget)?;
                if part.byte_level {
                    if cuts.byte_level {
                        fail!(
                            Unsupported,
                            "tokenizer.json: {place}: \"ByteLevel\" twice is not supported"
                        );
                    }
                    cuts.spell();
                }
                cuts.cutters.splice(0..0, part.cutters);
                check_count(cuts.cutters.len(), "pre_tokenizer")?;
            }
            Ok(cuts)
        }
        "ByteLevel" => {
            let mut cutters = Vec::new();
            if flag("add_prefix_space", true)? {
                cutters.push(Cutter::PrefixSpace);
            }
            if flag("use_regex", true)? {
                cutters.push(Cutter::Split {
                    pattern: Pattern::regex(GPT2, place, budget)?,
                    behavior: Behavior::Isolated,
                    invert: false,
                });
            }
            Ok(Cuts {
                cutters,
                byte_level: true,
            })
        }
        "Split" => {
            let behavior = behavior(component, place)?;
            let invert = flag("invert", false)?;
            // Matches of no length, which are places to cut at.
            let spelled = component["pattern"]["Regex"] == THOUSANDS;
            if spelled && behavior == Behavior::Isolated && !invert {
                return one(Cutter::Thousands {
                    digits: CharSet::new(r"\d"),
                    isolated: false,
                });
            }
            let pattern = pattern(component, place, budget)?;
            at(pattern, behavior, invert)
        }
        "Whitespace" => {
            let words = Pattern::regex(r"\w+|[^\w\s]+", place, budget)?;
            at(words, Behavior::Removed, true)
        }
        "WhitespaceSplit" => at(class(r"\s"), Behavior::Removed, false),
        "Digits" => match flag("individual_digits", false)? {
            true => at(class(r"\p{N}"), Behavior::Isolated, false),
            false => at(class(r"\p{N}"), Behavior::Contiguous, false),
        },
        "Punctuation" => {
            let behavior = match component.get("behavior") {
                None => Behavior::Isolated,
                Some(_) => behavior(component, place)?,
            };
            at(class(PUNCTUATION), behavior, false)
        }
        "CharDelimiterSplit" => {
            let delimiter = character(component, "delimiter", place)?.to_string();
            at(Pattern::Text(delimiter), Behavior::Removed, false)
        }
        "BertPreTokenizer" => Ok(Cuts {
            cutters: bert_words(),
            byte_level: false,
        }),
        "Metaspace" => one(Cutter::Metaspace {
            replacement: character(component, "replacement", place)?,
            prepend: prepend(component, place)?,
            split: flag("split", true)?,
        }),
        "FixedLength" => match component.get("length").and_then(Value::as_u64) {
            Some(length @ 1..) => one(Cutter::FixedLength(
                usize::try_from(length).unwrap_or(usize::MAX),
            )),
            _ => fail!(
                FileCorrupt,
                "tokenizer.json: {place}.length is not a number of characters"
            ),
        },
        other => unknown(other, place),
    }
}

/// When a `Metaspace` adds a space. Older files say only whether.
pub(super) fn prepend(component: &Value, place: &str) -> Result<Prepend> {
    match component.get("prepend_scheme") {
        None | Some(Value::Null) => match boolean(component, "add_prefix_space", true, place)? {
            true => Ok(Prepend::Always),
            false => Ok(Prepend::Never),
        },
        Some(Value::String(scheme)) => match scheme.as_str() {
            "always" => Ok(Prepend::Always),
            "first" => Ok(Prepend::First),
            "never" => Ok(Prepend::Never),
            other => unknown(other, &format!("{place}.prepend_scheme")),
        },
        Some(_) => fail!(
            FileCorrupt,
            "tokenizer.json: {place}.prepend_scheme is not a string"
        ),
    }
}

pub(super) fn character(component: &Value, name: &str, place: &str) -> Result<char> {
    let mut chars = string(component, name, place)?.chars();
    match (chars.next(), chars.next()) {
        (Some(c), None) => Ok(c),
        _ => fail!(
            FileCorrupt,
            "tokenizer.json: {place}.{name} is not one character"
        ),
    }
}

fn behavior(component: &Value, place: &str) -> Result<Behavior> {
    Ok(match string(component, "behavior", place)? {
        "Removed" => Behavior::Removed,
        "Isolated" => Behavior::Isolated,
        "MergedWithPrevious" => Behavior::MergedWithPrevious,
        "MergedWithNext" => Behavior::MergedWithNext,
        "Contiguous" => Behavior::Contiguous,
        other => return unknown(other, &format!("{place}.behavior")),
    })
}

#[cfg(test)]
mod tests {
    use super::compile;
    use crate::budget::Budget;
    use crate::text::pretokenizer::PreTokenizer;
    use serde_json::json;

    /// Expected: Hugging Face's tokenizers 0.23.
    #[test]
    fn matches_of_no_length_cut() {
        let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        let steps = json!({"type": "Sequence", "pretokenizers": [split(r"\p{N}+"), split(r"(?=(\d{3})+(?!\d))")]});
        let text = "1234567 or 123456x, \u{BD}1234";
        let budget = Budget::for_text(text.len());
        let cutters = compile(&steps, "pre_tokenizer", &budget).unwrap().cutters;
        let mut pieces = Vec::new();
        let mut each = |piece: &[u8]| {
            pieces.push(String::from_utf8_lossy(piece).into_owned());
            Ok(())
        };
        PreTokenizer { cutters }
            .split(text, true, &budget, &mut each)
            .unwrap();
        assert_eq!(pieces.join("|"), "1|234|567| or |123|456|x, |\u{BD}1|234");
    }
}
