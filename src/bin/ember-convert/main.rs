//! `ember-convert`: writes a model as a GGUF file. `--help` says more.

mod args;

use args::{Args, Command};
use emberlm::format::adapter::{AdapterFile, BaseShape};
use emberlm::format::writer::{TensorEntry, Writer};
use emberlm::format::{Access, ModelFile, Tensor, Value, WeightType, read_rows};
use emberlm::model::Network;
use std::collections::HashMap;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

/// About how many bytes of a tensor are converted at once.
const PIECE_BYTES: usize = 64 << 20;
/// Metadata that describe the input as a file, not the model.
const OF_THE_FILE: [&str; 4] = [
    "general.alignment",
    "split.no",
    "split.count",
    "split.tensors.count",
];

fn main() -> ExitCode {
    let outcome = match args::parse(std::env::args_os().skip(1)) {
        Ok(Command::Help) => print(args::HELP),
        Ok(Command::Version) => print(concat!("ember-convert ", env!("CARGO_PKG_VERSION"), "\n")),
        Ok(Command::Run(args)) => run(&args),
        Err(message) => {
            eprintln!("ember-convert: {message}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("ember-convert: {message}");
            ExitCode::from(1)
        }
    }
}

fn print(text: &str) -> Result<(), String> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| format!("cannot write: {e}"))
}

fn run(args: &Args) -> Result<(), String> {
    check_output(args)?;
    let file = open(args).map_err(|e| e.message)?;
    // A file that would not load is not written either.
    let network = Network::from_file(&file).map_err(|e| e.message)?;
    if network.entry.is_some() {
        return Err(
            "heads of EAGLE-3 are read from folders only; no GGUF file of one is written".into(),
        );
    }
    let metadata = metadata(&file, args)?;
    let mut writer = Writer::new();
    for (key, value) in metadata {
        writer.set(&key, value);
    }
    let mut names: Vec<&str> = file.tensors.keys().map(|name| &**name).collect();
    names.sort_unstable_by_key(|name| order(name));
    for name in names {
        let tensor = &file.tensors[name];
        writer
            .tensor(name, tensor.ty, &tensor.dims)
            .map_err(|e| e.message)?;
    }
    let bytes = write(&writer, &file, args)?;
    eprintln!(
        "ember-convert: {}: {} tensors, {bytes} bytes",
        args.output.display(),
        writer.tensors().len()
    );
    Ok(())
}

/// The model as it is to be written.
fn open(args: &Args) -> emberlm::Result<ModelFile> {
    let file = ModelFile::open_with(&args.input, Access::Read)?;
    let shape = BaseShape::of(&file)?;
    let mut adapters = Vec::new();
    for (path, factor) in &args.merges {
        adapters.push((AdapterFile::open(path, &shape)?, *factor));
    }
    let keep = args.weights == WeightType::Keep;
    file.merged(&adapters, keep)?.with_weights(args.weights)
}

/// The output must not be the input, and not be there already unless that is wanted.
fn check_output(args: &Args) -> Result<(), String> {
    let output = args.output.display();
    let name = args.output.file_name().unwrap_or_default();
    let name = name.to_string_lossy();
    if !name.ends_with(".gguf") {
        return Err(format!(
            "{output}: the name of the output must end in .gguf"
        ));
    }
    let is_part = |name: &str| {
        let number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        let stem = name.strip_suffix(".gguf").unwrap_or(name);
        let mut ends = stem.rsplitn(4, '-');
        let mut next = || ends.next().unwrap_or_default();
        number(next()) && next() == "of" && number(next())
    };
    if is_part(&name) {
        return Err(format!(
            "{output}: this is the name of a part of a split model, but one file is written"
        ));
    }
    let Ok(existing) = args.output.canonicalize() else {
        return Ok(());
    };
    if args
        .input
        .canonicalize()
        .is_ok_and(|input| input == existing)
    {
        return Err(format!("{output}: the output is the input"));
    }
    if !args.force {
        return Err(format!("{output}: exists already; --force replaces it"));
    }
    Ok(())
}

/// What the output says beside its tensors: general keys, then those of the architecture, then
/// those of the tokenizer.
fn metadata(file: &ModelFile, args: &Args) -> Result<Vec<(String, Value)>, String> {
    let mut all: HashMap<String, Value> = file.metadata.clone();
    all.extend(file.text_metadata().map_err(|e| e.message)?);
    all.retain(|key, _| !OF_THE_FILE.contains(&key.as_str()));
    if let Some(file_type) = args.weights.file_type() {
        all.insert("general.file_type".into(), file_type.into());
    }
    all.insert("general.quantization_version".into(), 2u32.into());
    let mut all: Vec<_> = all.into_iter().collect();
    let group = |key: &str| match key {
        "general.architecture" => 0,
        key if key.starts_with("general.") => 1,
        key if key.starts_with("tokenizer.") => 3,
        _ => 2,
    };
    all.sort_unstable_by(|(a, _), (b, _)| (group(a), a).cmp(&(group(b), b)));
    Ok(all)
}

/// Sort key: the tensors in the order in which a token passes them, nearly.
fn order(name: &str) -> (u32, u64, &str) {
    let layer = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.'))
        .and_then(|(layer, _)| layer.parse().ok());
    match (layer, name) {
        (Some(layer), _) => (1, layer, name),
        (None, name) if name.starts_with("output") => (2, 0, name),
        _ => (0, 0, name),
    }
}

/// Writes the file beside its final place and then moves it there. Returns its size in bytes.
fn write(writer: &Writer, file: &ModelFile, args: &Args) -> Result<u64, String> {
    let failed = |e: io::Error| format!("{}: cannot write: {e}", args.output.display());
    let folder = match args.output.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".ember-convert-").suffix(".gguf");
    #[cfg(unix)]
    {
        // As any new file, less what the process's mask takes away.
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let mut out = builder.tempfile_in(folder).map_err(failed)?;
    // The writer knows of input and output errors alone.
    let mut refused = None;
    let written = {
        let mut buffered = BufWriter::with_capacity(1 << 20, out.as_file_mut());
        writer.write(&mut buffered, |entry, out| {
            let tensor = &file.tensors[entry.name.as_str()];
            write_tensor(entry, tensor, args.threads, out).map_err(|e| match e {
                Failure::Io(e) => e,
                Failure::Refused(e) => {
                    refused = Some(e.message);
                    io::Error::other("the tensor could not be converted")
                }
            })
        })
    };
    if let Some(message) = refused {
        return Err(message);
    }
    written.map_err(|e| format!("{}: {}", args.output.display(), e.message))?;
    file.check_unchanged().map_err(|e| e.message)?;
    out.as_file().sync_all().map_err(failed)?;
    let bytes = out.as_file().metadata().map_err(failed)?.len();
    out.persist(&args.output).map_err(|e| failed(e.error))?;
    Ok(bytes)
}

enum Failure {
    Io(io::Error),
    Refused(emberlm::Error),
}

/// Writes the bytes of a tensor, some rows at a time.
fn write_tensor(
    entry: &TensorEntry,
    tensor: &Tensor,
    threads: usize,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let row_bytes = tensor.row_bytes();
    let rows = (PIECE_BYTES / row_bytes).max(1);
    let mut piece = vec![0; rows.min(tensor.rows()) * row_bytes];
    let mut first = 0;
    while first < tensor.rows() {
        let count = rows.min(tensor.rows() - first);
        let piece = &mut piece[..count * row_bytes];
        read_rows(tensor, first, piece, threads).map_err(Failure::Refused)?;
        out.write_all(piece).map_err(Failure::Io)?;
        first += count;
    }
    debug_assert_eq!(entry.size, tensor.byte_len() as u64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::order;

    #[test]
    fn layers_are_in_the_order_of_their_numbers() {
        let mut names = [
            "output.weight",
            "blk.10.attn_q.weight",
            "blk.9.ffn_up.weight",
            "token_embd.weight",
            "blk.9.attn_q.weight",
            "output_norm.weight",
        ];
        names.sort_unstable_by_key(|name| order(name));
        assert_eq!(
            names,
            [
                "token_embd.weight",
                "blk.9.attn_q.weight",
                "blk.9.ffn_up.weight",
                "blk.10.attn_q.weight",
                "output.weight",
                "output_norm.weight",
            ]
        );
    }
}
