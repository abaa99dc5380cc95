//! The command line.

use emberlm::format::WeightType;
use lexopt::prelude::*;
use std::path::PathBuf;

/// What `--help` prints.
pub const HELP: &str = "\
Writes a model as a GGUF file, with its weights as they are or in another type.

Usage: ember-convert [options] INPUT OUTPUT.gguf

INPUT is a GGUF file (the first one of a split model) or a Hugging Face folder: config.json,
model.safetensors or its index with shards, tokenizer.json, the chat template.

  --type TYPE    keep    every tensor as it is (the default); 8-bit floats become F16
                 q8_0, q6_k, q4_k, q4_k_m
                         matrices that take more become this type; of q4_k and q4_k_m the head is
                         Q6_K, of q4_k_m also half of the matrices of values and of the
                         feed-forward's outputs
                 f16, bf16, f32
                         all matrices become this type
                 Rows that are no whole blocks of a type get the next larger one that fits. Norms,
                 biases, routers and learned positions stay as they are.
  --merge ADAPTER[=FACTOR]
                 add a LoRA adapter (a folder as the PEFT library writes it, or a GGUF file), multiplied
                 by FACTOR (default 1), to the matrices that it is for; may be repeated. The result needs
                 no adapter. Matrices that are quantized are quantized again.
  --threads N    threads that convert (default: all that the machine runs at once)
  --force        replace OUTPUT if it is there; never the input
  -h, --help     this text
  -V, --version  the version

OUTPUT appears when it is whole; what fails leaves nothing behind.

Exit status: 0 written; 1 the input or the machine refused something; 2 wrong command line.
";

/// What to do.
#[derive(Debug)]
pub enum Command {
    Help,
    Version,
    Run(Args),
}

/// A conversion.
#[derive(Debug)]
pub struct Args {
    pub input: PathBuf,
    pub output: PathBuf,
    pub weights: WeightType,
    /// Adapters to add, with their factors.
    pub merges: Vec<(PathBuf, f32)>,
    /// At least 1.
    pub threads: usize,
    pub force: bool,
}

/// Reads the command line without the program's name.
pub fn parse(args: impl IntoIterator<Item = std::ffi::OsString>) -> Result<Command, String> {
    let mut parser = lexopt::Parser::from_args(args);
    let mut merges = Vec::new();
    let (mut paths, mut weights, mut force) = (Vec::new(), WeightType::Keep, false);
    let mut threads = std::thread::available_parallelism().map_or(1, usize::from);
    let text = |e: lexopt::Error| e.to_string();
    while let Some(arg) = parser.next().map_err(text)? {
        match arg {
            Short('h') | Long("help") => return Ok(Command::Help),
            Short('V') | Long("version") => return Ok(Command::Version),
            Long("force") => force = true,
            Long("type") => {
                let name = parser.value().map_err(text)?.string().map_err(text)?;
                let known = WeightType::NAMES;
                let found = known
                    .iter()
                    .find(|(known, _)| name.eq_ignore_ascii_case(known));
                weights = match found {
                    Some((_, weights)) => *weights,
                    None => {
                        let known: Vec<_> = known.iter().map(|(name, _)| *name).collect();
                        return Err(format!(
                            "--type is {name:?}; it must be one of {}",
                            known.join(", ")
                        ));
                    }
                };
            }
            Long("merge") => {
                let value = parser.value().map_err(text)?;
                merges.push(merge(value)?);
            }
            Long("threads") => {
                threads = parser.value().map_err(text)?.parse().map_err(text)?;
                if !(1..=1024).contains(&threads) {
                    return Err(format!("--threads is {threads}; it must be from 1 to 1024"));
                }
            }
            Value(path) => paths.push(PathBuf::from(path)),
            other => return Err(other.unexpected().to_string()),
        }
    }
    match <[PathBuf; 2]>::try_from(paths) {
        Ok([input, output]) => Ok(Command::Run(Args {
            input,
            output,
            weights,
            merges,
            threads,
            force,
        })),
        Err(paths) => Err(format!(
            "an input and an output are needed, not {} paths; see --help",
            paths.len()
        )),
    }
}

/// An adapter and its factor.
fn merge(value: std::ffi::OsString) -> Result<(PathBuf, f32), String> {
    let Some((path, factor)) = value.to_str().and_then(|v| v.rsplit_once('=')) else {
        return Ok((value.into(), 1.0));
    };
    match factor.parse::<f32>() {
        Ok(factor) if factor.is_finite() => Ok((path.into(), factor)),
        _ => Err(format!("--merge {path}: the factor is {factor:?}")),
    }
}
