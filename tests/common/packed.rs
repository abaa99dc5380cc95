//! Folders of tiny models whose weights are packed (`data/pack.py`).

use super::xz;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where a path of the repository is found unpacked, if it leads into such a folder. Whoever needs a folder first unpacks
/// it, for all test programs; it is found by what is in it.
pub fn unpacked(root: &Path, path: &str) -> Option<PathBuf> {
    let rest = path.strip_prefix("tests/data/")?;
    let mut parts = rest.splitn(3, '/');
    let (part, name, file) = (parts.next()?, parts.next()?, parts.next());
    let folder = root.join("tests/data").join(part).join(name);
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
    // On a machine that the tests were only copied to, cargo's folder is not there.
    let ours = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let base = match ours.is_dir() {
        true => ours.to_path_buf(),
        false => std::env::temp_dir(),
    };
    let base = base.join("emberlm-unpacked");
    // Its name stays, because models without a name of their own are called by it.
    let outer = base.join(format!("{part}-{:016x}", hash.finish()));
    let place = outer.join(name);
    if !place.is_dir() {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let new = base.join(format!("{name}-{}-{number}", std::process::id()));
        fs::create_dir_all(&new).unwrap();
        unpack(&packed, &new);
        for file in files.iter().filter(|f| !f.ends_with("weights.xz")) {
            fs::copy(file, new.join(file.file_name().unwrap())).unwrap();
        }
        fs::create_dir_all(&outer).unwrap();
        // Another program may have been faster.
        if fs::rename(&new, &place).is_err() {
            fs::remove_dir_all(&new).unwrap();
        }
    }
    assert!(place.is_dir(), "{}", place.display());
    Some(match file {
        Some(file) => place.join(file),
        None => place,
    })
}

fn unpack(packed: &[u8], to: &Path) {
    let (gguf, safetensors) = xz::weights(packed);
    fs::write(to.join("model.gguf"), gguf).unwrap();
    fs::write(to.join("model.safetensors"), safetensors).unwrap();
}
