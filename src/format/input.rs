//! Where the bytes of a model file are.

use super::file::OpenFile;
use crate::error::{Error, Result};
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

/// The bytes of one model file.
pub(super) enum Input {
    /// In memory.
    Memory(Pages),
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

    pub(super) fn len(&self) -> usize {
        match self {
            Input::Memory(memory) => memory.bytes().len(),
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
            Input::File { map, .. } => map.as_deref(),
        }
    }

    pub(super) fn file(&self) -> Option<&Arc<OpenFile>> {
        match self {
            Input::Memory(_) => None,
            Input::File { file, .. } => Some(file),
        }
    }
}
