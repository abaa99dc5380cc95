//! safetensors files: the length of a JSON header in 8 bytes, the header, the tensors end to end.
//!
//! The limits are those of the safetensors library: a header of at most 100 MB, tensors that tile
//! the rest of the file without overlaps and holes, ranges that fit shape and type.

use super::input::Input;
use crate::error::{Error, Result, Status, fail, try_vec};
use serde::de::{self, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

/// The longest header, in bytes.
const MAX_HEADER: u64 = 100_000_000;
/// The most tensors that a model may have. With two per matrix of each expert, the largest published
/// models have 150,000.
pub(super) const MAX_TENSORS: usize = 1 << 18;
/// The most dimensions of a tensor.
const MAX_DIMS: usize = 8;
/// The key beside those of the tensors.
const METADATA: &str = "__metadata__";

/// The element types of the format and their bits.
const TYPES: [(&str, usize); 21] = [
    ("F64", 64),
    ("I64", 64),
    ("U64", 64),
    ("C64", 64),
    ("F32", 32),
    ("I32", 32),
    ("U32", 32),
    ("F16", 16),
    ("BF16", 16),
    ("I16", 16),
    ("U16", 16),
    ("F8_E4M3", 8),
    ("F8_E5M2", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("F8_E8M0", 8),
    ("I8", 8),
    ("U8", 8),
    ("BOOL", 8),
    ("F4", 4),
    ("F6_E2M3", 6),
];

/// A tensor in the header of a file.
#[derive(Debug, PartialEq)]
pub(super) struct Entry {
    pub name: String,
    /// Element type, as the format spells it.
    pub ty: &'static str,
    /// Elements per dimension, the fastest-varying last; none for a single element.
    pub shape: Vec<usize>,
    /// Its bytes in the file.
    pub range: Range<usize>,
}

/// Reads and checks the header of a file.
///
/// Errors: `FileTruncated`, `FileCorrupt` and, for element types that are not known, `Unsupported`.
/// Messages name the tensor or the byte.
pub(super) fn parse(input: &Input) -> Result<Vec<Entry>> {
    let file_len = input.len();
    if file_len < 8 {
        fail!(
            FileTruncated,
            "the file ends at byte {file_len}, inside the length of its header"
        );
    }
    let mut len = [0; 8];
    input.read(0, &mut len)?;
    let len = u64::from_le_bytes(len);
    if len > MAX_HEADER {
        fail!(
            FileCorrupt,
            "the header has {len} bytes, {MAX_HEADER} are allowed; is this a safetensors file?"
        );
    }
    let len = len as usize;
    if len > file_len - 8 {
        fail!(
            FileTruncated,
            "the header takes bytes 8 to {}, but the file ends at byte {file_len}",
            8 + len
        );
    }
    let mut text = try_vec(len, 0, "the header")?;
    input.read(8, &mut text)?;
    let header: Header = serde_json::from_slice(&text)
        .map_err(|e| Error::new(Status::FileCorrupt, format!("the header is not valid: {e}")))?;
    drop(text);
    place(header.tensors, 8 + len, file_len)
}

/// Checks types, shapes and ranges, which count from byte `data` of a file of `file_len`.
fn place(tensors: Vec<(String, Info)>, data: usize, file_len: usize) -> Result<Vec<Entry>> {
    let mut names = HashSet::new();
    let mut entries = Vec::new();
    if entries.try_reserve_exact(tensors.len()).is_err()
        || names.try_reserve(tensors.len()).is_err()
    {
        fail!(
            OutOfMemory,
            "{} tensors could not be allocated",
            tensors.len()
        );
    }
    for (name, info) in &tensors {
        if !names.insert(name.as_str()) {
            fail!(FileCorrupt, "tensor {name} appears twice");
        }
        entries.push(entry(name, info, data, file_len)?);
    }
    let mut order: Vec<&Entry> = entries.iter().collect();
    order.sort_unstable_by_key(|e| (e.range.start, e.range.end));
    // Overlaps first, which name both: a tensor that is out of place also leaves a hole before
    // another, which is not to blame.
    for pair in order.windows(2) {
        let (before, after) = (pair[0], pair[1]);
        if after.range.start < before.range.end {
            fail!(
                FileCorrupt,
                "tensor {} starts at byte {}, inside tensor {}, which ends at byte {}",
                after.name,
                after.range.start,
                before.name,
                before.range.end
            );
        }
    }
    let mut end = data;
    for entry in order {
        let start = entry.range.start;
        if start > end {
            fail!(
                FileCorrupt,
                "{} unexplained bytes lie before tensor {}, which starts at byte {start}",
                start - end,
                entry.name
            );
        }
        end = entry.range.end;
    }
    if file_len > end {
        fail!(
            FileCorrupt,
            "{} unexplained bytes follow the last tensor at byte {end}",
            file_len - end
        );
    }
    Ok(entries)
}

fn entry(name: &str, info: &Info, data: usize, file_len: usize) -> Result<Entry> {
    let Some((ty, bits)) = TYPES.into_iter().find(|(ty, _)| *ty == info.dtype) else {
        let ty: String = info.dtype.chars().take(50).collect();
        fail!(Unsupported, "tensor {name} has the unknown type {ty:?}");
    };
    let Shape(shape) = &info.shape;
    let size = shape
        .iter()
        .try_fold(bits, |bits, dim| bits.checked_mul(*dim))
        .filter(|bits| bits.is_multiple_of(8))
        .map(|bits| bits / 8);
    let [start, end] = info.data_offsets;
    if size.is_none() || end.checked_sub(start) != size {
        fail!(
            FileCorrupt,
            "tensor {name} of type {ty} and shape {shape:?} cannot take bytes {start} to {end} of the data"
        );
    }
    match (data.checked_add(start), data.checked_add(end)) {
        (Some(start), Some(end)) if end <= file_len => Ok(Entry {
            name: name.to_owned(),
            ty,
            shape: shape.clone(),
            range: start..end,
        }),
        _ => fail!(
            FileTruncated,
            "tensor {name} takes bytes {start} to {end} of the data, but the file ends at byte {} of it",
            file_len - data
        ),
    }
}

/// The tensors of a header, in its order.
struct Header {
    tensors: Vec<(String, Info)>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Header, D::Error> {
        struct Tensors;

        impl<'de> Visitor<'de> for Tensors {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Header, A::Error> {
                let mut tensors = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == METADATA {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        let info = map
                            .next_value()
                            .map_err(|e| de::Error::custom(format!("tensor {name}: {e}")))?;
                        if tensors.len() == MAX_TENSORS {
                            return Err(de::Error::custom(format!(
                                "there are more than {MAX_TENSORS} tensors"
                            )));
                        }
                        tensors.push((name, info));
                    }
                }
                Ok(Header { tensors })
            }
        }

        from.deserialize_map(Tensors)
    }
}

/// What the header says of a tensor.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Info {
    dtype: String,
    shape: Shape,
    data_offsets: [usize; 2],
}

/// A shape of no more dimensions than make sense.
struct Shape(Vec<usize>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Shape, D::Error> {
        struct Dims;

        impl<'de> Visitor<'de> for Dims {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                write!(f, "an array of at most {MAX_DIMS} sizes")
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut seq: A,
            ) -> std::result::Result<Shape, A::Error> {
                let mut dims = Vec::new();
                while let Some(dim) = seq.next_element()? {
                    if dims.len() == MAX_DIMS {
                        return Err(de::Error::invalid_length(MAX_DIMS + 1, &self));
                    }
                    dims.push(dim);
                }
                Ok(Shape(dims))
            }
        }

        from.deserialize_seq(Dims)
    }
}
