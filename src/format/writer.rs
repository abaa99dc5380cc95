//! Writes GGUF files of version 3, tensor by tensor, without holding their data.

use super::{Array, Value};
use crate::error::{Error, Result, Status, fail};
use crate::quant::TensorType;
use std::io::{self, Write};

const ALIGNMENT_KEY: &str = "general.alignment";
const DEFAULT_ALIGNMENT: u64 = 32;

/// A file to be written: metadata and the descriptions of its tensors, both kept in order.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    metadata: Vec<(String, Value)>,
    tensors: Vec<TensorEntry>,
}

/// The description of a tensor to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorEntry {
    /// Name.
    pub name: String,
    /// Element type.
    pub ty: TensorType,
    /// Number of elements per dimension, the row length first.
    pub dims: Vec<usize>,
    /// Bytes of the data.
    pub size: u64,
}

impl Writer {
    /// A file without metadata and tensors.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// Sets a metadata value; one of the same key is replaced.
    ///
    /// Integers are written as 32 bits where they fit, else as 64, signed if the `Value` is
    /// (`split.no` and `split.count` as 16 bits, as other programs expect); so are the elements of
    /// an array, all alike.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> &mut Writer {
        let value = value.into();
        match self.metadata.iter_mut().find(|(k, _)| k == key) {
            Some((_, old)) => *old = value,
            None => self.metadata.push((key.to_owned(), value)),
        }
        self
    }

    /// Removes a metadata value.
    pub fn unset(&mut self, key: &str) -> &mut Writer {
        self.metadata.retain(|(k, _)| k != key);
        self
    }

    /// Adds a tensor. Errors: `InvalidArgument` if there is one of this name or the dimensions fit
    /// neither the type nor the format.
    pub fn tensor(&mut self, name: &str, ty: TensorType, dims: &[usize]) -> Result<&mut Writer> {
        if self.tensors.iter().any(|t| t.name == name) {
            fail!(InvalidArgument, "tensor {name} was added before");
        }
        let size = match dims {
            [row, rest @ ..] if rest.len() < 4 => rest
                .iter()
                .try_fold(ty.row_bytes(*row).unwrap_or(0), |size, dim| {
                    size.checked_mul(*dim)
                }),
            _ => None,
        };
        match size {
            Some(size) if size > 0 => {
                self.tensors.push(TensorEntry {
                    name: name.to_owned(),
                    ty,
                    dims: dims.to_vec(),
                    size: size as u64,
                });
                Ok(self)
            }
            _ => fail!(
                InvalidArgument,
                "tensor {name} of type {} cannot have shape {dims:?}",
                ty.name()
            ),
        }
    }

    /// The tensors, in the order in which their data will be written.
    pub fn tensors(&self) -> &[TensorEntry] {
        &self.tensors
    }

    /// Writes the file: the header, then of each tensor what `data` writes for it, padded. `out`
    /// should be buffered.
    ///
    /// Errors: `InvalidArgument` if `data` writes more or less than the tensor's size or if
    /// `general.alignment` is no power of two, `Io`.
    pub fn write(
        &self,
        out: &mut dyn Write,
        mut data: impl FnMut(&TensorEntry, &mut dyn Write) -> io::Result<()>,
    ) -> Result<()> {
        let alignment = self.alignment()?;
        let header = self.header(alignment);
        let mut out = Counter { out, written: 0 };
        let io = |e: io::Error| Error::new(Status::Io, format!("cannot write: {e}"));
        out.write_all(&header).map_err(io)?;
        out.pad(alignment).map_err(io)?;
        for tensor in &self.tensors {
            let start = out.written;
            data(tensor, &mut out).map_err(io)?;
            let written = out.written - start;
            if written != tensor.size {
                fail!(
                    InvalidArgument,
                    "tensor {} has {} bytes, but {written} were written",
                    tensor.name,
                    tensor.size
                );
            }
            out.pad(alignment).map_err(io)?;
        }
        out.flush().map_err(io)
    }

    fn alignment(&self) -> Result<u64> {
        match self.metadata.iter().find(|(key, _)| key == ALIGNMENT_KEY) {
            None => Ok(DEFAULT_ALIGNMENT),
            Some((_, Value::U64(v))) if v.is_power_of_two() && *v <= u32::MAX.into() => Ok(*v),
            Some(_) => fail!(
                InvalidArgument,
                "{ALIGNMENT_KEY} must be a power of two below 2^32"
            ),
        }
    }

    fn header(&self, alignment: u64) -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        put_len(&mut out, self.tensors.len());
        put_len(&mut out, self.metadata.len());
        for (key, value) in &self.metadata {
            put_string(&mut out, key);
            put_value(&mut out, key, value);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            put_string(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            for &dim in &tensor.dims {
                put_len(&mut out, dim);
            }
            out.extend(tensor.ty.gguf_id().to_le_bytes());
            out.extend(u64::to_le_bytes(offset));
            offset += tensor.size.next_multiple_of(alignment);
        }
        out
    }
}

/// Counts what passes through, so that padding can be added.
struct Counter<'a> {
    out: &'a mut dyn Write,
    written: u64,
}

impl Counter<'_> {
    fn pad(&mut self, alignment: u64) -> io::Result<()> {
        let padding = self.written.next_multiple_of(alignment) - self.written;
        io::copy(&mut io::Read::take(io::repeat(0), padding), self)?;
        Ok(())
    }
}

impl Write for Counter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn put_len(out: &mut Vec<u8>, len: usize) {
    out.extend((len as u64).to_le_bytes());
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    put_len(out, text.len());
    out.extend(text.as_bytes());
}

/// Type ids of the format.
mod id {
    pub const U16: u32 = 2;
    pub const U32: u32 = 4;
    pub const I32: u32 = 5;
    pub const F32: u32 = 6;
    pub const BOOL: u32 = 7;
    pub const STRING: u32 = 8;
    pub const ARRAY: u32 = 9;
    pub const U64: u32 = 10;
    pub const I64: u32 = 11;
    pub const F64: u32 = 12;
}

fn put_value(out: &mut Vec<u8>, key: &str, value: &Value) {
    let mut put_id = |id: u32| out.extend(id.to_le_bytes());
    match value {
        Value::U64(v) if matches!(key, "split.no" | "split.count") && *v <= u16::MAX.into() => {
            put_id(id::U16);
            out.extend((*v as u16).to_le_bytes());
        }
        Value::U64(v) => match u32::try_from(*v) {
            Ok(v) => {
                put_id(id::U32);
                out.extend(v.to_le_bytes());
            }
            Err(_) => {
                put_id(id::U64);
                out.extend(v.to_le_bytes());
            }
        },
        Value::I64(v) => match i32::try_from(*v) {
            Ok(v) => {
                put_id(id::I32);
                out.extend(v.to_le_bytes());
            }
            Err(_) => {
                put_id(id::I64);
                out.extend(v.to_le_bytes());
            }
        },
        Value::F32(v) => {
            put_id(id::F32);
            out.extend(v.to_le_bytes());
        }
        Value::F64(v) => {
            put_id(id::F64);
            out.extend(v.to_le_bytes());
        }
        Value::Bool(v) => {
            put_id(id::BOOL);
            out.push(u8::from(*v));
        }
        Value::String(v) => {
            put_id(id::STRING);
            put_string(out, v);
        }
        Value::Array(v) => {
            put_id(id::ARRAY);
            put_array(out, v);
        }
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    let id = match array {
        Array::U64(v) if v.iter().all(|&v| u32::try_from(v).is_ok()) => id::U32,
        Array::U64(_) => id::U64,
        Array::I64(v) if v.iter().all(|&v| i32::try_from(v).is_ok()) => id::I32,
        Array::I64(_) => id::I64,
        Array::F32(_) => id::F32,
        Array::F64(_) => id::F64,
        Array::Bool(_) => id::BOOL,
        Array::String(_) => id::STRING,
        Array::Array(_) => id::ARRAY,
    };
    out.extend(id.to_le_bytes());
    put_len(out, array.len());
    match array {
        Array::U64(v) if id == id::U32 => {
            v.iter().for_each(|&v| out.extend((v as u32).to_le_bytes()))
        }
        Array::U64(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::I64(v) if id == id::I32 => {
            v.iter().for_each(|&v| out.extend((v as i32).to_le_bytes()))
        }
        Array::I64(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::F32(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::F64(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::Bool(v) => out.extend(v.iter().map(|&v| u8::from(v))),
        Array::String(v) => v.iter().for_each(|v| put_string(out, v)),
        Array::Array(v) => v.iter().for_each(|v| put_array(out, v)),
    }
}
