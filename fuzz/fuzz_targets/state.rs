//! A saved session: an error that says what is wrong with it, or a session that goes on, and goes on the
//! same when it is saved and restored again; never a panic. The input is a byte and the file. The byte
//! chooses the model; unless its second bit is set, lengths and checksums are made right, so that what lies
//! behind them is reached, and unless its third bit is set, the file is made one of that model.
#![no_main]

mod models;

use emberlm::engine::state::{Kind, RestoreOptions, inspect};
use emberlm::engine::{Model, Session, SessionOptions};
use emberlm::{Result, Status};
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, LazyLock};
use twox_hash::XxHash3_64;

const HEADER_BYTES: usize = 96;
const PART_BYTES: u64 = 1 << 20;
const PART_HEADER_BYTES: usize = 16;

/// The models, and the start of a file of each.
static MODELS: LazyLock<[(Arc<Model>, Vec<u8>); 2]> = LazyLock::new(|| {
    // Panics of the grammars' crate are caught; what counts is that they stay inside.
    std::panic::set_hook(Box::new(|_| {}));
    [
        "tests/data/families/qwen2/model.gguf",
        "models/hamlet-7m-Q4_K_M.gguf",
    ]
    .map(|path| {
        let model = models::load(&models::repository(path));
        let mut session =
            Session::create(model.clone(), &SessionOptions::default()).expect("a session");
        let file = save(&mut session).expect("a saved session");
        (model, file)
    })
});

fuzz_target!(|bytes: &[u8]| {
    let Some((flags, file)) = bytes.split_first() else {
        return;
    };
    let (model, example) = &MODELS[usize::from(flags & 1)];
    let mut file = file.to_vec();
    if flags & 2 == 0 {
        mend(&mut file, (flags & 4 == 0).then_some(example));
    }
    let path = std::env::temp_dir().join(format!("emberlm-fuzz-{}", std::process::id()));
    std::fs::write(&path, &file).expect("a temporary file");
    let details = inspect(&path);
    let mut session = match restore(model, &file) {
        Ok(session) => session,
        Err(error) => {
            let expected = [
                Status::NotState,
                Status::StateVersion,
                Status::StateForeign,
                Status::StateChecksum,
                Status::FileTruncated,
                Status::FileCorrupt,
                Status::InvalidArgument,
                Status::InvalidToken,
                Status::Unsupported,
                Status::Grammar,
                Status::OutOfMemory,
            ];
            assert!(expected.contains(&error.status), "{error}");
            return;
        }
    };
    // A callback may have more to give than the saved session.
    if let Ok(details) = details {
        assert_eq!(details.position, session.position());
        assert_eq!(details.context, session.context());
    }
    let again = save(&mut session).expect("a restored session can be saved");
    let mut other = restore(model, &again).expect("what was saved can be restored");
    assert_eq!(other.tokens(), session.tokens());
    for _ in 0..2 {
        let (a, b) = (session.decode(), other.decode());
        assert_eq!(a.map_err(|e| e.status), b.map_err(|e| e.status));
    }
});

fn restore(model: &Arc<Model>, mut file: &[u8]) -> Result<Session> {
    let mut read = |to: &mut [u8]| {
        let n = to.len().min(file.len());
        to[..n].copy_from_slice(&file[..n]);
        file = &file[n..];
        Ok(n)
    };
    Session::restore_from(model.clone(), &mut read, &RestoreOptions::default())
}

fn save(session: &mut Session) -> Result<Vec<u8>> {
    let mut file = Vec::new();
    let mut write = |part: &[u8]| {
        file.extend_from_slice(part);
        Ok(())
    };
    session.save_to(&mut write, Kind::Everything)?;
    Ok(file)
}

/// Writes what a file must have for its sections to be looked at: magic and fingerprints of `example`, the
/// size of parts, the total, parts' headers and checksums.
fn mend(file: &mut [u8], example: Option<&Vec<u8>>) {
    if file.len() < HEADER_BYTES {
        return;
    }
    if let Some(example) = example {
        // Magic and version; fingerprints.
        for range in [0..12, 24..40] {
            file[range.clone()].copy_from_slice(&example[range]);
        }
    }
    let number = |file: &[u8], at: usize| {
        u64::from_le_bytes(file[at..at + 8].try_into().expect("eight bytes"))
    };
    let tokens = number(file, 48).wrapping_mul(4);
    let sections = [number(file, 40), tokens, number(file, 56)];
    let stored = sections.map(|bytes| {
        let headers = bytes
            .div_ceil(PART_BYTES)
            .wrapping_mul(PART_HEADER_BYTES as u64);
        bytes.wrapping_add(headers)
    });
    let total = stored
        .into_iter()
        .fold(HEADER_BYTES as u64, u64::wrapping_add);
    file[16..24].copy_from_slice(&total.to_le_bytes());
    file[64..68].copy_from_slice(&(PART_BYTES as u32).to_le_bytes());
    let sum = XxHash3_64::oneshot(&file[..HEADER_BYTES - 8]);
    file[HEADER_BYTES - 8..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());

    let mut rest = &mut file[HEADER_BYTES..];
    for (section, mut left) in (1u64..).zip(sections) {
        let mut index = 0u32;
        while left > 0 {
            let n = left.min(PART_BYTES) as usize;
            if rest.len() < PART_HEADER_BYTES + n {
                return;
            }
            let (part, behind) = rest.split_at_mut(PART_HEADER_BYTES + n);
            let (header, bytes) = part.split_at_mut(PART_HEADER_BYTES);
            let seed = section << 56 ^ u64::from(index) << 24 ^ n as u64;
            header[..4].copy_from_slice(&(section as u32).to_le_bytes());
            header[4..8].copy_from_slice(&index.to_le_bytes());
            let sum = XxHash3_64::oneshot_with_seed(seed, bytes);
            header[8..].copy_from_slice(&sum.to_le_bytes());
            (rest, left, index) = (behind, left - n as u64, index + 1);
        }
    }
}
