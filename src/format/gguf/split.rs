//! Files split into parts, named `name-00001-of-00003.gguf` and so on.
//!
//! Each part is a GGUF file with the keys `split.no` (from 0), `split.count` and
//! `split.tensors.count` (of all parts together). The model's other metadata is in the first.

use super::reader::within;
use super::{Part, open_part};
use crate::error::{Result, fail};
use crate::format::input::Access;
use crate::format::{FromValue, Value};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// Most parts that the five digits of the names can count.
const MAX_PARTS: u32 = 99_999;

/// Number of parts that the file says it is one of; 1 if it says nothing.
pub(super) fn part_count(metadata: &HashMap<String, Value>) -> Result<u32> {
    if metadata.contains_key(COUNT) {
        Ok(u32::max(1, key(metadata, COUNT)?))
    } else {
        Ok(1)
    }
}

/// Opens the parts beside `given`, which was read from `path`, and returns all in their order.
pub(super) fn open_others(path: &Path, given: Part, access: Access) -> Result<Vec<Part>> {
    let (given_number, names, n_tensors) =
        within(names(path, &given), || path.display().to_string())?;
    let mut given = Some(given);
    let mut parts = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let part = match given.take_if(|_| number == given_number) {
            Some(part) => part,
            None => open_part(name, access)?,
        };
        within(check(&part, number, names.len(), n_tensors), || {
            name.display().to_string()
        })?;
        parts.push(part);
    }
    let found: usize = parts.iter().map(|part| part.tensors.len()).sum();
    if found != n_tensors {
        fail!(
            FileCorrupt,
            "{}: the {} parts have {found} tensors together, but {TENSORS} is {n_tensors}",
            path.display(),
            parts.len()
        );
    }
    Ok(parts)
}

/// The number (from 0) of the part at `path`, the paths of all parts, and the number of tensors.
fn names(path: &Path, part: &Part) -> Result<(usize, Vec<PathBuf>, usize)> {
    let number: u32 = key(&part.metadata, NUMBER)?;
    let count: u32 = key(&part.metadata, COUNT)?;
    let n_tensors = key(&part.metadata, TENSORS)?;
    if number >= count {
        fail!(FileCorrupt, "{NUMBER} is {number}, but {COUNT} is {count}");
    }
    if count > MAX_PARTS {
        fail!(
            FileCorrupt,
            "{COUNT} is {count}; there can be at most {MAX_PARTS} parts"
        );
    }
    let suffix = |number: u32| format!("-{:05}-of-{count:05}.gguf", number + 1);
    let stem = path
        .file_name()
        .and_then(|name| name.to_str())
        .and_then(|name| name.strip_suffix(&suffix(number)));
    let Some(stem) = stem else {
        fail!(
            FileNotFound,
            "part {} of {count}, whose name should end in {}: the other parts cannot be found",
            number + 1,
            suffix(number)
        );
    };
    let names = (0..count).map(|number| path.with_file_name(format!("{stem}{}", suffix(number))));
    Ok((number as usize, names.collect(), n_tensors))
}

fn check(part: &Part, number: usize, count: usize, n_tensors: usize) -> Result<()> {
    for (name, expected) in [(NUMBER, number), (COUNT, count), (TENSORS, n_tensors)] {
        let found: usize = key(&part.metadata, name)?;
        if found != expected {
            fail!(FileCorrupt, "{name} is {found}; it must be {expected}");
        }
    }
    Ok(())
}

fn key<'a, T: FromValue<'a>>(metadata: &'a HashMap<String, Value>, name: &str) -> Result<T> {
    match metadata.get(name).and_then(T::from_value) {
        Some(value) => Ok(value),
        None => fail!(
            FileCorrupt,
            "metadata key {name} of the split file is missing or not {}",
            T::EXPECTED
        ),
    }
}
