//! Files and buffers as read-only memory maps.

use crate::error::{Error, Result, Status, fail};
use memmap2::{Mmap, MmapMut};
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Maps a regular, non-empty file. Nothing of it is read. Errors do not name the path.
pub(super) fn open(path: &Path) -> Result<Mmap> {
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
    let len = file
        .metadata()
        .map_err(|e| io_error("cannot read the size", &e))?
        .len();
    if len == 0 {
        fail!(FileEmpty, "the file has no bytes");
    }
    let Ok(len) = usize::try_from(len) else {
        fail!(
            Unsupported,
            "the file's {len} bytes exceed the address space of this process"
        );
    };
    // SAFETY: the map is private to this crate and only read, as bytes and without assuming that two
    // reads agree on more than what was checked: all bounds come from values copied out of the map
    // once. That nobody truncates the file meanwhile is the caller's side of `ModelFile::open`.
    unsafe { memmap2::MmapOptions::new().len(len).map(&file) }
        .map_err(|e| io_error("cannot map", &e))
}

/// A map that holds a copy of `bytes`.
pub(super) fn copy(bytes: &[u8]) -> Result<Mmap> {
    if bytes.is_empty() {
        fail!(FileEmpty, "the file has no bytes");
    }
    let mut map = anonymous(bytes.len())?;
    map.copy_from_slice(bytes);
    read_only(map)
}

/// Memory of `len` bytes, at least 1, all 0. No page of it is taken before it is written.
pub(super) fn anonymous(len: usize) -> Result<MmapMut> {
    MmapMut::map_anon(len).map_err(|e| out_of_memory(len, &e))
}

/// The same memory, for reading only.
pub(super) fn read_only(map: MmapMut) -> Result<Mmap> {
    let len = map.len();
    map.make_read_only().map_err(|e| out_of_memory(len, &e))
}

fn out_of_memory(len: usize, error: &io::Error) -> Error {
    Error::new(
        Status::OutOfMemory,
        format!("model: {len} bytes could not be allocated: {error}"),
    )
}

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
