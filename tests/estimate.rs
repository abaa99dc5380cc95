//! Estimates against the memory that is resident afterwards. One test alone in this process,
//! because it measures the whole process.

mod common;

use common::TempDir;
use common::tiny::Tiny;
use emberlm::backend::{DeviceKind, LoadOptions};
use emberlm::engine::{Model, Session, SessionOptions, device};
use emberlm::quant::TensorType;
use std::sync::Arc;

/// Bytes that this process has resident, where the system tells.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg_attr(not(target_os = "linux"), ignore = "the system does not tell")]
#[test]
fn what_is_resident_is_what_was_estimated() {
    let tiny = Tiny {
        layers: 4,
        heads: 8,
        kv_heads: 2,
        head_dim: 64,
        hidden: 512,
        ff: 1536,
        vocab: 8000,
        context: 4096,
        ty: TensorType::F16,
        ..Tiny::default()
    };
    let dir = TempDir::new("estimate");
    let path = dir.file("model.gguf", &tiny.bytes());
    let cpu = (0..device::count().unwrap())
        .find(|&i| device::info(i).unwrap().kind == DeviceKind::Cpu)
        .unwrap();
    let options = LoadOptions {
        threads: 2,
        ..Default::default()
    };
    let long = SessionOptions {
        context: 3000,
        ..Default::default()
    };
    let short = SessionOptions {
        context: 8,
        ..Default::default()
    };
    let estimate = |session| {
        Model::estimate(&path, cpu, &options, session)
            .unwrap()
            .0
            .device
    };
    let (of_long, of_short) = (estimate(&long), estimate(&short));
    assert!(of_long.kv_bytes >= 3000 * of_long.kv_bytes_per_token);
    let n_short = 31;
    let estimated = of_long.weights_bytes
        + of_long.model_workspace_bytes
        + of_long.kv_bytes
        + of_long.session_workspace_bytes
        + n_short * (of_short.kv_bytes + of_short.session_workspace_bytes);

    let before = resident().expect("Linux tells");
    let model = Arc::new(Model::load(&path, cpu, &options, &mut |_| Ok(())).unwrap());
    let mut sessions = vec![Session::create(model.clone(), &long).unwrap()];
    let prompt: Vec<u32> = (0..2998).map(|i| i * 7 % 8000).collect();
    sessions[0].prefill(&prompt).unwrap();
    for _ in 0..n_short {
        let mut session = Session::create(model.clone(), &short).unwrap();
        session.prefill(&[1, 2]).unwrap();
        sessions.push(session);
    }
    for _ in 0..2 {
        let mut all: Vec<&mut Session> = sessions.iter_mut().collect();
        let tokens = Session::decode_batch(&mut all).unwrap();
        assert!(tokens.iter().all(|token| token.is_ok()));
    }
    let grown = (resident().unwrap() - before) as f64;
    let estimated = estimated as f64;
    println!("estimated {estimated:.3e} bytes, resident {grown:.3e}");
    // Beyond it: stacks, the vocabulary, memory that the allocator keeps. Below it: parts of
    // segments and buffers that these lengths do not touch.
    assert!(grown < estimated * 1.05 + 4e6, "{grown} {estimated}");
    assert!(grown > estimated * 0.75, "{grown} {estimated}");
    let details = model.details();
    assert!(of_long.weights_bytes <= details.file_bytes + details.resident_bytes);
    assert!(of_long.weights_bytes > details.file_bytes * 95 / 100);
}
