//! GGUF files of versions 2 and 3.

mod header;
mod layout;
mod reader;
mod split;
mod types;

use super::tensor::Data;
use super::{ModelFile, Tensor, Value, map};
use crate::error::{Result, fail};
use memmap2::Mmap;
use reader::within;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// One file, not yet joined with the other parts of a split one.
struct Part {
    metadata: HashMap<String, Value>,
    tensors: Vec<Tensor>,
    file_bytes: u64,
}

/// See [`ModelFile::open`].
pub(super) fn open(path: &Path) -> Result<ModelFile> {
    let in_file = || path.display().to_string();
    let part = open_part(path)?;
    let parts = match within(split::part_count(&part.metadata), in_file)? {
        1 => vec![part],
        _ => split::open_others(path, part)?,
    };
    within(join(parts), in_file)
}

/// A file that is wholly in this map.
pub(super) fn from_map(map: Mmap) -> Result<ModelFile> {
    let part = parse_part(map)?;
    let count = split::part_count(&part.metadata)?;
    if count > 1 {
        fail!(
            Unsupported,
            "the file is one of {count} parts, and was given without a path to find the others"
        );
    }
    join(vec![part])
}

fn open_part(path: &Path) -> Result<Part> {
    within(map::open(path).and_then(parse_part), || {
        path.display().to_string()
    })
}

fn parse_part(map: Mmap) -> Result<Part> {
    let header = header::parse(&map)?;
    let ranges = layout::place(&header, map.len())?;
    let map = Arc::new(map);
    let mut tensors = Vec::new();
    if tensors.try_reserve_exact(ranges.len()).is_err() {
        fail!(
            OutOfMemory,
            "{} tensors could not be allocated",
            ranges.len()
        );
    }
    for (info, range) in header.tensors.into_iter().zip(ranges) {
        tensors.push(Tensor {
            name: info.name.into(),
            ty: info.ty,
            dims: info.dims,
            data: Data::Mapped(Arc::clone(&map)),
            range,
        });
    }
    Ok(Part {
        metadata: header.metadata,
        tensors,
        file_bytes: map.len() as u64,
    })
}

/// Puts the tensors of all parts into one map.
fn join(parts: Vec<Part>) -> Result<ModelFile> {
    let mut file = ModelFile {
        metadata: HashMap::new(),
        tensors: HashMap::new(),
        file_bytes: 0,
        text_files: None,
    };
    let n_tensors = parts.iter().map(|part| part.tensors.len()).sum();
    if file.tensors.try_reserve(n_tensors).is_err() {
        fail!(OutOfMemory, "{n_tensors} tensors could not be allocated");
    }
    for (i, part) in parts.into_iter().enumerate() {
        file.file_bytes += part.file_bytes;
        if i == 0 {
            file.metadata = part.metadata;
        }
        for tensor in part.tensors {
            if let Some(first) = file.tensors.insert(Arc::clone(&tensor.name), tensor) {
                fail!(FileCorrupt, "tensor {} appears twice", first.name);
            }
        }
    }
    Ok(file)
}
