//! Bad model files: each is refused with the right status and a message that names the culprit,
//! without a panic and without memory in the order of what the file claims.

// It has an allocator of its own, which the C library has, too.
#![cfg(not(feature = "c-library"))]

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
    assert!(!error.message.is_empty() && error.message.len() < 1000);
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
                    assert!(!error.message.is_empty() && error.message.len() < 1000);
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
        Status::UnknownFormat,
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
        (dir.path().to_owned(), Status::UnknownFormat),
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
        (with(0, b"GGML"), Status::UnknownFormat, "GGUF"),
        (with(0, b"PK\x03\x04"), Status::UnknownFormat, "ZIP"),
        (with(0, b"<htm"), Status::UnknownFormat, "web page"),
        (
            b"version https://git-lfs.github.com/spec/v1\n".to_vec(),
            Status::UnknownFormat,
            "Git LFS",
        ),
        (
            b"\x40\0\0\0\0\0\0\0{\"a\":1}".to_vec(),
            Status::UnknownFormat,
            "safetensors",
        ),
        (with(4, &[0]), Status::UnknownFormat, "version 0"),
        (with(4, &[1]), Status::UnknownFormat, "version 1"),
        (with(4, &[4]), Status::UnknownFormat, "version 4"),
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
