//! How much the pairs of a PEFT folder count: `adapter_config.json`.

use super::super::json::Config;
use super::{CONFIG, HALVES, PREFIX};
use crate::error::{Result, fail};
use fancy_regex::Regex;
use serde_json::Value;

/// The most patterns of ranks or alphas.
const MAX_PATTERNS: usize = 4096;
/// Ways of making an adapter's first values that change the model's own matrices, too.
const CHANGES_BASE: [&str; 5] = ["pissa", "olora", "corda", "loftq", "lora_ga"];

/// How much each pair counts, by the config.
pub(super) struct Scales {
    rank: usize,
    alpha: f32,
    ranks: Vec<(Pattern, usize)>,
    alphas: Vec<(Pattern, f32)>,
    /// Divided by the square root of the rank, not by the rank.
    root: bool,
    /// `target_parameters`: what the names of parameters end with that have pairs.
    pub parameters: Vec<String>,
}

impl Scales {
    pub fn read(config: &Config) -> Result<Scales> {
        let kind = config.find_str("peft_type")?.unwrap_or("none");
        if kind != "LORA" {
            fail!(Unsupported, "peft_type is {kind:?}; \"LORA\" is supported");
        }
        for (key, what) in [
            ("use_dora", "DoRA"),
            ("lora_bias", "biases of adapters"),
            ("use_qalora", "QALoRA"),
            ("use_bdlora", "BD-LoRA"),
        ] {
            if config.find(key).is_some_and(|v| *v != Value::Bool(false)) {
                fail!(Unsupported, "{key} is set: {what} is not supported");
            }
        }
        for key in [
            "modules_to_save",
            "trainable_token_indices",
            "layer_replication",
            "alora_invocation_tokens",
            "arrow_config",
            "kasa_config",
            "monteclora_config",
            "velora_config",
        ] {
            let empty = |v: &Value| {
                v.as_array().is_some_and(Vec::is_empty)
                    || v.as_object().is_some_and(serde_json::Map::is_empty)
            };
            if let Some(value) = config.find(key).filter(|v| !empty(v)) {
                let value: String = value.to_string().chars().take(100).collect();
                fail!(Unsupported, "{key} is {value}, which is not supported");
            }
        }
        match config.find("bias") {
            None => {}
            Some(Value::String(bias)) if bias == "none" => {}
            Some(bias) => fail!(
                Unsupported,
                "bias is {bias}: biases in place of the model's are not supported"
            ),
        }
        if let Some(Value::String(how)) = config.find("init_lora_weights")
            && CHANGES_BASE.iter().any(|known| how.starts_with(known))
        {
            fail!(
                Unsupported,
                "init_lora_weights is {how:?}: the adapter belongs to a model whose matrices were changed; \
                 save it converted to plain LoRA"
            );
        }
        let Some(rank) = config.find("r") else {
            fail!(MissingKey, "key r is missing");
        };
        let rank = as_rank("r", rank)?;
        let Some(alpha) = config.find_f32("lora_alpha")? else {
            fail!(MissingKey, "key lora_alpha is missing");
        };
        Ok(Scales {
            rank,
            alpha,
            ranks: patterns(config, "rank_pattern", as_rank)?,
            alphas: patterns(config, "alpha_pattern", |key, value| match value.as_f64() {
                Some(alpha) => Ok(alpha as f32),
                None => fail!(MissingKey, "{key} is {value}; it must be a number"),
            })?,
            root: config.flag("use_rslora")?,
            parameters: parameters(config)?,
        })
    }

    /// The factor of a module's pair, whose rank must be what the config says of `name`.
    pub fn of(&self, module: &str, name: &str, rank: usize) -> Result<f32> {
        let expected = find(&self.ranks, name)?.unwrap_or(self.rank);
        if rank != expected {
            fail!(
                ShapeMismatch,
                "tensor {PREFIX}{module}{} has rank {rank}, but {CONFIG} says {expected}",
                HALVES[0]
            );
        }
        let alpha = find(&self.alphas, name)?.unwrap_or(self.alpha);
        Ok(match self.root {
            true => (f64::from(alpha) / (rank as f64).sqrt()) as f32,
            false => alpha / rank as f32,
        })
    }
}

/// The names in `target_parameters`.
fn parameters(config: &Config) -> Result<Vec<String>> {
    const KEY: &str = "target_parameters";
    let all = match config.find(KEY) {
        None => return Ok(Vec::new()),
        Some(Value::Array(all)) if all.len() <= MAX_PATTERNS => all,
        Some(Value::Array(all)) => fail!(Unsupported, "{KEY} has {} entries", all.len()),
        Some(other) => fail!(MissingKey, "{KEY} is {other}; it must be a list"),
    };
    let name = |value: &Value| match value.as_str() {
        Some(name) => Ok(name.to_owned()),
        None => fail!(MissingKey, "{KEY} has {value}; it must have names"),
    };
    all.iter().map(name).collect()
}

fn as_rank(key: &str, value: &Value) -> Result<usize> {
    match value.as_u64() {
        Some(0) => fail!(InvalidModel, "{key} is 0; a rank is at least 1"),
        Some(rank) => Ok(usize::try_from(rank).unwrap_or(usize::MAX)),
        None => fail!(MissingKey, "{key} is {value}; it must be a rank"),
    }
}

/// Patterns of module names with values, in the order in which they are tried.
fn patterns<T>(
    config: &Config,
    key: &str,
    read: impl Fn(&str, &Value) -> Result<T>,
) -> Result<Vec<(Pattern, T)>> {
    let all = match config.find(key) {
        None => return Ok(Vec::new()),
        Some(Value::Object(all)) if all.len() <= MAX_PATTERNS => all,
        Some(Value::Object(all)) => {
            fail!(Unsupported, "{key} has {} entries", all.len())
        }
        Some(other) => fail!(MissingKey, "{key} is {other}; it must be an object"),
    };
    let mut patterns = Vec::new();
    for (pattern, value) in all {
        let value = read(&format!("{key}: {pattern}"), value)?;
        match Pattern::new(pattern) {
            Some(pattern) => patterns.push((pattern, value)),
            None => fail!(
                Unsupported,
                "{key}: {pattern:?} is no pattern that is supported"
            ),
        }
    }
    Ok(patterns)
}

/// The value of the first pattern that a module matches.
fn find<T: Copy>(patterns: &[(Pattern, T)], module: &str) -> Result<Option<T>> {
    for (pattern, value) in patterns {
        if pattern.matches(module)? {
            return Ok(Some(*value));
        }
    }
    Ok(None)
}

/// The end of a module's name, from the beginning or behind a dot on: a regular expression, as PEFT looks for it.
enum Pattern {
    /// Where a dot is any character, and all others are themselves: mostly a name.
    Plain(String),
    Regex(Box<Regex>),
}

impl Pattern {
    fn new(pattern: &str) -> Option<Pattern> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'.';
        if !pattern.is_empty() && pattern.bytes().all(plain) {
            return Some(Pattern::Plain(pattern.to_owned()));
        }
        let regex = Regex::new(&format!(r"^(?:.*\.)?(?:{pattern})$")).ok()?;
        Some(Pattern::Regex(Box::new(regex)))
    }

    fn matches(&self, module: &str) -> Result<bool> {
        match self {
            Pattern::Plain(name) => {
                let module = module.as_bytes();
                let Some(start) = module.len().checked_sub(name.len()) else {
                    return Ok(false);
                };
                let same = |(m, n): (&u8, u8)| n == b'.' || *m == n;
                let end = module[start..].iter().zip(name.bytes()).all(same);
                Ok(end && (start == 0 || module[start - 1] == b'.'))
            }
            Pattern::Regex(regex) => match regex.is_match(module) {
                Ok(found) => Ok(found),
                Err(_) => fail!(
                    Unsupported,
                    "{CONFIG}: the pattern {:?} takes too long",
                    regex.as_str()
                ),
            },
        }
    }
}
