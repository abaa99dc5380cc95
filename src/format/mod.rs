//! Model files: bytes to checked tensors and metadata. The only code that reads untrusted bytes.
//!
//! [`ModelFile::open`] opens a GGUF file, or the safetensors files of a Hugging Face folder, and
//! reads the headers alone; a tensor's bytes are first touched by whoever uses them, in a mapping or by reading
//! ([`Access`]). Every number in the header is distrusted: counts and sizes are checked against the
//! file before anything is allocated, and the tensors must tile the file.

pub mod adapter;
mod convert;
mod file;
mod gguf;
mod huggingface;
mod input;
mod made;
mod safetensors;
mod scales;
mod strings;
mod tensor;
mod value;
pub mod writer;

pub use convert::WeightType;
pub use huggingface::TextFiles;
pub(crate) use huggingface::keys_and_values;
pub use input::{Access, Lent, ReadAt};
pub use made::read_rows;
pub use strings::Strings;
pub use tensor::{Tensor, TensorId};
pub use value::{Array, FromValue, Value};

use crate::error::{Error, Result, Status, fail};
use file::OpenFile;
use input::Input;
use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Where a model comes from.
#[derive(Clone)]
pub enum ModelSource<'a> {
    /// A GGUF file or a folder.
    Path(&'a Path),
    /// A GGUF file in memory, which is copied.
    Copied(&'a [u8]),
    /// A GGUF file in memory, which stays there as long as it is needed.
    Lent(Arc<dyn Lent>),
    /// A GGUF file that is read by somebody else's means, while the model is loaded.
    Reader(Arc<dyn ReadAt>),
}

impl ModelSource<'_> {
    /// Bytes of the model, if it has no path.
    pub fn file_bytes(&self) -> Option<usize> {
        match self {
            ModelSource::Path(_) => None,
            ModelSource::Copied(bytes) => Some(bytes.len()),
            ModelSource::Lent(lent) => Some(lent.bytes().len()),
            ModelSource::Reader(reader) => Some(reader.len()),
        }
    }
}

impl fmt::Display for ModelSource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelSource::Path(path) => path.display().fmt(f),
            ModelSource::Copied(_) | ModelSource::Lent(_) => f.write_str("a model in memory"),
            ModelSource::Reader(_) => f.write_str("a model that a callback reads"),
        }
    }
}

/// A model file (or all files of a split one, or a folder), opened and checked.
#[derive(Debug)]
pub struct ModelFile {
    /// Metadata by key. Of a split file, those of the first part.
    pub metadata: HashMap<String, Value>,
    /// Tensors by name.
    pub tensors: HashMap<Arc<str>, Tensor>,
    /// Bytes of all files together.
    pub file_bytes: u64,
    /// The files that describe the text layer of a Hugging Face folder.
    pub text_files: Option<TextFiles>,
    /// What messages call keys that come from elsewhere, by key.
    key_names: HashMap<String, String>,
    /// All files, to see whether they change.
    files: Vec<Arc<OpenFile>>,
    /// Whether its network is to be described with the head that guesses further tokens, if there is one.
    pub has_predictor: bool,
}

impl ModelFile {
    /// [`open_with`](Self::open_with) [`Access::Mapped`].
    pub fn open(path: &Path) -> Result<ModelFile> {
        ModelFile::open_with(path, Access::Mapped)
    }

    /// Opens and checks a GGUF file of version 2 or 3, or a Hugging Face folder. Of a file split by
    /// the usual naming (`name-00001-of-00003.gguf`), any part may be named, and the others are
    /// opened, too.
    ///
    /// A folder is given by its own path, its `config.json` or a safetensors file in it. It becomes
    /// what a GGUF file of the same model would be: the metadata have the names of GGUF, and so have
    /// the tensors as keys of [`tensors`](Self::tensors), while each tensor's own name is that in
    /// the folder. Those that GGUF has in another order or type are yet to be [made](Self::make).
    ///
    /// Headers are read and not mapped, whatever `access` says: only [`Tensor::bytes`] touches a
    /// mapping.
    ///
    /// Errors: `FileNotFound` (also for a missing part), `NotAFile`, `FileEmpty` and `Io`;
    /// `UnknownFormat` for other formats and versions, and for folders without a model; `FileTruncated` if the file ends early;
    /// `FileCorrupt` if it contradicts itself; `Unsupported` for big-endian files and for tensor
    /// types that the library does not know; `OutOfMemory`. Messages name the path and the key,
    /// tensor or byte offset.
    pub fn open_with(path: &Path, access: Access) -> Result<ModelFile> {
        match huggingface::Folder::of(path) {
            Some(folder) => huggingface::open(&folder, access),
            None => gguf::open(path, access),
        }
    }

    /// The same for what may have no path. There, the messages name none, and parts of a split file are
    /// `Unsupported`.
    pub fn open_source(source: &ModelSource<'_>, access: Access) -> Result<ModelFile> {
        match source {
            ModelSource::Path(path) => ModelFile::open_with(path, access),
            ModelSource::Copied(bytes) => ModelFile::from_bytes(bytes),
            ModelSource::Lent(lent) => gguf::from_input(Input::lent(lent)?),
            ModelSource::Reader(reader) => gguf::from_input(Input::reader(reader)?),
        }
    }

    /// The same for the content of one file in memory, which is copied.
    pub fn from_bytes(bytes: &[u8]) -> Result<ModelFile> {
        gguf::from_input(Input::copy(bytes)?)
    }

    /// The same for a folder in memory: the content of its `config.json` and `model.safetensors`,
    /// which is copied.
    pub fn from_folder(config: &[u8], weights: &[u8]) -> Result<ModelFile> {
        huggingface::from_parts(config, Input::copy(weights)?)
    }

    /// Whether all files are as they were when they were opened: `FileTruncated` for one that is
    /// shorter, `FileCorrupt` for one that was changed or replaced. Messages name the path.
    pub fn check_unchanged(&self) -> Result<()> {
        self.files.iter().try_for_each(|file| file.check())
    }

    /// The files that tensors are mapped from.
    pub fn mapped_files(&self) -> MappedFiles {
        let mut files: Vec<Arc<OpenFile>> = Vec::new();
        for tensor in self.tensors.values() {
            if let Some(file) = tensor.mapped_file()
                && !files.iter().any(|known| Arc::ptr_eq(known, file))
            {
                files.push(Arc::clone(file));
            }
        }
        MappedFiles(files)
    }

    /// The metadata value of this key, or `MissingKey` naming it if it is absent, of another type
    /// or out of the type's range.
    pub fn get<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T> {
        match self.find(key)? {
            Some(value) => Ok(value),
            None => fail!(MissingKey, "{} is missing", self.described(key)),
        }
    }

    /// What messages call a key that is no metadata key of the file: `config.json: key hidden_size`
    /// for `llama.embedding_length` of a folder. `None` for others.
    pub fn key_name(&self, key: &str) -> Option<&str> {
        self.key_names.get(key).map(String::as_str)
    }

    fn described(&self, key: &str) -> String {
        match self.key_name(key) {
            Some(name) => name.to_owned(),
            None => format!("metadata key {key}"),
        }
    }

    /// The metadata value of this key, or `None` if there is none. Errors: `MissingKey` naming the
    /// key if it is of another type or out of the type's range.
    pub fn find<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>> {
        let Some(value) = self.metadata.get(key) else {
            return Ok(None);
        };
        match T::from_value(value) {
            Some(value) => Ok(Some(value)),
            None => Err(wrong_type(&self.described(key), value, T::EXPECTED)),
        }
    }

    /// [`get`](Self::get) of an unsigned integer below 2^32.
    pub fn u32(&self, key: &str) -> Result<u32> {
        self.get(key)
    }

    /// [`get`](Self::get) of a floating-point number.
    pub fn f32(&self, key: &str) -> Result<f32> {
        self.get(key)
    }

    /// [`get`](Self::get) of a boolean.
    pub fn bool(&self, key: &str) -> Result<bool> {
        self.get(key)
    }

    /// [`get`](Self::get) of a string.
    pub fn str(&self, key: &str) -> Result<&str> {
        self.get(key)
    }

    /// [`get`](Self::get) of an array of strings.
    pub fn strings(&self, key: &str) -> Result<&Strings> {
        self.get(key)
    }

    /// The tensor of this name, or `MissingTensor`.
    pub fn tensor(&self, name: &str) -> Result<&Tensor> {
        match self.tensors.get(name) {
            Some(tensor) => Ok(tensor),
            None => fail!(MissingTensor, "tensor {name} is missing"),
        }
    }
}

fn wrong_type(what: &str, value: &Value, expected: &str) -> Error {
    let number = match value {
        Value::U64(v) => format!(" ({v})"),
        Value::I64(v) => format!(" ({v})"),
        _ => String::new(),
    };
    Error::new(
        Status::MissingKey,
        format!(
            "{what} is {}{number}; it must be {expected}",
            value.type_name()
        ),
    )
}

/// Files that are mapped, and must not become shorter as long as they are.
#[derive(Debug, Default)]
pub struct MappedFiles(Vec<Arc<OpenFile>>);

impl MappedFiles {
    /// Whether all are as they were when they were opened: `FileTruncated` for one that is shorter,
    /// `FileCorrupt` for one that was changed. Messages name the path. One system call per file.
    pub fn check(&self) -> Result<()> {
        self.0.iter().try_for_each(|file| file.check_content())
    }
}
