//! GGUF files of versions 2 and 3.

mod header;
mod layout;
mod reader;
mod split;
mod types;

use super::file::OpenFile;
use super::input::{Access, Input};
use super::{ModelFile, Tensor, Value};
use crate::error::{Result, fail};
use reader::within;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// One file, not yet joined with the other parts of a split one.
struct Part {
    metadata: HashMap<String, Value>,
    tensors: Vec<Tensor>,
    file: Option<Arc<OpenFile>>,
    file_bytes: u64,
}

/// See [`ModelFile::open_with`].
pub(super) fn open(path: &Path, access: Access) -> Result<ModelFile> {
    let in_file = || path.display().to_string();
    let part = open_part(path, access)?;
    let parts = match within(split::part_count(&part.metadata), in_file)? {
        1 => vec![part],
        _ => split::open_others(path, part, access)?,
    };
    within(join(parts), in_file)
}

/// A file that is not one of several.
pub(super) fn from_input(input: Input) -> Result<ModelFile> {
    let part = parse_part(input)?;
    let count = split::part_count(&part.metadata)?;
    if count > 1 {
        fail!(
            Unsupported,
            "the file is one of {count} parts, and was given without a path to find the others"
        );
    }
    join(vec![part])
}

fn open_part(path: &Path, access: Access) -> Result<Part> {
    within(Input::open(path, access).and_then(parse_part), || {
        path.display().to_string()
    })
}

fn parse_part(input: Input) -> Result<Part> {
    let header = header::parse(&input)?;
    let ranges = layout::place(&header, input.len())?;
    let input = Arc::new(input);
    let mut tensors = Vec::new();
    if tensors.try_reserve_exact(ranges.len()).is_err() {
        fail!(
            OutOfMemory,
            "{} tensors could not be allocated",
            ranges.len()
        );
    }
    for (info, range) in header.tensors.into_iter().zip(ranges) {
        tensors.push(Tensor::stored(
            info.name.into(),
            info.ty,
            info.dims,
            &input,
            range,
        ));
    }
    Ok(Part {
        metadata: header.metadata,
        tensors,
        file: input.file().cloned(),
        file_bytes: input.len() as u64,
    })
}

/// Puts the tensors of all parts into one map.
fn join(parts: Vec<Part>) -> Result<ModelFile> {
    let mut file = ModelFile {
        metadata: HashMap::new(),
        tensors: HashMap::new(),
        file_bytes: 0,
        text_files: None,
        key_names: HashMap::new(),
        files: Vec::new(),
        has_predictor: false,
    };
    let n_tensors = parts.iter().map(|part| part.tensors.len()).sum();
    if file.tensors.try_reserve(n_tensors).is_err() {
        fail!(OutOfMemory, "{n_tensors} tensors could not be allocated");
    }
    for (i, part) in parts.into_iter().enumerate() {
        file.file_bytes += part.file_bytes;
        file.files.extend(part.file);
        if i == 0 {
            file.metadata = part.metadata;
        }
        for tensor in part.tensors {
            if let Some(first) = file.tensors.insert(Arc::clone(&tensor.name), tensor) {
                fail!(FileCorrupt, "tensor {} appears twice", first.name);
            }
        }
    }
    super::scales::apply(&mut file)?;
    Ok(file)
}
