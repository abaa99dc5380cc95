//! Where a saved session goes.

use super::format::{PART_BYTES, Section, checksum};
use super::sums::{GROUP, part_header, sums};
use crate::error::{Error, Result, Status, fail, try_vec};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Takes the next bytes of a saved session.
pub type WriteFn<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// Where bytes go, in order.
pub(super) trait Output {
    fn write(&mut self, bytes: &[u8]) -> Result<()>;
}

/// A function that takes them.
pub(super) struct Callback<'a, 'f>(pub &'a mut WriteFn<'f>);

impl Output for Callback<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        (self.0)(bytes)
    }
}

/// A file that is written beside the one that it replaces in the end. Without that end, nothing is
/// left of it.
pub(super) struct NewFile {
    path: PathBuf,
    beside: PathBuf,
    /// `None` when it has taken its place.
    file: Option<File>,
}

impl NewFile {
    /// A new file in the directory of `path`.
    pub fn create(path: &Path) -> Result<NewFile> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let Some(name) = path.file_name() else {
            fail!(InvalidArgument, "{}: names no file", path.display());
        };
        // A directory is not replaced by a file.
        if path.is_dir() {
            fail!(NotAFile, "{}: is a directory", path.display());
        }
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let mut beside = name.to_owned();
            beside.push(format!(".{}-{number}.tmp", std::process::id()));
            let beside = path.with_file_name(beside);
            match OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&beside)
            {
                Ok(file) => {
                    return Ok(NewFile {
                        path: path.to_owned(),
                        beside,
                        file: Some(file),
                    });
                }
                // Left behind by a process of the same number that was killed.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && number < 1 << 20 => {}
                Err(e) => return Err(failed(&beside, "cannot be created", &e)),
            }
        }
    }

    /// Puts it in the place of the old file, when all of it is on the disk.
    pub fn replace(mut self) -> Result<()> {
        let Some(file) = self.file.take() else {
            return Ok(());
        };
        let replaced = file.sync_all().and_then(|()| {
            drop(file);
            fs::rename(&self.beside, &self.path)
        });
        if let Err(e) = replaced {
            let _ = fs::remove_file(&self.beside);
            return Err(failed(&self.path, "cannot be replaced", &e));
        }
        // The new name is on the disk when the directory is. Not every system can do that.
        let directory = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        if let Ok(directory) = File::open(directory) {
            let _ = directory.sync_all();
        }
        Ok(())
    }
}

impl Output for NewFile {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(file) = &mut self.file else {
            fail!(Internal, "a file that was closed");
        };
        file.write_all(bytes)
            .map_err(|e| failed(&self.beside, "cannot be written", &e))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = fs::remove_file(&self.beside);
        }
    }
}

fn failed(path: &Path, what: &str, e: &io::Error) -> Error {
    let status = match e.kind() {
        io::ErrorKind::NotFound => Status::FileNotFound,
        io::ErrorKind::OutOfMemory => Status::OutOfMemory,
        _ => Status::Io,
    };
    Error::new(status, format!("{} {what}: {e}", path.display()))
}

/// Cuts sections into parts with checksums.
pub(super) struct Parts<'a> {
    output: &'a mut dyn Output,
    section: Section,
    index: u32,
    /// Bytes of the section that are still to come.
    left: u64,
    /// Bytes of a part that is not whole yet.
    pending: Vec<u8>,
    written: u64,
}

impl<'a> Parts<'a> {
    pub fn new(output: &'a mut dyn Output) -> Result<Parts<'a>> {
        let mut pending = try_vec(PART_BYTES, 0u8, "a part of a saved session")?;
        pending.clear();
        Ok(Parts {
            output,
            section: Section::Settings,
            index: 0,
            left: 0,
            pending,
            written: 0,
        })
    }

    /// Writes bytes that are no part.
    pub fn raw(&mut self, bytes: &[u8]) -> Result<()> {
        self.written += bytes.len() as u64;
        self.output.write(bytes)
    }

    /// Begins a section of so many bytes.
    pub fn begin_section(&mut self, section: Section, bytes: u64) {
        self.section = section;
        self.index = 0;
        self.left = bytes;
    }

    fn part(&mut self, bytes: &[u8], sum: u64) -> Result<()> {
        let header = part_header(self.section, self.index, sum);
        self.index += 1;
        self.raw(&header)?;
        self.raw(bytes)
    }

    /// Writes the next bytes of the section.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        if bytes.len() as u64 > self.left {
            fail!(Internal, "a section of a saved session is too long");
        }
        self.left -= bytes.len() as u64;
        while !bytes.is_empty() {
            let whole = (bytes.len() / PART_BYTES).min(GROUP);
            if self.pending.is_empty() && whole > 0 {
                let (parts, rest) = bytes.split_at(whole * PART_BYTES);
                let sums = sums(self.section, self.index, parts);
                for (part, sum) in parts.chunks(PART_BYTES).zip(sums) {
                    self.part(part, sum)?;
                }
                bytes = rest;
                continue;
            }
            let n = bytes.len().min(PART_BYTES - self.pending.len());
            let (now, rest) = bytes.split_at(n);
            // Within the capacity, so nothing is allocated.
            self.pending.extend_from_slice(now);
            bytes = rest;
            if self.pending.len() == PART_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut pending = std::mem::take(&mut self.pending);
        let sum = checksum(self.section, self.index, &pending);
        let written = self.part(&pending, sum);
        pending.clear();
        self.pending = pending;
        written
    }

    /// Ends the section, of which all bytes have come.
    pub fn end_section(&mut self) -> Result<()> {
        if self.left > 0 {
            fail!(Internal, "a section of a saved session is too short");
        }
        self.flush()
    }

    /// Checks that the whole is as long as was said.
    pub fn finish(self, total: u64) -> Result<()> {
        if self.written != total {
            fail!(
                Internal,
                "a saved session of {} bytes, not {total}",
                self.written
            );
        }
        Ok(())
    }
}
