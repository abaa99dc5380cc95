//! Models that targets use.

use emberlm::backend::{DeviceKind, LoadOptions};
use emberlm::engine::{Model, device};
use std::path::Path;
use std::sync::Arc;

/// The model of a file of the repository, on a thread of the CPU.
pub fn load(path: &str) -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    let is_cpu = |i: &usize| device::info(*i).is_ok_and(|d| d.kind == DeviceKind::Cpu);
    let n = device::count().expect("devices");
    let options = LoadOptions {
        threads: 1,
        ..Default::default()
    };
    let cpu = (0..n).find(is_cpu).expect("a CPU");
    Arc::new(Model::load(&path, cpu, &options, &mut |_| Ok(())).expect("a model"))
}
