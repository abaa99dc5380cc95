//! Which pre-tokenizer a `tokenizer.json` has, by the name that GGUF files give it.

use super::vocabulary::Tokenizer;
use crate::error::{Result, fail};
use crate::text::rules::{DIGIT, GPT2, LLAMA3, NUMBERS, O200K, QWEN2, TEKKEN, THOUSANDS, TINY_AYA};
use serde_json::Value as Json;

/// What GGUF has no name for alone.
const DIGITS: &str = r"\p{N}{1,3}";

/// Patterns, whether text is normalized to form C, whether pieces that are tokens stay whole; and
/// the name that means just that.
const KNOWN: [(&[&str], bool, bool, &str); 15] = [
    (&[GPT2], false, false, "gpt-2"),
    (&[GPT2], true, false, "olmo"),
    (&[DIGIT, GPT2], false, false, "starcoder"),
    (&[DIGIT, GPT2], true, false, "command-r"),
    (&[LLAMA3], false, true, "llama-bpe"),
    (&[LLAMA3], false, false, "dbrx"),
    (&[DIGITS, LLAMA3], false, true, "minicpm5"),
    (&[QWEN2], true, false, "qwen2"),
    (&[QWEN2], false, false, "hunyuan"),
    (&[O200K], false, false, "gpt-4o"),
    (&[TEKKEN], false, true, "tekken"),
    (&[NUMBERS, THOUSANDS], false, false, "superbpe"),
    (&[TINY_AYA, O200K], false, false, "tiny_aya"),
    // GGUF has one name for both.
    (&[O200K], false, true, "gpt-4o"),
    (&[TEKKEN], false, false, "tekken"),
];

/// The parts of a step that may be a sequence of them.
pub(super) fn parts<'a>(step: &'a Json, list: &str) -> Box<dyn Iterator<Item = &'a Json> + 'a> {
    match step[list].as_array() {
        Some(parts) if step["type"] == "Sequence" => Box::new(parts.iter()),
        _ if step.is_null() => Box::new(std::iter::empty()),
        _ => Box::new(std::iter::once(step)),
    }
}

/// The steps of a pre-tokenizer.
pub(super) fn steps(pre_tokenizer: &Json) -> Box<dyn Iterator<Item = &Json> + '_> {
    parts(pre_tokenizer, "pretokenizers")
}

/// The name of a byte-level pre-tokenizer. `Unsupported` says what it does if it has none.
pub(super) fn name(tokenizer: &Tokenizer, whole_pieces: bool) -> Result<&'static str> {
    let mut nfc = false;
    for step in parts(&tokenizer.normalizer, "normalizers") {
        match step["type"].as_str() {
            Some("NFC") => nfc = true,
            _ => fail!(
                Unsupported,
                "the normalizer has no name in GGUF: {}",
                short(step)
            ),
        }
    }
    let mut patterns = Vec::new();
    for step in steps(&tokenizer.pre_tokenizer) {
        let kept = step["behavior"] == "Isolated" && step["invert"] != true
            // What the pattern leaves over is nothing.
            || step["behavior"] == "Removed" && step["invert"] == true;
        match step["type"].as_str() {
            Some("ByteLevel") if step["add_prefix_space"] == true => fail!(
                Unsupported,
                "the pre-tokenizer adds a space before a text, which has no name in GGUF"
            ),
            Some("ByteLevel") if step["use_regex"] == false => {}
            Some("ByteLevel") => patterns.push(GPT2),
            Some("Digits") if step["individual_digits"] == true => patterns.push(DIGIT),
            Some("Split") if kept && step["pattern"]["Regex"].is_string() => {
                patterns.push(step["pattern"]["Regex"].as_str().unwrap_or_default());
            }
            _ => fail!(
                Unsupported,
                "the pre-tokenizer has no name in GGUF: {}",
                short(step)
            ),
        }
    }
    let found = KNOWN
        .iter()
        .find(|(known, c, whole, _)| *known == patterns && (*c, *whole) == (nfc, whole_pieces));
    match found {
        Some((.., name)) => Ok(name),
        None => fail!(
            Unsupported,
            "the pre-tokenizer has no name in GGUF: patterns {patterns:?}, normalization {}, ignore_merges {whole_pieces}",
            if nfc { "NFC" } else { "none" }
        ),
    }
}

/// Whether a text gets a space before it, of a tokenizer in whose texts spaces are `▁`.
/// `Unsupported` for other normalizations.
pub(super) fn adds_space(tokenizer: &Tokenizer) -> Result<bool> {
    const SPACE: &str = "\u{2581}";
    let mut adds = false;
    for step in parts(&tokenizer.normalizer, "normalizers") {
        match step["type"].as_str() {
            Some("Prepend") if step["prepend"] == SPACE => adds = true,
            Some("Replace") if step["pattern"]["String"] == " " && step["content"] == SPACE => {}
            _ => fail!(
                Unsupported,
                "the normalizer has no name in GGUF: {}",
                short(step)
            ),
        }
    }
    for step in steps(&tokenizer.pre_tokenizer) {
        match (step["type"].as_str(), step["prepend_scheme"].as_str()) {
            (Some("Metaspace"), Some("always" | "first")) => adds = true,
            (Some("Metaspace"), Some("never")) => {}
            (Some("Metaspace"), _) => adds = step["add_prefix_space"] != false,
            // Spaces are no longer there to split at.
            (Some("Split"), _) if step["pattern"]["String"] == " " => {}
            _ => fail!(
                Unsupported,
                "the pre-tokenizer has no name in GGUF: {}",
                short(step)
            ),
        }
    }
    Ok(adds)
}

/// A step as an error shows it.
pub(super) fn short(step: &Json) -> String {
    step.to_string().chars().take(300).collect()
}
