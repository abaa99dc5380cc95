//! `ember-bench`: how fast a model loads, reads and writes on this machine. `--help` says more.

mod adapters;
mod args;
mod bandwidth;
mod beside;
mod drafts;
mod embed;
mod measure;
mod memory;
mod random;
mod report;
mod shapes;
mod states;
mod stats;
mod synthetic;
mod traffic;

use args::{Args, Command, Source};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let outcome = match args::parse(std::env::args_os().skip(1)) {
        Ok(Command::Help) => print(args::HELP),
        Ok(Command::Version) => print(concat!("ember-bench ", env!("CARGO_PKG_VERSION"), "\n")),
        Ok(Command::Run(args)) => run(&args),
        Err(message) => {
            eprintln!("ember-bench: {message}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("ember-bench: {message}");
            ExitCode::from(1)
        }
    }
}

fn run(args: &Args) -> Result<(), String> {
    let say = |what: &str| eprintln!("ember-bench: {what}");
    // Lives as long as the measurement and removes itself.
    let mut temporary = None;
    let (path, name): (PathBuf, String) = match &args.source {
        Source::File(path) => (path.clone(), path.display().to_string()),
        Source::Shape { shape, mix, keep } => {
            let name = format!("{} {mix}, random weights", shape.name);
            let path = match keep {
                Some(path) => path.clone(),
                None => {
                    let file = tempfile::Builder::new()
                        .prefix("ember-bench-")
                        .suffix(".gguf")
                        .tempfile()
                        .map_err(|e| format!("no temporary file: {e}"))?;
                    temporary.insert(file.into_temp_path()).to_path_buf()
                }
            };
            say(&format!("writing {}", path.display()));
            let vocabulary = match &args.vocab {
                Some(path) => synthetic::vocabulary(path)?,
                None => Vec::new(),
            };
            synthetic::write(&path, shape, *mix, vocabulary)?;
            (path, name)
        }
    };
    if args.write_only {
        return Ok(());
    }
    let fails = |e: emberlm::Error| format!("{name}: {e}");
    let measured = measure::run(args, &path, &say).map_err(fails)?;
    // Before anything else takes memory.
    let peak_bytes = memory::peak_resident_bytes();
    let traffic = traffic::Traffic::of_file(&path).map_err(fails)?;
    drop(temporary);
    say("memory bandwidth");
    let bandwidth = bandwidth::measure(args.bandwidth_bytes, measured.threads, 5);
    let report = report::Report {
        args,
        model: &name,
        measured: &measured,
        traffic: &traffic,
        bandwidth: bandwidth.as_ref(),
        peak_bytes,
    };
    let json = || format!("{:#}\n", report.json());
    match args.json.as_deref() {
        Some(path) if path == Path::new("-") => print(&json()),
        Some(path) => {
            std::fs::write(path, json()).map_err(|e| format!("{}: {e}", path.display()))?;
            print(&report.table())
        }
        None => print(&report.table()),
    }
}

/// To standard output; an error if it is closed.
fn print(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| format!("standard output: {e}"))
}
