//! The command line.

use crate::adapters;
use crate::shapes::{self, Mix, Shape};
use arrayvec::ArrayVec;
use emberlm::backend::{MAX_SPLIT, Share};
use emberlm::engine::sampling::{Dry, Sampling};
use emberlm::quant::TensorType;
use lexopt::prelude::*;
use std::path::PathBuf;

/// What `--help` prints.
pub const HELP: &str = "\
Measures how fast a model loads, reads a prompt and writes on this machine.

Usage: ember-bench [options] MODEL.gguf
       ember-bench [options] --shape NAME [--quant MIX]

Model:
  --shape NAME       random weights of a known shape instead of a file: llama-3.2-1b,
                     llama-3.1-8b, llama-3.1-70b, qwen2.5-1.5b, qwen3-4b, qwen3-30b-a3b, gpt-oss-20b,
                     qwen3.5-4b, qwen3.5-9b, qwen3.5-35b-a3b, lfm2-2.6b,
                     granite-4-micro, gemma-4-e4b, deepseek-v2-lite, falcon-mamba-7b, mamba2-2.7b,
                     nemotron-nano-9b-v2, falcon-h1-1.5b, qwen3-embedding-0.6b, hamlet
  --quant MIX        how they are quantized (default q4_k_m): q4_k_m and q5_k_m are llama.cpp's
                     mixes (half of attn_v and ffn_down, and the output, in Q6_K); f32, f16, bf16
                     and q8_0 are that type throughout; q4_0, q4_1, q5_0, q5_1, q2_k, q3_k, q4_k,
                     q5_k, q6_k, iq1_s to iq4_xs, tq1_0, tq2_0, mxfp4 and nvfp4 are that type with
                     the output in Q6_K
  --cut N            the first N layers of the shape alone
  --vocab PATH       with the tokenizer of another GGUF file (of up to as many tokens)
  --keep-model PATH  write the random weights to PATH and keep them (default: a temporary file)
  --write-only       write the file named by --keep-model and stop

Measurement:
  --device N         index of the device (default 0, the best one)
  --memory-limit N   MiB of a GPU's memory for the model (default no limit); the layers that do not fit are
                     on the CPU
  --cpu-experts N    layers of a model on a GPU whose experts the CPU has and evaluates, or all (default 0)
  --devices LIST     devices that share the layers of the model, the first layers' first, e.g. 0,1
  --layers LIST      layers on each of --devices, 0 for those that are left (default: by the GPUs' memory)
  --split HOW        how --devices share a model: layers (default) or tensors
  --f16-batches      batches of more than 16 sessions have products in f16 (EMBER_MODEL_F16_BATCHES)
  --nccl             with --split tensors, by NCCL also where the GPUs reach each other's memory
  --threads N        threads of the model (default: the library's choice, all physical cores)
  --prompt LIST      prompt lengths in tokens, e.g. 128,512,2048 (the default), or none
  --depth LIST       tokens in the context before decoding, e.g. 0,512,4096 (the default), or none
  --batch LIST       sessions that decode together, e.g. 8,32 (default none)
  --sessions LIST    sessions that decode on a thread each, e.g. 1,16 (default none)
  --beside-prefill N decodes while another session reads prompts of N tokens (default none)
  --states N         saves, restores, forks and evicts a session of N tokens; on a GPU, evicts the
                     weights, too (default none)
  --embed LIST       makes vectors of texts of so many tokens, 131072 tokens a call, e.g. 64,512,2048 (default
                     none); alone, prompts and decodes are not measured unless they are asked for
  --embed-batch N    tokens of texts that are evaluated together (default: the library's choice)
  --speculate LIST   decodes with drafts at the first depth, e.g. 0,0.8,ngram,heads,draft.gguf (default none):
                     of a source that is right with that probability, of the context itself, of the model's own
                     heads, or of a model with the same vocabulary; 0.8:4 verifies 4 drafts in every step, without
                     it the library chooses how many. With --batch, batches of sessions, too
  --tasks PATH       with --speculate: also answers the questions of a file as tests/data/hamlet_tasks.jsonl.xz
                     is, unpacked by xz
  --busy N           busy threads of the host beside all this (default 0)
  --gen N            tokens decoded per measurement (default 64)
  --reps N           repetitions; median, least and greatest are shown (default 3)
  --kv f16|f32|q8_0  type of the KV cache (default f16; f32 is for CPUs, q8_0 for GPUs)
  --queue N          decode with N tokens started at a time, too (ember_decode_start_n): what the way
                     to the program and back costs between two tokens falls away
  --adapters N       decode with random LoRA adapters for all matrices of attention and feed-forward, too:
                     one at every depth, and N different ones in batches
  --adapter-experts  for routers and experts, too
  --adapter-rank R   their rank (default 16)
  --adapter-type T   their numbers: f32 (default), f16 or bf16
  --grammar json     decode under a JSON schema, too: an endless list of texts (needs a model with a
                     tokenizer)
  --sampling NAME    how tokens are chosen: greedy (default); chat: temperature 0.7, top-k 40, top-p
                     0.95, min-p 0.05, repeat penalty 1.1 over 64 tokens; open: temperature 1,
                     top-p 0.95; free: temperature 1; dry: chat and DRY over the whole context
  --profile          show where the time of a token goes, at every depth
  --bandwidth-mib N  size of the buffer with which this machine's memory bandwidth is measured
                     (default 1024; it must be far larger than the caches)

Output:
  --json PATH        write the figures as JSON to PATH (- for standard output, without the table)
  -h, --help         this text
  -V, --version      the version

Default lengths that the model's context cannot hold are left out; lengths named on the command
line must fit. GB are 10^9 bytes. A decode at depth d starts with d tokens in the context (at least
one) and times N forward passes; a prompt of n tokens times one call with n tokens.

Approximations of the shapes: those without experts are written as architecture llama, without rope
scaling, and all without a tokenizer. qwen2.5-1.5b has its biases; qwen3 lacks the norms of q and
k, a few microseconds per token. With mxfp4, only experts have that type; the rest is Q8_0. The
weights are random, which changes no operation but the text. Of experts, GB/s counts those in use.

Exit status: 0 measured; 1 the library or the machine refused something; 2 wrong command line.
";

/// Where the weights come from.
#[derive(Debug)]
pub enum Source {
    /// A GGUF file of the caller.
    File(PathBuf),
    /// Random weights of a known shape.
    Shape {
        /// The network's dimensions.
        shape: Box<Shape>,
        /// Types of its tensors.
        mix: Mix,
        /// Where to write it for good; otherwise a temporary file.
        keep: Option<PathBuf>,
    },
}

/// A list of lengths and whether the caller named it.
#[derive(Clone, Debug, PartialEq)]
pub struct Lengths {
    /// In tokens.
    pub list: Vec<usize>,
    /// Named on the command line: each must fit.
    pub explicit: bool,
}

/// Type of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kv {
    /// Half precision.
    F16,
    /// Single precision.
    F32,
    /// 8-bit values with a half-precision scale per 32.
    Q8_0,
}

/// All options.
#[derive(Debug)]
pub struct Args {
    /// The weights.
    pub source: Source,
    /// File with the tokenizer of random weights.
    pub vocab: Option<PathBuf>,
    /// Stop after writing.
    pub write_only: bool,
    /// Index in the library's list of devices.
    pub device: usize,
    /// They have shares of every layer.
    pub by_tensors: bool,
    /// Large batches have products in f16.
    pub f16_batches: bool,
    /// By NCCL.
    pub nccl: bool,
    /// The devices that share the layers, if several do.
    pub split: ArrayVec<Share, MAX_SPLIT>,
    /// Bytes of a GPU's memory for the model; 0 for no limit.
    pub memory_limit: u64,
    /// Layers whose experts stay on the CPU.
    pub cpu_experts: usize,
    /// 0: the library's default.
    pub threads: u32,
    /// Prompt lengths.
    pub prompt: Lengths,
    /// Decode depths.
    pub depth: Lengths,
    /// Numbers of sessions that decode together.
    pub batch: Vec<usize>,
    /// Numbers of sessions that decode on a thread each.
    pub sessions: Vec<usize>,
    /// Tokens of prompts that another session reads while one decodes.
    pub beside_prefill: Option<usize>,
    /// Tokens of a session that is saved, restored, forked and evicted.
    pub states: Option<usize>,
    /// Tokens of texts that vectors are made of.
    pub embed: Vec<usize>,
    /// Tokens of texts that are evaluated together; 0: the library's default.
    pub embed_batch: usize,
    /// Questions to answer with drafts.
    pub tasks: Option<PathBuf>,
    /// Sources of drafts.
    pub speculate: Vec<Drafts>,
    /// Busy threads beside.
    pub busy: usize,
    /// Tokens per decode measurement.
    pub generate: usize,
    /// Repetitions.
    pub reps: usize,
    /// KV cache.
    pub kv: Kv,
    /// Decodes that are started at a time, where that is measured, too.
    pub queue: Option<usize>,
    /// Different adapters in batches, 0 for none.
    pub adapters: usize,
    pub adapter_kind: adapters::Kind,
    /// Decode under a grammar, too.
    pub grammar: bool,
    /// How tokens are chosen, and its name.
    pub sampling: (String, Sampling),
    /// Profile the decodes.
    pub profile: bool,
    /// Buffer of the bandwidth measurement.
    pub bandwidth_bytes: usize,
    /// JSON target, `-` for standard output.
    pub json: Option<PathBuf>,
}

/// A source of drafts.
#[derive(Clone, Debug, PartialEq)]
pub enum Drafts {
    /// One that is right with a probability, and how many drafts of it every step verifies, if that is fixed.
    Right(f64, Option<usize>),
    /// The context.
    Ngram,
    /// The model's own heads.
    Heads,
    /// A model.
    Model(PathBuf),
}

impl std::fmt::Display for Drafts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Drafts::Right(right, None) => write!(f, "{right}"),
            Drafts::Right(right, Some(count)) => write!(f, "{right}:{count}"),
            Drafts::Ngram => f.write_str("ngram"),
            Drafts::Heads => f.write_str("heads"),
            Drafts::Model(path) => path.display().fmt(f),
        }
    }
}

impl Args {
    /// Whether something is measured of sessions.
    pub fn has_sessions(&self) -> bool {
        let lists = [
            &self.prompt.list,
            &self.depth.list,
            &self.batch,
            &self.sessions,
        ];
        let others = [self.beside_prefill, self.states];
        self.embed.is_empty()
            || lists.iter().any(|list| !list.is_empty())
            || others.iter().any(Option::is_some)
    }
}

fn drafts(word: &str) -> Drafts {
    let (right, count) = match word.split_once(':') {
        Some((right, count)) => (right, count.parse().ok()),
        None => (word, None),
    };
    match right.parse::<f64>() {
        Ok(right) if (0.0..=1.0).contains(&right) && word.contains(':') == count.is_some() => {
            Drafts::Right(right, count)
        }
        _ if word == "ngram" => Drafts::Ngram,
        _ if word == "heads" => Drafts::Heads,
        _ => Drafts::Model(PathBuf::from(word)),
    }
}

/// What the command line asks for.
#[derive(Debug)]
pub enum Command {
    /// Print the help.
    Help,
    /// Print the version.
    Version,
    /// Measure.
    Run(Box<Args>),
}

/// Reads the command line without the program's name; the error is a sentence.
pub fn parse(args: impl IntoIterator<Item = std::ffi::OsString>) -> Result<Command, String> {
    parse_inner(lexopt::Parser::from_args(args)).map_err(|e| e.to_string())
}

fn parse_inner(mut parser: lexopt::Parser) -> Result<Command, lexopt::Error> {
    let mut file: Option<PathBuf> = None;
    let mut shape = None;
    let mut mix = None;
    let mut cut = None;
    let mut keep = None;
    let mut vocab = None;
    let mut write_only = false;
    let mut device = 0;
    let mut by_tensors = false;
    let mut f16_batches = false;
    let mut nccl = false;
    let (mut devices, mut layers) = (Vec::new(), Vec::new());
    let mut memory_limit_mib = 0;
    let mut cpu_experts = 0;
    let mut threads = 0;
    let mut prompt = Lengths {
        list: vec![128, 512, 2048],
        explicit: false,
    };
    let mut batch = Vec::new();
    let mut sessions = Vec::new();
    let mut beside_prefill = None;
    let mut states = None;
    let (mut embed, mut embed_batch) = (Vec::new(), 0);
    let mut busy = 0;
    let mut speculate = Vec::new();
    let mut tasks = None;
    let mut depth = Lengths {
        list: vec![0, 512, 4096],
        explicit: false,
    };
    let mut generate = 64;
    let mut reps = 3;
    let mut kv = Kv::F16;
    let mut queue = None;
    let mut n_adapters = 0;
    let mut adapter_kind = adapters::Kind {
        rank: 16,
        ty: TensorType::F32,
        experts: false,
    };
    let mut grammar = false;
    let mut sampling = ("greedy".to_owned(), Sampling::GREEDY);
    let mut profile = false;
    let mut bandwidth_mib = 1024;
    let mut json = None;
    while let Some(arg) = parser.next()? {
        match arg {
            Short('h') | Long("help") => return Ok(Command::Help),
            Short('V') | Long("version") => return Ok(Command::Version),
            Long("shape") => {
                let name = parser.value()?.string()?;
                shape =
                    Some(shapes::find(&name).ok_or_else(|| format!("there is no shape {name:?}"))?);
            }
            Long("quant") => {
                let name = parser.value()?.string()?;
                mix = Some(Mix::parse(&name).ok_or_else(|| format!("there is no mix {name:?}"))?);
            }
            Long("cut") => cut = Some(number(&mut parser, "--cut", 1, 1 << 16)?),
            Long("vocab") => vocab = Some(PathBuf::from(parser.value()?)),
            Long("keep-model") => keep = Some(PathBuf::from(parser.value()?)),
            Long("write-only") => write_only = true,
            Long("device") => device = number(&mut parser, "--device", 0, 1 << 16)?,
            Long("memory-limit") => {
                memory_limit_mib = number(&mut parser, "--memory-limit", 1, 1 << 24)?;
            }
            Long("cpu-experts") => {
                cpu_experts = match parser.value()?.string()?.as_str() {
                    "all" => usize::MAX,
                    n => match n.parse() {
                        Ok(n) => n,
                        Err(_) => {
                            return Err(
                                format!("--cpu-experts is a number or all, not {n:?}").into()
                            );
                        }
                    },
                };
            }
            Long("devices") => devices = lengths(&mut parser, "--devices", 0)?.list,
            Long("layers") => layers = lengths(&mut parser, "--layers", 0)?.list,
            Long("split") => match parser.value()?.string()?.as_str() {
                "layers" => by_tensors = false,
                "tensors" => by_tensors = true,
                other => {
                    return Err(format!("--split is layers or tensors, not {other:?}").into());
                }
            },
            Long("f16-batches") => f16_batches = true,
            Long("nccl") => nccl = true,
            Long("threads") => threads = number(&mut parser, "--threads", 1, 1024)? as u32,
            Long("prompt") => prompt = lengths(&mut parser, "--prompt", 1)?,
            Long("batch") => batch = lengths(&mut parser, "--batch", 1)?.list,
            Long("sessions") => sessions = lengths(&mut parser, "--sessions", 1)?.list,
            Long("beside-prefill") => {
                beside_prefill = Some(number(&mut parser, "--beside-prefill", 1, 1 << 20)?);
            }
            Long("states") => states = Some(number(&mut parser, "--states", 1, 1 << 20)?),
            Long("embed") => embed = lengths(&mut parser, "--embed", 1)?.list,
            Long("embed-batch") => {
                embed_batch = number(&mut parser, "--embed-batch", 1, 1 << 20)?;
            }
            Long("speculate") => {
                speculate = parser.value()?.string()?.split(',').map(drafts).collect();
            }
            Long("tasks") => tasks = Some(PathBuf::from(parser.value()?)),
            Long("busy") => busy = number(&mut parser, "--busy", 0, 1024)?,
            Long("depth") => depth = lengths(&mut parser, "--depth", 0)?,
            Long("gen") => generate = number(&mut parser, "--gen", 1, 1 << 20)?,
            Long("reps") => reps = number(&mut parser, "--reps", 1, 10_000)?,
            Long("kv") => {
                kv = match parser.value()?.string()?.as_str() {
                    "f16" => Kv::F16,
                    "f32" => Kv::F32,
                    "q8_0" => Kv::Q8_0,
                    other => return Err(format!("--kv is f16, f32 or q8_0, not {other:?}").into()),
                }
            }
            Long("queue") => queue = Some(number(&mut parser, "--queue", 1, 1 << 20)?),
            Long("adapters") => n_adapters = number(&mut parser, "--adapters", 1, 1024)?,
            Long("adapter-experts") => adapter_kind.experts = true,
            Long("adapter-rank") => {
                adapter_kind.rank = number(&mut parser, "--adapter-rank", 1, 1024)?
            }
            Long("adapter-type") => match parser.value()?.string()?.as_str() {
                "f32" => adapter_kind.ty = TensorType::F32,
                "f16" => adapter_kind.ty = TensorType::F16,
                "bf16" => adapter_kind.ty = TensorType::BF16,
                other => {
                    return Err(format!("--adapter-type is f32, f16 or bf16, not {other:?}").into());
                }
            },
            Long("grammar") => match parser.value()?.string()?.as_str() {
                "json" => grammar = true,
                other => return Err(format!("--grammar is json, not {other:?}").into()),
            },
            Long("sampling") => {
                let name = parser.value()?.string()?;
                match preset(&name) {
                    Some(preset) => sampling = (name, preset),
                    None => {
                        let names = "greedy, chat, open, free or dry";
                        return Err(format!("--sampling is {names}, not {name:?}").into());
                    }
                }
            }
            Long("profile") => profile = true,
            Long("bandwidth-mib") => {
                bandwidth_mib = number(&mut parser, "--bandwidth-mib", 1, 1 << 20)?;
            }
            Long("json") => json = Some(PathBuf::from(parser.value()?)),
            Value(path) if file.is_none() => file = Some(PathBuf::from(path)),
            other => return Err(other.unexpected()),
        }
    }
    if !embed.is_empty() {
        for lengths in [&mut prompt, &mut depth] {
            if !lengths.explicit {
                lengths.list.clear();
            }
        }
    }
    let source = match (file, shape) {
        (Some(_), Some(_)) => return Err("give a file or --shape, not both".into()),
        (None, None) => return Err("give a model file or --shape (see --help)".into()),
        (Some(file), None) => {
            for (given, name) in [
                (mix.is_some(), "--quant"),
                (cut.is_some(), "--cut"),
                (vocab.is_some(), "--vocab"),
                (keep.is_some(), "--keep-model"),
                (write_only, "--write-only"),
            ] {
                if given {
                    return Err(format!("{name} goes with --shape, not with a file").into());
                }
            }
            Source::File(file)
        }
        (None, Some(shape)) => Source::Shape {
            shape: Box::new(shape.cut(cut)?),
            mix: mix.unwrap_or(Mix::Q4_K_M),
            keep: keep.clone(),
        },
    };
    if write_only && keep.is_none() {
        return Err("--write-only needs --keep-model PATH".into());
    }
    if nccl && (!by_tensors || devices.len() < 2) {
        return Err("--nccl goes with --split tensors and several --devices".into());
    }
    if devices.len() > MAX_SPLIT {
        return Err(format!("--devices has more than {MAX_SPLIT} numbers").into());
    }
    if !layers.is_empty() && layers.len() != devices.len() {
        return Err("--layers needs a number for each of --devices".into());
    }
    let layers = layers.into_iter().chain(std::iter::repeat(0));
    let shares = devices.iter().zip(layers);
    Ok(Command::Run(Box::new(Args {
        source,
        vocab,
        write_only,
        device: match by_tensors {
            true => devices.first(),
            false => devices.last(),
        }
        .copied()
        .unwrap_or(device),
        by_tensors,
        f16_batches,
        nccl,
        split: shares
            .map(|(&device, layers)| Share { device, layers })
            .collect(),
        memory_limit: (memory_limit_mib as u64) << 20,
        cpu_experts,
        threads,
        prompt,
        depth,
        batch,
        sessions,
        beside_prefill,
        states,
        embed,
        embed_batch,
        busy,
        tasks,
        speculate,
        generate,
        reps,
        kv,
        queue,
        adapters: n_adapters,
        adapter_kind,
        grammar,
        sampling,
        profile,
        bandwidth_bytes: bandwidth_mib << 20,
        json,
    })))
}

/// Settings by their name.
fn preset(name: &str) -> Option<Sampling> {
    let chat = Sampling {
        temperature: 0.7,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        repeat_penalty: 1.1,
        ..Sampling::GREEDY
    };
    let free = Sampling {
        temperature: 1.0,
        ..Sampling::GREEDY
    };
    Some(match name {
        "greedy" => Sampling::GREEDY,
        "chat" => chat,
        "open" => Sampling {
            top_p: 0.95,
            ..free
        },
        "free" => free,
        "dry" => Sampling {
            dry: Dry {
                multiplier: 0.8,
                ..Dry::OFF
            },
            ..chat
        },
        _ => return None,
    })
}

fn number(
    parser: &mut lexopt::Parser,
    name: &str,
    least: usize,
    most: usize,
) -> Result<usize, lexopt::Error> {
    let text = parser.value()?.string()?;
    match text.parse::<usize>() {
        Ok(n) if (least..=most).contains(&n) => Ok(n),
        _ => Err(format!("{name} is a number from {least} to {most}, not {text:?}").into()),
    }
}

fn lengths(
    parser: &mut lexopt::Parser,
    name: &str,
    least: usize,
) -> Result<Lengths, lexopt::Error> {
    let text = parser.value()?.string()?;
    let mut list = Vec::new();
    if text != "none" {
        for part in text.split(',') {
            match part.trim().parse::<usize>() {
                Ok(n) if (least..=1 << 24).contains(&n) => list.push(n),
                _ => {
                    let wanted = format!("{name} is a list of numbers from {least} on, or none");
                    return Err(format!("{wanted}, not {text:?}").into());
                }
            }
        }
    }
    Ok(Lengths {
        list,
        explicit: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(std::ffi::OsString::from))
    }

    #[test]
    fn a_full_line() {
        let Ok(Command::Run(args)) =
            run("--shape hamlet --quant q8_0 --prompt 1,20 --depth none --kv f32 --threads 2")
        else {
            panic!("refused");
        };
        assert_eq!(args.prompt.list, [1, 20]);
        assert!(args.depth.list.is_empty() && args.depth.explicit);
        assert_eq!((args.kv, args.threads, args.reps), (Kv::F32, 2, 3));
        assert!(
            matches!(args.source, Source::Shape { shape, mix: Mix::Throughout(_), .. }
            if shape.name == "hamlet")
        );
    }

    #[test]
    fn wrong_lines_are_refused_by_name() {
        for (line, culprit) in [
            ("", "model file"),
            ("a.gguf b.gguf", "b.gguf"),
            ("a.gguf --shape hamlet", "not both"),
            ("--shape giant", "giant"),
            ("--shape hamlet --quant q9", "q9"),
            ("a.gguf --quant q8_0", "--quant"),
            ("a.gguf --vocab b.gguf", "--vocab"),
            ("a.gguf --cut 2", "--cut"),
            ("--shape hamlet --cut 9", "8 layers"),
            ("--shape gemma-4-e4b --cut 23", "24"),
            ("--shape hamlet --write-only", "--keep-model"),
            ("a.gguf --reps 0", "--reps"),
            ("a.gguf --prompt 5,x", "--prompt"),
            ("a.gguf --kv q8", "--kv"),
            ("a.gguf --grammar xml", "--grammar"),
            ("a.gguf --queue 0", "--queue"),
            ("a.gguf --speed", "--speed"),
            ("a.gguf --threads", "--threads"),
            ("a.gguf --memory-limit 0", "--memory-limit"),
            ("a.gguf --devices 0,x", "--devices"),
            ("a.gguf --devices 0,1 --layers 3", "--layers"),
            ("a.gguf --layers 3", "--layers"),
            ("a.gguf --split rows", "--split"),
            ("a.gguf --devices 0,1 --nccl", "--nccl"),
            ("a.gguf --split tensors --nccl", "--nccl"),
            ("a.gguf --cpu-experts some", "--cpu-experts"),
        ] {
            let error = run(line).expect_err(line);
            assert!(error.contains(culprit), "{line}: {error}");
        }
    }
}
