//! What happens when the device or the process around it fails. Each case runs in a process of its
//! own: this program again, with the case in `EMBERLM_TEST_FAULT`.

use crate::common::hamlet;
use crate::common::work::{Driven, Step};
use crate::gpu::*;
use emberlm::Status;
use emberlm::backend::cuda::launch::args;
use emberlm::backend::cuda::run::weights::CudaWeights;
use emberlm::backend::{KvType, RunnerOptions, Weights};
use emberlm::engine::sampling::Sampling;
use emberlm::model::Network;
use std::sync::Arc;

const CASE: &str = "EMBERLM_TEST_FAULT";

pub fn tests(tests: &mut Tests) {
    tests.push((
        "faults::sticky_error".into(),
        Box::new(|| run_in_child("sticky")),
    ));
    #[cfg(unix)]
    tests.push(("faults::fork".into(), Box::new(|| run_in_child("fork"))));
}

/// Runs the case of this process, if it is a child for one.
pub fn child() -> bool {
    match std::env::var(CASE).as_deref() {
        Ok("sticky") => sticky_error(),
        #[cfg(unix)]
        Ok("fork") => fork_in_the_host(),
        _ => return false,
    }
    true
}

fn run_in_child(case: &str) {
    let program = std::env::current_exe().unwrap();
    let output = std::process::Command::new(program)
        .env(CASE, case)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn session() -> Driven {
    let network = Network::from_file(&hamlet::q4_k_m()).unwrap();
    let weights: Arc<dyn Weights> =
        CudaWeights::load_into(&context(), &network, &mut |_| Ok(())).unwrap();
    let options = RunnerOptions {
        context: 128,
        kv_type: KvType::F16,
        ..RunnerOptions::default()
    };
    let mut runner = Driven::new(&weights, &options).unwrap();
    runner.extend(&[1, 2, 3], &Arc::default()).unwrap();
    runner
}

fn step(runner: &mut Driven) -> emberlm::Result<u32> {
    let step = Step {
        token: None,
        sampling: Sampling::default(),
    };
    runner.step(&step, &Arc::default())
}

/// After an illegal access everything says that the device is lost, and nothing gives a token.
fn sticky_error() {
    let mut runner = session();
    let mut other = session();
    step(&mut runner).unwrap();
    let bad = args::Unpack {
        matrix: 0x10,
        out: 0x10,
        ty: 0,
        groups: 1,
        matrix_rows: 1,
        rows: 1,
        to_f32: 1,
        ..Default::default()
    };
    let gpu = context();
    {
        let _current = gpu.enter().unwrap();
        let stream = emberlm::backend::cuda::driver::Stream::new(&gpu, 0).unwrap();
        // SAFETY: none; the access is meant to be illegal.
        unsafe { kernels().unpack(&stream, &bad).unwrap() };
        assert_eq!(stream.synchronize().unwrap_err().status, Status::DeviceLost);
    }
    for runner in [&mut runner, &mut other] {
        for _ in 0..2 {
            assert_eq!(step(runner).unwrap_err().status, Status::DeviceLost);
            let e = runner.extend(&[4], &Arc::default()).unwrap_err();
            assert_eq!(e.status, Status::DeviceLost);
            let mut logits = [0.0; 1];
            assert_eq!(
                runner.logits(&mut logits).unwrap_err().status,
                Status::DeviceLost
            );
        }
    }
    assert_eq!(gpu.memory().unwrap_err().status, Status::DeviceLost);
}

/// A forked child gets errors, frees without harm, and does not hang; the parent goes on.
#[cfg(unix)]
fn fork_in_the_host() {
    unsafe extern "C" {
        fn fork() -> i32;
        fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
        fn _exit(code: i32) -> !;
    }
    let mut runner = session();
    let first = step(&mut runner).unwrap();
    // SAFETY: the child calls only what is under test, and leaves by `_exit`.
    unsafe {
        let pid = fork();
        if pid == 0 {
            let lost = matches!(step(&mut runner), Err(e) if e.status == Status::DeviceLost);
            drop(runner);
            let fresh = emberlm::backend::cuda::driver::Context::new(0);
            let refused = matches!(fresh, Err(e) if e.status == Status::DeviceLost);
            _exit(if lost && refused { 0 } else { 1 });
        }
        assert!(pid > 0);
        let mut status = -1;
        assert_eq!(waitpid(pid, &mut status, 0), pid);
        assert_eq!(status, 0, "exit status of the forked child");
    }
    assert_eq!(step(&mut runner).unwrap(), first);
}
