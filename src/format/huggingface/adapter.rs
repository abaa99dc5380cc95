//! LoRA adapters as the PEFT library writes them: a folder with `adapter_config.json` and
//! `adapter_model.safetensors`.

use super::encoders::Encoder;
use super::families::{Family, Layout};
use super::files::{Folder, open_input};
use super::json::Config;
use super::rows::Order;
use super::stored::Stored;
use super::tensors::{TOP, layer_and_part, without_prefixes};
use crate::error::{Error, Result, Status, fail};
use crate::format::adapter::{AdapterFile, AdapterPair, BaseShape, Halves, of_embedding};
use crate::format::input::{Access, Input};
use fancy_regex::Regex;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// What PEFT puts before the names of a model's modules.
const PREFIX: &str = "base_model.model.";
/// What it puts behind them.
const HALVES: [&str; 2] = [".lora_A.weight", ".lora_B.weight"];
/// The most patterns of ranks or alphas.
const MAX_PATTERNS: usize = 4096;
/// Ways of making an adapter's first values that change the model's own matrices, too.
const CHANGES_BASE: [&str; 5] = ["pissa", "olora", "corda", "loftq", "lora_ga"];

/// Reads the folder that a path means: itself, or that of one of its two files. `None` for any other file.
pub(in crate::format) fn open_peft(path: &Path, base: &BaseShape) -> Option<Result<AdapterFile>> {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or("");
    let folder = match path.is_dir() {
        true => path.to_owned(),
        false if name == CONFIG || name == WEIGHTS => match path.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        },
        false => return None,
    };
    Some(open(&folder, base))
}

fn open(path: &Path, base: &BaseShape) -> Result<AdapterFile> {
    // Any path of a file in the folder makes one that reads its files.
    let Some(folder) = Folder::of(path) else {
        fail!(NotAFile, "is no folder");
    };
    if !folder.has(CONFIG) {
        fail!(UnknownFormat, "is a folder without {CONFIG}");
    }
    let config = Config::parse(&folder.read(CONFIG)?)
        .map_err(|e| Error::new(e.status, format!("{CONFIG}: {}", e.message)))?;
    let scales = Scales::read(&config).map_err(|e| {
        let message = e.message.replace("config.json: ", "");
        Error::new(e.status, format!("{CONFIG}: {message}"))
    })?;
    if !folder.has(WEIGHTS) {
        if folder.has("adapter_model.bin") {
            fail!(
                Unsupported,
                "adapter_model.bin is a pickle, which is not read; save the adapter as safetensors"
            );
        }
        fail!(FileNotFound, "{WEIGHTS} is not there");
    }
    let weights = path.join(WEIGHTS);
    let in_weights = |e: Error| Error::new(e.status, format!("{WEIGHTS}: {}", e.message));
    let input = Arc::new(Input::open(&weights, Access::Read).map_err(in_weights)?);
    let stored = open_input(&input, &weights).map_err(in_weights)?;
    let pairs = pairs(&stored, &scales, base)?;
    Ok(AdapterFile {
        name: folder.name(),
        pairs,
        file_bytes: input.len() as u64,
    })
}

/// All pairs.
fn pairs(
    stored: &HashMap<String, Stored>,
    scales: &Scales,
    base: &BaseShape,
) -> Result<Vec<AdapterPair>> {
    let mut modules = BTreeMap::<&str, Halves>::new();
    let mut names: Vec<&String> = stored.keys().collect();
    names.sort_unstable();
    for name in names {
        let (module, half) = module_and_half(name)?;
        // An empty one is no tensor anywhere else.
        let shape = &stored[name].shape;
        if shape.contains(&0) {
            fail!(
                InvalidModel,
                "tensor {name} has shape {shape:?}: its rank is 0"
            );
        }
        let tensor = stored[name].tensor()?;
        modules.entry(module).or_default().set(half, name, tensor)?;
    }
    let mut pairs = Vec::new();
    for (module, halves) in modules {
        let target = Module::of(module, base)?;
        let other = |half: usize| format!("{PREFIX}{module}{}", HALVES[half]);
        let scale = |rank| scales.of(module, rank);
        let order = target.order;
        if let Some((outputs, name)) = halves.outputs() {
            target.check(outputs, name, base)?;
        }
        let pair = halves.pair(target.name, other, scale, |row| order.source(row))?;
        match target.lower {
            Some(lower) => pairs.extend(pair.halves(lower)?),
            None => pairs.push(pair),
        }
    }
    // Two spellings of one module.
    pairs.sort_unstable_by(|a, b| a.target.cmp(&b.target));
    let mut neighbours = pairs.iter().zip(pairs.iter().skip(1));
    if let Some((a, b)) = neighbours.find(|(a, b)| a.target == b.target) {
        fail!(
            FileCorrupt,
            "tensors {} and {} are for the same matrix",
            a.names[0],
            b.names[0]
        );
    }
    Ok(pairs)
}

/// The module that a tensor belongs to, and which half of its pair it is.
fn module_and_half(name: &str) -> Result<(&str, usize)> {
    let refuse = |what: &str| -> Result<(&str, usize)> {
        fail!(Unsupported, "tensor {name}: {what} not supported")
    };
    if name.contains("lora_magnitude_vector") {
        return refuse("DoRA is");
    }
    if name.contains(".lora_embedding_") {
        return Err(of_embedding(name));
    }
    if name.ends_with(".lora_B.bias") || name.ends_with(".lora_A.bias") {
        return refuse("biases of adapters are");
    }
    let half = HALVES.iter().position(|end| name.ends_with(end));
    match (name.strip_prefix(PREFIX), half) {
        (Some(rest), Some(half)) => Ok((&rest[..rest.len() - HALVES[half].len()], half)),
        (_, None) if !name.contains("lora_") => {
            refuse("whole tensors in place of the model's (modules_to_save, biases) are")
        }
        _ => refuse("tensors of this name are"),
    }
}

/// A module of a model, as a tensor of GGUF.
struct Module {
    name: String,
    order: Order,
    /// The tensor that has the lower half of the rows, where there are two.
    lower: Option<String>,
}

impl Module {
    fn of(module: &str, base: &BaseShape) -> Result<Module> {
        let families: Vec<&Family> = Family::of_architecture(&base.architecture).collect();
        let unknown = |why: &str| {
            let message = format!(
                "module {module} {why} in models of architecture {}",
                base.architecture
            );
            Error::new(Status::Unsupported, message)
        };
        let mut encoders = Encoder::of_architecture(&base.architecture).peekable();
        if encoders.peek().is_some() {
            return match encoders.find_map(|encoder| encoder.module(module)) {
                Some(gguf) if gguf == "token_embd" => Err(of_embedding(module)),
                Some(gguf) if !gguf.contains("blk.") => {
                    Err(unknown("is no matrix that can have an adapter"))
                }
                Some(gguf) => Ok(Module {
                    name: format!("{gguf}.weight"),
                    order: Order::Same,
                    lower: None,
                }),
                None => Err(unknown("is not known")),
            };
        }
        if base.folds || families.is_empty() {
            return Err(unknown("cannot have an adapter from a folder"));
        }
        let short = without_prefixes(module);
        if let Some((_, top)) = TOP.iter().find(|(known, _)| *known == short) {
            return match *top {
                "output" => Ok(Module {
                    name: "output.weight".to_owned(),
                    order: Order::Same,
                    lower: None,
                }),
                "token_embd" => Err(of_embedding(module)),
                _ => Err(unknown("is no matrix that can have an adapter")),
            };
        }
        let Some((layer, part)) = layer_and_part(short) else {
            return Err(unknown("is not known"));
        };
        if part.contains(".experts") {
            return Err(unknown("is of experts, which cannot have adapters"));
        }
        if base.architecture.starts_with("granite")
            && let Some((upper, lower)) = of_granite(part, base.has_experts)
        {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            return Ok(Module {
                name: name(upper),
                order: Order::Same,
                lower: lower.map(name),
            });
        }
        let found = families
            .iter()
            .find_map(|f| f.part(part).map(|gguf| (f.layout, gguf)));
        let Some((layout, gguf)) = found else {
            return Err(unknown("is not known"));
        };
        let order = match (layout, gguf) {
            (Layout::Halves, "attn_q" | "attn_k") => Order::Interleaved(base.head_dim),
            (Layout::GroupedHeads, "attn_qkv") => {
                let groups = match base.architecture.as_str() {
                    "falcon" => base.n_kv_heads,
                    _ => base.n_heads,
                };
                Order::Heads {
                    groups,
                    queries: base.n_heads.checked_div(groups).unwrap_or(0) * base.head_dim,
                    head: base.head_dim,
                }
            }
            _ => Order::Same,
        };
        Ok(Module {
            name: format!("blk.{layer}.{gguf}.weight"),
            order,
            lower: None,
        })
    }

    /// Checks that rows can be put in order.
    fn check(&self, outputs: usize, name: &str, base: &BaseShape) -> Result<()> {
        let fits = match self.order {
            Order::Interleaved(head) => {
                head > 0 && head.is_multiple_of(2) && outputs.is_multiple_of(head)
            }
            Order::Heads {
                groups,
                queries,
                head,
            } => groups > 0 && head > 0 && outputs == groups * (queries + 2 * head),
            _ => true,
        };
        if !fits {
            fail!(
                ShapeMismatch,
                "tensor {name} has {outputs} rows; the model has heads of {} elements",
                base.head_dim
            );
        }
        Ok(())
    }
}

/// What the feed-forward part for all tokens is in GGUF: a matrix, or that of the upper half of the rows and that of the lower.
fn of_granite(part: &str, has_experts: bool) -> Option<(&'static str, Option<&'static str>)> {
    match (part, has_experts) {
        ("shared_mlp.input_linear", false) => Some(("ffn_gate", Some("ffn_up"))),
        ("shared_mlp.input_linear", true) => Some(("ffn_gate_shexp", Some("ffn_up_shexp"))),
        ("shared_mlp.output_linear", false) => Some(("ffn_down", None)),
        ("shared_mlp.output_linear", true) => Some(("ffn_down_shexp", None)),
        _ => None,
    }
}

/// How much each pair counts, by the config.
struct Scales {
    rank: usize,
    alpha: f32,
    ranks: Vec<(Pattern, usize)>,
    alphas: Vec<(Pattern, f32)>,
    /// Divided by the square root of the rank, not by the rank.
    root: bool,
}

impl Scales {
    fn read(config: &Config) -> Result<Scales> {
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
            "target_parameters",
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
        })
    }

    /// The factor of a module's pair, whose rank must be what the config says.
    fn of(&self, module: &str, rank: usize) -> Result<f32> {
        let expected = find(&self.ranks, module)?.unwrap_or(self.rank);
        if rank != expected {
            fail!(
                ShapeMismatch,
                "tensor {PREFIX}{module}{} has rank {rank}, but {CONFIG} says {expected}",
                HALVES[0]
            );
        }
        let alpha = find(&self.alphas, module)?.unwrap_or(self.alpha);
        Ok(match self.root {
            true => (f64::from(alpha) / (rank as f64).sqrt()) as f32,
            false => alpha / rank as f32,
        })
    }
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
