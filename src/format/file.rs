//! Open files: read at any offset by any thread, mapped, and known again.
//!
//! Whatever the library wants to know while it loads, it reads: a read beyond the end of a file is
//! an error, while an access to a mapping there ends the process.

use crate::error::{Error, Result, Status, fail};
use memmap2::Mmap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A regular file that is open.
pub(super) struct OpenFile {
    file: File,
    path: PathBuf,
    len: usize,
    modified: Option<SystemTime>,
    identity: system::Identity,
}

impl OpenFile {
    /// Opens a regular, non-empty file. Errors do not name the path.
    pub(super) fn open(path: &Path) -> Result<OpenFile> {
        // Asked before opening, because opening a pipe would wait for a writer.
        let kind = fs::metadata(path).map_err(|e| io_error("cannot open", &e))?;
        if !kind.is_file() {
            let what = if kind.is_dir() {
                "a directory"
            } else {
                "not a regular file"
            };
            fail!(NotAFile, "is {what}");
        }
        let file = File::open(path).map_err(|e| io_error("cannot open", &e))?;
        let facts = file
            .metadata()
            .map_err(|e| io_error("cannot read the size", &e))?;
        if facts.len() == 0 {
            fail!(FileEmpty, "the file has no bytes");
        }
        let Ok(len) = usize::try_from(facts.len()) else {
            fail!(
                Unsupported,
                "the file's {} bytes exceed the address space of this process",
                facts.len()
            );
        };
        Ok(OpenFile {
            path: path.to_owned(),
            len,
            modified: facts.modified().ok(),
            identity: system::identity(&facts),
            file,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file when it was opened.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Fills `out` with the bytes from `offset` on. `FileTruncated` if the file has become shorter,
    /// else `Io`. Errors do not name the path.
    pub(super) fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let (mut at, mut rest) = (offset as u64, &mut out[..]);
        while !rest.is_empty() {
            match system::read_at(&self.file, at, rest) {
                Ok(0) => fail!(
                    FileTruncated,
                    "the file had {} bytes when it was opened, but ends at byte {at} now",
                    self.len
                ),
                Ok(n) => {
                    at += n as u64;
                    rest = &mut rest[n..];
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(io_error(&format!("cannot read at byte {at}"), &e)),
            }
        }
        Ok(())
    }

    /// The whole file as memory, of which nothing is read.
    pub(super) fn map(&self) -> Result<Mmap> {
        // SAFETY: the map is private to this crate and only read, as bytes and without assuming that
        // two reads agree. That nobody truncates the file meanwhile is the caller's side of
        // `Access::Mapped`.
        unsafe { memmap2::MmapOptions::new().len(self.len).map(&self.file) }
            .map_err(|e| io_error("cannot map", &e))
    }

    /// Whether the open file is as it was when it was opened: `FileTruncated` if it is shorter,
    /// `FileCorrupt` if its size or its time of modification differ. Errors name the path. One system
    /// call.
    pub(super) fn check_content(&self) -> Result<()> {
        let path = self.path.display();
        let facts = match self.file.metadata() {
            Ok(facts) => facts,
            Err(e) => {
                let e = io_error("cannot read the size", &e);
                return Err(Error::new(e.status, format!("{path}: {}", e.message)));
            }
        };
        let len = facts.len();
        if len < self.len as u64 {
            fail!(
                FileTruncated,
                "{path}: the file had {} bytes when it was opened, but has {len} now",
                self.len
            );
        }
        if len != self.len as u64 || facts.modified().ok() != self.modified {
            fail!(
                FileCorrupt,
                "{path}: the file was changed after it was opened"
            );
        }
        Ok(())
    }

    /// [`check_content`](Self::check_content), and `FileCorrupt` if another file has taken the
    /// path: files that belong together might then be of two versions.
    pub(super) fn check(&self) -> Result<()> {
        self.check_content()?;
        match fs::metadata(&self.path) {
            Ok(facts) if system::identity(&facts) != self.identity => fail!(
                FileCorrupt,
                "{}: the file was replaced by another one while it was loaded",
                self.path.display()
            ),
            // One that was only deleted is still whole.
            _ => Ok(()),
        }
    }
}

impl std::fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} bytes)", self.path.display(), self.len)
    }
}

/// What kind of failure an error of the system is.
fn io_error(what: &str, error: &io::Error) -> Error {
    use io::ErrorKind::{InvalidInput, IsADirectory, NotADirectory, NotFound, OutOfMemory};
    let status = match error.kind() {
        NotFound | NotADirectory => Status::FileNotFound,
        IsADirectory => Status::NotAFile,
        InvalidInput => Status::InvalidArgument,
        OutOfMemory => Status::OutOfMemory,
        _ => Status::Io,
    };
    Error::new(status, format!("{what}: {error}"))
}

#[cfg(unix)]
mod system {
    use std::fs::{File, Metadata};
    use std::io;
    use std::os::unix::fs::{FileExt, MetadataExt};

    /// Device and inode.
    pub(super) type Identity = (u64, u64);

    pub(super) fn identity(facts: &Metadata) -> Identity {
        (facts.dev(), facts.ino())
    }

    pub(super) fn read_at(file: &File, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        file.read_at(out, offset)
    }
}

#[cfg(windows)]
mod system {
    use std::fs::{File, Metadata};
    use std::io;
    use std::os::windows::fs::{FileExt, MetadataExt};

    /// Creation time: an open file cannot be replaced there.
    pub(super) type Identity = u64;

    pub(super) fn identity(facts: &Metadata) -> Identity {
        facts.creation_time()
    }

    pub(super) fn read_at(file: &File, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        // Moves the file's cursor, which nobody uses.
        file.seek_read(out, offset)
    }
}
