//! The part of a GGUF file before the tensor data: magic, version, metadata, tensor descriptions.

use super::reader::{Reader, within};
use super::types;
use crate::error::{Result, fail};
use crate::format::Value;
use crate::format::input::Input;
use crate::quant::TensorType;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Most keys, and most tensors, that a file may have. Published models stay below 20 000.
const MAX_COUNT: usize = 1 << 20;
/// Longest metadata key, as the format's specification says.
const MAX_KEY_BYTES: usize = 65_535;
/// Longest tensor name. The specification says 64; some writers exceed that.
const MAX_NAME_BYTES: usize = 255;
/// Most dimensions of a tensor.
const MAX_DIMS: u32 = 4;
/// Largest alignment that is taken seriously.
const MAX_ALIGNMENT: u32 = 1 << 20;
const DEFAULT_ALIGNMENT: u32 = 32;

/// Bytes of the shortest key and value: length, one letter, type, one byte.
const MIN_KEY_BYTES: usize = 8 + 1 + 4 + 1;
/// Bytes of the shortest tensor description: length, one letter, one dimension, type, offset.
const MIN_TENSOR_BYTES: usize = 8 + 1 + 4 + 8 + 4 + 8;

/// What the file says about a tensor; sizes are consistent, the offset is unchecked.
pub(super) struct TensorInfo {
    pub name: String,
    pub ty: TensorType,
    pub dims: Vec<usize>,
    /// Bytes of the tensor.
    pub size: usize,
    /// Start of the tensor, from the start of the data.
    pub offset: u64,
}

/// A parsed header.
pub(super) struct Header {
    pub metadata: HashMap<String, Value>,
    pub tensors: Vec<TensorInfo>,
    /// Tensors start at multiples of this, a power of two.
    pub alignment: usize,
    /// First byte after the header.
    pub end: usize,
}

/// Reads the header of a file.
pub(super) fn parse(input: &Input) -> Result<Header> {
    let mut reader = Reader::new(input);
    check_magic(reader.head(64)?)?;
    reader.u32()?;
    match reader.u32()? {
        2 | 3 => {}
        version if matches!(version.swap_bytes(), 1..=3) => fail!(
            Unsupported,
            "a big-endian GGUF file (version {} at byte 4); only little-endian files are read",
            version.swap_bytes()
        ),
        version => fail!(
            UnknownFormat,
            "GGUF version {version} at byte 4; versions 2 and 3 are read"
        ),
    }
    let n_tensors = reader.count(MIN_TENSOR_BYTES, "tensors")?;
    let n_keys = reader.count(MIN_KEY_BYTES, "metadata keys")?;
    for (count, things) in [(n_tensors, "tensors"), (n_keys, "metadata keys")] {
        if count > MAX_COUNT {
            fail!(
                Unsupported,
                "the file has {count} {things}; at most {MAX_COUNT} are read"
            );
        }
    }
    let metadata = parse_metadata(&mut reader, n_keys)?;
    let alignment = alignment(&metadata)?;
    let tensors = parse_tensors(&mut reader, n_tensors)?;
    Ok(Header {
        metadata,
        tensors,
        alignment,
        end: reader.position(),
    })
}

fn check_magic(bytes: &[u8]) -> Result<()> {
    const MAGIC: &[u8] = b"GGUF";
    if bytes.starts_with(MAGIC) {
        return Ok(());
    }
    if MAGIC.starts_with(bytes) {
        fail!(
            FileTruncated,
            "the file ends at byte {}, inside the magic number",
            bytes.len()
        );
    }
    let looks_like = if bytes.starts_with(b"version https://git-lfs") {
        "; it is a Git LFS pointer, whose content was not downloaded"
    } else if bytes.starts_with(b"PK\x03\x04") {
        "; it is a ZIP archive (perhaps a PyTorch checkpoint)"
    } else if bytes.get(8) == Some(&b'{') {
        "; it may be a safetensors file"
    } else if bytes.starts_with(b"<") {
        "; it may be a web page"
    } else {
        ""
    };
    fail!(
        UnknownFormat,
        "the file does not start with the letters GGUF{looks_like}"
    )
}

fn parse_metadata(reader: &mut Reader, count: usize) -> Result<HashMap<String, Value>> {
    // Maps keep some slots free, at most half of them.
    reader.charge(count, 2 * size_of::<(String, Value)>())?;
    let mut metadata = HashMap::new();
    if metadata.try_reserve(count).is_err() {
        fail!(OutOfMemory, "metadata: {count} keys could not be allocated");
    }
    for i in 0..count {
        let at = reader.position();
        let key = within(reader.name("the key", MAX_KEY_BYTES), || {
            format!("metadata key {i}")
        })?;
        let value = within(reader.value(), || format!("metadata key {key}"))?;
        match metadata.entry(key) {
            Entry::Vacant(slot) => slot.insert(value),
            Entry::Occupied(slot) => fail!(
                FileCorrupt,
                "metadata key {} appears a second time at byte {at}",
                slot.key()
            ),
        };
    }
    Ok(metadata)
}

fn alignment(metadata: &HashMap<String, Value>) -> Result<usize> {
    const KEY: &str = "general.alignment";
    let alignment = match metadata.get(KEY) {
        None => DEFAULT_ALIGNMENT,
        Some(Value::U64(v)) => match u32::try_from(*v) {
            Ok(v) if v.is_power_of_two() && v <= MAX_ALIGNMENT => v,
            _ => fail!(
                FileCorrupt,
                "metadata key {KEY} is {v}; it must be a power of two up to {MAX_ALIGNMENT}"
            ),
        },
        Some(other) => fail!(
            FileCorrupt,
            "metadata key {KEY} is {}; it must be an unsigned integer",
            other.type_name()
        ),
    };
    Ok(alignment as usize)
}

fn parse_tensors(reader: &mut Reader, count: usize) -> Result<Vec<TensorInfo>> {
    // The description, the tensor made from it, its name and its place in the map by name.
    reader.charge(count, 2 * size_of::<TensorInfo>() + 256)?;
    let mut tensors = Vec::new();
    if tensors.try_reserve_exact(count).is_err() {
        fail!(
            OutOfMemory,
            "{count} tensor descriptions could not be allocated"
        );
    }
    for i in 0..count {
        let name = within(reader.name("the name", MAX_NAME_BYTES), || {
            format!("tensor {i}")
        })?;
        tensors.push(parse_tensor(reader, name)?);
    }
    Ok(tensors)
}

fn parse_tensor(reader: &mut Reader, name: String) -> Result<TensorInfo> {
    let tensor = || format!("tensor {name}");
    let at = reader.position();
    let n_dims = within(reader.u32(), tensor)?;
    if !(1..=MAX_DIMS).contains(&n_dims) {
        fail!(
            FileCorrupt,
            "tensor {name} has {n_dims} dimensions at byte {at}; 1 to {MAX_DIMS} are allowed"
        );
    }
    let mut dims = Vec::with_capacity(n_dims as usize);
    let mut elements = 1usize;
    for i in 0..n_dims {
        let at = reader.position();
        let dim = within(reader.u64(), tensor)?;
        // A writer that counts with signed numbers.
        if dim.cast_signed() <= 0 {
            fail!(
                FileCorrupt,
                "dimension {i} of tensor {name} is {} at byte {at}; it must be at least 1",
                dim.cast_signed()
            );
        }
        let product = usize::try_from(dim)
            .ok()
            .and_then(|dim| Some((dim, elements.checked_mul(dim)?)));
        let Some((dim, product)) = product else {
            fail!(
                FileCorrupt,
                "dimension {i} of tensor {name} is {dim} at byte {at}; so many elements fit no memory"
            );
        };
        dims.push(dim);
        elements = product;
    }
    let at = reader.position();
    let id = within(reader.u32(), tensor)?;
    let Some(ty) = TensorType::from_gguf_id(id) else {
        fail!(
            Unsupported,
            "tensor {name} has type {}, which is not supported (byte {at})",
            types::describe(id)
        );
    };
    let Some(row_bytes) = ty.row_bytes(dims[0]) else {
        fail!(
            FileCorrupt,
            "tensor {name} has rows of {} elements, which is no multiple of the {} of a {} block",
            dims[0],
            ty.block_len(),
            ty.name()
        );
    };
    let Some(size) = row_bytes.checked_mul(elements / dims[0]) else {
        fail!(
            FileCorrupt,
            "tensor {name} of {elements} elements fits no memory"
        );
    };
    let offset = within(reader.u64(), tensor)?;
    Ok(TensorInfo {
        name,
        ty,
        dims,
        size,
        offset,
    })
}
