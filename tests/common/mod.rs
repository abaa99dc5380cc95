//! What several integration tests share. Each uses a part of it.
#![allow(dead_code)]

pub mod adapters;
pub mod convert;
pub mod drafts;
pub mod edit;
pub mod embeddings;
pub mod expected;
pub mod families;
pub mod folder;
pub mod fused;
pub mod hamlet;
pub mod heads;
pub mod later;
mod packed;
pub mod quantize;
pub mod reference_experts;
pub mod reference_llama;
pub mod reference_recurrent;
pub mod runs;
pub mod states;
pub mod threads;
pub mod tiny;
pub mod tiny_experts;
pub mod variants;
pub mod work;
pub mod xz;

use emberlm::backend::DeviceKind;
use emberlm::engine::device;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A file of the repository, or of the copy that `EMBERLM_REPOSITORY` names where the tests run on
/// another machine.
pub fn repository_file(path: &str) -> PathBuf {
    let root = std::env::var_os("EMBERLM_REPOSITORY");
    let root = root.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    packed::unpacked(&root, path).unwrap_or_else(|| root.join(path))
}

/// The number of the CPU among the devices.
pub fn cpu() -> usize {
    let is_cpu = |i: &usize| device::info(*i).unwrap().kind == DeviceKind::Cpu;
    (0..device::count().unwrap()).find(is_cpu).unwrap()
}

/// A new directory for files of this test, removed when the value is dropped.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new(test: &str) -> TempDir {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let (process, n) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(format!("emberlm-{test}-{process}-{n}"));
        std::fs::create_dir_all(&dir).unwrap();
        TempDir(dir)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file and returns its path.
    pub fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
