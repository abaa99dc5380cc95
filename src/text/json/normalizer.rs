//! The `normalizer` of a `tokenizer.json`.

use super::{boolean, check_count, kind, list, pattern, string, unknown};
use crate::budget::Budget;
use crate::error::{Result, fail};
use crate::text::charset::CharSet;
use crate::text::charsmap::{Charsmap, base64};
use crate::text::gguf::ACCENT;
use crate::text::normalizer::{Bert, Step};
use serde_json::Value;

/// Compiled steps.
#[derive(Default)]
pub(super) struct Normal {
    pub steps: Vec<Step>,
    /// Bytes are spelled as characters in the end.
    pub byte_level: bool,
}

/// Compiles a component and what is in it.
pub(super) fn compile(component: &Value, place: &str, budget: &Budget) -> Result<Normal> {
    let mut normal = Normal::default();
    add(component, place, budget, &mut normal)?;
    Ok(normal)
}

fn add(component: &Value, place: &str, budget: &Budget, normal: &mut Normal) -> Result<()> {
    let Some(kind) = kind(component, place)? else {
        return Ok(());
    };
    if normal.byte_level {
        fail!(
            Unsupported,
            "tokenizer.json: {place}: {kind:?} after \"ByteLevel\" is not supported"
        );
    }
    let flag = |name: &str, default| boolean(component, name, default, place);
    let accents = || [Step::Nfd, Step::Remove(CharSet::new(ACCENT))];
    let steps = &mut normal.steps;
    match kind {
        "Sequence" => {
            for (index, part) in list(component, "normalizers", place)?.iter().enumerate() {
                let place = format!("{place}.normalizers[{index}]");
                add(part, &place, budget, normal)?;
                check_count(normal.steps.len(), "normalizer")?;
            }
        }
        "NFC" => steps.push(Step::Nfc),
        "NFD" => steps.push(Step::Nfd),
        "NFKC" => steps.push(Step::Nfkc),
        "NFKD" => steps.push(Step::Nfkd),
        "Lowercase" => steps.push(Step::Lowercase),
        "StripAccents" => steps.push(Step::Remove(CharSet::new(r"\p{M}"))),
        "Nmt" => steps.push(Step::Nmt),
        "Strip" => steps.push(Step::Strip {
            left: flag("strip_left", true)?,
            right: flag("strip_right", true)?,
        }),
        "Prepend" => steps.push(Step::Prepend(
            string(component, "prepend", place)?.to_string(),
        )),
        "Replace" => steps.push(Step::Replace {
            pattern: pattern(component, place, budget)?,
            with: string(component, "content", place)?.to_string(),
        }),
        "BertNormalizer" => {
            let lowercase = flag("lowercase", true)?;
            let (clean, chinese) = (
                flag("clean_text", true)?,
                flag("handle_chinese_chars", true)?,
            );
            steps.push(Step::Bert(Bert::new(clean, chinese)));
            if flag("strip_accents", lowercase)? {
                steps.extend(accents());
            }
            if lowercase {
                steps.push(Step::Lowercase);
            }
        }
        "Precompiled" => {
            let place = format!("tokenizer.json: {place}.precompiled_charsmap");
            let Some(text) = component
                .get("precompiled_charsmap")
                .and_then(Value::as_str)
            else {
                fail!(FileCorrupt, "{place} is not a string");
            };
            let Some(bytes) = base64(text) else {
                fail!(FileCorrupt, "{place} is not base64");
            };
            steps.push(Step::Graphemes(Charsmap::new(&bytes, &place)?));
        }
        "ByteLevel" => normal.byte_level = true,
        other => return unknown(other, place),
    }
    Ok(())
}
