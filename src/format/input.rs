//! Where the bytes of a model file are.

use super::file::OpenFile;
use crate::error::{Error, Result, fail};
use crate::memory::Pages;
use memmap2::Mmap;
use std::path::Path;
use std::sync::Arc;

/// How the bytes of tensors are reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Files are mapped: nothing is read before it is used, and the system can drop the pages and
    /// read them again. The files must not become shorter while a tensor of them is in use, because
    /// the system stops a process that touches a mapping beyond the end of its file.
    #[default]
    Mapped,
    /// Files are read, and a file that becomes shorter is an error. A tensor's bytes are there when
    /// it has been [made](super::ModelFile::make).
    Read,
}

/// Bytes in memory that belong to somebody else, who wants to know when they are not needed any more: when
/// this is dropped.
pub trait Lent: Send + Sync {
    /// All of them, the same at any time.
    fn bytes(&self) -> &[u8];
}

/// A model file that is read by somebody else's means.
pub trait ReadAt: Send + Sync {
    /// Number of bytes.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `out` with the bytes from `offset` on, which are all among those of `len`. May be called from many threads
    /// at once.
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<()>;
}

/// The bytes of one model file.
pub(super) enum Input {
    /// In memory.
    Memory(Pages),
    /// In memory of somebody else's.
    Lent(Arc<dyn Lent>),
    /// Where somebody else reads them.
    Reader(Arc<dyn ReadAt>),
    /// In a file, which may be mapped besides.
    File {
        file: Arc<OpenFile>,
        map: Option<Mmap>,
    },
}

impl Input {
    /// Opens a file. Nothing of it is read. Errors do not name the path.
    pub(super) fn open(path: &Path, access: Access) -> Result<Input> {
        let file = Arc::new(OpenFile::open(path)?);
        let map = match access {
            Access::Mapped => Some(file.map()?),
            Access::Read => None,
        };
        Ok(Input::File { file, map })
    }

    /// A copy of these bytes.
    pub(super) fn copy(bytes: &[u8]) -> Result<Input> {
        Pages::copy(bytes).map(Input::Memory)
    }

    /// Bytes of somebody else's.
    pub(super) fn lent(lent: &Arc<dyn Lent>) -> Result<Input> {
        if lent.bytes().is_empty() {
            fail!(FileEmpty, "the file has no bytes");
        }
        Ok(Input::Lent(Arc::clone(lent)))
    }

    /// What somebody else reads.
    pub(super) fn reader(reader: &Arc<dyn ReadAt>) -> Result<Input> {
        if reader.is_empty() {
            fail!(FileEmpty, "the file has no bytes");
        }
        Ok(Input::Reader(Arc::clone(reader)))
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Input::Memory(memory) => memory.bytes().len(),
            Input::Lent(lent) => lent.bytes().len(),
            Input::Reader(reader) => reader.len(),
            Input::File { file, .. } => file.len(),
        }
    }

    /// Fills `out` with the bytes from `offset` on, which must all be there: read from the file, if
    /// there is one. Errors do not name the path.
    pub(super) fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        match self {
            Input::Memory(memory) => {
                out.copy_from_slice(&memory.bytes()[offset..offset + out.len()]);
                Ok(())
            }
            Input::Lent(lent) => {
                out.copy_from_slice(&lent.bytes()[offset..offset + out.len()]);
                Ok(())
            }
            Input::Reader(reader) => reader.read(offset, out),
            Input::File { file, .. } => file.read(offset, out),
        }
    }

    /// The same for bytes of a tensor; errors name the path and the tensor.
    pub(super) fn read_of(&self, tensor: &str, offset: usize, out: &mut [u8]) -> Result<()> {
        self.read(offset, out).map_err(|e| {
            let path = self.file().map(|file| file.path().display().to_string());
            let path = path.map_or(String::new(), |path| format!("{path}: "));
            Error::new(e.status, format!("{path}tensor {tensor}: {}", e.message))
        })
    }

    /// All bytes, if they are in memory or mapped.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Input::Memory(memory) => Some(memory.bytes()),
            Input::Lent(lent) => Some(lent.bytes()),
            Input::Reader(_) => None,
            Input::File { map, .. } => map.as_deref(),
        }
    }

    pub(super) fn file(&self) -> Option<&Arc<OpenFile>> {
        match self {
            Input::Memory(_) | Input::Lent(_) | Input::Reader(_) => None,
            Input::File { file, .. } => Some(file),
        }
    }
}
