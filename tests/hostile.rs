//! Bad model files: each is refused with the right status and a message that names the culprit,
//! without a panic and without memory in the order of what the file claims.

mod common;

use common::TempDir;
use common::tiny::Tiny;
use emberlm::format::ModelFile;
use emberlm::model::Network;
use emberlm::quant::TensorType;
use emberlm::{Error, Status};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, which remembers the largest request of each thread.
struct Watching;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: both functions hand their arguments on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: the caller's promises are those of `System.alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System.alloc` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

/// Reads the file and describes its network. Fails the test if a single allocation is out of
/// proportion to the file.
fn load(bytes: &[u8]) -> Result<Network, Error> {
    LARGEST.set(0);
    let result = ModelFile::from_bytes(bytes).and_then(|file| Network::from_file(&file));
    let limit = 32 * bytes.len() + 4096;
    assert!(
        LARGEST.get() <= limit,
        "{} bytes allocated for a file of {}",
        LARGEST.get(),
        bytes.len()
    );
    result
}

fn refused(bytes: &[u8]) -> Error {
    let error = load(bytes).unwrap_err();
    assert!(!error.message.is_empty() && error.message.len() < 500);
    error
}

/// One layer with everything that a header can have, in about 3 KB.
fn small() -> Tiny {
    Tiny {
        layers: 1,
        hidden: 8,
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        ff: 8,
        vocab: 8,
        biases: true,
        rope_factors: Some(vec![1.0, 8.0]),
        rope_scaling: Some(("yarn", 4.0)),
        ty: TensorType::F16,
        ..Tiny::default()
    }
}

/// Position of the only occurrence of `text`.
fn find(bytes: &[u8], text: &str) -> usize {
    let mut found = bytes.windows(text.len()).enumerate();
    let (at, _) = found.find(|(_, w)| *w == text.as_bytes()).unwrap();
    assert!(
        !found.any(|(_, w)| w == text.as_bytes()),
        "{text} is not unique"
    );
    at
}

#[test]
fn every_truncation_is_noticed() {
    let bytes = small().bytes();
    load(&bytes).unwrap();
    let last = small().writer().tensors().last().unwrap().size as usize;
    let padding = last.next_multiple_of(32) - last;
    for len in 0..bytes.len() - padding {
        let error = refused(&bytes[..len]);
        let expected = if len == 0 {
            Status::FileEmpty
        } else {
            Status::FileTruncated
        };
        assert_eq!(error.status, expected, "{len} bytes: {error}");
    }
    for len in bytes.len() - padding..bytes.len() {
        load(&bytes[..len]).unwrap();
    }
}

#[test]
fn truncated_files_on_disk_are_refused_alike() {
    let bytes = small().bytes();
    let dir = TempDir::new("truncated");
    for len in (1..bytes.len() - 32).step_by(61) {
        let path = dir.file("short.gguf", &bytes[..len]);
        let error = ModelFile::open(&path).unwrap_err();
        assert_eq!(error.status, Status::FileTruncated, "{error}");
        assert!(error.message.contains("short.gguf"), "{error}");
    }
    let path = dir.file("whole.gguf", &bytes);
    Network::from_file(&ModelFile::open(&path).unwrap()).unwrap();
}

#[test]
fn every_flipped_byte_of_the_header_gives_a_network_or_an_error() {
    let mut bytes = small().bytes();
    let header = bytes.len() - small().data_bytes();
    let mut statuses = std::collections::HashMap::new();
    for i in 0..header {
        let original = bytes[i];
        let bits = (0..8).map(|bit| original ^ (1 << bit));
        for changed in bits.chain([0, 0x7f, 0x80, 0xff, original.wrapping_add(1)]) {
            bytes[i] = changed;
            let status = match load(&bytes) {
                Ok(_) => Status::Ok,
                Err(error) => {
                    assert!(!error.message.is_empty() && error.message.len() < 500);
                    error.status
                }
            };
            *statuses.entry(status).or_insert(0) += 1;
        }
        bytes[i] = original;
    }
    load(&bytes).unwrap();
    let possible = [
        Status::Ok,
        Status::NotGguf,
        Status::FileTruncated,
        Status::FileCorrupt,
        Status::Unsupported,
        Status::MissingKey,
        Status::MissingTensor,
        Status::ShapeMismatch,
        Status::InvalidModel,
    ];
    for status in possible {
        assert!(statuses.remove(&status) > Some(0), "{status:?} never came");
    }
    assert!(statuses.is_empty(), "unexpected: {statuses:?}");
}

#[test]
fn random_damage_gives_a_network_or_an_error() {
    let original = small().bytes();
    let header = original.len() - small().data_bytes();
    let mut random = common::tiny::Random::new(7, "damage");
    for _ in 0..5_000 {
        let mut bytes = original.clone();
        for _ in 0..1 + random.bits() % 4 {
            let at = random.bits() as usize % header;
            let end = bytes.len().min(at + 8);
            match random.bits() % 3 {
                0 => bytes[at..end].copy_from_slice(&random.bits().to_le_bytes()[..end - at]),
                1 => bytes.truncate(at + 1),
                _ => drop(bytes.drain(at..end)),
            }
            if bytes.len() < header {
                break;
            }
        }
        let _ = load(&bytes);
    }
}

#[test]
fn paths_that_are_no_files_have_their_own_status() {
    let dir = TempDir::new("paths");
    let file = dir.file("file", b"GGUF");
    let empty = dir.file("empty", b"");
    let cases = [
        (dir.path().join("absent.gguf"), Status::FileNotFound),
        (file.join("below.gguf"), Status::FileNotFound),
        (dir.path().to_owned(), Status::NotAFile),
        (empty, Status::FileEmpty),
        (file, Status::FileTruncated),
        ("nul\0inside.gguf".into(), Status::InvalidArgument),
    ];
    for (path, status) in cases {
        let error = ModelFile::open(&path).unwrap_err();
        assert_eq!(error.status, status, "{path:?}: {error}");
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(error.message.contains(name), "{error}");
    }
}

#[cfg(unix)]
#[test]
fn a_path_that_is_not_utf_8_is_a_path_all_the_same() {
    use std::os::unix::ffi::OsStrExt;
    let dir = TempDir::new("bytes");
    let path = dir
        .path()
        .join(std::ffi::OsStr::from_bytes(b"\xff\xfe.gguf"));
    assert_eq!(
        ModelFile::open(&path).unwrap_err().status,
        Status::FileNotFound
    );
    // Some file systems (of macOS) take no such names.
    if std::fs::write(&path, small().bytes()).is_ok() {
        ModelFile::open(&path).unwrap();
    }
}

#[test]
fn other_formats_and_versions_are_named() {
    let bytes = small().bytes();
    let with = |at: usize, new: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + new.len()].copy_from_slice(new);
        bytes
    };
    let cases = [
        (with(0, b"GGML"), Status::NotGguf, "GGUF"),
        (with(0, b"PK\x03\x04"), Status::NotGguf, "ZIP"),
        (with(0, b"<htm"), Status::NotGguf, "web page"),
        (
            b"version https://git-lfs.github.com/spec/v1\n".to_vec(),
            Status::NotGguf,
            "Git LFS",
        ),
        (
            b"\x40\0\0\0\0\0\0\0{\"a\":1}".to_vec(),
            Status::NotGguf,
            "safetensors",
        ),
        (with(4, &[0]), Status::NotGguf, "version 0"),
        (with(4, &[1]), Status::NotGguf, "version 1"),
        (with(4, &[4]), Status::NotGguf, "version 4"),
        (with(4, &[0, 0, 0, 3]), Status::Unsupported, "big-endian"),
    ];
    for (bytes, status, message) in cases {
        let error = refused(&bytes);
        assert_eq!(error.status, status, "{error}");
        assert!(error.message.contains(message), "{error}");
    }
}

#[test]
fn huge_counts_are_refused_before_anything_is_allocated() {
    let bytes = small().bytes();
    let architecture = find(&bytes, "general.architecture");
    let tokens = find(&bytes, "tokenizer.ggml.tokens") + "tokenizer.ggml.tokens".len();
    let types = find(&bytes, "tokenizer.ggml.token_type") + "tokenizer.ggml.token_type".len();
    let places = [
        (8, "tensors"),
        (16, "metadata keys"),
        (architecture - 8, "metadata key 0"),
        (architecture + 24, "general.architecture"),
        (tokens + 8, "tokenizer.ggml.tokens"),
        (tokens + 16, "tokenizer.ggml.tokens: element 0"),
        (types + 8, "tokenizer.ggml.token_type"),
        (find(&bytes, "token_embd.weight") - 8, "tensor 0"),
    ];
    let counts = [
        u64::MAX,
        1 << 63,
        1 << 62,
        1 << 61,
        1 << 60,
        1 << 32,
        1 << 31,
        5000,
    ];
    for (at, message) in places {
        for count in counts {
            let mut bytes = bytes.clone();
            bytes[at..at + 8].copy_from_slice(&count.to_le_bytes());
            let error = refused(&bytes);
            assert_eq!(error.status, Status::FileTruncated, "{error}");
            assert!(error.message.contains(message), "{error}");
            assert!(error.message.contains(&count.to_string()), "{error}");
        }
    }
}

#[test]
fn metadata_beyond_the_limits_is_refused() {
    // Two million keys, as far as the size of the file goes.
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(0u64.to_le_bytes());
    bytes.extend((2u64 << 20).to_le_bytes());
    bytes.resize(32 << 20, 0);
    let error = refused(&bytes);
    assert_eq!(error.status, Status::Unsupported);
    assert!(error.message.contains("2097152 metadata keys"), "{error}");
}

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
        .check(FileCorrupt, "tensor t");
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
        (16, "IQ2_XXS"),
        (26, "I32"),
        (28, "F64"),
        (31, "Q4_0_4_4"),
        (34, "TQ1_0"),
        (40, "NVFP4"),
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
