//! Files that break one rule of the format each: the reader names the rule and the place.

mod common;

use common::TempDir;
use emberlm::Status;
use emberlm::format::ModelFile;

/// A header built by hand: metadata and tensor descriptions as raw bytes.
#[derive(Clone, Default)]
struct Raw {
    keys: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: Vec<u8>,
}

impl Raw {
    /// Adds a key with a type id and the bytes of its value.
    fn key(mut self, key: &[u8], id: u32, value: &[u8]) -> Raw {
        let mut bytes = (key.len() as u64).to_le_bytes().to_vec();
        bytes.extend(key);
        bytes.extend(id.to_le_bytes());
        bytes.extend(value);
        self.keys.push(bytes);
        self
    }

    fn tensor(mut self, name: &[u8], dims: &[u64], ty: u32, offset: u64) -> Raw {
        let mut bytes = (name.len() as u64).to_le_bytes().to_vec();
        bytes.extend(name);
        bytes.extend((dims.len() as u32).to_le_bytes());
        bytes.extend(dims.iter().flat_map(|d| d.to_le_bytes()));
        bytes.extend(ty.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        self.tensors.push(bytes);
        self
    }

    /// Sets the number of bytes after the padded header.
    fn data(mut self, len: usize) -> Raw {
        self.data = vec![0; len];
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.keys.len() as u64).to_le_bytes());
        bytes.extend(self.keys.concat());
        bytes.extend(self.tensors.concat());
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(&self.data);
        bytes
    }

    fn check(&self, status: Status, message: &str) {
        let error = ModelFile::from_bytes(&self.bytes()).unwrap_err();
        assert_eq!(error.status, status, "{error}");
        assert!(error.message.contains(message), "{error}");
    }

    fn check_good(&self) {
        ModelFile::from_bytes(&self.bytes()).unwrap();
    }
}

const F32: u32 = 0;
const Q4_K: u32 = 12;

#[test]
fn keys_and_values_that_break_the_format_are_refused() {
    use Status::{FileCorrupt, Unsupported};
    let raw = Raw::default;
    let text = |bytes: &[u8]| [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat();
    raw().key(b"k", 0, &[1]).check_good();
    let twice = raw().key(b"k", 0, &[1]).key(b"k", 0, &[1]);
    twice.check(FileCorrupt, "key k appears a second time");
    raw().key(b"", 0, &[1]).check(FileCorrupt, "is empty");
    raw()
        .key(b"\xff", 0, &[1])
        .check(FileCorrupt, "not valid UTF-8");
    raw()
        .key(b"a\nb", 0, &[1])
        .check(FileCorrupt, "control character");
    raw()
        .key(b"a\0", 0, &[1])
        .check(FileCorrupt, "control character");
    raw().key(&[b'k'; 65_535], 0, &[1]).check_good();
    let long = raw().key(&[b'k'; 65_536], 0, &[1]);
    long.check(FileCorrupt, "has 65536 bytes; at most 65535");
    raw()
        .key(b"k", 13, &[0; 8])
        .check(FileCorrupt, "key k: unknown value type 13");
    raw()
        .key(b"k", 7, &[2])
        .check(FileCorrupt, "boolean at byte 37 is 2");
    raw().key(b"k", 8, &text(b"ab\xc3")).check(
        FileCorrupt,
        "key k: the text at byte 45 is not valid UTF-8 from byte 47",
    );

    let strings = [
        8u32.to_le_bytes().to_vec(),
        2u64.to_le_bytes().to_vec(),
        text(b"fine"),
        text(b"\x80"),
    ];
    raw()
        .key(b"k", 9, &strings.concat())
        .check(FileCorrupt, "key k: element 1: the text at byte");
    // Valid together, but not each by itself.
    let halves = [
        8u32.to_le_bytes().to_vec(),
        2u64.to_le_bytes().to_vec(),
        text(b"a\xc3"),
        text(b"\xa9"),
    ];
    raw().key(b"k", 9, &halves.concat()).check(
        FileCorrupt,
        "key k: element 0: the text at byte 57 is not valid UTF-8 from byte 58 on",
    );
    let unknown = [13u32.to_le_bytes().to_vec(), 0u64.to_le_bytes().to_vec()].concat();
    raw()
        .key(b"k", 9, &unknown)
        .check(FileCorrupt, "unknown element type 13");
    let bools = [
        7u32.to_le_bytes().to_vec(),
        3u64.to_le_bytes().to_vec(),
        vec![0, 1, 9],
    ]
    .concat();
    raw()
        .key(b"k", 9, &bools)
        .check(FileCorrupt, "element 2: the boolean");

    // Arrays of one array each, and a number in the innermost.
    let nested = |depth: usize| {
        let outer = [9u32.to_le_bytes().to_vec(), 1u64.to_le_bytes().to_vec()].concat();
        let mut bytes = outer.repeat(depth - 1);
        bytes.extend(0u32.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.push(5);
        bytes
    };
    raw().key(b"k", 9, &nested(4)).check_good();
    for depth in [5, 100, 100_000] {
        let deep = raw().key(b"k", 9, &nested(depth));
        deep.check(Unsupported, "arrays nest deeper than 4");
    }

    for bad in [0u32, 3, 33, 1 << 21, 1 << 31, u32::MAX] {
        let raw = raw().key(b"general.alignment", 4, &bad.to_le_bytes());
        raw.check(FileCorrupt, &format!("general.alignment is {bad}"));
    }
    let signed = raw().key(b"general.alignment", 5, &32i32.to_le_bytes());
    signed.check(FileCorrupt, "general.alignment is a signed integer");
}

#[test]
fn tensors_that_break_the_format_are_refused() {
    use Status::{FileCorrupt, FileTruncated, Unsupported};
    let raw = Raw::default;
    let one = |dims: &[u64], ty: u32, offset: u64| raw().tensor(b"t", dims, ty, offset);
    one(&[8], F32, 0).data(32).check_good();
    one(&[2, 2, 2, 1], F32, 0).data(32).check_good();

    one(&[], F32, 0)
        .data(32)
        .check(FileCorrupt, "tensor t has 0 dimensions");
    one(&[1; 5], F32, 0)
        .data(32)
        .check(FileCorrupt, "tensor t has 5 dimensions");
    one(&[0], F32, 0)
        .data(32)
        .check(FileCorrupt, "dimension 0 of tensor t is 0");
    one(&[8, 0], F32, 0)
        .data(32)
        .check(FileCorrupt, "dimension 1 of tensor t is 0");
    one(&[1 << 32, 1 << 32], F32, 0)
        .data(32)
        .check(FileCorrupt, "dimension 1 of tensor t is 4294967296");
    one(&[1 << 63, 1], F32, 0)
        .data(32)
        .check(FileCorrupt, "tensor t");
    one(&[u64::MAX], F32, 0)
        .data(32)
        .check(FileCorrupt, "dimension 0 of tensor t is -1");
    one(&[8, (-4i64).cast_unsigned()], F32, 0)
        .data(32)
        .check(FileCorrupt, "dimension 1 of tensor t is -4");
    one(&[1 << 40], F32, 0)
        .data(32)
        .check(FileTruncated, "tensor t takes bytes 64 to 4398046511168");
    one(&[100], Q4_K, 0).data(96).check(
        FileCorrupt,
        "rows of 100 elements, which is no multiple of the 256 of a Q4_K block",
    );
    one(&[16, 16], Q4_K, 0)
        .data(160)
        .check(FileCorrupt, "rows of 16 elements");

    one(&[8], F32, 4).data(64).check(
        FileCorrupt,
        "offset 4, which is no multiple of the alignment 32",
    );
    one(&[8], F32, 32)
        .data(64)
        .check(FileCorrupt, "32 unexplained bytes lie before tensor t");
    one(&[8], F32, 0).data(31).check(
        FileTruncated,
        "tensor t takes bytes 64 to 96, but the file ends at byte 95",
    );
    one(&[8], F32, 0).data(33).check(
        FileCorrupt,
        "1 unexplained bytes follow the last tensor at byte 96",
    );
    one(&[8], F32, 1 << 40)
        .data(32)
        .check(FileTruncated, "tensor t");
    one(&[8], F32, u64::MAX - 31)
        .data(32)
        .check(FileCorrupt, "tensor t");
    one(&[8], F32, 1 << 63)
        .data(32)
        .check(FileTruncated, "tensor t");

    let two =
        |a: &[u8], b: &[u8], offset| raw().tensor(a, &[16], F32, 0).tensor(b, &[8], F32, offset);
    two(b"a", b"b", 64).data(96).check_good();
    two(b"a", b"a", 64)
        .data(96)
        .check(FileCorrupt, "tensor a appears twice");
    two(b"a", b"b", 32)
        .data(96)
        .check(FileCorrupt, "tensor b starts at byte 128, inside tensor a");
    two(b"a", b"b", 0)
        .data(96)
        .check(FileCorrupt, "inside tensor");
    two(b"a", b"b", 96)
        .data(128)
        .check(FileCorrupt, "32 unexplained bytes lie before tensor b");
    two(b"a", b"b", 128)
        .data(128)
        .check(FileTruncated, "tensor b takes bytes");

    // The tensor that is out of place, and not the one that it leaves a hole before.
    let three = |offset| {
        raw()
            .tensor(b"a", &[8], F32, 0)
            .tensor(b"b", &[8], F32, offset)
            .tensor(b"c", &[8], F32, 64)
            .data(96)
    };
    three(32).check_good();
    three(1 << 30).check(FileTruncated, "tensor b takes bytes");
    three(0).check(FileCorrupt, "inside tensor");
    three(64).check(FileCorrupt, "tensor b");
    three(36).check(FileCorrupt, "tensor b has offset 36");
    three(u64::MAX - 31).check(FileCorrupt, "tensor b ends beyond");

    raw()
        .tensor(b"", &[8], F32, 0)
        .data(32)
        .check(FileCorrupt, "tensor 0: the name at byte 24 is empty");
    raw()
        .tensor(b"\xc3\x28", &[8], F32, 0)
        .data(32)
        .check(FileCorrupt, "tensor 0: the name: the text");
    raw()
        .tensor(&[b'n'; 255], &[8], F32, 0)
        .data(32)
        .check_good();
    raw()
        .tensor(&[b'n'; 256], &[8], F32, 0)
        .data(32)
        .check(FileCorrupt, "has 256 bytes; at most 255");

    let types = [
        (4, "Q4_2"),
        (5, "Q4_3"),
        (9, "Q8_1"),
        (15, "Q8_K"),
        (26, "I32"),
        (28, "F64"),
        (31, "Q4_0_4_4"),
        (41, "number 41"),
        (u32::MAX, "number 4294967295"),
    ];
    for (id, name) in types {
        let error = ModelFile::from_bytes(&one(&[256], id, 0).data(1024).bytes()).unwrap_err();
        assert_eq!(error.status, Unsupported);
        assert!(error.message.contains("tensor t "), "{error}");
        assert!(error.message.contains(name), "{error}");
    }
}

/// Metadata that would take more memory than they are worth, in files that need no space on the
/// disk.
#[test]
fn metadata_take_bounded_memory() {
    let dir = TempDir::new("metadata-memory");
    let path = dir.path().join("huge.gguf");
    let huge = |key: &[u8], header: &[&[u8]], len: u64| {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.extend((key.len() as u64).to_le_bytes());
        bytes.extend(key);
        bytes.extend(header.concat());
        std::fs::write(&path, &bytes).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(bytes.len() as u64 + len).unwrap();
        let error = ModelFile::open(&path).unwrap_err();
        assert_eq!(error.status, Status::Unsupported, "{error}");
        let key = str::from_utf8(key).unwrap();
        assert!(error.message.contains(key), "{error}");
        error.message
    };
    let (string, array) = (8u32.to_le_bytes(), 9u32.to_le_bytes());
    let before = peak_memory();
    // A text of 1 GiB.
    let len = 1u64 << 30;
    let message = huge(b"general.name", &[&string, &len.to_le_bytes()], len);
    assert!(message.contains("bytes of memory"), "{message}");
    // 2^26 empty strings.
    let count = 1u64 << 26;
    let tokens = &[&array[..], &string, &count.to_le_bytes()];
    let message = huge(b"tokenizer.ggml.tokens", tokens, 8 * count);
    assert!(message.contains("at most 2097152"), "{message}");
    // 2^28 small numbers, which become 8 bytes each, and as many booleans.
    let count = 1u64 << 28;
    for ty in [0u32, 7] {
        let numbers = &[&array[..], &ty.to_le_bytes(), &count.to_le_bytes()];
        huge(b"tokenizer.ggml.token_type", numbers, count);
    }
    if let (Some(before), Some(after)) = (before, peak_memory()) {
        assert!(after - before < 200 << 20, "{before} to {after}");
    }
}

/// The most memory that this process had resident, where the system tells.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib << 10)
}
