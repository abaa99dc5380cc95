//! Models that targets use.

use emberlm::backend::{DeviceKind, LoadOptions};
use emberlm::engine::{Model, device};
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[path = "../../../tests/common/xz.rs"]
mod xz;

/// A file or folder of the repository.
#[allow(dead_code)]
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// The GGUF file of a folder of the repository whose weights are packed (`tests/data/pack.py`), unpacked for this process.
#[allow(dead_code)]
pub fn unpacked(folder: &str) -> PathBuf {
    let packed = std::fs::read(repository(folder).join("weights.xz")).expect("packed weights");
    let (gguf, _) = xz::weights(&packed);
    let path = std::env::temp_dir().join(format!("emberlm-fuzz-model-{}", std::process::id()));
    std::fs::write(&path, gguf).expect("a temporary file");
    path
}

/// A model, on a thread of the CPU.
#[allow(dead_code)]
pub fn load(path: &Path) -> Arc<Model> {
    let is_cpu = |i: &usize| device::info(*i).is_ok_and(|d| d.kind == DeviceKind::Cpu);
    let n = device::count().expect("devices");
    let options = LoadOptions {
        threads: 1,
        ..Default::default()
    };
    let cpu = (0..n).find(is_cpu).expect("a CPU");
    Arc::new(Model::load(path, cpu, &options, &mut |_| Ok(())).expect("a model"))
}
