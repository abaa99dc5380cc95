//! Where a saved session comes from. Nothing of it is believed before its checksum was compared.

use super::format::{HEADER_BYTES, PART_BYTES, PART_HEADER_BYTES, Section, checksum};
use super::sums::{GROUP, check, sums};
use crate::backend::StateSource;
use crate::error::{Error, Result, Status, fail, try_vec};
use crate::threads;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Fills the front of a buffer with the next bytes of a saved session and returns how many those
/// are; 0 at the end.
pub type ReadFn<'a> = dyn FnMut(&mut [u8]) -> Result<usize> + 'a;

/// Most threads that read a file.
const THREADS: usize = 8;

/// A saved session that is read from its beginning.
pub(super) struct Input<'a> {
    from: From<'a>,
    /// Bytes read.
    at: u64,
    section: Section,
    index: u32,
    /// Bytes of the section that are not in `part` yet.
    left: u64,
    /// The part that was read last, and how much of it was used.
    part: Vec<u8>,
    used: usize,
}

enum From<'a> {
    File { file: File, len: u64 },
    Callback(&'a mut ReadFn<'a>),
}

/// Reads at a place of a file, without moving it.
#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, bytes, at)
}

/// Reads at a place of a file. It moves, which nothing here depends on.
#[cfg(windows)]
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, bytes, at)
}

/// Fills `bytes` from a place of a file on, as far as it goes.
fn read_all_at(file: &File, bytes: &mut [u8], at: u64) -> Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match read_at(file, &mut bytes[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => fail!(Io, "the saved session cannot be read: {e}"),
        }
    }
    Ok(done)
}

fn truncated<T>(at: u64) -> Result<T> {
    fail!(FileTruncated, "the saved session ends at byte {at}")
}

impl<'a> Input<'a> {
    fn new(from: From<'a>) -> Input<'a> {
        Input {
            from,
            at: 0,
            section: Section::Settings,
            index: 0,
            left: 0,
            part: Vec::new(),
            used: 0,
        }
    }

    /// A file.
    pub fn open(path: &Path) -> Result<Input<'static>> {
        let failed = |e: io::Error| {
            let status = match e.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Status::FileNotFound,
                _ => Status::Io,
            };
            Error::new(status, format!("{} cannot be opened: {e}", path.display()))
        };
        // Asked before opening, because opening a pipe would wait for a writer.
        let kind = std::fs::metadata(path).map_err(failed)?;
        if !kind.is_file() {
            fail!(NotAFile, "{} is not a regular file", path.display());
        }
        let file = File::open(path).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        if len == 0 {
            fail!(FileEmpty, "{} has no bytes", path.display());
        }
        Ok(Input::new(From::File { file, len }))
    }

    /// A function that gives the bytes.
    pub fn callback(read: &'a mut ReadFn<'a>) -> Input<'a> {
        Input::new(From::Callback(read))
    }

    /// Reads bytes that are no part, as far as there are any; how many.
    pub fn raw(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let done = match &mut self.from {
            From::File { file, .. } => read_all_at(file, bytes, self.at)?,
            From::Callback(read) => {
                let mut done = 0;
                while done < bytes.len() {
                    match read(&mut bytes[done..])? {
                        0 => break,
                        n if n > bytes.len() - done => fail!(
                            InvalidArgument,
                            "the callback has read {n} bytes where {} were asked for",
                            bytes.len() - done
                        ),
                        n => done += n,
                    }
                }
                done
            }
        };
        self.at += done as u64;
        Ok(done)
    }

    fn exactly(&mut self, bytes: &mut [u8]) -> Result<()> {
        match self.raw(bytes)? == bytes.len() {
            true => Ok(()),
            false => truncated(self.at),
        }
    }

    /// Compares the length of the whole, where it is known.
    pub fn expect(&self, total: u64) -> Result<()> {
        match self.from {
            From::File { len, .. } if len < total => truncated(len),
            From::File { len, .. } if len > total => fail!(
                FileCorrupt,
                "the saved session has {len} bytes, but its header says {total}"
            ),
            _ => Ok(()),
        }
    }

    /// Begins a section of so many bytes; the one before has ended.
    pub fn section(&mut self, section: Section, bytes: u64) {
        self.section = section;
        self.index = 0;
        self.left = bytes;
        self.part.clear();
        self.used = 0;
    }

    /// Fills `bytes` with the next ones of the section.
    pub fn next(&mut self, mut bytes: &mut [u8]) -> Result<()> {
        while !bytes.is_empty() {
            if self.used == self.part.len() {
                let whole = bytes.len().min(self.left as usize) / PART_BYTES;
                if whole > 0 {
                    let (now, later) = bytes.split_at_mut(whole * PART_BYTES);
                    self.whole_parts(now)?;
                    bytes = later;
                    continue;
                }
                self.next_part()?;
            }
            let n = bytes.len().min(self.part.len() - self.used);
            bytes[..n].copy_from_slice(&self.part[self.used..self.used + n]);
            self.used += n;
            bytes = &mut bytes[n..];
        }
        Ok(())
    }

    /// Reads the next part to `part`.
    fn next_part(&mut self) -> Result<()> {
        let n = (self.left as usize).min(PART_BYTES);
        if n == 0 {
            fail!(FileCorrupt, "a section of the saved session is too short");
        }
        let mut header = [0u8; PART_HEADER_BYTES];
        self.exactly(&mut header)?;
        let mut part = std::mem::take(&mut self.part);
        if part.len() < n {
            part = try_vec(n, 0u8, "a part of a saved session")?;
        }
        part.truncate(n);
        let read = self.exactly(&mut part);
        self.part = part;
        read?;
        let sum = checksum(self.section, self.index, &self.part);
        check(self.section, self.index, sum, &header)?;
        self.used = 0;
        self.index += 1;
        self.left -= n as u64;
        Ok(())
    }

    /// Reads parts of full length straight to their place.
    fn whole_parts(&mut self, bytes: &mut [u8]) -> Result<()> {
        let n = bytes.len() / PART_BYTES;
        match &self.from {
            From::File { file, .. } if n > 1 => {
                read_together(file, self.at, self.section, self.index, bytes)?;
                self.at += (n * (PART_HEADER_BYTES + PART_BYTES)) as u64;
            }
            _ => {
                let mut first = self.index;
                for group in bytes.chunks_mut(GROUP * PART_BYTES) {
                    let mut headers = [[0u8; PART_HEADER_BYTES]; GROUP];
                    for (part, header) in group.chunks_mut(PART_BYTES).zip(&mut headers) {
                        self.exactly(header)?;
                        self.exactly(part)?;
                    }
                    let sums = sums(self.section, first, group);
                    for (header, sum) in headers.iter().zip(sums).take(group.len() / PART_BYTES) {
                        check(self.section, first, sum, header)?;
                        first += 1;
                    }
                }
            }
        }
        self.index += n as u32;
        self.left -= bytes.len() as u64;
        Ok(())
    }

    /// Checks that nothing is left of the last section.
    pub fn finish(self) -> Result<()> {
        if self.left > 0 || self.used < self.part.len() {
            fail!(Internal, "a saved session was not read to its end");
        }
        Ok(())
    }
}

/// Reads parts of full length that begin at byte `at`, by several threads.
fn read_together(
    file: &File,
    at: u64,
    section: Section,
    first: u32,
    bytes: &mut [u8],
) -> Result<()> {
    let stride = (PART_HEADER_BYTES + PART_BYTES) as u64;
    let parts: Vec<Mutex<&mut [u8]>> = bytes.chunks_exact_mut(PART_BYTES).map(Mutex::new).collect();
    let next = AtomicUsize::new(0);
    let failure: Mutex<Option<(usize, Error)>> = Mutex::new(None);
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(Ok(mut part)) = parts.get(i).map(|p| p.lock()) else {
                return;
            };
            let place = at + i as u64 * stride;
            let mut header = [0u8; PART_HEADER_BYTES];
            let mut read = || -> Result<()> {
                for (to, place) in [
                    (&mut header[..], place),
                    (&mut part[..], place + PART_HEADER_BYTES as u64),
                ] {
                    let n = read_all_at(file, to, place)?;
                    if n < to.len() {
                        return truncated(place + n as u64);
                    }
                }
                let index = first + i as u32;
                check(section, index, checksum(section, index, &part), &header)
            };
            if let Err(e) = read() {
                next.store(parts.len(), Ordering::Relaxed);
                if let Ok(mut failure) = failure.lock() {
                    // The first of several, so that the message does not depend on the threads.
                    if failure.as_ref().is_none_or(|(at, _)| i < *at) {
                        *failure = Some((i, e));
                    }
                }
                return;
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let others = cores.min(THREADS).min(parts.len()).saturating_sub(1);
    // Fewer threads take longer.
    threads::beside("ember-restore", others, &work, |_| work());
    match failure.into_inner() {
        Ok(None) => Ok(()),
        Ok(Some((_, e))) => Err(e),
        Err(_) => fail!(Internal, "a thread that read a saved session has panicked"),
    }
}

impl StateSource for Input<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.next(bytes)
    }
}

const _: () = assert!(HEADER_BYTES.is_multiple_of(8));
