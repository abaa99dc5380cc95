//! Tiny models that are packed: folders, by their weights, and single files (`data/pack.py`).

use super::xz;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where a path of the repository is found unpacked, if it is packed or leads into such a folder. Whoever needs it first unpacks
/// it, for all test programs; it is found by what is in it.
pub fn unpacked(root: &Path, path: &str) -> Option<PathBuf> {
    let rest = path.strip_prefix("tests/data/")?;
    let mut parts = rest.splitn(3, '/');
    let (part, name, file) = (parts.next()?, parts.next()?, parts.next());
    let folder = root.join("tests/data").join(part);
    if let Ok(packed) = fs::read(folder.join(format!("{name}.xz"))) {
        let mut hash = DefaultHasher::new();
        hash.write(&packed);
        let write = |new: &Path| fs::write(new, xz::unpacked(&packed)).unwrap();
        return Some(made(part, hash.finish(), name, write));
    }
    let folder = folder.join(name);
    let packed = fs::read(folder.join("weights.xz")).ok()?;
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let mut hash = DefaultHasher::new();
    for file in &files {
        hash.write(file.file_name().unwrap().as_encoded_bytes());
        hash.write(&fs::read(file).unwrap());
    }
    let place = made(part, hash.finish(), name, |new| {
        fs::create_dir_all(new).unwrap();
        unpack(&packed, new);
        for file in files.iter().filter(|f| !f.ends_with("weights.xz")) {
            fs::copy(file, new.join(file.file_name().unwrap())).unwrap();
        }
    });
    Some(match file {
        Some(file) => place.join(file),
        None => place,
    })
}

/// A file or folder of this name, which is made if nobody has made it yet. Its name stays, because models without a name of their own
/// are called by it.
fn made(part: &str, hash: u64, name: &str, make: impl FnOnce(&Path)) -> PathBuf {
    // On a machine that the tests were only copied to, cargo's folder is not there.
    let ours = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let base = match ours.is_dir() {
        true => ours.to_path_buf(),
        false => std::env::temp_dir(),
    };
    let base = base.join("emberlm-unpacked");
    let outer = base.join(format!("{part}-{hash:016x}"));
    let place = outer.join(name);
    if !place.exists() {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let new = base.join(format!("{name}-{}-{number}", std::process::id()));
        fs::create_dir_all(&outer).unwrap();
        make(&new);
        // Another program may have been faster.
        if fs::rename(&new, &place).is_err() {
            match new.is_dir() {
                true => fs::remove_dir_all(&new).unwrap(),
                false => fs::remove_file(&new).unwrap(),
            }
        }
    }
    assert!(place.exists(), "{}", place.display());
    place
}

fn unpack(packed: &[u8], to: &Path) {
    let (gguf, safetensors) = xz::weights(packed);
    fs::write(to.join("model.gguf"), gguf).unwrap();
    fs::write(to.join("model.safetensors"), safetensors).unwrap();
}
