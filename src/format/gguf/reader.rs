//! A cursor over the untrusted little-endian bytes of a file, which are read, never mapped. Nothing
//! is allocated before it is known that the file is long enough for it, and all of it is accounted
//! for.

use crate::error::{Error, Result, Status, fail, try_vec};
use crate::format::input::Input;
use crate::format::{Array, Strings, Value};

/// Depth to which arrays may nest.
const MAX_NESTING: u32 = 4;

/// Memory that the metadata and the tensor descriptions of one file may take. Those of published
/// models stay below a fifth of it.
const MEMORY_LIMIT: usize = 128 << 20;

/// Most strings of an array. The largest vocabularies of published models have 2^18 tokens, and
/// 2^19 merges.
const MAX_STRINGS: usize = 1 << 21;

/// Bytes that are read at once.
const WINDOW: usize = 1 << 18;

/// Reads from the start of a file on.
pub(super) struct Reader<'a> {
    input: &'a Input,
    position: usize,
    /// The file's bytes from `window_start` on.
    window: Vec<u8>,
    window_start: usize,
    memory_left: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(input: &'a Input) -> Self {
        Reader {
            input,
            position: 0,
            window: Vec::new(),
            window_start: 0,
            memory_left: MEMORY_LIMIT,
        }
    }

    /// Offset of the next byte.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// The first bytes of the file, at most `len` of them.
    pub(super) fn head(&mut self, len: usize) -> Result<&[u8]> {
        let len = len.min(self.input.len());
        self.at(0, len)
    }

    /// `len` bytes from `start` on, which are in the file and fit the window.
    fn at(&mut self, start: usize, len: usize) -> Result<&[u8]> {
        debug_assert!(len <= WINDOW);
        let end = self.window_start + self.window.len();
        if start < self.window_start || start + len > end {
            let size = WINDOW.min(self.input.len() - start);
            if self.window.len() != size {
                self.window = Vec::new();
                self.window = try_vec(size, 0, "metadata")?;
            }
            self.window_start = start;
            self.input.read(start, &mut self.window)?;
        }
        Ok(&self.window[start - self.window_start..][..len])
    }

    /// Fails if fewer than `len` bytes follow.
    fn need(&self, len: usize) -> Result<()> {
        if len > self.input.len() - self.position {
            fail!(
                FileTruncated,
                "{len} bytes should follow at byte {}, but the file ends at byte {}",
                self.position,
                self.input.len()
            );
        }
        Ok(())
    }

    /// Calls `each` with the next `len` bytes, in pieces of a multiple of `unit` bytes.
    fn take(&mut self, len: usize, unit: usize, mut each: impl FnMut(&[u8])) -> Result<()> {
        self.need(len)?;
        let mut left = len;
        while left > 0 {
            let now = left.min(WINDOW - WINDOW % unit);
            each(self.at(self.position, now)?);
            self.position += now;
            left -= now;
        }
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        self.need(N)?;
        array.copy_from_slice(self.at(self.position, N)?);
        self.position += N;
        Ok(array)
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A 64-bit count of things that take at least `bytes_each` bytes of the file.
    pub(super) fn count(&mut self, bytes_each: usize, things: &str) -> Result<usize> {
        let at = self.position;
        let count = self.u64()?;
        let rest = self.input.len() - self.position;
        match usize::try_from(count) {
            Ok(n) if n <= rest / bytes_each => Ok(n),
            _ => fail!(
                FileTruncated,
                "{count} {things} are announced at byte {at}, but only {rest} bytes follow"
            ),
        }
    }

    /// Accounts for memory about to be allocated.
    pub(super) fn charge(&mut self, count: usize, bytes_each: usize) -> Result<()> {
        match count
            .checked_mul(bytes_each)
            .and_then(|bytes| self.memory_left.checked_sub(bytes))
        {
            Some(left) => {
                self.memory_left = left;
                Ok(())
            }
            None => fail!(
                Unsupported,
                "the metadata up to byte {} takes more than {MEMORY_LIMIT} bytes of memory",
                self.position
            ),
        }
    }

    /// An empty vector with room for `count` elements.
    fn reserve<T>(&mut self, count: usize) -> Result<Vec<T>> {
        self.charge(count, size_of::<T>())?;
        let mut v = Vec::new();
        if v.try_reserve_exact(count).is_err() {
            fail!(
                OutOfMemory,
                "metadata: {} bytes could not be allocated",
                count * size_of::<T>()
            );
        }
        Ok(v)
    }

    /// A length and that many bytes of UTF-8.
    pub(super) fn string(&mut self) -> Result<String> {
        let len = self.count(1, "bytes of text")?;
        let at = self.position;
        let mut owned = self.reserve::<u8>(len)?;
        self.take(len, 1, |bytes| owned.extend_from_slice(bytes))?;
        match String::from_utf8(owned) {
            Ok(text) => Ok(text),
            Err(e) => Err(not_utf8(at, e.utf8_error().valid_up_to())),
        }
    }

    /// A count and that many strings.
    fn strings(&mut self) -> Result<Strings> {
        let at = self.position;
        let count = self.count(8, "strings")?;
        if count > MAX_STRINGS {
            fail!(
                Unsupported,
                "{count} strings are announced at byte {at}; at most {MAX_STRINGS} are read"
            );
        }
        let start = self.position;
        let mut ends = self.reserve::<u32>(count)?;
        let mut text = Vec::new();
        for i in 0..count {
            let element = || format!("element {i}");
            let len = within(self.count(1, "bytes of text"), element)?;
            within(self.charge(len, 1), element)?;
            if text.try_reserve(len).is_err() {
                fail!(
                    OutOfMemory,
                    "element {i}: {len} bytes could not be allocated"
                );
            }
            within(
                self.take(len, 1, |bytes| text.extend_from_slice(bytes)),
                element,
            )?;
            // Below the memory limit, which is less than 4 GiB.
            ends.push(text.len() as u32);
        }
        // Checking all at once is much faster than one by one.
        Strings::from_parts(text, ends).map_err(|e| {
            let at = start + 8 * (e.index + 1) + e.start;
            let Error {
                status, message, ..
            } = not_utf8(at, e.valid);
            Error::new(status, format!("element {}: {message}", e.index))
        })
    }

    /// A string that is usable as a name in messages: not empty, at most `max` bytes, without
    /// control characters.
    pub(super) fn name(&mut self, what: &str, max: usize) -> Result<String> {
        let at = self.position;
        let name = self
            .string()
            .map_err(|e| Error::new(e.status, format!("{what}: {}", e.message)))?;
        if name.is_empty() {
            fail!(FileCorrupt, "{what} at byte {at} is empty");
        }
        if name.len() > max {
            fail!(
                FileCorrupt,
                "{what} at byte {at} has {} bytes; at most {max} are allowed",
                name.len()
            );
        }
        if name.chars().any(char::is_control) {
            fail!(FileCorrupt, "{what} at byte {at} has a control character");
        }
        Ok(name)
    }

    fn bool(&mut self) -> Result<bool> {
        let at = self.position;
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => fail!(FileCorrupt, "the boolean at byte {at} is {other}"),
        }
    }

    /// A type id and a value of that type.
    pub(super) fn value(&mut self) -> Result<Value> {
        let at = self.position;
        Ok(match self.u32()? {
            0 => Value::U64(u8::from_le_bytes(self.array()?).into()),
            1 => Value::I64(i8::from_le_bytes(self.array()?).into()),
            2 => Value::U64(u16::from_le_bytes(self.array()?).into()),
            3 => Value::I64(i16::from_le_bytes(self.array()?).into()),
            4 => Value::U64(self.u32()?.into()),
            5 => Value::I64(i32::from_le_bytes(self.array()?).into()),
            6 => Value::F32(f32::from_le_bytes(self.array()?)),
            7 => Value::Bool(self.bool()?),
            8 => Value::String(self.string()?),
            9 => Value::Array(self.value_array(1)?),
            10 => Value::U64(self.u64()?),
            11 => Value::I64(i64::from_le_bytes(self.array()?)),
            12 => Value::F64(f64::from_le_bytes(self.array()?)),
            id => fail!(FileCorrupt, "unknown value type {id} at byte {at}"),
        })
    }

    /// Element type, count and elements.
    fn value_array(&mut self, depth: u32) -> Result<Array> {
        let at = self.position;
        Ok(match self.u32()? {
            0 => Array::U64(self.numbers(u8::from_le_bytes)?),
            1 => Array::I64(self.numbers(i8::from_le_bytes)?),
            2 => Array::U64(self.numbers(u16::from_le_bytes)?),
            3 => Array::I64(self.numbers(i16::from_le_bytes)?),
            4 => Array::U64(self.numbers(u32::from_le_bytes)?),
            5 => Array::I64(self.numbers(i32::from_le_bytes)?),
            6 => Array::F32(self.numbers(f32::from_le_bytes)?),
            7 => Array::Bool(self.elements(1, Self::bool)?),
            8 => Array::String(self.strings()?),
            9 if depth == MAX_NESTING => fail!(
                Unsupported,
                "arrays nest deeper than {MAX_NESTING} at byte {at}"
            ),
            9 => Array::Array(self.elements(12, |r| r.value_array(depth + 1))?),
            10 => Array::U64(self.numbers(u64::from_le_bytes)?),
            11 => Array::I64(self.numbers(i64::from_le_bytes)?),
            12 => Array::F64(self.numbers(f64::from_le_bytes)?),
            id => fail!(FileCorrupt, "unknown element type {id} at byte {at}"),
        })
    }

    /// A count and that many numbers of `N` bytes.
    fn numbers<const N: usize, A, B: From<A>>(
        &mut self,
        decode: fn([u8; N]) -> A,
    ) -> Result<Vec<B>> {
        let count = self.count(N, "numbers")?;
        let mut v = self.reserve(count)?;
        self.take(count * N, N, |bytes| {
            let (numbers, _) = bytes.as_chunks::<N>();
            v.extend(numbers.iter().map(|&bytes| B::from(decode(bytes))));
        })?;
        Ok(v)
    }

    /// A count and that many elements of at least `bytes_each` bytes.
    fn elements<T>(
        &mut self,
        bytes_each: usize,
        mut read: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let count = self.count(bytes_each, "elements")?;
        let mut v = self.reserve(count)?;
        for i in 0..count {
            let element = read(self)
                .map_err(|e| Error::new(e.status, format!("element {i}: {}", e.message)))?;
            v.push(element);
        }
        Ok(v)
    }
}

/// The error of a text that starts at byte `at` and is UTF-8 for `valid` bytes.
fn not_utf8(at: usize, valid: usize) -> Error {
    let wrong = at + valid;
    let message = format!("the text at byte {at} is not valid UTF-8 from byte {wrong} on");
    Error::new(Status::FileCorrupt, message)
}

/// Puts the thing that was being read in front of an error's message.
pub(super) fn within<T>(result: Result<T>, what: impl FnOnce() -> String) -> Result<T> {
    result.map_err(|e| Error::new(e.status, format!("{}: {}", what(), e.message)))
}
